// Matrix product for CPU adapters:   y (M, N) [+]= a · b  [+ bias] [+ residual]
//
//   default         a (M, K), b (K, N)      dx = dy W
//   b_transposed    a (M, K), b (N, K)      y  = x Wᵀ
//   a_transposed    a (K, M), b (K, N)      dW = dyᵀ x
//
// One invocation owns ROWS rows by COLUMNS4 groups of 4 columns and walks K alone: no barrier, no workgroup memory (both
// are slow where a core plays a GPU). Neighbouring invocations own neighbouring groups; the rows come from the workgroup's
// index, so every load from `a` is the same for all of them and costs one scalar load. Those loads are most of the time
// all the same, which is why an invocation has more than one group of columns for each.
// Indices past the edge are clamped, not branched around: control flow would make those loads divergent.
// Sums are arrays of arrays, indexed by loop counters alone: drivers unroll such loops, and keep no array in memory.
// Numerics: f32 sums over k in ascending order.

import package::lib::element::load4;
import package::matmul::operands::{a, a_start, b, b_start, epilogue, params, size_k, size_m};
@if(grouped) import package::matmul::operands::pick_group;
import package::tile::{ROWS, COLUMNS4, LANES};

alias Sums = array<array<vec4<f32>, COLUMNS4>, ROWS>;
alias Columns = array<u32, COLUMNS4>; // which groups of 4

@compute @workgroup_size(LANES)
fn matmul(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    @if(grouped) { pick_group(workgroup); }
    @if(!grouped || a_transposed) let first_row = workgroup.y * ROWS;
    @if(grouped && !a_transposed) let first_row = 0u;
    @if(!grouped || !a_transposed) let first_column4 = workgroup.x * LANES * COLUMNS4 + local.x;
    @if(grouped && a_transposed) let first_column4 = workgroup.z * LANES * COLUMNS4 + local.x;
    let columns4 = (params.n + 3u) / 4u;
    var columns: Columns;
    for (var c = 0u; c < COLUMNS4; c++) {
        columns[c] = min(first_column4 + c * LANES, columns4 - 1u);
    }
    var sums = mainloop(first_row, columns);
    for (var c = 0u; c < COLUMNS4; c++) {
        let column4 = first_column4 + c * LANES;
        for (var r = 0u; r < ROWS; r++) {
            epilogue(sums[r][c], first_row + r, column4);
        }
    }
}

@if(!a_transposed && !b_transposed)
fn mainloop(first_row: u32, clamped: Columns) -> Sums {
    var columns = clamped; // naga indexes a variable, not a value, by a loop's counter
    var sums: Sums;
    let last_k = size_k() - 1u;
    for (var k4 = 0u; k4 < (size_k() + 3u) / 4u; k4++) {
        // `a` is zero in its pad, so a clamped row of `b` counts for nothing.
        var b: array<mat4x4<f32>, COLUMNS4>;
        for (var c = 0u; c < COLUMNS4; c++) {
            b[c] = mat4x4<f32>(
                load_b(4u * k4, columns[c]),
                load_b(min(4u * k4 + 1u, last_k), columns[c]),
                load_b(min(4u * k4 + 2u, last_k), columns[c]),
                load_b(min(4u * k4 + 3u, last_k), columns[c]),
            );
        }
        for (var r = 0u; r < ROWS; r++) {
            let x = load_a(min(first_row + r, size_m() - 1u), k4);
            for (var c = 0u; c < COLUMNS4; c++) {
                sums[r][c] = add_four(x, b[c], sums[r][c]);
            }
        }
    }
    return sums;
}

@if(b_transposed)
fn mainloop(first_row: u32, clamped: Columns) -> Sums {
    var columns = clamped; // naga indexes a variable, not a value, by a loop's counter
    var sums: Sums;
    let last_n = params.n - 1u;
    for (var k4 = 0u; k4 < (size_k() + 3u) / 4u; k4++) {
        // Four columns of b by four k, turned so that each vector again runs along the columns.
        var b: array<mat4x4<f32>, COLUMNS4>;
        for (var c = 0u; c < COLUMNS4; c++) {
            let n0 = 4u * columns[c];
            b[c] = transpose(mat4x4<f32>(
                load_b(n0, k4),
                load_b(min(n0 + 1u, last_n), k4),
                load_b(min(n0 + 2u, last_n), k4),
                load_b(min(n0 + 3u, last_n), k4),
            ));
        }
        for (var r = 0u; r < ROWS; r++) {
            let x = load_a(min(first_row + r, size_m() - 1u), k4);
            for (var c = 0u; c < COLUMNS4; c++) {
                sums[r][c] = add_four(x, b[c], sums[r][c]);
            }
        }
    }
    return sums;
}

// sum + four steps along k, in ascending order.
fn add_four(x: vec4<f32>, b: mat4x4<f32>, sum: vec4<f32>) -> vec4<f32> {
    let two = fma(vec4<f32>(x.y), b[1], fma(vec4<f32>(x.x), b[0], sum));
    return fma(vec4<f32>(x.w), b[3], fma(vec4<f32>(x.z), b[2], two));
}

@if(a_transposed)
fn mainloop(first_row: u32, clamped: Columns) -> Sums {
    var columns = clamped; // naga indexes a variable, not a value, by a loop's counter
    var sums: Sums;
    let first_row4 = first_row / 4u;
    let last_row4 = (size_m() - 1u) / 4u;
    let last_k = size_k() - 1u;
    for (var k0 = 0u; k0 < size_k(); k0 += 2u) {
        for (var i = 0u; i < 2u; i++) {
            // Two k at a time, for fewer turns of the loop; past the end `b` counts for nothing.
            let k = min(k0 + i, last_k);
            var b: array<vec4<f32>, COLUMNS4>;
            for (var c = 0u; c < COLUMNS4; c++) {
                b[c] = select(vec4<f32>(0.0), load_b(k, columns[c]), k == k0 + i);
            }
            for (var r4 = 0u; r4 < ROWS / 4u; r4++) {
                let x = load_a(k, min(first_row4 + r4, last_row4));
                for (var c = 0u; c < COLUMNS4; c++) {
                    sums[4u * r4][c] = fma(vec4<f32>(x.x), b[c], sums[4u * r4][c]);
                    sums[4u * r4 + 1u][c] = fma(vec4<f32>(x.y), b[c], sums[4u * r4 + 1u][c]);
                    sums[4u * r4 + 2u][c] = fma(vec4<f32>(x.z), b[c], sums[4u * r4 + 2u][c]);
                    sums[4u * r4 + 3u][c] = fma(vec4<f32>(x.w), b[c], sums[4u * r4 + 3u][c]);
                }
            }
        }
    }
    return sums;
}

fn load_a(row: u32, column4: u32) -> vec4<f32> {
    return load4(a[a_start() + row * params.a_stride + column4]);
}

fn load_b(row: u32, column4: u32) -> vec4<f32> {
    return load4(b[b_start() + row * params.b_stride + column4]);
}
