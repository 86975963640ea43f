//! What makes a table of rows a section of a configuration file: reading, checking, writing and explaining are derived from
//! the rows. The engine knows no key by name; those are in [`sections`](super::sections).

mod culprits;
mod document;
mod faults;
mod layers;
mod locate;
mod names;
mod node;
mod number;
mod other;
mod overrides;
mod path;
mod range;
pub(super) mod reader;
mod replaced;
pub(super) mod row;
pub(super) mod section;
pub(super) mod setting;
mod source;
pub(super) mod table;
mod writer;
mod yaml;

pub(crate) use culprits::name_flags;
pub(crate) use document::Document;
pub(crate) use faults::Fault;
pub(crate) use names::Names;
pub use node::Node;
pub(crate) use other::{Fate, Other, Passes, differs, ignored, refused, sections, words};
pub use overrides::Override;
pub(crate) use range::*;
pub(crate) use reader::Reader;
pub(crate) use replaced::{Format, Replaced};
pub(crate) use section::{Entry, Placed, Section, rows};
pub(crate) use setting::{Kind, Setting, Words, words};
pub(crate) use source::{Source, closest, unknown_type};
#[cfg(test)]
pub(crate) use table::Decides;
pub(crate) use table::Decides::{Host, Numbers, Shape};
pub(crate) use table::{RowText, Table};
pub(crate) use writer::{decisions, to_json, write};
