//! The losses that keep experts equally busy.
//!
//! A balance loss joins the objective because its factor is written.
//! Losses over devices and communication are left out with a notice: what a step computes does not
//! depend on how many devices there are.

use super::rows::{Balancing, Moe};
use crate::model::config::BalanceLosses;
use crate::settings::engine::*;

/// Reduces every way of asking for a balance loss to `aux_loss_types: [expert]` and the loss over sequences.
pub(super) fn fill(moe: &mut Moe, reader: &Reader<'_>) {
    let mut losses = BalanceLosses { expert: by_types(moe, reader), sequence: 0.0, z: moe.z_loss_factor };
    let coeff = moe.moe_aux_loss_coeff.unwrap_or(0.0);
    match moe.moe_router_load_balancing_type.unwrap_or(Balancing::Sequence) {
        _ if coeff == 0.0 => {}
        Balancing::None => reader.ignore(&["moe_aux_loss_coeff"]),
        Balancing::Sequence => losses.sequence = coeff,
        balancing => {
            if losses.expert > 0.0 {
                let message = "is the `expert` loss, which `aux_loss_types` gives too; keep one of them";
                reader.fault("moe_aux_loss_coeff", message);
            }
            if balancing == Balancing::GlobalBatch {
                let text = "each micro-batch is balanced for itself, not the global batch";
                reader.note("moe_router_load_balancing_type", text);
            }
            losses.expert = coeff;
        }
    }
    write_back(moe, &losses);
}

impl Moe {
    /// The losses of a section that was filled.
    pub(crate) fn losses(&self) -> BalanceLosses {
        BalanceLosses {
            expert: self.aux_loss_factors.first().copied().unwrap_or(0.0),
            sequence: self.moe_aux_loss_coeff.unwrap_or(0.0),
            z: self.z_loss_factor,
        }
    }
}

fn write_back(moe: &mut Moe, losses: &BalanceLosses) {
    let has_expert = losses.expert > 0.0;
    moe.aux_loss_types = if has_expert { vec!["expert".to_string()] } else { Vec::new() };
    moe.aux_loss_factors = if has_expert { vec![losses.expert] } else { Vec::new() };
    moe.moe_aux_loss_coeff = Some(losses.sequence).filter(|factor| *factor > 0.0);
    moe.moe_router_load_balancing_type = moe.moe_aux_loss_coeff.map(|_| Balancing::Sequence);
}

/// `aux_loss_types` with `aux_loss_factors`: the factor of the loss over experts.
fn by_types(moe: &Moe, reader: &Reader<'_>) -> f64 {
    let (types, factors) = (&moe.aux_loss_types, &moe.aux_loss_factors);
    if types.is_empty() {
        reader.ignore(&["aux_loss_factors"]);
        return 0.0;
    }
    if !reader.has("aux_loss_factors") {
        reader.fault("aux_loss_types", "needs `aux_loss_factors`, a number for each type");
        return 0.0;
    }
    if !reader.is_sound("aux_loss_factors") {
        return 0.0;
    }
    if factors.len() != types.len() {
        let counts = format!("{} `aux_loss_types` have {} `aux_loss_factors`", types.len(), factors.len());
        let is_overridden = reader.source.document.is_overridden(&reader.path("aux_loss_types"));
        let key = if is_overridden { "aux_loss_types" } else { "aux_loss_factors" };
        reader.fault(key, format!("{counts}; give each type its own"));
        return 0.0;
    }
    let mut expert = 0.0;
    for (index, (kind, factor)) in types.iter().zip(factors).enumerate() {
        if types[..index].contains(kind) {
            reader.fault("aux_loss_types", format!("`{kind}` is there twice; remove one"));
        }
        match kind.as_str() {
            "expert" => expert = *factor,
            "device" | "comm" => {
                let text = format!(
                    "`{kind}` balances devices, and is left out: what a step computes does not depend on their number"
                );
                reader.note("aux_loss_types", text);
            }
            _ => {
                let message = format!("expected expert, device or comm, found `{}`", kind.escape_debug());
                reader.fault("aux_loss_types", message);
            }
        }
    }
    expert
}
