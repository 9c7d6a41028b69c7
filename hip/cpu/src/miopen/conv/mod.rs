//! Convolution.

mod call;
mod descriptor;
mod direct;
mod fill;
mod find;
mod fusion;
mod immediate;
mod plan;
mod problem;
mod weights;
mod winograd;

pub(crate) use call::Found;
pub(super) use descriptor::*;
pub(super) use find::*;
pub(super) use fusion::*;
pub(super) use immediate::*;
