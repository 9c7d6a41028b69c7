//! Language models: low-rank adapters of frozen layers.

pub mod lora;
