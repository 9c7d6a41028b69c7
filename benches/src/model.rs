//! What a launch would cost on AMD's GPUs, estimated from counters of the virtual GPU (`--model`).
//!
//! The model knows what a kernel asks of each part of a chip. It has never been held against a
//! measurement of this project's kernels on such a chip, only against figures that others
//! published.

mod chips;
mod cost;
mod counters;
mod decoding;
mod figures;

use std::fmt::Write;
use std::path::Path;

use chips::CHIPS;
use cost::Resource;
use counters::Launch;
use figures::Trust;

/// Prints the estimates of a decoded token.
pub(crate) fn decoding() {
    print!("{}", decoding::report());
}

/// Prints the estimates for a table of counters.
///
/// # Errors
///
/// A message if the table can't be read.
pub(crate) fn run(path: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<(), String> {
    let launches = counters::read(path).map_err(|error| error.to_string())?;
    let launches: Vec<Launch> = launches.into_iter().filter(|launch| wanted(&launch.kernel)).collect();
    print!("{}", report(&launches));
    Ok(())
}

/// Launches of one kernel with one geometry.
struct Group<'a> {
    first: &'a Launch,
    launches: Vec<&'a Launch>,
}

fn groups(launches: &[Launch]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for launch in launches {
        let same = |group: &&mut Group<'_>| {
            let first = group.first;
            (&first.kernel, &first.grid, &first.block) == (&launch.kernel, &launch.grid, &launch.block)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.launches.push(launch),
            None => groups.push(Group { first: launch, launches: vec![launch] }),
        }
    }
    groups
}

/// The table of kernels, and below it how far the model can be trusted on each chip.
fn report(launches: &[Launch]) -> String {
    let figures = figures::figures();
    let trusts: Vec<Trust> = CHIPS.iter().map(|chip| figures::trust(chip, &figures)).collect();
    let mut text = String::from("| kernel | grid | block | launches |");
    for (chip, trust) in CHIPS.iter().zip(&trusts) {
        let error = || format!(", ±{:.0} %{}", 100.0 * trust.error, trust.mark());
        let head = if trust.holds() { error() } else { String::new() };
        let _ = write!(text, " {}{head} |", chip.name);
    }
    let _ = writeln!(text, "\n|---|---|---|---:|{}", "---:|".repeat(CHIPS.len()));
    for group in groups(launches) {
        let Launch { kernel, grid, block, .. } = group.first;
        let _ = write!(text, "| {kernel} | {grid} | {block} | {} |", group.launches.len());
        for (chip, trust) in CHIPS.iter().zip(&trusts) {
            if trust.holds() {
                let _ = write!(text, " {} |", cell(&group.launches, chip, trust));
            } else {
                text.push_str(" - |");
            }
        }
        text.push('\n');
    }
    text.push_str(
        "\nA time is the mean of a launch's, with what limits it. `≤`: lines count as often as they are \
         asked for, because the table does not say which of them a cache holds (L2, private memory) or \
         how many are distinct (tables without the column `distinct_lines`). \
         `*`: no figure of this chip that checks the model was limited by that. \
         `†`: most figures that check the model are of kernels that the fit has from another device of \
         the same kind, so the error says little more than how well a measurement repeats.\n\n",
    );
    let _ = writeln!(text, "| chip | figures | of these, checks | median error | largest | checked |");
    let _ = writeln!(text, "|---|---:|---:|---:|---:|---|");
    for (chip, trust) in CHIPS.iter().zip(&trusts) {
        let covered: Vec<&str> = trust.covered.iter().map(|resource| resource.name()).collect();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.0} %{} | {:+.0} %, {} | {} |",
            chip.name,
            trust.figures,
            trust.checked,
            100.0 * trust.error,
            trust.mark(),
            100.0 * trust.worst.0,
            trust.worst.1,
            covered.join(", "),
        );
    }
    text
}

/// The mean time of launches on a chip, and what limits the longest of them.
fn cell(launches: &[&Launch], chip: &chips::Chip, trust: &Trust) -> String {
    let estimates: Vec<_> =
        launches.iter().map(|launch| (launch, cost::estimate(&launch.work, chip, &trust.shares))).collect();
    let mean = estimates.iter().map(|(_, estimate)| estimate.seconds).sum::<f64>() / estimates.len() as f64;
    let longest = estimates.iter().max_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds));
    let bound = longest.map_or(Resource::Memory, |(_, estimate)| estimate.bound);
    // Other resources' times do not depend on how many lines are distinct. L2's depends on what the
    // first caches hold, which no table says.
    let at_most = match bound {
        Resource::L2 => true,
        Resource::Memory | Resource::Cache => launches.iter().any(|launch| launch.upper_bound),
        _ => false,
    };
    let at_most = if at_most { "≤ " } else { "" };
    let unchecked = if trust.covered.contains(&bound) { "" } else { "*" };
    format!("{at_most}{:.1} us {}{unchecked}", 1e6 * mean, bound.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_row_for_each_kernel_and_geometry() {
        let (header, line) = counters::tests::BY_HAND.split_once('\n').expect("two lines");
        let line = line.trim_end();
        let other = line.replace("1024,1,1", "512,2,1");
        let launches = counters::parse(&format!("{header}\n{line}\n{line}\n{other}\n")).expect("a table");
        let text = report(&launches);
        let rows: Vec<&str> = text.lines().filter(|row| row.starts_with("| copy ")).collect();
        assert_eq!(rows.len(), 2, "{text}");
        assert!(rows[0].contains("| 1024,1,1 | 256,1,1 | 2 |"), "{text}");
        assert!(rows[1].contains("| 512,2,1 | 256,1,1 | 1 |"), "{text}");
    }

    #[test]
    fn the_documents_have_each_chips_error() {
        let decision = include_str!("../../docs/decisions/033-a-cost-model.md");
        let readme = include_str!("../README.md");
        let figures = figures::figures();
        for chip in &CHIPS {
            let trust = figures::trust(chip, &figures);
            let mark = trust.mark();
            let Trust { figures, checked, error, worst, covered, .. } = trust;
            let counts = format!("{figures} | {checked} | {:.0} %{mark} |", 100.0 * error);
            let start = format!("| {} | {counts} {:+.0} %, ", chip.name, 100.0 * worst.0);
            let covered: Vec<&str> = covered.iter().map(|resource| resource.name()).collect();
            // The decision has the resources' names in full.
            let end = format!(" | {} |", covered.join(", ").replace("cache", "last cache"));
            let is_row = |row: &str| row.starts_with(&start) && row.ends_with(&end);
            assert!(decision.lines().any(is_row), "033-a-cost-model.md lacks `{start}...{end}`");
            let die = if chip.name == "MI250X" { ", one die" } else { "" };
            let row = format!("| {}{die} | {counts} {:.0} % |", chip.name, 100.0 * worst.0.abs());
            assert!(readme.contains(&row), "benches/README.md lacks `{row}`");
        }
    }

    /// The bytes that a chip copies within device memory in the time of a launch.
    fn copied_in_a_launch(chip: &chips::Chip, trust: &Trust) -> f64 {
        let work = cost::Work { memory: 2e9, place: cost::Place::Memory, ..cost::Work::default() };
        let copy = cost::estimate(&work, chip, &trust.shares);
        assert_eq!(copy.bound, Resource::Memory);
        1e9 * chip.launch / (copy.seconds - chip.launch)
    }

    /// `copied_a_call` is the nearest power of two where decision 033 says that the model decides, and
    /// otherwise the value of an H200.
    #[test]
    fn bytes_worth_copying_are_the_models_where_it_decides() {
        use hip::defaults::{Defaults, Family};

        let shared = Defaults::of(Family::Nvidia).copied_a_call as f64;
        let figures = figures::figures();
        let mut copied = Vec::new();
        for chip in &CHIPS {
            let trust = figures::trust(chip, &figures);
            let bytes = copied_in_a_launch(chip, &trust);
            copied.push(format!("{:.1}", bytes / 1e6));
            let family = match chip.name {
                "MI300X" => Family::Cdna3,
                "MI250X" | "MI210" => Family::Cdna,
                "RX 7900 XTX" => Family::Rdna3,
                "RX 6900 XT" => Family::Rdna2,
                other => panic!("{other} has no family"),
            };
            // The launches of these two are those of other chips.
            let launch_is_known = !["MI300X", "RX 7900 XTX"].contains(&chip.name);
            let apart = (shared / bytes).max(bytes / shared);
            let expected = if launch_is_known && apart > 1.0 + 2.0 * trust.error {
                2f64.powi(bytes.log2().round() as i32)
            } else {
                shared
            };
            assert_eq!(Defaults::of(family).copied_a_call as f64, expected, "{}: {bytes} bytes", chip.name);
        }
        let row = format!("the copy wins up to {} MB a call saved", copied[..4].join(", "));
        let decision = include_str!("../../docs/decisions/033-a-cost-model.md");
        assert!(decision.contains(&row), "033-a-cost-model.md lacks `{row}`");
    }

    #[test]
    fn a_chip_that_does_not_hold_gets_no_estimate() {
        let figures = figures::figures();
        let mut trust = figures::trust(&CHIPS[0], &figures);
        trust.error = figures::BAR;
        assert!(!trust.holds());
        trust.error = 0.1;
        trust.figures = 4;
        assert!(!trust.holds());
        trust.figures = 5;
        assert!(trust.holds());
    }
}
