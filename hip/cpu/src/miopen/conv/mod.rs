//! Convolution (docs/decisions/011-convolution-on-the-cpu.md).

mod call;
mod convert;
mod direct;
mod fill;
mod fusion;
mod geometry;
mod patches;
mod plan;
mod pointwise;
mod problem;
mod products;
mod solutions;
mod weights;

pub(crate) use call::Call;
