//! One result of timing, and the text that keeps it.

use std::fmt::{self, Display};

/// The first line of each file: what it is, and the version of its format.
const FORMAT: &str = "burn-rocm tuning 1";
/// The first line without the version.
const KIND: &str = "burn-rocm tuning ";

/// The fastest way in which a library has computed a problem, among those that were timed.
#[derive(Debug, Clone, PartialEq)]
pub struct TuningEntry {
    /// The device: its name, architecture and number of compute units.
    pub device: String,
    /// The library and its version, such as `MIOpen 3.5.1`.
    pub library: String,
    /// What was computed, such as a [`ConvProblem`](crate::ConvProblem) as text.
    pub problem: String,
    /// The solution, as the library numbers it. rocBLAS has negative numbers too.
    pub solution: i64,
    /// The bytes of its workspace.
    pub workspace: usize,
    /// The time that it took, in microseconds.
    pub microseconds: f64,
}

/// Why a text is not one of entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NoEntry {
    /// The line, from 1 on.
    pub(crate) line: usize,
    pub(crate) expected: &'static str,
    pub(crate) found: String,
    /// Whether the text is of another version of this format.
    pub(crate) other_version: bool,
}

impl Display for NoEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: expected {}, found {}", self.line, self.expected, self.found)
    }
}

impl Display for TuningEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "device {}", self.device)?;
        writeln!(f, "library {}", self.library)?;
        writeln!(f, "problem {}", self.problem)?;
        writeln!(f, "solution {}", self.solution)?;
        writeln!(f, "workspace {}", self.workspace)?;
        writeln!(f, "microseconds {}", self.microseconds)
    }
}

/// Entries as a file has them, with a line that names the format.
pub(crate) fn text<'a>(entries: impl IntoIterator<Item = &'a TuningEntry>) -> String {
    entries.into_iter().fold(format!("{FORMAT}\n"), |text, entry| text + "\n" + &entry.to_string())
}

/// The entries of a file's text.
pub(crate) fn parse(text: &str) -> Result<Vec<TuningEntry>, NoEntry> {
    let mut lines = Lines { lines: text.split_inclusive('\n').enumerate().peekable(), last: 0 };
    let first = lines.next("`burn-rocm tuning 1`")?;
    if first != FORMAT {
        let other_version = first.starts_with(KIND);
        return Err(NoEntry { other_version, ..lines.error("`burn-rocm tuning 1`", first) });
    }
    let mut entries = Vec::new();
    while lines.is_followed() {
        entries.push(TuningEntry {
            device: lines.field("device", "`device` and a device")?,
            library: lines.field("library", "`library` and a library")?,
            problem: lines.field("problem", "`problem` and a problem")?,
            solution: lines.field("solution", "`solution` and a number")?,
            workspace: lines.field("workspace", "`workspace` and bytes")?,
            microseconds: lines.time()?,
        });
    }
    Ok(entries)
}

struct Lines<'a, I: Iterator<Item = (usize, &'a str)>> {
    lines: std::iter::Peekable<I>,
    /// The number of the last line that was read, from 1 on.
    last: usize,
}

impl<'a, I: Iterator<Item = (usize, &'a str)>> Lines<'a, I> {
    /// Skips empty lines. Whether a line follows.
    fn is_followed(&mut self) -> bool {
        while self.lines.next_if(|(_, line)| line.trim().is_empty()).is_some() {}
        self.lines.peek().is_some()
    }

    /// The next line. The last one must end too, because a file may have been cut.
    fn next(&mut self, expected: &'static str) -> Result<&'a str, NoEntry> {
        let Some((at, line)) = self.lines.next() else {
            self.last += 1;
            return Err(self.error(expected, "the end"));
        };
        self.last = at + 1;
        let whole = line.strip_suffix('\n').ok_or_else(|| self.error("a whole line", line))?;
        Ok(whole.strip_suffix('\r').unwrap_or(whole))
    }

    fn field<T: std::str::FromStr>(&mut self, name: &str, expected: &'static str) -> Result<T, NoEntry> {
        let line = self.next(expected)?;
        let value = line.strip_prefix(name).and_then(|rest| rest.strip_prefix(' '));
        value
            .filter(|value| !value.is_empty())
            .and_then(|value| value.parse().ok())
            .ok_or_else(|| self.error(expected, line))
    }

    fn time(&mut self) -> Result<f64, NoEntry> {
        let expected = "`microseconds` and a number of at least 0";
        let time: f64 = self.field("microseconds", expected)?;
        match time.is_finite() && time >= 0.0 {
            true => Ok(time),
            false => Err(self.error(expected, &time.to_string())),
        }
    }

    fn error(&self, expected: &'static str, found: &str) -> NoEntry {
        NoEntry { line: self.last, expected, found: format!("`{}`", found.trim_end()), other_version: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(problem: &str) -> TuningEntry {
        TuningEntry {
            device: "gfx90a:sramecc+:xnack-, 104 compute units".into(),
            library: "MIOpen 3.5.1".into(),
            problem: problem.into(),
            solution: 89,
            workspace: 1 << 20,
            microseconds: 132.5,
        }
    }

    #[test]
    fn a_text_has_its_entries_again() {
        let entries = [entry("first of all"), TuningEntry { solution: -1234, ..entry("second") }];
        let whole = text(&entries);
        assert_eq!(parse(&whole).unwrap(), entries);
        assert_eq!(parse(&whole.replace('\n', "\r\n")).unwrap(), entries, "as Windows ends lines");
        assert_eq!(parse(&text([])).unwrap(), []);
        assert_eq!(parse(&format!("{whole}\n\n")).unwrap(), entries);
    }

    #[test]
    fn every_cut_is_seen() {
        let whole = text(&[entry("the only")]);
        for length in
            (0..whole.len()).filter(|&length| length != FORMAT.len() + 1 && length != FORMAT.len() + 2)
        {
            assert!(parse(&whole[..length]).is_err(), "{length} bytes of {}", whole.len());
        }
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        let whole = text(&[entry("the only")]);
        for (from, to, line, found) in [
            ("tuning 1", "tuning 2", 1, "`burn-rocm tuning 2`"),
            ("burn-rocm", "another", 1, "`another tuning 1`"),
            ("library ", "libary ", 4, "`libary MIOpen 3.5.1`"),
            ("problem the only", "problem ", 5, "`problem`"),
            ("solution 89", "solution 8.9", 6, "`solution 8.9`"),
            ("workspace 1048576\n", "", 7, "`microseconds 132.5`"),
            ("132.5", "NaN", 8, "`NaN`"),
            ("132.5", "-1", 8, "`-1`"),
        ] {
            let error = parse(&whole.replace(from, to)).unwrap_err();
            assert_eq!((error.line, error.found.as_str()), (line, found), "{from}");
            assert_eq!(error.other_version, to == "tuning 2");
        }
    }
}
