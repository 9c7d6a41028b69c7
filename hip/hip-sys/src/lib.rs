//! Raw HIP and hipRTC: types, constants and one table of C functions each
