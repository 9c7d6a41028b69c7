//! What a warm-up leaves as it was, with Burn 0.21.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "shared/small.rs"]
mod small;
#[path = "shared/warm_up.rs"]
mod warm_up;
#[path = "shared/world.rs"]
mod world;

/// The same in lockstep. With waves of 64, small ops are deferred as on a GPU.
mod lockstep {
    use burn_rocm_tests::lockstep::whole_program;

    #[test]
    fn wave_32() {
        whole_program(32);
    }

    #[test]
    fn wave_64() {
        whole_program(64);
    }
}
