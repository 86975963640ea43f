//! What the objective adds to keep experts equally busy.

use super::mixture_sections::MixtureSections;
use super::section::Notes;
use crate::error::Result;
use crate::model::config::BalanceLosses;

/// Megatron's words, and which of ours they are: the last is the default.
pub(super) const SEQUENCE: &str = "seq_aux_loss";
const BALANCING: [&str; 5] = ["aux_loss", "gbs_aux_loss", "none", SEQUENCE, "sub_seq_aux_loss"];

/// Reads the factors of the losses; `chosen` experts a token.
pub(super) fn read(
    sections: &MixtureSections,
    chosen: usize,
    is_topk_router_v1: bool,
    notes: &mut Notes,
) -> Result<BalanceLosses> {
    let from_zero = |factor: f64| factor >= 0.0;
    let range = "a number from 0";
    let mut losses = BalanceLosses {
        expert: by_types(sections, notes)?,
        sequence: 0.0,
        z: sections.number("z_loss_factor", 0.0, range, from_zero)?,
    };
    let coeff = sections.number("moe_aux_loss_coeff", 0.0, range, from_zero)?;
    let balancing = sections.word("moe_router_load_balancing_type", &BALANCING)?.unwrap_or(SEQUENCE);
    match balancing {
        _ if coeff == 0.0 => {}
        "none" => sections.ignore(&["moe_aux_loss_coeff"], notes),
        "aux_loss" | "gbs_aux_loss" => {
            if losses.expert > 0.0 {
                let message = "is the `expert` loss, which `aux_loss_types` gives too; keep one of them";
                return Err(sections.error("moe_aux_loss_coeff", message));
            }
            if balancing == "gbs_aux_loss" {
                let text = "each micro-batch is balanced for itself, not the global batch";
                notes.add(format!("{}: {text}", sections.path("moe_router_load_balancing_type")));
            }
            losses.expert = coeff;
        }
        _ => losses.sequence = coeff,
    }
    if is_topk_router_v1 {
        let range = "a number between 0 and 1 (`TopkRouterV1`)";
        sections.number("aux_loss_factor", 0.5, range, |factor| factor > 0.0 && factor < 1.0)?;
    }
    // V1 of the original adds one term for each of the k rounds of its choice.
    let v1_factor = sections.number("aux_loss_factor", 0.0, range, from_zero)?;
    if is_topk_router_v1 && losses.expert == 0.0 && sections.or("return_extra_loss", false)? {
        losses.expert = v1_factor * chosen as f64;
    } else {
        sections.ignore(&["aux_loss_factor"], notes);
    }
    if losses != BalanceLosses::default() && sections.get("return_extra_loss")? == Some(false) {
        let text = "the losses whose factors are written join the objective all the same";
        notes.add(format!("{}: {text}", sections.path("return_extra_loss")));
    }
    Ok(losses)
}

/// `aux_loss_types` with `aux_loss_factors`.
fn by_types(sections: &MixtureSections, notes: &mut Notes) -> Result<f64> {
    let types: Vec<String> = sections.get("aux_loss_types")?.unwrap_or_default();
    let factors: Option<Vec<f64>> = sections.get("aux_loss_factors")?;
    if types.is_empty() {
        sections.ignore(&["aux_loss_factors"], notes);
        return Ok(0.0);
    }
    let Some(factors) = factors else {
        let message = "needs `aux_loss_factors`, a number for each type";
        return Err(sections.error("aux_loss_types", message));
    };
    if factors.len() != types.len() {
        let counts = format!("{} `aux_loss_types` have {} `aux_loss_factors`", types.len(), factors.len());
        let key = sections.overridden("aux_loss_types").unwrap_or("aux_loss_factors");
        return Err(sections.error(key, format!("{counts}; give each type its own")));
    }
    if let Some(negative) = factors.iter().find(|factor| **factor < 0.0) {
        return Err(
            sections.error("aux_loss_factors", format!("expected numbers from 0, found `{negative}`"))
        );
    }
    let mut expert = 0.0;
    for (index, (kind, factor)) in types.iter().zip(&factors).enumerate() {
        if types[..index].contains(kind) {
            return Err(sections.error("aux_loss_types", format!("`{kind}` is there twice; remove one")));
        }
        match kind.as_str() {
            "expert" => expert = *factor,
            "device" | "comm" => {
                let text =
                    format!("`{kind}` balances devices, and here is one: a constant, so it is left out");
                notes.add(format!("{}: {text}", sections.path("aux_loss_types")));
            }
            _ => {
                let message = format!("expected expert, device or comm, found `{}`", kind.escape_debug());
                return Err(sections.error("aux_loss_types", message));
            }
        }
    }
    Ok(expert)
}
