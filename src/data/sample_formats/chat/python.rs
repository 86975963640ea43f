//! Values of chat templates as in Python, where the engine differs: JSON that is read without loss, numbers that are
//! printed as by `str`, tests (`is sequence`), and methods of strings and dictionaries. Jinja2 is the reference for
//! each.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use minijinja::value::{
    DynObject, Enumerator, Kwargs, Object, ObjectRepr, Rest, Tuple, ValueKind, ValueOrKwargs, from_args,
};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::strings::string_method;

/// Adds the tests, filters and methods to an environment.
pub(super) fn extend(environment: &mut Environment<'_>) {
    minijinja_contrib::add_to_environment(environment);
    // The engine's would write something else than Jinja2's, which no template was seen to need.
    ["attr", "pprint"].into_iter().for_each(|name| environment.remove_filter(name));
    environment.set_unknown_method_callback(method);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("center", |text: &str, width: Option<usize>| {
        string_method(text, "center", &[Value::from(width.unwrap_or(80))])
    });
    environment.add_filter("wordcount", |text: &str| {
        text.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
            .filter(|word| !word.is_empty())
            .count()
    });
    environment.add_filter("truncate", truncate);
    environment.add_filter("urlencode", url_encode);
    environment.add_test("sequence", |value: &Value| {
        let kinds = [ValueKind::Seq, ValueKind::Map, ValueKind::String, ValueKind::Undefined];
        !is_view(value) && kinds.contains(&value.kind())
    });
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool) || is_digits(value, |_| true)
    });
    environment.add_test("integer", |value: &Value| {
        value.is_integer() || is_digits(value, |digits| !digits.is_float)
    });
    environment.add_test("float", |value: &Value| {
        let is_plain = value.kind() == ValueKind::Number && !value.is_integer();
        is_plain || is_digits(value, |digits| digits.is_float)
    });
    environment.add_test("callable", |value: &Value| {
        value.kind() == ValueKind::Plain && !is_digits(value, |_| true)
    });
}

/// The filter `default`, whose two arguments may be named.
fn default(
    value: &Value,
    other: Option<Value>,
    is_boolean: Option<bool>,
    named: Kwargs,
) -> Result<Value, Error> {
    let other = other.or(named.get("default_value")?);
    let is_boolean = is_boolean.or(named.get("boolean")?).unwrap_or(false);
    named.assert_all_used()?;
    let is_missing = value.is_undefined() || (is_boolean && !value.is_true());
    Ok(if is_missing { other.unwrap_or_else(|| Value::from("")) } else { value.clone() })
}

/// The filter `truncate`, whose arguments may all be given by place or by name: a text that is longer than `length` and
/// a few letters is cut earlier, at a blank.
fn truncate(text: &str, given: Rest<ValueOrKwargs>) -> Result<String, Error> {
    type Given = (Option<usize>, Option<bool>, Option<String>, Option<usize>, Kwargs);
    let given = given.into_values();
    let (length, cuts_words, end, leeway, named): Given = from_args(&given)?;
    let length = length.or(named.get("length")?).unwrap_or(255);
    let cuts_words = cuts_words.or(named.get("killwords")?).unwrap_or(false);
    let end = end.or(named.get("end")?).unwrap_or_else(|| "...".to_string());
    let leeway = leeway.or(named.get("leeway")?).unwrap_or(5);
    named.assert_all_used()?;
    let short = length.checked_sub(end.chars().count()).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("`truncate` to {length} letters has no room for its end"),
        )
    })?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text.to_string());
    }
    let kept: String = text.chars().take(short).collect();
    let whole =
        if cuts_words { &kept } else { kept.rsplit_once(' ').map_or(kept.as_str(), |(words, _)| words) };
    Ok(format!("{whole}{end}"))
}

/// The filter `urlencode`: of a text, in which slashes stay, or of pairs, which are joined as in a query.
fn url_encode(value: &Value) -> Result<String, Error> {
    let quoted = |text: &str, is_query: bool| -> String {
        let letter = |byte: u8| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            b'/' if !is_query => "/".to_string(),
            b' ' if is_query => "+".to_string(),
            _ => format!("%{byte:02X}"),
        };
        text.bytes().map(letter).collect()
    };
    let pair = |key: &Value, value: &Value| {
        format!("{}={}", quoted(&key.to_string(), true), quoted(&value.to_string(), true))
    };
    if value.kind() == ValueKind::Map {
        let pairs = value.try_iter()?.map(|key| Ok(pair(&key, &value.get_item(&key)?)));
        return Ok(pairs.collect::<Result<Vec<_>, Error>>()?.join("&"));
    }
    if value.kind() != ValueKind::Seq {
        return Ok(quoted(&value.to_string(), false));
    }
    let pairs =
        value.try_iter()?.map(|both| Ok(pair(&both.get_item_by_index(0)?, &both.get_item_by_index(1)?)));
    Ok(pairs.collect::<Result<Vec<_>, Error>>()?.join("&"))
}

fn is_digits(value: &Value, has: impl Fn(&Digits) -> bool) -> bool {
    value.downcast_object_ref::<Digits>().is_some_and(has)
}

/// A number that the engine cannot hold or prints in another way: an integer of more than 128 bits, or a float that
/// Python writes with an exponent.
#[derive(Debug)]
struct Digits {
    text: String,
    is_float: bool,
}

impl Object for Digits {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        let number = |digits: &Self| digits.text.parse::<f64>().unwrap_or(f64::NAN);
        let other = other.downcast_ref::<Self>()?;
        match self.text == other.text {
            true => Some(Ordering::Equal),
            false => number(self).partial_cmp(&number(other)),
        }
    }
}

/// The text of a number as `str` and `json.dumps` write it; `None` if the value is not a number.
pub(super) fn number_text(value: &Value) -> Option<String> {
    if let Some(digits) = value.downcast_object_ref::<Digits>() {
        return Some(digits.text.clone());
    }
    match value.kind() {
        ValueKind::Number if value.is_integer() => Some(value.to_string()),
        ValueKind::Number => f64::try_from(value.clone()).ok().map(float_text),
        _ => None,
    }
}

/// The shortest decimal that reads back as `value`, as Python's `repr` writes it.
fn float_text(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific }; // inf, NaN
    let exponent: i32 = exponent.parse().unwrap_or(0);
    match exponent {
        -4..16 => format!("{value:?}"),
        _ => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    }
}

fn number(text: &str) -> Value {
    if !text.contains(['.', 'e', 'E']) {
        let small = text.parse::<i64>().map(Value::from);
        return small
            .or_else(|_| text.parse::<i128>().map(Value::from))
            .unwrap_or_else(|_| Value::from_object(Digits { text: text.to_string(), is_float: false }));
    }
    let value: f64 = text.parse().unwrap_or(f64::NAN);
    match float_text(value) {
        text if text.contains('e') => Value::from_object(Digits { text, is_float: true }),
        _ => Value::from(value),
    }
}

/// Parses JSON. Keys keep their order, and numbers keep their exact value.
///
/// # Errors
/// Text that is not JSON.
pub(super) fn parse(text: &str) -> serde_json::Result<Value> {
    Ok(match text.trim_start().bytes().next() {
        Some(b'{') => {
            let Pairs(pairs) = serde_json::from_str(text)?;
            let pairs = pairs.into_iter().map(|(key, raw)| Ok((Value::from(key), parse(raw.get())?)));
            dict(pairs.collect::<serde_json::Result<Vec<_>>>()?)
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text)?;
            items.into_iter().map(|raw| parse(raw.get())).collect::<serde_json::Result<Vec<Value>>>()?.into()
        }
        Some(b'-' | b'0'..=b'9') => number(serde_json::from_str::<&RawValue>(text)?.get()),
        Some(b'"') => Value::from(serde_json::from_str::<String>(text)?),
        Some(b't' | b'f') => Value::from(serde_json::from_str::<bool>(text)?),
        _ => {
            serde_json::from_str::<()>(text)?;
            Value::from(())
        }
    })
}

/// A dictionary with these entries.
pub(super) fn dict(pairs: Vec<(Value, Value)>) -> Value {
    Value::from_object(Dict(Value::from_pairs(pairs)))
}

/// A dictionary as it is, with another value under `key`, if it has that key.
pub(super) fn with_value(dictionary: &Value, key: &str, change: impl Fn(Value) -> Value) -> Value {
    let item = |name: Value| {
        let value = dictionary.get_item(&name).unwrap_or_default();
        let value = if name.as_str() == Some(key) { change(value) } else { value };
        (name, value)
    };
    dict(dictionary.try_iter().into_iter().flatten().map(item).collect())
}

/// The entries of an object in order.
struct Pairs<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Pairs<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// The result of `keys`, `values` and `items` of a dictionary: it is printed with its name, and is not a sequence.
#[derive(Debug)]
struct View {
    name: &'static str,
    items: Vec<Value>,
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name, Value::from(self.items.clone()))
    }
}

pub(super) fn is_view(value: &Value) -> bool {
    value.downcast_object_ref::<View>().is_some()
}

/// A dictionary read from JSON. Its methods take precedence over its keys, as in Python: a tool's parameter may have
/// the name `items`.
#[derive(Debug)]
struct Dict(Value);

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get_item(key).ok().filter(|value| !value.is_undefined())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.try_iter().into_iter().flatten().collect())
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        name: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        dict_method(&self.0, name, args).unwrap_or_else(|| Err(ErrorKind::UnknownMethod.into()))
    }
}

/// Calls a method of dictionaries; `None` if this file has no method of this name.
fn dict_method(dict: &Value, name: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let view = |name, item: &dyn Fn(Value, Value) -> Value| {
        let keys = dict.try_iter().into_iter().flatten();
        let items = keys.map(|key| item(key.clone(), dict.get_item(&key).unwrap_or_default())).collect();
        Some(Ok(Value::from_object(View { name, items })))
    };
    match (name, args) {
        ("keys", []) => view("dict_keys", &|key, _| key),
        ("values", []) => view("dict_values", &|_, value| value),
        ("items", []) => view("dict_items", &|key, value| Tuple::from([key, value]).into()),
        ("get", [key, default @ ..]) => {
            let found = dict.get_item(key).ok().filter(|value| !value.is_undefined());
            Some(Ok(found.or_else(|| default.first().cloned()).unwrap_or_else(|| Value::from(()))))
        }
        _ => None,
    }
}

/// Calls a method that a value has in Python and not in the engine.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let done = match (value.kind(), value.as_str()) {
        (ValueKind::Map, _) => dict_method(value, name, args),
        (_, Some(text)) => string_method(text, name, args).transpose(),
        _ => None,
    };
    done.unwrap_or_else(|| pycompat::unknown_method_callback(state, value, name, args))
}
