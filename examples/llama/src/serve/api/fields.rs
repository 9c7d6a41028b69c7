//! The fields of a request, each taken once. What is left in the end is not known.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::{ApiError, Kind};

type Result<T> = std::result::Result<T, ApiError>;

/// An object of a request, and how its fields are called.
#[derive(Debug)]
pub(super) struct Fields {
    map: Map<String, Value>,
    /// The path to the object, with its dot.
    path: String,
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

impl Fields {
    /// The object of a body.
    pub(super) fn of_body(body: &[u8]) -> Result<Self> {
        let wrong = |why: String| ApiError::new(Kind::Invalid, why);
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self { map, path: String::new() }),
            Ok(other) => Err(wrong(format!("expected a JSON object, found {}", kind_of(&other)))),
            Err(why) => Err(wrong(format!("the body is not valid JSON: {why}"))),
        }
    }

    /// An object within.
    pub(super) fn of_value(path: &str, value: Value) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self { map, path: format!("{path}.") }),
            other => Err(ApiError::field(path, format!("expected an object, found {}", kind_of(&other)))),
        }
    }

    pub(super) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    fn wrong<T>(&self, name: &str, expected: &str, found: &Value) -> Result<T> {
        let found = match found {
            Value::Number(number) => number.to_string(),
            Value::Bool(value) => value.to_string(),
            other => kind_of(other).to_owned(),
        };
        let path = self.path(name);
        Err(ApiError::field(&path, format!("`{path}`: expected {expected}, found {found}")))
    }

    /// A field; `None` also for null.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => self.wrong(name, "a string", &other),
        }
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<bool> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(other) => self.wrong(name, "true or false", &other),
        }
    }

    pub(super) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let expected = format!("a number from {} to {}", range.start(), range.end());
                self.wrong(name, &expected, &value)
            }
        }
    }

    pub(super) fn count(&mut self, name: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
        match number.filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let expected = match (*range.start(), *range.end()) {
                    (from, usize::MAX) => format!("a whole number from {from}"),
                    (from, to) => format!("a whole number from {from} to {to}"),
                };
                self.wrong(name, &expected, &value)
            }
        }
    }

    /// A seed. Negative ones are numbers too.
    pub(super) fn seed(&mut self, name: &str) -> Result<Option<u64>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_u64().or_else(|| value.as_i64().map(|seed| seed as u64)) {
            Some(seed) => Ok(Some(seed)),
            None => self.wrong(name, "a whole number of 64 bits", &value),
        }
    }

    /// A string, or up to four of them, none of which is empty.
    pub(super) fn stops(&mut self, name: &str) -> Result<Vec<String>> {
        let expected = "a string or up to 4 of them, none empty";
        let texts = match self.take(name) {
            None => return Ok(Vec::new()),
            Some(Value::String(text)) => vec![text],
            Some(Value::Array(list)) => {
                let text = |value: &Value| match value {
                    Value::String(text) => Ok(text.clone()),
                    other => self.wrong(name, expected, other),
                };
                list.iter().map(text).collect::<Result<_>>()?
            }
            Some(other) => return self.wrong(name, expected, &other),
        };
        if texts.len() > 4 || texts.iter().any(String::is_empty) {
            let path = self.path(name);
            let found =
                format!("{} strings, {} empty", texts.len(), texts.iter().filter(|t| t.is_empty()).count());
            return Err(ApiError::field(&path, format!("`{path}`: expected {expected}, found {found}")));
        }
        Ok(texts)
    }

    /// Refuses a field unless its value asks for nothing.
    pub(super) fn refuse(&mut self, name: &str, nothing: &[Value], instead: &str) -> Result<()> {
        let Some(value) = self.take(name) else { return Ok(()) };
        let empty = match &value {
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            other => nothing.contains(other),
        };
        if empty || nothing.contains(&value) {
            return Ok(());
        }
        let path = self.path(name);
        Err(ApiError::field(&path, format!("`{path}` is not supported by this server{instead}")))
    }

    /// Fails if a field is left.
    pub(super) fn finish(self) -> Result<()> {
        match self.map.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => {
                let path = self.path(name);
                let message = format!("Unrecognized request argument supplied: {path}");
                Err(ApiError::field(path, message))
            }
        }
    }
}
