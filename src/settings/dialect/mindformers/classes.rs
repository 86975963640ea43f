//! The classes of MindFormers: the classes that are built, each with its type here, and the classes that are not.
//! `classes.tsv` lists them.

use super::lines;
use crate::settings::engine::*;
use crate::settings::sections::model::{ModelType, PATH};

/// A line of `classes.tsv`.
struct Class {
    /// The type here; empty for classes that are not built.
    word: &'static str,
    /// The class of its configuration.
    config: &'static str,
    /// The classes of models that go with it, between spaces.
    models: &'static str,
    /// Why the classes are not built.
    why: &'static str,
}

/// The classes that are built, or those that are not.
fn classes(are_built: bool) -> impl Iterator<Item = Class> {
    let class = |[word, config, models, why]: [&'static str; 4]| Class { word, config, models, why };
    lines(include_str!("classes.tsv")).map(class).filter(move |class| class.word.is_empty() != are_built)
}

const ARCH: &str = "model.arch.type";

/// Writes the type that `model_config.type` and `arch.type` name, Llama where neither does; `None` after a fault.
pub(super) fn translate(source: &mut Source) -> Option<ModelType> {
    let config = join(PATH, "type");
    if [&config, ARCH].into_iter().any(|path| stays_out(source, path)) {
        return None;
    }
    let is_called = |class: &Class| match source.node(&config) {
        Some(node) => node.word().is_some_and(|word| class.word == word || class.config == word),
        None => true,
    };
    let named: Vec<Class> = classes(true).filter(is_called).collect();
    let Some(first) = named.first() else {
        let found = source.node(&config).map_or(String::new(), ToString::to_string);
        let list = "`gristmill explain model.model_config.type` lists those that are";
        source.fault(&config, format!("{found} is not built; {list}"));
        return None;
    };
    let class = match source.node(ARCH) {
        None => first,
        Some(arch) => match named.iter().find(|class| class.computes(arch)) {
            Some(class) => class,
            None => {
                source.fault(ARCH, first.does_not_go_with(arch, &named));
                return None;
            }
        },
    };
    let origin = [config.as_str(), ARCH].into_iter().find(|path| source.node(path).is_some());
    if let Some(origin) = origin {
        source.document.put(&config, class.word.into(), origin);
    }
    ModelType::named(class.word)
}

impl Class {
    fn computes(&self, arch: &Node) -> bool {
        arch.word().is_some_and(|word| has_word(self.models, word))
    }

    /// Why `arch` is not the model of this class. The classes `named` have the name that is written.
    fn does_not_go_with(&self, arch: &Node, named: &[Self]) -> String {
        if classes(true).any(|class| class.computes(arch)) {
            return format!("is not the model of `{}`; change one of the two", self.word);
        }
        let known: Vec<&str> = named.iter().filter_map(|class| words(class.models).next()).collect();
        format!("{arch} is not built; write `type: {}`", known.join("` or `type: "))
    }
}

/// The documentation of the classes of the type `word`.
pub(super) fn about(word: &str) -> String {
    let Some(class) = classes(true).find(|class| class.word == word) else { return String::new() };
    let models = words(class.models).collect::<Vec<_>>().join("`, `");
    match class.config == class.word {
        true => format!(" `model.arch.type`: `{models}`."),
        false => {
            format!(" In MindFormers its configuration is `{}`. `model.arch.type`: `{models}`.", class.config)
        }
    }
}

/// The documentation of the classes that are not built.
pub(super) fn about_outside() -> String {
    let about = |class: Class| {
        let models: Vec<&str> = words(class.models).collect();
        format!(" `{}`: {}.", models.join("`, `"), class.why)
    };
    classes(false).map(about).collect()
}

/// Whether the class at `path` is not built, which is then reported as a fault.
pub(super) fn stays_out(source: &Source, path: &str) -> bool {
    let Some(word) = source.word(path) else { return false };
    let outside = classes(false).find(|class| has_word(class.models, word));
    if let Some(class) = &outside {
        source.fault(path, format!("`{word}` is not built: {}", class.why));
    }
    outside.is_some()
}
