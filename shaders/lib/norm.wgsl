// Factors of a norm's elements: its weights w or, where these are stored centred on zero, 1 + w.

import package::lib::element::{Packed, load4};

fn norm_factors(w: Packed) -> vec4<f32> {
    @if(!zero_centered) { return load4(w); }
    @if(zero_centered) { return 1.0 + load4(w); }
}
