//! The rows of a table in an SQLite file, <https://www.sqlite.org/fileformat2.html>: b-tree pages of tables, and of each record
//! the columns that its page holds. Read-only, without SQL, journals and overflow pages.

const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// The record that describes a table is below this page.
const SCHEMA_PAGE: u32 = 1;

/// The first page has the header of the file in front of its own.
const FILE_HEADER_BYTES: usize = 100;

/// A file of SQLite.
#[derive(Clone, Copy, Debug)]
pub(super) struct Database<'a> {
    bytes: &'a [u8],
    page_bytes: usize,
    /// Bytes of a page that hold data.
    usable: usize,
}

/// A row of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    /// The types of the columns.
    types: &'a [u8],
    /// Their values, as far as the page holds them.
    values: &'a [u8],
}

/// A value of a record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    /// A whole number.
    Integer(i64),
    /// Text.
    Text(&'a [u8]),
    /// Nothing, a floating-point number or bytes.
    Other,
}

impl<'a> Database<'a> {
    /// The database in `bytes`; `None` if they are not an SQLite file.
    pub fn open(bytes: &'a [u8]) -> Option<Self> {
        let header = bytes.get(..FILE_HEADER_BYTES).filter(|header| header.starts_with(MAGIC))?;
        let page_bytes = match usize::from(u16::from_be_bytes([header[16], header[17]])) {
            1 => 65536,
            size => size,
        };
        let usable = page_bytes.checked_sub(header[20].into())?;
        (page_bytes.is_power_of_two() && usable >= 480).then_some(Self { bytes, page_bytes, usable })
    }

    /// Calls `visit` with each row of a table, in order, until it returns an error. Returns whether there is such a table.
    ///
    /// # Errors
    /// If a page is malformed; those of `visit`.
    pub fn for_each_row(
        &self,
        table: &str,
        visit: impl FnMut(Record<'a>) -> Result<(), String>,
    ) -> Result<bool, String> {
        let mut root = None;
        self.walk(SCHEMA_PAGE, |record| {
            let mut columns = record.columns();
            let described = [columns.next(), columns.next(), columns.next(), columns.next()];
            if let [Some(Value::Text(b"table")), Some(Value::Text(name)), _, Some(Value::Integer(page))] =
                described
                && name == table.as_bytes()
            {
                root = u32::try_from(page).ok();
            }
            Ok(())
        })?;
        let Some(root) = root else { return Ok(false) };
        self.walk(root, visit)?;
        Ok(true)
    }

    /// The records of the b-tree below `root`.
    fn walk(&self, root: u32, mut visit: impl FnMut(Record<'a>) -> Result<(), String>) -> Result<(), String> {
        let (mut open, mut visited) = (vec![root], 0);
        while let Some(number) = open.pop() {
            let malformed = || format!("page {number} is malformed");
            visited += 1;
            // A tree has no more pages than the file, or it turns in a circle.
            if visited > self.bytes.len() / self.page_bytes {
                return Err(malformed());
            }
            let page = self.page(number).ok_or_else(malformed)?;
            if let Some(children) = page.children() {
                open.extend(children.ok_or_else(malformed)?.into_iter().rev());
                continue;
            }
            for cell in 0..page.cells {
                visit(page.record(cell).ok_or_else(malformed)?)?;
            }
        }
        Ok(())
    }

    fn page(&self, number: u32) -> Option<Page<'a>> {
        let start = (number as usize).checked_sub(1)?.checked_mul(self.page_bytes)?;
        let bytes = self.bytes.get(start..start.checked_add(self.usable)?)?;
        let header = if number == SCHEMA_PAGE { FILE_HEADER_BYTES } else { 0 };
        let is_leaf = match bytes[header] {
            0x0d => true,
            0x05 => false,
            _ => return None,
        };
        let cells = usize::from(u16::from_be_bytes([bytes[header + 3], bytes[header + 4]]));
        Some(Page { bytes, header, is_leaf, cells })
    }
}

/// A page of a table's b-tree.
struct Page<'a> {
    bytes: &'a [u8],
    /// Where its header starts.
    header: usize,
    is_leaf: bool,
    cells: usize,
}

impl<'a> Page<'a> {
    /// The pages below this one in order; `None` of a leaf, `Some(None)` if they are malformed.
    fn children(&self) -> Option<Option<Vec<u32>>> {
        if self.is_leaf {
            return None;
        }
        let child = |at: usize| self.bytes.get(at..)?.first_chunk().map(|word| u32::from_be_bytes(*word));
        let left = (0..self.cells).map(|cell| child(self.cell(cell)?));
        Some(left.chain(std::iter::once_with(|| child(self.header + 8))).collect())
    }

    /// The record in a cell of a leaf.
    fn record(&self, cell: usize) -> Option<Record<'a>> {
        let mut cell = self.bytes.get(self.cell(cell)?..)?;
        let payload = varint(&mut cell)?;
        varint(&mut cell)?; // the row's id
        let payload = cell.get(..self.local(payload).min(cell.len()))?;
        let mut types = payload;
        let header = usize::try_from(varint(&mut types)?).ok()?;
        let types_start = payload.len() - types.len();
        Some(Record { types: payload.get(types_start..header)?, values: payload.get(header..)? })
    }

    /// Where a cell starts.
    fn cell(&self, cell: usize) -> Option<usize> {
        let pointers = self.header + if self.is_leaf { 8 } else { 12 };
        let pointer = self.bytes.get(pointers + 2 * cell..)?.first_chunk()?;
        Some(usize::from(u16::from_be_bytes(*pointer)))
    }

    /// Bytes of a record of `payload` bytes that are in the page itself.
    fn local(&self, payload: u64) -> usize {
        let usable = self.bytes.len() as u64;
        let most = usable - 35;
        if payload <= most {
            return payload as usize;
        }
        let least = (usable - 12) * 32 / 255 - 23;
        let fitting = least + (payload - least) % (usable - 4);
        if fitting <= most { fitting as usize } else { least as usize }
    }
}

impl<'a> Record<'a> {
    /// The values of the columns, as far as the page holds them.
    pub fn columns(self) -> impl Iterator<Item = Value<'a>> {
        let Self { mut types, mut values } = self;
        std::iter::from_fn(move || {
            let kind = varint(&mut types)?;
            let bytes = match kind {
                0 | 8 | 9 => 0,
                1..=4 => kind,
                5 => 6,
                6 | 7 => 8,
                10 | 11 => return None,
                _ => (kind - 12) / 2,
            };
            let (own, rest) = values.split_at_checked(usize::try_from(bytes).ok()?)?;
            values = rest;
            Some(match kind {
                1..=6 => Value::Integer(integer(own)),
                8 | 9 => Value::Integer((kind - 8) as i64),
                13.. if kind % 2 == 1 => Value::Text(own),
                _ => Value::Other,
            })
        })
    }
}

/// A signed number of at most eight bytes, big-endian.
fn integer(bytes: &[u8]) -> i64 {
    let sign = if bytes.first().is_some_and(|byte| byte & 0x80 != 0) { -1 } else { 0 };
    bytes.iter().fold(sign, |number, byte| (number << 8) | i64::from(*byte))
}

/// Takes a number of one to nine bytes: seven bits from each of the first eight, all of the ninth.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for index in 0..9 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        if index == 8 {
            return Some((number << 8) | u64::from(*byte));
        }
        number = (number << 7) | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            break;
        }
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length() {
        for (bytes, number) in [
            (&[0x00][..], 0),
            (&[0x7f], 127),
            (&[0x81, 0x00], 128),
            (&[0xff; 9], u64::MAX),
            (&[0x80, 0x80, 0x01], 1),
        ] {
            let mut rest = bytes;
            assert_eq!((varint(&mut rest), rest.len()), (Some(number), 0));
        }
        assert_eq!(varint(&mut &[0x80][..]), None);
        assert_eq!(
            [integer(&[0xff]), integer(&[0x80, 0]), integer(&[1, 0, 0]), integer(&[])],
            [-1, -32768, 65536, 0]
        );
    }

    #[test]
    fn columns_of_every_type() {
        let types = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12 + 2 * 2, 13 + 2 * 3];
        let mut values = Vec::new();
        [1usize, 2, 3, 4, 6, 8].into_iter().for_each(|width| values.extend((0..width).map(|_| 0xfe)));
        values.extend([0; 8]);
        values.extend(b"\x01\x02abc");
        let columns: Vec<_> = Record { types: &types, values: &values }.columns().collect();
        let whole = [-2, -258].map(Value::Integer);
        assert_eq!((columns[0], &columns[1..3]), (Value::Other, &whole[..]));
        assert_eq!(
            columns[7..],
            [Value::Other, Value::Integer(0), Value::Integer(1), Value::Other, Value::Text(b"abc")]
        );
        let cut: Vec<_> = Record { types: &types, values: &values[..4] }.columns().collect();
        assert_eq!(cut.len(), 3, "a value that is cut ends the columns");
    }
}
