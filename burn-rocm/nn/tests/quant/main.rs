//! Quantised weights: each importer against the definition of its format in f64, products against
//! f64 within a bound, what is refused; natively and in lockstep.
#![allow(missing_docs, clippy::unwrap_used)]

mod formats;
mod fp8;
mod fp8_products;
mod lockstep;
mod lora;
mod products;
mod projection;
mod refusals;
mod rounding;
mod weights;
