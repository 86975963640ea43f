//! Turns a table of rows into a section of a configuration file: reading, checking, writing and explaining are derived
//! from the rows. The engine knows no key by name; those are in [`sections`](super::sections).
//!
//! | derived from a row | where |
//! |---|---|
//! | a documented field of the section's struct, and its default | `section.rs` |
//! | reading: type, range, whether it is required, which `type` of the section reads it | `row.rs`, `reader.rs` |
//! | errors: unknown key with the nearest known one, wrong type, out of range, missing | `reader.rs`, `source.rs` |
//! | the run folder's `config.yaml`, and `decisions`, which a resumed run must share | `writer.rs` |
//! | `gristmill explain KEY` and `configs/README.md` | `settings/explain.rs` |
//!
//! Files of other programs are translated before a section is read (`settings/dialect`); `document.rs` knows the
//! origin of a value that was moved, and messages name it.
//!
//! Keys that are known but not used are listed with each table (`unused_keys.rs`): they are ignored with a notice,
//! computed differently with a notice, or refused unless their value asks for nothing. A key in no list is an error.
//!
//! `base_config` names files that a file extends. `layers.rs` keeps each file as a layer, so an error names the file
//! and line in which its key was written; flags are one more layer.

mod blame_flags;
mod document;
mod faults;
mod layers;
mod locate;
mod names;
mod node;
mod number;
mod range;
pub(super) mod reader;
pub(super) mod row;
pub(super) mod section;
pub(super) mod setting;
mod source;
pub(super) mod table;
pub(super) mod unused_keys;
mod writer;
mod yaml;

pub(crate) use blame_flags::blame_flags;
pub(crate) use document::Document;
pub use document::Override;
pub(crate) use faults::Fault;
pub(crate) use names::{Named, Names, has_word, words};
pub use node::Node;
pub(crate) use node::join;
pub(crate) use range::*;
pub(crate) use reader::Reader;
pub(crate) use row::Row;
pub(crate) use section::{Entry, Placed, Section, Variants, rows};
pub(crate) use setting::{Setting, ValueKind, Words, words};
pub(crate) use source::{Claim, Source, closest, unknown_type};
#[cfg(test)]
pub(crate) use table::ResumeImpact;
pub(crate) use table::ResumeImpact::{Host, Numbers, Shape};
pub(crate) use table::{RowText, Table, TableId, paragraph};
pub(crate) use unused_keys::{AllowedValues, Handling, UnusedKeys, sections};
pub(crate) use writer::{decisions, to_json, write};
