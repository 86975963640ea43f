// Operands, work assignment and epilogue shared by the matrix products of every tier. The header of
// matmul/software.wgsl lists the operand layouts and their shapes.
//
// With `grouped` the rows of `a` are sorted by expert, and each expert has its own matrix in a stack:
//   a not transposed   the stack is b; workgroup.y selects a tile of the work list, whose rows belong to one expert
//   a transposed       the stack is y; workgroup.x selects the expert, y and z the row and column tile of its matrix;
//                      the workgroup sums over all rows of that expert
// Each expert also has its own row of biases.
// With `wide` the weights `b` are loaded 64 bits at a time.
// With `nf4` or `int8` the weights `b` are quantised (lib/quantised.wgsl), and widened where they are loaded.
// With `gelu` the activation of y is written beside y; with `gelu_slope` y, the gradient of an activation, becomes the
// gradient of its argument. Both round y to its storage type first, as a kernel that reads y would find it. `swiglu`
// does the same where y is packed gate and up, of GeGLU too (lib/gate). So does `swiglu_slopes`, where y becomes the gradients of gate and up
// and has `up_start` columns of each, but N in all before.
// With `scaled` the product and its bias are multiplied by a factor, before anything is added.

import package::lib::element::{Packed, load4, store4};
@if(swiglu_slopes) import package::lib::gate::gate_slopes;
@if(swiglu) import package::lib::gate::gated;
@if(gelu) import package::lib::gelu::gelu_of;
@if(gelu_slope) import package::lib::gelu::gelu_slope;
@if(grouped && !a_transposed) import package::lib::group::group_of_tile;
@if(nf4 || int8) import package::lib::quantised::{block_of, widened, word_of_codes};
import package::lib::row::keep_inside;

struct Params {
    m: u32,
    n: u32,
    k: u32,
    a_offset: u32, // offsets and strides count groups of 4 elements
    b_offset: u32,
    y_offset: u32,
    a_stride: u32,
    b_stride: u32,
    y_stride: u32,
    residual_stride: u32,
    @if(!grouped) part_k: u32, // length of a part of the sums, a multiple of 16; k if they are not split
    // The first row or column of up, where y, or a result of matmul/vector, follows from gate and up.
    @if(!grouped) up_start: u32,
    @if(!grouped) activation_stride: u32,
    @if(!grouped) epsilon: f32, // matmul/vector: the epsilon of its norm
    @if(!grouped) factor: f32, // with `scaled`
    @if(grouped) first_expert: u32, // of the bound part of the stack
    @if(grouped) experts: u32, // in that part
    @if(grouped) matrix_stride: u32, // distance between the matrices of consecutive experts
    @if(grouped) bias_stride: u32, // distance between the biases of consecutive experts
}

@if(gradient) alias Output = vec4<f32>;
@if(!gradient) alias Output = Packed;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<Packed>;
@if(!nf4 && !int8 && !wide) @group(0) @binding(2) var<storage, read> b: array<Packed>;
@if(!nf4 && !int8 && wide && f32) @group(0) @binding(2) var<storage, read> b: array<vec2<u64>>;
@if(!nf4 && !int8 && wide && !f32) @group(0) @binding(2) var<storage, read> b: array<u64>;
@if(nf4 || int8) @group(0) @binding(2) var<storage, read> b: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<Output>;
@if(bias) @group(0) @binding(4) var<storage, read> bias: array<Packed>; // (N), grouped (E, N)
@if(residual) @group(0) @binding(5) var<storage, read> residual: array<Packed>; // (M, N)
@if(grouped && !a_transposed) @group(0) @binding(6) var<storage, read> tiles: array<vec4<u32>>; // see work_list.wgsl
@if(grouped && a_transposed) @group(0) @binding(6) var<storage, read> offsets: array<u32>; // (E + 1), rows by expert
@if(gelu || swiglu) @group(0) @binding(7) var<storage, read_write> activation: array<Packed>; // (M, N)
@if(gelu_slope || swiglu_slopes) @group(0) @binding(7) var<storage, read> argument: array<Packed>; // as y

// The product that a workgroup computes: sizes, and offsets in groups of 4 elements. It is passed by value: control
// flow around barriers depends on it, and WGSL's uniformity analysis treats every private variable as different in each
// invocation.
struct Product {
    m: u32, // rows of the result; 0: nothing to write
    k: u32, // length of the sums
    a_start: u32,
    b_start: u32,
    y_start: u32,
    @if(grouped) matrix: u32, // index of the expert in the bound part of the stack
}

@if(!grouped && !split)
fn product_of(workgroup: vec3<u32>) -> Product {
    return Product(params.m, params.k, params.a_offset, params.b_offset, params.y_offset);
}

// Part workgroup.z of the sums. The results of the parts lie one after the other, M rows each.
@if(!grouped && split)
fn product_of(workgroup: vec3<u32>) -> Product {
    let first = workgroup.z * params.part_k;
    @if(a_transposed) let a_first = first * params.a_stride;
    @if(!a_transposed) let a_first = first / 4u;
    @if(b_transposed) let b_first = first / 4u;
    @if(!b_transposed) let b_first = first * params.b_stride;
    return Product(
        params.m,
        min(params.part_k, params.k - first),
        params.a_offset + a_first,
        params.b_offset + b_first,
        params.y_offset + workgroup.z * params.m * params.y_stride,
    );
}

// The group's rows are rows of the result. An empty group has sizes of 0 and writes nothing.
@if(grouped && !a_transposed)
fn product_of(workgroup: vec3<u32>) -> Product {
    let group = group_of_tile(tiles[workgroup.y], params.first_expert, params.experts);
    return Product(
        group.rows,
        select(params.k, 0u, group.rows == 0u),
        params.a_offset + group.first * params.a_stride,
        params.b_offset + group.matrix * params.matrix_stride,
        params.y_offset + group.first * params.y_stride,
        group.matrix,
    );
}

// The group's rows are summed over. The result of an empty group has no rows to write.
@if(grouped && a_transposed)
fn product_of(workgroup: vec3<u32>) -> Product {
    let first = offsets[params.first_expert + workgroup.x];
    let rows = offsets[params.first_expert + workgroup.x + 1u] - first;
    return Product(
        select(params.m, 0u, rows == 0u),
        rows,
        params.a_offset + first * params.a_stride,
        params.b_offset + first * params.b_stride,
        params.y_offset + workgroup.x * params.matrix_stride,
        workgroup.x,
    );
}

// Group `at` of `b`, first as it is stored and then widened, so that there is time for other work between the two.
@if(!nf4 && !int8) alias FetchedB = Packed;
@if(!nf4 && !int8 && !wide) fn fetch_b(at: u32) -> FetchedB { return b[at]; }
@if(!nf4 && !int8 && wide && f32)
fn fetch_b(at: u32) -> FetchedB {
    let two = b[at];
    return bitcast<vec4<f32>>(vec4<u32>(u32(two.x), u32(two.x >> 32u), u32(two.y), u32(two.y >> 32u)));
}
@if(!nf4 && !int8 && wide && !f32)
fn fetch_b(at: u32) -> FetchedB {
    let four = b[at];
    return vec2<u32>(u32(four), u32(four >> 32u));
}
@if(!nf4 && !int8) fn widen_b(at: u32, group: FetchedB) -> vec4<f32> { return load4(group); }
@if(nf4 || int8) alias FetchedB = vec2<u32>; // the first word of the block, and the word with the codes
@if(nf4 || int8)
fn fetch_b(at: u32) -> FetchedB {
    let block = block_of(at);
    return vec2<u32>(b[block], b[block + word_of_codes(at)]);
}
@if(nf4 || int8) fn widen_b(at: u32, group: FetchedB) -> vec4<f32> { return widened(at, group.x, group.y); }

fn load_b4(at: u32) -> vec4<f32> {
    return widen_b(at, fetch_b(at));
}

// Location of the result. Read once, before the epilogues: drivers may reload a uniform in every branch.
struct Destination {
    rows: u32,
    columns: u32,
    start: u32,
    stride: u32,
    residual_stride: u32,
    @if(swiglu || swiglu_slopes) up4: u32, // distance from the group of a gate to the group of its up
    @if(scaled) factor: f32,
    @if(grouped) beside: u32, // where the rows of y start in a tensor beside it
    @if(grouped) bias_start: u32,
}

@if(grouped)
fn destination(product: Product) -> Destination {
    return Destination(
        product.m,
        params.n,
        product.y_start,
        params.y_stride,
        params.residual_stride,
        product.y_start - params.y_offset,
        (params.first_expert + product.matrix) * params.bias_stride,
    );
}

@if(!grouped && !swiglu && !swiglu_slopes)
fn destination(product: Product) -> Destination {
    let stride = params.y_stride;
    @if(!scaled) { return Destination(product.m, params.n, product.y_start, stride, params.residual_stride); }
    @if(scaled) {
        return Destination(product.m, params.n, product.y_start, stride, params.residual_stride, params.factor);
    }
}

@if(swiglu || swiglu_slopes)
fn destination(product: Product) -> Destination {
    let up4 = params.up_start / 4u;
    @if(!scaled) { return Destination(product.m, params.n, product.y_start, params.y_stride, 0u, up4); }
    @if(scaled) { return Destination(product.m, params.n, product.y_start, params.y_stride, 0u, up4, params.factor); }
}

// Bias of four columns; `column4` may be past the end.
@if(bias)
fn bias_of(to: Destination, column4: u32) -> vec4<f32> {
    let at = min(column4, (params.n - 1u) / 4u);
    @if(!grouped) { return load4(bias[at]); }
    @if(grouped) { return load4(bias[to.bias_start + at]); }
}
@if(!bias) fn bias_of(to: Destination, column4: u32) -> vec4<f32> { return vec4<f32>(0.0); }

// The same of the columns of up that belong to four columns of gate.
@if(bias && (gated || swiglu))
fn bias_of_up(column4: u32) -> vec4<f32> {
    return load4(bias[params.up_start / 4u + min(column4, (params.n - 1u) / 4u)]);
}
@if(!bias && (gated || swiglu)) fn bias_of_up(column4: u32) -> vec4<f32> { return vec4<f32>(0.0); }

// Where the argument or the value of an activation lies that belongs to four columns of the result.
@if(!grouped) fn beside(to: Destination, row: u32, column4: u32) -> u32 { return row * to.stride + column4; }
@if(grouped) fn beside(to: Destination, row: u32, column4: u32) -> u32 { return to.beside + row * to.stride + column4; }

// Stores one row and four columns of the product, plus bias (`added`), times a factor, plus residual and previous value,
// through GELU.
fn epilogue(sum: vec4<f32>, added: vec4<f32>, to: Destination, row: u32, column4: u32) {
    if (row < to.rows && 4u * column4 < to.columns) {
        let at = to.start + row * to.stride + column4;
        var value = sum;
        @if(bias) { value += added; }
        @if(scaled) { value *= to.factor; }
        @if(residual) { value += load4(residual[row * to.residual_stride + column4]); }
        @if(accumulate) { value += load_y(at); }
        @if(gelu_slope) { value = load4(store4(value)) * gelu_slope(load4(argument[beside(to, row, column4)])); }
        value = keep_inside(value, 4u * column4, to.columns);
        @if(!swiglu_slopes) { store_y(at, value); }
        @if(swiglu_slopes) { store_slopes(value, to, row, column4); }
        @if(gelu) { activation[beside(to, row, column4)] = store4(gelu_of(load4(store4(value)))); }
    }
}

// Stores the gradients of gate and up, from `value`, the gradient of the activated gate times up.
@if(swiglu_slopes)
fn store_slopes(value: vec4<f32>, to: Destination, row: u32, column4: u32) {
    let at = row * to.stride + column4;
    let slopes = gate_slopes(load4(argument[at]), load4(argument[at + to.up4]), load4(store4(value)));
    store_y(to.start + at, slopes.gate);
    store_y(to.start + at + to.up4, slopes.up);
}

// Stores one row and four columns of gate and of up, and of the activated gate times up; `column4` is the group of
// columns in the latter.
@if(swiglu)
fn store_gated(gate: vec4<f32>, up: vec4<f32>, to: Destination, row: u32, column4: u32) {
    if (row < to.rows && 4u * column4 < to.columns) {
        let at = to.start + row * to.stride + column4;
        let stored_gate = store4(keep_inside(gate, 4u * column4, to.columns));
        let stored_up = store4(keep_inside(up, 4u * column4, to.columns));
        y[at] = stored_gate;
        y[at + to.up4] = stored_up;
        activation[row * params.activation_stride + column4] = store4(gated(load4(stored_gate), load4(stored_up)));
    }
}

// Parameter gradients are f32, whatever the storage type of the factors.
@if(gradient) fn load_y(at: u32) -> vec4<f32> { return y[at]; }
@if(!gradient) fn load_y(at: u32) -> vec4<f32> { return load4(y[at]); }
@if(gradient) fn store_y(at: u32, value: vec4<f32>) { y[at] = value; }
@if(!gradient) fn store_y(at: u32, value: vec4<f32>) { y[at] = store4(value); }
