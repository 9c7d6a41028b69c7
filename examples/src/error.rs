//! The errors of the examples, with texts for the user.

use std::path::PathBuf;

/// An error of an example.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A data set is not available.
    #[error("{name} is not available: {reason}")]
    Data {
        /// The data set.
        name: &'static str,
        /// What is missing, and where it was searched.
        reason: String,
    },
    /// The loss is no longer finite.
    #[error("the loss is {loss} at step {step}: training has diverged; try a lower --lr than {lr}")]
    Diverged {
        /// Steps done.
        step: usize,
        /// The loss that was read.
        loss: f32,
        /// The learning rate at the start.
        lr: f64,
    },
    /// The device reported an error when its results were read.
    #[error("reading results from the device: {0}")]
    Device(String),
    /// A file or folder cannot be written or read.
    #[error("{path}: {reason}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The system's error text.
        reason: String,
    },
    /// The model classifies differently after it was saved and loaded.
    #[error("the loaded model has test accuracy {loaded:.4}, the saved one {saved:.4}")]
    Reloaded {
        /// Accuracy before saving.
        saved: f32,
        /// Accuracy after loading.
        loaded: f32,
    },
}

impl Error {
    /// An [`Error::File`] for `path`.
    pub fn file(path: impl Into<PathBuf>, reason: impl std::fmt::Display) -> Self {
        Self::File { path: path.into(), reason: reason.to_string() }
    }
}
