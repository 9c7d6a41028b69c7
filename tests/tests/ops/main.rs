//! Every op of the backend against `burn-flex`, natively and in lockstep.
#![allow(missing_docs, clippy::unwrap_used)]

mod attention;
mod binary;
mod compare;
mod conv;
mod conv_drawn;
mod create;
mod fft;
mod index;
mod index_nd;
mod interpolate;
mod layout;
mod lockstep;
mod mask;
mod matmul;
mod pool;
mod pool_edges;
mod random;
mod rank;
mod reduce;
mod rest;
mod scan;
mod sort;
mod unary;
