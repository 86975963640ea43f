//! Tensors of a recording: views of buffers that are allocated later.

use super::span::Span;
use crate::element::Element;

/// Index of a buffer that outlives a recording: an arena, the batch, the step's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PersistentId(pub u32);

/// Index of a buffer that lives between its first and last use in one recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransientId(pub u32);

/// The buffer of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BufferId {
    /// Allocated before recordings are prepared.
    Persistent(PersistentId),
    /// Assigned a pool buffer when the recording is prepared.
    Transient(TransientId),
}

impl BufferId {
    /// The id of the persistent buffer, if it is one.
    pub fn persistent(self) -> Option<PersistentId> {
        match self {
            Self::Persistent(id) => Some(id),
            Self::Transient(_) => None,
        }
    }
}

/// Byte alignment of binding offsets: the largest `min_storage_buffer_offset_alignment` that WebGPU allows an adapter.
pub const BINDING_ALIGNMENT: u64 = 256;

/// A range of a buffer that a dispatch binds to a variable of its shader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Name of the variable in WGSL.
    pub variable: &'static str,
    /// Storage type of the tensor in that range.
    pub element: Element,
    /// The buffer.
    pub buffer: BufferId,
    /// Byte offset, a multiple of [`BINDING_ALIGNMENT`].
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Bytes that the dispatch reads and writes there; `None` if these are all, as often as the variable is accessed.
    pub touched: Option<u64>,
}

impl Binding {
    /// The range without the variable.
    pub fn span(&self) -> Span {
        let Self { element, buffer, offset, bytes, .. } = *self;
        Span { buffer, offset, bytes, element }
    }
}

/// A row-major matrix view: `rows` rows of `cols` elements, `stride` elements apart; the padding of a row is zero.
///
/// # Examples
///
/// ```
/// use gristmill::element::Element::F32;
/// use gristmill::record::Persistents;
///
/// let table = Persistents::new().tensor("table", 10, 6, F32);
/// assert_eq!((table.rows, table.cols, table.stride), (10, 6, 8)); // rows are padded to groups of 4
/// let rows = table.rows(2, 3);
/// assert_eq!((rows.rows, rows.offset, rows.bytes()), (3, 2 * 8 * 4, 3 * 8 * 4));
/// let half = table.columns(4, 2);
/// assert_eq!((half.cols, half.offset), (2, 4 * 4));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The buffer that holds it.
    pub buffer: BufferId,
    /// Byte offset of the first element; a multiple of the size of 4 elements, or of a block.
    pub offset: u64,
    /// Number of rows.
    pub rows: u32,
    /// Elements per row.
    pub cols: u32,
    /// Elements from the start of one row to the next: a multiple of 4, or whole blocks; at least `cols`.
    pub stride: u32,
    /// Storage type.
    pub element: Element,
}

impl Tensor {
    /// A tensor at byte `offset` of `buffer`, with the smallest stride.
    pub fn new(buffer: BufferId, offset: u64, rows: u32, cols: u32, element: Element) -> Self {
        Self { buffer, offset, rows, cols, stride: element.stride(cols), element }
    }

    /// Bytes from the first element to the end of the last row's padding.
    pub fn bytes(&self) -> u64 {
        let gap = (self.stride - self.element.stride(self.cols)) as u64;
        let elements = self.rows as u64 * self.stride as u64;
        self.element.bytes_of(elements - gap.min(elements))
    }

    /// Rows `first..first + count`.
    #[track_caller]
    pub fn rows(&self, first: u32, count: u32) -> Self {
        assert!(first + count <= self.rows, "rows {first}..{} of a tensor of {}", first + count, self.rows);
        let offset = self.offset + self.element.bytes_of(first as u64 * self.stride as u64);
        Self { offset, rows: count, ..*self }
    }

    /// Columns `first..first + count` of every row; `first` is a multiple of 4.
    #[track_caller]
    pub fn columns(&self, first: u32, count: u32) -> Self {
        assert!(first.is_multiple_of(4), "a column range starts at a multiple of 4, not at {first}");
        assert!(first + count <= self.cols, "columns {first}..{} of {}", first + count, self.cols);
        Self { offset: self.offset + first as u64 * self.element.bytes(), cols: count, ..*self }
    }

    /// Stride in groups of 4 elements, the unit of the shaders.
    pub fn stride4(&self) -> u32 {
        self.stride / 4
    }

    /// Binds the tensor to the variable `variable` of a shader, which has elements of `element`, for a kernel without
    /// an offset parameter.
    ///
    /// # Panics
    /// If the tensor has other elements, or is not aligned to [`BINDING_ALIGNMENT`].
    #[track_caller]
    pub fn bind(&self, variable: &'static str, element: Element) -> Binding {
        assert!(
            self.offset4() == 0,
            "the tensor of `{variable}` at byte {} is not aligned to 256 bytes and cannot be bound without an offset",
            self.offset
        );
        self.bind_with_offset(variable, element)
    }

    /// Binds the tensor for a kernel that takes the tensor's [`offset4`](Self::offset4) as a parameter: the binding
    /// starts at the last aligned byte before the tensor.
    ///
    /// # Panics
    /// If the tensor has other elements.
    #[track_caller]
    pub fn bind_with_offset(&self, variable: &'static str, element: Element) -> Binding {
        assert!(
            self.element == element,
            "the tensor of `{variable}` must hold {}, not {}",
            element.name(),
            self.element.name()
        );
        let rest = self.offset % self.binding_unit();
        let (offset, bytes) = (self.offset - rest, rest + self.bytes());
        Binding { variable, element, buffer: self.buffer, offset, bytes, touched: None }
    }

    /// Offset of the tensor within its binding, in groups of 4 elements, the unit of the shaders.
    pub fn offset4(&self) -> u32 {
        let (elements, bytes) = self.element.block();
        (self.offset % self.binding_unit() / bytes * elements / 4) as u32
    }

    /// The least common multiple of [`BINDING_ALIGNMENT`] and the size of a block.
    fn binding_unit(&self) -> u64 {
        let (_, bytes) = self.element.block();
        let odd = bytes >> bytes.trailing_zeros().min(BINDING_ALIGNMENT.trailing_zeros());
        BINDING_ALIGNMENT * odd
    }
}
