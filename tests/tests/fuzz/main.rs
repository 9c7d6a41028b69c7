//! Random cases: any op, with random shapes, layouts, dtypes and values, compared with `burn-flex`.
//!
//! `BURN_ROCM_FUZZ_CASES` sets the number of cases (default 10,000), which the families of ops
//! share. `BURN_ROCM_TEST_SEED` repeats a run, and `BURN_ROCM_FUZZ_OP` selects the ops whose names
//! contain it. A failure is reduced to a simpler case before it is shown. With
//! `BURN_ROCM_FUZZ_SURVEY=1` each failure is printed as it occurs, and the run continues. Such
//! failures are not counted, and no test fails for them.
//!
//! The program has its own harness: a family counts as ignored if `BURN_ROCM_FUZZ_OP` selects none
//! of its ops.
#![allow(missing_docs, clippy::unwrap_used)]

mod chain;
mod draw;
mod float;
mod fourier;
mod index;
mod int;
mod module;
mod quantized;
mod rules;
mod run;
mod sequence;
mod sums;
mod wrong;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use run::Op;
use std::process::ExitCode;
use std::thread::Builder;

/// The families: name, ops, percentage of all cases, and the number of types of the ops.
const FAMILIES: &[(&str, &[Op], u32, usize)] = &[
    ("float_ops", float::OPS, 40, 4),
    ("int_and_bool_ops", int::OPS, 20, 8),
    ("indexing_ops", index::OPS, 15, 8),
    ("module_ops", module::OPS, 15, 4),
    ("quantized_ops", quantized::OPS, 6, 4),
    ("deformable_convolutions_and_sequences", sequence::OPS, 4, 4),
];

/// A test on a thread with the test's name, which determines its random numbers.
fn test(name: &'static str, body: impl FnOnce() -> Completion + Send + 'static) -> Trial {
    let run = move || {
        let thread = Builder::new().name(name.into()).spawn(body).expect("a thread starts");
        thread.join().map_err(|_| Failed::without_message())
    };
    Trial::ignorable_test(name, run)
}

fn main() -> ExitCode {
    let part = std::env::var("BURN_ROCM_FUZZ_OP").ok();
    let family = |&(name, all, hundredths, _): &(&'static str, &'static [Op], u32, usize)| {
        test(name, move || {
            let ops = run::named(all);
            if ops.is_empty() {
                return Completion::ignored_with("BURN_ROCM_FUZZ_OP names none of its ops");
            }
            run::family(&ops, hundredths);
            Completion::Completed
        })
    };
    let mut trials: Vec<Trial> = FAMILIES.iter().map(family).collect();
    let whole = |name, body: fn()| {
        let part = part.clone();
        test(name, move || match part {
            Some(part) => Completion::ignored_with(format!("only ops named {part}")),
            None => {
                body();
                Completion::Completed
            }
        })
    };
    trials.push(whole("chains_leave_other_tensors_alone", chain::chains_leave_other_tensors_alone));
    for &(name, body) in rules::TESTS {
        trials.push(whole(name, body));
    }
    trials.push(whole("wrong_results_fail", || {
        wrong::results_fail(&FAMILIES.iter().map(|&(_, ops, _, types)| (ops, types)).collect::<Vec<_>>());
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
