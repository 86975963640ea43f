//! The numbers of all steps of a run, by key: what the page draws.

use super::line::{self, Reading, Slot};
use super::marks::Marks;
use super::series::Series;

/// The most bins of a curve.
pub(super) const MOST_BINS: usize = 2000;

/// The most bins of all curves of one key, such as those of its layers, which keeps the page of a deep model small.
const MOST_BINS_OF_FAMILY: usize = 12_000;

/// The fewest bins of a curve, however many its key has.
const FEWEST_BINS: usize = 64;

/// Keys of curves on a page; further ones are left out.
const MOST_CURVES: usize = 4000;

/// The numbers of all steps of a run.
#[derive(Debug, Default)]
pub(super) struct Curves {
    pub families: Vec<Family>,
    /// Things that were so at some steps, by key.
    pub marks: Vec<(String, Marks)>,
    /// The last step; 0 after an evaluation before the first.
    pub step: Option<u64>,
    /// The value of `global_step` there.
    pub updates: Option<u64>,
    /// Grows whenever bins that were there before change other than by a further point.
    pub generation: u64,
    /// Whether curves were left out.
    pub is_cut: bool,
    /// Where the next key of a line is expected: lines have the same keys in the same order.
    next: usize,
    line: Line,
    curves: usize,
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

/// What a line said, until it turns out to be whole.
#[derive(Debug, Default)]
struct Line {
    step: Option<u64>,
    updates: Option<u64>,
    /// Family, member and value.
    values: Vec<(usize, usize, f32)>,
    flags: Vec<usize>,
}

impl Curves {
    /// Takes in a line of `metrics.jsonl`. Returns whether it is an object with a step; what is none is left out.
    pub fn take(&mut self, text: &[u8]) -> bool {
        self.next = 0;
        (self.line.step, self.line.updates) = (None, None);
        self.line.values.clear();
        self.line.flags.clear();
        let read = line::read(text, self);
        let step = self.line.step.filter(|_| read.is_ok());
        step.into_iter().for_each(|step| self.commit(step));
        step.is_some()
    }

    /// The family of `key`, if it has one.
    pub fn family(&self, key: &str) -> Option<&Family> {
        self.families.iter().find(|family| family.key == key)
    }

    fn commit(&mut self, step: u64) {
        if self.step.is_some_and(|last| step <= last) {
            self.rewind(step);
        }
        for &(family, member, value) in &self.line.values {
            let Some(member) =
                self.families.get_mut(family).and_then(|family| family.members.get_mut(member))
            else {
                continue;
            };
            self.generation += u64::from(member.series.push(step, value));
            if value.is_finite() && member.least.is_none_or(|(least, _)| value < least) {
                member.least = Some((value, step));
            }
        }
        for &flag in &self.line.flags {
            self.marks[flag].1.push(step);
        }
        self.step = Some(step);
        self.updates = self.line.updates.or(self.updates);
    }

    /// Removes what lies at `step` and later.
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

    /// The index of the family of `key`, made where there is none.
    fn index(&mut self, key: &str) -> usize {
        let found = match self.families.get(self.next) {
            Some(family) if family.key == key => self.next,
            _ => self.families.iter().position(|family| family.key == key).unwrap_or_else(|| {
                self.families.push(Family { key: key.to_string(), members: Vec::new() });
                self.families.len() - 1
            }),
        };
        self.next = found + 1;
        found
    }

    /// Notes the value of a member; `at` is where it probably is.
    fn note(
        &mut self,
        family: usize,
        at: usize,
        name: impl Fn() -> String,
        is_it: impl Fn(&str) -> bool,
        value: f64,
    ) {
        let members = &mut self.families[family].members;
        let place = match members.get(at).is_some_and(|member| is_it(&member.name)) {
            true => Some(at),
            false => members.iter().position(|member| is_it(&member.name)),
        };
        let place = match place {
            Some(place) => place,
            None if self.curves >= MOST_CURVES => {
                self.is_cut = true;
                return;
            }
            None => {
                let capacity = (MOST_BINS_OF_FAMILY / (members.len() + 1)).clamp(FEWEST_BINS, MOST_BINS);
                let limit = |member: &mut Member| u64::from(member.series.limit(capacity));
                self.generation += members.iter_mut().map(limit).sum::<u64>();
                members.push(Member { name: name(), series: Series::new(capacity), least: None });
                self.curves += 1;
                members.len() - 1
            }
        };
        self.line.values.push((family, place, value as f32));
    }
}

impl Reading for Curves {
    fn number(&mut self, key: &str, place: Slot<'_>, value: f64) {
        match (place, key) {
            // 0 is the evaluation before the first one.
            (Slot::Whole, "step") => self.line.step = (value >= 0.0).then_some(value as u64),
            (Slot::Whole, "global_step") => self.line.updates = Some(value as u64),
            (Slot::Whole, _) => {
                let family = self.index(key);
                self.note(family, 0, String::new, str::is_empty, value);
            }
            (Slot::Item(index), _) => {
                let family = self.index(key);
                self.next = family; // for the next item
                let name = || index.to_string();
                self.note(family, index, name, |name| name.parse() == Ok(index), value);
            }
            (Slot::ItemOf(outer, inner), _) => {
                let family = self.index(key);
                self.next = family;
                let in_line = self.line.values.iter().filter(|(known, ..)| *known == family).count();
                let name = format!("{outer}.{inner}");
                self.note(family, in_line, || name.clone(), |known| known == name, value);
            }
            (Slot::Tag(tag), _) => {
                let (group, name) = tag.split_once('/').unwrap_or((tag, ""));
                let family = self.index(&format!("{key}/{group}"));
                self.next = family;
                let in_line = self.line.values.iter().filter(|(known, ..)| *known == family).count();
                self.note(family, in_line, || name.to_string(), |known| known == name, value);
            }
        }
    }

    fn flag(&mut self, key: &str, is_so: bool) {
        let known = self.marks.iter().position(|(known, _)| known == key);
        let place = known.unwrap_or_else(|| {
            self.marks.push((key.to_string(), Marks::default()));
            self.marks.len() - 1
        });
        if is_so {
            self.line.flags.push(place);
        }
    }
}

impl Member {
    /// The least value of the bins, after the least one was taken away.
    fn rest_least(&self) -> Option<(f32, u64)> {
        let bins = self.series.after(None).iter();
        let all = bins.filter_map(|bin| Some((bin.min()?, bin.from)));
        all.min_by(|one, other| one.0.total_cmp(&other.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The curves of these lines, and how many of them are no steps.
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
