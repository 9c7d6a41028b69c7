//! Trains a small language model on the bytes of a folder's texts.
//!
//! ```text
//! cargo run --release --example bytes-lm
//! cargo run --release --bin llama -- --model target/bytes-lm --prompt "//! The "
//! ```

use std::process::ExitCode;

use burn_rocm_llama::train::bytes;

fn main() -> ExitCode {
    bytes::main()
}
