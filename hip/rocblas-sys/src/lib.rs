//! Raw rocBLAS: types, constants and one table of C functions, trimmed to what is called.
//!
//! After the headers of ROCm 7.2; everything here is the same in ROCm 5.7.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

mod ffi;

pub use ffi::*;
