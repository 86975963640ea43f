//! Tests that need no adapter: the source text, the shaders, recordings of `configs/`, the settings, and the data.

#[path = "../hostile/mod.rs"]
mod hostile;

mod configuration;
mod place;
mod variants;

mod callers;
mod configs;
mod durable;
mod exchanges;
mod finite;
mod gguf;
mod grids;
mod history;
mod lazy_inline;
mod matrix_memory;
mod megatron;
mod memory_model;
mod mindrecord;
mod own_shaders;
mod records;
mod registers;
mod samples;
mod send;
mod settings;
mod shaders;
mod sizes;
mod staging;
mod statements;
mod text_data;
mod tidy;
mod tokenize;
mod tokenizer;
mod turns;
mod uniformity;
mod unroll;
mod writers;
