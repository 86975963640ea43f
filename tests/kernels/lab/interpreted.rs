//! Executes the kernels of a case on the CPU, where each race, each access past an end and each barrier that not all
//! invocations reach is found. Whether a missing barrier would be found is tried, too.

use super::GUARD;
use gristmill::device::Job;
use gristmill::kernels::{Access, Capabilities, Composed, Condition, Kernel, Matrices, Tier, compose};
use gristmill::record::{BufferId, Dispatch, Recorder, Recording, Tensor};
use interpreter::{Bound, Launch, Report, barriers, without_barrier};
use naga::Module;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// The buffers of a case, each between guard zones, as its kernels leave them.
#[derive(Clone)]
pub struct Interpreted {
    buffers: Vec<Vec<u8>>,
    /// How many of them are persistent; transient ones follow.
    persistent: usize,
}

impl Interpreted {
    /// The buffers of a job before its first kernel. Transient ones are NaN.
    fn before(job: &mut Job, recording: &Recording) -> Self {
        let guarded = |bytes: &[u8]| {
            let guard = [0xff; GUARD as usize];
            [&guard, bytes, &guard].concat()
        };
        let persistents = job.persistents().buffers();
        let mut buffers: Vec<Vec<u8>> =
            persistents.iter().map(|(_, bytes)| guarded(&vec![0; *bytes as usize])).collect();
        for (id, bytes) in job.contents() {
            buffers[id.0 as usize][GUARD as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        let persistent = buffers.len();
        let transients = recording.transients.iter();
        buffers.extend(transients.map(|transient| guarded(&vec![0xff; transient.bytes as usize])));
        Self { buffers, persistent }
    }

    fn index(&self, buffer: BufferId) -> usize {
        match buffer {
            BufferId::Persistent(id) => id.0 as usize,
            BufferId::Transient(id) => self.persistent + id.0 as usize,
        }
    }

    /// The bytes of a tensor with the guard zones around it.
    pub fn bytes_around(&self, tensor: &Tensor) -> Vec<u8> {
        let bytes = &self.buffers[self.index(tensor.buffer)];
        bytes[tensor.offset as usize..][..(tensor.bytes() + 2 * GUARD) as usize].to_vec()
    }

    /// Executes a dispatch, by the module that was composed for it or an amended one.
    fn launch(
        &mut self,
        dispatch: &Dispatch,
        composed: &Composed,
        module: &Module,
        subgroup: usize,
    ) -> Report {
        let bindings = composed.variables.iter().map(|variable| {
            if variable.access == Access::Uniform {
                return Bound {
                    variable: variable.handle,
                    buffer: self.buffers.len(),
                    range: 0..dispatch.params.len(),
                };
            }
            let binding = dispatch.binding_of(variable).unwrap_or_else(|e| panic!("{e}"));
            let start = (GUARD + binding.offset) as usize;
            let range = start..start + binding.bytes as usize;
            Bound { variable: variable.handle, buffer: self.index(binding.buffer), range }
        });
        let bindings: Vec<Bound> = bindings.collect();
        let launch = Launch {
            module,
            info: &composed.info,
            source: &composed.wgsl,
            entry: dispatch.kernel.entry,
            grid: self.grid(dispatch),
            subgroup,
            bindings: &bindings,
        };
        self.buffers.push(dispatch.params.clone());
        let report = launch.run(&mut self.buffers);
        self.buffers.pop();
        report
    }

    /// The workgroups of a dispatch, which may be in a buffer.
    fn grid(&self, dispatch: &Dispatch) -> [u32; 3] {
        let Some(arguments) = dispatch.arguments else { return dispatch.grid };
        let bytes = &self.buffers[self.index(arguments.buffer)][(GUARD + arguments.offset) as usize..];
        let grid = [0, 4, 8].map(|at| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes")));
        let is_within = grid.iter().zip(dispatch.grid).all(|(side, bound)| *side <= bound);
        assert!(is_within, "{}: a grid of {grid:?} exceeds {:?}", dispatch.kernel, dispatch.grid);
        grid
    }
}

/// Executes the kernels of a job in order, and panics if one of them has a fault. Inside [`covering`] also without each
/// barrier whose absence has not been noticed yet.
pub fn execute(name: &str, mut job: Job, capabilities: Capabilities) -> Interpreted {
    let recorder = std::mem::replace(&mut job.rec, Recorder::new("executed", capabilities));
    let recording = recorder.finish();
    assert!(recording.exchanges.is_empty(), "the interpreter has no other ranks");
    let mut state = Interpreted::before(&mut job, &recording);
    for dispatch in &recording.dispatches {
        let (kernel, composed) = (&dispatch.kernel, composed(&dispatch.kernel));
        let before = is_covering().then(|| state.clone());
        let subgroup = subgroup_of(kernel, capabilities);
        let report = state.launch(dispatch, &composed, &composed.module, subgroup);
        assert!(report.faults.is_empty(), "{name}: {kernel}: {:#?}", report.faults);
        let Some(before) = before else { continue };
        cover(kernel, &barriers(&composed.module), &report, &|site| {
            let module = without_barrier(&composed.module, site);
            let report = before.clone().launch(dispatch, &composed, &module, subgroup);
            report.faults.iter().any(|fault| fault.starts_with("race of invocations"))
        });
    }
    state
}

/// The invocations of a subgroup: as kernels of the software tier assume; for kernels by matrices at least as many as
/// they are written for. Smaller ones would repeat each other's work and store the same values, which is a race by the
/// letter.
fn subgroup_of(kernel: &Kernel, capabilities: Capabilities) -> usize {
    let subgroup = match capabilities.matrices.filter(|_| kernel.is_by_matrices()) {
        Some(Matrices { side: 8, subgroup }) => subgroup.max(MATRICES_OF_8.subgroup),
        Some(Matrices { subgroup, .. }) => subgroup.max(Matrices::ASSUMED.subgroup),
        None if capabilities.tier == Tier::Software => capabilities.lanes,
        None => Matrices::ASSUMED.subgroup,
    };
    subgroup as usize
}

/// Those of llvmpipe, so that both sizes of subgroups are executed.
pub const MATRICES_OF_8: Matrices = Matrices { side: 8, subgroup: 8 };

/// A kernel, composed once per process.
fn composed(kernel: &Kernel) -> Arc<Composed> {
    static ALL: LazyLock<Mutex<HashMap<Kernel, Arc<Composed>>>> = LazyLock::new(Mutex::default);
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let new = || Arc::new(compose(kernel).unwrap_or_else(|e| panic!("{e}")));
    all.entry(kernel.clone()).or_insert_with(new).clone()
}

/// What has been executed inside [`covering`].
#[derive(Default)]
pub struct Coverage {
    /// File, entry point and conditions but for the element.
    pub entries: BTreeSet<(&'static str, &'static str, Vec<Condition>)>,
    /// Of each barrier that was passed: whether its absence was noticed.
    pub barriers: BTreeMap<Barrier, bool>,
    /// How many more cases of the test are looked at.
    left: usize,
}

impl Coverage {
    fn join(&mut self, other: Self) {
        self.entries.extend(other.entries);
        for (barrier, is_needed) in other.barriers {
            *self.barriers.entry(barrier).or_default() |= is_needed;
        }
    }
}

/// A barrier of a kernel.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Barrier {
    /// File and entry point of the kernel.
    pub file: &'static str,
    pub entry: &'static str,
    /// The function that has the barrier, and the barrier's number in it.
    pub function: String,
    pub number: usize,
}

thread_local!(static COVERAGE: RefCell<Option<Coverage>> = const { RefCell::new(None) });

/// A test, and how many of its first cases are looked at.
pub type FirstCases = (fn(), usize);

/// Runs lists of tests on the interpreter, a list at a time on each thread: of the first cases of each test, as many as
/// it says, those whose kernels have an entry point that no earlier case of the list had, or a barrier that none missed
/// when it was removed.
pub fn covering(lists: &[&[FirstCases]]) -> Coverage {
    let (next, all) = (Mutex::new(lists.iter()), Mutex::new(Coverage::default()));
    let take = || next.lock().expect("no list is taken in a panic").next();
    let of_thread = || {
        while let Some(tests) = take() {
            let own = covering_list(tests);
            all.lock().expect("nothing is joined in a panic").join(own);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(of_thread))));
    all.into_inner().expect("nothing was joined in a panic")
}

fn covering_list(tests: &[FirstCases]) -> Coverage {
    COVERAGE.set(Some(Coverage::default()));
    for (test, cases) in tests {
        COVERAGE.with_borrow_mut(|coverage| coverage.as_mut().expect("set above").left = *cases);
        test();
    }
    COVERAGE.take().expect("set above")
}

pub fn is_covering() -> bool {
    COVERAGE.with_borrow(Option::is_some)
}

/// Whether another case is looked at.
pub fn takes_case() -> bool {
    COVERAGE.with_borrow_mut(|coverage| {
        let Some(Coverage { left, .. }) = coverage else { return true };
        let takes = *left > 0;
        *left = left.saturating_sub(1);
        takes
    })
}

/// Whether a case with these kernels is to be executed.
pub fn is_due(kernels: &[Kernel]) -> bool {
    COVERAGE.with_borrow(|coverage| {
        let Some(Coverage { entries, barriers, .. }) = coverage else { return true };
        let is_open = |kernel: &Kernel| {
            let mut own =
                barriers.iter().filter(|(of, _)| (of.file, of.entry) == (kernel.file, kernel.entry));
            own.any(|(_, is_needed)| !is_needed)
        };
        kernels.iter().any(|kernel| !entries.contains(&entry_of(kernel)) || is_open(kernel))
    })
}

fn entry_of(kernel: &Kernel) -> (&'static str, &'static str, Vec<Condition>) {
    let element = Condition::from(kernel.element);
    (kernel.file, kernel.entry, kernel.conditions().filter(|condition| *condition != element).collect())
}

/// Notes what a kernel did, and removes the barriers that it passed, one by one; `is_missed` says whether that is
/// noticed.
fn cover(
    kernel: &Kernel,
    barriers: &BTreeMap<u32, (String, usize)>,
    report: &Report,
    is_missed: &dyn Fn(u32) -> bool,
) {
    COVERAGE.with_borrow_mut(|coverage| {
        let coverage = coverage.as_mut().expect("inside `covering`");
        coverage.entries.insert(entry_of(kernel));
        for site in &report.barriers {
            let (function, number) = &barriers[site];
            let (file, entry) = (kernel.file, kernel.entry);
            let barrier = Barrier { file, entry, function: function.clone(), number: *number };
            let is_needed = coverage.barriers.entry(barrier).or_default();
            *is_needed |= *is_needed || is_missed(*site);
        }
    });
}
