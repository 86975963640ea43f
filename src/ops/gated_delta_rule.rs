//! The gated delta rule (Yang, Kautz and Hatamizadeh, 2024): linear attention whose state forgets, and whose writes
//! replace what the state holds under their key. Qwen3-Next and Qwen3.5 have it in three of four layers.
//!
//! Each value head has a state S (K, V), zero at the start of a document. A token lets it decay, S ← e^g·S, writes what
//! it does not hold yet, S ← S + k·dᵀ with d = β·(v − Sᵀk), and reads out = scale·Sᵀq.
//!
//! On GPUs the tokens of a chunk of [`CHUNK`] are computed together: what they write is the solution of a triangular
//! system, whose inverse does not depend on the state, so only the states follow each other from chunk to chunk. Software
//! adapters, for which a barrier is dear, walk token by token. The backward pass keeps nothing of the forward pass:
//! states before chunks take K·V / CHUNK numbers in f32 for each token and head, at the usual sizes as many bytes as q,
//! k, v and out in 16 bits together, and computing them again is a quarter of the backward pass. What passes between
//! launches is scratch, for which segments of long sequences take turns, so that it stays below [`SCRATCH_BYTES`]: the
//! backward pass first keeps the states before all segments, and then computes each again, from the last one.

mod scratch;

use self::scratch::Held::{Dots, Dstates, Dwritten, Gates, Inverse, Products, Scores, States, Written};
pub use self::scratch::SCRATCH_BYTES;
use self::scratch::{Division, Part, Scratch, Segment};
use super::attention::DocumentBounds;
use super::{per_item, per_row};
use crate::element::{Element, stride_of};
use crate::kernels::{Condition, Kernel, Tier};
use crate::record::{Binding, Recorder, Tensor, fold_grid};

/// Tokens of a chunk, as in the published code. Longer ones would spend more on pairs of tokens than they save on
/// states; its matrices are staged in 16 KiB of workgroup memory, which all adapters have.
pub const CHUNK: u32 = 64;

/// Terms of a product that are staged at once, within a chunk and beside a state. So each invocation stages one block.
const STAGED: u32 = 32;
const STAGED_BESIDE_STATE: u32 = 16;

/// Groups of 4 columns of a state in workgroup memory, for which 8 KiB are set aside; more of them would leave units of
/// a GPU without work.
const STATE_VECTORS: u32 = 512;

/// The sizes of the rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedDeltaRule {
    /// T, tokens of a sequence; a state does not cross sequences.
    pub tokens: u32,
    /// Value heads H, each of which has a state.
    pub heads: u32,
    /// Heads of queries and keys, a divisor of H: value head h uses key head h / (heads / key_heads).
    pub key_heads: u32,
    /// K, elements of a query and of a key; a multiple of 4, and at most 512.
    pub key_dim: u32,
    /// V, elements of a value; a multiple of 4.
    pub value_dim: u32,
    /// Factor of the queries, usually 1/√key_dim.
    pub scale: f32,
    /// The bounds of documents, at which a state starts anew; `None`: each sequence is one document.
    pub documents: Option<DocumentBounds>,
}

/// What tokens do to the states, and what they ask them.
#[derive(Clone, Copy, Debug)]
pub struct DeltaInputs {
    /// Queries, then keys (N, 2 · key_heads · K); both should be of length 1.
    pub qk: Tensor,
    /// Values (N, heads · V), which may be a range of columns, of the element type of `qk`.
    pub v: Tensor,
    /// The gates of the heads (N, [`gate_cols`]\(heads)), f32: logarithms of the share of the state that stays, at most
    /// 0, and from the middle on strengths of the writes, from 0 to 1.
    pub gates: Tensor,
}

/// Columns of the gates of so many heads, whose halves start at multiples of 4.
pub const fn gate_cols(heads: u32) -> u32 {
    2 * stride_of(heads)
}

crate::params! {
    struct Params {
        rows: u32,
        tokens: u32,
        begin: u32,
        chunks: u32,
        heads: u32,
        all_heads: u32,
        group: u32,
        d4: u32,
        v4: u32,
        qk_offset: u32,
        qk_stride: u32,
        k_start: u32,
        v_offset: u32,
        v_stride: u32,
        out_offset: u32,
        out_stride: u32,
        dout_offset: u32,
        dout_stride: u32,
        dqk_offset: u32,
        dqk_stride: u32,
        dv_offset: u32,
        dv_stride: u32,
        gate_offset: u32,
        gate_stride: u32,
        beta_start: u32,
        gate_columns: u32,
        starts_offset: u32,
        gates: u32,
        inverse: u32,
        scores: u32,
        written: u32,
        dwritten: u32,
        states: u32,
        dstates: u32,
        dots: u32,
        products: u32,
        carry_in: u32,
        carry_out: u32,
        state_offset: u32,
        block: u32,
        chunk: u32,
        staged4: u32,
        parts: u32,
        scale: f32,
    }
}

crate::params! {
    struct StepParams {
        sequences: u32,
        heads: u32,
        group: u32,
        d4: u32,
        v4: u32,
        qk_offset: u32,
        qk_stride: u32,
        k_start: u32,
        v_offset: u32,
        v_stride: u32,
        out_offset: u32,
        out_stride: u32,
        gate_offset: u32,
        gate_stride: u32,
        beta_start: u32,
        state_offset: u32,
        scale: f32,
    }
}

/// out (N, heads · V). With `final_state` (sequences · heads · K, V), f32, the state of each head after the last token
/// is written there.
#[track_caller]
pub fn gated_delta_rule(
    rec: &mut Recorder,
    inputs: &DeltaInputs,
    out: Tensor,
    final_state: Option<Tensor>,
    shape: &GatedDeltaRule,
) {
    shape.assert_inputs(inputs);
    shape.assert_values("out", out, inputs);
    if let Some(state) = final_state {
        shape.assert_state(state, inputs.qk.rows / shape.tokens);
    }
    let of_state = final_state.map(|state| state.bind_with_offset("final_state", Element::F32));
    let state_offset = final_state.map_or(0, |state| state.offset4());
    let is_software = rec.capabilities().tier == Tier::Software;
    shape.assert_turns(rec);
    let of_part = |part: &Part| Params {
        out_offset: out.offset4() + part.first_head * shape.value_dim / 4,
        out_stride: out.stride4(),
        state_offset: state_offset + part.first_head * shape.key_dim * shape.value_dim / 4,
        ..shape.params(inputs, part)
    };
    let out = out.bind_with_offset("out", inputs.qk.element);
    if is_software {
        let part = shape.whole();
        let pass = Pass { shape, inputs, part: &part, params: of_part(&part) };
        let (kernel, grid) = pass.walk("gated_delta_rule_walk");
        let mut bindings = vec![inputs.bind_qk(), inputs.bind_v(), out, inputs.bind_gates()];
        bindings.extend(of_state);
        let kernel = kernel.condition(Condition::FinalState, final_state.is_some());
        pass.dispatch(rec, kernel, bindings, true, grid);
        return;
    }
    let Division { parts, segments } = shape.division(rec, inputs.qk.rows, false);
    for part in parts {
        let scratch = Scratch::new(rec, shape, inputs.qk.rows, &part, &segments, false);
        for segment in &segments {
            let params = scratch.params(of_part(&part), segment, false);
            let pass = Pass { shape, inputs, part: &part, params };
            pass.states(rec, &scratch, of_state.filter(|_| segment.is_last));
            let columns = columns_of(shape.value_dim);
            let blocks = (shape.value_dim / 4).div_ceil(columns);
            let (kernel, grid) = pass.by_chunk("gated_delta_rule_outputs", part.heads, columns, blocks);
            let held = scratch.bind(&[Gates, Scores, Written, States]);
            pass.dispatch(rec, kernel, vec![held, inputs.bind_qk(), out], false, grid);
        }
    }
}

/// The `gradients` of the inputs, written to tensors like theirs, from dout (N, heads · V) of the element type of `qk`.
#[track_caller]
pub fn gated_delta_rule_backward(
    rec: &mut Recorder,
    inputs: &DeltaInputs,
    dout: Tensor,
    gradients: &DeltaInputs,
    shape: &GatedDeltaRule,
) {
    shape.assert_inputs(inputs);
    shape.assert_inputs(gradients);
    shape.assert_values("dout", dout, inputs);
    shape.assert_turns(rec);
    let Division { parts, segments } = shape.division(rec, inputs.qk.rows, true);
    for part in parts {
        let scratch = Scratch::new(rec, shape, inputs.qk.rows, &part, &segments, true);
        let values = part.first_head * shape.value_dim / 4;
        let of_part = Params {
            dout_offset: dout.offset4() + values,
            dout_stride: dout.stride4(),
            dqk_offset: gradients.qk.offset4() + part.first_key_head(shape) * shape.key_dim / 4,
            dqk_stride: gradients.qk.stride4(),
            dv_offset: gradients.v.offset4() + values,
            dv_stride: gradients.v.stride4(),
            block: match rec.capabilities().tier {
                Tier::Software => 1,
                Tier::Portable | Tier::Matrix => columns_of(shape.key_dim),
            },
            ..shape.params(inputs, &part)
        };
        let pass_of = |segment: &Segment, is_back| {
            let params = scratch.params(of_part, segment, is_back);
            Pass { shape, inputs, part: &part, params }
        };
        let pass_states = |rec: &mut Recorder, segment: &Segment| match rec.capabilities().tier {
            Tier::Software => pass_of(segment, false).written(rec, &scratch),
            Tier::Portable | Tier::Matrix => pass_of(segment, false).states(rec, &scratch, None),
        };
        segments.iter().for_each(|segment| pass_states(rec, segment));
        for segment in segments.iter().rev() {
            if !segment.is_last {
                pass_states(rec, segment);
            }
            pass_of(segment, true).backward(rec, &scratch, dout, gradients);
        }
    }
}

/// One token for each of B sequences: `state` (B · heads · K, V), f32, becomes that after the token, and out (B,
/// heads · V) is written. `tokens` and `documents` of the shape are not used.
#[track_caller]
pub fn gated_delta_rule_step(
    rec: &mut Recorder,
    inputs: &DeltaInputs,
    state: Tensor,
    out: Tensor,
    shape: &GatedDeltaRule,
) {
    let shape = GatedDeltaRule { tokens: 1, documents: None, ..*shape };
    shape.assert_inputs(inputs);
    shape.assert_values("out", out, inputs);
    shape.assert_state(state, inputs.qk.rows);
    let DeltaInputs { qk, v, gates } = *inputs;
    let items = qk.rows * shape.heads;
    let v4 = shape.value_dim / 4;
    let (kernel, grid) = match rec.capabilities().tier {
        Tier::Software => {
            let count = u64::from(items) * u64::from(v4);
            let (kernel, grid) =
                per_item("gated_delta_rule/step", "gated_delta_rule_step", qk.element, count);
            (kernel.constant("COLUMNS", v4), grid)
        }
        Tier::Portable | Tier::Matrix => {
            let columns = v4.next_power_of_two();
            assert!(columns <= 256, "a value of {} elements, of which 1,024 are the most", shape.value_dim);
            let kernel = Kernel::new("gated_delta_rule/step", "gated_delta_rule_step", qk.element)
                .condition(Condition::SharedTile, true)
                .constant("LANES", columns.max(128))
                .constant("COLUMNS", columns);
            (kernel, fold_grid(items.into()))
        }
    };
    let params = StepParams {
        sequences: qk.rows,
        heads: shape.heads,
        group: shape.group(),
        d4: shape.key_dim / 4,
        v4,
        qk_offset: qk.offset4(),
        qk_stride: qk.stride4(),
        k_start: shape.key_heads * shape.key_dim / 4,
        v_offset: v.offset4(),
        v_stride: v.stride4(),
        out_offset: out.offset4(),
        out_stride: out.stride4(),
        gate_offset: 4 * gates.offset4(),
        gate_stride: gates.stride,
        beta_start: stride_of(shape.heads),
        state_offset: state.offset4(),
        scale: shape.scale,
    };
    let mut bindings = vec![
        inputs.bind_qk(),
        inputs.bind_v(),
        state.bind_with_offset("state", Element::F32),
        out.bind_with_offset("out", qk.element),
    ];
    bindings.push(inputs.bind_gates());
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// Groups of 4 columns that a workgroup computes of `width` columns.
fn columns_of(width: u32) -> u32 {
    (width / 4).next_power_of_two().min(16)
}

impl DeltaInputs {
    fn bind_qk(&self) -> Binding {
        self.qk.bind_with_offset("qk", self.qk.element)
    }

    fn bind_v(&self) -> Binding {
        self.v.bind_with_offset("v", self.qk.element)
    }

    fn bind_gates(&self) -> Binding {
        self.gates.bind_with_offset("gates", Element::F32)
    }
}

impl GatedDeltaRule {
    /// Value heads for each key head.
    fn group(&self) -> u32 {
        self.heads / self.key_heads
    }

    fn chunks(&self) -> u32 {
        self.tokens.div_ceil(CHUNK)
    }

    fn whole(&self) -> Part {
        Part { first_head: 0, heads: self.heads }
    }

    /// Software adapters walk a sequence in one loop, a turn for each token beside one for each chunk.
    #[track_caller]
    fn assert_turns(&self, rec: &Recorder) {
        let turns = u64::from(self.tokens) + u64::from(self.chunks());
        let most = rec.capabilities().most_turns();
        assert!(
            turns <= most,
            "{} tokens of a sequence, which a loop of {most} turns cannot walk",
            self.tokens
        );
    }

    #[track_caller]
    fn assert_inputs(&self, inputs: &DeltaInputs) {
        let Self { tokens, heads, key_heads, key_dim, value_dim, documents, .. } = *self;
        let DeltaInputs { qk, v, gates } = *inputs;
        assert!(key_heads > 0 && heads.is_multiple_of(key_heads), "{heads} heads of {key_heads} keys");
        assert!(
            key_dim.is_multiple_of(4) && value_dim.is_multiple_of(4),
            "heads of {key_dim} and {value_dim}"
        );
        assert!(
            key_dim <= STATE_VECTORS,
            "a key of {key_dim} elements, of which {STATE_VECTORS} are the most"
        );
        assert!(
            tokens > 0 && qk.rows.is_multiple_of(tokens),
            "{} rows are no sequences of {tokens} tokens",
            qk.rows
        );
        assert!(qk.cols == 2 * key_heads * key_dim, "qk has {} columns for {key_heads} heads", qk.cols);
        self.assert_values("v", v, inputs);
        let fits = (gates.rows, gates.cols, gates.element) == (qk.rows, gate_cols(heads), Element::F32);
        assert!(fits, "the gates must be f32 of {} x {}", qk.rows, gate_cols(heads));
        let fits = |documents: DocumentBounds| documents.starts.cols == qk.rows;
        assert!(documents.is_none_or(fits), "the rule needs a bound for each of {} tokens", qk.rows);
    }

    #[track_caller]
    fn assert_values(&self, name: &str, values: Tensor, inputs: &DeltaInputs) {
        let DeltaInputs { qk, .. } = *inputs;
        let cols = self.heads * self.value_dim;
        let fits = (values.rows, values.cols, values.element) == (qk.rows, cols, qk.element);
        assert!(fits, "{name} must be {} x {cols} with the element type of qk", qk.rows);
    }

    #[track_caller]
    fn assert_state(&self, state: Tensor, sequences: u32) {
        let rows = sequences * self.heads * self.key_dim;
        let fits = (state.rows, state.cols, state.element) == (rows, self.value_dim, Element::F32);
        assert!(fits, "the state must be f32 of {rows} x {}", self.value_dim);
    }

    /// The params of all launches for a part of the heads, apart from their outputs and scratch.
    fn params(&self, inputs: &DeltaInputs, part: &Part) -> Params {
        let DeltaInputs { qk, v, gates } = *inputs;
        let is_last = part.first_head + part.heads == self.heads;
        let padding = if is_last { stride_of(self.heads) - self.heads } else { 0 };
        Params {
            rows: qk.rows,
            tokens: self.tokens,
            begin: 0,
            chunks: self.chunks(),
            heads: part.heads,
            all_heads: self.heads,
            group: self.group(),
            d4: self.key_dim / 4,
            v4: self.value_dim / 4,
            qk_offset: qk.offset4() + part.first_key_head(self) * self.key_dim / 4,
            qk_stride: qk.stride4(),
            k_start: self.key_heads * self.key_dim / 4,
            v_offset: v.offset4() + part.first_head * self.value_dim / 4,
            v_stride: v.stride4(),
            out_offset: 0,
            out_stride: 0,
            dout_offset: 0,
            dout_stride: 0,
            dqk_offset: 0,
            dqk_stride: 0,
            dv_offset: 0,
            dv_stride: 0,
            gate_offset: 4 * gates.offset4() + part.first_head,
            gate_stride: gates.stride,
            beta_start: stride_of(self.heads),
            gate_columns: part.heads + padding,
            starts_offset: self.documents.map_or(0, |documents| 4 * documents.starts.offset4()),
            gates: 0,
            inverse: 0,
            scores: 0,
            written: 0,
            dwritten: 0,
            states: 0,
            dstates: 0,
            dots: 0,
            products: 0,
            carry_in: 0,
            carry_out: 0,
            state_offset: 0,
            block: 1,
            chunk: CHUNK,
            staged4: 0,
            parts: 3,
            scale: self.scale,
        }
    }
}

/// The launches for a part of the heads.
struct Pass<'a> {
    shape: &'a GatedDeltaRule,
    inputs: &'a DeltaInputs,
    part: &'a Part,
    params: Params,
}

impl Pass<'_> {
    /// Records a launch; one that `sees_documents` binds their starts.
    fn dispatch(
        &self,
        rec: &mut Recorder,
        kernel: Kernel,
        mut bindings: Vec<Binding>,
        sees_documents: bool,
        grid: [u32; 3],
    ) {
        let documents = self.shape.documents.filter(|_| sees_documents);
        bindings.extend(documents.map(|documents| documents.starts.bind_with_offset("starts", Element::U32)));
        let kernel = kernel.condition(Condition::Segmented, documents.is_some());
        let staged = kernel.constants().iter().find(|(name, _)| *name == "STEP");
        let params = Params { staged4: staged.map_or(0, |(_, terms)| terms / 4), ..self.params };
        rec.dispatch(kernel.constant("CHUNK", CHUNK), &bindings, &params, grid);
    }

    fn element(&self) -> Element {
        self.inputs.qk.element
    }

    /// Chunks of the segment of all sequences.
    fn all_chunks(&self) -> u32 {
        self.params.rows / self.params.tokens * self.params.chunks
    }

    /// A kernel in which an invocation walks a sequence with 4 columns of a head.
    #[track_caller]
    fn walk(&self, entry: &'static str) -> (Kernel, [u32; 3]) {
        let Params { rows, tokens, heads, d4, v4, .. } = self.params;
        let count = u64::from(rows / tokens) * u64::from(heads) * u64::from(v4);
        let file = "gated_delta_rule/software/walk";
        // Few invocations have long walks: small workgroups keep several cores busy.
        let kernel = Kernel::new(file, entry, self.element()).constant("LANES", 8).constant("D4", d4);
        (kernel, fold_grid(count.div_ceil(8)))
    }

    /// A kernel in which a workgroup computes a chunk of a head, and one of `blocks` of so many `columns`, in groups of 4.
    fn by_chunk(&self, entry: &'static str, heads: u32, columns: u32, blocks: u32) -> (Kernel, [u32; 3]) {
        let lanes = CHUNK / 4 * columns;
        let kernel = Kernel::new("gated_delta_rule/chunks", entry, self.element())
            .condition(Condition::SharedTile, true)
            .constant("LANES", lanes)
            .constant("COLUMNS", columns)
            .constant("STEP", STAGED)
            .constant("ROOM", STAGED * (CHUNK / 4 + columns));
        (kernel, [heads, self.all_chunks(), blocks])
    }

    /// The same with an invocation for each 4 rows and 4 columns.
    fn by_tile(&self, entry: &'static str, heads: u32, columns: u32, blocks: u32) -> (Kernel, [u32; 3]) {
        let count = u64::from(CHUNK / 4 * columns) * u64::from(heads * self.all_chunks()) * u64::from(blocks);
        let (kernel, grid) = per_item("gated_delta_rule/chunks", entry, self.element(), count);
        (kernel.constant("COLUMNS", columns), grid)
    }

    /// A kernel in which a workgroup takes some columns of the state of a head from chunk to chunk.
    fn by_state(&self, entry: &'static str) -> (Kernel, [u32; 3]) {
        let Params { rows, tokens, heads, d4, v4, .. } = self.params;
        let depth = (4 * d4).next_multiple_of(STAGED_BESIDE_STATE);
        let columns = [4, 2, 1].into_iter().find(|columns| depth * columns <= STATE_VECTORS);
        let columns = columns.expect("asserted").min(v4.next_power_of_two());
        let kernel = Kernel::new("gated_delta_rule/portable/states", entry, self.element())
            .condition(Condition::SharedTile, true)
            .constant("LANES", CHUNK / 4 * columns)
            .constant("COLUMNS", columns)
            .constant("D4", d4)
            .constant("STEP", STAGED_BESIDE_STATE)
            .constant("ROOM", STAGED_BESIDE_STATE * (CHUNK / 4) + (depth + CHUNK) * columns);
        (kernel, [heads, rows / tokens, v4.div_ceil(columns)])
    }

    fn gates(&self, rec: &mut Recorder, scratch: &Scratch) {
        let items = u64::from(self.all_chunks()) * u64::from(self.part.heads);
        let (kernel, grid) =
            per_item("gated_delta_rule/gates", "gated_delta_rule_gates", self.element(), items);
        let bindings = vec![scratch.bind(&[Gates]), self.inputs.bind_gates()];
        self.dispatch(rec, kernel, bindings, true, grid);
    }

    /// The gates of all chunks, their inverses and scores, what each token writes, and all states.
    fn states(&self, rec: &mut Recorder, scratch: &Scratch, final_state: Option<Binding>) {
        self.gates(rec, scratch);
        let (kernel, grid) = self.by_chunk("gated_delta_rule_prepare", self.part.heads, CHUNK / 4, 1);
        let held = scratch.bind(&[Gates, Inverse, Scores]);
        self.dispatch(rec, kernel, vec![held, self.inputs.bind_qk()], true, grid);
        let (kernel, grid) = self.by_state("gated_delta_rule_states");
        let kernel = kernel.condition(Condition::FinalState, final_state.is_some());
        let held = scratch.bind(&[Gates, Inverse, Written, States]);
        let mut bindings = vec![held, self.inputs.bind_qk(), self.inputs.bind_v()];
        bindings.extend(final_state);
        self.dispatch(rec, kernel, bindings, false, grid);
    }

    /// The same for software adapters, which need neither inverses nor scores.
    fn written(&self, rec: &mut Recorder, scratch: &Scratch) {
        self.gates(rec, scratch);
        let (kernel, grid) = self.walk("gated_delta_rule_written");
        let held = scratch.bind(&[Written, States]);
        let bindings = vec![held, self.inputs.bind_qk(), self.inputs.bind_v(), self.inputs.bind_gates()];
        self.dispatch(rec, kernel, bindings, true, grid);
    }

    /// All gradients of a segment whose states are known, and those of its states.
    fn backward(&self, rec: &mut Recorder, scratch: &Scratch, dout: Tensor, gradients: &DeltaInputs) {
        let (shape, inputs, element) = (self.shape, self.inputs, self.element());
        let dout = dout.bind_with_offset("dout", element);
        let is_software = rec.capabilities().tier == Tier::Software;
        if is_software {
            let (kernel, grid) = self.walk("gated_delta_rule_walk_backward");
            let held = scratch.bind(&[Dwritten, Dstates]);
            self.dispatch(rec, kernel, vec![held, inputs.bind_qk(), dout, inputs.bind_gates()], true, grid);
        } else {
            let (kernel, grid) = self.by_state("gated_delta_rule_states_backward");
            let kernel = kernel.condition(Condition::Gradient, true);
            let held = scratch.bind(&[Gates, Inverse, Scores, Dwritten, Dstates]);
            self.dispatch(rec, kernel, vec![held, inputs.bind_qk(), dout], false, grid);
        }
        let of_chunks = |entry, heads, columns, blocks| {
            let (kernel, grid) = match is_software {
                true => self.by_tile(entry, heads, columns, blocks),
                false => self.by_chunk(entry, heads, columns, blocks),
            };
            (kernel.condition(Condition::Gradient, true), grid)
        };
        let (kernel, grid) = of_chunks("gated_delta_rule_pairs", self.part.heads, CHUNK / 4, 1);
        let dv = gradients.v.bind_with_offset("dv", element);
        let held = scratch.bind(&[Gates, Inverse, Scores, Written, Dwritten]);
        self.dispatch(rec, kernel, vec![held, inputs.bind_qk(), dout, dv], true, grid);
        let heads = self.part.heads / shape.group();
        let columns = self.params.block;
        // Once for dq and once for dk.
        let blocks = 2 * (shape.key_dim / 4).div_ceil(columns);
        let (kernel, grid) = of_chunks("gated_delta_rule_gradients", heads, columns, blocks);
        let dqk = gradients.qk.bind_with_offset("dqk", element);
        let held = scratch.bind(&[Gates, Inverse, Scores, Written, States, Dwritten, Dstates, Dots]);
        self.dispatch(rec, kernel, vec![held, inputs.bind_qk(), dout, dqk], false, grid);
        self.gate_gradients(rec, scratch, gradients.gates);
    }

    fn gate_gradients(&self, rec: &mut Recorder, scratch: &Scratch, gradient: Tensor) {
        let file = "gated_delta_rule/gates";
        let rows = self.all_chunks() * self.part.heads;
        let (kernel, grid) = per_row(rec, file, "gated_delta_rule_products", self.element(), rows);
        let held = scratch.bind(&[States, Dstates, Products]);
        self.dispatch(rec, kernel, vec![held], false, grid);
        let items = u64::from(self.all_chunks() * CHUNK) * u64::from(self.params.gate_columns);
        let (kernel, grid) = per_item(file, "gated_delta_rule_gates_backward", self.element(), items);
        let held = scratch.bind(&[Dwritten, Dots, Products]);
        let bindings = vec![held, self.inputs.bind_v(), gradient.bind_with_offset("dgates", Element::F32)];
        let params = Params {
            gate_offset: 4 * gradient.offset4() + self.part.first_head,
            gate_stride: gradient.stride,
            ..self.params
        };
        Self { params, ..*self }.dispatch(rec, kernel, bindings, true, grid);
    }
}
