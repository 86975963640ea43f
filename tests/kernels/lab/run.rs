//! Runs a case on the device and compares what comes out.

use super::case::{Case, Computed, Expectation, Want};
use super::interpreted::{self, MATRICES_OF_8, execute, is_covering};
use super::{GUARD, unpadded};
use gristmill::device::{Gpu, GpuOptions, Guard};
use gristmill::element::Element;
use gristmill::kernels::{Capabilities, Condition, Kernel, Matrices, Tier, Units};
use gristmill::wgpu;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

/// Runs a case on every tier, as [`check_tier`] does. Which tier comes first depends on the test, since one runs the
/// first case in any case (see [`is_worth_compiling`]).
pub fn check(name: &str, build: impl Fn(&mut Case)) {
    let cases = Cases::of(&build);
    let mut tiers = Tier::ALL;
    if test_name().len() % 2 == 1 {
        tiers.swap(0, 1);
    }
    tiers.into_iter().for_each(|tier| cases.check_tier(name, tier));
}

/// Cargo names a test's thread for it.
fn test_name() -> String {
    std::thread::current().name().unwrap_or_default().to_string()
}

/// Runs a case on one tier, unchecked and checked; if its kernels share loads between lanes, also without sharing. If
/// its kernels depend on how different addresses are loaded, also with the others. If its kernels convert f16 by the
/// adapter's own instructions, all of that also with packed halves; if they store f16, also with halves that are
/// widened in integers.
///
/// Unchecked is how kernels train, so every case runs like that. In the other ways it runs where [`is_due`] says so.
///
/// On tier `matrix` it runs if it has kernels by matrices, on adapters that have some: everything else is that of
/// `portable`.
///
/// What a test builds is called through `dyn`, so that the compiler makes one copy of this module's functions.
pub fn check_tier(name: &str, tier: Tier, build: &dyn Fn(&mut Case)) {
    Cases::of(build).check_tier(name, tier);
}

/// Runs a case on the tiers of GPUs, its products divided for so many compute units: with few of them small products
/// have large tiles.
pub fn check_units(name: &str, units: u32, build: &dyn Fn(&mut Case)) {
    let name = format!("{name} for {units} units");
    let few = |capabilities: Capabilities| capabilities.with_units(Units { count: units, ..Units::ASSUMED });
    let cases = Cases::of(build);
    [Tier::Portable, Tier::Matrix].into_iter().for_each(|tier| cases.check_on(&name, tier, &few));
}

/// Runs a case on tier `matrix` for so many compute units, with its kernels written for subgroups as large as
/// `subgroup` says of the side of the adapter's matrices. Factors of f32 are split.
pub fn check_matrices(name: &str, units: u32, subgroup: &dyn Fn(u32) -> u32, build: &dyn Fn(&mut Case)) {
    let assume = |capabilities: Capabilities| {
        let Matrices { side, .. } = capabilities.matrices.expect("matrices");
        let matrices = Matrices { side, subgroup: subgroup(side) };
        let units = Units { count: units, ..Units::ASSUMED };
        capabilities.with_units(units).with_matrices(matrices).with_split_f32(true)
    };
    Cases::of(build).check_on(name, Tier::Matrix, &assume);
}

/// A case for every device, tier and way to compile.
struct Cases<'a> {
    build: &'a dyn Fn(&mut Case),
    computed: Computed,
    /// The kernels for each device that was asked about: a case takes longer to build than to look up.
    kernels: RefCell<Vec<(Capabilities, Rc<[Kernel]>)>>,
}

impl<'a> Cases<'a> {
    fn of(build: &'a dyn Fn(&mut Case)) -> Self {
        Self { build, computed: Computed::default(), kernels: RefCell::default() }
    }

    fn check_tier(&self, name: &str, tier: Tier) {
        self.check_on(name, tier, &|capabilities| capabilities.with_units(Units::ASSUMED));
    }

    fn check_on(&self, name: &str, tier: Tier, change: &dyn Fn(Capabilities) -> Capabilities) {
        if !interpreted::takes_case() {
            return;
        }
        let name = format!("{name} [{}]", tier.name());
        if tier == Tier::Matrix
            && !self.kernels(change(Capabilities::matrix())).iter().any(Kernel::is_by_matrices)
        {
            return;
        }
        if is_interpreted() {
            return self.interpret(&name, tier, change);
        }
        let all = devices();
        let devices = match tier {
            Tier::Matrix if !has_matrices(&all.others.checked) => {
                return println!("{name}: not run without matrices");
            }
            Tier::Matrix => &*all.with_matrices,
            _ => &*all.others,
        };
        let capabilities = change(devices.checked.capabilities().with_tier(tier));
        if !is_worth_compiling(tier, &self.kernels(capabilities)) {
            return println!("{name}: on GPUs, and with GRISTMILL_LONG");
        }
        let outputs = self.check_capabilities(&name, devices, capabilities);
        if uses(Condition::NativeF16, &self.kernels(capabilities)) {
            let (name, capabilities) = (format!("{name} packed"), capabilities.with_native_f16(false));
            if is_due("packed", &self.kernels(capabilities)) {
                let packed = self.check_capabilities(&name, devices, capabilities);
                let is_equal = packed == outputs || !compiles_as_written();
                assert!(is_equal, "{name}: the adapter's conversions of f16 change the result");
            }
        }
        let (alone, other) =
            (format!("{name} other loads"), Capabilities { gathers: !capabilities.gathers, ..capabilities });
        let loading = self.kernels(other);
        let is_possible = has_u64() || !uses(Condition::Wide, &loading);
        if loading != self.kernels(capabilities) && is_possible && is_due("other loads", &loading) {
            self.check_capabilities(&alone, devices, other);
        }
        let (name, capabilities) =
            (format!("{name} widened in integers"), capabilities.with_integer_widening(true));
        let widening = self.kernels(capabilities);
        if uses(Condition::F16, &widening) && is_due("widened", &widening) {
            let widened = self.run(&name, &devices.unchecked, capabilities);
            assert!(widened == outputs || !compiles_as_written(), "{name}: the result changes");
        }
    }

    /// Runs a case unchecked, checked, and without lanes, and returns its outputs.
    fn check_capabilities(&self, name: &str, devices: &Devices, capabilities: Capabilities) -> Vec<Vec<u8>> {
        let kernels = self.kernels(capabilities);
        let unchecked = self.run(name, &devices.unchecked, capabilities);
        if is_due("checked", &kernels) {
            let checked = self.run(name, &devices.checked, capabilities);
            // Elsewhere the two compilations may round differently (see `bits`); each is within the allowed error of
            // the reference.
            let is_equal = checked == unchecked || !compiles_as_written();
            assert!(is_equal, "{name}: checked and unchecked shaders differ");
        }
        // Only software adapters have lanes.
        if uses(Condition::Shuffled, &kernels) && is_due("without lanes", &kernels) {
            let name = format!("{name} without lanes");
            let alone = self.run(&name, &devices.unchecked, Capabilities { lanes: 1, ..capabilities });
            // What gathers has lanes alone; without them products of few rows add in another order.
            let is_equal = alone == unchecked || uses(Condition::Wide, &kernels);
            assert!(is_equal, "{name}: sharing loads between lanes changes the result");
        }
        unchecked
    }

    /// The case for a device of these capabilities.
    fn case(&self, capabilities: Capabilities) -> Case {
        let mut case = Case::new(capabilities, &self.computed);
        (self.build)(&mut case);
        case
    }

    /// The kernels of a case.
    fn kernels(&self, capabilities: Capabilities) -> Rc<[Kernel]> {
        let known = self.kernels.borrow().iter().find(|(of, _)| *of == capabilities).cloned();
        if let Some((_, kernels)) = known {
            return kernels;
        }
        let dispatches = self.case(capabilities).rec.finish().dispatches;
        let kernels: Rc<[Kernel]> = dispatches.into_iter().map(|dispatch| dispatch.kernel).collect();
        self.kernels.borrow_mut().push((capabilities, kernels.clone()));
        kernels
    }

    fn run(&self, name: &str, gpu: &Gpu, capabilities: Capabilities) -> Vec<Vec<u8>> {
        let (job, expectations) = self.case(capabilities).finish();
        let prepared = pollster::block_on(async {
            let prepared = gpu.prepare_job(job, Guard::Nan).await?;
            prepared.replay().await?;
            gpu.wait().await?;
            Ok::<_, gristmill::error::Error>(prepared)
        });
        let prepared = prepared.unwrap_or_else(|e| panic!("{name}: {e}"));
        let read = |expectation: &Expectation| {
            let around = pollster::block_on(prepared.bytes_around(&expectation.tensor, GUARD));
            around.unwrap_or_else(|e| panic!("{name} {}: {e}", expectation.label))
        };
        expectations.iter().map(|expectation| compare(name, expectation, &read(expectation))).collect()
    }

    /// Executes a case on the CPU, for each adapter of the tier whose kernels differ.
    fn interpret(&self, name: &str, tier: Tier, change: &dyn Fn(Capabilities) -> Capabilities) {
        IS_SOFTWARE.get_or_init(|| true);
        let adapters = match tier {
            Tier::Software => vec![Capabilities::software()],
            Tier::Portable => vec![Capabilities::portable()],
            Tier::Matrix => vec![Capabilities::matrix(), Capabilities::matrix().with_matrices(MATRICES_OF_8)],
        };
        let mut done = HashSet::new();
        for adapter in adapters.into_iter().map(change) {
            let all = [
                adapter,
                Capabilities { gathers: true, ..adapter },
                Capabilities { lanes: 1, ..adapter },
                adapter.with_native_f16(true),
                adapter.with_integer_widening(true),
            ];
            // Only on software adapters entry points depend on more than the tier.
            let count = if !is_covering() {
                all.len()
            } else if tier == Tier::Software {
                2
            } else {
                1
            };
            for capabilities in all.into_iter().take(count) {
                let kernels = self.kernels(capabilities);
                if interpreted::is_due(&kernels) && done.insert(kernels) {
                    let name = format!("{name}: {capabilities}");
                    let (job, expectations) = self.case(capabilities).finish();
                    let state = execute(&name, job, capabilities);
                    for expectation in &expectations {
                        compare(&name, expectation, &state.bytes_around(&expectation.tensor));
                    }
                }
            }
        }
    }
}

/// Whether cases are executed on the CPU instead of an adapter.
fn is_interpreted() -> bool {
    is_covering() || std::env::var_os("GRISTMILL_INTERPRET").is_some()
}

/// Whether the adapter computes with 64-bit integers.
fn has_u64() -> bool {
    static HAS: LazyLock<bool> = LazyLock::new(|| {
        let instance = wgpu::Instance::default();
        let adapter = pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default()))
            .expect("an adapter");
        adapter.features().contains(wgpu::Features::SHADER_INT64)
    });
    *HAS
}

/// Whether WGSL can write a shape of matrices that the adapter lists. Then tier `matrix` must run.
fn has_matrices(gpu: &Gpu) -> bool {
    gpu.report().matrices.iter().any(|shape| [[8; 3], [16; 3]].contains(shape))
}

/// Whether one of `kernels` is a variant under `condition`.
fn uses(condition: Condition, kernels: &[Kernel]) -> bool {
    kernels.iter().any(|kernel| kernel.conditions().any(|enabled| enabled == condition))
}

/// Whether a case of this test is run on `tier`. Compiling kernels takes a software adapter most of the tests' time,
/// so there it is if it is the test's first on any tier, if it has an entry point that no test has run yet, or a
/// condition, an element's included, with which none has run that entry point, or if the test has run all its kernels.
/// Other cases combine the same in another way or have other constants. Elsewhere, on tier `matrix`, which no
/// distribution's software has, and with `GRISTMILL_LONG`, all are run.
fn is_worth_compiling(tier: Tier, kernels: &[Kernel]) -> bool {
    /// What tests have run.
    #[derive(Default)]
    struct All {
        /// `None` stands for the entry point itself.
        conditions: HashSet<(Tier, &'static str, &'static str, Option<Condition>)>,
        by_test: HashMap<String, HashSet<Kernel>>,
    }
    static ALL: LazyLock<Mutex<All>> = LazyLock::new(Mutex::default);
    if tier == Tier::Matrix || takes_all() {
        return true;
    }
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let All { conditions, by_test } = &mut *all;
    let compiled = by_test.entry(test_name()).or_default();
    let own: HashSet<_> = kernels
        .iter()
        .flat_map(|kernel| {
            let conditions = kernel.conditions().map(Some).chain([None]);
            conditions.map(move |condition| (tier, kernel.file, kernel.entry, condition))
        })
        .collect();
    let is_known = kernels.iter().all(|kernel| compiled.contains(kernel));
    let is_taken = compiled.is_empty() || is_known || !own.is_subset(conditions);
    if is_taken {
        compiled.extend(kernels.iter().cloned());
        conditions.extend(own);
    }
    is_taken
}

/// Whether this case runs `kernels` in one more `way`. Compiling them takes a software adapter minutes, so there only if
/// no case of any test has run one of these entry points in this way yet; elsewhere, and with `GRISTMILL_LONG`, always.
fn is_due(way: &'static str, kernels: &[Kernel]) -> bool {
    type Entry = (&'static str, &'static str, &'static str);
    static DONE: Mutex<BTreeSet<Entry>> = Mutex::new(BTreeSet::new());
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = |kernel: &Kernel| (way, kernel.file, kernel.entry);
    let new = kernels.iter().filter(|kernel| done.insert(entry(kernel))).count();
    new > 0 || takes_all()
}

/// Whether every case of every test runs, whatever its kernels take to compile.
pub fn takes_all() -> bool {
    is_interpreted() || !compiles_as_written() || std::env::var_os("GRISTMILL_LONG").is_some()
}

/// Whether the adapter's compiler keeps every operation of a shader as it is written, so that two shaders with the same
/// formula give the same bits. Software adapters do: the tests' results on llvmpipe and SwiftShader.
pub(super) fn compiles_as_written() -> bool {
    *IS_SOFTWARE.get().expect("cases are built for an open device")
}

static IS_SOFTWARE: OnceLock<bool> = OnceLock::new();

/// A device with the shaders' run-time checks, which gets them as Metal and DX12 do; and one without, which on Vulkan
/// has none of the driver either.
struct Devices {
    checked: Gpu,
    unchecked: Gpu,
}

impl Devices {
    /// Those of an adapter, for its own tier or for `tier`.
    fn open(tier: Option<Tier>) -> Self {
        let [checked, unchecked] = [true, false].map(|checked_shaders| {
            let options = GpuOptions {
                checked_shaders,
                as_on_metal: Some(checked_shaders),
                unchecked_buffers: !checked_shaders,
                // A software driver takes minutes to compile kernels by matrices, which is no hang.
                hang_timeout: Some(Duration::from_secs(7200)),
                tier,
                ..GpuOptions::default()
            };
            let mut gpu = pollster::block_on(Gpu::request(&options)).unwrap_or_else(|e| panic!("{e}"));
            pollster::block_on(gpu.try_native_f16());
            gpu
        });
        IS_SOFTWARE.get_or_init(|| checked.report().is_software);
        Self { checked, unchecked }
    }
}

/// The devices of a thread of tests, each opened when it is needed.
struct Opened {
    others: LazyLock<Devices>,
    with_matrices: LazyLock<Devices>,
}

impl Opened {
    const fn none() -> Self {
        Self {
            others: LazyLock::new(|| Devices::open(None)),
            with_matrices: LazyLock::new(|| Devices::open(Some(Tier::Matrix))),
        }
    }
}

/// Devices that nobody uses, opened as often as tests run at once, at most four times. A software adapter compiles
/// kernels on one thread per device, so tests that shared devices would leave cores idle, and devices for each test
/// would compile every kernel again: a thread comes back to those it had last.
fn devices() -> MutexGuard<'static, Opened> {
    static ALL: [Mutex<Opened>; 4] = [const { Mutex::new(Opened::none()) }; 4];
    thread_local!(static LAST: Cell<usize> = const { Cell::new(0) });
    let last = LAST.get();
    let free = (last..).take(ALL.len()).map(|i| i % ALL.len()).find_map(|i| match ALL[i].try_lock() {
        Ok(devices) => Some((i, devices)),
        Err(TryLockError::Poisoned(poisoned)) => Some((i, poisoned.into_inner())),
        Err(TryLockError::WouldBlock) => None,
    });
    let (index, devices) =
        free.unwrap_or_else(|| (last, ALL[last].lock().unwrap_or_else(PoisonError::into_inner)));
    LAST.set(index);
    devices
}

/// Compares a tensor, with the guard zones `around` it, with what is expected. Returns its bytes.
fn compare(name: &str, expectation: &Expectation, around: &[u8]) -> Vec<u8> {
    let Expectation { label, tensor, want } = expectation;
    let (before, rest) = around.split_at(GUARD as usize);
    let (bytes, after) = rest.split_at(tensor.bytes() as usize);
    assert!(before.iter().chain(after).all(|&b| b == 0xff), "{name} {label}: wrote outside its tensor");
    let (want, columns, allowed, sizes, has_pads) = match want {
        Want::Near { values, columns, allowed, sizes, has_pads } => {
            (values, columns, allowed, sizes, has_pads)
        }
        Want::Words(look) => {
            let words: Vec<u32> =
                bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            look(&words);
            return with_one_nan(tensor.element, bytes);
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
    for (i, ((g, w), size)) in got.iter().zip(want).zip(sizes).enumerate() {
        let share = (g - w).abs() / (allowed * size + f64::MIN_POSITIVE);
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
    with_one_nan(tensor.element, bytes)
}

/// What two compilations of a case must have in common: its values with one NaN for all, since which one an operation
/// returns, the compiler decides.
fn with_one_nan(element: Element, bytes: &[u8]) -> Vec<u8> {
    match element {
        Element::F32 | Element::F16 | Element::Bf16 => {
            let one_nan = |x: f32| if x.is_nan() { f32::NAN } else { x };
            element.decode(bytes).into_iter().flat_map(|x| one_nan(x).to_le_bytes()).collect()
        }
        Element::U32 | Element::Nf4 | Element::Int8 => bytes.to_vec(),
    }
}
