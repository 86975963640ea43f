// Entry points of two workgroups of 8 with and without faults.

struct Tile {
    before: u32,
    rows: array<vec4<f32>, 8>,
}

@group(0) @binding(0) var<storage, read_write> words: array<u32>;
@group(0) @binding(1) var<storage, read_write> counters: array<atomic<u32>>;
@group(0) @binding(2) var<storage, read> values: array<vec4<f32>>;

var<workgroup> tile: Tile;
var<workgroup> flag: u32;
var<workgroup> raised: atomic<u32>;

// Clean: each lane reads what its neighbour has written, after a barrier.
@compute @workgroup_size(8)
fn neighbours(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    tile.rows[lane] = values[8u * workgroup.x + lane];
    workgroupBarrier();
    let row = tile.rows[(lane + 1u) % 8u];
    words[8u * workgroup.x + lane] = u32(row.x + row.y + row.z + row.w);
}

// Clean: each lane has a component of its own of a shared vector, through a pointer.
@compute @workgroup_size(8)
fn components(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = &tile.rows[lane / 4u];
    (*row)[lane % 4u] = f32(lane);
    workgroupBarrier();
    words[8u * workgroup.x + lane] = u32(tile.rows[1][lane % 4u]);
}

// Clean: a tree, a loop that lanes leave at different times, a switch, and a call that lanes return from early.
@compute @workgroup_size(8)
fn sums(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    tile.rows[lane].x = f32(steps_of(lane));
    for (var half = 4u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            tile.rows[lane].x += tile.rows[lane + half].x;
        }
    }
    workgroupBarrier();
    words[8u * workgroup.x + lane] = u32(tile.rows[0].x) + lane;
}

// lane · (lane + 1) / 2 without the odd terms; 100 for lane 7.
fn steps_of(lane: u32) -> u32 {
    var sum = 0u;
    for (var i = 0u;; i++) {
        if (i > lane) {
            break;
        }
        switch i % 2u {
            case 1u: {
                continue;
            }
            default: {}
        }
        if (lane == 7u) {
            return 100u;
        }
        sum += i;
    }
    return sum;
}

// Both workgroups write one word.
@compute @workgroup_size(8)
fn same_word(@builtin(local_invocation_index) lane: u32) {
    words[lane] = lane;
}

// A workgroup reads what the other one writes; barriers are of no use.
@compute @workgroup_size(8)
fn other_workgroup(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    words[8u * workgroup.x + lane] = lane;
    storageBarrier();
    words[16u + 8u * workgroup.x + lane] = words[8u * (1u - workgroup.x) + lane];
}

// A barrier for workgroup memory does not order storage.
@compute @workgroup_size(8)
fn other_memory(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    words[8u * workgroup.x + lane] = lane;
    workgroupBarrier();
    words[16u + 8u * workgroup.x + lane] = words[8u * workgroup.x + 7u - lane];
}

// Clean, if `counters` has memory of its own: atomics do not race with each other.
@compute @workgroup_size(8)
fn counted(@builtin(local_invocation_index) lane: u32) {
    atomicAdd(&counters[0], lane);
    if (lane == 0u) {
        atomicStore(&counters[1], 3u);
    }
}

// If `counters` and `words` are one buffer, an atomic and a plain write.
@compute @workgroup_size(8)
fn counted_and_written(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    if (workgroup.x == 0u && lane == 0u) {
        words[0] = 1u;
    }
    if (workgroup.x == 0u && lane == 1u) {
        atomicAdd(&counters[0], 1u);
    }
}

// Several lanes write the same value.
@compute @workgroup_size(8)
fn same_value(@builtin(local_invocation_index) lane: u32) {
    if (lane > 5u) {
        flag = 1u;
    }
}

// Clean: a uniform load has barriers before and after it.
@compute @workgroup_size(8)
fn uniform_load(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    if (lane == 0u) {
        flag = workgroup.x;
    }
    let there = workgroupUniformLoad(&flag);
    if (lane == 7u) {
        flag = 5u;
    }
    words[8u * workgroup.x + lane] = there;
}

// The lanes of a workgroup do not reach the barrier together.
@compute @workgroup_size(8)
fn divergent(@builtin(local_invocation_index) lane: u32) {
    if (lane < 4u) {
        workgroupBarrier();
    }
}

// Index 8 of 8 elements, and of the last element of a buffer.
@compute @workgroup_size(8)
fn past_the_end(@builtin(local_invocation_index) lane: u32) {
    if (lane == 7u) {
        tile.rows[lane + 1u].x = values[lane + 9u].x;
    }
}

@compute @workgroup_size(8)
fn unwritten(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    words[8u * workgroup.x + lane] = flag;
}
