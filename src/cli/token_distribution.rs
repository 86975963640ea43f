//! `token-distribution`: plots of how often each expert of a layer was chosen over a run.

use super::output::say;
use super::stacked_areas::{self, StackedAreas};
use crate::durable::PathOrigin;
use crate::error::{Error, Result};
use crate::store::npy;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The setting that chose the folder of the plots.
const PLOTS: PathOrigin = PathOrigin("--save_path_prefix");

/// The flags of MindFormers' tool, also accepted with hyphens.
#[derive(clap::Args)]
pub struct Arguments {
    /// Number of layers of the model
    #[arg(long = "num_layers", value_name = "N")]
    num_layers: usize,
    /// Number of busiest experts to name for each layer
    #[arg(long = "hot_expert_num", value_name = "N", default_value_t = 1)]
    hot_expert_num: usize,
    /// The folder to search recursively for layer-L_STEP.npy: the run's `summary`
    #[arg(long = "npy_files_load_path", value_name = "FOLDER")]
    npy_files_load_path: PathBuf,
    /// Prefix of the plots' paths: a folder if it ends with a slash, otherwise a folder and the beginning of the names
    #[arg(long = "save_path_prefix", value_name = "PREFIX", default_value = "./token_distribution/")]
    save_path_prefix: String,
    /// Number of the first layer with experts, from 0; those before it are dense
    #[arg(long = "first_layer", value_name = "N", default_value_t = 0)]
    first_layer: usize,
}

/// Draws each layer into PREFIXlayer-L_token_distribution.svg and .png, and prints the busiest experts at its last
/// step.
///
/// # Errors
/// A file is missing or malformed, a number does not fit the files, or a plot cannot be written.
pub fn token_distribution(arguments: &Arguments) -> Result<()> {
    let Arguments { num_layers, hot_expert_num, npy_files_load_path, save_path_prefix, first_layer } =
        arguments;
    let files = files(npy_files_load_path)?;
    if first_layer >= num_layers {
        let message =
            format!("--first_layer {first_layer} leaves none of --num_layers {num_layers}; lower it");
        return Err(Error::Plan(message));
    }
    // Read everything before drawing anything, so that an error leaves no plots.
    let layers = (*first_layer..*num_layers)
        .map(|layer| read_layer(&files, layer, npy_files_load_path).map(|steps| (layer, steps)))
        .collect::<Result<Vec<_>>>()?;
    let busiest = layers
        .iter()
        .map(|(layer, steps)| busiest(steps, *hot_expert_num, *layer))
        .collect::<Result<Vec<_>>>()?;
    if let Some(folder) = Path::new(&format!("{save_path_prefix}x")).parent() {
        PLOTS.create_folder(folder)?;
    }
    for (layer, steps) in layers {
        draw_layer(layer, steps, save_path_prefix)?;
        say!("layer-{layer} token_distribution generate successful");
    }
    // Two spaces, as in MindFormers' output: Python's print adds one after a text that ends with one.
    say!("hot_expert_index:  {busiest:?}");
    Ok(())
}

/// Writes the plots of one layer.
fn draw_layer(layer: usize, steps: BTreeMap<u64, Vec<f64>>, prefix: &str) -> Result<()> {
    let areas = StackedAreas {
        title: format!("Layer-{layer}_Token_Distribution"),
        x_label: "num of step",
        y_label: "num of token",
        series_label: "expert",
        columns: steps.into_iter().collect(),
    };
    let path = |ending: &str| PathBuf::from(format!("{prefix}layer-{layer}_token_distribution.{ending}"));
    PLOTS.write(&path("svg"), stacked_areas::svg(&areas)?.as_bytes())?;
    PLOTS.write(&path("png"), &stacked_areas::png(&areas)?)
}

/// Every .npy file below `folder`, sorted by path.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = vec![folder.to_path_buf()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let unreadable = |error: io::Error| {
            let message = format!("cannot be read: {error}; correct --npy_files_load_path");
            Error::file(&folder, message)
        };
        for entry in fs::read_dir(&folder).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let path = entry.path();
            // Linked folders are left out: they may lead back here.
            if entry.file_type().map_err(unreadable)?.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "npy") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// For each step, how often each expert of a layer was chosen. A resumed run of MindFormers may leave two files for a
/// step; the last one in order counts.
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
            return Err(Error::file(
                path,
                "expected counts of 0 or more, one for each expert; remove the file",
            ));
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

/// The `count` busiest experts of the last step, the busiest first; of equally busy ones the lower number first.
fn busiest(steps: &BTreeMap<u64, Vec<f64>>, count: usize, layer: usize) -> Result<Vec<usize>> {
    let last = steps.last_key_value().map(|(_, counts)| counts.as_slice()).unwrap_or_default();
    if count > last.len() {
        let message = format!("--hot_expert_num {count}: layer {layer} has {} experts; lower it", last.len());
        return Err(Error::Plan(message));
    }
    let mut experts: Vec<usize> = (0..last.len()).collect();
    // MindFormers compares in 16 bits, in which 2049 equals 2048.
    experts.sort_by(|one, other| last[*other].total_cmp(&last[*one]));
    experts.truncate(count);
    Ok(experts)
}
