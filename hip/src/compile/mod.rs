//! From a kernel's text to a code object: hipRTC, what identifies it, and the cache on disk.

pub(crate) mod cache;
pub(crate) mod program;
pub(crate) mod rtc;
pub(crate) mod toolchain;
