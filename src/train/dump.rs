//! The shaders of a run as files, in the form that the driver gets: for reading, for other tools and for bug reports.

use super::open_device::open_device;
use super::recordings::{Recordings, assumed_capabilities};
use crate::durable::PathOrigin;
use crate::error::Result;
use crate::kernels::{Kernel, compose};
use crate::record::Recording;
use crate::settings::{Override, RunConfig};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Writes every shader variant that a run of the file at `config` would use into `folder` and returns the files; trains
/// nothing. If the configuration names a tier, no adapter is needed: shaders of `software` are written for llvmpipe
/// with 8 lanes, of `portable` for a GPU with bindings of 1 GiB, of `matrix` for a GPU with matrices of 16 x 16 in
/// subgroups of 32, and shaders of f16 in all forms: with and without conversions of the adapter's own (`enable f16;`),
/// and widened in integers. Otherwise the adapter that the run would use decides. Shaders that call `subgroupShuffle`
/// do not contain `enable subgroups;`, which tools other than naga require, because naga does not support it yet.
///
/// # Errors
/// One line: configuration, adapter, a folder that cannot be written.
pub async fn dump_wgsl(config: &Path, overrides: &[String], folder: &Path) -> Result<Vec<PathBuf>> {
    let plan = RunConfig::outline(config, &Override::parse_all(overrides)?, None)?.plan;
    let assumed = |tier| assumed_capabilities(tier).with_split_f32(plan.splits_f32());
    let capabilities = match plan.settings.context.tier.map(assumed) {
        Some(assumed) if plan.stores_f16() => {
            let native = Some(assumed.with_native_f16(true)).filter(|_| plan.tries_native_f16());
            [assumed].into_iter().chain(native).chain([assumed.with_integer_widening(true)]).collect()
        }
        Some(assumed) => vec![assumed],
        None => vec![open_device(&plan, 0).await?.capabilities()],
    };
    // The length of the schedule changes a buffer but no shader.
    let recordings = capabilities.into_iter().map(|capabilities| Recordings::new(&plan, capabilities, 1));
    let recordings: Vec<Recordings> = recordings.collect::<Result<_>>()?;
    write_shaders(&recordings.iter().flat_map(Recordings::all).collect::<Vec<_>>(), folder)
}

/// Composes each distinct kernel of `recordings` into a file in `folder`. The file is named after the kernel and starts
/// with the kernel's name as a comment.
///
/// # Errors
/// A folder or file that cannot be written.
pub fn write_shaders(recordings: &[&Recording], folder: &Path) -> Result<Vec<PathBuf>> {
    let dispatches = recordings.iter().flat_map(|recording| &recording.dispatches);
    let kernels: BTreeMap<String, &Kernel> = dispatches.map(|d| (d.kernel.to_string(), &d.kernel)).collect();
    let place = PathOrigin("folder");
    place.create_folder(folder)?;
    let write = |(name, kernel): (&String, &&Kernel)| {
        let path = folder.join(file_name(name));
        place.write(&path, format!("// {name}\n{}", compose(kernel)?.wgsl).as_bytes())?;
        Ok(path)
    };
    kernels.iter().map(write).collect()
}

/// A file name that every file system accepts: `matmul/software:nt f32 +bias` becomes
/// `matmul_software_nt_f32_+bias.wgsl`.
fn file_name(kernel: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_+-=.".contains(letter);
    let name: String = kernel.chars().map(|letter| if plain(letter) { letter } else { '_' }).collect();
    name + ".wgsl"
}
