//! The picture of a record: bytes in use over time, as SVG.
//!
//! A crate for plots would be compiled into every app, which may never draw; these areas and two
//! axes are short.

use std::fmt::{self, Display, Write};

use super::{MemoryBy, MemoryRecord};
use crate::memory::summary::{bytes_of, shortened};

/// The area of the plot within the picture, in pixels.
const LEFT: usize = 74;
const TOP: usize = 76;
const WIDTH: usize = 640;
const HEIGHT: usize = 330;
/// The legend, right of the plot.
const LEGEND: usize = LEFT + WIDTH + 24;
const LEGEND_WIDTH: usize = 330;
const SIZE: (usize, usize) = (LEGEND + LEGEND_WIDTH + 16, TOP + HEIGHT + 58);
/// The most characters of a name in the legend.
const NAME: usize = 36;

const FONT: &str = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif";
/// The Okabe-Ito palette, whose colours colour-blind people can tell apart.
const COLOURS: [&str; 7] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
/// The colour of all other keys.
const OTHERS: &str = "#9a9fa6";
const TEXT: &str = "#282c34";
const GRID: &str = "#e1e4e8";
const AXIS: &str = "#969ba2";

/// The units of bytes, and of time in nanoseconds, and how many of the base each is.
const BYTES: [(&str, f64); 5] =
    [("B", 1.0), ("KiB", 1024.0), ("MiB", 1048576.0), ("GiB", 1073741824.0), ("TiB", 1099511627776.0)];
const TIMES: [(&str, f64); 4] = [("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];

/// An axis from 0.
struct Axis {
    unit: &'static str,
    /// How many of the base are one of the unit.
    scale: f64,
    /// Between two ticks, in the unit.
    step: f64,
    /// The end, in the unit.
    end: f64,
}

impl Axis {
    /// Bytes, with a step that is a power of two, up to the first tick above `most`.
    fn bytes(most: usize) -> Self {
        let most = most.max(1) as f64;
        let (unit, scale) = unit(&BYTES, most);
        let step = (most / scale / 6.0).log2().ceil().exp2();
        // There is no half of a byte.
        let step = if scale == 1.0 { step.max(1.0) } else { step };
        Self { unit, scale, step, end: step * ((most / scale / step).floor() + 1.0) }
    }

    /// Time, with a step of 1, 2 or 5 times a power of ten. It ends where the record does.
    fn time(nanos: f64) -> Self {
        let nanos = nanos.max(1.0);
        let (unit, scale) = unit(&TIMES, nanos);
        let end = nanos / scale;
        let power = 10f64.powf((end / 8.0).log10().floor());
        let step = [1.0, 2.0, 5.0].map(|times| times * power).into_iter().find(|step| end / step <= 8.0);
        Self { unit, scale, step: step.unwrap_or(10.0 * power), end }
    }

    /// Each tick's value in the unit, and its place from 0 to 1.
    fn ticks(&self) -> impl Iterator<Item = (f64, f64)> {
        // A last tick that rounding puts beyond the end belongs there.
        let count = (self.end / self.step + 1e-9).floor() as usize;
        (0..=count).map(|number| (number as f64 * self.step, (number as f64 * self.step / self.end).min(1.0)))
    }

    /// A tick's text, with as many digits after the point as the step needs.
    fn text(&self, value: f64) -> String {
        let digits = (0..9).find(|&digits| {
            let shifted = self.step * 10f64.powi(digits);
            (shifted - shifted.round()).abs() < 1e-6
        });
        format!("{value:.*}", digits.unwrap_or(9) as usize)
    }
}

/// The largest unit of which `value` has at least one.
fn unit(units: &[(&'static str, f64)], value: f64) -> (&'static str, f64) {
    let large = units.iter().rev().find(|(_, scale)| value >= *scale);
    large.or(units.first()).copied().unwrap_or(("", 1.0))
}

pub(super) fn draw(record: &MemoryRecord, by: MemoryBy) -> String {
    let mut svg = String::new();
    // Writing to a `String` does not fail.
    let _ = write(&mut svg, record, by);
    svg
}

fn write(svg: &mut String, record: &MemoryRecord, by: MemoryBy) -> fmt::Result {
    let (peak, at) = record.peak();
    let (bytes, time) = (Axis::bytes(peak), Axis::time(record.time.as_nanos() as f64));
    let y =
        |value: usize| TOP as f64 + HEIGHT as f64 * (1.0 - (value as f64 / bytes.scale / bytes.end).min(1.0));
    begin(svg, by)?;

    let keys = record.largest(by, COLOURS.len());
    let columns = record.columns(by, &keys, WIDTH);
    // Each area goes down to 0, and the areas of the keys below are drawn over it.
    for number in (0..=keys.len()).rev() {
        let sum =
            |all: &Vec<usize>| all[..=number].iter().fold(0, |sum: usize, one| sum.saturating_add(*one));
        area(svg, columns.iter().map(sum), &y, colour(number, keys.len()))?;
    }
    axes(svg, &bytes, &time)?;

    let at_peak = record.at_peak(by);
    let of_key = |key: &str| at_peak.iter().find(|one| one.0 == key).map_or(0, |one| one.1);
    let mut rows: Vec<_> = keys.iter().map(|&key| (key, of_key(key))).collect();
    if columns.iter().any(|all| all[keys.len()] > 0) {
        rows.push(("others", rows.iter().fold(peak, |rest, row| rest.saturating_sub(row.1))));
    }
    legend(svg, &rows, keys.len())?;

    let x = LEFT as f64 + WIDTH as f64 * record.share(at);
    // The text stays inside the picture.
    let anchor = if record.share(at) > 0.5 { "end" } else { "start" };
    let (shown, base) = (at.as_nanos() as f64 / time.scale, TOP + HEIGHT);
    writeln!(
        svg,
        r#"<line x1="{x:.1}" x2="{x:.1}" y1="{TOP}" y2="{base}" stroke="{TEXT}" stroke-dasharray="4 3"/>
<circle cx="{x:.1}" cy="{:.1}" r="3.5" fill="{TEXT}"/>
<text x="{x:.1}" y="{}" text-anchor="{anchor}" font-weight="bold">peak {} at {shown:.2} {}</text>"#,
        y(peak),
        TOP - 10,
        bytes_of(peak),
        time.unit
    )?;
    if record.lost > 0 {
        let lost = format!("incomplete: the last {} events were not kept", record.lost);
        text(svg, (LEGEND, TOP + HEIGHT), "start", &lost)?;
    }
    writeln!(svg, "</svg>")
}

fn colour(number: usize, keys: usize) -> &'static str {
    if number < keys { COLOURS[number] } else { OTHERS }
}

/// The background and the title.
fn begin(svg: &mut String, by: MemoryBy) -> fmt::Result {
    let (width, height) = SIZE;
    let by = match by {
        MemoryBy::Label => "label",
        MemoryBy::Op => "op",
    };
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"
font-family="{FONT}" font-size="12" fill="{TEXT}">
<rect width="{width}" height="{height}" fill="white"/>
<text x="{LEFT}" y="30" font-size="17">Device memory in use, by {by}</text>"#
    )
}

/// A number for each column of pixels, as an area down to 0.
fn area(
    svg: &mut String,
    values: impl Iterator<Item = usize>,
    y: &dyn Fn(usize) -> f64,
    colour: &str,
) -> fmt::Result {
    let base = TOP + HEIGHT;
    write!(svg, r#"<path fill="{colour}" shape-rendering="crispEdges" d="M{LEFT} {base}"#)?;
    let mut last = None;
    for (column, value) in values.enumerate() {
        if last != Some(value) {
            write!(svg, "H{}V{:.1}", LEFT + column, y(value))?;
            last = Some(value);
        }
    }
    writeln!(svg, r#"H{}V{base}Z"/>"#, LEFT + WIDTH)
}

/// Both axes with their ticks, and the grid's lines over the areas.
fn axes(svg: &mut String, bytes: &Axis, time: &Axis) -> fmt::Result {
    let (right, base) = (LEFT + WIDTH, TOP + HEIGHT);
    for (value, place) in bytes.ticks() {
        let y = TOP as f64 + HEIGHT as f64 * (1.0 - place);
        writeln!(
            svg,
            r#"<line x1="{LEFT}" x2="{right}" y1="{y:.1}" y2="{y:.1}" stroke="{GRID}" stroke-opacity="0.6"/>
<text x="{}" y="{:.1}" text-anchor="end">{}</text>"#,
            LEFT - 8,
            y + 4.0,
            bytes.text(value)
        )?;
    }
    for (value, place) in time.ticks() {
        let x = LEFT as f64 + WIDTH as f64 * place;
        writeln!(
            svg,
            r#"<line x1="{x:.1}" x2="{x:.1}" y1="{base}" y2="{}" stroke="{AXIS}"/>
<text x="{x:.1}" y="{}" text-anchor="middle">{}</text>"#,
            base + 5,
            base + 20,
            time.text(value)
        )?;
    }
    writeln!(svg, r#"<path fill="none" stroke="{AXIS}" d="M{LEFT} {TOP}V{base}H{right}"/>"#)?;
    text(svg, (LEFT + WIDTH / 2, base + 44), "middle", &format!("time ({})", time.unit))?;
    writeln!(
        svg,
        r#"<text transform="translate(18 {}) rotate(-90)" text-anchor="middle">bytes in use ({})</text>"#,
        TOP + HEIGHT / 2,
        bytes.unit
    )
}

/// The keys with their bytes, in the order of the areas: the lowest area is the last row.
fn legend(svg: &mut String, rows: &[(&str, usize)], keys: usize) -> fmt::Result {
    let right = LEGEND + LEGEND_WIDTH;
    writeln!(svg, r##"<g fill="#6a7079">"##)?;
    text(svg, (right, TOP - 10), "end", "bytes at the peak")?;
    writeln!(svg, "</g>")?;
    for (row, (number, &(name, bytes))) in rows.iter().enumerate().rev().enumerate() {
        let y = TOP + 20 * row;
        let colour = colour(number, keys);
        writeln!(svg, r#"<rect x="{LEGEND}" y="{y}" width="12" height="12" fill="{colour}"/>"#)?;
        text(svg, (LEGEND + 20, y + 10), "start", &shortened(name, NAME))?;
        text(svg, (right, y + 10), "end", &bytes_of(bytes))?;
    }
    Ok(())
}

fn text(svg: &mut String, (x, y): (usize, usize), anchor: &str, text: &str) -> fmt::Result {
    writeln!(svg, r#"<text x="{x}" y="{y}" text-anchor="{anchor}">{}</text>"#, Xml(text))
}

/// A text in XML.
struct Xml<'a>(&'a str);

impl Display for Xml<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for char in self.0.chars() {
            match char {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                // XML 1.0 has no other control characters, nor these two.
                '\0'..' ' | '\u{fffe}' | '\u{ffff}' => f.write_char('\u{fffd}')?,
                _ => f.write_char(char)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{event, sample};
    use super::*;

    fn ticks(axis: &Axis) -> Vec<String> {
        axis.ticks().map(|(value, _)| axis.text(value)).collect()
    }

    #[test]
    fn steps_of_bytes_are_powers_of_two() {
        for (most, unit, expected) in [
            (0, "B", &["0", "1", "2"][..]),
            (5, "B", &["0", "1", "2", "3", "4", "5", "6"]),
            (1023, "B", &["0", "256", "512", "768", "1024"]),
            (1536, "KiB", &["0.00", "0.25", "0.50", "0.75", "1.00", "1.25", "1.50", "1.75"]),
            (11 << 20, "MiB", &["0", "2", "4", "6", "8", "10", "12"]),
            (80 << 30, "GiB", &["0", "16", "32", "48", "64", "80", "96"]),
        ] {
            let axis = Axis::bytes(most);
            assert_eq!((axis.unit, ticks(&axis)), (unit, expected.iter().map(|t| t.to_string()).collect()));
            assert!(axis.end * axis.scale > most as f64);
        }
    }

    #[test]
    fn steps_of_time_are_round() {
        for (nanos, unit, expected) in [
            (0.0, "ns", &["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"][..]),
            (37_000.0, "µs", &["0", "5", "10", "15", "20", "25", "30", "35"]),
            (1_000_000.0, "ms", &["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
            (3.2e9, "s", &["0.0", "0.5", "1.0", "1.5", "2.0", "2.5", "3.0"]),
            (7.2e12, "s", &["0", "1000", "2000", "3000", "4000", "5000", "6000", "7000"]),
        ] {
            let axis = Axis::time(nanos);
            assert_eq!((axis.unit, ticks(&axis)), (unit, expected.iter().map(|t| t.to_string()).collect()));
        }
    }

    #[test]
    fn the_picture_names_its_keys_and_the_peak() {
        let svg = sample().svg(MemoryBy::Label);
        for part in ["peak 325 B at 4.00 ms", "b&lt;c&gt;", "bytes in use (B)", "time (ms)", "by label"] {
            assert!(svg.contains(part), "`{part}` in {svg}");
        }
        assert!(!svg.contains("others") && !svg.contains("incomplete"), "{svg}");
        let events = (0..9).map(|number| event(1, 100 - number, true, &format!("key {number}"))).collect();
        let record = MemoryRecord { before: Vec::new(), events, time: Duration::from_millis(2), lost: 3 };
        let svg = record.svg(MemoryBy::Label);
        assert!(svg.contains("others") && svg.contains(">185 B<") && svg.contains("last 3 events"), "{svg}");
        assert!(svg.contains("key 6") && !svg.contains("key 7"), "{svg}");
    }

    #[test]
    fn any_record_can_be_drawn() {
        let empty = |time| MemoryRecord { before: Vec::new(), events: Vec::new(), time, lost: 0 };
        let mut large = empty(Duration::from_secs(1 << 40));
        large.before = vec![event(0, usize::MAX, true, &"a\u{1}\n".repeat(40)); 2];
        for record in [empty(Duration::ZERO), empty(Duration::from_nanos(1)), large] {
            for by in [MemoryBy::Label, MemoryBy::Op] {
                let svg = record.svg(by);
                assert!(!svg.contains("NaN") && !svg.contains("inf") && svg.ends_with("</svg>\n"), "{svg}");
            }
        }
    }
}
