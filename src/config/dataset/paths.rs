//! Which files a loader reads, and with which weights.

use crate::config::node::{FromNode, Node};
use crate::config::section::Section;
use crate::error::Result;

/// Paths, and a weight for each or none at all.
pub(super) type Weighted = (Vec<String>, Vec<f64>);

/// `dataset_dir` and `dataset_files` together, or the blend of `data_path`.
pub(super) fn read(section: &Section) -> Result<Weighted> {
    let mut paths = Vec::new();
    for key in ["dataset_dir", "dataset_files"] {
        let found: Vec<String> = section.or(key, Vec::new())?;
        if found.iter().any(String::is_empty) {
            return Err(section.error(key, "is empty; name a file, a folder or a pattern"));
        }
        paths.extend(found);
    }
    match (blend(section)?, paths.is_empty()) {
        (Some(blend), true) => Ok(blend),
        (Some(_), false) => {
            Err(section
                .error("data_path", "stands beside `dataset_dir` or `dataset_files`; keep one of them"))
        }
        (None, false) => Ok((paths, Vec::new())),
        (None, true) => {
            let message = "needs `dataset_dir` or `dataset_files`: a file, a folder or a pattern";
            Err(section.error("type", message))
        }
    }
}

/// `data_path`: one path, or weights and paths by turns.
pub(super) fn blend(section: &Section) -> Result<Option<Weighted>> {
    let Some(node) = section.node("data_path") else { return Ok(None) };
    let items = match node {
        Node::List(items) => items.as_slice(),
        single => std::slice::from_ref(single),
    };
    let fails = |message: String| Err(section.error("data_path", message));
    if let [path] = items {
        return match String::from_node(path).filter(|path| !path.is_empty()) {
            Some(path) => Ok(Some((vec![path], Vec::new()))),
            None => fails(format!("expected a path, or weights and paths by turns, found {path}")),
        };
    }
    if items.is_empty() || !items.len().is_multiple_of(2) {
        return fails(format!("expected weights and paths by turns, found {} items", items.len()));
    }
    let (mut paths, mut weights) = (Vec::new(), Vec::new());
    for pair in items.chunks_exact(2) {
        match f64::from_node(&pair[0]).filter(|weight| *weight > 0.0) {
            Some(weight) => weights.push(weight),
            None => return fails(format!("expected a weight above 0 before {}, found {}", pair[1], pair[0])),
        }
        match String::from_node(&pair[1]).filter(|path| !path.is_empty()) {
            Some(path) => paths.push(path),
            None => return fails(format!("expected a path after the weight {}, found {}", pair[0], pair[1])),
        }
    }
    // The weight of a single source says nothing.
    if paths.len() == 1 {
        weights.clear();
    }
    Ok(Some((paths, weights)))
}
