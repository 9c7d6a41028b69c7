//! The cases of a GPU. Their sizes exceed its caches. They are timed by device events. The report
//! gives each as a share of the device's ceiling, and compares it with peers that are measured in
//! the same run.

mod attention;
pub(crate) mod cases;
pub(crate) mod ceiling;
pub(crate) mod cupti;
pub(crate) mod devices;
mod halves;
mod inference;
pub(crate) mod memory;
pub(crate) mod models;
mod peers;
mod plot;
pub(crate) mod profiled;
pub(crate) mod report;
mod sizes;
mod steps;
pub(crate) mod time;
pub(crate) mod tuned;

use std::path::Path;

use crate::Options;
use cases::{Case, Group};
use report::{Column, Line};

/// The result of a part of the run. An error goes to `failed`, so that the other parts still run.
fn kept<T>(result: Result<T, String>, failed: &mut Vec<String>) -> Option<T> {
    result.map_err(|error| failed.push(error)).ok()
}

/// Runs the selected groups on this backend and on the selected peers, and prints the table. If a
/// peer fails, the table lacks its column.
///
/// # Errors
/// An error text if something can't be measured, read or written, or a peer failed.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let groups: Vec<Group> =
        Group::ALL.into_iter().filter(|group| options.all || group.wanted(options)).collect();
    if groups.is_empty() {
        return Err(
            "nothing to run: name a group (--matmul, --train, ...) or --all; --help lists them".into()
        );
    }
    // Wrong options are refused before anything is measured.
    let other = options.compare.as_deref().map(report::read_csv).transpose()?;
    peers::check(options)?;
    let has_peer = options.torch.is_some() || options.torch_compiled.is_some();
    if options.plot.is_some() && !(has_peer || options.flex || options.burn_cuda || other.is_some()) {
        return Err(plot::NO_PEER.into());
    }
    let mut failed = Vec::new();
    let device = hip::Device::get(0).map_err(|error| error.to_string())?;
    let mut ceiling = ceiling::Ceiling::measure(&device, options).map_err(|error| error.to_string())?;
    println!("{}", report::heading(&device, &ceiling));
    let mut lines = Vec::new();
    for case in cases::cases::<burn_rocm::Rocm>(options) {
        if !groups.contains(&case.group) {
            continue;
        }
        let product = sizes::products(options)
            .into_iter()
            .find(|(name, _, n)| case.name == format!("matmul {n} {name}"));
        match product {
            Some((_, dtype, n)) => {
                let mut direct = ceiling::direct(&device, dtype, n).map_err(|error| error.to_string())?;
                let (line, seconds) = measure_beside::<burn_rocm::Rocm>(case, &mut direct, options);
                ceiling.gemm.push((line.name.clone(), seconds));
                lines.push(line);
            }
            None => lines.push(measure::<burn_rocm::Rocm>(case, options)),
        }
    }
    if groups.contains(&Group::Attention) {
        lines.extend(attention::cases(options).into_iter().map(|case| measure(case, options)));
    }
    if groups.contains(&Group::Train) {
        lines.extend(steps::cases(options).into_iter().map(|case| measure(case, options)));
    }
    if groups.contains(&Group::Inference) {
        lines.extend(inference::cases(options).into_iter().map(|case| measure(case, options)));
    }
    if groups.contains(&Group::ColdStart) {
        lines.extend(kept(peers::cold_starts(options), &mut failed).into_iter().flatten());
    }
    let rows: peers::Rows<'_> = lines.iter().map(Line::peers_name).collect();
    let mut columns: Vec<Column> = Vec::new();
    if let Some(python) = &options.torch
        && let Some(mut eager) = kept(peers::torch(python, options, &groups, &rows, false), &mut failed)
    {
        let cudnn = attention::of_cudnn(&mut eager);
        columns.push((report::TORCH.into(), eager));
        if !cudnn.is_empty() {
            columns.push((format!("{}, cuDNN", report::TORCH), cudnn));
        }
    }
    if let Some(python) = &options.torch_compiled
        && let Some(compiled) = kept(peers::torch(python, options, &groups, &rows, true), &mut failed)
    {
        columns.push(("PyTorch compiled, graphs".into(), compiled));
    }
    if options.flex {
        columns.push(("burn-flex".into(), peers::in_process::<burn_flex::Flex>(options, &groups, &rows)));
    }
    if options.burn_cuda
        && let Some(values) = kept(peers::burn_cuda(options, &groups, &rows), &mut failed)
    {
        columns.push(("burn-cuda".into(), values));
    }
    if let Some((path, values)) = options.compare.as_ref().zip(other) {
        columns.push((format!("{}", path.display()), values));
    }
    print!("{}", report::markdown(&lines, &columns, &ceiling));
    let write = |path: &Path, text: String| {
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    if let Some(path) = &options.csv {
        kept(write(path, report::csv(&lines, &columns)), &mut failed);
    }
    if let Some(path) = &options.plot {
        kept(plot::bars(path, &lines, &columns), &mut failed);
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// Times one case. Writes its progress to stderr.
fn measure<B: time::Clock>(case: Case<B>, options: &Options) -> Line {
    let device = B::Device::default();
    eprintln!("{}", case.name);
    let mut timed = (case.make)(&device);
    let [seconds] = time::medians::<B, 1>(&device, [&mut timed.body], options);
    // Counts this backend's kernels; a peer launches none.
    let launches = || hip::Device::get(0).map_or(0, |device| device.counters().launches);
    let before = launches();
    (timed.body)();
    eprintln!("  {}, {} kernels launched a call", report::time(seconds), launches() - before);
    let losses = timed.losses.map(|losses| {
        loop {
            if let Some(losses) = losses() {
                break losses;
            }
            (timed.body)();
        }
    });
    Line { name: case.name, work: case.work, bar: case.bar, seconds, losses: losses.unwrap_or_default() }
}

/// Times one case in turns with another body. The second result is that body's seconds.
fn measure_beside<B: time::Clock>(case: Case<B>, other: &mut dyn FnMut(), options: &Options) -> (Line, f64) {
    let device = B::Device::default();
    eprintln!("{}", case.name);
    let mut timed = (case.make)(&device);
    let [seconds, beside] = time::medians::<B, 2>(&device, [&mut timed.body, other], options);
    (Line { name: case.name, work: case.work, bar: case.bar, seconds, losses: Vec::new() }, beside)
}
