//! Keys that say one thing in several ways. If a layer writes one of them, the values of all of them in lower layers no
//! longer count: a flag that names the files of a run replaces the files that the configuration names, and does not add
//! to them.

use super::node::Node;

/// The keys, and where they are.
#[derive(Debug)]
pub(crate) struct Replaced {
    /// The name of the sections that have them.
    pub section: &'static str,
    /// Their paths below it.
    pub keys: &'static [&'static str],
    /// A key with words that only say how the value of another key is read. With such a word the key belongs to that
    /// other key.
    pub format: Format,
}

/// A key, those of its words that are formats, and the key whose format they are.
#[derive(Debug)]
pub(crate) struct Format {
    pub key: &'static str,
    pub words: &'static [&'static str],
    pub of: &'static str,
}

impl Replaced {
    /// Drops the keys from the section `lower` if `upper`, which is laid over it, writes any of them.
    fn drop(&self, lower: &mut Node, upper: &Node) {
        let writes =
            |path: &str| upper.at(path).is_some_and(|node| !node.is_off() && !self.is_format(path, node));
        if !self.keys.iter().any(|path| writes(path)) {
            return;
        }
        for path in self.keys {
            let stays =
                lower.at(path).is_some_and(|node| self.is_format(path, node)) && writes(self.format.of);
            if let (false, Node::Map(lower)) = (stays, &mut *lower) {
                remove(lower, path);
            }
        }
    }

    /// Calls [`drop`](Self::drop) for every such section of the tree `lower` that the tree `upper` has, too.
    pub fn drop_below(&self, lower: &mut Node, upper: &Node) {
        let Node::Map(entries) = upper else { return };
        for (key, upper) in entries {
            let Some(lower) = lower.get_mut(key) else { continue };
            if key == self.section {
                self.drop(lower, upper);
            }
            self.drop_below(lower, upper);
        }
    }

    fn is_format(&self, path: &str, node: &Node) -> bool {
        path == self.format.key && node.word().is_some_and(|word| self.format.words.contains(&word))
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
