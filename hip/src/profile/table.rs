//! A profile as a table.

use std::fmt::{self, Display};
use std::time::Duration;

use crate::profile::report::{Detail, Profile, Row};

/// The most rows; those with the longest totals are shown.
const MOST_ROWS: usize = 60;

/// The most characters of a column of text.
const MOST_CHARS: usize = 44;

impl Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wall = self.wall();
        writeln!(f, "profile of {}", time(wall))?;
        for device in self.devices() {
            let share = share(device.total, wall);
            write!(f, "device {}: {} of work ({share} of the time)", device.device, time(device.total))?;
            match device.bandwidth {
                Some(rate) => writeln!(f, ", memory {} GB/s", number(rate / 1e9))?,
                None => writeln!(f)?,
            }
        }
        if !self.regions().is_empty() {
            let mut table = Table::new(&["region", "calls", "host", "device"], 1);
            for region in self.regions() {
                let [host, device] = [region.host, region.device].map(time);
                table.add([cut(&region.path), region.calls.to_string(), host, device].into());
            }
            write!(f, "\n{table}")?;
        }
        let rows = self.rows(Detail::CallSite);
        let several = self.devices().len() > 1;
        let texts = if several { 6 } else { 5 };
        let heads = [
            "device",
            "op",
            "dtype",
            "work",
            "shapes",
            "call site",
            "calls",
            "total",
            "share",
            "average",
            "least",
            "most",
            "bytes",
            "GB/s",
            "of memory",
            "GFLOP/s",
        ];
        let mut table = Table::new(&heads[usize::from(!several)..], texts);
        let all: Duration = rows.iter().map(|row| row.total).sum();
        for row in rows.iter().take(MOST_ROWS) {
            let cells = self.cells(row, all);
            table.add(cells.into_iter().skip(usize::from(!several)).collect());
            for (name, count) in &row.contains {
                let mut cells = vec![String::new(); heads.len() - usize::from(!several)];
                cells[texts - 3] = cut(&format!("  {count} x {name}"));
                table.add(cells);
            }
        }
        write!(f, "\n{table}")?;
        if let Some(rest) = rows.get(MOST_ROWS..).filter(|rest| !rest.is_empty()) {
            let total = rest.iter().map(|row| row.total).sum();
            writeln!(f, "{} more rows with {} ({})", rest.len(), time(total), share(total, all))?;
        }
        let sum = |of: fn(&Row) -> u64| rows.iter().map(of).sum::<u64>();
        let (calls, timed, shared) = (sum(|row| row.calls), sum(|row| row.timed), sum(|row| row.shared));
        if shared > 0 {
            writeln!(f, "{shared} calls of {calls} shared events; each has its part of their time")?;
        }
        if calls > timed {
            writeln!(f, "the time of {} calls of {calls} is not known", calls - timed)?;
        }
        Ok(())
    }
}

impl Profile {
    fn cells(&self, row: &Row, all: Duration) -> [String; 16] {
        let memory = self.devices().iter().find(|device| device.device == row.device);
        let memory = memory.and_then(|device| device.bandwidth);
        let (bytes, flops) = (row.bytes_per_second(), row.flops_per_second());
        let of_memory = bytes.zip(memory).map(|(rate, most)| format!("{:.0} %", 100.0 * rate / most));
        let giga = |rate: Option<f64>| rate.map(|rate| number(rate / 1e9)).unwrap_or_default();
        [
            row.device.to_string(),
            cut(&row.op),
            row.dtype.to_owned(),
            cut(&row.work),
            cut(&row.shapes),
            cut(&row.site),
            row.calls.to_string(),
            time(row.total),
            share(row.total, all),
            time(row.average()),
            time(row.least),
            time(row.most),
            row.bytes.map(bytes_of).unwrap_or_default(),
            giga(bytes),
            of_memory.unwrap_or_default(),
            giga(flops),
        ]
    }
}

/// Three digits or more.
fn number(value: f64) -> String {
    match value {
        0.0..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn bytes_of(bytes: u64) -> String {
    match bytes {
        0..1000 => format!("{bytes} B"),
        1000..1_000_000 => format!("{} KB", number(bytes as f64 / 1e3)),
        1_000_000..1_000_000_000 => format!("{} MB", number(bytes as f64 / 1e6)),
        _ => format!("{} GB", number(bytes as f64 / 1e9)),
    }
}

fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        1.0.. => format!("{} s", number(seconds)),
        1e-3.. => format!("{} ms", number(seconds * 1e3)),
        _ => format!("{} us", number(seconds * 1e6)),
    }
}

fn share(part: Duration, all: Duration) -> String {
    match all.is_zero() {
        true => String::new(),
        false => format!("{:.1} %", 100.0 * part.as_secs_f64() / all.as_secs_f64()),
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(MOST_CHARS) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}~", &text[..at]),
    }
}

/// Columns as wide as their widest cell: first texts, then numbers.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    texts: usize,
}

impl Table {
    /// `texts`: how many columns from the left hold text.
    pub(crate) fn new(heads: &[&str], texts: usize) -> Self {
        Self { rows: vec![heads.iter().map(|head| (*head).to_owned()).collect()], texts }
    }

    pub(crate) fn add(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize, rows: &[Vec<String>]| {
            rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        // A column that has nothing but its head is left out.
        let shown: Vec<(usize, usize)> = (0..columns)
            .filter(|&column| column == 0 || width(column, &self.rows[1..]) > 0)
            .map(|column| (column, width(column, &self.rows)))
            .collect();
        for row in &self.rows {
            let mut line = String::new();
            for &(column, width) in &shown {
                let space = if line.is_empty() { "" } else { "  " };
                line += &match column < self.texts {
                    true => format!("{space}{:<width$}", row[column]),
                    false => format!("{space}{:>width$}", row[column]),
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([0.0, 9.994, 12.345, 3351.2].map(number), ["0.00", "9.99", "12.3", "3351"]);
        let times = [1_500_000_000, 2_000_000, 999, 0].map(|nanos| time(Duration::from_nanos(nanos)));
        assert_eq!(times, ["1.50 s", "2.00 ms", "1.00 us", "0.00 us"]);
        assert_eq!([999, 1_000, 3_200_000_000].map(bytes_of), ["999 B", "1.00 KB", "3.20 GB"]);
    }

    #[test]
    fn columns_line_up_and_empty_ones_are_left_out() {
        let mut table = Table::new(&["op", "empty", "calls"], 2);
        table.add(vec!["float_add".into(), String::new(), "7".into()]);
        table.add(vec!["a".into(), String::new(), "1234567".into()]);
        let lines = ["op           calls", "float_add        7", "a          1234567", ""];
        assert_eq!(table.to_string(), lines.join("\n"));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(cut("ä"), "ä");
        let long = "ä".repeat(MOST_CHARS + 1);
        assert_eq!(cut(&long), format!("{}~", "ä".repeat(MOST_CHARS)));
    }
}
