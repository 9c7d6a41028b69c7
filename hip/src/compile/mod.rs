//! Compiles kernels to code objects: hipRTC, the identity of its build, and the cache on disk.

pub(crate) mod cache;
pub(crate) mod program;
pub(crate) mod rtc;
pub(crate) mod toolchain;
