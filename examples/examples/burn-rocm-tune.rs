//! Times MIOpen's algorithms for the convolutions of a run ahead of it, so that later runs time
//! nothing. Results are kept at once: a run that is stopped goes on where it was.
//!
//! ```text
//! BURN_ROCM_TRACE=1 RUST_LOG=info my-app 2> trace.txt     # an app that installs a logger
//! cargo run --release --example burn-rocm-tune -- trace.txt
//! cargo run --release --example burn-rocm-tune -- --list
//! ```

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use burn_rocm::tuning::{ConvProblem, TuningStats, store, tune};
use burn_rocm::{RocmDevice, RocmError};
use burn_rocm_examples::error::Error;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

/// Times MIOpen's algorithms for the convolutions of a run ahead of it, and manages what is known.
#[derive(Debug, Parser)]
#[command(name = "burn-rocm-tune", arg_required_else_help = true)]
struct Arguments {
    /// Traces (`BURN_ROCM_TRACE=1`), or other texts that name convolutions as traces do; `-` is
    /// the standard input.
    traces: Vec<PathBuf>,
    /// The device: `rocm`, `rocm:1`.
    #[arg(long, default_value = "rocm")]
    device: RocmDevice,
    /// First remove every result, of all devices.
    #[arg(long)]
    clear: bool,
    /// Add the results of a file that `--export` wrote.
    #[arg(long, value_name = "FILE")]
    import: Option<PathBuf>,
    /// At the end, write all results to a file.
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,
    /// At the end, list all results.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("burn-rocm-tune: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let store = store();
    let Some(folder) = store.directory() else {
        return Err(
            "the store is off: unset BURN_ROCM_DETERMINISTIC, BURN_ROCM_TUNING=0, BURN_ROCM_CACHE=0".into()
        );
    };
    println!("results: {}", folder.display());
    if arguments.clear {
        println!("removed {} results", store.clear());
    }
    if let Some(file) = &arguments.import {
        println!("imported {} results of {}", store.import(file)?, file.display());
    }
    let mut code = ExitCode::SUCCESS;
    if !arguments.traces.is_empty() {
        let problems = problems(&arguments.traces)?;
        if problems.is_empty() {
            return Err(
                "no convolution by MIOpen was found; a trace has lines with `convolution forward`".into()
            );
        }
        let failed = tune_all(&arguments.device, &problems)?;
        if failed > 0 {
            code = ExitCode::FAILURE;
        }
    }
    if arguments.list {
        for entry in store.entries() {
            let (time, workspace) = (entry.microseconds, entry.workspace);
            println!(
                "{}\n  {}, {}: solution {}, {time:.1} us, workspace {workspace}",
                entry.problem, entry.device, entry.library, entry.solution
            );
        }
    }
    if let Some(file) = &arguments.export {
        println!("exported {} results to {}", store.export(file)?, file.display());
    }
    let TuningStats { damaged, refused, entries, .. } = store.stats();
    println!("{entries} results are kept");
    if damaged + refused > 0 {
        println!("{damaged} damaged files were removed, {refused} were not used");
    }
    Ok(code)
}

/// The convolutions that the texts name, each once, in the order of the texts.
fn problems(traces: &[PathBuf]) -> Result<Vec<ConvProblem>, Error> {
    let (mut known, mut problems) = (HashSet::new(), Vec::new());
    for trace in traces {
        let bytes = match trace == Path::new("-") {
            true => {
                let mut bytes = Vec::new();
                io::stdin().read_to_end(&mut bytes).map(|_| bytes)
            }
            false => fs::read(trace),
        };
        let bytes = bytes.map_err(|error| Error::file(trace, error))?;
        for problem in String::from_utf8_lossy(&bytes).lines().filter_map(ConvProblem::find) {
            if known.insert(problem.clone()) {
                problems.push(problem);
            }
        }
    }
    Ok(problems)
}

/// Tunes each. Returns how many failed.
fn tune_all(device: &RocmDevice, problems: &[ConvProblem]) -> Result<usize, RocmError> {
    let info = device.info()?;
    println!("{} convolutions on {} ({})", problems.len(), info.name, info.architecture);
    let style = ProgressStyle::with_template("[{elapsed}, about {eta} left] {pos}/{len} {wide_msg}");
    let bar = ProgressBar::new(problems.len() as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let (mut timed, mut failed) = (0, 0);
    for problem in problems {
        bar.set_message(problem.to_string());
        match tune(device, problem) {
            Ok(true) => timed += 1,
            Ok(false) => {}
            Err(error) => {
                failed += 1;
                bar.suspend(|| eprintln!("{problem}: {error}"));
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let rest = problems.len() - timed - failed;
    println!("timed {timed}; {rest} were known, or MIOpen does not compute them; {failed} failed");
    Ok(failed)
}
