//! The modules of this crate against those for Burn 0.21 on the same device, and against Burn 0.22's own on burn-flex.
//! `worlds` says where both Burns have the same bits and launches.
#![allow(missing_docs, clippy::unwrap_used)]

#[expect(unreachable_pub, reason = "the file is a module of a library, too")]
#[path = "../../../../tests/src/again.rs"]
mod again;
mod amp;
mod attention;
mod chains;
mod decoder;
mod devices;
mod language;
mod layers;
mod lora;
mod lora_quant;
#[path = "../../../../burn-rocm/nn/tests/nn/lora_reference.rs"]
mod lora_reference;
mod losses;
mod norms;
mod optim;
mod quant;
#[expect(dead_code, unreachable_pub, reason = "the file is a module of a library, too")]
#[path = "../../../../tests/src/random.rs"]
mod random;
mod records;
mod views;
mod worlds;
