//! The options that describe the devices and links of the ranks of a plan.

use crate::cli::numbers;
use crate::perf::forecast::Machine;
use crate::ranks::MAX_RANKS;

/// What each rank has. With `--device-tflops`, and for several ranks `--link-gbs`, the time of a step is predicted.
#[derive(Clone, clap::Args)]
pub struct MachineArguments {
    /// What each rank sends to others, and receives meanwhile, in 10^9 bytes a second
    #[arg(long, value_name = "GB/S", value_parser = numbers::above_zero)]
    link_gbs: Option<f64>,
    /// Peak of each rank's device in 10^12 floating-point operations a second
    #[arg(long, value_name = "TFLOP/S", value_parser = numbers::above_zero)]
    device_tflops: Option<f64>,
    /// The share of the peak that training reaches while it waits for nothing
    #[arg(long, value_name = "SHARE", default_value_t = 0.4, value_parser = numbers::positive_share)]
    efficiency: f64,
    /// Between device and host, each way, in 10^9 bytes a second: all that is exchanged passes there
    #[arg(long, value_name = "GB/S", default_value_t = 20.0, value_parser = numbers::above_zero)]
    staging_gbs: f64,
    /// An exchange of nothing between two ranks in microseconds; each further message takes one
    #[arg(long, value_name = "US", default_value_t = 20.0, value_parser = numbers::from_zero)]
    latency_us: f64,
    /// Ranks on a machine, for warnings about what crosses machines
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one)]
    pub ranks_per_node: usize,
}

/// The model of the time of a step, for `--help`.
pub const MODEL: &str = "\
Many ranks: memory is that of the rank with the most, from the recordings that it would replay; bytes are what
its transport would count, but for rows of experts, which are chosen equally often. The time of a step is a replay
of these recordings on one device and one link. Launches take time by the FLOPs of their products, at the device's
peak times the efficiency, recomputed layers included. A rank makes one exchange after the other, and four are under
way at a time; each goes down to the host, over the link and up again. It starts where its source is complete and
delays the first launch that needs its result. So sums of gradients are behind the backward pass of the last
micro-batch (with ZeRO-2 of each), weights that are gathered again behind the layer before, and rows on their way
back from experts behind the shared expert. Of ranks that share matrices, sums of gradients are behind
the gradients of the weights they came through. Sums of their results, weights gathered after the update, rows to
experts, rows between stages and all counts are behind nothing. A bubble is (p - 1) / (v m + p - 1) of a step for
p stages of v chunks of layers and m micro-batches.";

impl MachineArguments {
    /// The machine for a run of `ranks` ranks; `None` if too little is known to predict the time of a step.
    pub fn machine(&self, ranks: usize) -> Option<Machine> {
        let link_gbs = if ranks == 1 { Some(self.link_gbs.unwrap_or(1.0)) } else { self.link_gbs };
        Some(Machine {
            flops: self.device_tflops? * 1e12 * self.efficiency,
            link_bytes: link_gbs? * 1e9,
            staging_bytes: self.staging_gbs * 1e9,
            latency: self.latency_us * 1e-6,
        })
    }

    /// The assumptions, in two lines.
    pub fn assumed(&self, ranks: usize) -> Vec<String> {
        let Self { device_tflops, efficiency, staging_gbs, latency_us, .. } = self;
        let peak = device_tflops.unwrap_or(0.0);
        let mut lines = vec![format!("{peak} TFLOP/s x {efficiency} (--efficiency)")];
        if let (Some(link), true) = (self.link_gbs, ranks > 1) {
            lines[0] += &format!(", {link} GB/s each way between ranks,");
            lines.push(format!("{staging_gbs} GB/s each way to the host, {latency_us} us an exchange"));
        }
        lines
    }
}

/// A whole number from 1.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=MAX_RANKS as usize).contains(number));
    number.ok_or_else(|| format!("expected a whole number from 1 to {MAX_RANKS}, found `{text}`"))
}
