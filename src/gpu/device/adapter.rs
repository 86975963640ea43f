//! Adapter enumeration and selection.
//!
//! The ranks of a machine take the adapters of one kind in turns, from `context.device_id` on; a single adapter is
//! shared by all.

use super::options::GpuOptions;
use crate::error::{Error, Result};
use crate::kernels::Tier;

/// The backends in use. GLES is left out: its software adapter would be picked where Vulkan is merely not installed.
pub(super) const BACKENDS: wgpu::Backends =
    wgpu::Backends::VULKAN.union(wgpu::Backends::METAL).union(wgpu::Backends::DX12);

/// Properties of an adapter, for selection and reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterReport {
    /// Name, as reported by the driver.
    pub name: String,
    /// `Vulkan`, `Metal`, `Dx12`.
    pub backend: String,
    /// Driver name and version.
    pub driver: String,
    /// Whether this is a software adapter (llvmpipe, SwiftShader, WARP).
    pub is_software: bool,
    /// Largest range of a buffer that one binding can cover, in bytes.
    pub binding_bytes: u64,
    /// Largest buffer, in bytes.
    pub buffer_bytes: u64,
    /// Size of the largest heap of the device in bytes, where the backend reports it: on Vulkan.
    pub memory_bytes: Option<u64>,
    /// Whether the adapter uses the machine's memory, as integrated GPUs and software adapters do. The size of the heap
    /// that a driver then reports is only a share, which allocations may exceed.
    pub shares_memory: bool,
    /// Cooperative matrices of f16 with sums in f32 that the adapter lists: rows, columns and steps of a product.
    /// Intel's GPUs list shapes with unequal sides, which WGSL cannot express.
    pub matrices: Vec<[u32; 3]>,
}

impl AdapterReport {
    pub(super) fn of(adapter: &wgpu::Adapter) -> Self {
        let report = Self::new(adapter.get_info(), &adapter.limits(), memory_bytes(adapter));
        Self { matrices: matrices(adapter), ..report }
    }

    /// The adapter of a device, with the limits that the device was opened with.
    pub(super) fn of_device(device: &wgpu::Device) -> Self {
        Self::new(device.adapter_info(), &device.limits(), None)
    }

    fn new(info: wgpu::AdapterInfo, limits: &wgpu::Limits, memory_bytes: Option<u64>) -> Self {
        Self {
            name: info.name,
            backend: format!("{:?}", info.backend),
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_string(),
            is_software: info.device_type == wgpu::DeviceType::Cpu,
            shares_memory: matches!(
                info.device_type,
                wgpu::DeviceType::Cpu | wgpu::DeviceType::IntegratedGpu
            ),
            binding_bytes: limits.max_storage_buffer_binding_size,
            buffer_bytes: limits.max_buffer_size,
            memory_bytes,
            matrices: Vec::new(),
        }
    }

    /// Side of the largest listed matrices that WGSL can express, if there are any.
    pub(super) fn matrix_side(&self) -> Option<u32> {
        [16, 8].into_iter().find(|side| self.matrices.contains(&[*side; 3]))
    }

    /// The listed matrix shapes, as a part of a sentence.
    pub fn matrix_shapes(&self) -> String {
        let names: Vec<String> = self.matrices.iter().map(|[m, n, k]| format!("{m}x{n}x{k}")).collect();
        match (names.is_empty(), self.matrix_side()) {
            (true, _) => "no cooperative matrices of f16 with sums in f32".into(),
            (false, Some(_)) => format!("matrices of {}", names.join(", ")),
            (false, None) => format!(
                "matrices of {}, of which WGSL can write none: only 8x8x8 and 16x16x16",
                names.join(", ")
            ),
        }
    }

    /// Whether this is llvmpipe from Mesa 26 on. Decided by the driver's name: a test of its speed would choose other
    /// kernels, and with them other sums, from run to run. (Mesa 22.3 and 25.0 load lane by lane.)
    pub(super) fn gathers(&self) -> bool {
        let version = self.driver.split_once("Mesa ").and_then(|(_, version)| version.split('.').next());
        let version = version.and_then(|major| major.parse::<u32>().ok());
        self.name.starts_with("llvmpipe") && version.is_some_and(|major| major >= 26)
    }

    /// Whether shuffles across `lanes` are worth their cost. Newer llvmpipes execute a shuffle across 16 lanes lane by
    /// lane, and load cheaply from an address that all lanes share.
    pub(super) fn shuffles_fast(&self, lanes: u32) -> bool {
        lanes < 16 || !self.gathers()
    }

    /// The default tier of this adapter, where no matrices are tried.
    pub fn preferred_tier(&self) -> Tier {
        if self.is_software { Tier::Software } else { Tier::Portable }
    }
}

impl std::fmt::Display for AdapterReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_software { "software adapter" } else { "GPU" };
        write!(
            f,
            "{} ({kind}, {}, {}, {} MiB per binding)",
            self.name,
            self.backend,
            self.driver,
            self.binding_bytes >> 20
        )
    }
}

/// The cooperative matrices of f16 with sums in f32 that `adapter` lists.
fn matrices(adapter: &wgpu::Adapter) -> Vec<[u32; 3]> {
    use wgpu::CooperativeScalarType as Type;
    let all = adapter.cooperative_matrix_properties().into_iter();
    let of_f16 = all.filter(|shape| shape.ab_type == Type::F16 && shape.cr_type == Type::F32);
    of_f16.map(|shape| [shape.m_size, shape.n_size, shape.k_size]).collect()
}

/// Fails if a limit of a device is below what the kernels use. WebGPU's default limits are enough.
pub(super) fn check_limits(name: &str, limits: &wgpu::Limits) -> Result<()> {
    let least = [
        ("max_storage_buffers_per_shader_stage", limits.max_storage_buffers_per_shader_stage, 8),
        ("max_uniform_buffers_per_shader_stage", limits.max_uniform_buffers_per_shader_stage, 1),
        ("max_bindings_per_bind_group", limits.max_bindings_per_bind_group, 9),
        ("max_compute_workgroup_storage_size", limits.max_compute_workgroup_storage_size, 16384),
        ("max_compute_invocations_per_workgroup", limits.max_compute_invocations_per_workgroup, 256),
        ("max_compute_workgroup_size_x", limits.max_compute_workgroup_size_x, 256),
        ("max_compute_workgroups_per_dimension", limits.max_compute_workgroups_per_dimension, 65535),
    ];
    match least.into_iter().find(|(_, given, needed)| given < needed) {
        None => Ok(()),
        Some((limit, given, needed)) => Err(Error::NoAdapter(format!(
            "{name} has {limit} {given}, and the kernels need {needed}; open the device with at least \
             wgpu::Limits::default(), or choose another adapter"
        ))),
    }
}

/// Size of the largest device-local heap. WebGPU does not report it; Vulkan does.
#[cfg(not(any(target_vendor = "apple", target_family = "wasm")))]
fn memory_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
    // SAFETY: only properties are queried, while `adapter` is alive.
    let vulkan = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let (instance, device) = (vulkan.shared_instance().raw_instance(), vulkan.raw_physical_device());
    // SAFETY: the physical device was enumerated from this instance, and both live as long as the adapter.
    let properties = unsafe { instance.get_physical_device_memory_properties(device) };
    let heaps = &properties.memory_heaps[..properties.memory_heap_count as usize];
    heaps.iter().filter(|heap| heap.flags.as_raw() & 1 == 1).map(|heap| heap.size).max() // 1: DEVICE_LOCAL
}

#[cfg(any(target_vendor = "apple", target_family = "wasm"))]
fn memory_bytes(_: &wgpu::Adapter) -> Option<u64> {
    None
}

/// Drivers move buffers to host memory, where every step waits for them, once all programs together ask for more than
/// there is. Where DX12 or `VK_EXT_memory_budget` tells what is left, a buffer beyond it is an error instead.
const IN_BUDGET: wgpu::MemoryBudgetThresholds =
    wgpu::MemoryBudgetThresholds { for_resource_creation: Some(100), for_device_loss: None };

/// The instance of wgpu; `validation` turns on the validation of the backend.
pub(super) fn instance(validation: bool) -> wgpu::Instance {
    wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: BACKENDS,
        flags: flags(validation),
        memory_budget_thresholds: IN_BUDGET,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    })
}

/// Without validation a launch costs only what the driver takes for it, even where Khronos' layers are installed or
/// Windows has its debug layer. `WGPU_VALIDATION=1` and similar variables turn validation on in any program.
///
/// Indirect dispatches are never validated: our own kernels write their arguments, and wgpu would check them on the
/// GPU.
fn flags(validation: bool) -> wgpu::InstanceFlags {
    let mut flags = wgpu::InstanceFlags::empty();
    flags.set(wgpu::InstanceFlags::VALIDATION, validation);
    flags.with_env()
}

/// The warning that DX12 compiles kernels with FXC, if it does: wgpu uses DXC where it finds `dxcompiler.dll`, and
/// otherwise FXC, which every Windows has. An instance that insists on DXC shows which of the two is used: without the
/// library it has no adapters.
pub(super) async fn fxc_notice(report: &AdapterReport) -> Option<String> {
    if report.backend != format!("{:?}", wgpu::Backend::Dx12) {
        return None;
    }
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::DX12;
    descriptor.backend_options.dx12.shader_compiler = wgpu::Dx12Compiler::default_dynamic_dxc();
    let with_dxc = wgpu::Instance::new(descriptor).enumerate_adapters(wgpu::Backends::DX12).await;
    with_dxc.is_empty().then(|| {
        format!(
            "{}: without dxcompiler.dll DX12 compiles kernels with FXC, which takes longer at the first start and has no native \
             f16, so that f16 is packed in integer arithmetic; put dxcompiler.dll (1.8.2502 or later, from Microsoft's \
             DirectXShaderCompiler) beside the program or on the PATH",
            report.name
        )
    })
}

/// All adapters that wgpu can use on this machine: discrete GPUs first, software adapters last.
pub async fn list_adapters() -> Vec<AdapterReport> {
    sorted(&instance(false)).await.iter().map(AdapterReport::of).collect()
}

/// The adapter that `options` ask for: of the adapters whose names contain `device_name`, ignoring case, number
/// `device_id`. Later ranks of this machine take the adapters of the same kind that follow it.
pub(super) async fn choose(instance: &wgpu::Instance, options: &GpuOptions) -> Result<wgpu::Adapter> {
    let mut adapters = sorted(instance).await;
    if adapters.is_empty() {
        return Err(Error::NoAdapter(
            "Vulkan, Metal and DX12 were tried and none has an adapter; on Linux run ./setup.sh (it installs the Vulkan \
             loader and Mesa's software Vulkan driver), elsewhere update the GPU driver"
                .into(),
        ));
    }
    let infos: Vec<wgpu::AdapterInfo> = adapters.iter().map(wgpu::Adapter::get_info).collect();
    let names: Vec<&str> = infos.iter().map(|info| info.name.as_str()).collect();
    let named = with_name(&names, options.device_name.as_deref())?;
    let device_id = options.device_id.unwrap_or(0);
    if device_id >= named.len() {
        return Err(Error::NoAdapter(beyond_the_list(&names, &named, device_id)));
    }
    let kinds: Vec<_> = named.iter().map(|&at| (infos[at].device_type, infos[at].backend)).collect();
    Ok(adapters.swap_remove(named[in_turns(&kinds, device_id, options.local_rank)]))
}

/// The adapters of a machine, the fastest kinds first.
async fn sorted(instance: &wgpu::Instance) -> Vec<wgpu::Adapter> {
    let mut adapters = instance.enumerate_adapters(BACKENDS).await;
    adapters.sort_by_key(|adapter| match adapter.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    });
    adapters
}

/// The indices of the `names` that contain `name`; all of them if `name` is `None`.
fn with_name(names: &[&str], name: Option<&str>) -> Result<Vec<usize>> {
    let sought = name.unwrap_or("").to_lowercase();
    let named: Vec<usize> =
        (0..names.len()).filter(|&at| names[at].to_lowercase().contains(&sought)).collect();
    match named.is_empty() {
        false => Ok(named),
        true => Err(Error::NoAdapter(format!(
            "no adapter name contains `{}`; set context.device_name to one of: {}",
            name.unwrap_or(""),
            names.join(", ")
        ))),
    }
}

/// The adapter of a rank, where the first rank of the machine has adapter `first`: the ranks take the adapters of that
/// kind in turns. A GPU may be listed once for each backend; each backend counts as another kind.
fn in_turns<K: PartialEq>(kinds: &[K], first: usize, local_rank: usize) -> usize {
    let alike: Vec<usize> = (0..kinds.len()).filter(|&at| kinds[at] == kinds[first]).collect();
    let before = alike.iter().take_while(|at| **at < first).count();
    alike[(before + local_rank) % alike.len()]
}

/// The error line for a `device_id` that exceeds the list of adapters `named`.
fn beyond_the_list(names: &[&str], named: &[usize], device_id: usize) -> String {
    let list: Vec<String> =
        named.iter().enumerate().map(|(number, at)| format!("{number} ({})", names[*at])).collect();
    let narrowed = if named.len() < names.len() { " with context.device_name" } else { "" };
    format!(
        "context.device_id is {device_id}, beyond the list; choose one of the adapters{narrowed}: {}",
        list.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_take_adapters_of_a_kind_in_turns() {
        let of_ranks = |kinds: &str, first| {
            let kinds: Vec<char> = kinds.chars().collect();
            [0, 1, 2, 3].map(|local_rank| in_turns(&kinds, first, local_rank))
        };
        assert_eq!(of_ranks("s", 0), [0, 0, 0, 0]);
        // The software adapter beside a GPU is of another kind.
        assert_eq!(of_ranks("gs", 0), [0, 0, 0, 0]);
        assert_eq!(of_ranks("gggs", 0), [0, 1, 2, 0]);
        assert_eq!(of_ranks("gggs", 2), [2, 0, 1, 2]);
        assert_eq!(of_ranks("gxgx", 1), [1, 3, 1, 3]);
        assert_eq!(of_ranks("ggs", 2), [2, 2, 2, 2]);
    }

    fn driver(name: &str, driver: &str) -> AdapterReport {
        AdapterReport {
            name: name.into(),
            backend: "Vulkan".into(),
            driver: driver.into(),
            is_software: true,
            binding_bytes: 0,
            buffer_bytes: 0,
            memory_bytes: None,
            shares_memory: true,
            matrices: Vec::new(),
        }
    }

    #[test]
    fn shapes_that_wgsl_can_write_are_used() {
        let listing = |matrices: &[[u32; 3]]| {
            let report = AdapterReport { matrices: matrices.to_vec(), ..driver("GPU", "driver") };
            (report.matrix_side(), report.matrix_shapes())
        };
        assert_eq!(listing(&[]), (None, "no cooperative matrices of f16 with sums in f32".into()));
        assert_eq!(listing(&[[8; 3]]), (Some(8), "matrices of 8x8x8".into()));
        assert_eq!(listing(&[[8; 3], [16; 3]]), (Some(16), "matrices of 8x8x8, 16x16x16".into()));
        let of_intel = "matrices of 8x16x16, of which WGSL can write none: only 8x8x8 and 16x16x16";
        assert_eq!(listing(&[[8, 16, 16]]), (None, of_intel.into()));
    }

    #[test]
    fn newer_llvmpipes_gather() {
        let llvmpipe = "llvmpipe (LLVM 19.1.7, 256 bits)";
        assert!(driver(llvmpipe, "llvmpipe Mesa 26.1.6-1~bpo13+1 (LLVM 19.1.7)").gathers());
        assert!(!driver(llvmpipe, "llvmpipe Mesa 25.0.7-2+deb13u1 (LLVM 19.1.7)").gathers());
        assert!(!driver(llvmpipe, "llvmpipe Mesa 22.3.6 (LLVM 15.0.6)").gathers());
        assert!(!driver("AMD Radeon RX 7900 XTX (RADV NAVI31)", "radv Mesa 26.1.6").gathers());
        assert!(!driver("SwiftShader Device", "SwiftShader driver").gathers());
        let is_fast = |version: &str, lanes| driver(llvmpipe, version).shuffles_fast(lanes);
        assert!(is_fast("llvmpipe Mesa 26.1.6", 8) && is_fast("llvmpipe Mesa 22.3.6", 16));
        assert!(!is_fast("llvmpipe Mesa 26.1.6", 16));
    }

    #[test]
    fn a_name_narrows_the_list() {
        let names = ["Radeon 7900", "GeForce A", "GeForce B", "llvmpipe"];
        assert_eq!(with_name(&names, None).expect("all"), [0, 1, 2, 3]);
        assert_eq!(with_name(&names, Some("geforce")).expect("two"), [1, 2]);
        let error = with_name(&names, Some("Arc")).expect_err("none").to_string();
        assert!(error.ends_with("one of: Radeon 7900, GeForce A, GeForce B, llvmpipe"), "{error}");
        assert_eq!(
            beyond_the_list(&names, &[1, 2], 2),
            "context.device_id is 2, beyond the list; choose one of the adapters with context.device_name: 0 (GeForce A), 1 (GeForce B)"
        );
        assert_eq!(
            beyond_the_list(&names[3..], &[0], 1),
            "context.device_id is 1, beyond the list; choose one of the adapters: 0 (llvmpipe)"
        );
    }
}
