//! One-off work: tensors with their contents, kernels recorded on them, and the results.

use super::buffers::Buffers;
use super::gpu::Gpu;
use super::prepare::{Guard, Prepared};
use super::profile::LaunchTime;
use super::readback::Reader;
use crate::element::Element::{self, F32, U32};
use crate::error::{Error, Result};
use crate::kernels::Capabilities;
use crate::record::{BufferId, PersistentId, Persistents, Recorder, State, Tensor};

/// Tensors with their initial contents, and kernels recorded on them. No adapter is needed until the job is prepared.
///
/// # Examples
///
/// ```
/// use gristmill::device::{Gpu, GpuOptions, Guard, Job};
/// use gristmill::ops::add::add;
///
/// # fn main() -> gristmill::error::Result<()> {
/// # pollster::block_on(async {
/// let gpu = Gpu::request(&GpuOptions::default()).await?;
/// let mut job = Job::new("sums", gpu.capabilities());
/// let x = job.input(&[1.0, 2.0, 3.0], 1, 3);
/// let sum = job.output(1, 3);
/// add(&mut job.rec, x, sum, 1.0, true); // sum += x
/// let prepared = gpu.prepare_job(job, Guard::Off).await?;
/// prepared.replay().await?;
/// prepared.replay().await?;
/// assert_eq!(prepared.values(&sum).await?, [2.0, 4.0, 6.0]);
/// # Ok(())
/// # })
/// # }
/// ```
pub struct Job {
    /// Where the kernels are recorded.
    pub rec: Recorder,
    persistents: Persistents,
    contents: Vec<(PersistentId, Vec<u8>)>,
}

/// A job that is ready on the device, and can be replayed.
///
/// # Examples
///
/// Inputs and running sums may be replaced between replays:
///
/// ```
/// # use gristmill::device::{Gpu, GpuOptions, Guard, Job};
/// # use gristmill::ops::add::add;
/// # fn main() -> gristmill::error::Result<()> {
/// # pollster::block_on(async {
/// # let gpu = Gpu::request(&GpuOptions::default()).await?;
/// # let mut job = Job::new("sums", gpu.capabilities());
/// # let (x, sum) = (job.input(&[0.0; 3], 1, 3), job.output(1, 3));
/// # add(&mut job.rec, x, sum, 1.0, true); // sum += x
/// let prepared = gpu.prepare_job(job, Guard::Off).await?;
/// for values in [[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]] {
///     prepared.write(&x, &values)?;
///     prepared.replay().await?;
/// }
/// assert_eq!(prepared.values(&sum).await?, [11.0, 22.0, 33.0]);
/// prepared.write(&sum, &[0.0; 3])?;
/// prepared.replay().await?;
/// assert_eq!(prepared.values(&sum).await?, [10.0, 20.0, 30.0]);
/// # Ok(())
/// # })
/// # }
/// ```
pub struct PreparedJob<'gpu> {
    gpu: &'gpu Gpu,
    buffers: Buffers,
    prepared: Prepared,
    reader: Reader,
}

/// The tensors that [`Gpu::run`] reads back, and the form in which it returns their contents: a tensor of floats
/// becomes a `Vec<f32>` of its rows without padding, and [`Words`] a `Vec<u32>`; an array, a `Vec` or a pair of outputs
/// becomes an array, a `Vec` or a pair of their forms.
pub trait Outputs {
    /// The contents in the form of these outputs.
    type Values;

    /// The tensors, in order.
    fn tensors(&self) -> Vec<Tensor>;

    /// The contents in their form; `each` gives the bytes of the tensors in order, padding included.
    ///
    /// # Errors
    /// A tensor with elements of another kind than the form.
    fn values(&self, each: &mut dyn Iterator<Item = Vec<u8>>) -> Result<Self::Values>;
}

/// A tensor of [`U32`] as an output: ids, offsets, counts.
#[derive(Clone, Copy, Debug)]
pub struct Words(pub Tensor);

impl Job {
    /// An empty job for adapters with at least `capabilities`.
    pub fn new(name: &'static str, capabilities: Capabilities) -> Self {
        let rec = Recorder::new(name, capabilities);
        Self { rec, persistents: Persistents::new(), contents: Vec::new() }
    }

    /// A f32 tensor (rows, cols) of `values`, row by row.
    ///
    /// # Panics
    /// If there are not rows · cols values.
    #[track_caller]
    pub fn input(&mut self, values: &[f32], rows: u32, cols: u32) -> Tensor {
        self.input_of(values, rows, cols, F32)
    }

    /// A tensor (rows, cols) of `values`, rounded to `element`.
    ///
    /// # Panics
    /// If there are not rows · cols values, or `element` is not a float.
    #[track_caller]
    pub fn input_of(&mut self, values: &[f32], rows: u32, cols: u32, element: Element) -> Tensor {
        let count = rows as usize * cols as usize;
        assert!(
            values.len() == count,
            "an input of {rows} x {cols} takes {count} values, not {}",
            values.len()
        );
        let mut bytes = Vec::new();
        values.chunks(cols as usize).for_each(|row| element.encode_row(row, &mut bytes));
        let tensor = self.tensor(rows, cols, element);
        self.fill(tensor, bytes);
        tensor
    }

    /// A u32 row (1, N) of integers such as token ids.
    pub fn integers(&mut self, values: &[u32]) -> Tensor {
        let tensor = self.tensor(1, values.len() as u32, U32);
        self.fill(tensor, values.iter().flat_map(|value| value.to_le_bytes()).collect());
        tensor
    }

    /// A state struct, as [`State::bind`] takes it.
    pub fn state<S: State>(&mut self, state: S) -> Tensor {
        let tensor = S::tensor(&mut self.persistents, S::NAME);
        self.fill(tensor, bytemuck::bytes_of(&state).to_vec());
        tensor
    }

    /// A f32 tensor (rows, cols) of zeros, for results.
    pub fn output(&mut self, rows: u32, cols: u32) -> Tensor {
        self.tensor(rows, cols, F32)
    }

    /// A tensor (rows, cols) of zeros.
    pub fn tensor(&mut self, rows: u32, cols: u32, element: Element) -> Tensor {
        self.persistents.tensor(format!("tensor {}", self.persistents.buffers().len()), rows, cols, element)
    }

    /// A buffer with these contents, which may hold several tensors.
    pub fn buffer(&mut self, bytes: Vec<u8>) -> PersistentId {
        let id = self.persistents.add("buffer", bytes.len() as u64);
        self.contents.push((id, bytes));
        id
    }

    /// The job's list of persistent buffers, for types that add their own, such as a model's tables.
    pub fn persistents(&mut self) -> &mut Persistents {
        &mut self.persistents
    }

    /// The initial contents of buffers, each from its start; what they do not cover is zeros.
    pub fn contents(&self) -> &[(PersistentId, Vec<u8>)] {
        &self.contents
    }

    /// Sets the initial contents of the buffer of `tensor`. Without effect for a transient tensor.
    pub fn fill(&mut self, tensor: Tensor, bytes: Vec<u8>) {
        if let BufferId::Persistent(id) = tensor.buffer {
            self.contents.push((id, bytes));
        }
    }
}

impl Gpu {
    /// Runs kernels once and returns their results: `record` uploads inputs, records kernels on them and returns the
    /// tensors to read back. Tensors of the recorder ([`Recorder::tensor`]) can be among them.
    ///
    /// To run kernels more than once, use [`prepare_job`](Self::prepare_job) or [`prepare`](Self::prepare): here
    /// buffers and bind groups are created for one replay. Pipelines are kept by the `Gpu`.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare); a device failure, or an output with elements of another kind than its form.
    ///
    /// # Examples
    ///
    /// ```
    /// use gristmill::device::{Gpu, GpuOptions};
    /// use gristmill::ops::add::add;
    ///
    /// # fn main() -> gristmill::error::Result<()> {
    /// # pollster::block_on(async {
    /// let gpu = Gpu::request(&GpuOptions::default()).await?;
    /// let [doubled, copied] = gpu
    ///     .run(|job| {
    ///         let x = job.input(&[1.0, 2.0, 3.0], 1, 3);
    ///         let outputs = [job.output(1, 3), job.output(1, 3)];
    ///         add(&mut job.rec, x, outputs[0], 2.0, false);
    ///         add(&mut job.rec, x, outputs[1], 1.0, false);
    ///         outputs
    ///     })
    ///     .await?;
    /// assert_eq!((doubled, copied), (vec![2.0, 4.0, 6.0], vec![1.0, 2.0, 3.0]));
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub async fn run<R: Outputs>(&self, record: impl FnOnce(&mut Job) -> R) -> Result<R::Values> {
        let mut job = Job::new("job", self.capabilities());
        let outputs = record(&mut job);
        let tensors = outputs.tensors();
        tensors.iter().for_each(|tensor| job.rec.keep(*tensor));
        let prepared = self.prepare_job(job, Guard::Off).await?;
        prepared.replay().await?;
        let mut each = Vec::with_capacity(tensors.len());
        for tensor in &tensors {
            each.push(prepared.bytes_around(tensor, 0).await?);
        }
        outputs.values(&mut each.into_iter())
    }

    /// Allocates and fills the tensors of `job` and prepares its recording.
    ///
    /// # Errors
    /// As [`make_persistent`](Self::make_persistent) and [`prepare`](Self::prepare).
    pub async fn prepare_job(&self, job: Job, guard: Guard) -> Result<PreparedJob<'_>> {
        /// Bytes of the staging buffer through which results are read, piece by piece.
        const PIECE: u64 = 1 << 20;
        let Job { rec, persistents, contents } = job;
        let buffers = self.make_persistent(&persistents).await?;
        contents.iter().for_each(|(id, bytes)| self.write(&buffers, *id, 0, bytes));
        let prepared = self.prepare(&[&rec.finish()], &buffers, guard).await?;
        let reader = Reader::new(self, PIECE).await?;
        Ok(PreparedJob { gpu: self, buffers, prepared, reader })
    }
}

impl PreparedJob<'_> {
    /// Replaces the values of `tensor`, an [`input`](Job::input) or an [`output`](Job::output), row by row, for the
    /// replays that follow.
    ///
    /// # Errors
    /// A transient tensor or one of integers; not rows · cols values.
    pub fn write(&self, tensor: &Tensor, values: &[f32]) -> Result<()> {
        if !tensor.element.is_float() {
            return Err(mismatch(tensor, "words, which are not floats: write them with `write_words`"));
        }
        let mut bytes = Vec::with_capacity(tensor.bytes() as usize);
        values.chunks(tensor.cols as usize).for_each(|row| tensor.element.encode_row(row, &mut bytes));
        self.write_bytes(tensor, values.len(), &bytes)
    }

    /// Replaces the values of `tensor`, of [`integers`](Job::integers), for the replays that follow.
    ///
    /// # Errors
    /// A transient tensor or one of floats; not as many values as it has.
    pub fn write_words(&self, tensor: &Tensor, values: &[u32]) -> Result<()> {
        if tensor.element != U32 {
            return Err(mismatch(tensor, "values, not u32 words: write them with `write`"));
        }
        let rows = values.chunks(tensor.cols as usize);
        let padded = rows.flat_map(|row| {
            let padding = (tensor.stride as usize).saturating_sub(row.len());
            row.iter().copied().chain(std::iter::repeat_n(0, padding))
        });
        let bytes: Vec<u8> = padded.flat_map(u32::to_le_bytes).collect();
        self.write_bytes(tensor, values.len(), &bytes)
    }

    /// Replaces a state struct ([`Job::state`]) for the replays that follow.
    ///
    /// # Errors
    /// A transient tensor, or one that holds another struct.
    pub fn write_state<S: State>(&self, tensor: &Tensor, state: &S) -> Result<()> {
        check_state::<S>(tensor)?;
        self.write_bytes(tensor, S::WORDS as usize, bytemuck::bytes_of(state))
    }

    fn write_bytes(&self, tensor: &Tensor, count: usize, bytes: &[u8]) -> Result<()> {
        let Tensor { rows, cols, buffer, offset, .. } = *tensor;
        let expected = rows as usize * cols as usize;
        if count != expected {
            return Err(Error::Plan(format!(
                "a tensor of {rows} x {cols} takes {expected} values, not {count}"
            )));
        }
        let BufferId::Persistent(id) = buffer else {
            let message = format!("a tensor of {rows} x {cols} of the recorder has no place between replays");
            return Err(Error::Plan(message + ": make it an input or output of the job"));
        };
        self.gpu.write(&self.buffers, id, offset, bytes);
        self.gpu.check()
    }

    /// Submits one replay. [`Gpu::wait`] completes when it has run.
    ///
    /// # Errors
    /// A device failure.
    pub async fn replay(&self) -> Result<()> {
        let mut encoder = self.gpu.encoder();
        encoder.replay(&self.prepared.programs[0]).await?;
        encoder.submit().await
    }

    /// Replays the job, and waits for the times of its launches
    /// ([`Encoder::replay_timed`](super::Encoder::replay_timed)).
    ///
    /// # Errors
    /// An adapter without timestamps, or a device failure.
    pub async fn replay_timed(&self) -> Result<Vec<LaunchTime>> {
        self.gpu.encoder().replay_timed(&self.prepared.programs[0]).await
    }

    /// The values of `tensor`, row by row, without padding. A transient tensor must have been kept
    /// ([`Recorder::keep`]).
    ///
    /// # Errors
    /// A transient that no dispatch uses, a tensor of integers, or a device failure.
    pub async fn values(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        decode(tensor, &self.bytes_around(tensor, 0).await?)
    }

    /// The integers of `tensor`, a tensor of [`U32`], row by row, without padding.
    ///
    /// # Errors
    /// A transient that no dispatch uses, a tensor of floats, or a device failure.
    pub async fn words(&self, tensor: &Tensor) -> Result<Vec<u32>> {
        decode_words(tensor, &self.bytes_around(tensor, 0).await?)
    }

    /// The contents of a state struct ([`Job::state`]) after the replays so far.
    ///
    /// # Errors
    /// A tensor that holds another struct, or a device failure.
    pub async fn state<S: State>(&self, tensor: &Tensor) -> Result<S> {
        check_state::<S>(tensor)?;
        let bytes = self.bytes_around(tensor, 0).await?;
        Ok(bytemuck::pod_read_unaligned(&bytes[..size_of::<S>()]))
    }

    /// The bytes of `tensor`, padding included, with `margin` more bytes on both sides: for tests of guard zones.
    ///
    /// # Errors
    /// As [`values`](Self::values).
    pub async fn bytes_around(&self, tensor: &Tensor, margin: u64) -> Result<Vec<u8>> {
        self.reader.around(self.gpu, &self.buffers, &self.prepared, 0, tensor, margin).await
    }
}

impl Outputs for Tensor {
    type Values = Vec<f32>;

    fn tensors(&self) -> Vec<Tensor> {
        vec![*self]
    }

    fn values(&self, each: &mut dyn Iterator<Item = Vec<u8>>) -> Result<Vec<f32>> {
        decode(self, &each.next().unwrap_or_default())
    }
}

impl Outputs for Words {
    type Values = Vec<u32>;

    fn tensors(&self) -> Vec<Tensor> {
        vec![self.0]
    }

    fn values(&self, each: &mut dyn Iterator<Item = Vec<u8>>) -> Result<Vec<u32>> {
        decode_words(&self.0, &each.next().unwrap_or_default())
    }
}

impl<R: Outputs, const N: usize> Outputs for [R; N] {
    type Values = [R::Values; N];

    fn tensors(&self) -> Vec<Tensor> {
        self.iter().flat_map(R::tensors).collect()
    }

    fn values(&self, each: &mut dyn Iterator<Item = Vec<u8>>) -> Result<[R::Values; N]> {
        let values: Vec<R::Values> = self.iter().map(|output| output.values(each)).collect::<Result<_>>()?;
        let mut values = values.into_iter();
        Ok(std::array::from_fn(|_| values.next().expect("an output has one value")))
    }
}

impl<R: Outputs> Outputs for Vec<R> {
    type Values = Vec<R::Values>;

    fn tensors(&self) -> Vec<Tensor> {
        self.iter().flat_map(R::tensors).collect()
    }

    fn values(&self, each: &mut dyn Iterator<Item = Vec<u8>>) -> Result<Vec<R::Values>> {
        self.iter().map(|output| output.values(each)).collect()
    }
}

impl<A: Outputs, B: Outputs> Outputs for (A, B) {
    type Values = (A::Values, B::Values);

    fn tensors(&self) -> Vec<Tensor> {
        [self.0.tensors(), self.1.tensors()].concat()
    }

    fn values(&self, each: &mut dyn Iterator<Item = Vec<u8>>) -> Result<(A::Values, B::Values)> {
        Ok((self.0.values(each)?, self.1.values(each)?))
    }
}

/// The floats of `tensor`, row by row, without padding.
fn decode(tensor: &Tensor, bytes: &[u8]) -> Result<Vec<f32>> {
    if !tensor.element.is_float() {
        return Err(mismatch(
            tensor,
            "words, which are not floats: read them with `Words` or `PreparedJob::words`",
        ));
    }
    Ok(without_padding(tensor, &tensor.element.decode(bytes)))
}

/// The integers of `tensor`, row by row, without padding.
fn decode_words(tensor: &Tensor, bytes: &[u8]) -> Result<Vec<u32>> {
    if tensor.element != U32 {
        return Err(mismatch(
            tensor,
            "values, not u32 words: read the tensor itself or with `PreparedJob::values`",
        ));
    }
    Ok(without_padding(tensor, &bytemuck::pod_collect_to_vec::<u8, u32>(bytes)))
}

/// Fails if the shape of `tensor` is not that of the state struct `S`.
fn check_state<S: State>(tensor: &Tensor) -> Result<()> {
    match (tensor.rows, tensor.cols, tensor.element) == (1, S::WORDS, U32) {
        true => Ok(()),
        false => Err(mismatch(tensor, &format!("values, and not a {} of {} words", S::NAME, S::WORDS))),
    }
}

fn mismatch(tensor: &Tensor, what: &str) -> Error {
    let Tensor { rows, cols, element, .. } = tensor;
    Error::Plan(format!("a tensor of {rows} x {cols} holds {} {what}", element.name()))
}

fn without_padding<T: Copy>(tensor: &Tensor, padded: &[T]) -> Vec<T> {
    let rows = padded.chunks(tensor.stride as usize);
    rows.flat_map(|row| &row[..tensor.cols as usize]).copied().collect()
}
