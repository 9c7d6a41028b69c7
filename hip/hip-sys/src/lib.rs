//! Raw HIP and hipRTC: types, constants and one table of C functions each.
#![allow(non_camel_case_types, non_upper_case_globals)]

mod table;
