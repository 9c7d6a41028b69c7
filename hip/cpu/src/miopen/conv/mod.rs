//! Convolution.

mod call;
mod convert;
mod descriptor;
mod direct;
mod fill;
mod find;
mod fusion;
mod immediate;
mod patches;
mod plan;
mod pointwise;
mod problem;
mod products;
mod weights;

pub(crate) use call::Found;
pub(super) use descriptor::*;
pub(super) use find::*;
pub(super) use fusion::*;
pub(super) use immediate::*;
