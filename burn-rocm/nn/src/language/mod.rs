//! Modules of language models.

pub mod quant;
