//! Hot experts of which every rank has a copy, against one rank that holds all experts.
//!
//! Losses, loads, drops and weights are those of one rank over steps in which other experts become hot; the bytes are
//! those of cold experts' rows and of the copies, by the plan and by the transport.

use super::against_one::{BF16, RECOMPUTED, SGD, small};
use super::layouts::EXPERT_ADAPTERS;
use super::spread::{GRADIENTS, Keys, MICRO_BATCHES, OPTIMIZER, Spread, TOKENS, ZERO_1};
use super::trial::{IN_BF16, IN_F32, OVERFLOWS, PLAIN, Variation, train_as_one};
use crate::runs::{FolderRun, Setup, Trained, metrics, newest_checkpoint};
use ::reference::permute as reference;
use gristmill::kernels::Tier;
use gristmill::perf::forecast::{RankForecast, TrafficKind, launch_flops};
use gristmill::record::{Collective, Exchange};
use gristmill::store::npy;
use gristmill::train::recordings::{Recordings, assumed_capabilities};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const EXPERTS: usize = 8;
const HOT: usize = 3;
/// Experts are chosen anew after steps 1, 2, 4, 8, 9 and 18.
const UPDATE_STEP: u64 = 9;

/// Eight experts of which three are hot, with this share of their slots for the others; half of the choices of a busy
/// one are dropped.
fn mixture(name: &'static str, cold_share: &str) -> Setup {
    let routing = format!(
        "expert_num: {EXPERTS}, num_experts_chosen: 2, capacity_factor: 1.1, aux_loss_types: [expert], \
         aux_loss_factors: [0.01], shared_expert_num: 1, enable_cold_hot_expert: True, hot_expert_num: {HOT}, \
         cold_token_percent: {cold_share}, update_step: {UPDATE_STEP}"
    );
    small(Setup::experts(name, &routing, "")).wide().with(&["--moe_config.moe_intermediate_size=40"])
}

fn hot() -> Setup {
    mixture("hot", "0.5")
}

/// Experts with biases, in the layers of GPT-2. Each has a capacity that is odd, and so has the number of cold rows:
/// those of hot experts start at no multiple of 256 bytes.
fn with_biases() -> Setup {
    let routing = format!(
        "expert_num: {EXPERTS}, num_experts_chosen: 2, capacity_factor: 1.1, aux_loss_types: [expert], \
         aux_loss_factors: [0.01], enable_cold_hot_expert: True, hot_expert_num: {HOT}, cold_token_percent: 0.5, \
         update_step: {UPDATE_STEP}"
    );
    let width = "--moe_config.moe_intermediate_size=40";
    small(Setup::experts_of("GPT2Config", "with biases", &routing, "")).with(&[
        SGD,
        "--lr_schedule.learning_rate=0.1",
        width,
    ])
}

/// Capacities do not tell the hot experts from the others.
fn alike() -> Setup {
    mixture("alike", "1.0")
}

/// A binding has room for two matrices of gate and up, so that copies of three experts are in two tensors.
fn limited() -> Setup {
    let mut setup = mixture("limited", "0.5");
    setup.gpu_options.binding_bytes = Some(40 << 10);
    setup
}

/// Weights are gathered again for the layers that are recomputed.
const GATHERED: Keys =
    &[OPTIMIZER, GRADIENTS, "--recompute_config={recompute: True, parallel_optimizer_comm_recompute: True}"];

const TWO: Spread = Spread { data: 2, expert: 2, ..Spread::ONE };
const PAIRS: Spread = Spread { data: 4, expert: 2, ..Spread::ONE };
const SHARDED: Spread = Spread { keys: ZERO_1, ..PAIRS };
const FOUR: Spread = Spread { data: 4, expert: 4, ..Spread::ONE };
const EIGHT: Spread = Spread { model: 2, keys: &[TOKENS, OPTIMIZER, GRADIENTS], ..FOUR };
const STAGES: Spread = Spread { stages: 2, ..TWO };

/// How often each layer's choice of hot experts changes in a run.
fn changes(one: &Trained) -> Vec<usize> {
    let layers = one.reports[0].len();
    let of_layer = |layer: usize| {
        let (mut hot, mut changes) = ((0..HOT).collect::<Vec<_>>(), 0);
        for (step, report) in (1..).zip(&one.reports) {
            let is_sound = one.states[step as usize - 1].is_overflow == 0;
            if is_sound && reference::chooses_hot_experts(step, UPDATE_STEP, None) {
                let counts: Vec<usize> = report[layer].chosen.iter().map(|&c| c as usize).collect();
                let chosen = reference::hot_experts(&counts, HOT);
                changes += usize::from(chosen != hot);
                hot = chosen;
            }
        }
        changes
    };
    (0..layers).map(of_layer).collect()
}

/// Long enough for hot experts to change; in every step each expert is chosen as often, and as many choices are
/// dropped.
const HOT_EXPERTS: Variation<'_> =
    Variation { name: "hot experts", steps: [6, 10], judge: changes_and_drops, ..PLAIN };

fn changes_and_drops(one: &Trained) {
    let changes = changes(one);
    println!("{} dropped, hot experts change {changes:?} times", one.dropped());
    assert!(changes.iter().all(|changes| *changes >= 2), "hot experts change {changes:?} times");
    assert!(one.dropped() > 0, "nothing is dropped");
}

#[test]
fn hot_experts_on_every_rank_train_as_on_one() {
    let gathered = Spread { keys: GATHERED, ..PAIRS };
    let spreads = [EIGHT, TWO, STAGES, SHARDED, gathered, FOUR, Spread { keys: RECOMPUTED, ..FOUR }];
    train_as_one(hot, &spreads, &Variation { steps: [6, 20], ..HOT_EXPERTS });
    let eight = [Spread { data: 8, ..TWO }, Spread { data: 8, keys: ZERO_1, ..FOUR }];
    train_as_one(hot, &eight, &Variation { micro_batches: 8, ..HOT_EXPERTS });
}

/// The choice is kept although all experts have as many rows.
#[test]
fn hot_experts_with_the_rows_of_the_others_train_as_on_one() {
    train_as_one(alike, &[TWO, FOUR], &HOT_EXPERTS);
}

/// Experts that are frozen in one layer; a block that predicts further; operators that are recomputed; Muon; a GPU's
/// kernels; small bindings.
#[test]
#[ignore = "long; `hot_experts_on_every_rank_train_as_on_one` has the plain form"]
fn variants_of_hot_experts_train_as_on_one() {
    let frozen = Variation { keys: &["--model.model_config.freeze=[layers.0]"], ..HOT_EXPERTS };
    train_as_one(hot, &[TWO, SHARDED], &frozen);
    let further = ["--model.model_config.mtp_depth=1", "--model.model_config.mtp_loss_factor=0.3"];
    train_as_one(hot, &[TWO], &Variation { keys: &further, ..HOT_EXPERTS });
    let operators = "--recompute_config.select_recompute={feed_forward.permute: True, \
                     feed_forward.experts.w_gate_up: True, feed_forward.experts.w_down: True}";
    train_as_one(hot, &[TWO], &Variation { keys: &[operators], ..HOT_EXPERTS });
    let adapted = Variation { keys: &[EXPERT_ADAPTERS], ..HOT_EXPERTS };
    train_as_one(hot, &[TWO, SHARDED], &adapted);
    let muon = Variation { keys: &["--optimizer={type: Muon, weight_decay: 0.1}"], ..HOT_EXPERTS };
    train_as_one(hot, &[SHARDED], &muon);
    train_as_one(hot, &[TWO], &Variation { keys: &["--context.tier=portable"], ..HOT_EXPERTS });
    train_as_one(limited, &[SHARDED], &HOT_EXPERTS);
}

/// Copies hold biases, too.
#[test]
#[ignore = "long; `experts_with_biases_train_as_on_one_rank` has no copies"]
fn hot_experts_with_biases_train_as_on_one() {
    let moving = Variation { steps: [10; 2], ..HOT_EXPERTS };
    train_as_one(with_biases, &[SHARDED, Spread { model: 2, ..TWO }], &moving);
    train_as_one(with_biases, &[TWO], &Variation { keys: BF16, bounds: IN_BF16, ..moving });
}

/// Gradients that overflow on one rank's copies leave all as they were, and no other experts become hot.
#[test]
#[ignore = "long; `ranks_overflow_together_in_float16` has all other parameters"]
fn hot_experts_overflow_together_in_16_bits() {
    let judge = |one: &Trained| {
        (OVERFLOWS.judge)(one);
        changes_and_drops(one);
    };
    train_as_one(hot, &[TWO, SHARDED], &Variation { judge, steps: [10; 2], ..OVERFLOWS });
    train_as_one(hot, &[TWO], &Variation { keys: BF16, bounds: IN_BF16, ..HOT_EXPERTS });
}

/// By hand: 24 tokens with two choices each are 6.6 a slot, times 1.1; a cold expert has 3 rows, a hot one 7. Rows of
/// 48 columns go out and return, in two layers, forward and backward, in each of a rank's micro-batches.
#[test]
fn rows_shrink_by_those_of_hot_experts() {
    for spread in [TWO, FOUR] {
        let setup = spread.setup(hot(), MICRO_BATCHES);
        let plan = setup.plan_on_rank(0, spread.ranks());
        let forecast = RankForecast::new(&plan, assumed_capabilities(Tier::Software), 10, None);
        let RankForecast { traffic, kept_bytes, forecast, .. } = forecast.expect("a forecast");
        let of = |kind: TrafficKind| {
            traffic.iter().filter(|one| one.kind == kind).map(|one| one.bytes).sum::<u64>()
        };
        let size = spread.ranks() as u64;
        let micro_batches = (MICRO_BATCHES / spread.data) as u64;
        let share = |rows: u64| micro_batches * 2 * 2 * 2 * (rows * 48 * 4 * (size - 1) / size);
        let sent = of(TrafficKind::RowsToExperts) + of(TrafficKind::RowsFromExperts);
        assert_eq!((sent, kept_bytes), (share(5 * 3), share(3 * 7)), "{spread:?}");
        // Gate and up are 80 rows of 48, down 48 rows of 40: weights and gradients in f32, in two layers, each summed
        // over all.
        let copies = 2 * 3 * (80 * 48 + 48 * 40) * 4;
        assert_eq!(forecast.hot_copy_bytes, 2 * copies);
        assert_eq!(of(TrafficKind::HotCopies), 2 * 2 * copies * (size - 1) / size, "{spread:?}");
    }
}

/// A rank computes its 21 rows of hot experts, and as many of cold ones as it sends: 15.
#[test]
fn products_are_forecast_with_the_rows_there_are() {
    let plan = FOUR.setup(hot(), MICRO_BATCHES).plan_on_rank(0, 4);
    let recordings = Recordings::new(&plan, assumed_capabilities(Tier::Software), 10).expect("recordings");
    let micro_step = recordings.micro_step();
    let flops = launch_flops(&recordings, micro_step);
    let of = |is_hot: bool, is_backward: bool| -> f64 {
        let launches = micro_step.dispatches.iter().zip(&flops).filter(|(dispatch, _)| {
            let path = &dispatch.path;
            path.contains(".experts.w_")
                && (path.contains(".hot"), path.contains(".backward")) == (is_hot, is_backward)
        });
        launches.map(|(_, flops)| flops).sum()
    };
    // In two layers; backward twice as much.
    let of_rows = |rows: f64| 2.0 * 2.0 * rows * (80.0 * 48.0 + 48.0 * 40.0);
    assert_eq!([of(true, false), of(true, true)], [of_rows(21.0), 2.0 * of_rows(21.0)]);
    let close = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 1e-9, "{got}, not {want}");
    close(of(false, false), of_rows(15.0));
    close(of(false, true), 2.0 * of_rows(15.0));
}

/// Forward, the hot experts are computed between the exchange of the others' rows and the first product that reads what
/// came; backward, between the exchange of the gradients of these rows and the sum over the choices of tokens.
#[test]
fn hot_experts_are_computed_while_rows_travel() {
    // Rows of whole bindings: with others the exchange ends before a launch binds bytes beside its result.
    let wide = "--model.model_config.hidden_size=64";
    let plan = TWO.setup(hot().with(&[wide]), MICRO_BATCHES).plan_on_rank(0, 2);
    let recordings = Recordings::new(&plan, assumed_capabilities(Tier::Software), 10).expect("recordings");
    let micro_step = recordings.micro_step();
    for (is_backward, goes_out) in [(false, true), (true, false)] {
        let is_wanted = |exchange: &&Exchange| {
            let is_backwards = exchange.path.contains(".backward");
            let is_of_layer = exchange.path.starts_with("layers.0") && is_backwards == is_backward;
            matches!(exchange.collective, Collective::Rows { to_experts, .. } if to_experts == goes_out)
                && is_of_layer
        };
        let exchange = micro_step.exchanges.iter().find(is_wanted).expect("an exchange");
        let meanwhile = &micro_step.dispatches[exchange.at..exchange.needed];
        for product in ["w_gate_up.hot", "w_down.hot"] {
            let is_there = meanwhile.iter().any(|dispatch| dispatch.path.contains(product));
            assert!(is_there, "{product} is not computed during {exchange}");
        }
    }
}

/// A run with evaluations, which saves after every third step; hot experts are chosen after steps 1, 2, 3, 4, 8 and 9.
/// The order of its callbacks means nothing.
fn saving(callbacks: &str) -> FolderRun {
    let keys = [
        "--train_dataset.eval_fraction=0.3",
        "--do_eval=True",
        "--eval_step_interval=3",
        &format!("--callbacks=[{callbacks}]"),
    ];
    FolderRun::new(hot().with(&keys))
}

const SAVES: &str = "{type: CheckpointMonitor, save_checkpoint_steps: 3}";
const CHOOSES: &str = "{type: ColdHotExpertMonitor, save_checkpoint_steps: 3}";

/// Killed after step 5, of which nothing is saved: hot experts were chosen after step 4, and the newest checkpoint is
/// that of step 3.
#[test]
#[ignore = "long; `hot_experts_resume_on_any_number_of_ranks` ends in order"]
fn a_run_killed_between_a_choice_and_a_checkpoint_resumes() {
    let spread = SHARDED;
    let [whole, killed] = [[SAVES, CHOOSES], [CHOOSES, SAVES]].map(|callbacks| saving(&callbacks.join(", ")));
    spread.train(&whole, 10);
    spread.train(&killed, 5);
    let (step, newest) = newest_checkpoint(&killed.folder()).expect("a checkpoint");
    assert_eq!(step, 5);
    std::fs::remove_dir_all(newest).expect("a folder");
    assert_eq!(killed.newest(), Some(3));
    spread.train(&killed, 10);
    killed.left().assert_equals("killed after a choice", &whole.left());
    // An evaluation computes on the copies, too.
    let one = saving(SAVES);
    Spread::ONE.train(&one, 10);
    let losses = |run: &FolderRun| -> Vec<f32> {
        metrics(&run.folder()).into_iter().filter_map(|step| step.eval_loss).collect()
    };
    let (got, want) = (losses(&whole), losses(&one));
    assert_eq!((got.len(), want.len()), (4, 4)); // after the last step, too
    for (got, want) in got.iter().zip(&want) {
        assert!(f64::from((got - want).abs() / want) <= IN_F32.loss, "evaluated {got}, on one rank {want}");
    }
}

/// How often each expert was chosen, which the ranks of an expert group count apart for the hot ones, is written once
/// and as by one rank, in every step.
#[test]
fn the_token_distribution_of_ranks_is_that_of_one() {
    let [one, pairs] = [Spread::ONE, PAIRS].map(|spread| {
        let run = FolderRun::new(hot().with(&[
            "--moe_config.save_token_distribution=True",
            "--callbacks=[{type: SummaryMonitor, collect_tensor_freq: 1}]",
        ]));
        spread.train(&run, 10);
        files_of(&run)
    });
    let layers = hot().plan().model.num_layers;
    assert_eq!(one.len(), 10 * layers, "{:?}", one.keys());
    assert_eq!(one, pairs);
    // Of a step's tokens each visits two experts, and the experts are not alike.
    let counts: Vec<f64> = one["layer-0_10.npy"].clone();
    assert_eq!(counts.len(), EXPERTS);
    assert!(counts.iter().any(|count| *count != counts[0]), "{counts:?}");
}

/// The numbers of each file of a token distribution, by its name.
fn files_of(run: &FolderRun) -> BTreeMap<String, Vec<f64>> {
    let [export] = &entries(&run.folder().join("summary"))[..] else { panic!("one run") };
    let files = entries(&export.join("tensor"));
    let name = |file: &Path| file.file_name().expect("a name").to_string_lossy().into_owned();
    files.iter().map(|file| (name(file), npy::read(file).expect("counts"))).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.expect("an entry").path()).collect()
}
