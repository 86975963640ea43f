//! A model of the time of a step's launches on a published GPU, shown beside measured times.
//!
//! The model. A launch takes 5 us plus the longest of these: its multiply-adds, at the rate at which a unit issues the
//! instructions of their loop or reads its workgroup memory, divided by the share of slots in use; its bytes, counting
//! each element once, at the memory's rate, or at the rate of the loads under way if lanes are few. Slots are the
//! workgroups that fit the registers, the workgroup memory and the lanes of all units, and workgroups come in rounds of
//! them (`Units::rounds`). In causal attention, whose blocks differ in work, the longest block determines the time if
//! there are few (`Units::share_of_falling`). Products by matrices, of runs in 16 bits on GPUs that have matrices, take
//! the time of all other instructions plus that of the matrices.
//!
//! The model leaves out: caches, so that a tensor left there by the previous launch costs as much as any other, and one
//! that several workgroups read costs once; waits within a workgroup that no other workgroup hides; the start and the
//! end of a launch, when not all units are busy; bank conflicts, and lanes that read the same bytes of workgroup
//! memory; masks of attention within a tile; arithmetic outside of products and attention; clocks below the published
//! ones. Instructions and registers are those of Mesa's compilers, or estimates (`roofline/kernel.rs`). A real GPU is
//! slower by the sum of all that. The model serves to decide what to work on next, and to compare before and after.

mod kernel;
mod table;
mod time;

pub use self::table::Table;
pub use self::time::Time;

use self::kernel::Shader;
use self::time::Work;
use super::forecast::launch_flops;
use crate::kernels::{Condition, Kernel, PublishedGpu};
use crate::record::{Dispatch, Recording};
use crate::train::recordings::Recordings;
use std::collections::HashMap;

/// Composed kernels, kept because composing takes longer than everything else here, and several GPUs run the same
/// kernels.
#[derive(Default)]
pub struct Shaders(HashMap<Kernel, Shader>);

/// Launches of one kernel and shape.
#[derive(Clone, Debug)]
pub struct Line {
    /// Entry point, conditions and size.
    pub name: String,
    /// Number of launches.
    pub launches: u32,
    /// Floating-point operations per launch, in products and attention.
    pub flops: f64,
    /// Bytes that a launch reads and writes, each element once: a tensor that is read and written counts twice.
    pub bytes: f64,
    /// Bytes of workgroup memory that the loops of a launch read; `None` for loops that have not been counted.
    pub shared_bytes: Option<f64>,
    /// Barriers that a workgroup waits at: executed ones for loops that have been counted, and otherwise those in the
    /// text.
    pub barriers: f64,
    /// Workgroups per launch.
    pub workgroups: u64,
    /// The model's result for a launch, on a published GPU.
    pub modelled: Option<Modelled>,
    /// Seconds of all its launches together, if they were measured.
    pub measured: Option<f64>,
}

/// A launch on a GPU, by the model.
#[derive(Clone, Copy, Debug)]
pub struct Modelled {
    /// Workgroups that the GPU runs at once.
    pub slots: u64,
    /// Time of the launch.
    pub time: Time,
}

impl Line {
    /// Seconds of all its launches, by the model; 0 without a model.
    pub fn modelled_seconds(&self) -> f64 {
        self.modelled.map_or(0.0, |modelled| f64::from(self.launches) * modelled.time.seconds())
    }

    /// Seconds of all its launches: measured, or otherwise by the model.
    pub fn seconds(&self) -> f64 {
        self.measured.unwrap_or_else(|| self.modelled_seconds())
    }
}

/// The launches of one of the `recordings`, with one line for each kernel and shape, the slowest first; with the
/// model's times on `gpu`, and with the `measured` seconds of each launch.
///
/// # Panics
/// If there are not as many measured times as launches.
pub fn lines(
    recordings: &Recordings,
    recording: &Recording,
    shaders: &mut Shaders,
    gpu: Option<&PublishedGpu>,
    measured: Option<&[f64]>,
) -> Vec<Line> {
    let flops = launch_flops(recordings, recording);
    assert!(measured.is_none_or(|all| all.len() == flops.len()), "a time for each launch");
    let mut lines: Vec<Line> = Vec::new();
    for (index, (launch, flops)) in recording.dispatches.iter().zip(flops).enumerate() {
        let line = shaders.line(launch, flops, gpu, measured.map(|all| all[index]));
        match lines.iter_mut().find(|known| known.name == line.name && known.bytes == line.bytes) {
            Some(known) => {
                known.launches += 1;
                known.measured = known.measured.zip(line.measured).map(|(all, one)| all + one);
            }
            None => lines.push(line),
        }
    }
    lines.sort_by(|a, b| b.seconds().total_cmp(&a.seconds()));
    lines
}

/// Seconds of all `lines`.
pub fn seconds(lines: &[Line]) -> f64 {
    lines.iter().map(Line::seconds).sum()
}

impl Shaders {
    /// The line of one launch.
    fn line(
        &mut self,
        launch: &Dispatch,
        flops: f64,
        gpu: Option<&PublishedGpu>,
        measured: Option<f64>,
    ) -> Line {
        let shader = self.0.entry(launch.kernel.clone()).or_insert_with(|| Shader::new(&launch.kernel));
        let workgroups = launch.grid.iter().map(|side| u64::from(*side)).product();
        let bytes = shader.bytes(launch) as f64;
        let work = Work { shader, flops, bytes, workgroups, falling_blocks: falling_blocks(launch) };
        let modelled = |gpu: &PublishedGpu| Modelled {
            slots: gpu.units.slots(shader.workgroup),
            time: Time::of(&work, gpu),
        };
        Line {
            name: name_of(launch),
            launches: 1,
            flops,
            bytes: work.bytes,
            shared_bytes: shader.shared_bytes(flops),
            barriers: shader.barriers(flops, workgroups),
            workgroups,
            modelled: gpu.map(modelled),
            measured,
        }
    }
}

/// The number of blocks of causal attention, of which the last sees all tokens and the first only itself. `None` for
/// parts of a pass, which are equal work.
fn falling_blocks(launch: &Dispatch) -> Option<u64> {
    let is = |condition| launch.kernel.conditions().any(|of| of == condition);
    let is_falling = launch.kernel.entry.starts_with("attention")
        && is(Condition::Causal)
        && !is(Condition::Windowed)
        && !is(Condition::Split)
        && launch.kernel.entry != "attention_sum_queries";
    is_falling.then_some(launch.grid[2].into())
}

/// Entry point, conditions and size.
fn name_of(launch: &Dispatch) -> String {
    let kernel = launch.kernel.to_string();
    let words = kernel.split(' ').filter(|word| word.starts_with('+'));
    let mut name = launch.kernel.entry.to_string();
    words.for_each(|word| name += &format!(" {word}"));
    let size = |name| launch.param(name);
    match (size("m"), size("n"), size("k")) {
        (Some(m), Some(n), Some(k)) => format!("{name} {m}x{n}x{k} in {:?}", launch.grid),
        _ => format!("{name} in {:?}", launch.grid),
    }
}
