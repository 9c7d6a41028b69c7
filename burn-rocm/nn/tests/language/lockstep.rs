//! This program again with full blocks of threads.

use burn_rocm_tests::lockstep::whole_program;

#[test]
fn lockstep_waves_of_32() {
    whole_program(32);
}

#[test]
fn lockstep_waves_of_64() {
    whole_program(64);
}
