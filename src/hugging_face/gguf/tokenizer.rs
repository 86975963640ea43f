//! The keys of a tokenizer.
//!
//! llama.cpp has two kinds of byte pair encoding that files here have: `gpt2`, whose letters are bytes, with merges and
//! the name of what splits a text before them (`pre_tokenizers.json`), and `llama`, SentencePiece's, which joins the
//! two neighbours whose union has the highest score. The score of a token is the negative rank of the merge that makes
//! it: of the scores of a `tokenizer.model`, from which merges are made, only the order counts.

use super::Keys;
use crate::data::tokenizer::{SpecialTokens, Tokenizer};
use crate::data::{ChatTemplate, Codec};
use crate::durable::read_json;
use crate::error::{Error, Result};
use pmetal_gguf::MetadataValue::{Array, Bool, Float32, Int32, String as Text, Uint32};
use pmetal_gguf::tokenizer::token_type::{BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED};
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::sync::LazyLock;

/// What llama.cpp may read that this does not write.
const REMEDY: &str = "write the model as a folder, which llama.cpp's own convert_hf_to_gguf.py may read";
/// The blank of SentencePiece.
const BLANK: &str = "\u{2581}";

/// The splits of texts that llama.cpp knows by name.
static PRE_TOKENIZERS: LazyLock<Vec<PreTokenizer>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("pre_tokenizers.json"))
        .expect("pre_tokenizers.json is a table of splits")
});

/// A split of texts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PreTokenizer {
    /// What llama.cpp calls it.
    name: String,
    /// Regular expressions, one after the other; `GPT-2` is that of ByteLevel.
    splits: Vec<String>,
    /// Whether a word that is a token is not split into the tokens that its merges make.
    #[serde(default)]
    ignores_merges: bool,
}

/// What turns the texts of a model into tokens.
pub(crate) struct TextFiles<'a> {
    pub codec: &'a Codec,
    /// The `tokenizer.json`.
    pub tokenizer: &'a Path,
    /// The chat template, where it is not the tokenizer's.
    pub template: Option<&'a Path>,
    /// The tokens that end a text.
    pub stops: &'a [u32],
}

/// The keys of the tokenizer of a model with `vocab_size` rows in its embedding.
///
/// # Errors
/// A tokenizer that llama.cpp does not have; a file that cannot be read.
pub(crate) fn tokenizer_keys(files: &TextFiles<'_>, vocab_size: usize) -> Result<Keys> {
    let file = files.tokenizer;
    let refused = |what: &str| Error::file(file, format!("{what}; {REMEDY}"));
    let json: Value = read_json(file, "a tokenizer", "name a tokenizer.json in Hugging Face's format")?;
    let loaded = match files.codec.tokenizer() {
        Some(_) => None,
        None => Some(Tokenizer::load(file)?),
    };
    let tokenizer = loaded.as_ref().or(files.codec.tokenizer()).expect("one of the two");
    let model = &json["model"];
    if model["type"] != "BPE" {
        let kind = model["type"].as_str().unwrap_or("no type");
        return Err(refused(&format!("is a tokenizer of {kind}, and GGUF is written of BPE alone")));
    }
    let merges = merges_of(model).ok_or_else(|| refused("has merges that are no pairs of tokens"))?;
    let is_bytes =
        [&json["pre_tokenizer"], &json["decoder"]].into_iter().any(|part| names(part, "ByteLevel"));
    let tokens = Tokens::of(model, tokenizer, vocab_size, is_bytes);
    let mut keys = Keys::new();
    let mut put = |key: &str, value| drop(keys.insert(format!("tokenizer.{key}"), value));
    if is_bytes {
        check_normalizer(&json["normalizer"]).map_err(|what| refused(&what))?;
        let pre = pre_tokenizer(&json["pre_tokenizer"], model).map_err(|what| refused(&what))?;
        put("ggml.model", Text("gpt2".into()));
        put("ggml.pre", Text(pre.to_string()));
        put(
            "ggml.merges",
            Array(merges.iter().map(|[left, right]| Text(format!("{left} {right}"))).collect()),
        );
    } else if model["byte_fallback"] == true {
        let adds = blanks_of(&json).map_err(|what| refused(&what))?;
        put("ggml.model", Text("llama".into()));
        put("ggml.pre", Text("default".into()));
        put("ggml.add_space_prefix", Bool(adds));
        put("ggml.scores", Array(tokens.scores(&merges).into_iter().map(Float32).collect()));
    } else {
        return Err(refused(
            "is neither of bytes nor SentencePiece's, which are the kinds of BPE that llama.cpp has",
        ));
    }
    put("ggml.tokens", Array(tokens.texts.iter().map(|text| Text(text.clone())).collect()));
    put("ggml.token_type", Array(tokens.kinds.iter().map(|kind| Int32(*kind)).collect()));
    let special = SpecialTokens::beside(file)?;
    let id_of = |name: &str| special.named(name).and_then(|text| tokenizer.token_id(text));
    let begins = files.codec.before_text();
    if begins.len() > 1 {
        return Err(refused(&format!(
            "begins texts with {} tokens, and llama.cpp with one at most",
            begins.len()
        )));
    }
    let begin = begins.first().copied();
    let ends = id_of("eos_token").or(files.stops.first().copied());
    let other_end = files.stops.iter().copied().find(|stop| Some(*stop) != ends);
    for (key, id) in [
        ("bos", begin.or(id_of("bos_token"))),
        ("eos", ends),
        ("eot", other_end),
        ("unknown", id_of("unk_token")),
        ("padding", id_of("pad_token")),
    ] {
        if let Some(id) = id {
            put(&format!("ggml.{key}_token_id"), Uint32(id));
        }
    }
    put("ggml.add_bos_token", Bool(begin.is_some()));
    // Texts go on after a prompt.
    put("ggml.add_eos_token", Bool(false));
    if let Some(source) = ChatTemplate::source(files.template, Some(file))? {
        put("chat_template", Text(source));
    }
    Ok(keys)
}

/// The tokens of a vocabulary, by id.
struct Tokens {
    texts: Vec<String>,
    kinds: Vec<i32>,
}

impl Tokens {
    /// Rows of an embedding that no token has get a name of their own.
    fn of(model: &Value, tokenizer: &Tokenizer, vocab_size: usize, is_bytes: bool) -> Self {
        let mut tokens = Self {
            texts: (0..vocab_size).map(|id| format!("[PAD{id}]")).collect(),
            kinds: vec![UNUSED; vocab_size],
        };
        let known = model["vocab"].as_object().into_iter().flatten();
        for (text, id) in known.filter_map(|(text, id)| Some((text, id.as_u64()? as usize))) {
            let is_byte = !is_bytes && text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
            tokens.set(id, text.clone(), if is_byte { BYTE } else { NORMAL });
        }
        for (id, text, is_special) in tokenizer.added_tokens() {
            // A token that is found in a text before it is normalised has its own blanks.
            let text = if is_bytes || is_special { text } else { text.replace(BLANK, " ") };
            tokens.set(id as usize, text, if is_special { CONTROL } else { USER_DEFINED });
        }
        let unknown = model["unk_token"].as_str().and_then(|text| tokenizer.token_id(text));
        if let Some(kind) = unknown.filter(|_| !is_bytes).and_then(|id| tokens.kinds.get_mut(id as usize)) {
            *kind = UNKNOWN;
        }
        tokens
    }

    fn set(&mut self, id: usize, text: String, kind: i32) {
        if let (Some(place), Some(known)) = (self.texts.get_mut(id), self.kinds.get_mut(id)) {
            (*place, *known) = (text, kind);
        }
    }

    /// The score of each token: the earlier a merge makes it, the higher.
    fn scores(&self, merges: &[[String; 2]]) -> Vec<f32> {
        let mut ranks: HashMap<String, usize> = HashMap::new();
        for (rank, [left, right]) in merges.iter().enumerate() {
            ranks.entry(format!("{left}{right}")).or_insert(rank);
        }
        let score = |text: &String| ranks.get(text).map_or(-1e9, |rank| -(*rank as f32));
        self.texts.iter().map(score).collect()
    }
}

/// The pairs of tokens that are merged, in order; `None` if an entry is no pair.
fn merges_of(model: &Value) -> Option<Vec<[String; 2]>> {
    let pair = |merge: &Value| match merge {
        Value::String(both) => {
            both.split_once(' ').map(|(left, right)| [left.to_string(), right.to_string()])
        }
        Value::Array(both) => match &both[..] {
            [Value::String(left), Value::String(right)] => Some([left.clone(), right.clone()]),
            _ => None,
        },
        _ => None,
    };
    model["merges"].as_array()?.iter().map(pair).collect()
}

/// Whether a part of a tokenizer, or one of those that it lists, is of this type.
fn names(part: &Value, kind: &str) -> bool {
    parts(part).iter().any(|part| part["type"] == kind)
}

/// The parts of a tokenizer that a sequence lists, or the one that it is.
fn parts(part: &Value) -> Vec<&Value> {
    let lists = ["pretokenizers", "normalizers", "decoders"].iter().find_map(|key| part[*key].as_array());
    match lists {
        Some(list) => list.iter().flat_map(parts).collect(),
        None if part.is_null() => Vec::new(),
        None => vec![part],
    }
}

/// Refuses a change of texts that llama.cpp does not make. It passes over NFC, as for every Qwen.
fn check_normalizer(normalizer: &Value) -> std::result::Result<(), String> {
    match parts(normalizer).into_iter().find(|part| part["type"] != "NFC") {
        None => Ok(()),
        Some(part) => Err(format!("changes texts by {}, which llama.cpp does not", shown(&part["type"]))),
    }
}

/// What llama.cpp calls the split of texts in front of byte-level merges.
fn pre_tokenizer(part: &Value, model: &Value) -> std::result::Result<&'static str, String> {
    let mut splits = Vec::new();
    for part in parts(part) {
        match part["type"].as_str() {
            Some("ByteLevel") if part["add_prefix_space"] == true => {
                return Err(
                    "begins texts with a blank (`add_prefix_space`), which llama.cpp does not".to_string()
                );
            }
            Some("ByteLevel") if part["use_regex"] == false => {}
            Some("ByteLevel") => splits.push("GPT-2"),
            Some("Digits") if part["individual_digits"] == true => splits.push(r"\p{N}"),
            Some("Split") => match part["pattern"]["Regex"].as_str() {
                Some(regex) => splits.push(regex),
                None => {
                    return Err(format!(
                        "splits texts by {}, which llama.cpp has no name for",
                        shown(&part["pattern"])
                    ));
                }
            },
            _ => {
                return Err(format!(
                    "splits texts by {}, which llama.cpp has no name for",
                    shown(&part["type"])
                ));
            }
        }
    }
    // Without merges all texts are bytes, however they are split.
    if model["merges"].as_array().is_some_and(Vec::is_empty) {
        return Ok("gpt-2");
    }
    let ignores = model["ignore_merges"] == true;
    let same: Vec<&PreTokenizer> = PRE_TOKENIZERS.iter().filter(|known| known.splits == splits).collect();
    let exact = same.iter().find(|known| known.ignores_merges == ignores);
    match exact.or(same.first()) {
        Some(known) => Ok(&known.name),
        None => Err(format!(
            "splits texts by {}, which llama.cpp has no name for",
            shown(&splits.join(" and ").into())
        )),
    }
}

/// Whether a tokenizer of SentencePiece begins texts with a blank.
fn blanks_of(json: &Value) -> std::result::Result<bool, String> {
    let mut begins = false;
    for part in parts(&json["normalizer"]) {
        match part["type"].as_str() {
            Some("Prepend") if part["prepend"] == BLANK => begins = true,
            Some("Replace") if part["content"] == BLANK => {}
            _ => return Err(format!("changes texts by {}, which llama.cpp does not", shown(part))),
        }
    }
    for part in parts(&json["pre_tokenizer"]) {
        match part["type"].as_str() {
            Some("Metaspace") => begins |= part["prepend_scheme"] != "never",
            // Behind the blanks that replaced all others nothing is split.
            Some("Split") if part["pattern"]["String"] == " " => {}
            _ => return Err(format!("splits texts by {}, which llama.cpp does not", shown(part))),
        }
    }
    Ok(begins)
}

fn shown(value: &Value) -> String {
    format!("`{}`", value.as_str().map_or_else(|| value.to_string(), str::to_string))
}
