//! Finds the source of a chat template.

use std::path::Path;

use serde_json::Value;

use crate::error::Error;

/// The templates of a tokenizer.
#[derive(Debug)]
pub(super) struct Sources {
    pub default: String,
    /// The template for conversations with tools, if it is another.
    pub with_tools: Option<String>,
}

impl Sources {
    /// The templates of a `tokenizer_config.json`: a single text, or several with a name each, of which `transformers`
    /// uses these two.
    pub fn of(config: &Value) -> Option<Self> {
        match config.get("chat_template")? {
            Value::String(source) => Some(Self { default: source.clone(), with_tools: None }),
            Value::Array(templates) => {
                let named = |name: &str| {
                    let found = templates.iter().find(|template| template["name"] == name)?;
                    found["template"].as_str().map(str::to_string)
                };
                Some(Self {
                    default: named("default").or_else(|| named("tool_use"))?,
                    with_tools: named("tool_use"),
                })
            }
            _ => None,
        }
    }
}

/// The error that there is no template.
pub(super) fn none(tokenizer: Option<&Path>) -> Error {
    let remedy = "name a Jinja file: by --chat-template where a command has that flag, or by `chat_template` under the data_loader";
    let Some(tokenizer) = tokenizer else {
        let place = Path::new("the data set");
        return Error::file(
            place,
            format!("has no tokenizer and no chat template, which conversations need; {remedy}"),
        );
    };
    let config = tokenizer.with_file_name("tokenizer_config.json");
    let (place, what) = match config.is_file() {
        true => (config.as_path(), "has no `chat_template`"),
        false => (tokenizer.parent().unwrap_or(Path::new("")), "has no chat template"),
    };
    Error::file(place, format!("{what}, which conversations need; {remedy}"))
}
