//! Runs the same tests in lockstep, with waves of 32 and of 64.

use burn_rocm_tests::lockstep::whole_program;

#[test]
fn wave_32() {
    whole_program(32);
}

#[test]
fn wave_64() {
    whole_program(64);
}
