// Loops that stay: an entry point each.

@group(0) @binding(0) var<storage, read_write> y: array<u32>;

@compute @workgroup_size(1)
fn bound_from_data(@builtin(local_invocation_index) lane: u32) {
    var a: array<u32, 4>;
    for (var i = 0u; i < lane; i++) {
        a[i] = 1u;
    }
    y[0] = a[0];
}

@compute @workgroup_size(1)
fn first_from_data(@builtin(local_invocation_index) lane: u32) {
    var a: array<u32, 4>;
    for (var i = lane; i < 4u; i++) {
        a[i] = 1u;
    }
    y[0] = a[0];
}

@compute @workgroup_size(1)
fn step_from_data(@builtin(local_invocation_index) lane: u32) {
    var a: array<u32, 4>;
    for (var i = 0u; i < 4u; i += lane) {
        a[i] = 1u;
    }
    y[0] = a[0];
}

@compute @workgroup_size(1)
fn changed_within() {
    var a: array<u32, 4>;
    for (var i = 0u; i < 4u; i++) {
        a[i] = 1u;
        i += y[i];
    }
    y[0] = a[0];
}

@compute @workgroup_size(1)
fn changed_before(@builtin(local_invocation_index) lane: u32) {
    var a: array<u32, 4>;
    var i = 0u;
    if (lane > 2u) {
        i = 2u;
    }
    for (; i < 4u; i++) {
        a[i] = 1u;
    }
    y[0] = a[0];
}

@compute @workgroup_size(1)
fn left_early() {
    var a: array<u32, 4>;
    for (var i = 0u; i < 4u; i++) {
        if (y[i] > 3u) {
            break;
        }
        a[i] = 1u;
    }
    y[0] = a[0];
}

@compute @workgroup_size(1)
fn too_long() {
    var a: array<u32, 4>;
    for (var i = 0u; i < 65u; i++) {
        a[i % 4u] = 1u;
    }
    y[0] = a[0];
}

@compute @workgroup_size(1)
fn no_private_array() {
    for (var i = 0u; i < 4u; i++) {
        y[i] = 1u;
    }
}

@compute @workgroup_size(1)
fn no_pass(@builtin(local_invocation_index) lane: u32) {
    var a: array<u32, 8>;
    for (var i = 3u; i < 3u; i++) {
        a[i] = lane;
    }
    y[0] = a[1];
}
