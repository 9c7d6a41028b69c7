//! Generates text with a language model.
//!
//! ```text
//! cargo run --release --bin llama -- --model FOLDER --prompt "Once upon a time"
//! cargo run --release --bin llama -- --model FOLDER --chat
//! cargo run --release --bin llama -- --random tiny
//! ```

use std::process::ExitCode;

use burn_rocm_llama::program;

fn main() -> ExitCode {
    program::main()
}
