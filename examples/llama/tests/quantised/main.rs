//! Quantised checkpoints: a folder or a GGUF file with codes gives the logits of one with the
//! floats that these codes stand for. So do adapters of both, and their gradients.

#[path = "../shared/mod.rs"]
mod shared;

mod adapters;
mod codes;
mod formats;
mod logits;
