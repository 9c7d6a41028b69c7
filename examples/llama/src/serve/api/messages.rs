//! The messages of a conversation.

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;
use crate::text::Message;

type Result<T> = std::result::Result<T, ApiError>;

/// Tools, said once.
pub(super) const NO_TOOLS: &str = ": tool calls are not supported";

/// The messages of `messages`.
pub(super) fn messages(value: Option<Value>) -> Result<Vec<Message>> {
    let list = match value {
        Some(Value::Array(list)) if !list.is_empty() => list,
        _ => {
            return Err(ApiError::field("messages", "`messages`: expected an array of at least one message"));
        }
    };
    list.into_iter().enumerate().map(|(index, value)| message(&format!("messages[{index}]"), value)).collect()
}

fn message(path: &str, value: Value) -> Result<Message> {
    let mut fields = Fields::of_value(path, value)?;
    let role = fields.text("role")?;
    let role = match role.as_deref() {
        // The newer name. Templates know the older one.
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant")) => role,
        Some("tool" | "function") => {
            let path = fields.path("role");
            return Err(ApiError::field(
                &path,
                format!("`{path}` is not supported by this server{NO_TOOLS}"),
            ));
        }
        other => {
            let path = fields.path("role");
            let found = other.unwrap_or("nothing");
            let expected = "\"system\", \"developer\", \"user\" or \"assistant\"";
            return Err(ApiError::field(&path, format!("`{path}`: expected {expected}, found {found}")));
        }
    };
    for name in ["tool_calls", "function_call", "tool_call_id"] {
        fields.refuse(name, &[], NO_TOOLS)?;
    }
    fields.refuse("audio", &[], "")?;
    // Clients send their own earlier answers back.
    let [_, _, _] = ["refusal", "annotations", "name"].map(|name| fields.take(name));
    let content = content(&fields.path("content"), fields.take("content"))?;
    fields.finish()?;
    Ok(Message::new(role, content))
}

/// A text, or parts that are texts.
fn content(path: &str, value: Option<Value>) -> Result<String> {
    match value {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) => {
            let part = |(index, value): (usize, Value)| {
                let path = format!("{path}[{index}]");
                let mut fields = Fields::of_value(&path, value)?;
                match (fields.text("type")?.as_deref(), fields.text("text")?) {
                    (Some("text"), Some(text)) => {
                        fields.finish()?;
                        Ok(text)
                    }
                    (kind, _) => {
                        let found = match kind {
                            None => "one without a type".to_owned(),
                            Some("text") => "one without a text".to_owned(),
                            Some(other) => format!("\"{other}\": images and sound are not supported"),
                        };
                        let expected = "expected a part of type \"text\"";
                        Err(ApiError::field(&path, format!("`{path}`: {expected}, found {found}")))
                    }
                }
            };
            parts.into_iter().enumerate().map(part).collect()
        }
        _ => Err(ApiError::field(path, format!("`{path}`: expected a string or an array of texts"))),
    }
}
