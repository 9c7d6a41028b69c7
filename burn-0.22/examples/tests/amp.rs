//! Mixed precision end to end on Burn 0.22.

use burn_rocm_examples::mixed::Kind;
use burn_rocm_examples_022::amp::train;

#[path = "../../../examples/tests/shared/halves.rs"]
mod halves;

/// A single test, because the runs must not overlap.
#[test]
fn halves_learn_as_f32_and_checkpointing_takes_less_memory() {
    for kind in [Kind::Cnn, Kind::Transformer] {
        halves::learn(kind, train);
    }
}
