//! Execution: one small function per instruction, over all lanes at once.
//!
//! The functions are generic bodies. [`level`] compiles each for the portable instruction set, for AVX2 and for
//! AVX-512, and decoding picks the best that the host has.

#![allow(clippy::needless_range_loop, reason = "a lane's number indexes several registers at once")]

pub(crate) mod access;
pub(crate) mod atomic;
pub(crate) mod buffer;
pub(crate) mod crosslane;
pub(crate) mod division;
pub(crate) mod ds;
pub(crate) mod flat;
pub(crate) mod float;
pub(crate) mod half;
pub(crate) mod int;
pub(crate) mod lanes;
mod level;
pub(crate) mod mode;
pub(crate) mod scalar;
pub(crate) mod smem;
mod soft;
pub(crate) mod value;
mod watched;

pub(crate) use level::{Body, Exec, Handler, Inst, Level, Op};
