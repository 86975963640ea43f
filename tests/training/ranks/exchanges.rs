//! Exchange points on devices: several under way, launches beside them, every collective.

use crate::runs::{on_ranks, open_gpu};
use gristmill::device::{Exchanger, Exchanges, Gpu, Guard, Reader};
use gristmill::element::Element::{self, F32, U32};
use gristmill::ops::add::add;
use gristmill::ops::zero::zero;
use gristmill::ranks::pipeline::{Direction, Half, Turn};
use gristmill::ranks::{Group, Ranks};
use gristmill::record::{Collective, Persistents, Recorder, Recording, Span, State, Tensor};
use pollster::block_on;

/// What a rank starts with and how it goes on.
pub struct Case {
    persistents: Persistents,
    inputs: Vec<(Tensor, Vec<f32>)>,
    pub rec: Recorder,
}

impl Case {
    pub fn new(gpu: &Gpu) -> Self {
        let rec = Recorder::new("exchanges", gpu.capabilities());
        Self { persistents: Persistents::new(), inputs: Vec::new(), rec }
    }

    fn input(&mut self, values: Vec<f32>) -> Tensor {
        self.rows(1, values)
    }

    /// As many rows of `values` as divide them; a number of columns that leaves no pads, unless it is one row.
    pub fn rows(&mut self, rows: u32, values: Vec<f32>) -> Tensor {
        let cols = values.len() as u32 / rows;
        assert!(rows == 1 || cols.is_multiple_of(4), "{rows} rows of {cols} columns have pads");
        self.words(rows, cols, F32, values)
    }

    pub fn state<S: State>(&mut self, state: S) -> Tensor {
        self.words(1, S::WORDS, U32, bytemuck::cast_slice(&[state]).to_vec())
    }

    pub fn ids(&mut self, ids: &[u32]) -> Tensor {
        self.words(1, ids.len() as u32, U32, bytemuck::cast_slice(ids).to_vec())
    }

    fn words(&mut self, rows: u32, cols: u32, element: Element, values: Vec<f32>) -> Tensor {
        let label = format!("input {}", self.inputs.len());
        let tensor = self.persistents.tensor(label, rows, cols, element);
        self.inputs.push((tensor, values));
        tensor
    }
}

/// Replays the exchanges of `which` twice, on the inputs each time, and returns what the inputs hold then.
pub fn replay(gpu: &Gpu, ranks: Ranks, case: Case, which: Exchanges) -> Vec<Vec<f32>> {
    replay_turn(gpu, ranks, case, which, None)
}

/// The same in a turn of a pipeline, after which what its half has made is sent.
fn replay_turn(
    gpu: &Gpu,
    ranks: Ranks,
    case: Case,
    which: Exchanges,
    turn: Option<(Turn, Turn)>,
) -> Vec<Vec<f32>> {
    let Case { persistents, inputs, rec } = case;
    let recording: Recording = rec.finish();
    let buffers = block_on(gpu.make_persistent(&persistents)).expect("buffers");
    let prepared = block_on(gpu.prepare(&[&recording], &buffers, Guard::Nan)).expect("a program");
    let mut exchanger = block_on(Exchanger::new(gpu, ranks, &prepared, 2)).expect("staging buffers");
    let reader = block_on(Reader::new(gpu, 1 << 16)).expect("a reader");
    let mut results = Vec::new();
    for _ in 0..2 {
        for (tensor, values) in &inputs {
            let gristmill::record::BufferId::Persistent(id) = tensor.buffer else { panic!("persistent") };
            gpu.write(&buffers, id, 0, bytemuck::cast_slice(values));
        }
        let mut encoder = gpu.encoder();
        let program = &prepared.programs[0];
        match &turn {
            None => block_on(encoder.replay_exchanging(program, &mut exchanger, which)).expect("a replay"),
            Some((turn, after)) => {
                let half = turn.half.expect("a half");
                block_on(exchanger.pass(&mut encoder, turn, Some(program))).expect("rows");
                block_on(encoder.replay_half(program, &mut exchanger, half, which)).expect("a replay");
                block_on(exchanger.pass(&mut encoder, after, None)).expect("rows");
            }
        }
        block_on(encoder.submit()).expect("a submission");
        results = inputs
            .iter()
            .map(|(tensor, values)| {
                let bytes = block_on(reader.tensor(gpu, &buffers, &prepared, 0, tensor)).expect("bytes");
                bytemuck::pod_collect_to_vec::<u8, f32>(&bytes)[..values.len()].to_vec()
            })
            .collect();
    }
    results
}

/// Ten sums, more than can be under way, each of which a launch reads; and launches between.
#[test]
fn more_sums_than_staging_buffers() {
    let results = on_ranks(3, |ranks| {
        let gpu = open_gpu();
        let (mut case, group) = (Case::new(&gpu), Group::all(3));
        let own = ranks.rank() as f32;
        let inputs: Vec<Tensor> = (0..10).map(|i| case.input(vec![own + i as f32; 5 + i])).collect();
        let total = case.input(vec![0.0; 8]);
        for &input in &inputs {
            let sum = case.rec.tensor("sum", 1, input.cols, F32);
            let [addends, sums] = [input, sum].map(|tensor| vec![Span::of(&tensor)]);
            case.rec.exchange("sum", Collective::sum_into(addends, sums), &group);
            let other = case.rec.tensor("other", 1, 64, F32);
            zero(&mut case.rec, other);
            add(&mut case.rec, sum, input, 0.5, true);
        }
        add(&mut case.rec, inputs[3], total, 1.0, true);
        replay(&gpu, ranks, case, Exchanges::All)
    });
    for (rank, result) in results.iter().enumerate() {
        for (i, values) in result[..10].iter().enumerate() {
            let sum = 3.0 + 3.0 * i as f32;
            assert_eq!(values, &vec![rank as f32 + i as f32 + 0.5 * sum; 5 + i], "rank {rank}, sum {i}");
        }
        assert_eq!(result[10], vec![rank as f32 + 3.0 + 0.5 * 12.0; 8], "rank {rank}");
    }
}

/// A reduce-scatter in place, a gather of its parts after it, and integers beside floats.
#[test]
fn parts_are_summed_and_gathered() {
    let results = on_ranks(2, |ranks| {
        let gpu = open_gpu();
        let (mut case, group, rank) = (Case::new(&gpu), Group::all(2), ranks.rank());
        let x = case.input((0..12).map(|i| (i * (rank + 1)) as f32).collect());
        let whole = Span::of(&x);
        let parts = vec![0..16, 16..48];
        let own = if rank == 0 { whole.part(0, 4, F32) } else { whole.part(4, 8, F32) };
        let parts_again = parts.clone();
        case.rec.exchange("sum", Collective::ReduceScatter { own, whole, parts }, &group);
        case.rec.exchange("gather", Collective::AllGather { own, whole, parts: parts_again }, &group);
        let counts = case.input([7u32, 9].map(|count| f32::from_bits(count + rank as u32)).to_vec());
        let counts = Span::of(&counts).part(0, 2, U32);
        case.rec.exchange("counts", Collective::sum(vec![counts]), &group);
        replay(&gpu, ranks, case, Exchanges::All)
    });
    for result in results {
        assert_eq!(result[0], (0..12).map(|i| (3 * i) as f32).collect::<Vec<_>>());
        assert_eq!(result[1].iter().map(|count| count.to_bits()).collect::<Vec<_>>(), [15, 19]);
    }
}

/// Only the last micro-batch of a step has the sum.
#[test]
fn ranks_skip_what_a_step_has_once() {
    for (which, sums) in [(Exchanges::All, 3.0), (Exchanges::OfEveryMicroBatch, 1.0)] {
        let results = on_ranks(2, |ranks| {
            let gpu = open_gpu();
            let (mut case, group, rank) = (Case::new(&gpu), Group::all(2), ranks.rank());
            let once = case.input(vec![1.0 + rank as f32; 4]);
            case.rec.exchange_once_complete("once", Collective::sum(vec![Span::of(&once)]), &group);
            replay(&gpu, ranks, case, which)
        });
        assert_eq!(results[0][0], vec![sums; 4]);
    }
}

/// Rank 0 sends what its half has made, and rank 1 adds what it receives before its own.
#[test]
fn stages_send_and_receive_between_halves() {
    let results = on_ranks(2, |ranks| {
        let gpu = open_gpu();
        let (mut case, group, rank) = (Case::new(&gpu), Group::all(2), ranks.rank());
        let x = case.input(vec![10.0 + rank as f32; 6]);
        if rank == 0 {
            case.rec.exchange("pass", Collective::Send { sent: Span::of(&x), to: 1 }, &group);
        } else {
            let passed = case.rec.tensor("passed", 1, 6, F32);
            let received = Span::of(&passed);
            case.rec.exchange("pass", Collective::Receive { received, from: 0 }, &group);
            add(&mut case.rec, passed, x, 1.0, true);
        }
        let half = Half { chunk: 0, micro_batch: 0, direction: Direction::Forward };
        let turn = Turn { half: Some(half), receives: rank == 1, sends: Vec::new() };
        let sends = if rank == 0 { vec![half] } else { Vec::new() };
        let turns = (turn, Turn { sends, ..Turn::default() });
        replay_turn(&gpu, ranks, case, Exchanges::All, Some(turns))
    });
    assert_eq!((&results[0][0], &results[1][0]), (&vec![10.0; 6], &vec![21.0; 6]));
}
