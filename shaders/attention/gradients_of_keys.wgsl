// Where the kernels that own keys write the gradients of keys and of values: to dqkv, or with `key_parts` to the part
// of the query heads that the workgroup walks. attention/portable/sum_keys.wgsl adds the parts up into dqkv.

import package::attention::params::params;
@if(!key_parts) import package::lib::element::{Packed, store4};
import package::tile::{D4, V4};

@if(key_parts) @group(0) @binding(6) var<storage, read_write> key_parts: array<vec4<f32>>; // (S, N, columns of k and v)
@if(!key_parts) @group(0) @binding(6) var<storage, read_write> dqkv: array<Packed>;

// Where the columns of keys start in row `row` of N, for a workgroup that walks the query head `head`.
fn key_columns(row: u32, head: u32) -> u32 {
    @if(key_parts) {
        let row_of_part = head % params.group / params.share * params.rows + row;
        return row_of_part * (params.heads / params.group) * (D4 + V4);
    }
    @if(!key_parts) { return params.dqkv_offset + row * params.dqkv_stride + params.k_start; }
}

// Where the gradients of a key and of its value start.
fn dk_of(row: u32, head: u32) -> u32 {
    return key_columns(row, head) + head / params.group * D4;
}

fn dv_of(row: u32, head: u32) -> u32 {
    return key_columns(row, head) + params.v_start - params.k_start + head / params.group * V4;
}

fn put_gradient(at: u32, value: vec4<f32>) {
    @if(key_parts) { key_parts[at] = value; }
    @if(!key_parts) { dqkv[at] = store4(value); }
}
