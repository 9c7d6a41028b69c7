//! Raw MIOpen: types, constants and a table of the C functions that this project calls.
//!
//! Taken from the headers of ROCm 7.2. All of it is the same in ROCm 5.7, except the table's
//! optional functions.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

mod ffi;
mod types;

pub use ffi::*;
pub use types::*;
