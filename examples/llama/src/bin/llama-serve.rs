//! Serves a language model over HTTP, as OpenAI's API does.
//!
//! ```text
//! cargo run --release --bin llama-serve -- --model FOLDER
//! cargo run --release --bin llama-serve -- --random tiny
//! ```

use std::process::ExitCode;

fn main() -> ExitCode {
    burn_rocm_llama::serve::main()
}
