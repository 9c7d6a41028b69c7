//! A profile of training steps of burn-rocm-nn, with `--train` of stock modules, or with
//! `--inference` of inference, compared with CUPTI's record of the same steps, on an NVIDIA GPU: which
//! share of the GPU's busy time was launched by work that the profile names.
//!
//! The profile tells CUPTI when each piece of its work begins and ends on a thread, so each kernel
//! in CUPTI's record leads to the piece that launched it, or to none (`join.rs`).

mod control;
mod join;
mod library;

use std::path::Path;

use burn_rocm::{RocmDevice, profile};

use self::library::Cupti;
use super::cases::{self, Case, Group};
use super::{inference, steps};
use crate::Options;
use crate::cases::sync;

/// Steps of each row.
const CALLS: usize = 20;

/// Prints a report for each step that the options name, and a table of all.
///
/// # Errors
/// An error text if CUPTI can't be opened or fails, if a launch outside the profile's work does not
/// count as such, or if a step misses the aim.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let path = options.cupti.as_ref().and_then(Option::as_deref);
    // Never closed: CUPTI's thread may call the callbacks until the process ends.
    let cupti = std::mem::ManuallyDrop::new(open(path)?);
    let device = RocmDevice::default();
    let cases = match options {
        Options { inference: true, .. } => inference::cases(options),
        Options { train: true, .. } => {
            cases::cases(options).into_iter().filter(|case| case.group == Group::Train).collect()
        }
        _ => steps::cases(options),
    };
    if cases.is_empty() {
        return Err("no step has a name with the text of --filter".into());
    }
    println!("{}", control::run(&cupti, &device)?);
    let (mut rows, mut missed) = (String::new(), 0);
    for case in cases {
        eprintln!("{}", case.name);
        let (row, is_met) = report(&cupti, case, &device)?;
        rows += &row;
        missed += usize::from(!is_met);
    }
    println!("\n## All\n");
    println!(
        "| {CALLS} steps | busy, ms | kernels, copies and memsets | named | by an op or a graph | aim |"
    );
    println!("|---|---:|---:|---:|---:|---|");
    print!("{rows}");
    match missed {
        0 => Ok(()),
        _ => Err(format!("{missed} steps have less than {:.0} % named", 100.0 * join::AIM)),
    }
}

/// Opens the library of that name, or the first of its usual names.
fn open(path: Option<&Path>) -> Result<Cupti, String> {
    if let Some(path) = path {
        return Cupti::open(path);
    }
    let mut errors = Vec::new();
    for name in ["libcupti.so.13", "libcupti.so.12", "libcupti.so"] {
        match Cupti::open(Path::new(name)) {
            Ok(cupti) => return Ok(cupti),
            Err(error) => errors.push(error),
        }
    }
    Err(format!(
        "{}. Name the file: in NVIDIA's wheels for Python it is nvidia/cuda_cupti/lib/libcupti.so.12 or \
         nvidia/cu13/lib/libcupti.so.13",
        errors.join("; ")
    ))
}

/// Prints a step's report. Returns its row, and whether it meets the aim.
fn report(cupti: &Cupti, case: Case<burn_rocm::Rocm>, device: &RocmDevice) -> Result<(String, bool), String> {
    let mut body = (case.make)(device).body;
    // The first steps compile, and let the libraries choose.
    (0..8).for_each(|_| body());
    sync::<burn_rocm::Rocm>(device);
    let (((), profile), record) = cupti.during(|| profile(|| (0..CALLS).for_each(|_| body())))?;
    let pieces = join::pieces(&profile)?;
    let joined = join::join(&record, &pieces)?;
    println!("\n## {}, {CALLS} steps\n", case.name);
    print!("{}", joined.report());
    let is_met = joined.is_met();
    let row = format!(
        "| {} | {:.3} | {} | {:.2} % | {:.2} % | {} |\n",
        case.name,
        joined.busy as f64 / 1e6,
        joined.all.calls,
        100.0 * joined.named_share(),
        100.0 * joined.op_share(),
        if is_met { "ok" } else { "MISSED" },
    );
    Ok((row, is_met))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_is_an_error() {
        let error = Cupti::open(Path::new("no/libcupti.so")).err().unwrap();
        assert!(error.starts_with("no/libcupti.so: "), "{error}");
    }
}
