//! The numbers of all steps of a run, by key, which the page draws.

use serde_json::Value;

use super::marks::Marks;
use super::series::Series;
use crate::durable::Pairs;

/// The most bins of a curve.
pub(super) const MOST_BINS: usize = 2000;

/// The most bins of all curves of one key together, such as those of layers, which keeps the page of a deep model
/// small.
const MOST_BINS_OF_FAMILY: usize = 12_000;

/// The fewest bins of a curve, however many curves its key has.
const FEWEST_BINS: usize = 64;

/// Keys of curves on a page; further ones are left out.
const MOST_CURVES: usize = 4000;

/// The numbers of all steps of a run.
#[derive(Debug, Default)]
pub(super) struct Curves {
    pub families: Vec<Family>,
    /// The steps at which a flag was set, by key.
    pub marks: Vec<(String, Marks)>,
    /// The last step; 0 after an evaluation before the first.
    pub step: Option<u64>,
    /// The value of `global_step` at that step.
    pub updates: Option<u64>,
    /// Incremented whenever existing bins change other than by another point.
    pub generation: u64,
    /// Whether curves were left out.
    pub is_cut: bool,
    /// The expected index of the next key of a line: lines have the same keys in the same order.
    next: usize,
    curves: usize,
}

/// The numbers and flags of a line, by their indices among the curves and marks.
#[derive(Debug, Default)]
struct Noted {
    /// Family, member and value.
    values: Vec<(usize, usize, f32)>,
    flags: Vec<usize>,
}

/// The curves of a key: one, or one for each item of a list or tag of a map.
#[derive(Debug)]
pub(super) struct Family {
    pub key: String,
    pub members: Vec<Member>,
}

/// One curve of a key.
#[derive(Debug)]
pub(super) struct Member {
    /// The index in a list, or the rest of a tag; empty for a number.
    pub name: String,
    pub series: Series,
    /// The least finite value and its step.
    pub least: Option<(f32, u64)>,
}

impl Curves {
    /// Takes in a line of `metrics.jsonl`. Returns whether it is an object with a step; other lines are left out. Texts
    /// are passed over, and so are values nested deeper than lists in a list or a map of numbers.
    pub fn take(&mut self, text: &[u8]) -> bool {
        // Other versions write other keys than this one.
        let Ok(Pairs::<Value>(keys)) = serde_json::from_slice(text) else { return false };
        let count = |key: &str| {
            let (_, value) = keys.iter().rfind(|(name, _)| name == key)?;
            number(value).filter(|count| *count >= 0.0).map(|count| count as u64)
        };
        // 0 is the evaluation before the first one.
        let Some(step) = count("step") else { return false };
        self.next = 0;
        let mut noted = Noted::default();
        for (key, value) in keys.iter().filter(|(key, _)| key != "step" && key != "global_step") {
            self.note_value(&mut noted, key, value);
        }
        self.commit(step, &noted);
        self.updates = count("global_step").or(self.updates);
        true
    }

    /// Notes the value of a line under `key`.
    fn note_value(&mut self, noted: &mut Noted, key: &str, value: &Value) {
        match value {
            Value::Bool(is_so) => {
                let mark = self.mark(key);
                noted.flags.extend(is_so.then_some(mark));
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    if let Some(value) = number(item) {
                        self.note(noted, key, index, &index.to_string(), value);
                    }
                    for (inner, value) in item.as_array().into_iter().flatten().enumerate() {
                        let name = format!("{index}.{inner}");
                        number(value).into_iter().for_each(|value| self.note_next(noted, key, &name, value));
                    }
                }
            }
            Value::Object(tags) => {
                for (tag, value) in tags {
                    let (group, name) = tag.split_once('/').unwrap_or((tag, ""));
                    let key = format!("{key}/{group}");
                    number(value).into_iter().for_each(|value| self.note_next(noted, &key, name, value));
                }
            }
            other => number(other).into_iter().for_each(|value| self.note(noted, key, 0, "", value)),
        }
    }

    /// The family of `key`, if it has one.
    pub fn family(&self, key: &str) -> Option<&Family> {
        self.families.iter().find(|family| family.key == key)
    }

    fn commit(&mut self, step: u64, noted: &Noted) {
        if self.step.is_some_and(|last| step <= last) {
            self.rewind(step);
        }
        for &(family, member, value) in &noted.values {
            let member = &mut self.families[family].members[member];
            self.generation += u64::from(member.series.push(step, value));
            if value.is_finite() && member.least.is_none_or(|(least, _)| value < least) {
                member.least = Some((value, step));
            }
        }
        for &flag in &noted.flags {
            self.marks[flag].1.push(step);
        }
        self.step = Some(step);
    }

    /// Removes the points of `step` and of later steps.
    fn rewind(&mut self, step: u64) {
        self.generation += 1;
        for member in self.families.iter_mut().flat_map(|family| &mut family.members) {
            member.series.rewind(step);
            if member.least.is_some_and(|(_, at)| at >= step) {
                member.least = member.rest_least();
            }
        }
        self.marks.iter_mut().for_each(|(_, marks)| marks.rewind(step));
    }

    /// The index of the family of `key`, which is created if it does not exist.
    fn index(&mut self, key: &str) -> usize {
        let expected = [self.next, self.next.saturating_sub(1)];
        let found =
            match expected.into_iter().find(|at| self.families.get(*at).is_some_and(|one| one.key == key)) {
                Some(at) => at,
                None => self.families.iter().position(|family| family.key == key).unwrap_or_else(|| {
                    self.families.push(Family { key: key.to_string(), members: Vec::new() });
                    self.families.len() - 1
                }),
            };
        self.next = found + 1;
        found
    }

    /// The index of the marks of `key`, which are created if they do not exist.
    fn mark(&mut self, key: &str) -> usize {
        self.marks.iter().position(|(known, _)| known == key).unwrap_or_else(|| {
            self.marks.push((key.to_string(), Marks::default()));
            self.marks.len() - 1
        })
    }

    /// Notes a value of a member that probably follows the members of its family that came before it in the line.
    fn note_next(&mut self, noted: &mut Noted, key: &str, name: &str, value: f64) {
        let family = self.index(key);
        let before = noted.values.iter().filter(|(known, ..)| *known == family).count();
        self.note(noted, key, before, name, value);
    }

    /// Notes the value of a member; `at` is its probable index.
    fn note(&mut self, noted: &mut Noted, key: &str, at: usize, name: &str, value: f64) {
        let family = self.index(key);
        let members = &mut self.families[family].members;
        let is_it = |member: &Member| member.name == name;
        let known =
            if members.get(at).is_some_and(is_it) { Some(at) } else { members.iter().position(is_it) };
        let place = match known {
            Some(place) => place,
            None if self.curves >= MOST_CURVES => {
                self.is_cut = true;
                return;
            }
            None => {
                let capacity = (MOST_BINS_OF_FAMILY / (members.len() + 1)).clamp(FEWEST_BINS, MOST_BINS);
                let limit = |member: &mut Member| u64::from(member.series.limit(capacity));
                self.generation += members.iter_mut().map(limit).sum::<u64>();
                members.push(Member { name: name.to_string(), series: Series::new(capacity), least: None });
                self.curves += 1;
                members.len() - 1
            }
        };
        noted.values.push((family, place, value as f32));
    }
}

/// A number; `null` is NaN.
fn number(value: &Value) -> Option<f64> {
    if value.is_null() { Some(f64::NAN) } else { value.as_f64() }
}

impl Member {
    /// The least value of the remaining bins, after the bin with the least value was removed.
    fn rest_least(&self) -> Option<(f32, u64)> {
        let bins = self.series.after(None).iter();
        let all = bins.filter_map(|bin| Some((bin.min()?, bin.from)));
        all.min_by(|one, other| one.0.total_cmp(&other.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The curves of these lines, and how many of the lines are no steps.
    fn curves(lines: &str) -> (Curves, usize) {
        let mut curves = Curves::default();
        let unread = lines.lines().filter(|line| !curves.take(line.trim().as_bytes())).count();
        (curves, unread)
    }

    fn means(curves: &Curves, key: &str, member: usize) -> Vec<(u64, Option<f32>)> {
        let series = &curves.family(key).expect(key).members[member].series;
        series.after(None).iter().map(|bin| (bin.from, bin.mean())).collect()
    }

    #[test]
    fn a_run_with_gaps_new_keys_and_a_resume() {
        let (curves, unread) = curves(
            r#"{"step":1,"global_step":1,"loss":5.5,"overflow":false,"drop_rate":[0.1,0.2]}
               {"step":2,"global_step":1,"loss":null,"overflow":true,"drop_rate":[0.3,null]}
               {"step":3,"global_step":2,"loss":1.5,"overflow":true,"drop_rate":[0.5,0.6],"eval_loss":4.0}
               {"step":3,"global_step":2,"loss":3.5,"overflow":false,"drop_rate":[0.7,0.8],"future":{"a/x":1,"a/y":2,"b":3}}
               not a line
               {"loss":1}
               {"step":4,"global_step":3,"loss":4.5,"ov"#,
        );
        assert_eq!((curves.step, curves.updates, unread), (Some(3), Some(2), 3));
        assert_eq!(means(&curves, "loss", 0), [(1, Some(5.5)), (2, None), (3, Some(3.5))]);
        assert_eq!(means(&curves, "drop_rate", 1), [(1, Some(0.2)), (2, None), (3, Some(0.8))]);
        assert_eq!(
            curves.marks[0],
            ("overflow".to_string(), {
                let mut m = Marks::default();
                m.push(2);
                m
            })
        );
        assert_eq!(means(&curves, "eval_loss", 0), [], "it belonged to the step that was repeated");
        let least = curves.family("loss").unwrap().members[0].least;
        assert_eq!(least, Some((3.5, 3)), "1.5 was taken back");
        let names =
            |key| curves.family(key).unwrap().members.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
        assert_eq!(names("future/a"), ["x", "y"]);
        assert_eq!(
            (names("future/b"), names("drop_rate")),
            (vec![String::new()], vec!["0".into(), "1".into()])
        );
        assert_eq!(curves.generation, 1, "one rewind");
    }

    #[test]
    fn every_kind_of_value_is_read_or_passed_over() {
        let line = r#"{"step":7,"loss":null,"delta":-2,"overflow":true,"why":"a \"text\"","drop_rate":[0.5,null,"x",[1,[2]]],"monitor":{"weight_norm":2.5,"local_norm/a.b":null,"deep":{"x":1},"flag":true},"r\u0061te":1e-3}"#;
        let (curves, unread) = curves(line);
        let members =
            curves.families.iter().flat_map(|family| family.members.iter().map(move |one| (family, one)));
        let found = members.map(|(family, member)| {
            let mean = member.series.after(None)[0].mean();
            format!("{} {}: {mean:?}", family.key, member.name)
        });
        let expected = [
            "loss : None",
            "delta : Some(-2.0)",
            "drop_rate 0: Some(0.5)",
            "drop_rate 1: None",
            "drop_rate 3.0: Some(1.0)",
            "monitor/local_norm a.b: None",
            "monitor/weight_norm : Some(2.5)",
            "rate : Some(0.001)",
        ];
        assert_eq!((found.collect::<Vec<_>>(), unread), (expected.map(String::from).to_vec(), 0));
        assert_eq!(
            curves.marks.iter().map(|(key, marks)| (key.as_str(), marks.count)).collect::<Vec<_>>(),
            [("overflow", 1)]
        );
    }

    #[test]
    fn what_is_no_object_with_a_step_changes_nothing() {
        let mut curves = Curves::default();
        for line in [
            "",
            "7",
            "[]",
            "{\"step\":1,\"lo",
            "{\"step\":1}x",
            "\u{0}\u{0}",
            "{\"step\":-1}",
            "{\"loss\":1}",
        ] {
            assert!(!curves.take(line.as_bytes()), "{line}");
        }
        assert!(curves.families.is_empty() && curves.step.is_none());
    }

    #[test]
    fn many_layers_share_the_room_of_a_key() {
        let mut curves = Curves::default();
        let layers: String = (0..100).map(|layer| format!("{},", layer)).collect();
        for step in 1..=1000 {
            curves
                .take(format!("{{\"step\":{step},\"load\":[{}]}}", layers.trim_end_matches(',')).as_bytes());
        }
        let family = curves.family("load").unwrap();
        assert_eq!(family.members.len(), 100);
        let bins = |member: &Member| member.series.after(None).len();
        assert!(family.members.iter().all(|member| bins(member) == 63), "{}", bins(&family.members[0]));
        assert_eq!(family.members[42].series.after(None)[7].mean(), Some(42.0));
    }

    #[test]
    fn endlessly_many_tags_are_cut() {
        let mut curves = Curves::default();
        for step in 1..=MOST_CURVES + 10 {
            curves.take(format!("{{\"step\":{step},\"monitor\":{{\"tag{step}\":1}}}}").as_bytes());
        }
        assert!(curves.is_cut && curves.curves == MOST_CURVES);
    }
}
