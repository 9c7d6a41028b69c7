//! A small model with a tokenizer.

use std::path::{Path, PathBuf};

use half::bf16;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

/// A folder with a model of random weights and a tokenizer.
pub(crate) fn folder(name: &str, template: Option<&str>) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", env!("CARGO_CRATE_NAME")));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    let references = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let (width, inner, vocabulary) = (16, 24, 420);
    let config = format!(
        r#"{{"model_type": "llama", "vocab_size": {vocabulary}, "hidden_size": {width},
        "intermediate_size": {inner}, "num_hidden_layers": 1, "num_attention_heads": 2,
        "max_position_embeddings": 256, "tie_word_embeddings": true, "eos_token_id": 1}}"#
    );
    std::fs::write(folder.join("config.json"), config).expect("a file");
    std::fs::copy(references.join("texts/bytes.json"), folder.join("tokenizer.json")).expect("a copy");
    if let Some(template) = template {
        let settings = serde_json::json!({"chat_template": template, "bos_token": "<|start|>"});
        std::fs::write(folder.join("tokenizer_config.json"), settings.to_string()).expect("a file");
    }
    let layer = "model.layers.0.";
    let shapes = [
        ("model.embed_tokens.weight".to_owned(), vec![vocabulary, width]),
        ("model.norm.weight".to_owned(), vec![width]),
        (format!("{layer}input_layernorm.weight"), vec![width]),
        (format!("{layer}post_attention_layernorm.weight"), vec![width]),
        (format!("{layer}self_attn.q_proj.weight"), vec![width, width]),
        (format!("{layer}self_attn.k_proj.weight"), vec![width, width]),
        (format!("{layer}self_attn.v_proj.weight"), vec![width, width]),
        (format!("{layer}self_attn.o_proj.weight"), vec![width, width]),
        (format!("{layer}mlp.gate_proj.weight"), vec![inner, width]),
        (format!("{layer}mlp.up_proj.weight"), vec![inner, width]),
        (format!("{layer}mlp.down_proj.weight"), vec![width, inner]),
    ];
    let mut number = 1u32;
    let mut draw = |len: usize| -> Vec<u8> {
        let mut next = || {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bf16::from_f32((number >> 8) as f32 / (1 << 23) as f32 - 1.0)
        };
        (0..len).flat_map(|_| next().to_le_bytes()).collect()
    };
    let tensors: Vec<_> =
        shapes.into_iter().map(|(name, shape)| (name, draw(shape.iter().product()), shape)).collect();
    let views = tensors.iter().map(|(name, bytes, shape)| {
        (name.as_str(), TensorView::new(Dtype::BF16, shape.clone(), bytes).expect("a tensor"))
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).expect("a file");
    folder
}
