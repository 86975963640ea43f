//! Other forms of the optimizer's keys.

use crate::settings::engine::*;
use crate::settings::sections::optimizer::ADAM;
use crate::settings::sections::schedule::GROUPED;

rows! {
    /// `optimizer`: other forms of its keys, and the learning rate, which belongs to a schedule.
    pub struct OptimizerForms in "optimizer" forms {
        /// Decay of the first moment, in place of the first of `betas`; 0.9 by default.
        beta1: Option<f64> = Numbers.optional().within(UNIT_OPEN).of(ADAM).example("0.8"),
        /// Decay of the second moment, in place of the second of `betas`; 0.999 by default.
        beta2: Option<f64> = Numbers.optional().within(UNIT_OPEN).of(ADAM).example("0.98"),
        /// Highest learning rate of the schedule, if the schedule itself names none.
        learning_rate: Option<f64> = Numbers.optional().within(ABOVE_ZERO).example("0.001"),
    }
}

const RATE: &str = "optimizer.learning_rate";

/// Writes each form as the key that is read.
pub(super) fn translate(source: &mut Source) {
    let forms = OptimizerForms::read(&Reader::unchecked(source, "optimizer"));
    let written = [(forms.beta1, "optimizer.beta1"), (forms.beta2, "optimizer.beta2")];
    if let Some((_, form)) = written.iter().find(|(beta, _)| beta.is_some()) {
        if source.node("optimizer.betas").is_some() {
            source.fault("optimizer.betas", "given beside `beta1` or `beta2`; keep one form");
        } else {
            let betas = [forms.beta1.unwrap_or(0.9), forms.beta2.unwrap_or(0.999)];
            source.document.put("optimizer.betas", Node::List(betas.map(Node::from).into()), form);
        }
    }
    if let Some(rate) = forms.learning_rate {
        schedules(source).iter().for_each(|path| give_rate(source, path, rate));
    }
}

/// The paths of the run's schedules.
fn schedules(source: &Source) -> Vec<String> {
    if source.node(GROUPED).is_none_or(Node::is_off) {
        return vec!["lr_schedule".to_string()];
    }
    let groups = source.items(&join(GROUPED, "grouped")).into_iter();
    groups.chain([join(GROUPED, "default")]).collect()
}

/// Gives the schedule at `path` its rate, unless it has one. A schedule that scales another passes the rate on to it.
fn give_rate(source: &mut Source, path: &str, rate: f64) {
    let base = join(path, "base_lr");
    if matches!(source.node(&base), Some(Node::Map(_))) {
        return give_rate(source, &base, rate);
    }
    let own = join(path, "learning_rate");
    let written = [&base, &own].into_iter().find_map(|key| Some((key, source.node(key)?)));
    match written {
        None => source.document.put(&own, rate.into(), RATE),
        Some((key, node)) if f64::from_node(node).is_some_and(|other| other != rate) => {
            source.note(format!("{RATE}: {key} is used instead"));
        }
        Some(_) => {}
    }
}
