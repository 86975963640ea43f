//! Soft caps c · tanh(x / c) of attention scores and of logits (Gemma Team, "Gemma 2", 2024, section 2), which the
//! kernels of attention, of the loss and of draws apply to what they load.

/// What the params of a kernel hold of a cap: the cap times `unit`, and the reciprocal of that; zeros without one.
#[track_caller]
pub(super) fn cap_and_inverse(cap: Option<f32>, unit: f32) -> [f32; 2] {
    let Some(cap) = cap else { return [0.0; 2] };
    assert!(cap > 0.0 && cap.is_finite(), "a soft cap of {cap} is not a positive number");
    [cap * unit, 1.0 / (cap * unit)]
}
