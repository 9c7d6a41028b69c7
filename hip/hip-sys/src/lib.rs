//! Raw HIP and hipRTC: types, constants and one table of C functions each.
#![allow(non_camel_case_types, non_upper_case_globals, non_snake_case)]

mod hip;
mod hiprtc;
mod table;
mod types;

pub use hip::Hip;
pub use hiprtc::Hiprtc;
pub use types::*;
