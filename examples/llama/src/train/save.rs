//! A trained model as a Hugging Face folder, which the program `llama` reads.

use std::fs;
use std::path::Path;

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Map, Value, json};

use super::decoder::{Decoder, TensorOf};
use crate::error::{Error, Result};
use crate::weights::{expected, layer_name};

/// Writes `config.json` with these settings and `model.safetensors` with the weights of a decoder,
/// which are floats, without adapters. Makes the folder if it does not exist. Waits for the device.
///
/// # Errors
/// [`Error::Argument`] for a decoder with quantised weights; [`Error::File`] if a file can't be
/// written, [`Error::Read`] if the device reports an error.
pub fn save<B: Backend>(folder: &Path, settings: &Value, decoder: &Decoder<B>) -> Result<()> {
    fs::create_dir_all(folder).map_err(|why| Error::file(folder, why))?;
    let mut tensors = Vec::new();
    for (weight, tensor) in decoder.weights() {
        let layer = layer_name(&weight, decoder.config().family);
        // A bias has its whole name, which ends otherwise than those of matrices and norms.
        let is_bias = weight.shape.len() == 1 && !weight.is_norm();
        let name = if is_bias { layer } else { format!("{layer}.weight") };
        let data = match tensor {
            TensorOf::Matrix(tensor) => data(tensor)?,
            TensorOf::Vector(tensor) => data(tensor)?,
        };
        tensors.push((name, data));
    }
    if tensors.len() < expected(decoder.config()).len() {
        let (expected, found) = ("a decoder of floats".to_owned(), "quantised weights".to_owned());
        return Err(Error::Argument { name: "decoder", expected, found });
    }
    let path = folder.join("model.safetensors");
    let mut views = Vec::new();
    for (name, data) in &tensors {
        let dtype = match data.dtype {
            DType::F64 => Dtype::F64,
            DType::F16 => Dtype::F16,
            DType::BF16 => Dtype::BF16,
            _ => Dtype::F32,
        };
        let view = TensorView::new(dtype, data.shape.to_vec(), data.as_bytes());
        views.push((name.as_str(), view.map_err(|why| Error::file(&path, why))?));
    }
    let metadata = Some([("format".to_owned(), "pt".to_owned())].into());
    let bytes = safetensors::serialize(views, metadata).map_err(|why| Error::file(&path, why))?;
    fs::write(&path, bytes).map_err(|why| Error::file(&path, why))?;
    write_json(&folder.join("config.json"), settings)
}

fn data<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Result<TensorData> {
    tensor.try_into_data().map_err(|why| Error::Read(why.to_string()))
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    fs::write(path, format!("{value:#}\n")).map_err(|why| Error::file(path, why))
}

/// Writes a `tokenizer.json` whose tokens are the 256 bytes, in the format of the crate
/// `tokenizers`.
///
/// # Errors
/// [`Error::File`] if the file can't be written.
pub fn save_byte_tokenizer(folder: &Path) -> Result<()> {
    let vocabulary: Map<String, Value> =
        (0..=255u8).map(|byte| (character(byte).to_string(), json!(byte))).collect();
    let bytes =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": []
        }
    });
    write_json(&folder.join("tokenizer.json"), &tokenizer)
}

/// The character that stands for a byte in byte-level vocabularies: a printable byte stands for
/// itself, and the others follow each other from 256 on.
fn character(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match printable(byte) {
        true => char::from(byte),
        false => {
            let before = (0..byte).filter(|&other| !printable(other)).count();
            char::from_u32(256 + before as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
    }
}
