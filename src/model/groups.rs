//! Which parameters are updated alike: patterns over their names.
//!
//! A pattern is a regular expression that may match anywhere in a name. A parameter goes by its path in the model
//! (`layers.0.attention.wqkv`), by the names that Hugging Face gives its pieces
//! (`model.layers.0.self_attn.q_proj.weight`) and by that of Megatron, which files of the original use
//! (`decoder.layers.0.self_attention.linear_qkv.weight`).

use super::parameters::{Role, Spec, UpdateRule};
use regex::bytes::{Regex, RegexBuilder};

/// What a configuration says about sets of parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grouping {
    /// Parameters that do not train.
    pub freeze: Vec<String>,
    /// Those of them that train all the same.
    pub freeze_exclude: Vec<String>,
    /// Matrices without weight decay.
    pub no_decay: Vec<String>,
    /// Patterns of the groups 1, 2, ...; what none of them matches is in group 0.
    pub groups: Vec<Vec<String>>,
    /// How the matrices of the layers are updated; tables, routers and vectors always by AdamW. A router's rows are logits
    /// of experts as a head's are of tokens: it is no map from one space of features to another.
    pub matrices: UpdateRule,
}

/// A list of patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// [`Grouping::freeze`]
    Freeze,
    /// [`Grouping::freeze_exclude`]
    FreezeExclude,
    /// [`Grouping::no_decay`]
    NoDecay,
    /// Of [`Grouping::groups`], numbered from 0.
    Group(usize),
}

/// Why patterns and parameters do not fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// The list to change.
    pub list: List,
    /// What is wrong and what to do.
    pub message: String,
}

impl Grouping {
    /// Sorts the parameters of a model.
    ///
    /// # Errors
    /// A pattern that is no regular expression or matches nothing, takes one piece of a parameter that is stored as one,
    /// or takes what another group has; nothing left to train.
    pub fn apply(&self, mut specs: Vec<Spec>) -> Result<Vec<Spec>, Misfit> {
        let matched = |list, patterns: &[String]| matches(&specs, list, patterns);
        let frozen = matched(List::Freeze, &self.freeze)?;
        let excluded = matched(List::FreezeExclude, &self.freeze_exclude)?;
        let exempt = matched(List::NoDecay, &self.no_decay)?;
        let mut groups = vec![0; frozen.len()];
        for (number, patterns) in self.groups.iter().enumerate() {
            let list = List::Group(number);
            let taken = matched(list, patterns)?;
            for (index, spec) in specs.iter().enumerate().filter(|(index, _)| taken[*index]) {
                if groups[index] != 0 {
                    let message = format!(
                        "{} is in group {} already; one group may take it",
                        spec.path,
                        groups[index] - 1
                    );
                    return Err(Misfit { list, message });
                }
                groups[index] = number + 1;
            }
        }
        if frozen.iter().zip(&excluded).all(|(frozen, excluded)| *frozen && !excluded) {
            return Err(Misfit {
                list: List::Freeze,
                message: "nothing is left to train; freeze less".into(),
            });
        }
        for (index, spec) in specs.iter_mut().enumerate() {
            let is_map = matches!(spec.role, Role::Matrix | Role::ExpertStack { .. });
            spec.trains &= !frozen[index] || excluded[index];
            spec.decays &= !exempt[index];
            spec.group = groups[index];
            spec.rule = if is_map { self.matrices } else { UpdateRule::AdamW };
        }
        Ok(specs)
    }
}

/// Which parameters, in order, one of `patterns` takes.
fn matches(specs: &[Spec], list: List, patterns: &[String]) -> Result<Vec<bool>, Misfit> {
    let misfit = |message| Misfit { list, message };
    let compiled: Vec<Regex> =
        patterns.iter().map(|pattern| compile(pattern).map_err(misfit)).collect::<Result<_, _>>()?;
    let mut used = vec![false; patterns.len()];
    let mut takes = |name: &str| {
        let hits: Vec<usize> =
            (0..compiled.len()).filter(|&i| compiled[i].is_match(name.as_bytes())).collect();
        hits.iter().for_each(|&i| used[i] = true);
        !hits.is_empty()
    };
    let mut taken = Vec::new();
    for spec in specs {
        let whole = [Some(spec.path.clone()), megatron_name(&spec.path)].into_iter().flatten();
        let is_whole = whole.map(|name| takes(&name)).fold(false, |any, one| any | one);
        let pieces: Vec<bool> = spec.pieces.iter().map(|piece| takes(&piece.name)).collect();
        if !is_whole && pieces.contains(&true) && pieces.contains(&false) {
            let missing =
                spec.pieces.iter().zip(&pieces).find(|(_, taken)| !**taken).map(|(piece, _)| &piece.name);
            let missing = missing.map_or("", String::as_str);
            return Err(misfit(format!(
                "takes only a part of {}, which is stored as one matrix; take {missing} too, or none of it",
                spec.path
            )));
        }
        taken.push(is_whole || pieces.contains(&true));
    }
    match used.iter().position(|used| !used) {
        Some(idle) => Err(misfit(format!(
            "`{}` matches no parameter; names are such as model.layers.0.self_attn.q_proj.weight or \
             layers.0.attention.wqkv",
            patterns[idle].escape_debug()
        ))),
        None => Ok(taken),
    }
}

/// A pattern, ready to match, or why it is none. Names are ASCII: no tables of Unicode are needed.
pub fn compile(pattern: &str) -> Result<Regex, String> {
    RegexBuilder::new(pattern).unicode(false).size_limit(1 << 20).build().map_err(|error| {
        let reason = error.to_string();
        let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_string();
        let remedy = if pattern.starts_with('*') { "; write `.*` for any text" } else { "" };
        format!("`{}` is no regular expression: {reason}{remedy}", pattern.escape_debug())
    })
}

/// Megatron's name of the parameter at `path`.
fn megatron_name(path: &str) -> Option<String> {
    const NAMES: [(&str, &str); 15] = [
        ("attention_norm", "input_layernorm.weight"),
        ("attention.wqkv", "self_attention.linear_qkv.weight"),
        ("attention.bqkv", "self_attention.linear_qkv.bias"),
        ("attention.q_norm", "self_attention.q_layernorm.weight"),
        ("attention.k_norm", "self_attention.k_layernorm.weight"),
        ("attention.wo", "self_attention.linear_proj.weight"),
        ("ffn_norm", "pre_mlp_layernorm.weight"),
        ("feed_forward.w_gate_up", "mlp.linear_fc1.weight"),
        ("feed_forward.w_down", "mlp.linear_fc2.weight"),
        ("feed_forward.router", "mlp.router.weight"),
        ("feed_forward.experts.w_gate_up", "mlp.experts.weight1"),
        ("feed_forward.experts.w_down", "mlp.experts.weight2"),
        ("feed_forward.shared.w_gate_up", "mlp.shared_experts.linear_fc1.weight"),
        ("feed_forward.shared.w_down", "mlp.shared_experts.linear_fc2.weight"),
        ("feed_forward.shared.gate", "mlp.shared_experts.gate_weight"),
    ];
    const BESIDE: [(&str, &str); 4] = [
        ("token_norm", "enorm.weight"),
        ("state_norm", "hnorm.weight"),
        ("w_fuse", "eh_proj.weight"),
        ("norm", "final_layernorm.weight"),
    ];
    let find = |names: &[(&str, &'static str)], name: &str| {
        names.iter().find(|(ours, _)| *ours == name).map(|(_, theirs)| *theirs)
    };
    match path {
        "embedding" => Some("embedding.word_embeddings.weight".into()),
        "norm" => Some("decoder.final_layernorm.weight".into()),
        "head" => Some("output_layer.weight".into()),
        _ => {
            let (kind, rest) = path.split_once('.')?;
            let (number, name) = rest.split_once('.')?;
            match (kind, find(&BESIDE, name)) {
                ("layers", _) => Some(format!("decoder.layers.{number}.{}", find(&NAMES, name)?)),
                (_, Some(theirs)) => Some(format!("mtp.layers.{number}.{theirs}")),
                (_, None) => Some(format!("mtp.layers.{number}.transformer_layer.{}", find(&NAMES, name)?)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::{ModelConfig, Sizes};
    use crate::model::parameters::Gpt;
    use crate::model::parameters::tests::mixture_example;

    fn specs() -> Vec<Spec> {
        let sizes = Sizes {
            vocab_size: 16,
            hidden_size: 8,
            num_layers: 2,
            num_heads: 2,
            intermediate_size: 8,
            seq_length: 8,
        };
        let llama = ModelConfig::llama(sizes);
        Gpt::describe(&ModelConfig { num_kv_heads: 1, qkv_bias: true, qk_norm: true, ..llama })
    }

    fn list(patterns: &[&str]) -> Vec<String> {
        patterns.iter().map(|pattern| pattern.to_string()).collect()
    }

    fn freeze(patterns: &[&str], exclude: &[&str]) -> Result<Vec<String>, Misfit> {
        let grouping =
            Grouping { freeze: list(patterns), freeze_exclude: list(exclude), ..Grouping::default() };
        let sorted = grouping.apply(specs())?;
        Ok(sorted.into_iter().filter(|spec| !spec.trains).map(|spec| spec.path).collect())
    }

    #[test]
    fn a_parameter_goes_by_three_names() {
        let both = ["layers.0.attention.wqkv", "layers.1.attention.wqkv"];
        assert_eq!(freeze(&["wqkv"], &[]).unwrap(), both);
        assert_eq!(freeze(&["linear_qkv.weight"], &[]).unwrap(), both);
        assert_eq!(freeze(&[r"self_attn\.[qkv]_proj\.weight"], &[]).unwrap(), both);
        assert_eq!(freeze(&["q_proj.weight", "k_proj.weight", "v_proj.weight"], &[]).unwrap(), both);
        assert_eq!(freeze(&["embedding.*", "output_layer.weight"], &[]).unwrap(), ["embedding", "head"]);
        assert_eq!(
            freeze(&[r"layers\.1\."], &["attention", "ffn_norm", "w_gate_up"]).unwrap(),
            ["layers.1.feed_forward.w_down"]
        );
        assert_eq!(freeze(&[".*"], &["lm_head"]).unwrap().len(), specs().len() - 1);
    }

    #[test]
    fn misfits_say_what_to_change() {
        let line = |patterns: &[&str]| freeze(patterns, &[]).unwrap_err().message;
        assert!(line(&["q_proj.weight"]).starts_with(
            "takes only a part of layers.0.attention.wqkv, which is stored as one matrix; take \
             model.layers.0.self_attn.k_proj.weight too"
        ));
        assert!(line(&["wqkv", "wkqv"]).starts_with("`wkqv` matches no parameter; names are such as "));
        assert_eq!(
            line(&["*wte*"]),
            "`*wte*` is no regular expression: repetition operator missing expression; write `.*` for any text"
        );
        assert_eq!(line(&[".*"]), "nothing is left to train; freeze less");
        let groups = vec![list(&["embedding"]), list(&["lm_head", "embed_tokens"])];
        let misfit = Grouping { groups, ..Grouping::default() }.apply(specs()).unwrap_err();
        assert_eq!(misfit.list, List::Group(1));
        assert_eq!(misfit.message, "embedding is in group 0 already; one group may take it");
    }

    #[test]
    fn groups_and_exemptions_are_written_down() {
        let groups = vec![list(&["norm"]), list(&["head"])];
        let grouping = Grouping {
            groups,
            no_decay: list(&["embed"]),
            matrices: UpdateRule::Muon,
            ..Grouping::default()
        };
        let sorted = grouping.apply(specs()).unwrap();
        let of = |path: &str| {
            let spec = sorted.iter().find(|spec| spec.path == path).unwrap();
            (spec.group, spec.decays, spec.rule)
        };
        assert_eq!(of("embedding"), (0, false, UpdateRule::AdamW));
        assert_eq!(of("layers.1.attention.q_norm"), (1, false, UpdateRule::AdamW));
        assert_eq!(of("layers.1.attention.wo"), (0, true, UpdateRule::Muon));
        assert_eq!(of("head"), (2, true, UpdateRule::AdamW));
        assert_eq!(Grouping::default().apply(specs()), Ok(specs()));
    }

    #[test]
    fn experts_go_by_three_names_and_matrices_of_each_alone_to_muon() {
        let specs = || Gpt::describe(&mixture_example());
        let grouping = |patterns: &[&str]| Grouping {
            freeze: list(patterns),
            matrices: UpdateRule::Muon,
            ..Grouping::default()
        };
        let frozen = |patterns: &[&str]| -> Vec<String> {
            let sorted = grouping(patterns).apply(specs()).unwrap();
            sorted.into_iter().filter(|spec| !spec.trains).map(|spec| spec.path).collect()
        };
        let routers = ["layers.1.feed_forward.router", "multi_token.0.feed_forward.router"];
        for pattern in [".router", "mlp.gate.weight", "mlp.router.weight"] {
            assert_eq!(frozen(&[pattern]), routers, "{pattern}");
        }
        let down = ["layers.1.feed_forward.experts.w_down"];
        for pattern in
            [down[0], r"model.layers.1.mlp.experts.\d+.down_proj", "decoder.layers.1.mlp.experts.weight2"]
        {
            assert_eq!(frozen(&[pattern]), down, "{pattern}");
        }
        assert_eq!(frozen(&["eh_proj"]), ["multi_token.0.w_fuse"]);
        assert_eq!(frozen(&["mtp.*.final_layernorm"]), ["multi_token.0.norm"]);
        assert_eq!(frozen(&["transformer_layer.self_attention.linear_proj"]), ["multi_token.0.attention.wo"]);
        let misfit = grouping(&["experts.2.down_proj"]).apply(specs()).unwrap_err();
        let part = "takes only a part of layers.1.feed_forward.experts.w_down, which is stored as one matrix";
        assert!(misfit.message.starts_with(part), "{}", misfit.message);

        let sorted = grouping(&[]).apply(specs()).unwrap();
        let by_muon = |path: &str| {
            let spec = sorted.iter().find(|spec| spec.path == path).unwrap();
            (spec.rule == UpdateRule::Muon, spec.pieces.len())
        };
        assert_eq!(by_muon("layers.1.feed_forward.experts.w_gate_up"), (true, 2 * 3));
        assert_eq!(by_muon("layers.1.feed_forward.experts.w_down"), (true, 3));
        assert_eq!(by_muon("layers.1.feed_forward.shared.w_down"), (true, 1));
        assert_eq!(by_muon("multi_token.0.w_fuse"), (true, 1));
        assert_eq!(by_muon("layers.1.feed_forward.router"), (false, 1));
        assert_eq!(by_muon("layers.1.feed_forward.shared.gate"), (false, 1));
    }
}
