//! The files that a loader reads, and their weights.

use crate::data::Paths;
use crate::settings::engine::*;

/// Values of `path` that name no files, but the format of `data_files`.
pub(super) const FORMATS: [&str; 3] = ["json", "csv", "parquet"];

/// Shares of the documents to train, evaluate and test on; they sum to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Split(pub [f64; 3]);

impl Default for Split {
    /// All documents are for training.
    fn default() -> Self {
        Self([1.0, 0.0, 0.0])
    }
}

impl Setting for Paths {
    fn kind() -> ValueKind {
        ValueKind::Form("a path, or weights and paths in turns")
    }

    fn to_node(&self) -> Option<Node> {
        let paths = self.paths.iter().map(|path| Node::from(path.as_str()));
        let weights = self.weights.iter().map(|weight| Node::from(*weight));
        let items: Vec<Node> = match self.weights.is_empty() {
            true => paths.collect(),
            false => weights.zip(paths).flat_map(|(weight, path)| [weight, path]).collect(),
        };
        (!items.is_empty()).then_some(Node::List(items))
    }

    /// Only the weights: data may move, and the content of the files has a fingerprint.
    fn to_decision(&self) -> Option<Node> {
        self.weights.to_node()
    }
}

impl Split {
    /// One to three shares, as text or as a list; only their proportions matter.
    pub(super) fn read(reader: &Reader<'_>, key: &'static str) -> Option<Self> {
        let node = reader.node(key)?;
        let split = Self::from_node(node);
        if split.is_none() {
            let message = "expected the shares to train, evaluate and test on, such as \"0.9, 0.1, 0\"";
            reader.fault(key, format!("{message}, found {node}"));
        }
        split
    }
}

impl Setting for Split {
    fn kind() -> ValueKind {
        ValueKind::Form("one to three shares, as text or a list")
    }

    fn from_node(node: &Node) -> Option<Self> {
        let shares: Option<Vec<f64>> = match node {
            Node::Text(text) => text.split(',').map(|share| share.trim().parse().ok()).collect(),
            node => Vec::from_node(node),
        };
        let fits = |shares: &Vec<f64>| {
            let fine = |share: &f64| share.is_finite() && *share >= 0.0;
            (1..=3).contains(&shares.len()) && shares.iter().all(fine) && shares[0] > 0.0
        };
        let mut shares = shares.filter(fits)?;
        shares.resize(3, 0.0);
        let sum: f64 = shares.iter().sum();
        Some(Self([shares[0] / sum, shares[1] / sum, shares[2] / sum]))
    }

    fn to_node(&self) -> Option<Node> {
        self.0.to_vec().to_node()
    }
}

/// Weights and paths in turns, or paths alone.
pub(super) fn read_blend(reader: &Reader<'_>, key: &'static str) -> Option<Paths> {
    let node = reader.node(key)?;
    let items = match node {
        Node::List(items) => items.as_slice(),
        single => std::slice::from_ref(single),
    };
    parse_blend(items).map_err(|message| reader.fault(key, message)).ok()
}

fn parse_blend(items: &[Node]) -> Result<Paths, String> {
    let path = |node: &Node| String::from_node(node).filter(|path| !path.is_empty());
    if let [single] = items {
        let path = path(single)
            .ok_or_else(|| format!("expected a path, or weights and paths by turns, found {single}"))?;
        return Ok(Paths { paths: vec![path], weights: Vec::new() });
    }
    if items.is_empty() || !items.len().is_multiple_of(2) {
        return Err(format!("expected weights and paths by turns, found {} items", items.len()));
    }
    let mut blend = Paths::default();
    for pair in items.chunks_exact(2) {
        let weight = f64::from_node(&pair[0]).filter(|weight| *weight > 0.0);
        let weight = weight
            .ok_or_else(|| format!("expected a weight above 0 before {}, found {}", pair[1], pair[0]))?;
        let path = path(&pair[1])
            .ok_or_else(|| format!("expected a path after the weight {}, found {}", pair[0], pair[1]))?;
        blend.weights.push(weight);
        blend.paths.push(path);
    }
    // The weight of a single source has no effect.
    if blend.paths.len() == 1 {
        blend.weights.clear();
    }
    Ok(blend)
}
