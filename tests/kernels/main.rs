//! The kernels and the tape's ops against the f64 reference, on every tier and in every element type they take.

#[path = "../draws/mod.rs"]
mod draws;
mod lab;
mod packed;
mod routing;

mod attention;
mod balance;
mod decode;
mod documents;
mod draw;
mod dropout;
mod elementwise;
mod fingerprint;
mod folded_grids;
mod gelu_products;
mod grad_norm;
mod grouped;
mod grouped_layers;
mod half;
mod lanes;
mod latent_heads;
mod linear_cross_entropy;
mod loss_scale;
mod masks;
mod matmul;
mod matrices;
mod max_logit;
mod muon;
mod norms_and_sums;
mod optimizers;
mod outputs;
mod own_device;
mod own_kernel;
mod permute;
mod placement;
mod power_iteration;
mod rounding;
mod route;
mod row_gate;
mod shares;
mod spread;
mod squares;
mod swiglu_products;
mod tape;
mod unfused;
