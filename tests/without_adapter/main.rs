//! Tests that need no adapter: the source text, the shaders, recordings of `configs/`, and the data.

mod configuration;
mod variants;

mod configs;
mod megatron;
mod shaders;
mod tidy;
mod tokens;
