// Where the columns of a head start in row `row` of N.

import package::attention::params::params;
import package::tile::{D4, V4};

fn queries_of(row: u32, head: u32) -> u32 {
    return params.qkv_offset + row * params.qkv_stride + head * D4;
}

fn keys_of(row: u32, kv_head: u32) -> u32 {
    return params.qkv_offset + row * params.qkv_stride + params.k_start + kv_head * D4;
}

fn values_of(row: u32, kv_head: u32) -> u32 {
    return params.qkv_offset + row * params.qkv_stride + params.v_start + kv_head * V4;
}

fn results_of(row: u32, head: u32) -> u32 {
    return params.out_offset + row * params.out_stride + head * V4;
}

fn gradients_of(row: u32, head: u32) -> u32 {
    return params.dout_offset + row * params.dout_stride + head * V4;
}
