//! The shaders of a run as files: what a driver gets to compile, for reading, for other tools and for bug reports.

use super::durable::{create_folder_of, write_atomically};
use super::recordings::Recordings;
use super::run::open_device;
use crate::error::Result;
use crate::kernels::{Capabilities, Kernel, compose};
use crate::record::Recording;
use crate::settings::{Override, RunConfig};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Writes every shader variant that training as the file at `config` says would use into `folder`, and trains nothing.
/// Returns the files. Where the configuration names a tier no adapter is needed, and `software` is taken to have 8 lanes;
/// else the one that the run would take decides. Lanes share by `subgroupShuffle`; `enable subgroups;`, which tools other
/// than naga want for it, is not written, because naga does not know it yet.
///
/// # Errors
/// One line: configuration, adapter, a folder that cannot be written.
pub async fn dump_wgsl(config: &Path, overrides: &[String], folder: &Path) -> Result<Vec<PathBuf>> {
    let plan = RunConfig::load(config, &Override::parse_all(overrides)?)?.plan;
    let capabilities = match plan.settings.context.tier {
        Some(tier) => Capabilities::software().with_tier(tier),
        None => open_device(&plan).await?.capabilities(),
    };
    // The length of the schedule changes a buffer and no shader.
    write_shaders(&Recordings::new(&plan, capabilities, 1)?.all(), folder)
}

/// Composes each distinct kernel of `recordings` into a file of `folder` that is named after it and starts with its
/// name as a comment.
///
/// # Errors
/// A folder or file that cannot be written.
pub fn write_shaders(recordings: &[&Recording], folder: &Path) -> Result<Vec<PathBuf>> {
    let dispatches = recordings.iter().flat_map(|recording| &recording.dispatches);
    let kernels: BTreeMap<String, &Kernel> = dispatches.map(|d| (d.kernel.to_string(), &d.kernel)).collect();
    create_folder_of("folder", folder)?;
    let write = |(name, kernel): (&String, &&Kernel)| {
        let path = folder.join(file_name(name));
        write_atomically(&path, format!("// {name}\n{}", compose(kernel)?.wgsl).as_bytes())?;
        Ok(path)
    };
    kernels.iter().map(write).collect()
}

/// A name that every file system takes: `matmul/software:nt f32 +bias` becomes `matmul_software_nt_f32_+bias.wgsl`.
fn file_name(kernel: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_+-=.".contains(letter);
    let name: String = kernel.chars().map(|letter| if plain(letter) { letter } else { '_' }).collect();
    name + ".wgsl"
}
