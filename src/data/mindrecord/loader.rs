//! `MindDataset`: the files of a data set, and the meaning of their columns.

use std::path::{Path, PathBuf};

use super::part::{Mask, RowColumns, TokensOfRows};
use super::{MindRecordFile, NumberColumn};
use crate::data::config::Paths;
use crate::data::files::{self, DATASET_KEYS};
use crate::data::notes::plural;
use crate::data::samples::Samples;
use crate::data::source::LoadedSource;
use crate::data::stream::{Chunk, TokenStream};
use crate::error::{Error, Result};

/// The end of the name of a data file, without the number of a shard.
const ENDING: &str = "mindrecord";

/// The names of the columns that this loader reads.
const TOKENS: &str = "input_ids";
const LABELS: [&str; 2] = ["labels", "target_ids"];
const LOSS_MASK: &str = "loss_mask";
const ATTENTION_MASKS: [&str; 2] = ["attention_mask", "input_mask"];

/// The sources of a MindRecord loader, for a model that reads `seq_length` tokens. In a folder, the files named
/// `*.mindrecord`, with or without the number of a shard, are read. Of the `columns` the loader reads `input_ids` and,
/// if they are among them, `labels` (or `target_ids`), `loss_mask` and `attention_mask` (or `input_mask`). A row has
/// one token more than the model reads, or, with `labels` that are shifted, as many as the model reads. Nothing is
/// predicted from `pad`, unless there is a `loss_mask`.
pub(crate) fn load(
    files: &Paths,
    columns: &[String],
    pad: Option<u32>,
    seq_length: usize,
) -> Result<Vec<LoadedSource>> {
    let columns = Columns::of(columns)?;
    LoadedSource::of_files(files, |paths| load_one(paths, columns, pad, seq_length))
}

/// Opens the data files that `paths` name. In folders and patterns, these are the files whose names end like a data
/// file's. A file that is the only one named stands for all files that were written with it, as in MindSpore.
///
/// # Errors
/// If there is no file, or one of several files that were written together is missing.
pub(in crate::data) fn open_all(paths: &[String]) -> Result<Vec<MindRecordFile>> {
    let files = files::expand(paths, is_data_file, &format!("correct {DATASET_KEYS}"))?;
    let mut opened = files.iter().map(|file| MindRecordFile::open(&file.path)).collect::<Result<Vec<_>>>()?;
    if let [one] = &opened[..] {
        let shards: Vec<PathBuf> = one.shards().iter().map(|name| one.path().with_file_name(name)).collect();
        // A file that was renamed without the others is read as it is.
        if shards.len() > 1 && shards.iter().any(|shard| shard == one.path()) {
            shards.iter().try_for_each(|shard| check_shard(one, shard))?;
            opened = shards.iter().map(|shard| MindRecordFile::open(shard)).collect::<Result<_>>()?;
        }
    } else if files.iter().any(|file| file.is_found) {
        for file in &opened {
            let mut shards = file.shards().iter().map(|name| file.path().with_file_name(name));
            shards.try_for_each(|shard| check_shard(file, &shard))?;
        }
    }
    if opened.is_empty() {
        let message = format!("no *.{ENDING} file found; name one with {DATASET_KEYS}");
        return Err(Error::file(paths.join(", "), message));
    }
    Ok(opened)
}

/// The columns to read, by name.
#[derive(Clone, Copy)]
struct Columns<'a> {
    labels: Option<&'a str>,
    loss_mask: Option<&'a str>,
    attention_mask: Option<&'a str>,
}

impl<'a> Columns<'a> {
    fn of(names: &'a [String]) -> Result<Self> {
        let find = |known: &[&str]| names.iter().map(String::as_str).find(|name| known.contains(name));
        let known = [&[TOKENS, LOSS_MASK][..], &LABELS, &ATTENTION_MASKS].concat();
        if let Some(other) = names.iter().find(|name| !known.contains(&name.as_str())) {
            let message = format!(
                "`input_columns`: MindDataset does not read `{other}`; name some of {}",
                known.join(", ")
            );
            return Err(Error::Plan(message));
        }
        if find(&[TOKENS]).is_none() {
            return Err(Error::Plan(format!("`input_columns`: names no `{TOKENS}`; add it")));
        }
        Ok(Self {
            labels: find(&LABELS),
            loss_mask: find(&[LOSS_MASK]),
            attention_mask: find(&ATTENTION_MASKS),
        })
    }

    /// How the rows of a file are read.
    fn reading(self, file: MindRecordFile, pad: Option<u32>, seq_length: usize) -> Result<RowColumns> {
        let column = |name: Option<&str>| name.map(|name| file.column(name)).transpose();
        let tokens = file.column(TOKENS)?;
        let (labels, loss_mask) = (column(self.labels)?, column(self.loss_mask)?);
        let masks = loss_mask.or(column(self.attention_mask)?);
        let mut shift = None;
        for row in 0..file.rows() {
            let found = shift_of(&file, row, tokens, labels, seq_length)?;
            if *shift.get_or_insert(found) != found {
                return Err(unequal(&file, row, seq_length));
            }
            if masks.is_some_and(|mask| file.len_of(row, mask) < seq_length) {
                let message =
                    format!("the mask of row {row} is shorter than its tokens; write the file again");
                return Err(Error::file(file.path(), message));
            }
        }
        // As in MindFormers, a loss mask alone decides what enters the loss.
        let pad = pad.filter(|_| loss_mask.is_none()).map(i64::from);
        let mask = Mask { pad, column: masks };
        Ok(RowColumns {
            tokens,
            labels: labels.unwrap_or(tokens),
            shift: shift.unwrap_or(1),
            mask,
            seq_length,
            file,
        })
    }
}

/// How many places the labels of a row are shifted. A row has either the labels of its own tokens and one token more
/// than the model reads, or the labels of the next tokens and as many tokens as the model reads.
fn shift_of(
    file: &MindRecordFile,
    row: usize,
    tokens: NumberColumn,
    labels: Option<NumberColumn>,
    seq_length: usize,
) -> Result<usize> {
    let len = file.len_of(row, tokens);
    if labels.is_some_and(|labels| file.len_of(row, labels) != len) {
        let message =
            format!("row {row} has {len} tokens and another number of labels; write the file again");
        return Err(Error::file(file.path(), message));
    }
    match len {
        len if len == seq_length + 1 => Ok(1),
        len if len == seq_length && labels.is_some() => Ok(0),
        len => {
            let longer = seq_length + 1;
            let or = if labels.is_some() { format!(" or {seq_length}") } else { String::new() };
            let set = match len {
                0 | 1 => "write longer rows".to_string(),
                len => {
                    format!("set model.model_config.seq_length to {}, or write rows of that length", len - 1)
                }
            };
            let message = format!(
                "row {row} has {len} tokens, and for a seq_length of {seq_length} a row has {longer}{or}; {set}"
            );
            Err(Error::file(file.path(), message))
        }
    }
}

fn unequal(file: &MindRecordFile, row: usize, seq_length: usize) -> Error {
    let message = format!(
        "row {row} differs in length from those before: rows have {} tokens or {seq_length}, and all the same; write the file again",
        seq_length + 1
    );
    Error::file(file.path(), message)
}

/// All rows of `paths` as samples, and a sentence on the rows that were mapped.
fn load_one(
    paths: &[String],
    columns: Columns<'_>,
    pad: Option<u32>,
    seq_length: usize,
) -> Result<(Samples, String)> {
    let (mut tokens, mut targets) = (TokenStream::default(), TokenStream::default());
    let files = open_all(paths)?;
    let count = files.len() as u64;
    for file in files {
        let [own, predicted] = TokensOfRows::pair(columns.reading(file, pad, seq_length)?);
        tokens.push(Chunk::Rows(own));
        targets.push(Chunk::Rows(predicted));
    }
    let rows = tokens.len() / seq_length as u64;
    let ends = (1..=rows).map(|row| row * seq_length as u64).collect();
    let sentence = format!(
        "{} of {seq_length} tokens mapped from {}",
        plural(rows, "sample"),
        plural(count, "MindRecord file")
    );
    Ok((Samples::new(tokens, targets, ends), sentence))
}

/// Checks that a file that was written together with `file` exists.
fn check_shard(file: &MindRecordFile, shard: &Path) -> Result<()> {
    if shard.is_file() {
        return Ok(());
    }
    let name = file.path().file_name().unwrap_or_default().display();
    let count = file.shards().len();
    let message = format!(
        "no such file; it is one of the {count} that `{name}` was written with: copy it beside that file, or list the files to read in `dataset_files`"
    );
    Err(Error::file(shard, message))
}

/// Whether the name of a file ends like a data file's: `x.mindrecord`, or `x.mindrecord0` for one of several shards.
fn is_data_file(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.trim_end_matches(|digit: char| digit.is_ascii_digit()).ends_with(ENDING)
}
