//! `token-distribution`: how the choices of each layer's experts changed over a run, as plots.

use super::stacked_areas::{self, StackedAreas};
use crate::error::{Error, Result};
use crate::store::durable::{create_folder, io_error};
use crate::store::npy;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The flags of the original's tool; those with hyphens mean the same.
#[derive(clap::Args)]
pub struct Arguments {
    /// Blocks of the model
    #[arg(long = "num_layers", alias = "num-layers", value_name = "N")]
    num_layers: usize,
    /// How many of each layer's busiest experts are named
    #[arg(long = "hot_expert_num", alias = "hot-expert-num", value_name = "N", default_value_t = 1)]
    hot_expert_num: usize,
    /// The folder to search for layer-L_STEP.npy, with all that is in it: the run's `summary`
    #[arg(long = "npy_files_load_path", alias = "npy-files-load-path", value_name = "FOLDER")]
    npy_files_load_path: PathBuf,
    /// What the names of the plots begin with; as the folder it names unless it ends in part of a name
    #[arg(
        long = "save_path_prefix",
        alias = "save-path-prefix",
        value_name = "PREFIX",
        default_value = "./token_distribution/"
    )]
    save_path_prefix: String,
    /// The first layer with experts, where those before it are dense
    #[arg(long = "first_layer", alias = "first-layer", value_name = "N", default_value_t = 0)]
    first_layer: usize,
}

/// Draws every layer into PREFIXlayer-L_token_distribution.svg and .png, and prints its busiest experts at the last step.
pub fn token_distribution(arguments: &Arguments) -> Result<()> {
    let Arguments { num_layers, hot_expert_num, npy_files_load_path, save_path_prefix, first_layer } =
        arguments;
    let files = files(npy_files_load_path)?;
    if first_layer >= num_layers {
        let message =
            format!("--first_layer {first_layer} leaves none of --num_layers {num_layers}; lower it");
        return Err(Error::Plan(message));
    }
    // All is read before anything is drawn, so that an error leaves nothing half-done.
    let layers = (*first_layer..*num_layers)
        .map(|layer| read_layer(&files, layer, npy_files_load_path).map(|steps| (layer, steps)))
        .collect::<Result<Vec<_>>>()?;
    let hot = layers
        .iter()
        .map(|(layer, steps)| hottest(steps, *hot_expert_num, *layer))
        .collect::<Result<Vec<_>>>()?;
    if let Some(folder) = Path::new(&format!("{save_path_prefix}x")).parent() {
        create_folder(folder)?;
    }
    for (layer, steps) in layers {
        let areas = StackedAreas {
            title: format!("Layer-{layer}_Token_Distribution"),
            x_label: "num of step",
            y_label: "num of token",
            series_label: "expert",
            columns: steps.into_iter().collect(),
        };
        let path = |ending: &str| {
            PathBuf::from(format!("{save_path_prefix}layer-{layer}_token_distribution.{ending}"))
        };
        write(&path("svg"), &stacked_areas::svg(&areas)?.into_bytes())?;
        write(&path("png"), &stacked_areas::png(&areas)?)?;
        println!("layer-{layer} token_distribution generate successful");
    }
    // Two spaces, as Python's print sets a list behind a word that ends in one.
    println!("hot_expert_index:  {hot:?}");
    Ok(())
}

/// Every .npy file below `folder`, in order of its path.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = vec![folder.to_path_buf()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|error| io_error(&folder, "read", &error))? {
            let path = entry.map_err(|error| io_error(&folder, "read", &error))?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "npy") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The counts of one layer's experts by step. Of two files for one step, as a resumed run of the original leaves them, the
/// later by name counts.
fn read_layer(files: &[PathBuf], layer: usize, folder: &Path) -> Result<BTreeMap<u64, Vec<f64>>> {
    let mark = format!("layer-{layer}_");
    let mut steps = BTreeMap::new();
    for path in files {
        let name = path.file_stem().map(|name| name.to_string_lossy()).unwrap_or_default();
        let Some((_, rest)) = name.split_once(&mark) else { continue };
        let Ok(step) = rest.parse::<u64>() else {
            return Err(Error::file(path, format!("expected a name {mark}STEP.npy; rename or remove it")));
        };
        let counts = npy::read(path)?;
        if counts.is_empty() || counts.iter().any(|count| !count.is_finite() || *count < 0.0) {
            return Err(Error::file(path, "expected counts from 0, one for each expert; remove the file"));
        }
        steps.insert(step, counts);
    }
    let mut experts = steps.values().map(Vec::len);
    let Some(first) = experts.next() else {
        let remedy = "correct --num_layers, --first_layer or --npy_files_load_path";
        return Err(Error::file(
            folder,
            format!("{mark} is not exist: no file {mark}STEP.npy is here; {remedy}"),
        ));
    };
    if let Some(other) = experts.find(|other| *other != first) {
        let message =
            format!("the files {mark}STEP.npy have {first} experts and {other}; keep those of one run");
        return Err(Error::file(folder, message));
    }
    Ok(steps)
}

/// The `count` busiest experts of the last step, the busiest first; the lower number of two equals.
fn hottest(steps: &BTreeMap<u64, Vec<f64>>, count: usize, layer: usize) -> Result<Vec<usize>> {
    let last = steps.last_key_value().map(|(_, counts)| counts.as_slice()).unwrap_or_default();
    if count > last.len() {
        let message = format!("--hot_expert_num {count}: layer {layer} has {} experts; lower it", last.len());
        return Err(Error::Plan(message));
    }
    let mut experts: Vec<usize> = (0..last.len()).collect();
    // In full precision: in 16 bits, as the original compares, 2049 is 2048.
    experts.sort_by(|one, other| last[*other].total_cmp(&last[*one]));
    experts.truncate(count);
    Ok(experts)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(|error| io_error(path, "write", &error))
}
