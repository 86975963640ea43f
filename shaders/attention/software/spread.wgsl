// How the rows of a tile of keys, or of queries, lie in the registers of the lanes that share them by shuffles
// (lib/lanes): column c (a vec4) of row `place` is in register c · TILE / LANES of lane c · TILE % LANES + place. TILE
// divides LANES.
//
// If TILE equals LANES, each lane holds a whole row, and rows are walked in a loop. llvmpipe shuffles within 16 lanes
// fast only if the lane is a constant, so there a tile is one step of the walk (STEP keys or queries), and all its
// places are constants.

import package::tile::{LANES, STEP, TILE};

fn lane_of(place: u32, c: u32) -> u32 { return c * TILE % LANES + place; }
fn register_of(c: u32) -> u32 { return c * TILE / LANES; }

// The row whose columns a lane holds, and the column in register i.
fn row_held(lane: u32) -> u32 { return lane % TILE; }
fn column_held(i: u32, lane: u32) -> u32 { return i * (LANES / TILE) + lane / TILE; }

// The place of row `row` in the tile from row `tile` on, for the first row of a step.
fn place_of(row: u32, tile: u32) -> u32 { return select(row - tile, 0u, TILE == STEP); }
