//! Loss scales that adapt to overflows, as two state machines on integers and f64.
//!
//! Source: `DynamicLossScaleUpdateCell` of MindSpore and `AdaptiveLossScaleUpdateCell` of MindSpore Transformers 1.7,
//! but for the upper bound, which those lack.

/// The largest scale.
pub const LARGEST: f64 = 18_446_744_073_709_551_616.0;

/// A scale with one window.
#[derive(Clone, Debug, PartialEq)]
pub struct Dynamic {
    /// The scale of the next step.
    pub scale: f64,
    /// What the scale is multiplied and divided by.
    pub factor: f64,
    /// Steps without overflow after which the scale grows.
    pub window: u64,
    /// Number of the next step.
    pub step: u64,
    /// The step of the last change.
    pub last_change: u64,
}

impl Dynamic {
    /// Before the first step.
    pub fn new(scale: f64, factor: f64, window: u64) -> Self {
        Self { scale, factor, window, step: 1, last_change: 0 }
    }

    /// Takes in whether a step overflowed. Returns whether the scale grew.
    pub fn update(&mut self, overflow: bool) -> bool {
        let is_complete = self.window <= self.step - self.last_change;
        if overflow {
            self.scale = (self.scale / self.factor).max(1.0);
        } else if is_complete {
            self.scale = (self.scale * self.factor).min(LARGEST);
        }
        if overflow || is_complete {
            self.last_change = self.step;
        }
        self.step += 1;
        is_complete && !overflow
    }
}

/// A scale whose window is one of a list, or one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Adaptive {
    /// The scale under the current window.
    pub scale: Dynamic,
    /// The windows.
    pub windows: Vec<u64>,
    /// Which of them it is; `None`: one step.
    pub index: Option<usize>,
    /// Increases since the window last changed, modulo 4.
    pub increases: u64,
    /// Decreases since the last increase, modulo 4.
    pub decreases: u64,
}

impl Adaptive {
    /// Before the first step, with the window at `index` of `windows`.
    pub fn new(scale: f64, factor: f64, windows: &[u64], index: usize) -> Self {
        let scale = Dynamic::new(scale, factor, windows[index]);
        Self { scale, windows: windows.to_vec(), index: Some(index), increases: 0, decreases: 0 }
    }

    /// Takes in whether a step overflowed.
    pub fn update(&mut self, overflow: bool) {
        if self.scale.update(overflow) {
            self.increases = (self.increases + 1) % 4;
            self.decreases = 0;
        }
        let next = self.index.map_or(0, |index| index + 1);
        if self.increases == 3 && next < self.windows.len() {
            self.set_window(Some(next));
            self.increases = 0;
        }
        if overflow {
            self.decreases = (self.decreases + 1) % 4;
            if self.decreases == 3 && self.index.is_some_and(|index| index > 0) {
                self.set_window(None);
                (self.increases, self.decreases) = (0, 0);
            }
        }
    }

    fn set_window(&mut self, index: Option<usize>) {
        self.index = index;
        self.scale.window = index.map_or(1, |index| self.windows[index]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOWS: [u64; 8] = [20, 30, 40, 50, 100, 200, 500, 1000];

    #[test]
    fn dynamic_is_adaptive_with_one_window_and_while_the_window_does_not_change() {
        let mut dynamic = Dynamic::new(65536.0, 2.0, 20);
        let mut one = Adaptive::new(65536.0, 2.0, &[20], 0);
        let mut many = Adaptive::new(65536.0, 2.0, &WINDOWS, 0);
        let mut has_changed = false;
        for step in 1..=500u64 {
            let overflow = step % 7 == 0 && step > 100;
            dynamic.update(overflow);
            one.update(overflow);
            many.update(overflow);
            assert_eq!(one.scale, dynamic, "step {step}");
            has_changed |= many.index != Some(0);
            assert!(has_changed || many.scale == dynamic, "step {step}");
        }
        assert!(has_changed, "the window never changes");
    }

    #[test]
    fn the_scale_stays_within_1_and_its_cap() {
        let mut scale = Adaptive::new(1.0, 2.0, &[1], 0);
        (0..100).for_each(|_| scale.update(false));
        assert_eq!(scale.scale.scale, LARGEST);
        (0..100).for_each(|_| scale.update(true));
        assert_eq!(scale.scale.scale, 1.0);
    }
}
