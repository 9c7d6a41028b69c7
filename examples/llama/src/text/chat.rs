//! Chat templates: Jinja, as `transformers` renders it.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, ErrorKind, context};
use serde::Serialize;

use super::json::to_json;
use crate::config::Fields;
use crate::error::{Error, Result};

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message of this role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// A model's chat template with the special tokens that it may name.
#[derive(Debug)]
pub struct Chat {
    environment: Environment<'static>,
    /// `bos_token` and `eos_token`.
    special: [String; 2],
}

/// The name under which the environment knows the template.
const NAME: &str = "chat_template";

impl Chat {
    /// The template of a folder: `chat_template.jinja`, else `chat_template` of
    /// `tokenizer_config.json`. `None` if the folder has neither.
    ///
    /// # Errors
    /// [`Error::File`] and [`Error::Field`]; [`Error::Template`] if the template does not compile.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let settings = folder.join("tokenizer_config.json");
        let fields = if settings.exists() { Some(Fields::read(&settings)?) } else { None };
        let special = |name: &str| match &fields {
            Some(fields) => special(fields, name),
            None => Ok(String::new()),
        };
        let special = [special("bos_token")?, special("eos_token")?];
        let own = folder.join("chat_template.jinja");
        let template = match &fields {
            _ if own.exists() => Some(std::fs::read_to_string(&own).map_err(|why| Error::file(&own, why))?),
            Some(fields) => template(fields)?,
            None => None,
        };
        template.map(|template| Self::new(template, special)).transpose()
    }

    /// A template, with `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// [`Error::Template`] if it does not compile.
    pub fn new(template: String, special: [String; 2]) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(|out, state, value| match python(value) {
            Some(text) => out.write_str(text).map_err(minijinja::Error::from),
            None => minijinja::escape_formatter(out, state, value),
        });
        // The texts of a conversation are no HTML.
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", |text: String| -> std::result::Result<Value, _> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, text))
        });
        environment.add_function("strftime_now", |format: String| date(&format, SystemTime::now()));
        environment.add_template_owned(NAME, joined(&without_marks(&template))).map_err(|why| wrong(&why))?;
        Ok(Self { environment, special })
    }

    /// The text of a conversation. `answer`: whether the text ends with the start of an answer.
    ///
    /// # Errors
    /// [`Error::Template`] if the template refuses the conversation.
    pub fn render(&self, messages: &[Message], answer: bool) -> Result<String> {
        self.render_with(Value::from_serialize(messages), answer, Value::UNDEFINED)
    }

    /// As [`render`](Self::render), with messages and tools of any form.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn render_with(&self, messages: Value, answer: bool, tools: Value) -> Result<String> {
        let [bos, eos] = &self.special;
        // `transformers` passes None for what a call lacks.
        let tools = if tools.is_undefined() { Value::from(()) } else { tools };
        let values = context! {
            messages, tools, documents => (), add_generation_prompt => answer,
            bos_token => bos, eos_token => eos,
        };
        let template = self.environment.get_template(NAME).map_err(|why| wrong(&why))?;
        template.render(values).map_err(|why| wrong(&why))
    }
}

/// How Python writes what Rust writes otherwise.
fn python(value: &Value) -> Option<&'static str> {
    match value.kind() {
        ValueKind::Bool if value.is_true() => Some("True"),
        ValueKind::Bool => Some("False"),
        ValueKind::None => Some("None"),
        _ => None,
    }
}

/// The message of `raise_exception`, or the error with its line.
fn wrong(why: &minijinja::Error) -> Error {
    match (why.detail(), why.line()) {
        (Some(detail), Some(line)) => Error::Template(format!("{detail} (line {line} of the template)")),
        _ => Error::Template(why.to_string()),
    }
}

/// The template without the marks `generation` and `endgeneration`, which show trainers where an
/// answer is.
fn without_marks(template: &str) -> String {
    let mut text = template.to_owned();
    for name in ["generation", "endgeneration"] {
        for (open, left) in [("{%-", "{%- if true -%}{%- endif "), ("{%", "{% if true -%}{%- endif ")] {
            for (close, right) in [("-%}", "-%}"), ("%}", "%}")] {
                text = text.replace(&format!("{open} {name} {close}"), &format!("{left}{right}"));
            }
        }
    }
    text
}

/// The template with its texts on one line: in Jinja as in Python, a backslash at the end of a line
/// joins it with the next, within a text.
fn joined(template: &str) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some(start) = rest.find("{{").into_iter().chain(rest.find("{%")).min() {
        let (before, tag) = rest.split_at(start);
        let end = if tag.starts_with("{{") { "}}" } else { "%}" };
        let (tag, after) = tag.split_at(tag.find(end).unwrap_or(tag.len()));
        out += before;
        out += &tag.replace("\\\n", "");
        rest = after;
    }
    out + rest
}

/// The template of `tokenizer_config.json`: a text, or a list with one named `default`.
fn template(fields: &Fields) -> Result<Option<String>> {
    if !matches!(fields.get("chat_template"), Some(serde_json::Value::Array(_))) {
        return Ok(fields.text("chat_template")?.map(str::to_owned));
    }
    let list = fields.list("chat_template")?.unwrap_or_default();
    let text = |entry: &serde_json::Value| {
        let name = entry.get("name").and_then(|name| name.as_str());
        let template = entry.get("template").and_then(|template| template.as_str());
        if name == Some("default") { template.map(str::to_owned) } else { None }
    };
    match list.iter().find_map(text) {
        Some(template) => Ok(Some(template)),
        None => Err(fields.wrong("chat_template", "a template named `default`", "others")),
    }
}

/// A special token: a text, or an object with its text.
fn special(fields: &Fields, name: &str) -> Result<String> {
    let text = match fields.get(name) {
        Some(serde_json::Value::Object(_)) => {
            fields.object(name)?.and_then(|object| object.text("content").ok()?.map(str::to_owned))
        }
        _ => fields.text(name)?.map(str::to_owned),
    };
    Ok(text.unwrap_or_default())
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A date as `strftime` writes it, in UTC: the parts that templates use.
fn date(format: &str, now: SystemTime) -> std::result::Result<String, minijinja::Error> {
    let days = now.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() / 86400) as i64;
    let [year, month, day] = civil(days);
    let name = MONTHS[month as usize - 1];
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        match letters.next() {
            Some('Y') => text += &year.to_string(),
            Some('m') => text += &format!("{month:02}"),
            Some('d') => text += &format!("{day:02}"),
            Some('B') => text += name,
            Some('b') => text += &name[..3],
            Some('%') => text.push('%'),
            other => {
                let why =
                    format!("strftime_now: expected %Y, %m, %d, %B or %b, found %{}", other.unwrap_or(' '));
                return Err(minijinja::Error::new(ErrorKind::InvalidOperation, why));
            }
        }
    }
    Ok(text)
}

/// Year, month and day of a day since 1970 ([Hinnant
/// 2013](https://howardhinnant.github.io/date_algorithms.html)).
fn civil(days: i64) -> [i64; 3] {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    [year_of_era + era * 400 + i64::from(month <= 2), month, day]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates() {
        let at = |days: u64| UNIX_EPOCH + Duration::from_secs(days * 86400 + 5);
        let text = |days, format: &str| date(format, at(days)).expect("a date");
        assert_eq!(text(0, "%d %b %Y"), "01 Jan 1970");
        assert_eq!(text(11_016, "%Y-%m-%d"), "2000-02-29");
        assert_eq!(text(20_785, "%d %B %Y, 100%%"), "28 November 2026, 100%");
        assert!(date("%H", at(0)).is_err());
    }

    #[test]
    fn marks_for_trainers_are_ignored() {
        let template =
            "a{% generation %}b{% endgeneration %}c\n{%- generation -%}\n d {%- endgeneration -%} e";
        let chat = Chat::new(template.to_owned(), [String::new(), String::new()]).expect("a template");
        assert_eq!(chat.render(&[], true).expect("a text"), "abcde");
    }
}
