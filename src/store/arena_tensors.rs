//! Parameters in an arena as the tensors of a file: under their Hugging Face names, without padding.

use super::tensor_file::TensorInfo;
use super::weight_files::WeightFiles;
use crate::element::Element;
use crate::error::Result;
use crate::model::arena::{Arena, ArenaLayout, Part};
use crate::model::parameters::{Piece, Role, Spec};
use crate::record::Tensor;
use safetensors::Dtype;

/// Receives the rows of a tensor one by one, as little-endian bytes.
pub(crate) type TakeRow<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// A tensor of a file: one piece of a parameter, and the arena that holds it.
pub(crate) struct ArenaTensor<'a> {
    pub name: String,
    spec: &'a Spec,
    parts: &'a [Part],
    piece: &'a Piece,
    arena: &'a Arena,
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

    /// Whether it is a factor of an adapter.
    pub fn is_adapter(&self) -> bool {
        self.spec.role == Role::Adapter
    }

    /// Whether training never changes it.
    pub fn is_frozen(&self) -> bool {
        !self.spec.trains
    }

    /// Whether it is stored as layers read it.
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
        self.parts.first().map_or(Element::F32, |part| self.arena.part(self.spec, part).element)
    }

    /// Hands the rows to `take` as the file holds them; `read` hands over the rows of a tensor on the device.
    pub async fn read(
        &self,
        read: &impl AsyncFn(Tensor, TakeRow<'_>) -> Result<()>,
        take: TakeRow<'_>,
    ) -> Result<()> {
        if self.piece.is_in_order() {
            return self.read_stored(read, take).await;
        }
        // Putting it in the file's order takes its size in host memory once more.
        let (shape, element) = (self.info().shape, self.element());
        let mut values = Vec::with_capacity(shape.iter().product());
        let mut keep = |row: &[u8]| {
            values.extend(element.decode(row));
            Ok(())
        };
        self.read_stored(read, &mut keep).await?;
        let values = self.spec.to_file(self.piece, values);
        let mut bytes = Vec::new();
        values.chunks(shape.last().copied().unwrap_or(1)).try_for_each(|row| {
            bytes.clear();
            element.encode_row(row, &mut bytes);
            take(&bytes[..row.len() * element.bytes() as usize])
        })
    }

    /// Hands the rows to `take` as the device holds them.
    async fn read_stored(
        &self,
        read: &impl AsyncFn(Tensor, TakeRow<'_>) -> Result<()>,
        take: TakeRow<'_>,
    ) -> Result<()> {
        let mut rows = self.spec.piece_rows(self.piece);
        let Some((first_row, first_column, columns)) = rows.next() else { return Ok(()) };
        let end_row = first_row + 1 + rows.count();
        for part in self.parts {
            let (first, end) = (first_row.max(part.first_row), end_row.min(part.first_row + part.rows));
            if first < end {
                let tensor = self.arena.part(self.spec, part);
                let rows = tensor.rows((first - part.first_row) as u32, (end - first) as u32);
                let width = tensor.element.bytes() as usize;
                let bytes = width * first_column..width * (first_column + columns);
                read(rows, &mut |row: &[u8]| take(&row[bytes.clone()])).await?;
            }
        }
        Ok(())
    }
}

/// The type of floats in a file.
pub(super) fn dtype_of(element: Element) -> Dtype {
    match element {
        Element::F32 | Element::U32 => Dtype::F32,
        Element::F16 => Dtype::F16,
        Element::Bf16 => Dtype::BF16,
    }
}

/// The files that hold the tensors of an arena.
#[derive(Clone, Copy)]
pub(super) struct Homes<'a> {
    /// Those of the model; without it they are left as they are.
    pub model: Option<&'a WeightFiles>,
    /// Those of adapters; likewise.
    pub adapters: Option<&'a WeightFiles>,
}

impl<'a> Homes<'a> {
    fn of(&self, role: Role) -> Option<&'a WeightFiles> {
        if role == Role::Adapter { self.adapters } else { self.model }
    }
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
    let tensors = ArenaTensor::list(layout, arena, prefix);
    tensors.iter().try_for_each(|tensor| {
        homes.of(tensor.spec.role).map_or(Ok(()), |file| file.check(&tensor.info()))
    })?;
    let parameters = layout.parameters.iter();
    for (spec, parts) in parameters.into_iter().filter(|(_, parts)| arena.holds(parts)) {
        let Some(file) = homes.of(spec.role) else { continue };
        for part in parts {
            let tensor = arena.part(spec, part);
            write(tensor, &stored(spec, part, file, prefix, tensor.element)?);
        }
    }
    Ok(())
}

/// The bytes of one part of a parameter as the device holds it in `element`, padding included.
fn stored(spec: &Spec, part: &Part, file: &WeightFiles, prefix: &str, element: Element) -> Result<Vec<u8>> {
    let mut rows = vec![vec![0.0f32; spec.cols]; part.rows];
    for piece in &spec.pieces {
        let values = file.values(&format!("{prefix}{}", piece.name))?;
        let mut values = spec.from_file(piece, values).into_iter();
        for (row, first, columns) in spec.piece_rows(piece) {
            let inside = row.checked_sub(part.first_row).filter(|&row| row < part.rows);
            let taken: Vec<f32> = values.by_ref().take(columns).collect();
            if let Some(row) = inside {
                rows[row][first..first + columns].copy_from_slice(&taken);
            }
        }
    }
    let mut bytes = Vec::new();
    rows.iter().for_each(|row| element.encode_row(row, &mut bytes));
    Ok(bytes)
}
