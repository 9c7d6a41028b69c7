//! Mixed precision end to end.

use burn_rocm_amp::train;
use burn_rocm_examples::mixed::Kind;

#[path = "../../tests/shared/halves.rs"]
mod halves;

/// A single test, because the runs must not overlap.
#[test]
fn halves_learn_as_f32_and_checkpointing_takes_less_memory() {
    for kind in [Kind::Cnn, Kind::Transformer] {
        halves::learn(kind, train);
    }
}
