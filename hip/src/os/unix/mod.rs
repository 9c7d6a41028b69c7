//! Linux and other systems with ELF and `dlopen`.

pub(crate) mod library;
pub(crate) mod loaded;
pub(crate) mod private;
