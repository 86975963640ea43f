//! Which experts are chosen: the keys that become a [`RouterConfig`].

use super::mixture_sections::MixtureSections;
use super::node::Node;
use super::section::Notes;
use crate::error::Result;
use crate::model::config::{ExpertGroups, GroupScore, RouterConfig, Score};

/// Words of `topk_method`; without groups a token chooses among all experts.
pub(super) const GREEDY: &str = "greedy";
const GROUPED: [(&str, GroupScore); 2] =
    [("group_limited_greedy", GroupScore::Best), ("noaux_tc", GroupScore::BestTwo)];

/// Reads how `chosen` of `experts` are found.
pub(super) fn read(
    sections: &MixtureSections,
    experts: u32,
    chosen: u32,
    notes: &mut Notes,
) -> Result<RouterConfig> {
    let score = score(sections)?;
    let key = "routed_scaling_factor";
    let scaling = sections.number(key, 1.0, "a number above 0", |scaling| scaling > 0.0)?;
    if scaling as f32 == 0.0 || !(scaling as f32).is_finite() {
        let message = format!("expected a number above 0 and finite in float32, found `{scaling:e}`");
        return Err(sections.error(key, message));
    }
    Ok(RouterConfig {
        experts,
        chosen,
        score,
        groups: groups(sections, experts, chosen, notes)?,
        norm_top_k: normalises(sections, score, chosen)? && chosen > 1,
        scaling: scaling as f32,
    })
}

/// The word of `topk_method` for a score of groups.
pub(super) fn method(score: GroupScore) -> &'static str {
    GROUPED.iter().find(|(_, known)| *known == score).map_or(GREEDY, |(word, _)| word)
}

/// A switch in the original, a word elsewhere.
fn score(sections: &MixtureSections) -> Result<Score> {
    let key = "use_gating_sigmoid";
    match sections.node(key).and_then(Node::word) {
        Some("sigmoid") => Ok(Score::Sigmoid),
        Some("softmax") => Ok(Score::Softmax),
        Some(word) if sections.get::<bool>(key).is_err() => {
            let found = word.escape_debug();
            Err(sections.error(key, format!("expected softmax or sigmoid, found `{found}`")))
        }
        _ => Ok(if sections.or(key, false)? { Score::Sigmoid } else { Score::Softmax }),
    }
}

/// Megatron's softmax over the chosen alone (`moe_router_pre_softmax: False`) is one over all, normalised.
fn normalises(sections: &MixtureSections, score: Score, chosen: u32) -> Result<bool> {
    let norm_topk_prob: Option<bool> = sections.get("norm_topk_prob")?;
    let key = "moe_router_pre_softmax";
    let pre_softmax: Option<bool> = sections.get(key)?;
    if pre_softmax == Some(false) && score == Score::Softmax {
        if chosen == 1 {
            return Err(sections.error(key, "a softmax over one chosen expert is always 1; write `True`"));
        }
        if norm_topk_prob == Some(false) {
            let message =
                "makes the gates sum to 1, which `norm_topk_prob: False` forbids; change one of them";
            return Err(sections.error(key, message));
        }
    }
    Ok(norm_topk_prob.unwrap_or(true))
}

fn groups(
    sections: &MixtureSections,
    experts: u32,
    chosen: u32,
    notes: &mut Notes,
) -> Result<Option<ExpertGroups>> {
    let words = [GREEDY, GROUPED[0].0, GROUPED[1].0];
    let method = sections.word("topk_method", &words)?;
    let [written, written_kept] = [sections.whole("n_group")?, sections.whole("topk_group")?];
    let (count, kept) = (written.unwrap_or(0), written_kept.unwrap_or(0));
    let score = GROUPED.iter().find(|(word, _)| Some(*word) == method).map(|(_, score)| *score);
    let Some(score) = score else {
        if method.is_none() && count > 1 {
            let remedy = "write `group_limited_greedy` (a group's best score) or `noaux_tc` (its two best)";
            return Err(sections.error("n_group", format!("needs `topk_method`: {remedy}")));
        }
        sections.ignore(&["n_group", "topk_group"], notes);
        return Ok(None);
    };
    if written.is_none() {
        let message = format!("`{}` needs `n_group`, how many groups there are", self::method(score));
        return Err(sections.error("topk_method", message));
    }
    if count == 0 {
        let message = format!("expected a whole number from 1 to {experts} (`expert_num`), found `0`");
        return Err(sections.error("n_group", message));
    }
    if !(experts as usize).is_multiple_of(count) {
        let message =
            format!("{count} groups do not divide {experts} experts (`expert_num`); change one of them");
        return Err(sections.error("n_group", message));
    }
    if written_kept.is_none() {
        return Err(sections.error("n_group", "needs `topk_group`, from how many groups a token may choose"));
    }
    if kept == 0 || kept > count {
        let message = format!("expected a whole number from 1 to {count} (`n_group`), found `{kept}`");
        return Err(sections.error("topk_group", message));
    }
    let size = experts as usize / count;
    if (chosen as usize) > kept * size {
        let message = format!(
            "{kept} groups of {size} experts do not hold the {chosen} that a token chooses; raise it"
        );
        return Err(sections.error("topk_group", message));
    }
    if score == GroupScore::BestTwo && size < 2 {
        let message = "`noaux_tc` adds the two best of a group, and groups hold one expert; lower it";
        return Err(sections.error("n_group", message));
    }
    // One group, or all of them, leaves nothing out.
    Ok((kept < count).then_some(ExpertGroups { count: count as u32, chosen: kept as u32, score }))
}
