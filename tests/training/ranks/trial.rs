//! A trial: a model on several ranks against the run of one, which accumulates the micro-batches of all.
//!
//! It compares what every rank reports and holds with one rank's, the memory that was forecast with wgpu's count of
//! bytes, and the bytes that were planned with those that the transport counts; with `GRISTMILL_LONG` it trains twice,
//! which must be equal bit for bit, and longer.

use super::spread::{MICRO_BATCHES, Spread};
use crate::runs::{Setup, Trained, Weights, every_third, is_long, on_counting_ranks};
use gristmill::device::Gpu;
use gristmill::model::config::{MixtureConfig, TokenDispatch};
use gristmill::perf::forecast::{Forecast, Traffic, TrafficKind, traffic};
use gristmill::ranks::Ranks;
use gristmill::report::expert_load::LayerLoad;
use pollster::block_on;
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

/// A model, or one of its kind.
pub type Model = fn() -> Setup;

/// What else a run may be.
#[derive(Clone, Copy)]
pub struct Variation<'a> {
    pub name: &'static str,
    /// Of one rank as well.
    pub keys: &'a [&'a str],
    /// Of ranks alone: none where these ask for nothing.
    pub of_ranks: fn(&Spread) -> Option<Vec<String>>,
    /// Micro-batches of a step, on all ranks together.
    pub micro_batches: usize,
    /// And with `GRISTMILL_LONG`.
    pub steps: [u64; 2],
    pub bounds: Bounds,
    /// Panics unless what the variation is for happens on one rank.
    pub judge: fn(&Trained),
}

impl Variation<'_> {
    pub fn steps(&self) -> u64 {
        self.steps[usize::from(is_long())]
    }
}

/// Gradients are clipped, and of several micro-batches, in all of them.
pub const PLAIN: Variation<'_> = Variation {
    name: "plain",
    keys: &[],
    of_ranks: |_| Some(vec![]),
    micro_batches: MICRO_BATCHES,
    steps: [3, 6],
    bounds: IN_F32,
    judge: |_| {},
};

/// In float16, under a scale that overflows.
pub const OVERFLOWS: Variation<'_> = Variation {
    name: "overflow",
    keys: &[
        "--model.model_config.compute_dtype=float16",
        "--runner_wrapper.scale_sense={type: DynamicLossScaleUpdateCell, loss_scale_value: 33554432, scale_window: 2}",
    ],
    steps: [8, 10],
    bounds: IN_F16,
    judge: |one| {
        let overflows: usize = one.states.iter().map(|state| state.is_overflow as usize).sum();
        assert!((1..one.states.len()).contains(&overflows), "{overflows} steps overflow");
    },
    ..PLAIN
};

/// Relative errors that are allowed.
#[derive(Clone, Copy, PartialEq)]
pub struct Bounds {
    pub loss: f64,
    pub norm: f64,
    pub weights: f64,
    /// Steps, from the first, in which each expert is chosen as often as on one rank. Where weights that round the
    /// other way make a router choose otherwise, those before the first update that moves them: that of step 1 has a
    /// rate of 0.
    pub equal_loads: u64,
}

/// Sums of f32 in another order, and what ten steps of AdamW make of that.
pub const DATA_PARALLEL: Bounds = Bounds { loss: 1e-6, norm: 1e-5, weights: 1e-6, equal_loads: u64::MAX };

/// A gradient that nearly cancels is divided by its own size: of a distance of 1e-6, 99.9 % are one element of a rare
/// token's embedding, which sums in another order move by a hundredth of the learning rate.
pub const SHARDED_EXPERTS: Bounds = Bounds { weights: 1e-5, ..DATA_PARALLEL };

/// Sums over the rows of an expert are of other lengths, too.
pub const IN_F32: Bounds = Bounds { loss: 1e-5, norm: 1e-5, weights: 1e-5, equal_loads: u64::MAX };

/// A gradient that differs in its last bit may round the other way.
pub const IN_BF16: Bounds = Bounds { loss: 1e-3, norm: 2e-3, weights: 2e-3, equal_loads: 2 };

/// The same in float16, whose ulp is an eighth.
pub const IN_F16: Bounds = Bounds { loss: 2.5e-4, norm: 1e-3, weights: 1e-3, equal_loads: 2 };

/// A weight that rounds the other way is up to 2^-7 of itself away, and may make a router choose another expert.
pub const ROUNDED_EXPERTS: Bounds = Bounds { loss: 1e-3, norm: 1e-2, weights: 1.0 / 128.0, equal_loads: 2 };

/// The parts of a sum are rounded before they are added, so gradients differ by more roundings; losses are means of many
/// tokens.
pub const PARTS_IN_BF16: Bounds = Bounds { loss: 5e-4, norm: 5e-3, ..IN_BF16 };

/// The same where weights are rounded stochastically: one that rounds the other way is up to 2^-7 of itself away.
pub const ROUNDED_PARTS: Bounds = Bounds { weights: 1.0 / 128.0, ..PARTS_IN_BF16 };

/// One rank's runs, by model and keys.
#[derive(Default)]
pub struct Ones {
    trained: BTreeMap<String, Trained>,
}

impl Ones {
    /// Trains `model` on `spread` as it varies, and compares. Returns whether the variation asks something of the layout.
    pub fn compare(&mut self, model: Model, spread: &Spread, variation: &Variation<'_>) -> bool {
        let Some(of_ranks) = (variation.of_ranks)(spread) else { return false };
        let Variation { keys, micro_batches, .. } = *variation;
        let steps = variation.steps();
        let setup = || model().with(keys);
        let of_ranks: Vec<&str> = of_ranks.iter().map(String::as_str).collect();
        let gpu = &setup().gpu();
        let one = self
            .trained
            .entry(format!("{} {keys:?} {micro_batches} {steps}", setup().name))
            .or_insert_with(|| on_one(setup(), gpu, micro_batches, steps));
        (variation.judge)(one);
        let name = format!("{}, {} {keys:?}, {spread:?}", setup().name, variation.name);
        let spread_setup = || spread.setup(setup(), micro_batches).with(&of_ranks);
        let (ranks, taken) = measure(&spread_setup(), gpu, spread.ranks(), steps);
        assert_sent(&name, &ranks, steps, setup().plan().model.mixture.as_ref());
        let forecast: u64 = ranks.iter().map(|rank| rank.forecast).sum();
        assert_eq!(forecast, taken, "{name}: ranks take other memory than forecast");
        let trained: Vec<Trained> = ranks.into_iter().map(|rank| rank.trained).collect();
        compare_results(&name, &trained, one, variation.bounds);
        assert_held(&name, &[spread.keys, &of_ranks].concat(), spread, &trained, &one.weights);
        if is_long() {
            let again = spread_setup().train_on_one_device(gpu, spread.ranks(), steps);
            for (rank, (first, second)) in trained.iter().zip(&again).enumerate() {
                let bits = |trained: &Trained| format!("{:?} {:?}", trained.states, trained.weights);
                assert!(bits(first) == bits(second), "{name}: rank {rank} does not repeat");
            }
        }
        true
    }
}

/// Trains `model` on [`every_third`] of `spreads` as on one rank.
pub fn train_as_one(model: Model, spreads: &[Spread], variation: &Variation<'_>) {
    let mut ones = Ones::default();
    for spread in every_third(spreads) {
        assert!(ones.compare(model, spread, variation), "{} asks nothing of {spread:?}", variation.name);
    }
}

/// The run of one rank, which accumulates the micro-batches of all.
pub fn on_one(setup: Setup, gpu: &Gpu, micro_batches: usize, steps: u64) -> Trained {
    Spread::ONE.setup(setup, micro_batches).train_on_one_device(gpu, 1, steps).remove(0)
}

/// Panics unless each rank sends the bytes that are planned. Where some experts are hot, which ranks send the rows of the
/// others depends on which: all together send what is planned. Where every choice has a row, routers decide how many rows
/// go: a fourth of them more or fewer.
fn assert_sent(name: &str, ranks: &[Measured], steps: u64, mixture: Option<&MixtureConfig>) {
    let is_rows = |kind| matches!(kind, TrafficKind::RowsToExperts | TrafficKind::RowsFromExperts);
    let in_all = |is_meant: &dyn Fn(TrafficKind) -> bool| -> u64 {
        (steps - 1) * ranks.iter().map(|rank| rank.planned_bytes(is_meant)).sum::<u64>()
    };
    let sent: u64 = ranks.iter().map(|rank| rank.sent).sum();
    match mixture.map(|mixture| mixture.dispatch) {
        Some(TokenDispatch::Dropless { .. }) if in_all(&is_rows) > 0 => {
            let (planned, rows) = (in_all(&|_| true), in_all(&is_rows));
            println!("{name}: {sent} bytes sent, {planned} planned, of them {rows} of rows");
            assert!(sent.abs_diff(planned) <= rows / 4, "{name}: sent {sent}, planned {planned}");
        }
        Some(TokenDispatch::Capacity(capacity)) if capacity.hot.is_some() && in_all(&is_rows) > 0 => {
            assert_eq!(in_all(&|_| true), sent, "{name}: other bytes than planned, {:?}", ranks[0].planned);
            let has_copies = |rank: &Measured| rank.planned_bytes(|kind| kind == TrafficKind::HotCopies) > 0;
            assert!(ranks.iter().all(has_copies), "{name}: no copies");
        }
        _ => {
            for (rank, measured) in ranks.iter().enumerate() {
                let planned = (steps - 1) * measured.planned_bytes(|_| true);
                let kinds = &measured.planned;
                assert_eq!(planned, measured.sent, "{name}: rank {rank} sends other bytes, {kinds:?}");
            }
        }
    }
}

/// Panics unless as many ranks as should hold each element of a tensor do; for the others it is NaN, or an expert of
/// other ranks.
fn assert_held(name: &str, keys: &[&str], spread: &Spread, ranks: &[Trained], one: &Weights) {
    for (tensor, values) in one {
        assert!(values.iter().all(|value| value.is_finite()), "{name}: {tensor} of one rank is not finite");
        let parts: Vec<&Vec<f64>> = ranks.iter().filter_map(|rank| rank.weights.get(tensor)).collect();
        let holders = |index: usize| parts.iter().filter(|part| !part[index].is_nan()).count();
        let (first, copies) = (holders(0), spread.copies(keys, tensor));
        assert!(copies.contains(&first), "{name}: {first} ranks hold {tensor}, not {copies:?}");
        // Of fused tensors keys and values may be on more ranks than queries.
        let is_held = |index: usize| match spread.model {
            1 => holders(index) == first,
            _ => copies.contains(&holders(index)),
        };
        assert!(
            (1..values.len()).all(is_held),
            "{name}: of {tensor} some elements are held by other than {first} ranks"
        );
    }
}

/// What a rank leaves, and what was planned and counted of it.
struct Measured {
    trained: Trained,
    /// What it sends in a step.
    planned: Vec<Traffic>,
    /// The bytes that it has sent after its first step.
    sent: u64,
    /// Bytes of the device that it takes.
    forecast: u64,
}

impl Measured {
    /// The bytes of these kinds that it sends in a step.
    fn planned_bytes(&self, is_meant: impl Fn(TrafficKind) -> bool) -> u64 {
        self.planned.iter().filter(|kind| is_meant(kind.kind)).map(|kind| kind.bytes).sum()
    }
}

/// Trains so many steps on ranks that share a device. Returns what each leaves, and the bytes of buffers that all take.
fn measure(setup: &Setup, gpu: &Gpu, size: usize, steps: u64) -> (Vec<Measured>, u64) {
    let before = gpu.counters().buffer_bytes;
    let all_done = Barrier::new(size);
    let of_rank = |ranks: Ranks, sent: &AtomicU64| {
        let plan = setup.plan_on_rank(ranks.rank(), size);
        let ([mut first, mut last, mut forecast, mut taken], mut planned) = ([0; 4], Vec::new());
        let trained = setup.train_watched(gpu, &plan, None, steps, ranks, |trainer, step| {
            match step {
                // The first step also makes the copies of the initial weights.
                1 => first = sent.load(Ordering::SeqCst),
                _ if step == steps => {
                    block_on(trainer.wait()).expect("the device");
                    last = sent.load(Ordering::SeqCst);
                    let accumulation = plan.settings.runner.gradient_accumulation_steps as u64;
                    planned = traffic(trainer.recordings(), accumulation);
                    forecast = Forecast::new(trainer.recordings()).bytes();
                    all_done.wait();
                    taken = (gpu.counters().buffer_bytes - before) as u64;
                    all_done.wait();
                }
                _ => {}
            }
        });
        (Measured { trained, planned, sent: last - first, forecast }, taken)
    };
    let (ranks, taken): (Vec<Measured>, Vec<u64>) = on_counting_ranks(size, of_rank).into_iter().unzip();
    (ranks, taken[0])
}

/// Compares states, loads and weights of all ranks with those of one.
pub fn compare_results(name: &str, ranks: &[Trained], one: &Trained, bounds: Bounds) {
    // The norm of an overflow is infinite, or no number.
    let relative = |got: f32, want: f32| match want.is_finite() {
        true => (f64::from(got) - f64::from(want)).abs() / f64::from(want),
        false => f64::from(u8::from(got.is_finite())),
    };
    let decisions = |trained: &Trained| -> Vec<_> {
        let states = trained.states.iter();
        states.map(|state| (state.is_overflow, state.halt, state.global_step, state.loss_scale)).collect()
    };
    let bits = |trained: &Trained| format!("{:?}", trained.states);
    let mut worst = Bounds { loss: 0.0, norm: 0.0, weights: 0.0, equal_loads: 0 };
    for (rank, got) in ranks.iter().enumerate() {
        assert_eq!(decisions(got), decisions(one), "{name}: rank {rank} decides otherwise");
        for (got, want) in got.states.iter().zip(&one.states) {
            worst.loss = worst.loss.max(relative(got.loss, want.loss));
            worst.norm = worst.norm.max(relative(got.grad_norm, want.grad_norm));
        }
        worst.weights = worst.weights.max(distance_of_held(&got.weights, &one.weights));
        assert_loads(name, &got.reports, &one.reports, bounds.equal_loads);
        let lengths = |trained: &Trained| trained.local_norms.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(got), lengths(one), "{name}: rank {rank} has other norms");
        for (got, want) in got.local_norms.iter().flatten().zip(one.local_norms.iter().flatten()) {
            let difference = f64::from((got - want).abs());
            assert!(
                difference <= 1e-4 * f64::from(*want) + 1e-12,
                "{name}: rank {rank} has a norm of {got}, not {want}"
            );
        }
        assert!(
            got.states.iter().all(|state| state.loss.is_finite()),
            "{name}: rank {rank} has a loss that is not finite"
        );
        assert_eq!(bits(got), bits(&ranks[0]), "{name}: rank {rank} has other states than rank 0");
        assert_eq!(got.reports, ranks[0].reports, "{name}: rank {rank} has other loads than rank 0");
    }
    let Bounds { loss, norm, weights, .. } = worst;
    println!("{name}: losses {loss:.1e}, norms {norm:.1e}, weights {weights:.1e} apart");
    assert!(loss <= bounds.loss && norm <= bounds.norm && weights <= bounds.weights, "{name}: too far apart");
}

/// Panics unless as many tokens chose each expert as on one rank, in the first `equal` steps, and as many choices were
/// dropped.
fn assert_loads(name: &str, got: &[Vec<LayerLoad>], want: &[Vec<LayerLoad>], equal: u64) {
    assert_eq!(got.len(), want.len(), "{name}: loads of other steps");
    for (step, (got, want)) in (0..).zip(got.iter().zip(want)) {
        let choices = |loads: &[LayerLoad]| -> Vec<_> {
            loads.iter().map(|layer| (layer.layer, layer.choices)).collect()
        };
        assert_eq!(choices(got), choices(want), "{name}: choices of other tokens in step {step}");
        assert!(!got.is_empty() && got.iter().all(|layer| layer.choices > 0), "{name}: no choices");
        let loads = |loads: &[LayerLoad]| -> Vec<_> {
            loads.iter().map(|layer| (layer.chosen.clone(), layer.dropped)).collect()
        };
        assert!(step >= equal || loads(got) == loads(want), "{name}: other loads in step {step}");
    }
}

/// ‖a − b‖ / ‖b‖ over what a rank holds: some experts, and of sharded tensors some elements.
fn distance_of_held(got: &Weights, want: &Weights) -> f64 {
    let pairs = || {
        let tensors = got.iter().map(|(name, got)| got.iter().zip(&want[name]));
        tensors.flatten().filter(|(got, _)| !got.is_nan())
    };
    let difference: f64 = pairs().map(|(got, want)| (got - want) * (got - want)).sum();
    let norm: f64 = pairs().map(|(_, want)| want * want).sum();
    assert!(norm > 0.0, "a rank holds something");
    (difference / norm).sqrt()
}
