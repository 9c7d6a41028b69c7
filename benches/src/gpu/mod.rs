//! The cases of a GPU. Their sizes exceed its caches. They are timed by device events. The report
//! gives each as a share of the device's ceiling, and compares it with peers that are measured in
//! the same run.

mod attention;
pub(crate) mod cases;
pub(crate) mod ceiling;
pub(crate) mod cupti;
mod devices;
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

use std::collections::BTreeMap;
use std::path::Path;

use crate::Options;
use cases::{Case, Group};
use report::Line;

/// Runs the selected groups on this backend and on the selected peers, and prints the table.
///
/// # Errors
/// An error text if something can't be measured, read or written.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    if !options.devices.is_empty() {
        return devices::run(options, &options.devices);
    }
    let groups: Vec<Group> =
        Group::ALL.into_iter().filter(|group| options.all || group.wanted(options)).collect();
    if groups.is_empty() {
        return Err(
            "nothing to run: name a group (--matmul, --train, ...) or --all; --help lists them".into()
        );
    }
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
        lines.extend(peers::cold_starts(options)?);
    }
    let mut columns: Vec<(String, BTreeMap<String, f64>)> = Vec::new();
    if let Some(python) = &options.torch {
        let mut eager = peers::torch(python, options, &groups, false)?;
        let cudnn = attention::of_cudnn(&mut eager);
        columns.push((report::TORCH.into(), eager));
        if !cudnn.is_empty() {
            columns.push((format!("{}, cuDNN", report::TORCH), cudnn));
        }
    }
    if let Some(python) = &options.torch_compiled {
        columns.push(("PyTorch compiled, graphs".into(), peers::torch(python, options, &groups, true)?));
    }
    if options.flex {
        columns.push(("burn-flex".into(), peers::in_process::<burn_flex::Flex>(options, &groups)));
    }
    if options.burn_cuda {
        columns.push(("burn-cuda".into(), peers::burn_cuda(options, &groups)?));
    }
    if let Some(path) = &options.compare {
        columns.push((format!("{}", path.display()), report::read_csv(path)?));
    }
    print!("{}", report::markdown(&lines, &columns, &ceiling));
    let write = |path: &Path, text: String| {
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    if let Some(path) = &options.csv {
        write(path, report::csv(&lines, &columns))?;
    }
    if let Some(path) = &options.plot {
        plot::bars(path, &lines, &columns)?;
    }
    Ok(())
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
