//! The sections about the machine: `context` and `parallel_config`.

use super::document::Document;
use super::known_keys;
use super::section::{Notes, Section};
use crate::error::Result;
use crate::kernels::Tier;

/// `context` as written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContextSection {
    /// Part of the name of the adapter to take.
    pub device_name: Option<String>,
    /// Which tier of kernels to take, where more than one runs.
    pub tier: Option<Tier>,
    /// Upper limit of the memory pool in bytes.
    pub max_device_memory: Option<u64>,
}

/// The original's sizes are powers of 1024, whatever the unit is called.
const UNITS: [(&str, u64); 6] =
    [("GB", 1 << 30), ("GIB", 1 << 30), ("G", 1 << 30), ("MB", 1 << 20), ("MIB", 1 << 20), ("M", 1 << 20)];

pub(super) fn read_context(document: &Document, notes: &mut Notes) -> Result<ContextSection> {
    let section = Section::open(document, "context", &known_keys::CONTEXT, notes)?;
    let name: Option<String> = section.get("tier")?;
    let named = |name: String| {
        let names = Tier::ALL.map(Tier::name).join(", ");
        Tier::named(&name)
            .ok_or_else(|| section.error("tier", format!("expected one of {names}, found `{name}`")))
    };
    let tier = name.map(named).transpose()?;
    let size: Option<String> = section.get("max_device_memory")?;
    let max_device_memory = match size {
        None => None,
        Some(size) => Some(bytes(&size).ok_or_else(|| {
            section
                .error("max_device_memory", format!("expected a size such as 8GB or 512MB, found `{size}`"))
        })?),
    };
    Ok(ContextSection { device_name: section.get("device_name")?, tier, max_device_memory })
}

/// Says what is made of a configuration for many devices: one rank runs it.
pub(super) fn read_parallel(document: &Document, notes: &mut Notes) -> Result<()> {
    let section = Section::open(document, "parallel_config", &known_keys::PARALLEL, notes)?;
    let mut asked = Vec::new();
    for key in ["data_parallel", "model_parallel", "pipeline_stage", "context_parallel"] {
        let degree = section.positive(key, 1)?;
        if degree > 1 {
            asked.push(format!("{key} {degree}"));
        }
    }
    if !asked.is_empty() {
        notes.add(format!("parallel_config asks for {}; this run is one rank and takes 1", asked.join(", ")));
    }
    let interleave = document.get("micro_batch_interleave_num").filter(|node| !node.is_off());
    if let Some(node) = interleave.filter(|node| **node != super::node::Node::Int(1)) {
        notes.add(format!(
            "micro_batch_interleave_num {node} is taken as 1: a step sees batch_size x gradient_accumulation_steps windows"
        ));
    }
    Ok(())
}

fn bytes(size: &str) -> Option<u64> {
    let size = size.trim().to_ascii_uppercase();
    let digits = size.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = UNITS.iter().find(|(name, _)| *name == &size[digits.len()..])?.1;
    let count: f64 = digits.trim().parse().ok()?;
    let bytes = count * unit as f64;
    (bytes >= 1.0 && bytes < u64::MAX as f64).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes() {
        assert_eq!(bytes("58GB"), Some(58 << 30));
        assert_eq!(bytes("0.5 GiB"), Some(1 << 29));
        assert_eq!(bytes("512mb"), Some(512 << 20));
        for wrong in ["58", "GB", "-1GB", "1e99GB", "1TB", "infGB", "é"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
