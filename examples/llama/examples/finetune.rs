//! Trains adapters (LoRA) of a language model on a text.
//!
//! ```text
//! cargo run --release --example finetune -- --model FOLDER --text FILE
//! cargo run --release --bin llama -- --model FOLDER --lora target/finetune --prompt "Once"
//! ```

use std::process::ExitCode;

use burn_rocm_llama::train::finetune;

fn main() -> ExitCode {
    finetune::main()
}
