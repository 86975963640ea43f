//! Recordings: the dispatches of a step as plain data, recorded once and replayed by the device.
//!
//! A [`Recording`] lists dispatches over virtual buffers. It has two stages. *Written*: kernels, params, and virtual
//! buffers with their first and last use. This is all that the memory plan, the golden files, forecasts and the tests
//! without an adapter need. *Prepared*: pipelines are compiled in parallel, pool buffers are assigned by lifetime, bind
//! groups are created. After that a replay only encodes.

mod exchange;
mod fields;
mod in_flight;
mod memory;
mod params;
mod persistent;
mod recorder;
mod recording;
mod span;
mod state;
mod tensor;

pub use exchange::{Collective, Exchange, Room};
pub use fields::{Field, FieldType, Scalar};
pub use in_flight::{Started, UnderWay, stops};
pub use memory::{Consumer, LARGEST, MemoryPlan};
pub use params::Params;
pub use persistent::Persistents;
pub use recorder::{Position, Recorder, fold_grid};
pub use recording::{Dispatch, GridArguments, Recording, Transient};
pub use span::Span;
pub use state::State;
pub use tensor::{BINDING_ALIGNMENT, Binding, BufferId, PersistentId, Tensor, TransientId};
