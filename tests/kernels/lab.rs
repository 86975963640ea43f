//! Runs one kernel case on every tier, checked and unchecked, and compares it with the f64 reference.
//!
//! Inputs and outputs lie between guard zones of NaN and outputs start as NaN, so reading past an end, leaving an
//! element unwritten or writing outside shows. Pads of outputs must be zero. Checked and unchecked shaders must agree
//! bit for bit.
#![allow(dead_code)] // each test binary uses its own part

use gristmill::device::{Buffers, Gpu, GpuOptions, Guard, Prepared, Reader};
use gristmill::element::Element;
use gristmill::kernels::{Capabilities, Tier};
use gristmill::record::{BufferId, PersistentId, Persistents, Recorder, Tensor};
use std::ops::Range;
use std::sync::OnceLock;

pub const GUARD: u64 = 256;

/// One device with the shaders' run-time checks and one without.
pub fn gpus() -> &'static [Gpu; 2] {
    static GPUS: OnceLock<[Gpu; 2]> = OnceLock::new();
    GPUS.get_or_init(|| {
        [true, false].map(|checked_shaders| {
            let options = GpuOptions { checked_shaders, ..GpuOptions::default() };
            pollster::block_on(Gpu::request(&options)).unwrap_or_else(|e| panic!("{e}"))
        })
    })
}

/// An input as the kernel sees it and as the reference sees it: the same rounded values.
pub struct Input {
    pub tensor: Tensor,
    pub values: Vec<f64>,
}

struct Expectation {
    label: String,
    tensor: Tensor,
    want: Want,
}

/// Looks at the words of a tensor and panics if they are wrong.
type Look = Box<dyn Fn(&[u32])>;

enum Want {
    Near { values: Vec<f64>, columns: Range<u32>, allowed: f64, rms: f64, has_pads: bool },
    Words(Look),
}

/// One case being described: its tensors, its recording, what must come out.
pub struct Case {
    persistents: Persistents,
    contents: Vec<(PersistentId, Vec<u8>)>,
    pub rec: Recorder,
    expectations: Vec<Expectation>,
    random: u64,
}

impl Case {
    fn new(capabilities: Capabilities) -> Self {
        Self {
            persistents: Persistents::new(),
            contents: Vec::new(),
            rec: Recorder::new("case", capabilities),
            expectations: Vec::new(),
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// The next value of a fixed sequence, roughly normal.
    pub fn normal(&mut self) -> f64 {
        let mut uniform = || {
            self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.random >> 11) as f64 / (1u64 << 53) as f64
        };
        (0..12).map(|_| uniform()).sum::<f64>() - 6.0
    }

    /// Ids below `bound`, from the same sequence.
    pub fn ids_below(&mut self, count: usize, bound: u32) -> Vec<u32> {
        (0..count).map(|_| ((self.normal().abs() * 1e6) as u64 % bound as u64) as u32).collect()
    }

    /// A tensor of random values, rounded to `element`.
    pub fn input(&mut self, rows: u32, cols: u32, element: Element) -> Input {
        let values: Vec<f64> = (0..rows * cols).map(|_| self.normal()).collect();
        self.input_of(&values, rows, cols, element)
    }

    /// A tensor of these values, rounded to `element`.
    pub fn input_of(&mut self, values: &[f64], rows: u32, cols: u32, element: Element) -> Input {
        let mut bytes = Vec::new();
        for row in values.chunks(cols as usize) {
            let row: Vec<f32> = row.iter().map(|&v| v as f32).collect();
            element.encode_row(&row, &mut bytes);
        }
        let tensor = self.placed(rows, cols, element, &bytes);
        let values = unpadded(&element.decode(&bytes), &tensor);
        Input { tensor, values }
    }

    /// A row of integers.
    pub fn integers(&mut self, values: &[u32]) -> Tensor {
        let mut bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        self.placed(1, values.len() as u32, Element::F32, &bytes)
    }

    /// Lets a model add its own tables to the persistent buffers; `fill` gives one of them and what it holds.
    pub fn persistent<T>(
        &mut self,
        add: impl FnOnce(&mut Persistents) -> T,
        fill: impl Fn(&T) -> (Tensor, Vec<f32>),
    ) -> T {
        let added = add(&mut self.persistents);
        let (table, values) = fill(&added);
        if let BufferId::Persistent(id) = table.buffer {
            self.contents.push((id, values.iter().flat_map(|value| value.to_le_bytes()).collect()));
        }
        added
    }

    /// A tensor that starts as NaN.
    pub fn output(&mut self, rows: u32, cols: u32, element: Element) -> Tensor {
        let bytes = Tensor::new(BufferId::Persistent(PersistentId(0)), 0, rows, cols, element).bytes();
        self.placed(rows, cols, element, &vec![0xff; bytes as usize])
    }

    fn placed(&mut self, rows: u32, cols: u32, element: Element, bytes: &[u8]) -> Tensor {
        let total = bytes.len() as u64 + 2 * GUARD;
        let id = self.persistents.add("case", total);
        let mut contents = vec![0xff; total as usize];
        contents[GUARD as usize..GUARD as usize + bytes.len()].copy_from_slice(bytes);
        self.contents.push((id, contents));
        Tensor::new(BufferId::Persistent(id), GUARD, rows, cols, element)
    }

    /// States what must come out: every element within `allowed` of the reference, relative to its own size plus the
    /// tensor's root mean square.
    pub fn expect(&mut self, label: &str, tensor: Tensor, want: Vec<f64>, allowed: f64) {
        let rms = root_mean_square(&want);
        self.expect_near(label, tensor, 0..tensor.cols, want, allowed, (rms, true));
    }

    /// The same for differences that may cancel almost wholly: the error is relative to `terms`, the size of what was
    /// subtracted, because no f32 arithmetic could do better.
    pub fn expect_difference(
        &mut self,
        label: &str,
        tensor: Tensor,
        want: Vec<f64>,
        allowed: f64,
        terms: &[f64],
    ) {
        let rms = root_mean_square(terms).max(root_mean_square(&want));
        self.expect_near(label, tensor, 0..tensor.cols, want, allowed, (rms, true));
    }

    /// The same for a range of columns that is a result of its own: its error is relative to its own root mean square,
    /// so a large neighbour in the row cannot hide it. Guard zones and pads are those of the whole tensor.
    pub fn expect_columns(
        &mut self,
        label: &str,
        tensor: Tensor,
        columns: Range<u32>,
        want: Vec<f64>,
        allowed: f64,
    ) {
        let rms = root_mean_square(&want);
        self.expect_near(label, tensor, columns, want, allowed, (rms, true));
    }

    /// The same for a vector of scalars, which has no pad to keep zero.
    pub fn expect_vector(&mut self, label: &str, tensor: Tensor, want: Vec<f64>, allowed: f64) {
        let rms = root_mean_square(&want);
        self.expect_near(label, tensor, 0..tensor.cols, want, allowed, (rms, false));
    }

    fn expect_near(
        &mut self,
        label: &str,
        tensor: Tensor,
        columns: Range<u32>,
        want: Vec<f64>,
        allowed: f64,
        (rms, has_pads): (f64, bool),
    ) {
        assert!(columns.end <= tensor.cols, "{label}: the tensor has fewer columns");
        assert_eq!(
            want.len(),
            tensor.rows as usize * columns.len(),
            "{label}: the reference has another size"
        );
        self.rec.keep(tensor);
        let want = Want::Near { values: want, columns, allowed, rms, has_pads };
        self.expectations.push(Expectation { label: label.to_string(), tensor, want });
    }

    /// Looks at the raw words that come out.
    pub fn expect_words(&mut self, label: &str, tensor: Tensor, look: impl Fn(&[u32]) + 'static) {
        self.rec.keep(tensor);
        self.expectations.push(Expectation {
            label: label.to_string(),
            tensor,
            want: Want::Words(Box::new(look)),
        });
    }
}

/// The error allowed to a result stored as `element` after a sum of `terms` products in f32: half an ulp of the storage
/// for the last rounding, and a random walk of f32 roundings.
pub fn allowed(element: Element, terms: u32) -> f64 {
    let storage = match element {
        Element::F32 => 0.0,
        Element::F16 => 2f64.powi(-11),
        Element::Bf16 => 2f64.powi(-8),
    };
    storage + 2f64.powi(-24) * (8.0 + 4.0 * (terms as f64).sqrt())
}

/// Runs a case on every tier, checked and unchecked.
pub fn check(name: &str, build: impl Fn(&mut Case)) {
    for tier in Tier::ALL {
        check_tier(name, tier, &build);
    }
}

/// Runs a case on one tier, checked and unchecked; where its kernels share loads between lanes, without that too.
pub fn check_tier(name: &str, tier: Tier, build: &impl Fn(&mut Case)) {
    let name = format!("{name} [{}]", tier.name());
    let capabilities = gpus()[0].capabilities().with_tier(tier);
    let [checked, unchecked] = gpus().each_ref().map(|gpu| run(&name, gpu, capabilities, build));
    assert!(checked == unchecked, "{name}: checked and unchecked shaders differ");
    if shares_loads(capabilities, build) {
        let alone = run(&format!("{name} without lanes"), &gpus()[1], capabilities.with_lanes(1), build);
        assert!(alone == unchecked, "{name}: lanes that share what they load compute something else");
    }
}

fn shares_loads(capabilities: Capabilities, build: &impl Fn(&mut Case)) -> bool {
    let mut case = Case::new(capabilities);
    build(&mut case);
    let dispatches = case.rec.finish().dispatches;
    dispatches.iter().any(|dispatch| dispatch.kernel.features().any(|feature| feature == "shuffled"))
}

fn run(name: &str, gpu: &Gpu, capabilities: Capabilities, build: &impl Fn(&mut Case)) -> Vec<Vec<u8>> {
    let mut case = Case::new(capabilities);
    build(&mut case);
    let Case { persistents, contents, rec, expectations, .. } = case;
    let recording = rec.finish();
    let buffers =
        pollster::block_on(gpu.make_persistent(&persistents)).unwrap_or_else(|e| panic!("{name}: {e}"));
    for (id, bytes) in &contents {
        gpu.write(&buffers, *id, 0, bytes);
    }
    let prepared = pollster::block_on(async {
        let prepared = gpu.prepare(&[&recording], &buffers, Guard::Nan).await?;
        let mut encoder = gpu.encoder();
        encoder.replay(&prepared.programs[0]).await?;
        encoder.submit().await?;
        gpu.wait().await?;
        Ok::<_, gristmill::error::Error>(prepared)
    });
    let prepared = prepared.unwrap_or_else(|e| panic!("{name}: {e}"));
    let reader = Reader::new(gpu, 1 << 20);
    expectations.iter().map(|e| compare(name, gpu, &buffers, &prepared, &reader, e)).collect()
}

fn compare(
    name: &str,
    gpu: &Gpu,
    buffers: &Buffers,
    prepared: &Prepared,
    reader: &Reader,
    expectation: &Expectation,
) -> Vec<u8> {
    let Expectation { label, tensor, want } = expectation;
    let around = pollster::block_on(reader.around(gpu, buffers, prepared, 0, tensor, GUARD));
    let around = around.unwrap_or_else(|e| panic!("{name} {label}: {e}"));
    let (before, rest) = around.split_at(GUARD as usize);
    let (bytes, after) = rest.split_at(tensor.bytes() as usize);
    assert!(before.iter().chain(after).all(|&b| b == 0xff), "{name} {label}: wrote outside its tensor");
    let (want, columns, allowed, rms, has_pads) = match want {
        Want::Near { values, columns, allowed, rms, has_pads } => (values, columns, allowed, rms, has_pads),
        Want::Words(look) => {
            let words: Vec<u32> =
                bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            look(&words);
            return bytes.to_vec();
        }
    };
    let padded = tensor.element.decode(bytes);
    for (r, row) in padded.chunks(tensor.stride as usize).enumerate() {
        let pad = &row[tensor.cols as usize..];
        assert!(!*has_pads || pad.iter().all(|&v| v == 0.0), "{name} {label}: the pad of row {r} is {pad:?}");
    }
    let got = unpadded(&padded, tensor);
    let got: Vec<f64> = got
        .chunks(tensor.cols as usize)
        .flat_map(|row| row[columns.start as usize..columns.end as usize].iter().copied())
        .collect();
    let mut worst = (0.0, 0);
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let share = (g - w).abs() / (allowed * (w.abs() + rms) + f64::MIN_POSITIVE);
        if share.is_nan() || share > worst.0 {
            worst = (if share.is_nan() { f64::INFINITY } else { share }, i);
        }
    }
    let (share, at) = worst;
    println!("{name} {label}: {:.1} % of the allowed error {allowed:.1e}", 100.0 * share);
    assert!(
        share <= 1.0,
        "{name} {label}: element {at} (row {}, column {}) is {}, the reference says {}",
        at / columns.len(),
        columns.start as usize + at % columns.len(),
        got[at],
        want[at]
    );
    bytes.to_vec()
}

fn root_mean_square(values: &[f64]) -> f64 {
    (values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64).sqrt()
}

fn unpadded(padded: &[f32], tensor: &Tensor) -> Vec<f64> {
    let rows = padded.chunks(tensor.stride as usize);
    rows.flat_map(|row| row[..tensor.cols as usize].iter().map(|&v| v as f64)).collect()
}
