//! What `config.json` says, and errors in it.

use std::path::Path;

use burn_rocm::fused::decode::CacheType;
use burn_rocm_llama::Result;
use burn_rocm_llama::config::{Config, Fields};
use burn_rocm_llama::weights::bytes;
use serde_json::{Map, Value, json};

fn config(changes: Value) -> Result<Config> {
    let mut map = json!({
        "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 128
    });
    if let (Some(map), Value::Object(changes)) = (map.as_object_mut(), changes) {
        map.extend(changes);
    }
    let map: Map<String, Value> = serde_json::from_value(map).expect("an object");
    Config::of(&Fields::of(Path::new("config.json"), map))
}

fn error(changes: Value) -> String {
    config(changes).expect_err("an error").to_string()
}

fn windows_of(changes: Value) -> Vec<Option<usize>> {
    config(changes).expect("settings").layers.iter().map(|layer| layer.window).collect()
}

/// As Google's Gemma 3 4B, whose `text_config` leaves out what `transformers` has as defaults.
#[test]
fn heads_that_a_family_leaves_out() {
    let of = |changes| config(changes).map(|config| (config.heads, config.kv_heads)).expect("settings");
    assert_eq!(of(json!({"model_type": "gemma3_text", "num_attention_heads": null})), (8, 4));
    assert_eq!(of(json!({"model_type": "mistral", "num_attention_heads": 16, "head_dim": 4})), (16, 8));
    let null = json!({"model_type": "mistral", "num_attention_heads": 16, "head_dim": 4, "num_key_value_heads": null});
    assert_eq!(of(null), (16, 16));
    assert_eq!(of(json!({})), (4, 4));
}

#[test]
fn bad_settings_say_what_was_expected_and_found() {
    for (changes, text) in [
        (json!({"hidden_size": "wide"}), "`hidden_size`: expected a whole number, found \"wide\""),
        (json!({"hidden_size": null}), "`hidden_size`: expected a whole number above 0, found nothing"),
        (json!({"hidden_size": 30}), "`hidden_size`: expected a multiple of the 4 heads"),
        (
            json!({"num_attention_heads": 0}),
            "`num_attention_heads`: expected a whole number above 0, found 0",
        ),
        (
            json!({"num_key_value_heads": 3}),
            "`num_key_value_heads`: expected a divisor of the 4 heads of queries, found 3",
        ),
        (json!({"num_hidden_layers": 1u64 << 40}), "`num_hidden_layers`: expected at most 10000"),
        (json!({"hidden_size": 1u64 << 62}), "`hidden_size`: expected at most 1048576"),
        (json!({"num_attention_heads": 1u64 << 62}), "`num_attention_heads`: expected at most 1048576"),
        (json!({"intermediate_size": 1u64 << 62}), "`intermediate_size`: expected at most 1048576"),
        (json!({"vocab_size": 1u64 << 62}), "`vocab_size`: expected at most 1048576"),
        (
            json!({"head_dim": 1 << 19}),
            "`head_dim`: expected at most 1048576 features of all 4 heads together, found 524288",
        ),
        (json!({"head_dim": 7}), "`head_dim`: expected an even number of features"),
        (json!({"rms_norm_eps": -1}), "`rms_norm_eps`: expected a number above 0, found -1"),
        (json!({"hidden_act": "relu"}), "the activation `relu` is not supported"),
        (json!({"model_type": null}), "`model_type`: expected the text models llama"),
        (json!({"model_type": "phi3"}), "`phi3` is not supported; supported are"),
        (json!({"model_type": "mixtral"}), "`mixtral`, a mixture of experts, is not supported"),
        (json!({"model_type": "qwen3_moe"}), "`qwen3_moe`, a mixture of experts, is not supported"),
        (json!({"num_local_experts": 8}), "a mixture of experts is not supported"),
        (json!({"vision_config": {}}), "`llama`, a model of images, is not supported"),
        (
            json!({"model_type": "llava", "text_config": {"model_type": "llama"}, "vision_config": {}}),
            "`llava`, a model of images or sound, is not supported",
        ),
        (
            json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
            "the rotary embedding `dynamic` is not supported; supported are default, linear",
        ),
        (
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0}}),
            "`rope_scaling.high_freq_factor`: expected a number above 0, found nothing",
        ),
        (
            json!({"model_type": "gemma2", "layer_types": ["full_attention"]}),
            "`layer_types`: expected 4 entries, one for each layer, found 1",
        ),
        (
            json!({"model_type": "gemma2", "sliding_window": 8,
                   "layer_types": ["full_attention", "other", "full_attention", "full_attention"]}),
            "`layer_types`: expected \"full_attention\" or \"sliding_attention\", found \"other\"",
        ),
        (
            json!({"model_type": "mistral", "sliding_window": 0}),
            "`sliding_window`: expected at least 1 key, found 0",
        ),
    ] {
        let found = error(changes);
        assert!(found.contains(text), "expected {text}\nfound    {found}");
        assert!(found.starts_with("config.json: "), "{found}");
    }
}

#[test]
fn windows_by_layer() {
    let [some, none] = [Some(8), None];
    assert_eq!(windows_of(json!({"sliding_window": 8})), [none; 4]);
    assert_eq!(windows_of(json!({"model_type": "mistral", "sliding_window": 8})), [some; 4]);
    assert_eq!(windows_of(json!({"model_type": "mistral", "sliding_window": null})), [none; 4]);
    assert_eq!(windows_of(json!({"model_type": "mistral"})), [Some(4096); 4]);
    assert_eq!(windows_of(json!({"model_type": "gemma2", "sliding_window": 8})), [some, none, some, none]);
    let gemma3 = json!({"model_type": "gemma3_text", "sliding_window": 8, "sliding_window_pattern": 3});
    assert_eq!(windows_of(gemma3.clone()), [some, some, none, some]);
    // A layer with a window has the first rotary embedding, the others the second.
    let layers = config(gemma3).expect("settings").layers;
    assert_eq!(layers.iter().map(|layer| layer.rope).collect::<Vec<_>>(), [0, 0, 1, 0]);
    let qwen = json!({"model_type": "qwen2", "sliding_window": 8, "max_window_layers": 3});
    assert_eq!(windows_of(qwen), [none; 4]);
    let qwen = json!({"model_type": "qwen2", "sliding_window": 8, "max_window_layers": 3, "use_sliding_window": true});
    assert_eq!(windows_of(qwen), [none, none, none, some]);
}

#[test]
fn part_of_the_features_is_rotated() {
    let rope = |changes| config(changes).expect("settings").ropes.remove(0);
    let whole = rope(json!({"head_dim": 8}));
    assert_eq!(whole.frequencies.len(), 4);
    assert_eq!(rope(json!({"head_dim": 16, "partial_rotary_factor": 0.5})), whole);
    let newer = json!({"head_dim": 16, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}});
    assert_eq!(rope(newer), whole);
    assert!(
        error(json!({"partial_rotary_factor": 1.5})).contains("expected a number from 0 to 1, found 1.5")
    );
}

#[test]
fn sizes_are_counted_before_loading() {
    let config = config(json!({"tie_word_embeddings": true, "num_key_value_heads": 2})).expect("settings");
    let matrices = 64 * 32 + 4 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 48);
    let norms = 32 * (2 * 4 + 1);
    assert_eq!(bytes(&config, 2), 2 * matrices + 4 * norms);
    assert_eq!(bytes(&config, 4), 4 * (matrices + norms));
    // Keys and values, 4 layers, 2 heads of 8 features.
    assert_eq!(config.cache_bytes(10, CacheType::F16), 2 * 4 * 2 * 8 * 16 * 2);
    assert_eq!(config.cache_bytes(usize::MAX, CacheType::F16), usize::MAX);
}
