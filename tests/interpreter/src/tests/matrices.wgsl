// Matrices of 8 x 8 that belong to two subgroups of 4.

enable f16;
enable wgpu_cooperative_matrix;

@group(0) @binding(0) var<storage, read_write> words: array<u32>;
@group(0) @binding(2) var<storage, read> values: array<vec4<f32>>;

var<workgroup> left: array<vec4<f16>, 16>;
var<workgroup> right: array<f16, 64>;
var<workgroup> sums: array<f32, 128>;

// Row i, column j of left is i + j, that of right is i where i = j.
fn stage(lane: u32) {
    for (var i = lane; i < 64u; i += 8u) {
        if (i % 4u == 0u) {
            left[i / 4u] = f16(i / 8u + i % 8u) + vec4<f16>(0.0h, 1.0h, 2.0h, 3.0h);
        }
        right[i] = f16(select(0u, i / 8u, i / 8u == i % 8u));
        sums[i] = 0.5;
        sums[64u + i] = 0.5;
    }
    workgroupBarrier();
}

fn multiply(to: u32) {
    let a = coopLoadT<coop_mat8x8<f16, A>>(&left[0], 2u);
    let b = coopLoad<coop_mat8x8<f16, B>>(&right[0], 8u);
    let c = coopLoadT<coop_mat8x8<f32, C>>(&sums[to], 8u);
    coopStoreT(coopMultiplyAdd(a, b, c), &sums[to], 8u);
}

// Clean: each subgroup has its own sums, which lanes read after a barrier.
@compute @workgroup_size(8)
fn products(@builtin(local_invocation_index) lane: u32, @builtin(subgroup_id) subgroup: u32) {
    stage(lane);
    multiply(64u * subgroup);
    workgroupBarrier();
    for (var i = lane; i < 64u; i += 8u) {
        words[i] = u32(2.0 * (sums[i] + sums[64u + i]));
    }
}

// The second row of `right` starts after 14 bytes.
@compute @workgroup_size(8)
fn unaligned(@builtin(local_invocation_index) lane: u32) {
    stage(lane);
    _ = coopLoad<coop_mat8x8<f16, B>>(&right[0], 7u);
}

// Both subgroups store one matrix.
@compute @workgroup_size(8)
fn one_place(@builtin(local_invocation_index) lane: u32) {
    stage(lane);
    multiply(0u);
}
