// Refused: a private variable is non-uniform, whatever was stored to it.

@group(0) @binding(0) var<uniform> rows: u32;

var<private> row: u32;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>) {
    row = workgroup.x;
    for (var i = row; i < rows; i++) {
        workgroupBarrier();
    }
}
