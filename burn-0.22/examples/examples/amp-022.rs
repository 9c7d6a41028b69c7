//! Mixed precision and gradient checkpointing: the example `amp` for Burn 0.22.
//!
//! ```text
//! cargo run --release --example amp-022 -- --model cnn --steps 400
//! ```

use std::process::ExitCode;

use burn_rocm_examples::mixed;
use burn_rocm_examples_022::amp;

fn main() -> ExitCode {
    mixed::program(amp::train)
}
