//! The keys by which a loader names its files. Where a layer of a configuration writes one of them, what lower layers
//! say by any of them no longer counts: a flag that names the files of a run replaces the files that the configuration
//! names, and does not add to them.

use super::paths::FORMATS;
use crate::settings::engine::Node;

/// The sections that have them.
const SECTION: &str = "data_loader";
const KEYS: [&str; 6] =
    ["dataset_dir", "dataset_files", "data_path", "path", "data_files", "config.data_path"];

/// For every such section of the tree `lower` that the tree `upper`, which is laid over it, has too: drops these keys
/// from the lower one if the upper one writes any of them.
pub(crate) fn drop_replaced(lower: &mut Node, upper: &Node) {
    let Node::Map(entries) = upper else { return };
    for (key, upper) in entries {
        let Some(lower) = lower.get_mut(key) else { continue };
        if key == SECTION {
            drop_keys(lower, upper);
        }
        drop_replaced(lower, upper);
    }
}

fn drop_keys(lower: &mut Node, upper: &Node) {
    // A `path` that is a format says how the value of `data_files` is read, and belongs to that key.
    let is_format =
        |path: &str, node: &Node| path == "path" && node.word().is_some_and(|word| FORMATS.contains(&word));
    let writes = |path: &str| upper.at(path).is_some_and(|node| !node.is_off() && !is_format(path, node));
    if !KEYS.iter().any(|path| writes(path)) {
        return;
    }
    for path in KEYS {
        let stays = lower.at(path).is_some_and(|node| is_format(path, node)) && writes("data_files");
        if let (false, Node::Map(lower)) = (stays, &mut *lower) {
            remove(lower, path);
        }
    }
}

/// Removes the value at a dotted path, and the sections that this leaves empty.
fn remove(entries: &mut Vec<(String, Node)>, path: &str) {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let Some(index) = entries.iter().position(|(name, _)| name == first) else { return };
    let is_left = match &mut entries[index].1 {
        Node::Map(below) if !rest.is_empty() => {
            remove(below, rest);
            !below.is_empty()
        }
        _ => !rest.is_empty(),
    };
    if !is_left {
        entries.remove(index);
    }
}
