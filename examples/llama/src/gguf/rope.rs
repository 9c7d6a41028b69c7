//! The rotary embedding in GGUF's metadata, as `config.json` would have it.
//!
//! The keys: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, and
//! `gguf-py/gguf/constants.py` in <https://github.com/ggml-org/llama.cpp>.

use std::path::Path;

use serde_json::{Map, Value as Json, json};

use crate::error::{Error, Result};

/// Keys that are read elsewhere, or that change nothing.
const ELSEWHERE: [&str; 3] = ["freq_base", "freq_base_swa", "scaling.finetuned"];

/// The features of a head.
pub(super) fn head_dim(key_length: Option<Json>, width: Option<Json>, heads: Option<Json>) -> Option<u64> {
    let number = |value: Option<Json>| value.and_then(|value| value.as_u64());
    let of_heads = || number(width).zip(number(heads).filter(|&heads| heads > 0)).map(|(w, heads)| w / heads);
    number(key_length).or_else(of_heads)
}

/// Adds `partial_rotary_factor` and `rope_scaling`.
///
/// `own`: the value of a key after `ARCHITECTURE.rope.`; `names`: all of these keys.
pub(super) fn read<'a>(
    path: &Path,
    architecture: &str,
    own: impl Fn(&str) -> Option<Json>,
    names: impl Iterator<Item = &'a str>,
    dim: Option<u64>,
    map: &mut Map<String, Json>,
) -> Result<()> {
    let wrong = |name: &str, expected: &str, found: &Json| Error::Field {
        path: path.to_owned(),
        field: format!("{architecture}.rope.{name}"),
        expected: expected.to_owned(),
        found: found.to_string(),
    };
    let number = |name: &str| match own(name) {
        None => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(wrong(name, "a number", &value)),
        },
    };
    if let (Some(rotated), Some(dim)) = (number("dimension_count")?, dim.filter(|&dim| dim > 0)) {
        if rotated > dim as f64 {
            let expected = format!("at most the {dim} features of a head");
            return Err(wrong("dimension_count", &expected, &json!(rotated)));
        }
        if rotated != dim as f64 {
            if architecture == "llama" {
                // How rows of queries and keys are ordered is known for whole heads only.
                let expected =
                    format!("the {dim} features of a head, as for every model of this architecture");
                return Err(wrong("dimension_count", &expected, &json!(rotated)));
            }
            map.insert("partial_rotary_factor".to_owned(), json!(rotated / dim as f64));
        }
    }
    let mut known = vec!["dimension_count", "scaling.type", "scaling.factor", "scale_linear"];
    let kind = match own("scaling.type") {
        None => None,
        Some(Json::String(kind)) if kind == "none" => None,
        Some(Json::String(kind)) => Some(kind),
        Some(other) => return Err(wrong("scaling.type", "a text", &other)),
    };
    // Older files have the factor of linear scaling alone.
    let older = number("scale_linear")?.filter(|&factor| factor != 1.0);
    let kind = kind.or_else(|| older.map(|_| "linear".to_owned()));
    let Some(kind) = kind else {
        // Without scaling the other keys of `scaling` mean nothing.
        known.extend(names_of_scaling());
        return refuse_others(names, &known, wrong);
    };
    let mut scaling = Map::from_iter([("rope_type".to_owned(), json!(kind))]);
    let mut insert = |name: &str, value: Option<f64>| {
        if let Some(value) = value {
            scaling.insert(name.to_owned(), json!(value));
        }
    };
    let factor = number("scaling.factor")?.or(older);
    insert("factor", factor);
    insert("original_max_position_embeddings", number("scaling.original_context_length")?);
    known.push("scaling.original_context_length");
    if kind == "yarn" {
        insert("beta_fast", number("scaling.yarn_beta_fast")?);
        insert("beta_slow", number("scaling.yarn_beta_slow")?);
        known.extend(["scaling.yarn_beta_fast", "scaling.yarn_beta_slow", "scaling.attn_factor"]);
        // llama.cpp multiplies YaRN's own factor of cosines and sines by this one.
        if let (Some(more), Some(factor)) = (number("scaling.attn_factor")?, factor) {
            insert("attention_factor", Some(more * (1.0 + 0.1 * factor.max(1.0).ln())));
        }
    }
    map.insert("rope_scaling".to_owned(), Json::Object(scaling));
    refuse_others(names, &known, wrong)
}

/// The keys of scaling.
fn names_of_scaling() -> [&'static str; 6] {
    [
        "scaling.original_context_length",
        "scaling.attn_factor",
        "scaling.yarn_beta_fast",
        "scaling.yarn_beta_slow",
        "scaling.yarn_ext_factor",
        "scaling.yarn_log_multiplier",
    ]
}

/// Refuses keys of the rotary embedding that this program does not read, because they change results.
fn refuse_others<'a>(
    mut names: impl Iterator<Item = &'a str>,
    known: &[&str],
    wrong: impl Fn(&str, &str, &Json) -> Error,
) -> Result<()> {
    match names.find(|name| !known.contains(name) && !ELSEWHERE.contains(name)) {
        Some(name) => Err(wrong(name, "a key that this program reads", &json!("another one"))),
        None => Ok(()),
    }
}
