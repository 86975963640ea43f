// Accepted: a return and loops that depend on the workgroup, on params, on read-only storage at such an index, and on
// what functions make of these; branches and loops by lane that hold no barrier.

struct Range {
    first: u32,
    end: u32,
}

@group(0) @binding(0) var<uniform> rows: u32;
@group(0) @binding(1) var<storage, read> offsets: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<f32>;

var<workgroup> shared_values: array<f32, 64>;

fn range_of(row: u32) -> Range {
    return Range(offsets[row], offsets[row + 1u]);
}

fn sum(value: f32, lane: u32) -> f32 {
    shared_values[lane] = value;
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            shared_values[lane] += shared_values[lane + half];
        }
    }
    workgroupBarrier();
    return shared_values[0];
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let range = range_of(workgroup.x);
    if (workgroup.x >= rows || range.first == range.end) {
        return;
    }
    for (var tile = range.first; tile < range.end; tile += 64u) {
        var value = 0.0;
        for (var i = tile + lane; i < range.end; i += 64u) {
            if (i % 2u == 0u) {
                continue;
            }
            value += values[i];
        }
        let total = sum(value, lane);
        if (lane == 0u) {
            values[tile] = total;
        }
    }
}
