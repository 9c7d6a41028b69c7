//! The HSA runtime's C API, as far as AMD's HIP calls it.
//!
//! Every function here is called by C code, in practice `libamdhip64`. **The caller guarantees** what the HSA Runtime
//! Programmer's Reference Manual 1.2 (section 2) demands of it: pointers are valid for the types they point to, and a
//! handle was made by the matching call and not destroyed yet. Pointers are therefore `Option<&T>` or
//! `Option<&mut MaybeUninit<T>>` where the API's own rules suffice for a reference.

pub mod absent;
mod agents;
mod allocation;
mod api;
mod bell;
mod code_objects;
mod copies;
mod counter_file;
mod elf;
mod extensions;
mod log;
mod packets;
mod pools;
mod queues;
mod ring;
mod runtime;
mod signals;
mod status;
mod types;
mod virtual_memory;

pub use agents::*;
pub use api::{Array, Text, Value};
pub use code_objects::*;
pub use copies::*;
pub use extensions::*;
pub use pools::*;
pub use queues::*;
pub use ring::ErrorCallback;
pub use signals::*;
pub use status::{Status, hsa_status_string};
pub use types::*;
pub use virtual_memory::*;
