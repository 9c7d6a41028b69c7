//! The errors of adapters and their files. Both versions of Burn compile this file.

use std::path::PathBuf;

/// An error of adapters or of their files.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LoraError {
    /// A file is missing, damaged, or cannot be read or written.
    #[error("{path}: {reason}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A setting of `adapter_config.json` is missing, makes no sense, or stands for something that
    /// this crate does not compute.
    #[error("{path}: `{field}`: expected {expected}, found {found}")]
    Field {
        /// The file.
        path: PathBuf,
        /// The name of the setting.
        field: String,
        /// What would be right.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A tensor of `adapter_model.safetensors` is missing, belongs to no layer, or has another
    /// shape or dtype than the layer and the settings ask for.
    #[error("{path}: tensor `{name}`: expected {expected}, found {found}")]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        name: String,
        /// What would be right.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A setting of [`LoraConfig`](super::LoraConfig) makes no sense.
    #[error("LoRA's setting `{name}`: expected {expected}, found {found}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// The range.
        expected: String,
        /// The value.
        found: String,
    },
    /// A layer can't do what is asked of it.
    #[error("layer `{layer}`: expected {expected}, found {found}")]
    Layer {
        /// The layer's name.
        layer: String,
        /// What would be right.
        expected: String,
        /// What the layer is.
        found: String,
    },
    /// The device reported an error when an adapter was read.
    #[error("reading the adapter of layer `{layer}` from the device: {reason}")]
    Read {
        /// The layer's name.
        layer: String,
        /// The device's error.
        reason: String,
    },
}
