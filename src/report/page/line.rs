//! A line of `metrics.jsonl`, whatever keys it has: older and newer versions write others than this one.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What a line says of its step. `null` is NaN.
pub(super) trait Reading {
    /// A number.
    fn number(&mut self, key: &str, value: f64);
    /// The number at `index` of a list.
    fn item(&mut self, key: &str, index: usize, value: f64);
    /// The number of a tag in a map.
    fn tagged(&mut self, key: &str, tag: &str, value: f64);
    /// Something that is so or not.
    fn flag(&mut self, key: &str, is_so: bool);
}

/// Passes what `line` says to `reading`. Texts, and what is nested deeper than a list or a map of numbers, are passed over.
///
/// # Errors
/// The line is not a JSON object.
pub(super) fn read(line: &[u8], reading: &mut impl Reading) -> serde_json::Result<()> {
    let mut json = serde_json::Deserializer::from_slice(line);
    json.deserialize_map(Line(reading))?;
    json.end()
}

struct Line<'a, R>(&'a mut R);

/// The value of a key.
struct Value<'a, R> {
    reading: &'a mut R,
    key: &'a str,
}

/// A number within a list or a map; none where it is something else.
struct Number;

impl<'de, R: Reading> Visitor<'de> for Line<'_, R> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the object of a step")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(Key(key)) = map.next_key_seed(Key::default())? {
            map.next_value_seed(Value { reading: &mut *self.0, key: &key })?;
        }
        Ok(())
    }
}

/// A key, borrowed where it is written without escapes.
#[derive(Default)]
struct Key<'de>(Cow<'de, str>);

impl<'de> DeserializeSeed<'de> for Key<'de> {
    type Value = Self;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key<'de> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E: Error>(self, key: &'de str) -> Result<Self, E> {
        Ok(Self(Cow::Borrowed(key)))
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self, E> {
        Ok(Self(Cow::Owned(key.to_string())))
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
        self.reading.number(self.key, value);
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
        self.reading.flag(self.key, is_so);
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<(), S::Error> {
        let mut index = 0;
        while let Some(value) = items.next_element_seed(Number)? {
            value.into_iter().for_each(|value| self.reading.item(self.key, index, value));
            index += 1;
        }
        Ok(())
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(Key(tag)) = map.next_key_seed(Key::default())? {
            let value = map.next_value_seed(Number)?;
            value.into_iter().for_each(|value| self.reading.tagged(self.key, &tag, value));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Number {
    type Value = Option<f64>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<f64>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Number {
    type Value = Option<f64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Option<f64>, E> {
        Ok(Some(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Option<f64>, E> {
        Ok(Some(value as f64))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Option<f64>, E> {
        Ok(Some(value as f64))
    }

    fn visit_unit<E: Error>(self) -> Result<Option<f64>, E> {
        Ok(Some(f64::NAN))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Option<f64>, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Option<f64>, E> {
        Ok(None)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<Option<f64>, S::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Option<f64>, M::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was read, as text.
    #[derive(Default)]
    struct Heard(Vec<String>);

    impl Reading for Heard {
        fn number(&mut self, key: &str, value: f64) {
            self.0.push(format!("{key}={value}"));
        }

        fn item(&mut self, key: &str, index: usize, value: f64) {
            self.0.push(format!("{key}[{index}]={value}"));
        }

        fn tagged(&mut self, key: &str, tag: &str, value: f64) {
            self.0.push(format!("{key}/{tag}={value}"));
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
        let line = r#"{"step":7,"loss":null,"delta":-2,"overflow":true,"why":"a \"text\"","drop_rate":[0.5,null,"x",[1]],
            "monitor":{"weight_norm":2.5,"local_norm/a.b":null,"deep":{"x":1},"flag":true},"r\u0061te":1e-3}"#;
        let expected = [
            "step=7",
            "loss=NaN",
            "delta=-2",
            "overflow:true",
            "drop_rate[0]=0.5",
            "drop_rate[1]=NaN",
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
