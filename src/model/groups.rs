//! Parameter groups: which parameters train, decay and share a learning rate, by patterns over their names.
//!
//! A pattern is a regular expression that may match anywhere in a name. Each parameter has its path in the model
//! (`layers.0.attention.wqkv`), the Hugging Face names of its pieces (`model.layers.0.self_attn.q_proj.weight`) and the
//! name of Megatron, which MindSpore Transformers uses (`decoder.layers.0.self_attention.linear_qkv.weight`).
//!
//! MindFormers takes substrings and globs instead.

use super::names::megatron_name;
use super::parameters::{Role, Spec, UpdateRule};
use regex::bytes::{Regex, RegexBuilder};

/// The patterns of a configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grouping {
    /// Parameters that do not train.
    pub freeze: Vec<String>,
    /// Exceptions from `freeze`.
    pub freeze_exclude: Vec<String>,
    /// With adapters: parameters that do not train in spite of them. These are globs, as in MindFormers: `*` stands for
    /// any text.
    pub holds: Vec<String>,
    /// With adapters: globs of parameters of the model that train. Parameters that `holds` matches too are not
    /// affected.
    pub releases: Vec<String>,
    /// With adapters: names, or ends of names, of modules of the model that train as a whole, as PEFT's
    /// `modules_to_save`.
    pub saves: Vec<String>,
    /// The group of B of adapters and of all vectors that train, where they are in no other (LoRA+).
    pub second_factors: Option<usize>,
    /// Matrices without weight decay.
    pub no_decay: Vec<String>,
    /// Patterns of the groups 1, 2, ...; parameters that match none are in group 0.
    pub groups: Vec<Vec<String>>,
    /// Update rule of the layers' matrices. Tables, routers and vectors are always updated elementwise: like a head, a
    /// router scores a list of items and does not map one feature space to another.
    pub matrices: UpdateRule,
}

/// A list of patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// [`Grouping::freeze`]
    Freeze,
    /// [`Grouping::freeze_exclude`]
    FreezeExclude,
    /// [`Grouping::holds`]
    Holds,
    /// [`Grouping::releases`]
    Releases,
    /// [`Grouping::saves`]
    Saves,
    /// [`Grouping::no_decay`]
    NoDecay,
    /// An element of [`Grouping::groups`], counted from 0.
    Group(usize),
}

/// Selects parameters by patterns: a parameter is selected if a pattern matches any of its names.
#[derive(Clone, Debug)]
pub struct Selection {
    patterns: Vec<Regex>,
    invert: bool,
}

/// A list of patterns that does not fit the parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// The list to change.
    pub list: List,
    /// What is wrong and how to correct it.
    pub message: String,
}

impl Grouping {
    /// Applies the patterns to the parameters of a model.
    ///
    /// # Errors
    /// A pattern that is not a regular expression, matches no parameter, matches only some pieces of a parameter, or
    /// matches a parameter of another group; no parameter left to train.
    pub fn apply(&self, mut specs: Vec<Spec>) -> Result<Vec<Spec>, Misfit> {
        let frozen = matches(&specs, List::Freeze, &self.freeze)?;
        let excluded = matches(&specs, List::FreezeExclude, &self.freeze_exclude)?;
        let held = matches(&specs, List::Holds, &self.holds)?;
        let released = matches(&specs, List::Releases, &self.releases)?;
        let saved = matches(&specs, List::Saves, &self.saves)?;
        let trains = |index: usize| released[index] || saved[index];
        let exempt = matches(&specs, List::NoDecay, &self.no_decay)?;
        let groups = self.groups_of(&specs)?;
        let quantised = (0..).zip(&specs).find(|(index, spec)| trains(*index) && spec.compute.is_quantised());
        if let Some((index, spec)) = quantised {
            let message = format!(
                "{} is quantised by base_dtype, and what trains cannot be; remove one of them",
                spec.path
            );
            let list = if saved[index] { List::Saves } else { List::Releases };
            return Err(Misfit { list, message });
        }
        for (index, spec) in specs.iter_mut().enumerate() {
            let is_map = matches!(spec.role, Role::Matrix | Role::ExpertStack { .. });
            if held[index] != trains(index) {
                spec.trains = trains(index) && spec.role != Role::Constant;
            }
            spec.trains &= !frozen[index] || excluded[index];
            spec.decays &= !exempt[index];
            spec.group = match self.second_factors.filter(|_| groups[index] == 0 && spec.trains) {
                Some(group) if spec.is_second_factor() || spec.is_of_vectors() => group,
                _ => groups[index],
            };
            spec.rule = if is_map { self.matrices } else { UpdateRule::Elementwise };
        }
        if specs.iter().any(|spec| spec.trains) {
            return Ok(specs);
        }
        let list = if self.freeze.is_empty() { List::Holds } else { List::Freeze };
        Err(Misfit { list, message: "nothing is left to train; freeze less".into() })
    }

    /// The group of each parameter.
    fn groups_of(&self, specs: &[Spec]) -> Result<Vec<usize>, Misfit> {
        let mut groups = vec![0; specs.len()];
        for (number, patterns) in self.groups.iter().enumerate() {
            let list = List::Group(number);
            let taken = matches(specs, list, patterns)?;
            for ((spec, group), _) in specs.iter().zip(&mut groups).zip(taken).filter(|(_, taken)| *taken) {
                if *group != 0 {
                    let message =
                        format!("{} is in group {} already; one group may take it", spec.path, *group - 1);
                    return Err(Misfit { list, message });
                }
                *group = number + 1;
            }
        }
        Ok(groups)
    }
}

impl Selection {
    /// The parameters that one of `patterns` matches, or all if there are no patterns; with `invert` the others.
    ///
    /// # Errors
    /// A pattern that is not a regular expression, in a sentence.
    pub fn new(patterns: &[String], invert: bool) -> Result<Self, String> {
        let patterns = patterns.iter().map(|pattern| compile(pattern)).collect::<Result<_, _>>()?;
        Ok(Self { patterns, invert })
    }

    /// Whether the selection contains the parameter.
    pub fn takes(&self, spec: &Spec) -> bool {
        let matches = |name: &str| self.patterns.iter().any(|pattern| pattern.is_match(name.as_bytes()));
        let is_matched = self.patterns.is_empty()
            || matches(&spec.path)
            || megatron_name(&spec.path).is_some_and(|name| matches(&name))
            || spec.pieces.iter().any(|piece| matches(&piece.name));
        is_matched != self.invert
    }
}

/// For each parameter, whether one of `patterns` matches it.
fn matches(specs: &[Spec], list: List, patterns: &[String]) -> Result<Vec<bool>, Misfit> {
    let misfit = |message| Misfit { list, message };
    let compiled: Vec<Regex> =
        patterns.iter().map(|pattern| compiled(list, pattern).map_err(misfit)).collect::<Result<_, _>>()?;
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

/// Compiles a pattern of `list`.
fn compiled(list: List, pattern: &str) -> Result<Regex, String> {
    match list {
        List::Holds | List::Releases => compile(&regex_of(pattern)),
        List::Saves => compile(&regex_of(&format!("*{pattern}.*"))),
        List::Freeze | List::FreezeExclude | List::NoDecay | List::Group(_) => compile(pattern),
    }
}

/// Compiles a pattern; the error is a sentence. Names are ASCII, so no Unicode tables are needed.
pub fn compile(pattern: &str) -> Result<Regex, String> {
    RegexBuilder::new(pattern).unicode(false).size_limit(1 << 20).build().map_err(|error| {
        let reason = error.to_string();
        let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_string();
        let remedy = if pattern.starts_with('*') { "; write `.*` for any text" } else { "" };
        format!("`{}` is no regular expression: {reason}{remedy}", pattern.escape_debug())
    })
}

/// Compiles a pattern of PEFT's `rank_pattern` and `alpha_pattern`, which matches a name from its start or from a part of
/// it, to its end; the error is a sentence.
pub(crate) fn compile_end(pattern: &str) -> Result<Regex, String> {
    compile(pattern)?;
    compile(&format!(r"^(?:.*\.)?(?:{pattern})$"))
}

/// The regular expression for names that match `glob` as a whole; in it `*` stands for any text and `?` for a
/// character.
fn regex_of(glob: &str) -> String {
    let each = glob.chars().map(|char| match char {
        '*' => ".*".to_string(),
        '?' => ".".to_string(),
        char if char.is_alphanumeric() || char == '_' => char.to_string(),
        char => format!("\\{char}"),
    });
    format!("^{}$", each.collect::<String>())
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
        let llama = ModelConfig::llama(sizes).with_layers(|layer| layer.num_kv_heads = 1);
        Gpt::describe(&ModelConfig { qkv_bias: true, qk_norm: true, ..llama })
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
            matrices: UpdateRule::Matrix,
            ..Grouping::default()
        };
        let sorted = grouping.apply(specs()).unwrap();
        let of = |path: &str| {
            let spec = sorted.iter().find(|spec| spec.path == path).unwrap();
            (spec.group, spec.decays, spec.rule)
        };
        assert_eq!(of("embedding"), (0, false, UpdateRule::Elementwise));
        assert_eq!(of("layers.1.attention.q_norm"), (1, false, UpdateRule::Elementwise));
        assert_eq!(of("layers.1.attention.wo"), (0, true, UpdateRule::Matrix));
        assert_eq!(of("head"), (2, true, UpdateRule::Elementwise));
        assert_eq!(Grouping::default().apply(specs()), Ok(specs()));
    }

    #[test]
    fn experts_go_by_three_names_and_matrices_of_each_alone_to_muon() {
        let specs = || Gpt::describe(&mixture_example());
        let grouping = |patterns: &[&str]| Grouping {
            freeze: list(patterns),
            matrices: UpdateRule::Matrix,
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
            (spec.rule == UpdateRule::Matrix, spec.pieces.len())
        };
        assert_eq!(by_muon("layers.1.feed_forward.experts.w_gate_up"), (true, 2 * 3));
        assert_eq!(by_muon("layers.1.feed_forward.experts.w_down"), (true, 3));
        assert_eq!(by_muon("layers.1.feed_forward.shared.w_down"), (true, 1));
        assert_eq!(by_muon("multi_token.0.w_fuse"), (true, 1));
        assert_eq!(by_muon("layers.1.feed_forward.router"), (false, 1));
        assert_eq!(by_muon("layers.1.feed_forward.shared.gate"), (false, 1));
    }
}
