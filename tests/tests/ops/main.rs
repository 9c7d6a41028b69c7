//! Every op of the backend against `burn-flex`, natively and in lockstep.
#![allow(missing_docs)]

mod binary;
mod compare;
mod create;
mod index;
mod layout;
mod lockstep;
mod mask;
mod matmul;
mod reduce;
mod unary;
