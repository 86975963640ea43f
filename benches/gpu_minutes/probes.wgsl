// What a GPU reaches by itself, beside which kernels are judged                                     x, y: vec4<f32>
//
//   multiply_add   y[i] = Σ_j s_j of 8 sums that start at j and take s · x[0] + x[1] STEPS times
//   shared_reads   y[i] = Σ of STEPS values of workgroup memory, which holds x[0..SLOTS], from the lane's own on
//   copied         y[i] = x[i]
//   count          y[0] = y[0] + x[0], by one invocation: a launch without work
//
// One invocation computes a vec4. The values are whole numbers, so that results are exact and can be checked.

import package::lib::grid::linear_index;
import package::tile::{LANES, STEPS};

struct Params {
    length: u32, // of y
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f32>>;

const SLOTS: u32 = 4u * LANES;

var<workgroup> memory: array<vec4<f32>, SLOTS>;

@compute @workgroup_size(LANES)
fn multiply_add(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = linear_index(workgroup) * LANES + lane;
    let a = x[0]; // read, so that no compiler knows it
    let b = x[1];
    var s0 = vec4<f32>(0.0);
    var s1 = vec4<f32>(1.0);
    var s2 = vec4<f32>(2.0);
    var s3 = vec4<f32>(3.0);
    var s4 = vec4<f32>(4.0);
    var s5 = vec4<f32>(5.0);
    var s6 = vec4<f32>(6.0);
    var s7 = vec4<f32>(7.0);
    for (var step = 0u; step < STEPS; step++) {
        s0 = fma(s0, a, b);
        s1 = fma(s1, a, b);
        s2 = fma(s2, a, b);
        s3 = fma(s3, a, b);
        s4 = fma(s4, a, b);
        s5 = fma(s5, a, b);
        s6 = fma(s6, a, b);
        s7 = fma(s7, a, b);
    }
    if (at < params.length) {
        y[at] = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7;
    }
}

@compute @workgroup_size(LANES)
fn shared_reads(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = linear_index(workgroup) * LANES + lane;
    for (var slot = lane; slot < SLOTS; slot += LANES) {
        memory[slot] = x[slot];
    }
    workgroupBarrier();
    var sum = vec4<f32>(0.0);
    for (var step = 0u; step < STEPS; step += 4u) {
        sum += memory[(lane + step) % SLOTS];
        sum += memory[(lane + step + 1u) % SLOTS];
        sum += memory[(lane + step + 2u) % SLOTS];
        sum += memory[(lane + step + 3u) % SLOTS];
    }
    if (at < params.length) {
        y[at] = sum;
    }
}

@compute @workgroup_size(LANES)
fn copied(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = linear_index(workgroup) * LANES + lane;
    if (at < params.length) {
        y[at] = x[at];
    }
}

@compute @workgroup_size(1)
fn count() {
    if (params.length > 0u) {
        y[0] += x[0];
    }
}
