// No WGSL.

fn main( {
