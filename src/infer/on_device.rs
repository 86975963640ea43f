//! The weights of a saved model on a device, without any state of an optimizer.

use crate::device::{Buffers, Gpu, Guard, Prepared, Reader};
use crate::error::{Error, Result};
use crate::kernels::Capabilities;
use crate::model::ModelBuffers;
use crate::model::arena::{Arena, ArenaLayout};
use crate::model::config::{LowRank, Magnitudes, ModelConfig};
use crate::model::fold;
use crate::model::parameters::{Gpt, Spec};
use crate::perf::limits::misfit_of_loaded;
use crate::record::{MemoryPlan, Persistents, Recorder, Recording, Tensor};
use crate::store::checkpoint::{WeightTensors, load_whole_weights};
use crate::tape::Parameter;
use crate::train::weight_upload::portions;
use std::path::Path;

/// A model and the place of its weights.
#[derive(Clone, Copy)]
pub(crate) struct SavedModel<'a> {
    pub model: &'a ModelConfig,
    /// The folder of its weights: a checkpoint, or one of Hugging Face's.
    pub weights: &'a Path,
    /// The adapter to use instead of one beside them.
    pub adapter: Option<&'a Path>,
    /// Where the base model of adapters may be, if it has moved.
    pub base: Option<&'a Path>,
}

/// The places of a model's weights on a device, while its recordings are being written.
pub(crate) struct Loading {
    /// Buffers that outlive a recording.
    pub persistents: Persistents,
    /// The rotary tables, and the state of the routers of a mixture.
    pub model_buffers: ModelBuffers,
    whole: Vec<Spec>,
    layout: ArenaLayout,
    weights: Arena,
}

/// A model on a device, and its prepared programs.
pub(crate) struct OnDevice<'gpu> {
    pub gpu: &'gpu Gpu,
    pub buffers: Buffers,
    pub prepared: Prepared,
    pub reader: Reader,
}

impl Loading {
    /// Places the parameters of `config`, for batches of `tokens` tokens.
    ///
    /// # Errors
    /// A parameter that no binding of `gpu` can hold.
    pub fn new(gpu: &Gpu, config: &ModelConfig, tokens: u32) -> Result<Self> {
        let mut persistents = Persistents::new();
        let whole = Gpt::describe(config);
        let layout = ArenaLayout::new(whole.clone(), &gpu.capabilities().limits)
            .map_err(|error| misfit_of_loaded(error, "choose another adapter by --device-name"))?;
        let weights = layout.arena(&mut persistents, "weights", |kind| Some(kind.compute));
        let model_buffers = ModelBuffers::new(config, tokens, &mut persistents);
        Ok(Self { persistents, model_buffers, whole, layout, weights })
    }

    /// The model of `config` on these parameters.
    pub fn model(&self, config: &ModelConfig) -> Gpt<Parameter> {
        self.layout.bind(config, &self.weights, None)
    }

    /// Bytes of device memory that it takes together with the arguments of [`finish`](Self::finish).
    pub fn bytes(&self, recordings: &[&Recording], read: Tensor) -> u64 {
        let params: u64 = recordings.iter().map(|recording| recording.params_bytes()).sum();
        self.persistents.bytes() + MemoryPlan::new(recordings).bytes() + params + read.bytes()
    }

    /// Prepares `recordings` and loads the weights from `saved`. `read` is the largest tensor that is read back at
    /// once, `remedy` the advice where the device has too little memory.
    ///
    /// # Errors
    /// A checkpoint that does not fit the model or cannot be read; a device that fails.
    pub async fn finish<'gpu>(
        self,
        gpu: &'gpu Gpu,
        saved: SavedModel<'_>,
        recordings: &[&Recording],
        read: Tensor,
        remedy: &str,
    ) -> Result<OnDevice<'gpu>> {
        let Self { persistents, model_buffers, whole, layout, weights } = self;
        let config = saved.model;
        let folded = folded(&layout, &weights, config, gpu.capabilities())?;
        let recordings: &[&Recording] = &[recordings, &folded.iter().collect::<Vec<_>>()].concat();
        let advise = |error| match error {
            Error::OutOfMemory { .. } => misfit_of_loaded(error, remedy),
            other => other,
        };
        gpu.compare_matrices(recordings).await.map_err(advise)?;
        let buffers = gpu.make_persistent(&persistents).await.map_err(advise)?;
        let prepared = gpu.prepare(recordings, &buffers, Guard::Off).await.map_err(advise)?;
        let write = portions(gpu, &buffers);
        for (table, values) in model_buffers.rotary_tables(config) {
            write(table, bytemuck::cast_slice(&values));
        }
        let experts = model_buffers.experts.as_ref();
        let low_rank = config.low_rank.as_ref();
        let tensors = WeightTensors { layout: &layout, arena: &weights, whole: &whole, experts, low_rank };
        load_whole_weights(tensors, saved.weights, saved.adapter, saved.base, write)?;
        let reader = Reader::new(gpu, read.bytes()).await.map_err(advise)?;
        let on_device = OnDevice { gpu, buffers, prepared, reader };
        if folded.is_some() {
            on_device.replay(recordings.len() - 1).await?;
        }
        Ok(on_device)
    }
}

/// Divides the magnitudes of adapters by norms, if there are some: they are read for each token.
fn folded(
    layout: &ArenaLayout,
    weights: &Arena,
    config: &ModelConfig,
    capabilities: Capabilities,
) -> Result<Option<Recording>> {
    let folds = |low_rank: &&LowRank| low_rank.magnitudes == Magnitudes::Folded;
    let Some(low_rank) = config.low_rank.as_ref().filter(folds) else { return Ok(None) };
    let mut rec = Recorder::new("magnitudes", capabilities);
    fold(&mut rec, layout, low_rank, weights);
    rec.try_finish().map(Some)
}

impl OnDevice<'_> {
    /// Replays the program with this index and waits for nothing.
    ///
    /// # Errors
    /// A device that fails.
    pub async fn replay(&self, program: usize) -> Result<()> {
        let mut encoder = self.gpu.encoder();
        encoder.replay(&self.prepared.programs[program]).await?;
        encoder.submit().await
    }
}
