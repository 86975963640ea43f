// Operands, work assignment and epilogue shared by the matrix products of every tier. The header of
// matmul/software.wgsl lists the operand layouts and their shapes.
//
// With `grouped` the rows of `a` are sorted by expert, and each expert has its own matrix in a stack:
//   a not transposed   the stack is b; workgroup.y selects a tile of the work list, whose rows belong to one expert
//   a transposed       the stack is y; workgroup.x selects the expert, y and z the row and column tile of its matrix;
//                      the workgroup sums over all rows of that expert

import package::lib::element::{Packed, load4, store4};
import package::lib::group::{Group, group_of_tile};
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
    @if(grouped) first_expert: u32, // of the bound part of the stack
    @if(grouped) experts: u32, // in that part
    @if(grouped) matrix_stride: u32, // distance between the matrices of consecutive experts
}

@if(gradient) alias Output = vec4<f32>;
@if(!gradient) alias Output = Packed;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<Packed>;
@group(0) @binding(2) var<storage, read> b: array<Packed>;
@group(0) @binding(3) var<storage, read_write> y: array<Output>;
@if(bias) @group(0) @binding(4) var<storage, read> bias: array<Packed>; // (N)
@if(residual) @group(0) @binding(5) var<storage, read> residual: array<Packed>; // (M, N)
@if(grouped && !a_transposed) @group(0) @binding(6) var<storage, read> tiles: array<vec4<u32>>; // see work_list.wgsl
@if(grouped && a_transposed) @group(0) @binding(6) var<storage, read> offsets: array<u32>; // (E + 1), rows by expert

@if(grouped) var<private> group: Group; // the rows and expert of this workgroup

// Location of the result. Read once, before the epilogues: drivers may reload a uniform in every branch.
struct Destination {
    rows: u32,
    columns: u32,
    start: u32,
    stride: u32,
    residual_stride: u32,
}

fn destination() -> Destination {
    return Destination(size_m(), params.n, y_start(), params.y_stride, params.residual_stride);
}

// Bias of four columns; `column4` may be past the end.
@if(bias) fn bias_of(column4: u32) -> vec4<f32> { return load4(bias[min(column4, (params.n - 1u) / 4u)]); }
@if(!bias) fn bias_of(column4: u32) -> vec4<f32> { return vec4<f32>(0.0); }

// Stores one row and four columns of the product, plus bias (`added`), residual and previous value.
fn epilogue(sum: vec4<f32>, added: vec4<f32>, to: Destination, row: u32, column4: u32) {
    if (row < to.rows && 4u * column4 < to.columns) {
        let at = to.start + row * to.stride + column4;
        var value = sum;
        @if(bias) { value += added; }
        @if(residual) { value += load4(residual[row * to.residual_stride + column4]); }
        @if(accumulate) { value += load_y(at); }
        store_y(at, keep_inside(value, 4u * column4, to.columns));
    }
}

@if(grouped && !a_transposed)
fn pick_group(workgroup: vec3<u32>) {
    group = group_of_tile(tiles[workgroup.y], params.first_expert, params.experts);
}

@if(grouped && a_transposed)
fn pick_group(workgroup: vec3<u32>) {
    let first = offsets[params.first_expert + workgroup.x];
    group = Group(first, offsets[params.first_expert + workgroup.x + 1u] - first, workgroup.x);
}

// Rows of the result (m) and length of the reduction (k). With `grouped` the group's rows are rows of the result or, if
// `a` is transposed, the reduction dimension; a workgroup with an empty group has sizes of 0 and writes nothing.
@if(!grouped) fn size_m() -> u32 { return params.m; }
@if(grouped && a_transposed) fn size_m() -> u32 { return select(params.m, 0u, group.rows == 0u); }
@if(grouped && !a_transposed) fn size_m() -> u32 { return group.rows; }
@if(!grouped) fn size_k() -> u32 { return params.k; }
@if(grouped && !a_transposed) fn size_k() -> u32 { return select(params.k, 0u, group.rows == 0u); }
@if(grouped && a_transposed) fn size_k() -> u32 { return group.rows; }

// Offset of each operand.
@if(!grouped) fn a_start() -> u32 { return params.a_offset; }
@if(grouped) fn a_start() -> u32 { return params.a_offset + group.first * params.a_stride; }
@if(!grouped) fn b_start() -> u32 { return params.b_offset; }
@if(grouped && !a_transposed) fn b_start() -> u32 { return params.b_offset + group.matrix * params.matrix_stride; }
@if(grouped && a_transposed) fn b_start() -> u32 { return params.b_offset + group.first * params.b_stride; }
@if(!grouped) fn y_start() -> u32 { return params.y_offset; }
@if(grouped && !a_transposed) fn y_start() -> u32 { return params.y_offset + group.first * params.y_stride; }
@if(grouped && a_transposed) fn y_start() -> u32 { return params.y_offset + group.matrix * params.matrix_stride; }

// Parameter gradients are f32, whatever the storage type of the factors.
@if(gradient) fn load_y(at: u32) -> vec4<f32> { return y[at]; }
@if(!gradient) fn load_y(at: u32) -> vec4<f32> { return load4(y[at]); }
@if(gradient) fn store_y(at: u32, value: vec4<f32>) { y[at] = value; }
@if(!gradient) fn store_y(at: u32, value: vec4<f32>) { y[at] = store4(value); }
