//! Compiles kernels, in parallel and once each; a pipeline cache on disk keeps the results between runs where the
//! driver supports it.

use super::fault::one_line;
use super::gpu::Gpu;
use super::options::GpuOptions;
use super::submissions::Polling;
use crate::durable::cache_folder;
use crate::error::{Error, Result};
use crate::kernels::{Access, Kernel, ParamsLayout, Sources, Variable, ordered_spirv, unroll};
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A compiled kernel and the layout of its bind groups.
pub(super) struct Pipeline {
    pub pipeline: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
    pub variables: Vec<Variable>,
    pub params: Option<ParamsLayout>,
}

/// Whether compiled pipelines are kept between runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PipelineCaching {
    /// In a file of the user's cache folder, where the driver supports it.
    OnDisk,
    Off,
}

/// The compiled pipelines, by kernel.
pub(super) struct Pipelines {
    compiled: Mutex<HashMap<Kernel, Arc<Pipeline>>>,
    cache: Option<(wgpu::PipelineCache, PathBuf)>,
    sources: Sources,
    is_checked: bool,
    is_as_on_metal: bool,
    is_parallel: bool,
}

impl Pipelines {
    pub fn new(device: &wgpu::Device, options: &GpuOptions, caching: PipelineCaching) -> Self {
        let is_cached =
            caching == PipelineCaching::OnDisk && device.features().contains(wgpu::Features::PIPELINE_CACHE);
        let cache = is_cached
            .then(|| cache_path(&device.adapter_info()))
            .flatten()
            .map(|path| (open_cache(device, &path), path));
        Self {
            compiled: Mutex::default(),
            cache,
            sources: options.sources.clone(),
            is_checked: options.checked_shaders,
            is_as_on_metal: options
                .as_on_metal
                .unwrap_or(device.adapter_info().backend != wgpu::Backend::Vulkan),
            is_parallel: options.polling == Polling::Thread,
        }
    }

    /// The pipelines of `kernels`. Missing ones are compiled on all cores, or on this thread if this crate may start
    /// none; no kernel is compiled twice.
    ///
    /// # Errors
    /// A shader that does not compose or that the device refuses.
    pub async fn get(&self, gpu: &Gpu, kernels: &[&Kernel]) -> Result<HashMap<Kernel, Arc<Pipeline>>> {
        let missing: Vec<&Kernel> = {
            let compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
            let mut missing: Vec<&Kernel> =
                kernels.iter().copied().filter(|kernel| !compiled.contains_key(*kernel)).collect();
            missing.sort_by_key(|kernel| kernel.to_string());
            missing.dedup();
            missing
        };
        if !missing.is_empty() {
            for (kernel, (pipeline, refusal)) in missing.iter().zip(self.compile_all(gpu, &missing)?) {
                if let Some(error) = refusal.await {
                    let name = &gpu.report().name;
                    let error = one_line(&error.to_string());
                    return Err(Error::Device(format!("{name} refuses the shader {kernel}: {error}")));
                }
                let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
                compiled.insert((*kernel).clone(), Arc::new(pipeline));
            }
            self.save_cache();
        }
        let compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(kernels.iter().map(|kernel| ((*kernel).clone(), compiled[*kernel].clone())).collect())
    }

    fn compile_all(
        &self,
        gpu: &Gpu,
        kernels: &[&Kernel],
    ) -> Result<Vec<(Pipeline, impl Future<Output = Option<wgpu::Error>>)>> {
        if !self.is_parallel {
            return kernels.iter().map(|kernel| self.compile(gpu, kernel)).collect();
        }
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(kernels.len());
        let next = AtomicUsize::new(0);
        let mut done: Vec<(usize, _)> = std::thread::scope(|scope| {
            let work = || {
                let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&i| i < kernels.len());
                std::iter::from_fn(take).map(|i| (i, self.compile(gpu, kernels[i]))).collect::<Vec<_>>()
            };
            let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            handles.into_iter().flat_map(|handle| handle.join().expect("compiling does not panic")).collect()
        });
        done.sort_by_key(|(index, _)| *index);
        gpu.check()?;
        done.into_iter().map(|(_, pipeline)| pipeline).collect()
    }

    /// The pipeline of `kernel`, and a future of the error with which the device refuses it.
    fn compile(
        &self,
        gpu: &Gpu,
        kernel: &Kernel,
    ) -> Result<(Pipeline, impl Future<Output = Option<wgpu::Error>> + use<>)> {
        let composed = match self.is_as_on_metal {
            true => {
                let mut composed = self.sources.compose(&kernel.clone().on_metal())?;
                unroll(&mut composed.module);
                composed
            }
            false => self.sources.compose(kernel)?,
        };
        let is_checked = self.is_checked || self.sources.is_added(kernel.file);
        let ordered = match gpu.device.features().contains(wgpu::Features::PASSTHROUGH_SHADERS) {
            true => ordered_spirv(kernel, &composed, is_checked)?,
            false => None,
        };
        // Error scopes are per thread.
        let invalid = gpu.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let failed = gpu.device.push_error_scope(wgpu::ErrorFilter::Internal);
        let label = kernel.to_string();
        let module = match ordered {
            Some(words) => module_of_words(gpu, &label, kernel.entry, words),
            None => module_of_naga(gpu, &label, composed.module, is_checked),
        };
        let entries: Vec<_> = composed.variables.iter().map(layout_entry).collect();
        let layout = gpu
            .device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
        let pipeline_layout = gpu.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layout)],
            ..Default::default()
        });
        let pipeline = gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&label),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some(kernel.entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false, // every kernel writes it before reading
                ..Default::default()
            },
            cache: self.cache.as_ref().map(|(cache, _)| cache),
        });
        let (failed, invalid) = (failed.pop(), invalid.pop());
        let refusal = async move { failed.await.or(invalid.await) };
        let (variables, params) = (composed.variables, composed.params);
        Ok((Pipeline { pipeline, layout, variables, params }, refusal))
    }

    /// Best effort: without the cache the next start only takes some seconds longer.
    fn save_cache(&self) {
        let Some((cache, path)) = &self.cache else { return };
        let Some(data) = cache.get_data() else { return };
        static SAVES: AtomicUsize = AtomicUsize::new(0); // devices of one process may save at the same time
        let number = SAVES.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
        let written = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        let written = written.and_then(|()| std::fs::write(&temporary, data));
        if written.and_then(|()| std::fs::rename(&temporary, path)).is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
    }
}

fn module_of_naga(gpu: &Gpu, label: &str, module: naga::Module, is_checked: bool) -> wgpu::ShaderModule {
    let source = wgpu::ShaderSource::Naga(Cow::Owned(module));
    let checks = match is_checked {
        true => wgpu::ShaderRuntimeChecks::checked(),
        false => wgpu::ShaderRuntimeChecks::unchecked(),
    };
    // SAFETY: unchecked shaders are part of this crate. Tests run each of them checked and unchecked, with guard zones
    // around every binding, and no loop bound depends on data in a way that could make it infinite.
    unsafe {
        gpu.device
            .create_shader_module_trusted(wgpu::ShaderModuleDescriptor { label: Some(label), source }, checks)
    }
}

fn module_of_words(gpu: &Gpu, label: &str, entry: &str, words: Vec<u32>) -> wgpu::ShaderModule {
    let entry = wgpu::PassthroughShaderEntryPoint { name: entry.into(), workgroup_size: (1, 1, 1) }; // Metal's
    let descriptor = wgpu::ShaderModuleDescriptorPassthrough {
        label: Some(label),
        entry_points: vec![entry].into(),
        spirv: Some(words.into()),
        ..Default::default()
    };
    // SAFETY: as above; naga wrote the words, for the layout that the pipeline has, and a test holds what was changed
    // in them against the rules of SPIR-V.
    unsafe { gpu.device.create_shader_module_passthrough(descriptor) }
}

fn layout_entry(variable: &Variable) -> wgpu::BindGroupLayoutEntry {
    let ty = match variable.access {
        Access::Uniform => wgpu::BufferBindingType::Uniform,
        Access::Read => wgpu::BufferBindingType::Storage { read_only: true },
        Access::ReadWrite => wgpu::BufferBindingType::Storage { read_only: false },
    };
    wgpu::BindGroupLayoutEntry {
        binding: variable.index,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    }
}

/// Path of the pipeline cache: one file per adapter, in the user's cache folder.
fn cache_path(info: &wgpu::AdapterInfo) -> Option<PathBuf> {
    Some(cache_folder()?.join(wgpu::util::pipeline_cache_key(info)?))
}

fn open_cache(device: &wgpu::Device, path: &std::path::Path) -> wgpu::PipelineCache {
    let data = std::fs::read(path).ok();
    let descriptor = wgpu::PipelineCacheDescriptor { label: None, data: data.as_deref(), fallback: true };
    // SAFETY: the file holds data that an earlier run got from `get_data`. wgpu and the driver validate its header, and
    // start with an empty cache (`fallback`) if it comes from another version.
    unsafe { device.create_pipeline_cache(&descriptor) }
}
