//! Settings in JSON, read with errors that name the file and the field.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// A JSON object of a file, whose fields are read by name and type.
#[derive(Clone, Debug)]
pub struct Fields {
    path: PathBuf,
    /// The names of the objects that this one lies in, each with a dot behind it.
    prefix: String,
    map: Map<String, Value>,
}

/// Reads a JSON file whose outermost value is an object.
pub(crate) fn read_json(path: &Path) -> Result<Map<String, Value>> {
    let text = std::fs::read_to_string(path).map_err(|why| Error::file(path, why))?;
    match serde_json::from_str(&text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(Error::file(path, format!("expected a JSON object, found {}", kind(&other)))),
        Err(why) => Err(Error::file(path, format!("not valid JSON: {why}"))),
    }
}

/// A value as an error shows it.
fn kind(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

impl Fields {
    /// The object in this file.
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), prefix: String::new(), map: read_json(path)? })
    }

    /// An object that was read elsewhere; `path` is for errors.
    pub fn of(path: &Path, map: Map<String, Value>) -> Self {
        Self { path: path.to_owned(), prefix: String::new(), map }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the field is there, null or not.
    pub fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// The field's value, unless it is missing or null.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// An [`Error::Field`].
    pub fn wrong(&self, name: &str, expected: impl Into<String>, found: impl Into<String>) -> Error {
        Error::Field {
            path: self.path.clone(),
            field: format!("{}{name}", self.prefix),
            expected: expected.into(),
            found: found.into(),
        }
    }

    fn typed<T>(&self, name: &str, expected: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>> {
        let read = |value| read(value).ok_or_else(|| self.wrong(name, expected, kind(value)));
        self.get(name).map(read).transpose()
    }

    /// A whole number, or `None` if the field is missing or null.
    pub fn count(&self, name: &str) -> Result<Option<usize>> {
        // Some files have whole numbers with a point.
        let whole = |value: &Value| match value.as_u64() {
            Some(whole) => usize::try_from(whole).ok(),
            None => value
                .as_f64()
                .filter(|&float| float >= 0.0 && float.fract() == 0.0 && float < 9e15)
                .map(|float| float as usize),
        };
        self.typed(name, "a whole number", whole)
    }

    /// A whole number above 0. Without a default the field is required.
    pub fn size(&self, name: &str, default: Option<usize>) -> Result<usize> {
        match self.count(name)?.or(default) {
            Some(0) => Err(self.wrong(name, "a whole number above 0", "0")),
            Some(size) => Ok(size),
            None => Err(self.wrong(name, "a whole number above 0", "nothing")),
        }
    }

    /// [`size`](Self::size), of at most `most`.
    pub fn size_up_to(&self, name: &str, most: usize, default: Option<usize>) -> Result<usize> {
        match self.size(name, default)? {
            size if size > most => Err(self.wrong(name, format!("at most {most}"), size.to_string())),
            size => Ok(size),
        }
    }

    /// A finite number, or `None` if the field is missing or null.
    pub fn number(&self, name: &str) -> Result<Option<f64>> {
        self.typed(name, "a number", Value::as_f64)
    }

    /// A number above 0, or `None` if the field is missing or null.
    pub fn positive(&self, name: &str) -> Result<Option<f64>> {
        match self.number(name)? {
            Some(number) if number <= 0.0 => Err(self.wrong(name, "a number above 0", number.to_string())),
            number => Ok(number),
        }
    }

    /// A truth value; `default` if the field is missing or null.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.typed(name, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    /// A text, or `None` if the field is missing or null.
    pub fn text(&self, name: &str) -> Result<Option<&str>> {
        let read = |value: &'_ Value| value.as_str().map(str::to_owned);
        self.typed(name, "a text", read)?;
        Ok(self.get(name).and_then(Value::as_str))
    }

    /// A list, or `None` if the field is missing or null.
    pub fn list(&self, name: &str) -> Result<Option<&[Value]>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(self.wrong(name, "a list", kind(other))),
        }
    }

    /// An object within this one, or `None` if the field is missing or null.
    pub fn object(&self, name: &str) -> Result<Option<Self>> {
        let within = |map: &Map<String, Value>| Self {
            path: self.path.clone(),
            prefix: format!("{}{name}.", self.prefix),
            map: map.clone(),
        };
        self.typed(name, "an object", |value| value.as_object().map(within))
    }

    /// Token ids: one number or a list of numbers. Empty if the field is missing or null.
    pub fn tokens(&self, name: &str) -> Result<Vec<u32>> {
        let token = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let tokens = |value: &Value| match value {
            Value::Array(list) => list.iter().map(token).collect(),
            one => token(one).map(|id| vec![id]),
        };
        Ok(self.typed(name, "a token id or a list of token ids", tokens)?.unwrap_or_default())
    }
}
