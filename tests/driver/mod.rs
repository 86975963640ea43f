//! What the compiler of a Vulkan driver makes of a kernel, by VK_KHR_pipeline_executable_properties: registers, spills.
//!
//! AMD's is there without an AMD GPU: Mesa's RADV opens null hardware of any family and compiles for it. wgpu cannot
//! open such a device, since nothing ever completes on it, so this module talks to Vulkan itself.
#![allow(dead_code)] // each program uses a part of it

use ash::{Device, Entry, Instance, khr, vk};
use gristmill::kernels::{Access, Composed, Kernel, Variable, compose};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::path::Path;

/// The environment that makes the Vulkan loader open null hardware; it must be set before the process starts.
pub const DRIVER: &str = "/usr/share/vulkan/icd.d/radeon_icd.x86_64.json";

/// The families that are compiled for, as RADV of Mesa 22.3 names them.
pub const FAMILIES: [&str; 3] = ["gfx1100", "navi21", "vega20"];

/// The variable that names the family.
pub const FAMILY: &str = "RADV_FORCE_FAMILY";

/// The variables with which a child process opens null hardware of `family`.
pub fn environment(family: &str) -> [(&'static str, &str); 3] {
    [("VK_DRIVER_FILES", DRIVER), ("VK_ICD_FILENAMES", DRIVER), (FAMILY, family)]
}

/// Whether the driver is installed.
pub fn is_installed() -> bool {
    Path::new(DRIVER).exists()
}

/// The GPUs that Vulkan's loader finds by the drivers that are installed, with the versions that they name.
///
/// # Errors
/// What is missing: the loader, or a driver that it can start.
pub fn vulkan_gpus() -> Result<Vec<String>, String> {
    // SAFETY: the loader is a system library; the instance is destroyed before it is unloaded.
    unsafe {
        let entry = Entry::load().map_err(|error| format!("no loader: {error}"))?;
        let created = entry.create_instance(&vk::InstanceCreateInfo::default(), None);
        let instance = created.map_err(|error| format!("no driver that starts: {error}"))?;
        let listed = instance.enumerate_physical_devices();
        let named = |gpu| {
            let properties = instance.get_physical_device_properties(gpu);
            let name = properties.device_name_as_c_str().unwrap_or_default().to_string_lossy().into_owned();
            let [major, minor] =
                [vk::api_version_major, vk::api_version_minor].map(|of| of(properties.api_version));
            format!("{name}, Vulkan {major}.{minor}, driver {:#x}", properties.driver_version)
        };
        let gpus = listed.map(|all| all.into_iter().map(named).collect());
        instance.destroy_instance(None);
        gpus.map_err(|error| format!("no GPU: {error}"))
    }
}

/// What the compiler says of one kernel, by its names of the numbers: `VGPRs`, `Spilled VGPRs`, `Scratch size`, ...
pub type Statistics = BTreeMap<String, u64>;

/// A device of a driver that reports on its pipelines.
pub struct Driver {
    _entry: Entry,
    instance: Instance,
    physical: vk::PhysicalDevice,
    device: Device,
    executables: khr::pipeline_executable_properties::Device,
}

impl Driver {
    /// Null hardware of the family that the environment names.
    pub fn open() -> Self {
        Self::open_where(|_| true).expect("null hardware")
    }

    /// The GPU called `name`; `None` if Vulkan knows none, or its driver does not report on pipelines.
    pub fn named(name: &str) -> Option<Self> {
        Self::open_where(|properties| {
            properties.device_name_as_c_str().is_ok_and(|of| of.to_string_lossy() == name)
        })
    }

    fn open_where(is_wanted: impl Fn(&vk::PhysicalDeviceProperties) -> bool) -> Option<Self> {
        const REPORTS: &CStr = khr::pipeline_executable_properties::NAME;
        // SAFETY: the loader is a system library; its functions are used as the Vulkan specification says. Every object
        // that is created here is destroyed in `drop`, or at the end of `statistics`.
        unsafe {
            let entry = Entry::load().ok()?;
            let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
            let instance = vk::InstanceCreateInfo::default().application_info(&application);
            let instance = entry.create_instance(&instance, None).expect("an instance");
            let all = instance.enumerate_physical_devices().expect("devices");
            let reports = |device: &vk::PhysicalDevice| {
                let extensions = instance.enumerate_device_extension_properties(*device).unwrap_or_default();
                extensions.iter().any(|of| of.extension_name_as_c_str() == Ok(REPORTS))
            };
            let fits = |device: &vk::PhysicalDevice| {
                is_wanted(&instance.get_physical_device_properties(*device)) && reports(device)
            };
            let Some(physical) = all.into_iter().find(fits) else {
                instance.destroy_instance(None);
                return None;
            };
            let mut wanted = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default()
                .pipeline_executable_info(true);
            let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
            let extensions = [REPORTS.as_ptr()];
            let device = vk::DeviceCreateInfo::default()
                .queue_create_infos(&queues)
                .enabled_extension_names(&extensions)
                .push_next(&mut wanted);
            let device = instance.create_device(physical, &device, None).expect("a device");
            let executables = khr::pipeline_executable_properties::Device::new(&instance, &device);
            Some(Self { _entry: entry, instance, physical, device, executables })
        }
    }

    /// The driver's name and version.
    pub fn driver(&self) -> String {
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut driver);
        // SAFETY: as in `open`.
        unsafe { self.instance.get_physical_device_properties2(self.physical, &mut properties) };
        let text = |name: Result<&std::ffi::CStr, _>| name.expect("a name").to_string_lossy().into_owned();
        format!("{} {}", text(driver.driver_name_as_c_str()), text(driver.driver_info_as_c_str()))
    }

    /// Compiles `kernel` and returns the compiler's numbers.
    pub fn statistics(&self, kernel: &Kernel) -> Statistics {
        let composed = compose(kernel).unwrap_or_else(|error| panic!("{error}"));
        let words = spirv(kernel, &composed);
        let bindings: Vec<_> = composed.variables.iter().map(layout).collect();
        let entry = CString::new(kernel.entry).expect("an identifier");
        // SAFETY: as in `open`. naga has validated the module.
        unsafe {
            let module = vk::ShaderModuleCreateInfo::default().code(&words);
            let module = self.device.create_shader_module(&module, None).expect("a module");
            let set = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
            let sets = [self.device.create_descriptor_set_layout(&set, None).expect("a layout")];
            let layout = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
            let layout = self.device.create_pipeline_layout(&layout, None).expect("a layout");
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(&entry);
            let pipeline = vk::ComputePipelineCreateInfo::default()
                .flags(vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR)
                .stage(stage)
                .layout(layout);
            let pipelines =
                self.device.create_compute_pipelines(vk::PipelineCache::null(), &[pipeline], None);
            let pipeline = pipelines.unwrap_or_else(|(_, error)| panic!("{kernel}: {error}"))[0];
            let info = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
            let statistics = self.executables.get_pipeline_executable_statistics(&info).expect("statistics");
            self.device.destroy_pipeline(pipeline, None);
            self.device.destroy_pipeline_layout(layout, None);
            self.device.destroy_descriptor_set_layout(sets[0], None);
            self.device.destroy_shader_module(module, None);
            statistics.iter().map(number).collect()
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: nothing made from them is left.
        unsafe {
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}

/// The module as wgpu's Vulkan backend hands it to a driver, without run-time checks, as in training.
fn spirv(kernel: &Kernel, composed: &Composed) -> Vec<u32> {
    use naga::back::spv::{Options, PipelineOptions, ZeroInitializeWorkgroupMemoryMode, write_vec};
    let mut validator =
        naga::valid::Validator::new(naga::valid::ValidationFlags::all(), naga::valid::Capabilities::all());
    let info = validator.validate(&composed.module).expect("a valid module");
    let unchecked = naga::proc::BoundsCheckPolicies {
        index: naga::proc::BoundsCheckPolicy::Unchecked,
        buffer: naga::proc::BoundsCheckPolicy::Unchecked,
        image_load: naga::proc::BoundsCheckPolicy::Unchecked,
        binding_array: naga::proc::BoundsCheckPolicy::Unchecked,
    };
    let options = Options {
        lang_version: (1, 3),
        bounds_check_policies: unchecked,
        zero_initialize_workgroup_memory: ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        ..Options::default()
    };
    let entry =
        PipelineOptions { shader_stage: naga::ShaderStage::Compute, entry_point: kernel.entry.to_string() };
    write_vec(&composed.module, &info, &options, Some(&entry))
        .unwrap_or_else(|error| panic!("{kernel}: {error}"))
}

fn layout(variable: &Variable) -> vk::DescriptorSetLayoutBinding<'static> {
    let kind = match variable.access {
        Access::Uniform => vk::DescriptorType::UNIFORM_BUFFER,
        Access::Read | Access::ReadWrite => vk::DescriptorType::STORAGE_BUFFER,
    };
    vk::DescriptorSetLayoutBinding::default()
        .binding(variable.index)
        .descriptor_type(kind)
        .descriptor_count(1)
        .stage_flags(vk::ShaderStageFlags::COMPUTE)
}

fn number(statistic: &vk::PipelineExecutableStatisticKHR<'_>) -> (String, u64) {
    let name = statistic.name_as_c_str().expect("a name").to_string_lossy().into_owned();
    // SAFETY: the format says which variant of the union is set.
    let value = unsafe {
        match statistic.format {
            vk::PipelineExecutableStatisticFormatKHR::BOOL32 => statistic.value.b32.into(),
            vk::PipelineExecutableStatisticFormatKHR::INT64 => statistic.value.i64.unsigned_abs(),
            vk::PipelineExecutableStatisticFormatKHR::FLOAT64 => statistic.value.f64 as u64,
            _ => statistic.value.u64,
        }
    };
    (name, value)
}
