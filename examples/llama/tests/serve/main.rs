//! The server: its engine against the program that generates one text, and its routes as a client
//! sees them.

#[path = "../shared/folder.rs"]
mod folder;

mod bodies;
mod client;
mod engine;
mod failures;
mod limits;
mod penalties;
mod program;
mod routes;
mod support;
