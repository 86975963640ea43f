//! `runner_wrapper.scale_sense`: the loss scale, and how it adapts.

use crate::settings::engine::*;

rows! {
    /// `runner_wrapper.scale_sense` as a section: the class of MindFormers that controls the loss scale. An adaptive
    /// scale starts at `loss_scale_value`. A step that overflows divides it by `scale_factor`, but not below 1. As many
    /// steps without overflow as the window has multiply it by `scale_factor`, but not above 2^64, where MindFormers
    /// has no upper limit.
    pub struct LossScale in "runner_wrapper.scale_sense" {
        /// The class that controls the scale. With `AdaptiveLossScaleUpdateCell` the window comes from a list that goes
        /// from about `min_scale_window` to `max_scale_window`. Every third increase of the scale selects the next
        /// window of the list. The third decrease without an increase in between selects a window of one step, after
        /// which the list starts again.
        kind "type": LossScaleKind = Numbers.required().read_by(|reader, key| reader.kind(key, Self::ID)),
        /// Loss scale of the first step; at least 1 if the scale adapts.
        loss_scale_value: f64 = Numbers.default(1.0).within(SCALE),
    }
    by
    /// How the scale adapts.
    growth: Growth
}

rows! {
    /// How a loss scale adapts.
    pub enum Growth {
        /// The scale never changes.
        Fixed = "FixedLossScaleUpdateCell" => {}
        /// The scale adapts with one window.
        Dynamic = "DynamicLossScaleUpdateCell" => {
            /// Factor by which the scale is multiplied or divided.
            scale_factor: f64 = Numbers.default(2.0).within(FACTOR).example("4.0"),
            /// Steps without overflow before the scale grows.
            scale_window: u64 = Numbers.default(1000).within(SIZE),
        }
        /// The scale adapts with a list of windows.
        Adaptive = "AdaptiveLossScaleUpdateCell" => {
            /// Factor by which the scale is multiplied or divided.
            scale_factor: f64 = Numbers.default(2.0).within(FACTOR).example("4.0"),
            /// First window. If it is not in the list of windows, the first of the list is taken, with a notice.
            scale_window: Option<u64> = Numbers.optional().filled("the first of the list").within(SIZE).example("50"),
            /// Longest window. Values from 101 to 199 are refused: with them MindFormers' list starts with a window of
            /// 0.
            max_scale_window: u64 = Numbers.default(1000).within(SIZE).example("2000"),
            /// Approximate length of the shortest window; must be below `max_scale_window`.
            min_scale_window: u64 = Numbers.default(20).within(SIZE).example("50"),
        }
    }
}

words! {
    /// `type`.
    pub enum LossScaleKind {
        /// The scale never changes.
        #[default]
        Fixed = "FixedLossScaleUpdateCell",
        /// The scale adapts, with one window.
        Dynamic = "DynamicLossScaleUpdateCell",
        /// The scale adapts, with a list of windows.
        Adaptive = "AdaptiveLossScaleUpdateCell",
    }
}

/// The windows of a loss scale that adapts.
#[derive(Clone, Debug, PartialEq)]
pub struct Adaptation {
    /// The scale is multiplied and divided by this factor, which is at least 1.
    pub factor: f64,
    /// The windows, in steps without overflow before the scale grows, shortest first; a single one if the window never
    /// changes.
    pub windows: Vec<u32>,
    /// Index of the first window.
    pub first: usize,
}

/// Scales that stay far from the limits of float32, as do their inverses, also when multiplied by a loss or a gradient.
const SCALE: Range = Range::new("a number from 2^-64 to 2^64", is_scale, 0.0);
const FACTOR: Range = Range::new("a number from 1 to 65536", |factor| (1.0..=65536.0).contains(&factor), 0.5);

fn is_scale(scale: f64) -> bool {
    (2f64.powi(-64)..=2f64.powi(64)).contains(&scale)
}

/// A fixed scale is a number, any other a section.
impl Setting for LossScale {
    fn kind() -> ValueKind {
        ValueKind::Form("a number from 2^-64 to 2^64 or a section with a `type`")
    }

    fn to_node(&self) -> Option<Node> {
        match self.kind {
            LossScaleKind::Fixed => Some(self.loss_scale_value.into()),
            LossScaleKind::Dynamic | LossScaleKind::Adaptive => Some(self.written()),
        }
    }
}

impl LossScale {
    /// A scale that never changes.
    pub fn fixed(loss_scale_value: f64) -> Self {
        Self { loss_scale_value, ..Self::default() }
    }

    /// How the scale adapts, if it does.
    pub fn adaptation(&self) -> Option<Adaptation> {
        let (factor, windows, window) = match self.growth {
            Growth::Fixed {} => return None,
            Growth::Dynamic { scale_factor, scale_window } => {
                (scale_factor, vec![scale_window as u32], Some(scale_window))
            }
            Growth::Adaptive { scale_factor, scale_window, max_scale_window, min_scale_window } => {
                (scale_factor, scale_windows(max_scale_window, min_scale_window), scale_window)
            }
        };
        let first = windows.iter().position(|&steps| window == Some(steps.into())).unwrap_or(0);
        Some(Adaptation { factor, windows, first })
    }

    /// Checks that the keys fit together, and chooses the first window.
    fn fill(&mut self, reader: &Reader<'_>) {
        let value = self.loss_scale_value;
        let is_fixed = self.growth == Growth::Fixed {};
        let message = format!("{value} is below 1, the least of a scale that adapts");
        reader.require(&["loss_scale_value"], is_fixed || value >= 1.0, message);
        let Growth::Adaptive { scale_window, max_scale_window: max, min_scale_window: min, .. } =
            &mut self.growth
        else {
            return;
        };
        let keys = ["max_scale_window", "min_scale_window"];
        let message = format!("a largest window of {max} is not above min_scale_window {min}");
        reader.require(&keys, max > min, message);
        let windows = scale_windows(*max, *min);
        let message = format!(
            "a largest window of {max} gives a list that starts with a window of 0 steps, by which the scale would \
             double in every step; write 100 or less, or 200 or more"
        );
        reader.require(&keys, max <= min || !windows.contains(&0), message);
        let Some(first) = windows.first().map(|&steps| u64::from(steps)) else { return };
        let window = *scale_window.get_or_insert(first);
        if !windows.iter().any(|&steps| u64::from(steps) == window) {
            let list = windows.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
            let message =
                format!("{window} is not in the list of windows ({list}); the run starts with {first}");
            reader.note("scale_window", message);
            *scale_window = Some(first);
        }
    }
}

/// Reads a number, or a section with a type.
pub(super) fn loss_scale(reader: &Reader<'_>, key: &'static str) -> Option<LossScale> {
    match reader.node(key)? {
        Node::Map(_) => section(reader.source, &reader.path(key)),
        node => {
            let number = f64::from_node(node).filter(|number| is_scale(*number));
            if number.is_none() {
                reader.fault(key, format!("expected {}, found {node}", LossScale::kind().expected()));
            }
            number.map(LossScale::fixed)
        }
    }
}

fn section(source: &Source, path: &str) -> Option<LossScale> {
    let reader = Reader::open(source, path, &[LossScale::ID]);
    let Some(kind) = reader.kind::<LossScaleKind>("type", LossScale::ID) else {
        reader.missing("type", LossScaleKind::kind().expected());
        return None;
    };
    let reader = reader.of_type(kind.word());
    let mut scale = LossScale::read(&reader);
    reader.foreign::<LossScale>().for_each(|(key, types)| reader.refuse(key, &types));
    scale.fill(&reader);
    Some(scale)
}

/// The list of windows of `AdaptiveLossScaleUpdateCell`, shortest first: halves of `max`, in whole hundreds above
/// 100, and steps of half of `min` below 100, truncated.
fn scale_windows(max: u64, min: u64) -> Vec<u32> {
    let mut window = max as f64;
    let mut windows = vec![window as u32];
    while window > min as f64 {
        window = if window > 100.0 {
            (window / 200.0).floor() * 100.0
        } else if window == 100.0 {
            50.0
        } else {
            window - min as f64 / 2.0
        };
        windows.push(window as u32);
    }
    windows.reverse();
    windows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_those_of_the_original() {
        let lists: [((u64, u64), &[u32]); 10] = [
            ((1000, 20), &[20, 30, 40, 50, 100, 200, 500, 1000]),
            ((2000, 20), &[20, 30, 40, 50, 100, 200, 500, 1000, 2000]),
            ((4000, 20), &[20, 30, 40, 50, 100, 200, 500, 1000, 2000, 4000]),
            ((500, 50), &[50, 100, 200, 500]),
            ((300, 20), &[20, 30, 40, 50, 100, 300]),
            ((100, 20), &[20, 30, 40, 50, 100]),
            ((99, 20), &[19, 29, 39, 49, 59, 69, 79, 89, 99]),
            ((1000, 30), &[20, 35, 50, 100, 200, 500, 1000]),
            ((1000, 7), &[4, 8, 11, 15, 18, 22, 25, 29, 32, 36, 39, 43, 46, 50, 100, 200, 500, 1000]),
            ((21, 20), &[11, 21]),
        ];
        for ((max, min), list) in lists {
            assert_eq!(scale_windows(max, min), list, "({max}, {min})");
        }
        assert_eq!(scale_windows(1000, 300), [200, 500, 1000]);
        assert_eq!(scale_windows(1000, 1)[..6], [1, 1, 2, 2, 3, 3]);
        assert!((101..200).all(|max| scale_windows(max, 20)[0] == 0), "which is refused");
        let has_zero = |max: u64, min: u64| scale_windows(max, min).contains(&0);
        assert!((2..=100).chain(200..1500).all(|max| (1..max.min(300)).all(|min| !has_zero(max, min))));
    }
}
