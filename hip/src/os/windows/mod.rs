//! Windows.

mod api;
pub(crate) mod library;
pub(crate) mod loaded;
pub(crate) mod private;
