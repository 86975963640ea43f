//! Parameters in an arena as the tensors of a file: under their Hugging Face names, without padding.
//!
//! Where each rank holds a part of a parameter, a tensor is put together from *cells*: the elements of its rows, with
//! their padding, as they lie in an arena that has the whole parameter. A [`HeldCells`] is a range of cells that one
//! rank holds.
//!
//! Checkpoints hold tensors from which `transformers` computes the same. A `Piece` of a `Spec` has a tensor's name and
//! says how the tensor differs from what the arena holds: GPT-2's matrices are transposed; heads that rotate in
//! interleaved pairs are permuted into Hugging Face's halves, except in families whose files have pairs too, and those
//! of nanochat have their halves swapped; files of Bloom, GPT-NeoX and Falcon have q, k and v group by group of heads;
//! and in those of gpt-oss all experts are one tensor.

use super::lora::{self, ComputedTensors};
use super::peft_modules;
use super::tensor_file::TensorInfo;
use super::weight_files::{HEAD, WeightFiles};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::model::arena::{Arena, ArenaLayout, Part};
use crate::model::config::LowRank;
use crate::model::init::initial_row;
use crate::model::parameters::{Piece, Role, Spec, Stack, Strip};
use crate::record::Tensor;
use safetensors::Dtype;
use std::ops::Range;

/// Receives the rows of a tensor one by one, as little-endian bytes.
pub(crate) type TakeRow<'a> = &'a mut (dyn FnMut(&[u8]) -> Result<()> + Send);

/// Reads tensors from a device. This is a trait because the compiler cannot see that the future of an `AsyncFn` is
/// `Send` for every lifetime of its arguments; the future of [`Trainer::save`](crate::train::Trainer::save) would then
/// not be `Send` either.
pub(crate) trait ReadRows: Sync {
    /// Hands each row of `tensor`, pad cut off, to `take`.
    fn read_rows(&self, tensor: Tensor, take: TakeRow<'_>) -> impl Future<Output = Result<()>> + Send;
}

/// A tensor of a file: one piece of a parameter, and the arena that holds it.
pub(crate) struct ArenaTensor<'a> {
    pub name: String,
    spec: &'a Spec,
    parts: &'a [Part],
    piece: &'a Piece,
    arena: &'a Arena,
}

/// Consecutive cells of a tensor that a rank holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldCells {
    /// The range of the tensor's cells.
    pub cells: Range<usize>,
    /// The segment of the arena.
    pub segment: usize,
    /// The range of elements in that segment.
    pub place: Range<u64>,
}

impl<'a> ArenaTensor<'a> {
    /// The tensors of `arena` in the model's order; their names start with `prefix`.
    pub fn list(layout: &'a ArenaLayout, arena: &'a Arena, prefix: &str) -> Vec<Self> {
        let parameters = layout.parameters.iter();
        let of = |(spec, parts): &'a (Spec, Vec<Part>)| {
            spec.pieces.iter().map(move |piece| {
                let name = format!("{prefix}{}", piece.name);
                Self { name, spec, parts, piece, arena }
            })
        };
        parameters.into_iter().filter(|(_, parts)| arena.holds(parts)).flat_map(of).collect()
    }

    /// Whether the tensor is a factor of an adapter.
    pub fn is_adapter(&self) -> bool {
        self.spec.role.is_factor()
    }

    /// Whether the tensor is the embedding.
    pub fn is_embedding(&self) -> bool {
        self.spec.role == Role::Embedding
    }

    /// The same tensor under another name.
    pub fn named(&self, name: &str) -> Self {
        Self { name: name.to_string(), ..*self }
    }

    /// This tensor under its name in the file of the adapters `low_rank`.
    pub fn in_adapter(self, low_rank: &LowRank) -> Self {
        let name = if self.is_adapter() { self.name } else { peft_modules::name_of(low_rank, &self.name) };
        Self { name, ..self }
    }

    /// Whether training never changes the tensor.
    pub fn is_frozen(&self) -> bool {
        !self.spec.trains
    }

    /// Whether the tensor is stored in the type that layers read.
    pub fn is_as_read(&self) -> bool {
        self.element() == self.spec.compute
    }

    /// Name, type and shape in the file.
    pub fn info(&self) -> TensorInfo {
        let shape = self.spec.piece_shape(self.piece);
        let dtype = dtype_of(self.element());
        TensorInfo { name: self.name.clone(), dtype, shape }
    }

    /// Storage type on the device, and so in the file.
    pub fn element(&self) -> Element {
        let buffer = self.parts.first().and_then(|part| self.arena.segments[part.segment].as_ref());
        buffer.map_or(Element::F32, |buffer| buffer.element)
    }

    /// The number of its cells.
    pub fn cells(&self) -> usize {
        let (_, rows) = self.whole_rows();
        rows.len() * self.spec.whole_stride() as usize
    }

    /// The cells that this rank holds, ascending.
    pub fn runs(&self) -> Vec<HeldCells> {
        let of_place = |(first_cell, segment, place): (usize, usize, Range<u64>)| {
            let held = self.arena.held_in(segment, &place).into_iter();
            held.map(move |held| {
                let start = first_cell + (held.start - place.start) as usize;
                HeldCells { cells: start..start + (held.end - held.start) as usize, segment, place: held }
            })
        };
        self.places().flat_map(of_place).collect()
    }

    /// Whether its rows can be read as they are: this rank holds all of them, and no part of them is split into two
    /// ranges.
    pub fn is_stored_whole(&self) -> bool {
        let held = self.places().map(|(_, segment, place)| {
            let is_held = self.arena.held_in(segment, &place) == [place.clone()];
            if is_held { (place.end - place.start) as usize } else { 0 }
        });
        held.sum::<usize>() == self.cells() && self.spec.cols == self.spec.whole_cols()
    }

    /// The elements `place` of a segment as a tensor on the device: one flat row.
    pub fn stored(&self, segment: usize, place: Range<u64>) -> Tensor {
        self.arena.range(segment, place)
    }

    /// Hands the rows to `take` as the file holds them; `cells` are all cells of the tensor.
    pub fn take_cells(&self, cells: &[u8], take: TakeRow<'_>) -> Result<()> {
        let (columns, _) = self.whole_rows();
        let width = self.element().bytes() as usize;
        let columns = width * columns.start..width * columns.end;
        let rows = cells.chunks(width * self.spec.whole_stride() as usize);
        let mut rows = rows.map(|row| &row[columns.clone()]);
        if self.piece.is_in_order() {
            return rows.try_for_each(take);
        }
        self.take_in_order(rows.flat_map(|row| self.element().decode(row)).collect(), take)
    }

    /// Hands the rows to `take` as the file holds them; `read` hands over the rows of a tensor on the device.
    pub async fn read(&self, read: &impl ReadRows, take: TakeRow<'_>) -> Result<()> {
        if self.piece.is_in_order() {
            return self.read_stored(read, take).await;
        }
        let element = self.element();
        let mut values = Vec::new();
        let mut keep = |row: &[u8]| {
            values.extend(element.decode(row));
            Ok(())
        };
        self.read_stored(read, &mut keep).await?;
        self.take_in_order(values, take)
    }

    /// Hands the rows of `values`, which are in the arena's order, to `take` in the file's order. This takes their size
    /// in host memory a second time.
    fn take_in_order(&self, values: Vec<f32>, take: TakeRow<'_>) -> Result<()> {
        let (shape, element) = (self.info().shape, self.element());
        let values = self.spec.in_file_order(self.piece, values);
        let mut bytes = Vec::new();
        values.chunks(shape.last().copied().unwrap_or(1)).try_for_each(|row| {
            bytes.clear();
            element.encode_row(row, &mut bytes);
            take(&bytes[..row.len() * element.bytes() as usize])
        })
    }

    /// Hands the rows to `take` as the device holds them.
    async fn read_stored(&self, read: &impl ReadRows, take: TakeRow<'_>) -> Result<()> {
        let (columns, _) = self.whole_rows();
        for (part, strip) in self.strips() {
            let rows = self.arena.rows(self.spec, part, strip.held, strip.held + strip.count);
            let width = rows.element.bytes() as usize;
            let bytes = width * columns.start..width * columns.end;
            read.read_rows(rows, &mut |row: &[u8]| take(&row[bytes.clone()])).await?;
        }
        Ok(())
    }

    /// The columns and the rows of the whole parameter that make up this tensor.
    fn whole_rows(&self) -> (Range<usize>, Range<usize>) {
        let mut rows = self.spec.piece_rows(self.piece);
        let Some((first_row, first_column, columns)) = rows.next() else { return (0..0, 0..0) };
        (first_column..first_column + columns, first_row..first_row + 1 + rows.count())
    }

    /// The strips of the tensor's rows of which this rank holds something, and the part in which each strip lies.
    fn strips(&self) -> impl Iterator<Item = (&'a Part, Strip)> {
        let ((_, rows), parts) = (self.whole_rows(), self.parts);
        let strips = self.spec.row_strips().into_iter().filter_map(move |strip| strip.whole_in(&rows));
        strips.flat_map(move |strip| {
            let in_part = move |part: &Part| strip.held_in(part.first_row..part.first_row + part.rows);
            parts.iter().filter_map(move |part| Some((part, in_part(part)?)))
        })
    }

    /// Where the tensor's rows lie: for each place its first cell, its segment and the range of elements in that
    /// segment.
    fn places(&self) -> impl Iterator<Item = (usize, usize, Range<u64>)> {
        let ((_, rows), spec) = (self.whole_rows(), self.spec);
        let (stride, cols) = (spec.whole_stride() as usize, spec.col_strips());
        let is_of_whole_rows = spec.cols == spec.whole_cols();
        self.strips().flat_map(move |(part, strip)| {
            let cell = move |row: usize| (row - rows.start) * stride;
            let place = part.range(spec, strip.held, strip.held + strip.count);
            if is_of_whole_rows {
                return vec![(cell(strip.whole), part.segment, place)];
            }
            let of_row = |row: usize| {
                let start = place.start + row as u64 * u64::from(spec.stride());
                let of_strip = move |col: &Strip| {
                    let held = start + col.held as u64..start + (col.held + col.count) as u64;
                    (cell(strip.whole + row) + col.whole, part.segment, held)
                };
                cols.iter().map(of_strip)
            };
            (0..strip.count).flat_map(of_row).collect()
        })
    }
}

/// The type of floats in a file. Weights that are quantised on the device come from a file of any float type.
pub(super) fn dtype_of(element: Element) -> Dtype {
    match element {
        Element::F32 | Element::U32 | Element::Nf4 | Element::Int8 => Dtype::F32,
        Element::F16 => Dtype::F16,
        Element::Bf16 => Dtype::BF16,
    }
}

/// The files that hold the tensors of an arena.
#[derive(Clone, Copy)]
pub(super) struct Homes<'a> {
    /// The files of the model. Without them the model's tensors are left as they are, except those that come with
    /// adapters.
    pub model: Option<&'a WeightFiles>,
    /// The files of adapters. Without them the adapters are left as they are.
    pub adapters: Option<&'a WeightFiles>,
    /// The tensors that are computed from both.
    pub computed: Option<&'a ComputedTensors>,
    /// The name of the embedding in the files of the model, if it is the head there, too, and the head's first values.
    pub head: Option<&'a str>,
}

/// Where a tensor is read from.
struct Home<'a> {
    /// The file that holds the tensor, or a part of it.
    file: &'a WeightFiles,
    /// Its name there.
    name: String,
    /// Its values, if they differ from the file's.
    computed: Option<&'a [f32]>,
}

impl<'a> Homes<'a> {
    /// Where each piece of a parameter is; `None` if no file has it, though it has pieces. A tensor's name is `prefix`
    /// followed by the name of the piece. Parameters that trained beside adapters are in the adapters' file.
    ///
    /// # Errors
    /// Some pieces are there, and others are missing.
    fn of(&self, spec: &Spec, prefix: &str) -> Result<Option<Vec<Home<'a>>>> {
        let home = |piece: &Piece| -> Option<Home<'a>> {
            let name = format!("{prefix}{}", piece.name);
            let home = |(file, name)| Home { file, name, computed: None };
            let computed = self.computed.and_then(|computed| computed.values(&name));
            if let Some((file, computed)) = self.adapters.zip(computed) {
                return Some(Home { file, name, computed: Some(computed) });
            }
            let kept = || self.adapters.and_then(|file| Some((file, peft_modules::find(file, &name)?)));
            let in_base = || self.head.filter(|_| name == HEAD).unwrap_or(&name).to_string();
            match spec.role {
                role if role.is_factor() => self.adapters.map(|file| home((file, name))),
                _ => kept().or_else(|| Some((self.model?, in_base()))).map(home),
            }
        };
        let homes: Vec<Option<Home<'a>>> = spec.pieces.iter().map(home).collect();
        match homes.iter().flatten().next() {
            Some(Home { file, .. }) if homes.iter().any(Option::is_none) => {
                let message = format!("holds a part of {} alone, which is stored as one matrix", spec.path);
                Err(Error::file(file.path(), message))
            }
            None if !spec.pieces.is_empty() => Ok(None),
            _ => Ok(Some(homes.into_iter().flatten().collect())),
        }
    }
}

/// Checks that files have the tensors of `arena`, where their names start with `prefix`.
///
/// # Errors
/// A tensor that is missing or of another shape or type.
pub(super) fn check(layout: &ArenaLayout, arena: &Arena, homes: Homes<'_>, prefix: &str) -> Result<()> {
    for (spec, parts) in layout.parameters.iter().filter(|(_, parts)| arena.holds(parts)) {
        for (piece, home) in spec.pieces.iter().zip(homes.of(spec, prefix)?.unwrap_or_default()) {
            let Home { file, name, computed } = home;
            let info = ArenaTensor { name, spec, parts, piece, arena }.info();
            match computed.map(<[f32]>::len) {
                Some(count) if count != info.shape.iter().product::<usize>() => {
                    return Err(lora::other_model(file.path(), &info.name, "has another size in the model"));
                }
                Some(_) => {}
                None => file.check(&info)?,
            }
        }
    }
    Ok(())
}

/// Reads the tensors of `arena` from files, where their names start with `prefix`; `write` puts them on the device.
///
/// # Errors
/// A tensor that is missing or of another shape or type. All are checked before the first is written, so that the
/// file of another model changes nothing.
pub(super) fn load(
    layout: &ArenaLayout,
    arena: &Arena,
    homes: Homes<'_>,
    prefix: &str,
    write: impl Fn(Tensor, &[u8]),
) -> Result<()> {
    check(layout, arena, homes, prefix)?;
    for (spec, parts) in layout.parameters.iter().filter(|(_, parts)| arena.holds(parts)) {
        let Some(homes) = homes.of(spec, prefix)? else { continue };
        for part in parts {
            for held in
                arena.held_in(part.segment, &part.range(spec, part.first_row, part.first_row + part.rows))
            {
                let tensor = arena.range(part.segment, held.clone());
                write(tensor, &stored(spec, part, held, &homes, tensor.element)?);
            }
        }
    }
    Ok(())
}

/// The bytes of the elements `held` of a part of a parameter, as the device holds them in the type `element`, padding
/// included. Where the file has the same rows, only the rows that contain these elements are read.
fn stored(
    spec: &Spec,
    part: &Part,
    held: Range<u64>,
    homes: &[Home<'_>],
    element: Element,
) -> Result<Vec<u8>> {
    let stride = u64::from(spec.stride());
    let row_of = |place: u64| part.first_row + (place / stride) as usize;
    let wanted = row_of(held.start - part.offset)..row_of((held.end - part.offset).next_multiple_of(stride));
    let mut rows: Vec<Vec<f32>> = match spec.pieces.is_empty() {
        true => wanted.clone().map(|row| initial_row(spec, row, 0)).collect(),
        false => vec![vec![0.0; spec.cols]; wanted.len()],
    };
    let cols = spec.col_strips();
    for strip in spec.row_strips().iter().filter_map(|strip| strip.held_in(wanted.clone())) {
        let mut take = |row: usize, first: usize, values: &[f32]| {
            let row = &mut rows[strip.held + row - strip.whole - wanted.start];
            for col in cols.iter().filter_map(|col| col.whole_in(&(first..first + values.len()))) {
                row[col.held..col.held + col.count]
                    .copy_from_slice(&values[col.whole - first..][..col.count]);
            }
        };
        read_rows(spec, strip.whole..strip.whole + strip.count, homes, &mut take)?;
    }
    let mut bytes = Vec::new();
    rows.iter().for_each(|row| element.encode_row(row, &mut bytes));
    let start = part.range(spec, wanted.start, wanted.end).start;
    let [first, end] = [held.start, held.end].map(|place| element.bytes_of(place - start) as usize);
    bytes.truncate(end);
    Ok(bytes.split_off(first))
}

/// Hands the values that files hold of the rows `wanted` of the whole parameter to `take`, as the row, the first column
/// and the values.
fn read_rows(
    spec: &Spec,
    wanted: Range<usize>,
    homes: &[Home<'_>],
    take: &mut dyn FnMut(usize, usize, &[f32]),
) -> Result<()> {
    let is_wanted = |(piece, _): &(&Piece, &Home<'_>)| {
        let end = piece.first_row + piece.rows;
        spec.role.is_row() || (piece.first_row < wanted.end && wanted.start < end)
    };
    for (piece, home) in spec.pieces.iter().zip(homes).filter(is_wanted) {
        let (mut values, skipped) = values_of(spec, piece, &wanted, home)?;
        for (row, first, columns) in spec.piece_rows(piece).skip(skipped) {
            let values: Vec<f32> = values.by_ref().take(columns).collect();
            if wanted.contains(&row) && !values.is_empty() {
                take(row, first, &values);
            }
        }
    }
    Ok(())
}

/// The values of a piece in the order of its rows, and how many rows come before them. The values include at least the
/// rows that are `wanted`.
fn values_of(
    spec: &Spec,
    piece: &Piece,
    wanted: &Range<usize>,
    Home { file, name, computed }: &Home<'_>,
) -> Result<(std::vec::IntoIter<f32>, usize)> {
    if let Some(computed) = computed {
        return Ok((spec.in_row_order(piece, computed.to_vec()).into_iter(), 0));
    }
    if let Some(stack) = piece.stack {
        return stacked_values(spec, piece, stack, wanted, (file, name));
    }
    if spec.role.is_vector() || !piece.is_in_order() {
        return Ok((spec.in_row_order(piece, file.values(name)?).into_iter(), 0));
    }
    let of_piece = |row: usize| row.saturating_sub(piece.first_row).min(piece.rows);
    let (first, end) = (of_piece(wanted.start), of_piece(wanted.end));
    Ok((file.row_values(name, first..end)?.into_iter(), first))
}

/// [`values_of`] a tensor of all experts, of which only those are read that have `wanted` rows.
fn stacked_values(
    spec: &Spec,
    piece: &Piece,
    stack: Stack,
    wanted: &Range<usize>,
    (file, name): (&WeightFiles, &str),
) -> Result<(std::vec::IntoIter<f32>, usize)> {
    let rows = piece.rows / stack.experts; // of an expert
    let (first, end) = (wanted.start / rows, wanted.end.div_ceil(rows).min(stack.experts));
    let mut values = Vec::new();
    for expert in first..end {
        values.extend(spec.in_row_order(piece, file.part_values(name, expert, stack.experts)?));
    }
    Ok((values.into_iter(), first * rows))
}
