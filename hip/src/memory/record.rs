//! Records of a pool's allocations over time, and their picture.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};
use std::time::Duration;

use crate::memory::summary::bytes_of;

/// How a [`MemoryRecord`] divides the bytes in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryBy {
    /// By the path of [labels](crate::memory_label).
    Label,
    /// By the op that allocated the block, if [ops were tracked](crate::memory_track_ops).
    Op,
}

/// A block that was handed out or handed back.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryEvent {
    /// The time since the record began.
    pub at: Duration,
    /// The block's bytes.
    pub bytes: usize,
    /// Whether the block was handed out. Otherwise it was handed back.
    pub allocated: bool,
    /// The label under which the block was allocated.
    pub label: String,
    /// The op that allocated it.
    pub op: String,
}

impl MemoryEvent {
    fn key(&self, by: MemoryBy) -> &str {
        match by {
            MemoryBy::Label => &self.label,
            MemoryBy::Op => &self.op,
        }
    }
}

/// The allocations of a pool over some time; see
/// [`MemoryPool::record`](crate::MemoryPool::record).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryRecord {
    /// The blocks that were in use when the record began, as if they were handed out then.
    pub before: Vec<MemoryEvent>,
    /// What happened since, in order.
    pub events: Vec<MemoryEvent>,
    /// How long the record took.
    pub time: Duration,
    /// Events that were not kept, because the pool keeps up to 2^20 of them. They are the last ones.
    pub lost: u64,
}

/// The picture's area, in pixels.
const LEFT: usize = 80;
const TOP: usize = 44;
const WIDTH: usize = 720;
const HEIGHT: usize = 340;
/// Keys with a colour of their own. The rest share one.
const COLOURS: [&str; 8] =
    ["#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#eeca3b", "#9d755d"];
const REST: &str = "#9a9fa6";

impl MemoryRecord {
    /// The most bytes in use at once, and when.
    pub fn peak(&self) -> (usize, Duration) {
        let mut bytes: usize = self.before.iter().map(|event| event.bytes).sum();
        let mut peak = (bytes, Duration::ZERO);
        for event in &self.events {
            bytes = if event.allocated { bytes + event.bytes } else { bytes - event.bytes };
            if bytes > peak.0 {
                peak = (bytes, event.at);
            }
        }
        peak
    }

    /// The bytes in use by key at the peak, the largest first.
    pub fn at_peak(&self, by: MemoryBy) -> Vec<(String, usize)> {
        let (peak, _) = self.peak();
        let mut sums = Sums::new(&self.before, by);
        let mut events = self.events.iter();
        while sums.total != peak {
            let Some(event) = events.next() else { break };
            sums.apply(event, by);
        }
        let mut all: Vec<_> = sums
            .by_key
            .iter()
            .map(|(&key, &bytes)| (key.to_owned(), bytes))
            .filter(|one| one.1 > 0)
            .collect();
        all.sort_by_key(|one| std::cmp::Reverse(one.1));
        all
    }

    /// The bytes in use over time as an SVG picture, stacked by key, with the peak marked. Each
    /// column of pixels shows the moment of its time with the most bytes in use, so no peak is
    /// lost.
    pub fn svg(&self, by: MemoryBy) -> String {
        let (peak, at) = self.peak();
        let keys: Vec<String> =
            self.at_peak(by).into_iter().map(|(key, _)| key).take(COLOURS.len()).collect();
        let columns = self.columns(by, &keys);
        let top = peak.max(1) as f64 * 1.08;
        let y = |bytes: usize| TOP as f64 + HEIGHT as f64 * (1.0 - bytes as f64 / top);
        let mut svg = String::new();
        // Writing to a `String` does not fail.
        let _ = self.frame(&mut svg, peak, &y);
        let mut below = vec![0; columns.len()];
        for number in 0..=keys.len() {
            let above: Vec<usize> = columns.iter().zip(&below).map(|(all, low)| low + all[number]).collect();
            let name = keys.get(number).map_or("others", |key| key);
            let colour = COLOURS.get(number).filter(|_| number < keys.len()).unwrap_or(&REST);
            if above != below {
                let _ = area(&mut svg, &above, &below, &y, colour);
                let at = TOP + 8 + 20 * number;
                let _ = write!(
                    svg,
                    "<rect x=\"{}\" y=\"{at}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\n\
                    <text x=\"{}\" y=\"{}\">{}</text>\n",
                    LEFT + WIDTH + 16,
                    LEFT + WIDTH + 34,
                    at + 10,
                    Xml(name)
                );
            }
            below = above;
        }
        let x = LEFT as f64 + WIDTH as f64 * share(at, self.time);
        // The text stays inside the picture.
        let anchor = if share(at, self.time) > 0.5 { "end" } else { "start" };
        let _ = write!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{}\" stroke=\"#222\" stroke-dasharray=\"4 3\"/>\n\
            <circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"#222\"/>\n\
            <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"{anchor}\" font-weight=\"bold\">peak {} at {:.3} ms</text>\n\
            </svg>\n",
            TOP + HEIGHT,
            y(peak),
            TOP - 8,
            bytes_of(peak),
            at.as_secs_f64() * 1e3
        );
        svg
    }

    /// For each column of pixels, the bytes of each key, and of all others, when most bytes were in
    /// use.
    fn columns(&self, by: MemoryBy, keys: &[String]) -> Vec<Vec<usize>> {
        let mut sums = Sums::new(&self.before, by);
        let mut events = self.events.iter().peekable();
        (0..WIDTH)
            .map(|column| {
                let mut most = sums.of(keys);
                let mut total = sums.total;
                let in_column = |event: &&MemoryEvent| {
                    column + 1 == WIDTH || share(event.at, self.time) * (WIDTH as f64) < (column + 1) as f64
                };
                while let Some(event) = events.next_if(in_column) {
                    sums.apply(event, by);
                    if sums.total > total {
                        (most, total) = (sums.of(keys), sums.total);
                    }
                }
                most
            })
            .collect()
    }

    /// The background, the axes and their texts.
    fn frame(&self, svg: &mut String, peak: usize, y: &dyn Fn(usize) -> f64) -> fmt::Result {
        let (width, height) = (LEFT + WIDTH + 260, TOP + HEIGHT + 50);
        writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
            viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
            <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>"
        )?;
        for quarter in 0..=4 {
            let bytes = peak / 4 * quarter;
            let at = y(bytes);
            writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\n\
                <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT + WIDTH,
                LEFT - 8,
                at + 4.0,
                bytes_of(bytes)
            )?;
            let (x, time) = (LEFT + WIDTH * quarter / 4, self.time.as_secs_f64() * 250.0 * quarter as f64);
            writeln!(
                svg,
                "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{time:.2} ms</text>",
                TOP + HEIGHT + 20
            )?;
        }
        Ok(())
    }
}

/// The area between two lines of one value for each column of pixels.
fn area(
    svg: &mut String,
    above: &[usize],
    below: &[usize],
    y: &dyn Fn(usize) -> f64,
    colour: &str,
) -> fmt::Result {
    write!(svg, "<path fill=\"{colour}\" d=\"M")?;
    for (column, &bytes) in above.iter().enumerate() {
        write!(svg, "{} {:.1} {} {:.1} ", LEFT + column, y(bytes), LEFT + column + 1, y(bytes))?;
    }
    for (column, &bytes) in below.iter().enumerate().rev() {
        write!(svg, "{} {:.1} {} {:.1} ", LEFT + column + 1, y(bytes), LEFT + column, y(bytes))?;
    }
    writeln!(svg, "Z\"/>")
}

fn share(at: Duration, all: Duration) -> f64 {
    if all.is_zero() { 0.0 } else { (at.as_secs_f64() / all.as_secs_f64()).min(1.0) }
}

/// Bytes in use by key.
struct Sums<'a> {
    by_key: BTreeMap<&'a str, usize>,
    total: usize,
}

impl<'a> Sums<'a> {
    fn new(before: &'a [MemoryEvent], by: MemoryBy) -> Self {
        let mut sums = Self { by_key: BTreeMap::new(), total: 0 };
        before.iter().for_each(|event| sums.apply(event, by));
        sums
    }

    fn apply(&mut self, event: &'a MemoryEvent, by: MemoryBy) {
        let bytes = self.by_key.entry(event.key(by)).or_default();
        for sum in [bytes, &mut self.total] {
            *sum = if event.allocated { *sum + event.bytes } else { *sum - event.bytes };
        }
    }

    /// The bytes of each key, then those of all others.
    fn of(&self, keys: &[String]) -> Vec<usize> {
        let mut all: Vec<usize> =
            keys.iter().map(|key| self.by_key.get(&**key).copied().unwrap_or(0)).collect();
        all.push(self.total - all.iter().sum::<usize>());
        all
    }
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
                // XML 1.0 has no other control characters.
                '\0'..' ' => f.write_char('\u{fffd}')?,
                _ => f.write_char(char)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at: u64, bytes: usize, allocated: bool, label: &str) -> MemoryEvent {
        let at = Duration::from_millis(at);
        MemoryEvent { at, bytes, allocated, label: label.into(), op: "op".into() }
    }

    #[test]
    fn the_peak_is_where_most_bytes_were_in_use() {
        let before = vec![event(0, 100, true, "a")];
        let events = vec![
            event(1, 50, true, "b<c>"),
            event(2, 100, false, "a"),
            event(3, 75, true, "b<c>"),
            event(4, 200, true, "d"),
            event(4, 200, false, "d"),
        ];
        let record = MemoryRecord { before, events, time: Duration::from_millis(10), lost: 0 };
        assert_eq!(record.peak(), (325, Duration::from_millis(4)));
        assert_eq!(record.at_peak(MemoryBy::Label), [("d".into(), 200), ("b<c>".into(), 125)]);
        assert_eq!(record.at_peak(MemoryBy::Op), [("op".into(), 325)]);
        // A block that lives for no time at all is in its column.
        let columns = record.columns(MemoryBy::Label, &["d".into()]);
        assert_eq!(columns[WIDTH * 4 / 10], [200, 125]);
        assert_eq!([&columns[0], &columns[WIDTH - 1]], [&vec![0, 100], &vec![0, 125]]);
        let svg = record.svg(MemoryBy::Label);
        assert!(svg.contains("peak 325 B at 4.000 ms") && svg.contains("b&lt;c&gt;"), "{svg}");
    }
}
