//! Raw RCCL: types, constants and a table of the C functions that this project calls.
//!
//! Taken from the header of RCCL 2.27.7 (ROCm 7.2). RCCL has NCCL's API, so NVIDIA's NCCL fills the
//! same table.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

mod ffi;

pub use ffi::*;
