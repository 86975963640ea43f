// Second pass of a product whose sums are split:   y (M, N) [+]= Σ_p parts[p] [+ bias] [+ residual]
//
//   parts (P, M, N) f32, written by matmul/portable with `split`; P = ⌈K / part_k⌉; a_stride is the stride of its rows
//
// A product of few tiles and long sums would leave most of a GPU idle; the parts of its sums are computed side by side
// instead ("split K", as in NVIDIA's CUTLASS). One invocation computes 4 elements of y. Numerics: the parts are added
// in f32 in ascending order, so results are the same from run to run.

import package::lib::grid::linear_index;
import package::matmul::operands::{bias_of, destination, epilogue, params, product_of};
import package::tile::LANES;

@group(0) @binding(1) var<storage, read> parts: array<vec4<f32>>;

@compute @workgroup_size(LANES)
fn sum_parts(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let columns4 = (params.n + 3u) / 4u;
    let index = linear_index(workgroup) * LANES + lane;
    let row = index / columns4;
    let column4 = index % columns4;
    if (row >= params.m) {
        return;
    }
    var sum = vec4<f32>(0.0);
    var at = row * params.a_stride + column4;
    for (var k0 = 0u; k0 < params.k; k0 += params.part_k) {
        sum += parts[at];
        at += params.m * params.a_stride;
    }
    let to = destination(product_of(workgroup));
    epilogue(sum, bias_of(to, column4), to, row, column4);
}
