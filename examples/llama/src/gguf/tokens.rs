//! The tokenizer of a GGUF file, as `tokenizer.json` would have it.

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use super::header::{Header, Value};

/// The kind of tokens that are made of others.
const NORMAL: i64 = 1;
/// The kinds of tokens that are found in a text before anything else.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// A pattern of words: letters, digits, marks with what may follow them, spaces.
///
/// The patterns are those of the models' `tokenizer.json`. llama.cpp quotes them as "original regex
/// from tokenizer.json" in `src/llama-vocab.cpp` (<https://github.com/ggml-org/llama.cpp>), under
/// `LLAMA_VOCAB_PRE_TYPE_LLAMA3`, `_QWEN2` and `_TEKKEN`, beside forms for its own matcher.
macro_rules! words {
    ($($letters:literal)+, $digits:literal, $after:literal) => {
        concat!($($letters,)+ "|", $digits, r"| ?[^\s\p{L}\p{N}]+", $after, r"|\s*[\r\n]+|\s+(?!\S)|\s+")
    };
}

/// How Llama 3 splits words.
const LLAMA3: &str =
    words!(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}{1,3}", r"[\r\n]*");
/// How Qwen splits words: each digit alone.
const QWEN2: &str = words!(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}", r"[\r\n]*");
/// How Mistral Nemo splits words: before capitals too.
const TEKKEN: &str = words!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"\p{N}",
    r"[\r\n/]*"
);

/// The metadata under `tokenizer.ggml`.
struct Metadata<'a>(&'a Header);

impl<'a> Metadata<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.metadata.get(&format!("tokenizer.ggml.{key}"))
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        match self.get(key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    fn flag(&self, key: &str, default: bool) -> bool {
        match self.get(key) {
            Some(&Value::Bool(flag)) => flag,
            _ => default,
        }
    }

    fn texts(&self, key: &str) -> Result<Vec<&'a str>, String> {
        let Some(Value::List(list)) = self.get(key) else {
            return Err(format!("`tokenizer.ggml.{key}`: expected a list of texts, found none"));
        };
        let text = |value: &'a Value| match value {
            Value::Text(text) => Ok(text.as_str()),
            other => Err(format!("`tokenizer.ggml.{key}`: expected texts, found {other:?}")),
        };
        list.iter().map(text).collect()
    }

    /// The kind of each token; empty if the file does not say.
    fn kinds(&self) -> Vec<i64> {
        let Some(Value::List(list)) = self.get("token_type") else { return Vec::new() };
        let kind = |value: &Value| match *value {
            Value::Signed(kind) => kind,
            Value::Unsigned(kind) => kind as i64,
            _ => 0,
        };
        list.iter().map(kind).collect()
    }

    fn scores(&self) -> Option<Vec<f64>> {
        let Some(Value::List(list)) = self.get("scores") else { return None };
        let score = |value: &Value| if let Value::Float(score) = value { Some(*score) } else { None };
        list.iter().map(score).collect()
    }

    /// The text of the token whose id this key has.
    fn special(&self, key: &str, tokens: &[&str]) -> Option<(String, usize)> {
        let Some(&Value::Unsigned(id)) = self.get(key) else { return None };
        let id = usize::try_from(id).ok()?;
        tokens.get(id).map(|&token| (token.to_owned(), id))
    }
}

/// The texts of the tokens at the start and at the end of a text, for chat templates.
pub(super) fn special(header: &Header) -> [String; 2] {
    let metadata = Metadata(header);
    let tokens = metadata.texts("tokens").unwrap_or_default();
    ["bos_token_id", "eos_token_id"]
        .map(|key| metadata.special(key, &tokens).map(|(token, _)| token).unwrap_or_default())
}

/// The tokenizer in the format of `tokenizer.json`. Errors are texts.
pub(super) fn to_json(header: &Header) -> Result<Json, String> {
    let metadata = Metadata(header);
    let tokens = metadata.texts("tokens")?;
    let bytes = match metadata.text("model") {
        Some("gpt2") => true,
        Some("llama") => false,
        other => {
            let found = other.unwrap_or("nothing");
            return Err(format!("`tokenizer.ggml.model`: expected gpt2 or llama, found {found}"));
        }
    };
    let kinds = metadata.kinds();
    let added: Vec<_> = tokens
        .iter()
        .enumerate()
        .filter(|&(id, _)| matches!(kinds.get(id), Some(&(CONTROL | USER_DEFINED))))
        .map(|(id, token)| {
            json!({
                "id": id, "content": token, "special": kinds[id] == CONTROL, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false
            })
        })
        .collect();
    let vocabulary: HashMap<_, _> = tokens.iter().enumerate().map(|(id, &token)| (token, id)).collect();
    let merges = if bytes { merges_of_bytes(&metadata)? } else { merges_of_pieces(&metadata, &tokens)? };
    // As in llama.cpp: whole words come before merges, and a text begins with a token.
    let llama3 = matches!(metadata.text("pre"), Some("llama-bpe" | "llama3" | "llama-v3" | "tekken"));
    let model = json!({
        "type": "BPE", "dropout": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
        "unk_token": if bytes { None } else { metadata.special("unknown_token_id", &tokens).map(|(text, _)| text) },
        "fuse_unk": !bytes, "byte_fallback": !bytes, "ignore_merges": llama3,
        "vocab": vocabulary, "merges": merges
    });
    let (normalizer, splitter, decoder) = if bytes { of_bytes(&metadata)? } else { of_pieces(&metadata) };
    let starts = metadata.flag("add_bos_token", !bytes || llama3);
    let start = metadata.special("bos_token_id", &tokens).filter(|_| starts);
    let processor = start.map(|(token, id)| {
        json!({
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token.clone(): {"id": token, "ids": [id], "tokens": [token]}}
        })
    });
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": splitter, "post_processor": processor, "decoder": decoder, "model": model
    }))
}

/// The merges that the file lists.
fn merges_of_bytes(metadata: &Metadata) -> Result<Vec<[String; 2]>, String> {
    let pair = |text: &str| match text.split_once(' ') {
        Some((left, right)) => Ok([left.to_owned(), right.to_owned()]),
        None => Err(format!("`tokenizer.ggml.merges`: expected two tokens and a space, found {text:?}")),
    };
    metadata.texts("merges")?.into_iter().map(pair).collect()
}

/// The merges that make each piece of two others: those of the likeliest pieces first, as
/// `transformers` makes them of SentencePiece's files.
fn merges_of_pieces(metadata: &Metadata, tokens: &[&str]) -> Result<Vec<[String; 2]>, String> {
    let scores = metadata.scores().filter(|scores| scores.len() == tokens.len());
    let Some(scores) = scores else {
        return Err("`tokenizer.ggml.scores`: expected a number for each token".to_owned());
    };
    let kinds = metadata.kinds();
    let normal = |id: usize| kinds.get(id).is_none_or(|&kind| kind == NORMAL);
    let pieces = || tokens.iter().copied().enumerate().filter(|&(id, _)| normal(id));
    let ids: HashMap<_, _> = pieces().map(|(id, token)| (token, id)).collect();
    let mut merges = Vec::new();
    for (id, token) in pieces() {
        let splits = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        for (left, right) in splits {
            if let (Some(&first), Some(&second)) = (ids.get(left), ids.get(right)) {
                merges.push((scores[id], left.chars().count(), right.chars().count(), first, second));
            }
        }
    }
    // Among splits of one piece, that with the longest left part is first.
    merges.sort_by(|a, b| {
        b.0.total_cmp(&a.0).then((b.1, b.2).cmp(&(a.1, a.2))).then((a.3, a.4).cmp(&(b.3, b.4)))
    });
    let text = |id: usize| tokens[id].to_owned();
    Ok(merges.into_iter().map(|(_, _, _, left, right)| [text(left), text(right)]).collect())
}

/// Bytes as characters. `words`: first splits GPT-2's words.
fn byte_level(words: bool) -> Json {
    json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": words
    })
}

fn of_bytes(metadata: &Metadata) -> Result<(Json, Json, Json), String> {
    let (pattern, normalizer) = match metadata.text("pre") {
        Some("llama-bpe" | "llama3" | "llama-v3") => (LLAMA3, Json::Null),
        Some("qwen2" | "deepseek-r1-qwen") => (QWEN2, json!({"type": "NFC"})),
        Some("tekken") => (TEKKEN, Json::Null),
        // GPT-2's words, but each digit is a word of its own.
        Some("smollm") => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            let splitter = json!({"type": "Sequence", "pretokenizers": [digits, byte_level(true)]});
            return Ok((Json::Null, splitter, byte_level(false)));
        }
        other => {
            let found = other.unwrap_or("nothing");
            let expected =
                "llama-bpe, qwen2, tekken or smollm; a tokenizer.json beside the file would do too";
            return Err(format!("`tokenizer.ggml.pre`: expected {expected}, found {found}"));
        }
    };
    let splitter = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}, byte_level(false)
    ]});
    Ok((normalizer, splitter, byte_level(false)))
}

fn of_pieces(metadata: &Metadata) -> (Json, Json, Json) {
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let back = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let (mut normalizers, mut decoders) =
        (vec![], vec![back, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})]);
    if metadata.flag("add_space_prefix", true) {
        normalizers.push(json!({"type": "Prepend", "prepend": "▁"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    normalizers.push(spaces);
    let normalizer = json!({"type": "Sequence", "normalizers": normalizers});
    (normalizer, Json::Null, json!({"type": "Sequence", "decoders": decoders}))
}
