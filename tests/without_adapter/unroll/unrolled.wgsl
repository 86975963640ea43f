// Loops that are unrolled: the last word of an entry point's name is how often `a` is stored to.

@group(0) @binding(0) var<storage, read_write> y: array<u32>;

@compute @workgroup_size(1)
fn nested_6(@builtin(local_invocation_index) lane: u32) {
    var a: array<u32, 6>;
    for (var i = 0u; i < 2u; i++) {
        for (var j = 0u; j < 3u; j++) {
            let at = 3u * i + j;
            a[at] = y[at] + lane;
        }
    }
    y[0] = a[5];
}

@compute @workgroup_size(1)
fn doubling_3(@builtin(local_invocation_index) lane: u32) {
    var a: array<u32, 8>;
    for (var i = 1u; i <= 4u; i *= 2u) {
        a[i] = lane;
    }
    y[0] = a[1] + a[2] + a[4];
}

@compute @workgroup_size(1)
fn halving_3(@builtin(local_invocation_index) lane: u32) {
    var a: array<u32, 8>;
    for (var i = 6u; i > 0u; i /= 2u) {
        a[i] = lane;
    }
    y[0] = a[1];
}

// A counter that is read later holds what the loop left in it.
@compute @workgroup_size(1)
fn counter_read_later_3(@builtin(local_invocation_index) lane: u32) {
    var a: array<u32, 4>;
    var i = 0u;
    for (; i < 3u; i++) {
        a[i] = lane;
    }
    y[i] = a[0];
}

// Results of calls are those of their pass, and a value from before the loop is used in each.
@compute @workgroup_size(1)
fn calls_4(@builtin(local_invocation_index) lane: u32) {
    let before = y[lane];
    var a: array<u32, 4>;
    for (var i = 0u; i < 4u; i++) {
        a[i] = mixed(before, i);
    }
    y[0] = a[3];
}

fn mixed(value: u32, other: u32) -> u32 {
    return value ^ other;
}
