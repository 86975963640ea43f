// Refused: `row` depends on the workgroup alone, but the struct that holds it also holds the lane.

struct Share {
    row: u32,
    first: u32,
}

@group(0) @binding(0) var<uniform> rows: u32;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let share = Share(workgroup.x, lane);
    if (share.row >= rows) {
        return;
    }
    workgroupBarrier();
}
