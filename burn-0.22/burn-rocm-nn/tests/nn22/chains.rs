//! The tests of this program where small ops share launches, and where each op is a launch.

use crate::again::again;
use crate::worlds::joins_ops;

const CHILD: &str = "BURN_ROCM_TEST_CHAINS_CHILD";

/// Runs the other tests again with these settings, which a process reads once.
fn others(settings: &[(&str, &str)]) {
    if std::env::var_os(CHILD).is_some() {
        return;
    }
    let settings = [settings, &[(CHILD, "1")]].concat();
    let text = again(&["--skip", "chains::", "--test-threads", "8"], &settings);
    assert!(text.contains("norms::layer_norm ... ok"), "{text}");
}

/// Counts the launches of a device that joins small ops. Compares bits where a GPU's library would choose algorithms
/// by their times.
#[test]
fn without_chains() {
    if joins_ops() {
        others(&[("BURN_ROCM_CHAIN", "0"), ("BURN_ROCM_DETERMINISTIC", "1")]);
    }
}

/// On the CPU device, which joins small ops only if it is told to.
#[test]
fn with_chains() {
    if !joins_ops() {
        others(&[("BURN_ROCM_CHAIN", "16")]);
    }
}

/// Whether or not this run captures, because `others` reads how each test of its child ended.
#[test]
fn a_child_captures_what_its_tests_print() {
    const DEPTH: &str = "BURN_ROCM_TEST_DEPTH";
    let run = |depth, more| {
        let environment = [(DEPTH, depth), more];
        again(&["--exact", "chains::a_child_captures_what_its_tests_print"], &environment)
    };
    match std::env::var(DEPTH).as_deref() {
        Err(_) => drop(run("1", ("RUST_TEST_NOCAPTURE", "1"))),
        Ok("1") => assert!(!run("2", (CHILD, "1")).contains("by the innermost")),
        Ok(_) => println!("printed by the innermost"),
    }
}
