//! The header of a data file: the length of a JSON object, the object, and zeros up to the first page.

use serde::Deserialize;
use serde_json::Map;
use std::ffi::OsStr;
use std::path::Path;

use super::column::{Column, Encoding};

/// The longest header that MindSpore writes.
const MAX_HEADER_BYTES: u64 = 128 << 20;

/// The type of pages that hold arrays and bytes; the others hold scalars and text.
const BLOB: &str = "BLOB_DATA";

/// The header of a data file: its shards, pages and columns.
#[derive(Debug)]
pub(super) struct Header {
    /// Names of the files that were written together, including this file.
    pub shards: Vec<String>,
    /// The pages in the order of their rows. Pages of arrays come first.
    pub pages: Vec<Page>,
    /// The columns in the order of their names.
    pub columns: Vec<Column>,
    /// The columns in the pages of arrays, in their order there, each with how it stores whole numbers, if it does.
    pub blob_columns: Vec<Option<Encoding>>,
    /// Length of the header in bytes, which is where page 0 starts.
    header_bytes: u64,
    /// Distance between the starts of two pages in bytes.
    page_bytes: u64,
}

/// A page: the rows that it holds, and how much of it is used.
#[derive(Debug, Deserialize)]
pub(super) struct Page {
    /// The place of the page in the file.
    #[serde(rename = "page_id")]
    pub number: u64,
    /// Number of the page's first row; 0 in pages of scalars.
    #[serde(rename = "start_row_id")]
    pub start_row: u64,
    /// Number of the row after the page's last row; 0 in pages of scalars.
    #[serde(rename = "end_row_id")]
    pub end_row: u64,
    /// Bytes in use.
    #[serde(rename = "page_size")]
    pub used: u64,
    #[serde(rename = "page_type")]
    kind: String,
}

impl Page {
    /// Whether the page holds arrays and bytes.
    pub fn is_blob(&self) -> bool {
        self.kind == BLOB
    }
}

#[derive(Deserialize)]
struct Written {
    header_size: u64,
    page_size: u64,
    page: Option<Vec<Page>>,
    schema: Vec<Schema>,
    shard_addresses: Vec<String>,
    version: String,
}

#[derive(Deserialize)]
struct Schema {
    blob_fields: Option<Vec<String>>,
    schema: Map<String, serde_json::Value>,
}

impl Header {
    /// Reads the header of the file with these bytes. The error says what is wrong with the file.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let no_header = "is not a MindRecord file: it does not start with a header in JSON";
        let (length, rest) = bytes.split_first_chunk().ok_or(no_header)?;
        let length = u64::from_le_bytes(*length);
        if length > MAX_HEADER_BYTES || rest.first() != Some(&b'{') {
            return Err(no_header.to_string());
        }
        let json = rest.get(..length as usize).ok_or_else(|| cut_within("its header"))?;
        let written: Written = serde_json::from_slice(json).map_err(|error| {
            format!("is not a MindRecord file that this version reads: its header is malformed ({error})")
        })?;
        Self::check(written, bytes.len() as u64)
    }

    /// Where a page starts in the file, in bytes.
    pub fn start(&self, page: &Page) -> u64 {
        self.header_bytes + page.number * self.page_bytes
    }

    fn check(written: Written, file_bytes: u64) -> Result<Self, String> {
        let is_compressed = match written.version.as_str() {
            "2.0" => false,
            "3.0" => true,
            other => return Err(format!("has version `{other}`; versions 2.0 and 3.0 are read")),
        };
        let is_name = |name: &&String| Path::new(name).file_name() == Some(OsStr::new(name));
        if let Some(path) = written.shard_addresses.iter().find(|name| !is_name(name)) {
            return Err(format!(
                "says that it was written with `{path}`, which is not the name of a file beside it; write it again"
            ));
        }
        let [schema] = &written.schema[..] else {
            return Err(format!("has {} schemas instead of one", written.schema.len()));
        };
        let blobs = schema.blob_fields.clone().unwrap_or_default();
        let columns = schema.schema.iter().map(|(name, described)| {
            let place = blobs.iter().position(|blob| blob == name);
            Column::new(name, described, place, is_compressed)
        });
        let columns: Vec<Column> = columns.collect();
        let encoding = |blob: &String| columns.iter().find(|column| column.name == *blob)?.encoding;
        let mut pages = written.page.unwrap_or_default();
        pages.sort_by_key(|page| (!page.is_blob(), page.start_row, page.number));
        for page in &pages {
            let start = page.number.checked_mul(written.page_size);
            let start = start.and_then(|start| start.checked_add(written.header_size));
            let end = start.and_then(|start| start.checked_add(page.used));
            if page.used > written.page_size || end.is_none_or(|end| end > file_bytes) {
                return Err(cut_within(&format!("page {}", page.number)));
            }
        }
        Ok(Self {
            shards: written.shard_addresses,
            pages,
            blob_columns: blobs.iter().map(encoding).collect(),
            columns,
            header_bytes: written.header_size,
            page_bytes: written.page_size,
        })
    }
}

/// The error message about a file that ends too early.
fn cut_within(what: &str) -> String {
    format!("ends within {what}: it was cut; copy it again")
}

impl Column {
    /// The column of a schema entry, which is blob number `place`.
    fn new(name: &str, described: &serde_json::Value, place: Option<usize>, is_compressed: bool) -> Self {
        let kind = described.get("type").and_then(serde_json::Value::as_str).unwrap_or("unknown");
        let is_array = described.get("shape").is_some();
        let encoding = match (kind, is_array && place.is_some()) {
            ("int32" | "int64", true) if is_compressed => Some(Encoding::Compressed),
            ("int32", true) => Some(Encoding::Int32),
            ("int64", true) => Some(Encoding::Int64),
            _ => None,
        };
        let kind = if is_array { format!("array of {kind}") } else { kind.to_string() };
        Self { name: name.to_string(), kind, place: place.unwrap_or(0), encoding }
    }
}
