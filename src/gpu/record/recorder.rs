//! Builds a recording, op by op.

mod exchange;
mod measure;
mod repeat;
mod rewrite;

use super::exchange::{Collective, Exchange};
use super::params::Params;
use super::recording::{Dispatch, GridArguments, Recording, Transient};
use super::tensor::{Binding, BufferId, Tensor, TransientId};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::kernels::{Capabilities, Kernel};
use std::collections::HashSet;

pub use repeat::Position;

/// Builds a [`Recording`].
///
/// # Examples
///
/// It needs no adapter: it produces plain data.
///
/// ```
/// use gristmill::element::Element::F32;
/// use gristmill::kernels::Capabilities;
/// use gristmill::ops::gelu::{Gelu, gelu};
/// use gristmill::record::{Persistents, Recorder};
///
/// let mut persistents = Persistents::new(); // what outlives a replay
/// let [x, y] = ["x", "y"].map(|label| persistents.tensor(label, 8, 64, F32));
/// let mut rec = Recorder::new("twice", Capabilities::software());
/// let between = rec.tensor("between", 8, 64, F32); // has a place while it is needed
/// rec.scope("layers", |rec| {
///     gelu(rec, x, between, Gelu::Tanh);
///     gelu(rec, between, y, Gelu::Tanh);
/// });
/// assert_eq!(rec.finish().dispatches.len(), 2);
/// ```
pub struct Recorder {
    name: &'static str,
    capabilities: Capabilities,
    scopes: Vec<String>,
    dispatches: Vec<Dispatch>,
    exchanges: Vec<Exchange>,
    labels: Vec<(String, u64)>,
    kept: HashSet<TransientId>,
    cut: Option<usize>,
    /// A message about the first tensor, binding or grid that is too large.
    misfit: Option<String>,
}

impl Recorder {
    /// An empty recording for adapters with at least `capabilities`.
    pub fn new(name: &'static str, capabilities: Capabilities) -> Self {
        Self {
            name,
            capabilities,
            scopes: Vec::new(),
            dispatches: Vec::new(),
            exchanges: Vec::new(),
            labels: Vec::new(),
            kept: HashSet::new(),
            cut: None,
            misfit: None,
        }
    }

    /// The capabilities that kernel planning may rely on.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Runs `body` with `name` appended to the path of everything that it records.
    pub fn scope<T>(&mut self, name: impl Into<String>, body: impl FnOnce(&mut Self) -> T) -> T {
        self.enter(name);
        let result = body(self);
        self.leave();
        result
    }

    /// Appends `name` to the path until [`leave`](Self::leave).
    pub fn enter(&mut self, name: impl Into<String>) {
        self.scopes.push(name.into());
    }

    /// Undoes the last [`enter`](Self::enter).
    pub fn leave(&mut self) {
        self.scopes.pop();
    }

    /// The path of the op being recorded: `layers.3.feed_forward`.
    pub fn path(&self) -> String {
        self.scopes.join(".")
    }

    /// Replaces the whole path and returns the old one. A backward pass is recorded under the path of its forward pass.
    pub fn set_path(&mut self, scopes: Vec<String>) -> Vec<String> {
        std::mem::replace(&mut self.scopes, scopes)
    }

    /// The components of the path.
    pub fn scopes(&self) -> &[String] {
        &self.scopes
    }

    /// A new transient tensor (rows, cols). Its contents are undefined until an op writes it. If it is larger than one
    /// binding can cover, [`try_finish`](Self::try_finish) returns the error.
    pub fn tensor(&mut self, label: &str, rows: u32, cols: u32, element: Element) -> Tensor {
        let bytes = element.bytes_of(rows as u64 * element.stride(cols) as u64);
        let id = TransientId(self.labels.len() as u32);
        let path = self.path();
        let label = if path.is_empty() { label.to_string() } else { format!("{path}.{label}") };
        let limit = self.capabilities.limits.binding_bytes;
        if bytes > limit {
            self.refuse(format!(
                "{label} ({rows} x {cols}) takes {} MiB, over the adapter's largest binding of {} MiB",
                bytes.div_ceil(1 << 20),
                limit >> 20
            ));
        }
        self.labels.push((label, bytes));
        Tensor::new(BufferId::Transient(id), 0, rows, cols, element)
    }

    /// Keeps a transient tensor alive to the end of the recording, so that it can be read back afterwards.
    pub fn keep(&mut self, tensor: Tensor) {
        if let BufferId::Transient(id) = tensor.buffer {
            self.kept.insert(id);
        }
    }

    /// Starts the second half of the recording, which is replayed later than the first.
    pub fn cut(&mut self) {
        self.cut = Some(self.dispatches.len());
    }

    /// Appends a dispatch. `bindings` are all variables that the kernel's entry point uses, in any order, except
    /// `params`, the struct at binding 0; `grid` counts workgroups.
    #[track_caller]
    pub fn dispatch<P: Params>(&mut self, kernel: Kernel, bindings: &[Binding], params: &P, grid: [u32; 3]) {
        self.append(kernel, bindings, params, grid, None);
    }

    /// Appends an indirect dispatch: the device reads its grid from the first three integers of `arguments`, which must
    /// not exceed those of `bound`. If any of them is 0, nothing runs. The kernel must not read `num_workgroups`, which
    /// DX12 does not provide in indirect dispatches, and must not bind the buffer of `arguments`.
    #[track_caller]
    pub fn dispatch_indirect<P: Params>(
        &mut self,
        kernel: Kernel,
        bindings: &[Binding],
        params: &P,
        arguments: Tensor,
        bound: [u32; 3],
    ) {
        assert!(
            arguments.rows == 1 && arguments.cols >= 3 && arguments.element == Element::U32,
            "indirect arguments are one row of at least three u32"
        );
        let arguments = GridArguments { buffer: arguments.buffer, offset: arguments.offset };
        let apart = bindings.iter().all(|binding| binding.buffer != arguments.buffer);
        assert!(apart, "{kernel} binds the buffer of its indirect arguments");
        self.append(kernel, bindings, params, bound, Some(arguments));
    }

    #[track_caller]
    fn append<P: Params>(
        &mut self,
        kernel: Kernel,
        bindings: &[Binding],
        params: &P,
        grid: [u32; 3],
        arguments: Option<GridArguments>,
    ) {
        assert!(
            bindings.len() <= kernel.most_storage_buffers() as usize,
            "{kernel} binds {} storage buffers; devices guarantee {}",
            bindings.len(),
            kernel.most_storage_buffers()
        );
        for (number, Binding { variable, .. }) in bindings.iter().enumerate() {
            let is_bound = bindings[..number].iter().any(|earlier| earlier.variable == *variable);
            assert!(!is_bound, "{kernel} binds `{variable}` twice");
        }
        assert!(!grid.contains(&0), "{kernel} has the empty grid {grid:?}");
        if grid.iter().any(|side| *side > MAX_GRID_SIDE) {
            let path = self.path();
            self.refuse(format!(
                "{path}: a grid of {grid:?} workgroups, of which an adapter runs {MAX_GRID_SIDE} in a dimension ({kernel})"
            ));
        }
        let limit = self.capabilities.limits.binding_bytes;
        if let Some(binding) = bindings.iter().find(|binding| binding.bytes > limit) {
            let (path, bytes) = (self.path(), binding.bytes.div_ceil(1 << 20));
            self.refuse(format!(
                "{path}: binding `{}` of {kernel} takes {bytes} MiB, over the adapter's largest of {} MiB",
                binding.variable,
                limit >> 20
            ));
        }
        let kernel = kernel.converting(self.capabilities);
        let params = bytemuck::bytes_of(params).to_vec();
        self.dispatches.push(Dispatch {
            path: self.path(),
            kernel,
            bindings: bindings.to_vec(),
            params,
            fields: P::FIELDS,
            grid,
            arguments,
        });
    }

    /// The finished recording, with the lifetime of every transient.
    ///
    /// # Panics
    /// If [`try_finish`](Self::try_finish) returns an error.
    #[track_caller]
    pub fn finish(self) -> Recording {
        match self.try_finish() {
            Ok(recording) => recording,
            Err(error) => panic!("{error}"),
        }
    }

    /// The finished recording, for ops whose sizes a user chose.
    ///
    /// # Errors
    /// A tensor or a binding over the limit of the capabilities, or a grid over WebGPU's limit: the first of them,
    /// named by its path.
    pub fn try_finish(mut self) -> Result<Recording> {
        if let Some(misfit) = self.misfit.take() {
            return Err(Error::Plan(misfit));
        }
        let exchanges = self.resolved_exchanges();
        let uses = lifetimes(self.labels.len(), &self.dispatches, &exchanges);
        let transients = self.labels.into_iter().zip(uses).enumerate();
        let transients = transients.map(|(id, ((label, bytes), (first, last)))| {
            let last = if self.kept.contains(&TransientId(id as u32)) { usize::MAX } else { last };
            Transient { label, bytes, first, last }
        });
        let transients = transients.collect();
        let (name, dispatches, cut) = (self.name, self.dispatches, self.cut);
        Ok(Recording { name, dispatches, exchanges, transients, cut })
    }

    /// Keeps the message about the first misfit. The ops that follow are still recorded: none of them can return an
    /// error, and [`try_finish`](Self::try_finish) refuses the whole recording.
    fn refuse(&mut self, misfit: String) {
        self.misfit.get_or_insert(misfit);
    }
}

/// The first and the last dispatch that may use each of `count` transient buffers; `usize::MAX` if none does.
fn lifetimes(count: usize, dispatches: &[Dispatch], exchanges: &[Exchange]) -> Vec<(usize, usize)> {
    let mut uses = vec![(usize::MAX, 0); count];
    let mut lives = |buffer: BufferId, from: usize, to: usize| {
        if let BufferId::Transient(id) = buffer {
            let (first, last) = &mut uses[id.0 as usize];
            *first = (*first).min(from);
            *last = (*last).max(to);
        }
    };
    for (index, dispatch) in dispatches.iter().enumerate() {
        dispatch.buffers().for_each(|buffer| lives(buffer, index, index));
    }
    for exchange in exchanges {
        // Sources are copied before dispatch `at`, possibly after the result of another exchange at this place has
        // arrived, since that may happen at any time from there on.
        let Exchange { at, needed, collective, .. } = exchange;
        let before = at.saturating_sub(1);
        // Rows sent to another stage are copied at once.
        let copied = if matches!(collective, Collective::Send { .. }) { before } else { *at };
        collective.sources().iter().for_each(|span| lives(span.buffer, before, copied));
        collective.results().iter().for_each(|span| lives(span.buffer, *at, *needed));
    }
    uses
}

/// Largest dimension of a grid: WebGPU's default, which no adapter exceeds.
const MAX_GRID_SIDE: u32 = 65535;

/// Folds a one-dimensional grid into two dimensions below WebGPU's limit; `lib/grid.wgsl` unfolds it. A grid that is
/// still too large is refused by the recorder, which can name the op.
#[track_caller]
pub fn fold_grid(workgroups: u64) -> [u32; 3] {
    const ROW: u64 = 32768;
    assert!(workgroups > 0, "a dispatch needs at least one workgroup");
    if workgroups <= ROW {
        return [workgroups as u32, 1, 1];
    }
    [ROW as u32, u32::try_from(workgroups.div_ceil(ROW)).unwrap_or(u32::MAX), 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::Group;
    use crate::record::{MemoryPlan, Span};

    crate::params! {
        struct Params {
            count: u32,
        }
    }

    /// Records a dispatch that uses `tensor`.
    fn touch(rec: &mut Recorder, tensor: Tensor) {
        let kernel = Kernel::new("zero", "zero", Element::F32);
        rec.dispatch(kernel, &[tensor.bind("y", Element::F32)], &Params { count: 1 }, [1; 3]);
    }

    /// The last use of one exchange's source comes before the first reader of the other's result, but that result may
    /// arrive before the source is copied.
    #[test]
    fn exchanges_at_one_place_share_no_memory() {
        let mut rec = Recorder::new("test", Capabilities::portable());
        let mut tensors = |label| [0; 3].map(|_| rec.tensor(label, 1, 64, Element::F32));
        let (sources, results) = (tensors("source"), tensors("result"));
        sources.iter().for_each(|source| touch(&mut rec, *source));
        for (source, result) in sources.iter().zip(&results) {
            let (addends, sums) = (vec![Span::of(source)], vec![Span::of(result)]);
            rec.exchange("sum", Collective::sum_into(addends, sums), &Group::all(2));
        }
        results.iter().for_each(|result| touch(&mut rec, *result));
        let recording = rec.finish();
        assert!(recording.exchanges.iter().all(|exchange| exchange.at == 3), "{:?}", recording.exchanges);
        let mut buffers = MemoryPlan::new(&[&recording]).assignments.remove(0);
        assert!(buffers.iter().all(Option::is_some), "{buffers:?}");
        buffers.sort_unstable();
        buffers.dedup();
        assert_eq!(buffers.len(), 6, "a buffer for each source and each result: {buffers:?}");
    }
}
