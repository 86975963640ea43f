//! `data_loader` of a data set: its kinds and their keys.

use super::megatron::Megatron;
use super::paths::read_blend;
use super::records::{Handlers, chat_names, data_files};
use crate::data::{ChatForm, DocumentFormat, PackStrategy, Paths, TokenType};
use crate::settings::engine::*;

rows! {
    /// `data_loader` of a data set: the source of its tokens.
    pub struct Loader in "train_dataset.data_loader" {
        /// Source of the tokens: text files, JSON lines, files of token ids, Megatron's `.bin` and `.idx`, MindSpore's
        /// MindRecord files, or the Rust sources of this program's dependencies in the local cargo registry. Or records
        /// that become samples, in JSON lines, JSON arrays, CSV, TSV or Parquet: prompts and answers (ADGen), Alpaca's
        /// or ready token ids (HF), or conversations (SFT, ToolAlpaca). `MemoryDataLoader` reads nothing: a program
        /// that trains passes its own batches, so a file cannot be run with it.
        kind "type": LoaderType = Host.required(),
        /// Folder, file or pattern to read. A flag, or a file with a `base_config`, that writes this or another key
        /// that names files replaces all these keys.
        dataset_dir: Vec<String> = Host.optional().read_by(paths_in).of(NAMED).example("./data"),
        /// Files, folders and patterns to read, as one source with those of `dataset_dir`.
        dataset_files: Vec<String> = Host.optional().read_by(paths_in).of(NAMED).example("['./a', './b']"),
        /// Blend in place of `dataset_dir` and `dataset_files`: weights above 0 and paths in turns, each path a source;
        /// or one path.
        data_path: Paths = Numbers.optional().read_by(read_blend).of(FILES).example("[0.3, ./a, 0.7, ./b]"),
        /// Extent of a document: a whole `file` (the default), each `line`, or the lines between blank ones
        /// (`blank_line`).
        documents: Option<DocumentFormat> = Numbers.optional().of("TextDataLoader").example("line"),
        /// Key of the text in each JSON object; `text` by default.
        text_key: Option<String> = Numbers.optional().of("JsonlDataLoader").example("content"),
        /// File name endings to read in folders and patterns; by default all text files, and `jsonl` for JSON lines.
        extensions: Option<Vec<String>> = Host.optional().of("TextDataLoader JsonlDataLoader").example("[md]"),
        /// Most bytes of text to read, in each source of a blend; unlimited by default, 8 MiB of the registry.
        max_bytes: Option<u64> = Host.optional().within(COUNT).of(TEXT).example("4096"),
        /// Byte that ends each document where bytes are tokens; no document may contain it. 0 by default.
        eod_byte: Option<u64> = Numbers.optional().within(BYTE).of(TEXT).example("10"),
        /// Width of a token id in files without a header: `uint16`, `uint32`, or `auto`, the default, which is 16 bits
        /// (nanoGPT).
        dtype: Option<TokenType> = Host.optional().of("TokenDataLoader").example("uint32"),
        /// Numbers of samples for training, evaluation and test; 0, the default, takes all there are.
        sizes: Vec<u64> = Numbers.optional().of(MEGATRON).example("[100, 10, 0]"),
        /// Names of the columns of prompt and answer, by default `content` and `summary`.
        origin_columns: Vec<String> = Numbers.optional().of("ADGenDataLoader").example("[question, reply]"),
        /// Form of a sample: 3 is the prompt as it stands, 2 puts it into ChatGLM2's `[Round 1]`. 1, the default, is
        /// for GLM's prefix mask and not built.
        version: Option<u64> = Numbers.optional().of("ADGenDataLoader").example("2"),
        /// Format of `data_files`: `json`, `csv` or `parquet`; or a file, or a folder that starts with `.` or `/`.
        /// Nothing is downloaded.
        path: String = Host.optional().of(HUB).example("./records"),
        /// Files and patterns to read, or a section with the files of each split.
        data_files: Vec<String> = Host.optional().read_by(data_files).of(HUB).example("['./a.json']"),
        /// Split of `data_files` to read; `train` by default.
        split: Option<String> = Host.optional().of(HUB).example("train"),
        /// Steps that form samples from rows, in order: `AlpacaInstructDataHandler`; `PackingHandler`, whose
        /// `pack_strategy` is `pack`, `truncate` or `best_fit`; `take` with `n`; `rename_column`; `remove_columns`.
        /// Without the first, rows hold `input_ids`, with `labels` or without, or `text`.
        handler: Handlers = Numbers.optional().read_by(Handlers::read).of(HUB).example("[{type: PackingHandler}]"),
        /// Packing of several samples into a row, in which none attends to another: `pack` keeps samples whole, in
        /// order, and drops longer ones; `truncate` cuts at the end of a row; `best_fit` takes the longest first, each
        /// into the fullest row with room for it. Older name of the `pack_strategy` of a `PackingHandler`.
        packing: Option<PackStrategy> = Numbers.optional().of("HFDataLoader SFTDataLoader").example("truncate"),
        /// Names of a conversation's parts: `data_field` (default `messages` or `conversations`), `from_keyword`
        /// (`role` or `from`), `value_keyword` (`content` or `value`), `user_role_name` (`user` or `human`) and
        /// `assistant_role_name` (`assistant` or `gpt`).
        map_function_kwargs: ChatForm = Numbers.optional().read_by(chat_names).of(CHAT).example("{data_field: talk}"),
        /// File of the chat template; by default `chat_template.jinja` beside the tokenizer, or the `chat_template` of
        /// its `tokenizer_config.json`. A template that writes today's date takes it from `SOURCE_DATE_EPOCH`, if that
        /// is set.
        chat_template: Option<String> = Host.optional().of(CHAT).example("./chat_template.jinja"),
        /// Whether records of `prompt` and `completion`, or of `instruction` and `output`, are written without the chat
        /// template, as they always are where the tokenizer has none.
        raw: Option<bool> = Numbers.optional().of(CHAT).example("True"),
        /// Whether windows come in a new random order every epoch; for `MemoryDataLoader` the program decides.
        shuffle: bool = Numbers.default(true),
    }
    sections "config"
}

const MEGATRON: &str = "BlendedMegatronDatasetDataLoader";
const FILES: &str = "TextDataLoader JsonlDataLoader TokenDataLoader MindDataset";
const NAMED: &str =
    "TextDataLoader JsonlDataLoader TokenDataLoader MindDataset ADGenDataLoader HFDataLoader SFTDataLoader";
const HUB: &str = "HFDataLoader";
const CHAT: &str = "SFTDataLoader";
const TEXT: &str = "TextDataLoader JsonlDataLoader CargoRegistryDataLoader";
pub(super) const DEFAULT_CARGO_BYTES: u64 = 8 << 20;
const BYTE: Range = Range::new("a byte, 0 to 255", |byte| (0.0..=255.0).contains(&byte), 256.0);

words! {
    /// `data_loader.type`.
    pub enum LoaderType {
        /// Text files.
        #[default]
        Text = "TextDataLoader",
        /// Files of lines of JSON.
        Jsonl = "JsonlDataLoader",
        /// Files of token ids.
        Tokens = "TokenDataLoader",
        /// Megatron's files.
        Megatron = "BlendedMegatronDatasetDataLoader",
        /// MindRecord files.
        MindRecord = "MindDataset",
        /// Records of a prompt and an answer.
        Prompts = "ADGenDataLoader",
        /// Records of Hugging Face's kind.
        Records = "HFDataLoader" "CommonDataLoader",
        /// Conversations.
        Chat = "SFTDataLoader" "ToolAlpacaDataLoader",
        /// Batches that a program makes.
        Memory = "MemoryDataLoader",
        /// Rust sources.
        CargoRegistry = "CargoRegistryDataLoader",
    }
}

impl Words for DocumentFormat {
    /// JSON lines have a loader of their own.
    const WORDS: &'static [(&'static str, Self)] =
        &[("file", Self::File), ("line", Self::Line), ("blank_line", Self::BlankLine)];
}

impl Words for TokenType {
    const WORDS: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("uint16", Self::Uint16), ("uint32", Self::Uint32)];
}

/// Reads the loader of the data set at `path`; `None` after a fault that leaves nothing to check.
pub(super) fn read<'a>(source: &'a Source, path: &str) -> Option<(Reader<'a>, Loader, Option<Megatron>)> {
    let loader_path = format!("{path}.data_loader");
    let kind = find_type(source, path, &format!("{loader_path}.type"))?;
    let reader = Reader::open(source, &loader_path, &[Loader::ID]).of_type(kind.word());
    for (key, types) in reader.foreign::<Loader>() {
        // A launcher's flag may name a folder, which does no harm.
        if kind == LoaderType::CargoRegistry && key == "dataset_dir" {
            reader.ignore(&["dataset_dir"]);
        } else {
            reader.refuse(key, &types);
        }
    }
    if kind != LoaderType::Megatron {
        for key in ["config", "datasets_type"].into_iter().filter(|key| reader.has(key)) {
            reader.refuse(key, &[MEGATRON]);
        }
    }
    let mut loader = Loader::read(&reader);
    let megatron = (kind == LoaderType::Megatron).then(|| Megatron::read_at(source, &reader.path("config")));
    loader.fill(&reader, megatron.as_ref());
    Some((reader, loader, megatron))
}

impl Loader {
    /// Number of samples to train and to evaluate on; 0 where none is written.
    pub(super) fn sizes(&self) -> [u64; 2] {
        [0, 1].map(|index| self.sizes.get(index).copied().unwrap_or(0))
    }

    /// Fills in the defaults of Megatron's loader, whose paths are in its own section.
    pub(super) fn fill_megatron(&mut self, reader: &Reader<'_>, megatron: Option<&Megatron>) {
        let has_paths = megatron.is_some_and(|megatron| !megatron.data_path.paths.is_empty());
        if !has_paths && reader.is_sound("config") {
            let message = "needs `config.data_path`: weights and paths by turns, each path that of a .bin and an .idx file without these endings";
            reader.fault("type", message);
        }
        if self.sizes.len() > 3 {
            let found = self.sizes.len();
            let message = format!("expected samples to train, evaluate and test on, found {found} numbers");
            reader.fault("sizes", message);
        }
        self.sizes = [&self.sizes()[..], &[0]].concat();
    }

    /// Fills in the defaults of the kind, and leaves only one form of the paths.
    fn fill(&mut self, reader: &Reader<'_>, megatron: Option<&Megatron>) {
        if let Some(extensions) = &mut self.extensions {
            extensions.iter_mut().for_each(|one| *one = one.trim_start_matches('.').to_string());
        }
        match self.kind {
            LoaderType::Text => {
                self.fill_paths(reader);
                self.documents.get_or_insert(DocumentFormat::File);
            }
            LoaderType::Jsonl => {
                self.fill_paths(reader);
                self.text_key.get_or_insert("text".to_string());
                // A folder of JSON lines often holds other files, none of whose lines would parse.
                self.extensions.get_or_insert_with(|| vec!["jsonl".to_string()]);
            }
            LoaderType::Tokens => {
                self.fill_paths(reader);
                self.dtype.get_or_insert(TokenType::Auto);
            }
            LoaderType::Megatron => self.fill_megatron(reader, megatron),
            LoaderType::MindRecord | LoaderType::Chat => self.fill_paths(reader),
            LoaderType::Prompts => {
                self.fill_paths(reader);
                self.fill_prompts(reader);
            }
            LoaderType::Records => {
                self.dataset_files.splice(0..0, std::mem::take(&mut self.dataset_dir));
                self.fill_hub(reader);
            }
            LoaderType::Memory => {}
            LoaderType::CargoRegistry => {
                self.max_bytes.get_or_insert(DEFAULT_CARGO_BYTES);
            }
        }
        if self.has_bytes() {
            self.eod_byte.get_or_insert(0);
        }
    }

    /// Leaves only `dataset_files`, or the blend of `data_path` if it has weights.
    fn fill_paths(&mut self, reader: &Reader<'_>) {
        let mut paths = std::mem::take(&mut self.dataset_dir);
        paths.append(&mut self.dataset_files);
        let is_sound = reader.are_sound(&["dataset_dir", "dataset_files", "data_path"]);
        let has_blend = !self.data_path.paths.is_empty();
        if has_blend && !paths.is_empty() {
            reader.fault("data_path", "stands beside `dataset_dir` or `dataset_files`; keep one of them");
        } else if !has_blend && paths.is_empty() && is_sound && self.kind == LoaderType::MindRecord {
            // Files of MindFormers leave the path to the launcher's `--train_dataset_dir`.
            let message = "needs `dataset_dir` or `dataset_files`: a .mindrecord file, a folder or a pattern";
            reader.source.data_fault(&reader.path("type"), message);
        } else if !has_blend && paths.is_empty() && is_sound {
            reader.fault("type", "needs `dataset_dir` or `dataset_files`: a file, a folder or a pattern");
        }
        if self.data_path.weights.is_empty() {
            paths.append(&mut self.data_path.paths);
        }
        self.dataset_files = paths;
    }
}

/// Whether the data set at `path` has a loader that is known and not built, so that nothing reads the keys it
/// needs.
pub(super) fn is_planned(source: &Source, path: &str) -> bool {
    let word = source.word(&format!("{path}.data_loader.type"));
    word.is_some_and(|word| source.plans(Loader::ID, word))
}

/// Whether the data set at `path` has rows of token ids.
pub(super) fn has_rows(source: &Source, path: &str) -> bool {
    source.word(&format!("{path}.data_loader.type")) == Some(LoaderType::MindRecord.word())
}

/// The type of the data set's loader. A missing type, or one that is not built, keeps only the data set's own data from
/// loading.
fn find_type(source: &Source, path: &str, kind_path: &str) -> Option<LoaderType> {
    let reads = |kind: &LoaderType| *kind != LoaderType::Memory;
    let known = || LoaderType::WORDS.iter().filter(|(_, kind)| reads(kind)).map(|(word, _)| *word);
    let Some(word) = source.word(kind_path) else {
        let names = known().collect::<Vec<_>>().join(", ");
        source.data_fault(path, format!("`data_loader.type` is missing; write one of {names}"));
        return None;
    };
    let kind = LoaderType::named(word);
    let remedy = || {
        let [text, tokens, rows] =
            [LoaderType::Text, LoaderType::Tokens, LoaderType::MindRecord].map(|kind| kind.word());
        match word {
            "TFRecordDataset" => {
                format!("convert the data with MindSpore's TFRecordToMR, and write `{rows}`")
            }
            _ => format!("convert the data to text ({text}) or to files of token ids ({tokens})"),
        }
    };
    if kind.is_none() && is_planned(source, path) {
        source.data_fault(kind_path, format!("`{word}` is not built; {}", remedy()));
    } else if kind.is_none() {
        let message = match closest(word, known()) {
            Some(name) => format!("unknown type `{word}`; did you mean `{name}`?"),
            None => format!("`{word}` is no data loader; {}", remedy()),
        };
        source.fault(kind_path, message);
    }
    kind
}

/// Paths, none of which may be empty. In files of MindFormers, an empty path counts as no path.
fn paths_in(reader: &Reader<'_>, key: &'static str) -> Option<Vec<String>> {
    let mut paths: Vec<String> = reader.convert(key, reader.node(key)?)?;
    if reader.kind_is(LoaderType::MindRecord.word()) {
        paths.retain(|path| !path.is_empty());
    }
    if paths.iter().any(String::is_empty) {
        reader.fault(key, "is empty; name a file, a folder or a pattern");
        return None;
    }
    Some(paths)
}
