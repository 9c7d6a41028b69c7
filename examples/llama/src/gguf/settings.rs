//! The settings of a model from GGUF's metadata, as `config.json` would have them.

use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::header::{Header, Value};
use super::rope;
use crate::config::{Config, Fields, Generation};
use crate::error::{Error, Result};

/// The tokens at which a turn ends, or a text.
const ENDS: [&str; 6] =
    ["<end_of_turn>", "<|eot_id|>", "<|im_end|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>"];

/// Layers of the largest Gemma 2 and 3, whose scores have another factor. GGUF has no key for it.
const GEMMA_27B: [(&str, u64); 2] = [("gemma2", 46), ("gemma3", 62)];

pub(super) fn to_json(value: &Value) -> Json {
    match value {
        Value::Unsigned(number) => json!(number),
        Value::Signed(number) => json!(number),
        Value::Float(number) => json!(number),
        Value::Bool(flag) => json!(flag),
        Value::Text(text) => json!(text),
        Value::List(list) => list.iter().map(to_json).collect(),
    }
}

/// The settings, and how to generate.
///
/// `factors`: those of `rope_freqs.weight`, by which the model divides its rotary frequencies.
pub(super) fn read(path: &Path, header: &Header, factors: Option<&[f32]>) -> Result<(Config, Generation)> {
    let text = |key: &str| match header.metadata.get(key) {
        Some(Value::Text(text)) => Some(text.as_str()),
        _ => None,
    };
    let Some(architecture) = text("general.architecture") else {
        return Err(Error::file(path, "`general.architecture`: expected a text, found nothing"));
    };
    let get = |key: &str| header.metadata.get(&format!("{architecture}.{key}")).map(to_json);
    let mut map = Map::new();
    // Some converters write one number for each layer.
    let one = |value: Json| match value {
        Json::Array(list) if list.iter().all(|other| Some(other) == list.first()) => {
            list.into_iter().next().unwrap_or_default()
        }
        other => other,
    };
    for (name, key) in [
        ("hidden_size", "embedding_length"),
        ("intermediate_size", "feed_forward_length"),
        ("num_hidden_layers", "block_count"),
        ("num_attention_heads", "attention.head_count"),
        ("num_key_value_heads", "attention.head_count_kv"),
        ("head_dim", "attention.key_length"),
        ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
        ("max_position_embeddings", "context_length"),
        ("sliding_window", "attention.sliding_window"),
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
        ("rope_theta", "rope.freq_base"),
        ("rope_local_base_freq", "rope.freq_base_swa"),
        ("num_experts", "expert_count"),
        ("vocab_size", "vocab_size"),
    ] {
        if let Some(value) = get(key) {
            map.insert(name.to_owned(), one(value));
        }
    }
    if let Some(Value::List(tokens)) = header.metadata.get("tokenizer.ggml.tokens") {
        map.insert("vocab_size".to_owned(), json!(tokens.len()));
    }
    map.insert("model_type".to_owned(), json!(architecture));
    let has = |name: &str| header.tensors.contains_key(name);
    map.insert("tie_word_embeddings".to_owned(), json!(!has("output.weight")));
    // Llama's queries have a bias in some models; those of Qwen 2 always do.
    map.insert("attention_bias".to_owned(), json!(has("blk.0.attn_q.bias") && architecture != "qwen2"));
    let dim =
        rope::head_dim(get("attention.key_length"), get("embedding_length"), get("attention.head_count"));
    let values = get("attention.value_length").and_then(|values| values.as_u64());
    if let (Some(values), Some(dim)) = (values, dim)
        && values != dim
    {
        let field = format!("{architecture}.attention.value_length");
        let (path, expected, found) = (path.to_owned(), dim.to_string(), values.to_string());
        return Err(Error::Field { path, field, expected, found });
    }
    let own = |name: &str| header.metadata.get(&format!("{architecture}.rope.{name}")).map(to_json);
    let names =
        header.metadata.keys().filter_map(|key| key.strip_prefix(architecture)?.strip_prefix(".rope."));
    rope::read(path, architecture, own, names, dim, &mut map)?;
    let (layers, heads) = (get("block_count"), get("attention.head_count"));
    let width = get("embedding_length").and_then(|width| width.as_u64());
    let dim = get("attention.key_length").and_then(|dim| dim.as_u64());
    let largest = GEMMA_27B.iter().any(|&(name, count)| name == architecture && layers == Some(json!(count)));
    let scalar = match heads.and_then(|heads| heads.as_u64()) {
        Some(heads) if largest && heads > 0 => width.map(|width| width / heads),
        _ => dim,
    };
    if let Some(scalar) = scalar {
        map.insert("query_pre_attn_scalar".to_owned(), json!(scalar));
    }
    let mut config = Config::of(&Fields::of(path, map))?;
    // The file's norms have the 1 already.
    config.norm_adds_one = false;
    if let Some(factors) = factors {
        let frequencies = &mut config.ropes[0].frequencies;
        if factors.len() != frequencies.len() {
            return Err(Error::Tensor {
                path: path.to_owned(),
                name: "rope_freqs.weight".to_owned(),
                expected: format!("[{}]", frequencies.len()),
                found: format!("[{}]", factors.len()),
            });
        }
        frequencies.iter_mut().zip(factors).for_each(|(frequency, factor)| *frequency /= factor);
    }
    let mut generation = Generation::default();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        if let Some(Value::Unsigned(id)) = header.metadata.get(&format!("tokenizer.ggml.{key}")) {
            let id = u32::try_from(*id).unwrap_or(u32::MAX);
            if !generation.stop.contains(&id) {
                generation.stop.push(id);
            }
        }
    }
    // Many files name only the end of a text. The ends of a turn are found as llama.cpp finds them.
    if let Some(Value::List(tokens)) = header.metadata.get("tokenizer.ggml.tokens") {
        for (id, token) in (0u32..).zip(tokens) {
            let ends = matches!(token, Value::Text(text) if ENDS.contains(&text.as_str()));
            if ends && !generation.stop.contains(&id) {
                generation.stop.push(id);
            }
        }
    }
    Ok((config, generation))
}
