//! The routes, and the server.

mod answering;
mod listen;
mod routes;
mod stalled;

pub use listen::{Serving, serve};
pub use routes::{Server, router};
