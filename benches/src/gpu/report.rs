//! The rows, and their output.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use super::cases::{Bar, FUSED, GRAPH, Work};
use super::ceiling::Ceiling;
use super::halves;
use crate::Precision;

/// One measured case.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) work: Work,
    pub(crate) bar: Bar,
    /// The median seconds of a call.
    pub(crate) seconds: f64,
    /// The losses before each of the first training steps.
    pub(crate) losses: Vec<f64>,
}

/// A peer's name and its measurements: seconds by case, and losses under the names of [`loss_of`].
pub(crate) type Column = (String, BTreeMap<String, f64>);

/// The name of eager PyTorch's column.
pub(crate) const TORCH: &str = "PyTorch";

/// What a run measured, by which a row's bar is judged.
#[derive(Clone, Copy)]
pub(crate) struct Measured<'a> {
    pub(crate) ceiling: &'a Ceiling,
    pub(crate) lines: &'a [Line],
    pub(crate) columns: &'a [Column],
}

impl Line {
    /// The name of the peers' row for the same work.
    pub(crate) fn peers_name(&self) -> &str {
        let name = self.name.strip_suffix(GRAPH).unwrap_or(&self.name);
        name.strip_suffix(FUSED).unwrap_or(name)
    }

    /// The names under which a column may have this row: its own, as in another run of this program,
    /// and that of the peers' row for the same work.
    fn names(&self) -> [&str; 2] {
        [&self.name, self.peers_name()]
    }

    /// The seconds that a column has for this row.
    pub(crate) fn peer(&self, values: &BTreeMap<String, f64>) -> Option<f64> {
        self.names().into_iter().find_map(|name| values.get(name).copied())
    }

    /// The losses that a column has for this row, if it has all.
    fn peers_losses(&self, values: &BTreeMap<String, f64>) -> Option<Vec<f64>> {
        let of = |name: &str| -> Option<Vec<f64>> {
            (0..self.losses.len()).map(|step| values.get(&loss_of(name, step)).copied()).collect()
        };
        self.names().into_iter().find_map(of)
    }

    /// The seconds of one op if a call consists of many, else of the call.
    fn one(&self, seconds: f64) -> f64 {
        match self.work {
            Work::Ops(count) => seconds / count,
            _ => seconds,
        }
    }

    /// The row's figure: a rate or a time.
    pub(crate) fn figure(&self, seconds: f64) -> String {
        match self.work {
            Work::Bytes(bytes) => format!("{:.2} TB/s", bytes / seconds / 1e12),
            Work::Flops(flops) => format!("{:.1} TFLOP/s", flops / seconds / 1e12),
            Work::Ops(_) | Work::Step => time(self.one(seconds)),
        }
    }

    /// The share of the ceiling.
    fn share(&self, ceiling: &Ceiling) -> Option<f64> {
        match self.work {
            Work::Bytes(bytes) => {
                let short = matches!(self.bar, Bar::OfShortCopy(_));
                Some(bytes / self.seconds / if short { ceiling.short_copy } else { ceiling.copy })
            }
            Work::Flops(_) => {
                let direct = ceiling.gemm.iter().find(|(name, _)| *name == self.name)?;
                Some(direct.1 / self.seconds)
            }
            _ => None,
        }
    }

    /// The table cells for the share, the bar, and whether the bar is met.
    pub(crate) fn judged(&self, measured: Measured<'_>) -> String {
        let share =
            self.share(measured.ceiling).map_or("-".into(), |share| format!("{:.0} %", share * 100.0));
        let (bar, verdict) = match self.bar(measured) {
            Some((bar, true)) => (bar, "ok"),
            Some((bar, false)) => (bar, "missed"),
            None => ("-".into(), ""),
        };
        format!("{share} | {bar} | {verdict}")
    }

    /// The bar in words, and whether it is met. None if there is no bar, or if what it refers to was
    /// not measured.
    fn bar(&self, Measured { ceiling, lines, columns }: Measured<'_>) -> Option<(String, bool)> {
        match self.bar {
            Bar::None => None,
            Bar::Rate(least) => {
                let Work::Bytes(bytes) = self.work else { return None };
                Some((format!("{:.1} TB/s", least / 1e12), bytes / self.seconds >= least))
            }
            Bar::OfCopy(least) => {
                Some((format!("{:.0} % of copy", least * 100.0), self.share(ceiling)? >= least))
            }
            Bar::OfShortCopy(least) => {
                Some((format!("{:.0} % of a copy as long", least * 100.0), self.share(ceiling)? >= least))
            }
            // The clock's resolution allows for a hundredth.
            Bar::OfLibrary(least) => {
                Some((format!("{least:.1} of the library"), self.share(ceiling)? >= least - 0.01))
            }
            Bar::Seconds(most) => Some((time(most), self.one(self.seconds) <= most)),
            Bar::OfBf16(most) => {
                let name = self.name.replace(Precision::F16.suffix(), Precision::Bf16.suffix());
                let other = lines.iter().find(|line| line.name == name)?.seconds;
                Some((format!("{most:.2} of bf16"), self.seconds <= most * other))
            }
            Bar::OfTorch(most) => {
                let (_, torch) = columns.iter().find(|(name, _)| name == TORCH)?;
                let other = self.peer(torch)?;
                Some((format!("{most:.2} of {TORCH}"), self.seconds <= most * other))
            }
        }
    }
}

/// The heading: the device on which the rows were measured.
pub(crate) fn heading(device: &hip::Device, ceiling: &Ceiling) -> String {
    let info = device.info();
    let (provider, copy) = (device.provider().kind(), ceiling.copy / 1e12);
    format!("{} ({}) through the {provider} provider; device copy {copy:.2} TB/s\n", info.name, info.arch)
}

/// The table in Markdown. It has a column for each peer with the ratio of the peer's time to this
/// backend's: above 1 this backend is faster.
pub(crate) fn markdown(lines: &[Line], columns: &[Column], ceiling: &Ceiling) -> String {
    let mut text = String::from("| case | burn-rocm | of the ceiling | bar | |");
    let mut rule = String::from("|---|---:|---:|---:|---|");
    for (name, _) in columns {
        let _ = write!(text, " {name} | its time / ours |");
        rule += "---:|---:|";
    }
    text += "\n";
    text += &rule;
    text += "\n";
    for line in lines {
        let figure = line.figure(line.seconds);
        let judged = line.judged(Measured { ceiling, lines, columns });
        let _ = write!(text, "| {} | {figure} | {judged} |", line.name);
        for (_, values) in columns {
            match line.peer(values) {
                Some(seconds) => {
                    let _ = write!(text, " {} | {:.2} |", line.figure(seconds), seconds / line.seconds);
                }
                None => text += " - | - |",
            }
        }
        text += "\n";
    }
    text + &losses(lines, columns)
}

/// The first and the last loss of each peer, side by side, and the largest difference in any step. For
/// a half also whether its losses follow those in f32.
fn losses(lines: &[Line], columns: &[Column]) -> String {
    let mut text = String::new();
    for line in lines {
        let [first, .., last] = line.losses[..] else { continue };
        let steps = line.losses.len() - 1;
        let _ = write!(text, "{}: loss {first:.6}, after {steps} steps {last:.6}", line.name);
        for (name, values) in columns {
            let other = line.peers_losses(values);
            let Some([start, .., end]) = other.as_deref() else { continue };
            let apart = |(a, b): (&f64, &f64)| (a - b).abs() / a.abs().max(b.abs());
            let most = line.losses.iter().zip(other.iter().flatten()).map(apart).fold(0.0, f64::max);
            let _ = write!(text, "; {name} {start:.6} and {end:.6}, at most {most:.1e} apart");
        }
        let rows = lines.iter().map(|line| (line.name.as_str(), line.losses.as_slice()));
        if let Some(distance) = halves::distance(&line.name, &line.losses, rows) {
            let halves::Distance { precision, found, explained } = distance;
            let verdict = if distance.is_explained() { "ok" } else { "missed" };
            let name = precision.name();
            let _ = write!(
                text,
                "; from f32 {found:.1e} of the first loss, {name} explains {explained:.1e}: {verdict}"
            );
        }
        text += "\n";
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

/// The name under which the loss of a case before a step (counted from 0) is reported.
pub(crate) fn loss_of(case: &str, step: usize) -> String {
    format!("loss {step} of {case}")
}

/// CSV with one case on each line: its name and seconds. `--compare` reads the first two columns.
pub(crate) fn csv(lines: &[Line], columns: &[Column]) -> String {
    let mut text = String::from("case,burn-rocm");
    for (name, _) in columns {
        let _ = write!(text, ",{name}");
    }
    text += "\n";
    let mut row = |name: &str, ours: f64, others: Vec<Option<f64>>| {
        let _ = write!(text, "\"{name}\",{ours}");
        for other in others {
            let _ = write!(text, ",{}", other.map_or(String::new(), |other| other.to_string()));
        }
        text += "\n";
    };
    for line in lines {
        row(&line.name, line.seconds, columns.iter().map(|(_, values)| line.peer(values)).collect());
        let losses: Vec<_> = columns.iter().map(|(_, values)| line.peers_losses(values)).collect();
        for (step, &loss) in line.losses.iter().enumerate() {
            let others = losses.iter().map(|losses| losses.as_ref().map(|losses| losses[step])).collect();
            row(&loss_of(&line.name, step), loss, others);
        }
    }
    text
}

/// Parses the output of [`csv`] or of a peer: the first number of each line, by case.
pub(crate) fn parse_csv(text: &str) -> BTreeMap<String, f64> {
    text.lines()
        .filter_map(|line| {
            let (name, rest) = line.strip_prefix('"')?.split_once("\",")?;
            Some((name.to_string(), rest.split(',').next()?.parse().ok()?))
        })
        .collect()
}

/// Reads another run's rows.
///
/// # Errors
/// If the file can't be read or has no rows.
pub(crate) fn read_csv(path: &Path) -> Result<BTreeMap<String, f64>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let rows = parse_csv(&text);
    if rows.is_empty() { Err(format!("{}: no rows of another run", path.display())) } else { Ok(rows) }
}

/// Seconds in a readable unit.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.2} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, bar: Bar, seconds: f64) -> Line {
        Line { name: name.into(), work: Work::Step, bar, seconds, losses: vec![] }
    }

    /// The bar of f16 is the time that bf16 took, not bf16's own bar.
    #[test]
    fn f16_is_judged_by_the_bf16_of_the_same_run() {
        let ceiling = Ceiling { copy: 1.0, short_copy: 1.0, gemm: vec![] };
        let judged = |f16: f64, bf16: Option<f64>| {
            let mut lines = vec![line("MLP, f16, graph", Bar::OfBf16(1.05), f16)];
            lines.extend(bf16.map(|seconds| line("MLP, bf16, graph", Bar::Seconds(100.0), seconds)));
            lines.push(line("MLP, bf16", Bar::None, 1000.0));
            lines[0].judged(Measured { ceiling: &ceiling, lines: &lines, columns: &[] })
        };
        assert_eq!(judged(66.0, Some(61.0)), "- | 1.05 of bf16 | missed");
        assert_eq!(judged(64.0, Some(61.0)), "- | 1.05 of bf16 | ok");
        assert_eq!(judged(66.0, None), "- | - | ");
    }

    #[test]
    fn attention_is_judged_by_the_torch_of_the_same_run() {
        let ceiling = Ceiling { copy: 1.0, short_copy: 1.0, gemm: vec![] };
        let row = line("attention, bf16", Bar::OfTorch(1.25), 5.0);
        let judged = |name: &str, seconds: f64| {
            let column = (name.to_string(), BTreeMap::from([("attention, bf16".to_string(), seconds)]));
            row.judged(Measured { ceiling: &ceiling, lines: &[], columns: &[column] })
        };
        assert_eq!(judged(TORCH, 4.0), "- | 1.25 of PyTorch | ok");
        assert_eq!(judged(TORCH, 3.9), "- | 1.25 of PyTorch | missed");
        assert_eq!(judged("PyTorch, cuDNN", 3.9), "- | - | ");
    }

    /// A row of burn-rocm-nn stands beside the same row of another run, and beside the peers' row for
    /// the same work: in the table, in the CSV, in the picture and for its losses.
    #[test]
    fn a_row_is_compared_with_its_own_name_first() {
        let name = |end: &str| format!("MLP, bf16{end}");
        let row = |end: &str, seconds: f64, losses: [f64; 2]| {
            [(name(end), seconds), (loss_of(&name(end), 0), losses[0]), (loss_of(&name(end), 1), losses[1])]
        };
        let of_run = [row("", 8.0, [4.0, 3.0]), row(", burn-rocm-nn, graph", 2.0, [5.0, 1.0])];
        let columns: [Column; 2] = [
            ("other.csv".into(), of_run.into_iter().flatten().collect()),
            (TORCH.into(), row("", 16.0, [7.0, 6.0]).into()),
        ];
        let losses = vec![5.0, 1.0];
        let lines = [Line { losses, ..line(&name(", burn-rocm-nn, graph"), Bar::OfTorch(0.5), 4.0) }];
        let ceiling = Ceiling { copy: 1.0, short_copy: 1.0, gemm: vec![] };
        let table = markdown(&lines, &columns, &ceiling);
        let cells = "| MLP, bf16, burn-rocm-nn, graph | 4.00 s | - | 0.50 of PyTorch | ok |";
        assert!(table.contains(&format!("{cells} 2.00 s | 0.50 | 16.00 s | 4.00 |")), "{table}");
        assert!(table.contains("other.csv 5.000000 and 1.000000, at most 0.0e0 apart"), "{table}");
        assert!(table.contains("PyTorch 7.000000 and 6.000000"), "{table}");
        let rows = csv(&lines, &columns);
        assert!(rows.contains("\"MLP, bf16, burn-rocm-nn, graph\",4,2,16\n"), "{rows}");
        assert!(rows.contains("\"loss 1 of MLP, bf16, burn-rocm-nn, graph\",1,1,6\n"), "{rows}");
        let path = std::env::temp_dir().join(format!("burn-rocm-bars-{}.svg", std::process::id()));
        super::super::plot::bars(&path, &lines, &columns[1..]).expect("a ratio to PyTorch");
        let drawn = std::fs::read_to_string(&path).expect("a picture");
        std::fs::remove_file(&path).expect("the file goes");
        assert!(drawn.contains("MLP, bf16, burn-rocm-nn, graph"), "{drawn}");
    }

    #[test]
    fn a_half_that_leaves_f32_is_told() {
        let row = |precision: &str, last: f64| {
            let name = format!("CNN Adam step, batch 64{precision}");
            Line { losses: vec![2.0, last], ..line(&name, Bar::None, 1.0) }
        };
        let told = |half: f64| losses(&[row("", 1.0), row(", bf16", half)], &[]);
        assert!(
            told(1.1).contains("from f32 5.0e-2 of the first loss, bf16 explains 7.3e-2: ok"),
            "{}",
            told(1.1)
        );
        assert!(told(1.2).contains("from f32 1.0e-1 of the first loss, bf16 explains 7.3e-2: missed"));
        assert_eq!(told(1.1).matches("from f32").count(), 1);
    }

    #[test]
    fn what_is_written_is_read() {
        let line = Line {
            name: "add, of 3".into(),
            work: Work::Bytes(12.0),
            bar: Bar::None,
            seconds: 0.25,
            losses: vec![1.5],
        };
        let text = csv(&[line], &[("peer".into(), BTreeMap::from([("add, of 3".into(), 0.5)]))]);
        let rows = parse_csv(&text);
        assert_eq!(rows.len(), 2);
        assert_eq!((rows["add, of 3"], rows["loss 0 of add, of 3"]), (0.25, 1.5));
    }
}
