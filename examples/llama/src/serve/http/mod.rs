//! The routes, and the server.

mod answering;
mod listen;
mod routes;
mod server;
mod stalled;

pub use listen::{Serving, serve};
pub use routes::router;
pub use server::Server;
