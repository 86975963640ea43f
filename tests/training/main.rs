//! Whole training runs in this process, dense models and mixtures of experts: against an f64 run of the trainer,
//! against each other, stopped and resumed, and what they generate.

#[path = "../draws/mod.rs"]
mod draws;
#[path = "../runs/mod.rs"]
mod runs;

mod accumulation;
mod adapters;
mod against_reference;
mod best;
mod blend;
mod divergence;
mod document_steps;
mod dropout;
mod evaluation;
mod export;
mod families;
mod fit;
mod forecast;
mod generate;
mod half;
mod latent;
mod lora;
mod loss_scale;
mod memory;
mod mindrecord;
mod mixtures;
mod monitors;
mod own_loop;
mod portable;
mod portions;
mod preference;
mod profile;
mod published;
mod published_names;
mod quantised_base;
mod ranks;
mod recompute;
mod resume;
mod rotary_types;
mod rounding;
mod samples;
mod segments;
mod submissions;
mod trainer;
mod unplaced;
