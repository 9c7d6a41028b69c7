//! The filter `tojson`: `json.dumps` of Python.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind, State};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// The most spaces of an indentation. Without a limit, a template could ask for more memory than there
/// is.
const DEEPEST: usize = 100;

/// The text of a value, with the arguments by which `transformers` calls `json.dumps`: `ensure_ascii`,
/// `indent` (a number), `separators` and `sort_keys`, all of them by name.
pub(super) fn to_json(_: &State, value: &Value, options: Kwargs) -> Result<Value, Error> {
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sorted: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let wrong = |what: &str| Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: expected {what}")));
    if let Some(indent) = indent.filter(|&indent| indent > DEEPEST) {
        return wrong(&format!("an indent of at most {DEEPEST}, found {indent}"));
    }
    let indent = indent.map(|count| " ".repeat(count));
    let separators = match (separators.as_deref(), &indent) {
        (Some([entries, keys]), _) => [entries.as_str(), keys.as_str()],
        (Some(other), _) => return wrong(&format!("two separators, found {}", other.len())),
        (None, None) => [", ", ": "],
        (None, Some(_)) => [",", ": "],
    };
    let ascii = ascii.unwrap_or(false);
    let dumps = Dumps { ascii, indent: indent.as_deref(), separators, depth: 0, filled: false };
    let bad = |why: String| Error::new(ErrorKind::BadSerialization, why);
    let mut text = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut text, dumps);
    let done = match sorted {
        Some(true) => serde_json::to_value(value).and_then(|mut value| {
            value.sort_all_objects();
            value.serialize(&mut serializer)
        }),
        _ => value.serialize(&mut serializer),
    };
    done.map_err(|why| bad(why.to_string()))?;
    Ok(Value::from_safe_string(String::from_utf8(text).map_err(|why| bad(why.to_string()))?))
}

/// How `json.dumps` writes.
struct Dumps<'a> {
    /// Whether letters that are not ASCII are escaped.
    ascii: bool,
    /// The indentation of a level; `None` for one line.
    indent: Option<&'a str>,
    /// Between entries, and between a key and its value.
    separators: [&'a str; 2],
    /// The lists and dictionaries around what comes next.
    depth: usize,
    /// Whether the innermost of them has an entry.
    filled: bool,
}

impl Dumps<'_> {
    fn line<W: ?Sized + Write>(&self, to: &mut W) -> io::Result<()> {
        let Some(indent) = self.indent else { return Ok(()) };
        to.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| to.write_all(indent.as_bytes()))
    }

    fn begin<W: ?Sized + Write>(&mut self, to: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        to.write_all(bracket)
    }

    fn entry<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        if !first {
            to.write_all(self.separators[0].as_bytes())?;
        }
        self.filled = true;
        self.line(to)
    }

    fn end<W: ?Sized + Write>(&mut self, to: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.line(to)?;
        }
        // It is itself an entry of the one around it.
        self.filled = true;
        to.write_all(bracket)
    }
}

impl Formatter for Dumps<'_> {
    fn begin_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.begin(to, b"[")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.entry(to, first)
    }

    fn end_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.end(to, b"]")
    }

    fn begin_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.begin(to, b"{")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.entry(to, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(self.separators[1].as_bytes())
    }

    fn end_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.end(to, b"}")
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, to: &mut W, fragment: &str) -> io::Result<()> {
        if !self.ascii {
            return to.write_all(fragment.as_bytes());
        }
        for letter in fragment.chars() {
            match letter {
                ' '..='~' => to.write_all(letter.encode_utf8(&mut [0; 4]).as_bytes())?,
                // Beyond 16 bits, a surrogate pair.
                _ => {
                    for unit in letter.encode_utf16(&mut [0; 2]) {
                        write!(to, "\\u{unit:04x}")?;
                    }
                }
            }
        }
        Ok(())
    }
}
