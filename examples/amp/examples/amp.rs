//! Mixed precision and gradient checkpointing: a convolutional network and a small transformer
//! classify drawn digits, trained in f32, and in f16 and bf16 with f32 master weights. Prints
//! accuracy, peak memory and time of each run. With `--checkpointing` each run is repeated with
//! gradient checkpointing.
//!
//! ```text
//! cargo run --release --example amp -- --model cnn --steps 400
//! ```

use std::process::ExitCode;

use burn_rocm_amp::train;
use burn_rocm_examples::mixed;

fn main() -> ExitCode {
    mixed::program(train)
}
