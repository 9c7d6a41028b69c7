//! Published figures of the chips, and the shares that are fitted from half of them.

use super::chips::{CHIPS, Chip, MatrixType};
use super::cost::{self, Place, Resource, Shares, Work};
use crate::median::median;

/// The figures: what was measured, and the work behind it. `docs/decisions/033-a-cost-model.md`
/// says how each column was derived.
const FIGURES: &str = include_str!("figures.csv");

/// Fewer figures than this give a chip no estimate.
const ENOUGH: usize = 5;
/// A chip whose median error is not below this gets no estimate.
pub(crate) const BAR: f64 = 0.4;

/// A published figure.
#[derive(Debug)]
pub(crate) struct Figure {
    /// The chip's place in [`CHIPS`].
    chip: usize,
    kernel: &'static str,
    seconds: f64,
    work: Work,
    /// Whether shares are fitted from it; the others check them.
    fit: bool,
}

/// How well the model does on a chip.
#[derive(Debug)]
pub(crate) struct Trust {
    pub(crate) shares: Shares,
    /// Figures of the chip.
    pub(crate) figures: usize,
    /// Of these, the ones that check.
    pub(crate) checked: usize,
    /// Of the checks, those of a kernel that a figure of the fit measured on another device.
    pub(crate) repeated: usize,
    /// The median of their errors, of the figure.
    pub(crate) error: f64,
    /// The largest error, and its kernel.
    pub(crate) worst: (f64, &'static str),
    /// The resources that limit a figure which checks.
    pub(crate) covered: Vec<Resource>,
}

impl Trust {
    /// Whether the model may say anything about the chip.
    pub(crate) fn holds(&self) -> bool {
        self.figures >= ENOUGH && self.error < BAR
    }

    /// The mark of the error if most checks repeat a kernel of the fit on another device. The error is
    /// then little more than the difference between two devices.
    pub(crate) fn mark(&self) -> &'static str {
        if 2 * self.repeated > self.checked { " †" } else { "" }
    }
}

/// Reads the figures. Each second one of those that the same resource of a chip limits is for fitting, from the first.
///
/// # Panics
///
/// If the file, which is part of the program, is not well formed.
pub(crate) fn figures() -> Vec<Figure> {
    let mut seen = [[0usize; Resource::ALL.len()]; CHIPS.len()];
    FIGURES
        .lines()
        .skip(1)
        .map(|line| {
            let mut figure = parse(line).unwrap_or_else(|| panic!("figures.csv: {line}"));
            let bound = figure.ideal().bound as usize;
            let count = &mut seen[figure.chip][bound];
            figure.fit = count.is_multiple_of(2);
            *count += 1;
            figure
        })
        .collect()
}

fn parse(line: &'static str) -> Option<Figure> {
    let fields: Vec<&str> = line.split(',').collect();
    let (figure, work) = fields.split_at_checked(5)?;
    let [chip, kernel, measured, unit, useful] = figure[..] else {
        return None;
    };
    let [memory, place, lines, vector, slow, lds, matrix, flops, _source] = work[..] else {
        return None;
    };
    let number = |text: &str| text.parse::<f64>().ok();
    let (measured, useful) = (number(measured)?, number(useful)?);
    let seconds = match unit {
        "ms" => measured * 1e-3,
        "GB/s" | "GFLOP/s" => useful / (measured * 1e9),
        // Millions of updates a second.
        "MUP/s" => useful / (measured * 1e6),
        _ => return None,
    };
    let matrix = match matrix {
        "" => None,
        "f16" => Some(MatrixType::Half),
        "f32" => Some(MatrixType::F32),
        "f64" => Some(MatrixType::F64),
        _ => return None,
    };
    let work = Work {
        memory: number(memory)?,
        place: if place == "cache" { Place::Cached } else { Place::Memory },
        lines: number(lines)?,
        missed: if place == "first" { 0.0 } else { 64.0 * number(lines)? },
        vector: number(vector)?,
        slow: number(slow)?,
        lds: number(lds)?,
        matrix: matrix.zip(number(flops)),
        ..Work::default()
    };
    let chip = CHIPS.iter().position(|known| known.name == chip)?;
    Some(Figure { chip, kernel, seconds, work, fit: false })
}

impl Figure {
    fn chip(&self) -> &'static Chip {
        &CHIPS[self.chip]
    }

    /// The kernel's name before and after the number of the device, if the name has one.
    fn of_a_device(&self) -> Option<(&'static str, &'static str)> {
        let (before, rest) = self.kernel.split_once("device ")?;
        Some((before, rest.split_once(' ')?.1))
    }

    fn ideal(&self) -> cost::Estimate {
        cost::estimate(&self.work, self.chip(), &Shares::PEAK)
    }

    /// The share of the peak of the resource that limits it.
    fn share(&self) -> f64 {
        let launch = self.chip().launch;
        // A figure that is shorter than a launch would be a figure of something else.
        (self.ideal().seconds - launch) / (self.seconds - launch).max(1e-9)
    }

    /// The model's error, as a part of the figure.
    fn error(&self, shares: &Shares) -> f64 {
        cost::estimate(&self.work, self.chip(), shares).seconds / self.seconds - 1.0
    }
}

/// The shares of a chip: of each resource the median over its own figures for fitting if it has at
/// least two, else over those of its family, else those of all chips, else 1. A launch's time is a
/// fact of the chip.
fn shares(chip: &Chip, figures: &[Figure]) -> Shares {
    Shares(Resource::ALL.map(|resource| {
        if resource == Resource::Launch {
            return 1.0;
        }
        let of = |wanted: &dyn Fn(&Chip) -> bool| -> Vec<f64> {
            let fits =
                |figure: &&Figure| figure.fit && wanted(figure.chip()) && figure.ideal().bound == resource;
            figures.iter().filter(fits).map(Figure::share).collect()
        };
        let own = of(&|other| other.name == chip.name);
        let family = of(&|other| other.family == chip.family);
        let share =
            if own.len() > 1 { median(own) } else { median(family).or_else(|| median(of(&|_| true))) };
        share.unwrap_or(1.0)
    }))
}

/// Fits the chip's shares, and holds the model against the figures that were not used.
pub(crate) fn trust(chip: &Chip, figures: &[Figure]) -> Trust {
    let shares = shares(chip, figures);
    let own = || figures.iter().filter(|figure| figure.chip().name == chip.name);
    let checks = || own().filter(|figure| !figure.fit);
    let fitted: Vec<_> = own().filter(|figure| figure.fit).filter_map(Figure::of_a_device).collect();
    let is_repeated = |figure: &&Figure| figure.of_a_device().is_some_and(|name| fitted.contains(&name));
    let errors: Vec<f64> = checks().map(|figure| figure.error(&shares).abs()).collect();
    let worst = checks().map(|figure| (figure.error(&shares), figure.kernel));
    let mut covered = Vec::new();
    for figure in checks() {
        let bound = cost::estimate(&figure.work, chip, &shares).bound;
        if !covered.contains(&bound) {
            covered.push(bound);
        }
    }
    covered.sort_by_key(|&resource| resource as usize);
    Trust {
        shares,
        figures: own().count(),
        checked: errors.len(),
        repeated: checks().filter(is_repeated).count(),
        worst: worst.fold((0.0, ""), |worst, next| if next.0.abs() > worst.0.abs() { next } else { worst }),
        error: median(errors).unwrap_or(f64::INFINITY),
        covered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_source() {
        let sources: Vec<&str> =
            include_str!("sources.csv").lines().skip(1).filter_map(|line| line.split(',').next()).collect();
        for line in FIGURES.lines().skip(1) {
            let source = line.rsplit(',').next().expect("a last column");
            assert!(sources.contains(&source), "{source} of {line}");
        }
    }

    /// The split that decision 033 documents. Of an odd number of figures that one resource limits,
    /// the fit has one more than the checks.
    #[test]
    fn half_of_each_chips_figures_check() {
        let expected = [
            ("MI300X", 8, 19),
            ("MI250X", 9, 19),
            ("RX 7900 XTX", 8, 18),
            ("RX 6900 XT", 10, 21),
            ("MI210", 11, 22),
        ];
        let figures = figures();
        let split = CHIPS.each_ref().map(|chip| {
            let trust = trust(chip, &figures);
            (chip.name, trust.checked, trust.figures)
        });
        assert_eq!(split, expected);
        for chip in &CHIPS {
            for resource in Resource::ALL {
                let limited: Vec<&Figure> = figures
                    .iter()
                    .filter(|figure| figure.chip().name == chip.name && figure.ideal().bound == resource)
                    .collect();
                let checks = limited.iter().filter(|figure| !figure.fit).count();
                assert_eq!(checks, limited.len() / 2, "{}, {}", chip.name, resource.name());
            }
        }
    }

    /// Seven of MI210's checks have a kernel that the fit has from the node's other device.
    #[test]
    fn checks_that_repeat_the_fit_on_another_device_are_marked() {
        let figures = figures();
        for chip in &CHIPS {
            let trust = trust(chip, &figures);
            let repeated = if chip.name == "MI210" { 7 } else { 0 };
            assert_eq!(trust.repeated, repeated, "{}: {trust:?}", chip.name);
            assert_eq!(trust.mark().is_empty(), repeated == 0, "{}", chip.name);
        }
    }

    #[test]
    fn figures_become_seconds() {
        let figure =
            parse("RX 6900 XT,copy,500,GB/s,1000000000,2000000000,dram,0,0,0,0,,0,none").expect("a figure");
        assert_eq!(figure.seconds, 1e9 / 500e9);
        assert_eq!(figure.work.memory, 2e9);
        assert!(parse("RX 1,copy,500,GB/s,1,1,dram,0,0,0,0,,0,none").is_none());
        assert!(parse("RX 6900 XT,copy,500,mph,1,1,dram,0,0,0,0,,0,none").is_none());
    }

    #[test]
    fn a_share_is_the_median_of_the_chips_own_figures() {
        let line = |rate: &str| -> &'static str {
            format!("RX 6900 XT,copy,{rate},GB/s,512000000000,512000000000,dram,0,0,0,0,,0,none").leak()
        };
        let fit = |rate| {
            let mut figure = parse(line(rate)).expect("a figure");
            figure.fit = true;
            figure
        };
        let figures = [fit("256"), fit("384"), fit("128")];
        let got = shares(&CHIPS[3], &figures);
        assert!((got.of(Resource::Memory) - 0.5).abs() < 1e-5, "{got:?}");
        // Of the same family, and of none.
        assert!((shares(&CHIPS[2], &figures).of(Resource::Memory) - 0.5).abs() < 1e-5);
        assert_eq!(got.of(Resource::Lds), 1.0);
    }

    /// Prints each figure beside the model's; `cargo test -p benches figures -- --nocapture` shows
    /// it.
    #[test]
    fn the_error_of_each_chip_is_below_the_bar() {
        let figures = figures();
        for chip in &CHIPS {
            let trust = trust(chip, &figures);
            println!("{}: {trust:?}", chip.name);
            for figure in figures.iter().filter(|figure| figure.chip().name == chip.name) {
                let half = if figure.fit { "fit" } else { "check" };
                let error = 100.0 * figure.error(&trust.shares);
                println!("  {half:5} {:45} {:10.4} ms {error:+6.1} %", figure.kernel, 1e3 * figure.seconds);
            }
            assert!(trust.error < BAR, "{}: {:.2}", chip.name, trust.error);
        }
    }
}
