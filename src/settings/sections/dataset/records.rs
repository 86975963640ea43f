//! The keys of loaders of records: how a record becomes a sample.

use super::loader::{Loader, LoaderType};
use super::paths::FORMATS;
use super::rows::DatasetKeys;
use crate::data::{ChatForm, Form, PackStrategy, PromptForm, PromptStyle, RecordFiles};
use crate::settings::engine::*;

/// The keys that name the files, for messages.
const FILES: &str = "`dataset_dir` or `dataset_files`";
const HUB_FILES: &str = "`path` or `data_files`";

impl Words for PackStrategy {
    const WORDS: &'static [(&'static str, Self)] =
        &[("pack", Self::Pack), ("truncate", Self::Truncate), ("best_fit", Self::BestFit)];
}

/// Steps that make samples of the rows of a Hugging Face data set, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Handlers(pub(super) Vec<Handler>);

/// One such step.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Handler {
    /// `AlpacaInstructDataHandler`.
    Alpaca,
    /// `PackingHandler`.
    Pack(PackStrategy),
    /// `take`: only the first rows.
    Take(u64),
    /// `rename_column`: a new name for a column.
    Rename(String, String),
}

/// What this program does in place of the padding that handlers of MindFormers ask for.
const UNREAD: &str = "rows are filled to seq_length, and what fills them is neither attended to nor learned";

const KINDS: &str = "AlpacaInstructDataHandler PackingHandler take rename_column remove_columns";

impl Setting for Handlers {
    fn kind() -> ValueKind {
        ValueKind::Form("a list of sections, each with a `type`")
    }

    fn to_node(&self) -> Option<Node> {
        let section = |pairs: &[(&str, Node)]| {
            Node::Map(pairs.iter().map(|(key, node)| (key.to_string(), node.clone())).collect())
        };
        let items = self.0.iter().map(|handler| match handler {
            Handler::Alpaca => section(&[("type", "AlpacaInstructDataHandler".into())]),
            Handler::Pack(strategy) => {
                section(&[("type", "PackingHandler".into()), ("pack_strategy", strategy.word().into())])
            }
            Handler::Take(count) => section(&[("type", "take".into()), ("n", (*count).into())]),
            Handler::Rename(old, new) => section(&[
                ("type", "rename_column".into()),
                ("original_column_name", old.as_str().into()),
                ("new_column_name", new.as_str().into()),
            ]),
        });
        let items: Vec<Node> = items.collect();
        (!items.is_empty()).then_some(Node::List(items))
    }
}

impl Handlers {
    /// Reads the steps; those that change nothing here are left out.
    pub(super) fn read(reader: &Reader<'_>, key: &'static str) -> Option<Self> {
        let node = reader.node(key)?;
        let items = match node {
            Node::List(items) => items.as_slice(),
            single => std::slice::from_ref(single),
        };
        let mut handlers = Vec::new();
        for item in items {
            match read_handler(reader, key, item) {
                Ok(handler) => handlers.extend(handler),
                Err(message) => {
                    reader.fault(key, message);
                    return None;
                }
            }
        }
        Some(Self(handlers))
    }

    fn packing(&self) -> Option<PackStrategy> {
        self.0.iter().find_map(|handler| match handler {
            Handler::Pack(strategy) => Some(*strategy),
            _ => None,
        })
    }
}

fn read_handler(reader: &Reader<'_>, key: &str, node: &Node) -> Result<Option<Handler>, String> {
    let Node::Map(entries) = node else {
        return Err(format!("expected {}, found {node}", Handlers::kind().expected()));
    };
    let word = node.get("type").and_then(Node::word).unwrap_or_default();
    let known = match word {
        "AlpacaInstructDataHandler" => "seq_length padding tokenizer is_dynamic pad_token_id ignore_token_id",
        "PackingHandler" => "seq_length pack_strategy tokenizer pad_token_id ignore_token_id",
        "take" => "n",
        "rename_column" => "original_column_name new_column_name",
        "remove_columns" => "column_names",
        other => return Err(unknown_type(other, words(KINDS))),
    };
    let is_known = |key: &str| key == "type" || words(known).any(|one| one == key);
    if let Some((other, _)) = entries.iter().find(|(key, _)| !is_known(key)) {
        return Err(format!("`{word}` has no key `{other}`, only {known}; remove it"));
    }
    let of_model = reader.source.node("model.model_config.seq_length").and_then(u64::from_node);
    if let (Some(own), Some(model)) = (node.get("seq_length").and_then(u64::from_node), of_model)
        && own != model
    {
        return Err(format!(
            "seq_length {own} of `{word}` differs from model.model_config.seq_length {model}; write the same"
        ));
    }
    if node.get("tokenizer").is_some() {
        reader.note(key, format!("the tokenizer of `{word}` is that of the data set, `tokenizer`"));
    }
    for unread in ["padding", "is_dynamic", "pad_token_id", "ignore_token_id"] {
        if node.get(unread).is_some_and(|value| !value.is_none()) {
            reader.note(key, format!("`{unread}` of `{word}` is not read; {UNREAD}"));
        }
    }
    let text = |key: &str| {
        let value = node.get(key).and_then(String::from_node);
        value.ok_or_else(|| format!("`{word}` needs text under `{key}`"))
    };
    Ok(match word {
        "AlpacaInstructDataHandler" => Some(Handler::Alpaca),
        "PackingHandler" => {
            let strategy =
                node.get("pack_strategy").map_or(Some(PackStrategy::Pack), PackStrategy::from_node);
            let strategy =
                strategy.ok_or_else(|| "`pack_strategy` is pack, truncate or best_fit".to_string())?;
            Some(Handler::Pack(strategy))
        }
        "take" => {
            let count = node.get("n").and_then(u64::from_node).filter(|count| *count > 0);
            Some(Handler::Take(
                count.ok_or_else(|| "`take` needs a number of rows above 0 under `n`".to_string())?,
            ))
        }
        "rename_column" => Some(Handler::Rename(text("original_column_name")?, text("new_column_name")?)),
        _ => {
            let columns = node.get("column_names").and_then(Vec::<String>::from_node).unwrap_or_default();
            let read = columns.iter().find(|name| ["input_ids", "labels"].contains(&name.as_str()));
            if let Some(read) = read {
                let remedy = "give it another name by `rename_column`";
                return Err(format!("`remove_columns` takes `{read}`, which makes the samples; {remedy}"));
            }
            None // columns that nothing reads do no harm
        }
    })
}

/// The names of a conversation's parts in `map_function_kwargs` of `SFTDataLoader`.
const CHAT_NAMES: [&str; 5] =
    ["data_field", "from_keyword", "value_keyword", "user_role_name", "assistant_role_name"];

/// Reads the names of a conversation's parts. The chat template does what other arguments of MindFormers' function do.
pub(super) fn chat_names(reader: &Reader<'_>, key: &'static str) -> Option<ChatForm> {
    let node = reader.node(key)?;
    let Node::Map(entries) = node else {
        reader.fault(key, format!("expected {}, found {node}", ChatForm::kind().expected()));
        return None;
    };
    let [messages, role, content, user, assistant] =
        CHAT_NAMES.map(|name| node.get(name).and_then(String::from_node));
    for (other, _) in entries.iter().filter(|(name, _)| !CHAT_NAMES.contains(&name.as_str())) {
        reader.note(key, format!("`{other}` is not read; the chat template says what surrounds a turn"));
    }
    Some(ChatForm { messages, role, content, user, assistant, ..ChatForm::default() })
}

impl Setting for ChatForm {
    fn kind() -> ValueKind {
        ValueKind::Form("a section of names, such as `from_keyword`")
    }

    fn to_node(&self) -> Option<Node> {
        let names = [&self.messages, &self.role, &self.content, &self.user, &self.assistant];
        let named = CHAT_NAMES.iter().zip(names);
        let pairs = named.filter_map(|(key, name)| Some((key.to_string(), name.as_deref()?.into())));
        let pairs: Vec<(String, Node)> = pairs.collect();
        (!pairs.is_empty()).then_some(Node::Map(pairs))
    }
}

/// Reads `data_files`: files, or a section with the files of each split.
pub(super) fn data_files(reader: &Reader<'_>, key: &'static str) -> Option<Vec<String>> {
    let node = reader.node(key)?;
    let node = match node {
        Node::Map(_) => {
            let split = reader.node("split").and_then(String::from_node).unwrap_or("train".to_string());
            let Some(files) = node.get(&split) else {
                reader.fault(
                    key,
                    format!("has no files of the split `{split}`; name them, or another `split`"),
                );
                return None;
            };
            files
        }
        node => node,
    };
    reader.convert(key, node)
}

impl Loader {
    /// Fills in the defaults of a loader of prompts, and checks that keys fit together.
    pub(super) fn fill_prompts(&mut self, reader: &Reader<'_>) {
        if self.origin_columns.is_empty() {
            self.origin_columns = ["content", "summary"].map(String::from).to_vec();
        }
        if self.origin_columns.len() != 2 {
            reader.fault(
                "origin_columns",
                "expected the names of two columns, of the prompt and of the answer",
            );
        }
        match self.version {
            Some(2 | 3) => {}
            None | Some(1) if reader.is_sound("version") => {
                let message = "version 1, the default, forms samples for GLM's prefix mask, which is not built; write `version: 3`, or 2 for ChatGLM2's rounds";
                let key = if reader.has("version") { "version" } else { "type" };
                reader.source.data_fault(&reader.path(key), message);
            }
            None | Some(1) => {}
            Some(other) => reader.fault("version", format!("expected 2 or 3, found `{other}`")),
        }
    }

    /// As [`fill_prompts`](Self::fill_prompts), of Hugging Face's loader.
    pub(super) fn fill_hub(&mut self, reader: &Reader<'_>) {
        let is_format = |path: &str| FORMATS.contains(&path);
        let has_files = !self.data_files.is_empty() || !self.dataset_files.is_empty();
        let is_sound = reader.are_sound(&["path", "data_files", "dataset_dir", "dataset_files"]);
        if is_hub_name(&self.path) && !is_format(&self.path) {
            let message = format!(
                "`{}` is a data set of the Hugging Face hub, from which nothing is downloaded; download its files, write `path: json` or `parquet`, and name them under `data_files`",
                self.path
            );
            reader.source.data_fault(&reader.path("path"), message);
        } else if is_sound && !has_files && (self.path.is_empty() || is_format(&self.path)) {
            reader.fault(
                "type",
                "needs `data_files`: files of JSON or Parquet; or `path`, a folder such as ./data",
            );
        }
        if let Some(split) = self.split.as_deref().filter(|split| split.contains('[')) {
            let message = format!(
                "`{split}` is a part of a split; write a handler `{{type: take, n: ...}}` for its first rows"
            );
            reader.fault("split", message);
        }
        if matches!(reader.node("data_files"), Some(Node::Map(_))) {
            self.split = None; // in such a section, the split selected the files that were read
        }
        let is_of_files = is_sound && (has_files || !is_hub_name(&self.path));
        let is_another = |split: &&str| is_of_files && *split != "train" && !split.contains('[');
        if let Some(split) = self.split.as_deref().filter(is_another) {
            let message =
                format!("files are the split `train`, unless `data_files` is a section with `{split}`");
            reader.fault("split", message);
        }
        let handlers = &self.handler.0;
        let packed = handlers.iter().position(|handler| matches!(handler, Handler::Pack(_)));
        if packed.is_some_and(|at| at + 1 < handlers.len()) {
            reader.fault("handler", "`PackingHandler` must be the last one");
        }
        if let Some(strategy) = self.packing.take() {
            if packed.is_none() {
                self.handler.0.push(Handler::Pack(strategy));
            } else if self.handler.packing() != Some(strategy) {
                reader.fault("packing", "differs from `pack_strategy` of `PackingHandler`; keep one of them");
            }
        }
    }

    /// How a record becomes a sample; `keys` are the data set's own keys.
    pub(super) fn form(&self, keys: &DatasetKeys) -> Form {
        let length = |key: Option<u64>| key.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
        match self.kind {
            LoaderType::Prompts => Form::Prompts(PromptForm {
                columns: [0, 1].map(|index| self.origin_columns.get(index).cloned().unwrap_or_default()),
                style: if self.version == Some(2) { PromptStyle::Round } else { PromptStyle::Plain },
                max_source_length: length(keys.max_source_length),
                max_target_length: length(keys.max_target_length),
            }),
            LoaderType::Chat => {
                let template = self.chat_template.as_ref().map(Into::into);
                let raw = self.raw.unwrap_or(false);
                Form::Chat(ChatForm { template, raw, ..self.map_function_kwargs.clone() })
            }
            _ if self.handler.0.contains(&Handler::Alpaca) => Form::Alpaca,
            _ => Form::Columns,
        }
    }

    /// How several samples share a row.
    pub(super) fn packing(&self) -> Option<PackStrategy> {
        self.packing.or(self.handler.packing())
    }

    /// The files of records, and what is taken of them.
    pub(super) fn record_files(&self) -> RecordFiles {
        let is_hub = self.kind == LoaderType::Records;
        let path = Some(&self.path).filter(|path| !path.is_empty() && !FORMATS.contains(&path.as_str()));
        let mut files = RecordFiles {
            paths: self.dataset_files.iter().chain(&self.data_files).chain(path).cloned().collect(),
            keys: if is_hub { HUB_FILES } else { FILES },
            ..RecordFiles::default()
        };
        for handler in &self.handler.0 {
            match handler {
                Handler::Take(count) => files.most = Some(files.most.map_or(*count, |most| most.min(*count))),
                Handler::Rename(old, new) => files.renamed.push((old.clone(), new.clone())),
                Handler::Alpaca | Handler::Pack(_) => {}
            }
        }
        files
    }
}

/// Whether `path` is a name on the hub (`owner/name`), not a path: it has no file ending, and starts with neither `.`
/// nor `/`.
fn is_hub_name(path: &str) -> bool {
    let is_path = path.starts_with(['.', '/', '~']) || path.contains(['*', '\\', ':']);
    let is_file = [".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet"]
        .iter()
        .any(|ending| path.ends_with(ending));
    !path.is_empty() && !is_path && !is_file
}
