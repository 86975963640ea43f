//! A line of `metrics.jsonl`, whatever keys it has: older and newer versions write others than this one.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What a line says of its step. `null` is NaN.
pub(super) trait Reading {
    /// A number of `key`, at a place in its value.
    fn number(&mut self, key: &str, place: Slot<'_>, value: f64);
    /// Something that is so or not.
    fn flag(&mut self, key: &str, is_so: bool);
}

/// Where a number stands in the value of a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Slot<'a> {
    /// It is the value.
    Whole,
    /// At this index of a list.
    Item(usize),
    /// At the second index of the list at the first.
    ItemOf(usize, usize),
    /// Under this tag of a map.
    Tag(&'a str),
}

/// Passes what `line` says to `reading`. Texts, and what is nested deeper than lists of a list or a map of numbers, are passed over.
///
/// # Errors
/// The line is not a JSON object.
pub(super) fn read(line: &[u8], reading: &mut impl Reading) -> serde_json::Result<()> {
    let mut json = serde_json::Deserializer::from_slice(line);
    json.deserialize_map(Line(reading))?;
    json.end()
}

struct Line<'a, R>(&'a mut R);

/// A key or a tag, borrowed where it is written without escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// The value of a key, or what is at a place in it.
struct Value<'a, R> {
    reading: &'a mut R,
    key: &'a str,
    place: Slot<'a>,
}

impl<'de, R: Reading> Visitor<'de> for Line<'_, R> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the object of a step")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(Key(key)) = map.next_key()? {
            map.next_value_seed(Value { reading: &mut *self.0, key: &key, place: Slot::Whole })?;
        }
        Ok(())
    }
}

impl<R> Value<'_, R> {
    /// What is at a place in this value.
    fn at<'b>(&'b mut self, place: Slot<'b>) -> Value<'b, R> {
        Value { reading: self.reading, key: self.key, place }
    }

    fn is_nested(&self) -> bool {
        !matches!(self.place, Slot::Whole)
    }
}

impl<'de, R: Reading> DeserializeSeed<'de> for Value<'_, R> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, R: Reading> Visitor<'de> for Value<'_, R> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.reading.number(self.key, self.place, value);
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.visit_f64(value as f64)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.visit_f64(value as f64)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.visit_f64(f64::NAN)
    }

    fn visit_bool<E: Error>(self, is_so: bool) -> Result<(), E> {
        if !self.is_nested() {
            self.reading.flag(self.key, is_so);
        }
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<(), S::Error> {
        let place = |index| match self.place {
            Slot::Whole => Some(Slot::Item(index)),
            Slot::Item(outer) => Some(Slot::ItemOf(outer, index)),
            Slot::ItemOf(..) | Slot::Tag(_) => None,
        };
        let mut index = 0;
        while let Some(place) = place(index) {
            let item = Value { reading: &mut *self.reading, key: self.key, place };
            if items.next_element_seed(item)?.is_none() {
                return Ok(());
            }
            index += 1;
        }
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<M: MapAccess<'de>>(mut self, mut map: M) -> Result<(), M::Error> {
        while let Some(Key(tag)) = map.next_key()? {
            match self.is_nested() {
                true => drop(map.next_value::<IgnoredAny>()?),
                false => map.next_value_seed(self.at(Slot::Tag(&tag)))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was read, as text.
    #[derive(Default)]
    struct Heard(Vec<String>);

    impl Reading for Heard {
        fn number(&mut self, key: &str, place: Slot<'_>, value: f64) {
            self.0.push(match place {
                Slot::Whole => format!("{key}={value}"),
                Slot::Item(index) => format!("{key}[{index}]={value}"),
                Slot::ItemOf(outer, inner) => format!("{key}[{outer}][{inner}]={value}"),
                Slot::Tag(tag) => format!("{key}/{tag}={value}"),
            });
        }

        fn flag(&mut self, key: &str, is_so: bool) {
            self.0.push(format!("{key}:{is_so}"));
        }
    }

    fn heard(line: &str) -> Result<Vec<String>, String> {
        let mut heard = Heard::default();
        read(line.as_bytes(), &mut heard).map(|()| heard.0).map_err(|error| error.to_string())
    }

    #[test]
    fn every_kind_of_value() {
        let line = r#"{"step":7,"loss":null,"delta":-2,"overflow":true,"why":"a \"text\"","drop_rate":[0.5,null,"x",[1,[2]]],
            "monitor":{"weight_norm":2.5,"local_norm/a.b":null,"deep":{"x":1},"flag":true},"r\u0061te":1e-3}"#;
        let expected = [
            "step=7",
            "loss=NaN",
            "delta=-2",
            "overflow:true",
            "drop_rate[0]=0.5",
            "drop_rate[1]=NaN",
            "drop_rate[3][0]=1",
            "monitor/weight_norm=2.5",
            "monitor/local_norm/a.b=NaN",
            "rate=0.001",
        ];
        assert_eq!(heard(line).unwrap(), expected);
    }

    #[test]
    fn what_is_no_object_is_an_error() {
        for line in ["", "7", "[]", "{\"step\":1,\"lo", "{\"step\":1}x", "\u{0}\u{0}"] {
            assert!(heard(line).is_err(), "{line}");
        }
    }
}
