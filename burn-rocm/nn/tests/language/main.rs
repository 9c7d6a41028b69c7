//! Decoding: the cache, attention over it, sampling and the step as a graph, against formulas in
//! f64; natively and in lockstep.
#![allow(missing_docs, clippy::unwrap_used)]

mod attention;
mod blocks;
mod cache;
mod draws;
mod graph;
mod lockstep;
mod rotary_append;
mod rotary_attention;
mod sample;
mod support;
