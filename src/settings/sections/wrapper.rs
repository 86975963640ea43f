//! `runner_wrapper`: loss scale and gradient clipping.

use crate::settings::engine::*;

rows! {
    /// `runner_wrapper`: loss scale and gradient clipping.
    pub struct Wrapper {
        /// The loss is multiplied by this before the backward pass, and gradients are divided by it: a number, or a section
        /// with `type: FixedLossScaleUpdateCell` and `loss_scale_value`. A step whose gradients are not finite is skipped; 20
        /// in a row, of gradients or losses, end the run with an error.
        scale_sense: f64 = Numbers.default(1.0).within(SCALE).read_by(loss_scale).example("1024.0"),
        /// Whether gradients are scaled down to `max_grad_norm` where their norm is above it; False unless written, but True
        /// without a `runner_wrapper`.
        use_clip_grad: bool = Numbers.default(false),
        /// Largest L2 norm of all gradients together.
        max_grad_norm: f64 = Numbers.default(1.0).within(ABOVE_ZERO).example("0.5\nuse_clip_grad: True"),
    }
    others [
        ignored("enable_check_overflow enable_global_norm", "always on here"),
        refused("type", Passes::Words("MFTrainOneStepCell"), "write `type: MFTrainOneStepCell`"),
        refused("local_norm calculate_per_token_loss use_skip_data_by_global_norm", Passes::Off, "write `False`"),
        refused("global_norm_spike_threshold", Passes::UpToOne, "remove it"),
        refused("sens", Passes::UpToOne, "write `scale_sense: 1.0` instead"),
    ]
}

rows! {
    /// `runner_wrapper.scale_sense` as a section: a loss scale that is looked after by one of the original's cells.
    pub struct LossScale {
        /// The cell that looks after the scale.
        kind "type": LossScaleKind = Numbers.required().read_by(|reader, key| reader.kind(key, "")),
        /// The scale.
        loss_scale_value: f64 = Numbers.default(1.0).within(SCALE),
    }
    others []
}

words! {
    /// The cells that are built.
    pub enum LossScaleKind {
        /// The scale never moves.
        #[default]
        Fixed = "FixedLossScaleUpdateCell",
    }
}

const PLANNED: [&str; 2] = ["DynamicLossScaleUpdateCell", "AdaptiveLossScaleUpdateCell"];
const PATH: &str = "runner_wrapper";

/// The scale and its inverse are far from the limits of float32, also times a loss or a gradient.
const SCALE: Range = Range::new("a number from 2^-64 to 2^64", is_scale, 0.0);

fn is_scale(scale: f64) -> bool {
    (2f64.powi(-64)..=2f64.powi(64)).contains(&scale)
}

/// Reads the section.
pub(crate) fn read(source: &Source<'_>) -> Wrapper {
    let reader = Reader::open(source, PATH, &[&Wrapper::table()]);
    if !reader.is_written() {
        source.note("runner_wrapper is absent: gradients are clipped at norm 1.0, as in the original");
        return Wrapper { use_clip_grad: true, ..Wrapper::read(&reader) };
    }
    let wrapper = Wrapper::read(&reader);
    if wrapper.use_clip_grad { wrapper } else { Wrapper { max_grad_norm: 1.0, ..wrapper } }
}

impl Wrapper {
    /// Gradients are scaled down to this norm, if at all.
    pub fn clip(&self) -> Option<f64> {
        self.use_clip_grad.then_some(self.max_grad_norm)
    }
}

/// A number, or a section with a type.
fn loss_scale(reader: &Reader<'_>, key: &'static str) -> Option<f64> {
    match reader.node(key)? {
        Node::Map(_) => {
            let path = reader.path(key);
            if let Some(kind) =
                reader.source.word(&format!("{path}.type")).filter(|kind| PLANNED.contains(kind))
            {
                let message =
                    format!("`{kind}` is not built yet; write `scale_sense: 1.0`; f32 needs no scaling");
                reader.source.fault(&format!("{path}.type"), message);
                return None; // its other keys are its own
            }
            Some(LossScale::read_at(reader.source, &path).loss_scale_value)
        }
        node => {
            let number = f64::from_node(node);
            if number.is_none() {
                reader.fault(
                    key,
                    format!("expected a number from 2^-64 to 2^64 or a section with a type, found {node}"),
                );
            }
            number
        }
    }
}
