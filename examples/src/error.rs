//! What can go wrong in an example, for the user to read.

use std::path::PathBuf;

/// An error of an example.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A data set cannot be had.
    #[error("{name} is not available: {reason}")]
    Data {
        /// The data set.
        name: &'static str,
        /// What was missing, and where it was looked for.
        reason: String,
    },
    /// Training ran into a loss that is no number.
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
        /// What the system said.
        reason: String,
    },
    /// The same model classified differently after it was saved and loaded.
    #[error("the loaded model has test accuracy {loaded:.4}, the saved one {saved:.4}")]
    Reloaded {
        /// Accuracy before saving.
        saved: f32,
        /// Accuracy after loading.
        loaded: f32,
    },
}

impl Error {
    /// Names the file that `reason` is about.
    pub fn file(path: impl Into<PathBuf>, reason: impl std::fmt::Display) -> Self {
        Self::File { path: path.into(), reason: reason.to_string() }
    }
}
