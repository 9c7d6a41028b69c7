//! Training steps with and without a profile, in turns.

use burn_rocm::profile::Detail;
use burn_rocm::{Profile, Rocm, RocmDevice, profile};

use super::time::Clock;
use super::{report, steps};
use crate::cases::sync;
use crate::median::median;
use crate::{Options, Precision};

/// The least seconds of a measured round.
const ROUND: f64 = 0.3;

/// Prints a row for each training step that the options name: the median time of a step without and
/// with a profile, and the median of the ratios of each round.
///
/// # Errors
/// An error text if no row has the name that `--filter` asks for.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let device = RocmDevice::default();
    let cases = steps::cases(options);
    if cases.is_empty() {
        return Err("no training step has a name with the text of --filter".into());
    }
    println!("| step | not profiled | profiled | ratio | aim | | calls a step | timed alone |");
    println!("|---|---:|---:|---:|---:|---|---:|---:|");
    for case in cases {
        eprintln!("{}", case.name);
        let mut body = (case.make)(&device).body;
        // The first calls compile, choose algorithms and fill the pool.
        (0..options.warmup.max(5)).for_each(|_| body());
        let once = Rocm::time(&device, &mut body).max(1e-7);
        let calls = (ROUND / once).ceil().clamp(8.0, 2000.0) as usize;
        let mut steps = || Rocm::time(&device, &mut || (0..calls).for_each(|_| body())) / calls as f64;
        let mut rounds = Vec::new();
        let mut last: Option<Profile> = None;
        for round in 0..options.iterations.max(1) {
            let mut profiled = |steps: &mut dyn FnMut() -> f64| {
                let (seconds, profile) = profile(&mut *steps);
                last = Some(profile);
                seconds
            };
            // Which comes first changes, so that a device that slows down favours neither.
            let (plain, profiled) = if round % 2 == 0 {
                let plain = steps();
                (plain, profiled(&mut steps))
            } else {
                let profiled = profiled(&mut steps);
                (steps(), profiled)
            };
            sync::<Rocm>(&device);
            eprintln!("  {} and {}", report::time(plain), report::time(profiled));
            rounds.push((plain, profiled));
        }
        let median = |of: fn(&(f64, f64)) -> f64| median(rounds.iter().map(of).collect()).expect("a round");
        let (plain, profiled, ratio) = (median(|r| r.0), median(|r| r.1), median(|r| r.1 / r.0));
        let rows = last.map(|profile| profile.rows(Detail::Op)).unwrap_or_default();
        let sum = |of: fn(&burn_rocm::profile::Row) -> u64| rows.iter().map(of).sum::<u64>() as f64;
        let (all, alone) = (sum(|row| row.calls), sum(|row| row.timed - row.shared));
        let aim = aim(&case.name);
        let said = aim.map(|aim| (format!("{aim:.2}"), if ratio <= aim { "ok" } else { "MISSED" }));
        let (aim, met) = said.unwrap_or(("-".into(), ""));
        println!(
            "| {} | {} | {} | {ratio:.4} | {aim} | {met} | {:.0} | {:.1} % |",
            case.name,
            report::time(plain),
            report::time(profiled),
            all / calls as f64,
            100.0 * alone / all.max(1.0),
        );
    }
    Ok(())
}

/// The largest ratio that the transformer's step may have.
fn aim(name: &str) -> Option<f64> {
    let half = [Precision::Bf16, Precision::F16].iter().any(|half| name.contains(half.name()));
    name.starts_with("transformer").then_some(if half { 1.05 } else { 1.01 })
}
