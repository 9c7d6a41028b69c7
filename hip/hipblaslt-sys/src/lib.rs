//! Raw hipBLASLt: types, constants and a table of the C functions that this project calls.
//!
//! Taken from the headers of ROCm 7.2. All of it is the same from ROCm 6.0 on. In ROCm 5, the
//! constants of element types have other values, so hipBLASLt of ROCm 5 must not fill the table.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

mod ffi;

pub use ffi::*;
