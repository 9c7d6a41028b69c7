//! CUPTI's record joined with a profile: which of the GPU's activities were launched by a piece of
//! work that the profile names.
//!
//! No clock is compared. CUPTI numbers each call of the driver and of the runtime (its
//! correlation). An activity has the correlation of the call that launched it. A link says which
//! piece of the profile's work the calling thread had open during a call. The kernels of a graph
//! have the correlation of the graph's launch.

use std::collections::{BTreeMap, HashMap};

use burn_rocm::profile::Profile;
use serde_json::Value;

/// The share that the profile must name.
pub(super) const AIM: f64 = 0.99;

/// The most rows of a table.
const LISTED: usize = 40;

/// What the GPU did.
#[derive(Clone, Debug)]
pub(super) struct Activity {
    /// The kernel's name, `memcpy` or `memset`.
    pub(super) name: String,
    /// The bytes of a copy or a memset; 0 for kernels.
    pub(super) bytes: u64,
    /// Nanoseconds of CUPTI's clock.
    pub(super) start: u64,
    pub(super) end: u64,
    /// The correlation of the call that launched it.
    pub(super) correlation: u32,
}

/// A call, and the piece of the profile's work that its thread had open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) correlation: u32,
    pub(super) piece: u64,
}

/// What CUPTI recorded.
#[derive(Debug)]
pub(super) struct Record {
    /// In the order of their beginning.
    pub(super) activities: Vec<Activity>,
    pub(super) links: Vec<Link>,
}

impl Record {
    pub(super) const EMPTY: Self = Self { activities: Vec::new(), links: Vec::new() };
}

/// A piece of work in the profile's timeline.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// The kernel, library function or graph.
    pub(super) name: String,
    /// The op that launched it; empty outside an op.
    pub(super) op: String,
    /// `kernel`, `library`, `copy`, `transfer` or `graph`.
    pub(super) kind: String,
    /// Its time by the profile, in nanoseconds.
    pub(super) time: f64,
}

/// Why an activity has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Why {
    /// Its thread had no piece of the profile's work open.
    Outside,
    /// The piece is not in the profile's timeline: it failed, or its time is not known.
    Lost,
    /// The piece's name is empty.
    Nameless,
}

impl Why {
    const fn text(self) -> &'static str {
        match self {
            Self::Outside => "launched outside the profile's work",
            Self::Lost => "launched by a piece that the timeline lacks",
            Self::Nameless => "launched by a piece without a name",
        }
    }
}

/// Equal activities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) calls: u64,
    /// Nanoseconds.
    pub(super) time: u64,
}

impl Sum {
    fn add(&mut self, activity: &Activity) {
        self.calls += 1;
        self.time += activity.end - activity.start;
    }
}

/// CUPTI's record joined with a profile. Times are nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Joined<'a> {
    /// The time in which the GPU was busy.
    pub(super) busy: u64,
    /// The part of it in which something without a name ran, even if something named ran too.
    pub(super) unnamed: u64,
    /// The part of it in which something ran that neither an op nor a graph launched.
    pub(super) outside_ops: u64,
    /// All activities.
    pub(super) all: Sum,
    /// Those that a graph's launch ran.
    pub(super) of_graphs: Sum,
    /// Those with a name.
    pub(super) named: Sum,
    /// The profile's time of the pieces that launched the named ones.
    pub(super) profiled: f64,
    /// How many of the profile's pieces launched nothing.
    pub(super) empty: usize,
    /// Activities without a name, by their name and why.
    pub(super) lacks: BTreeMap<(&'a str, Why), Sum>,
    /// Activities with a name, by their name and that of the piece that launched them.
    pub(super) has: BTreeMap<(&'a str, &'a str), Sum>,
}

/// The device's work in a profile's timeline, by number.
pub(super) fn pieces(profile: &Profile) -> Result<HashMap<u64, Piece>, String> {
    let trace: Value = serde_json::from_str(&profile.chrome_trace()).map_err(|error| error.to_string())?;
    let left_out = trace["otherData"]["entries left out"].as_u64().unwrap_or(0);
    if left_out > 0 {
        return Err(format!("the timeline lacks {left_out} entries: profile fewer steps"));
    }
    let events = trace["traceEvents"].as_array().ok_or("a timeline without events")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let piece = |event: &Value| {
        let number = event["args"]["piece"].as_u64()?;
        let piece = Piece {
            name: text(&event["name"]),
            op: text(&event["args"]["op"]),
            kind: text(&event["cat"]),
            time: event["dur"].as_f64().unwrap_or_default() * 1e3,
        };
        Some((number, piece))
    };
    Ok(events.iter().filter_map(piece).collect())
}

/// Joins a record with the pieces of a timeline, by their numbers.
///
/// # Errors
/// If no activity was recorded, or no call has a link although there are pieces.
pub(super) fn join<'a>(record: &'a Record, pieces: &'a HashMap<u64, Piece>) -> Result<Joined<'a>, String> {
    if record.activities.is_empty() {
        return Err("CUPTI recorded no work of the GPU".into());
    }
    if record.links.is_empty() && !pieces.is_empty() {
        return Err("CUPTI recorded no external correlations: no call led to a piece of the profile".into());
    }
    let launched_by: HashMap<u32, u64> =
        record.links.iter().map(|link| (link.correlation, link.piece)).collect();
    let mut joined = Joined::default();
    let mut ran: HashMap<u64, &Piece> = HashMap::new();
    let [mut all, mut unnamed, mut outside_ops] = [Vec::new(), Vec::new(), Vec::new()];
    for activity in &record.activities {
        let part = (activity.start, activity.end);
        all.push(part);
        joined.all.add(activity);
        let piece = match launched_by.get(&activity.correlation) {
            None => Err(Why::Outside),
            Some(number) => match pieces.get(number) {
                None => Err(Why::Lost),
                Some(piece) if piece.name.is_empty() => Err(Why::Nameless),
                Some(piece) => Ok((*number, piece)),
            },
        };
        match piece {
            Ok((number, piece)) => {
                ran.insert(number, piece);
                joined.named.add(activity);
                joined.has.entry((&activity.name, &piece.name)).or_default().add(activity);
                if piece.kind == "graph" {
                    joined.of_graphs.add(activity);
                } else if piece.op.is_empty() {
                    outside_ops.push(part);
                }
            }
            Err(why) => {
                joined.lacks.entry((&activity.name, why)).or_default().add(activity);
                unnamed.push(part);
                outside_ops.push(part);
            }
        }
    }
    joined.busy = covered(&all);
    joined.unnamed = covered(&unnamed);
    joined.outside_ops = covered(&outside_ops);
    joined.profiled = ran.values().map(|piece| piece.time).sum();
    joined.empty = pieces.len() - ran.len();
    Ok(joined)
}

/// The length of the union of intervals, which come sorted by their beginning.
fn covered(intervals: &[(u64, u64)]) -> u64 {
    let (mut sum, mut until) = (0, 0);
    for &(start, end) in intervals {
        sum += end.saturating_sub(start.max(until));
        until = until.max(end);
    }
    sum
}

impl Joined<'_> {
    /// The share of the busy time in which everything that ran has a name.
    pub(super) fn named_share(&self) -> f64 {
        1.0 - self.unnamed as f64 / self.busy.max(1) as f64
    }

    /// The share of the busy time in which an op or a graph launched everything that ran.
    pub(super) fn op_share(&self) -> f64 {
        1.0 - self.outside_ops as f64 / self.busy.max(1) as f64
    }

    pub(super) fn is_met(&self) -> bool {
        self.named_share() >= AIM
    }

    /// As text: sums, the activities without a name, and the longest of those with one.
    pub(super) fn report(&self) -> String {
        let mut text = format!(
            "- busy: {} ms, {} kernels, copies and memsets, {} of them by a graph\n\
             - named: {:.2} % of it ({}); launched by an op or a graph: {:.2} %\n\
             - named activities took {} ms by CUPTI; the pieces that launched them, {} ms by the profile\n\
             - {} pieces of the profile launched nothing that CUPTI recorded\n",
            ms(self.busy),
            self.all.calls,
            self.of_graphs.calls,
            100.0 * self.named_share(),
            if self.is_met() { "ok" } else { "MISSED" },
            100.0 * self.op_share(),
            ms(self.named.time),
            ms(self.profiled as u64),
            self.empty,
        );
        let lacks = self.lacks.iter().map(|((name, why), sum)| (*name, why.text(), *sum));
        text += &table("without a name", "why", lacks.collect());
        let has = self.has.iter().map(|((name, piece), sum)| (*name, *piece, *sum));
        text += &table("with a name", "launched by", has.collect());
        text
    }
}

/// The rows with the longest times, and a line for the others.
fn table(what: &str, by: &str, mut rows: Vec<(&str, &str, Sum)>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    rows.sort_by_key(|(.., sum)| std::cmp::Reverse(sum.time));
    let mut text = format!("\n| {what}, by CUPTI | calls | ms | {by} |\n|---|---:|---:|---|\n");
    let (first, others) = rows.split_at(rows.len().min(LISTED));
    for (name, by, sum) in first {
        let short = |text: &str| text.chars().take(70).collect::<String>();
        text += &format!("| `{}` | {} | {} | {} |\n", short(name), sum.calls, ms(sum.time), short(by));
    }
    if !others.is_empty() {
        let (calls, time) =
            others.iter().fold((0, 0), |(calls, time), (.., sum)| (calls + sum.calls, time + sum.time));
        text += &format!("| {} others | {calls} | {} | |\n", others.len(), ms(time));
    }
    text
}

fn ms(nanos: u64) -> String {
    format!("{:.3}", nanos as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity(name: &str, correlation: u32, start: u64, end: u64) -> Activity {
        Activity { name: name.into(), bytes: 0, start, end, correlation }
    }

    fn link(correlation: u32, piece: u64) -> Link {
        Link { correlation, piece }
    }

    fn piece(number: u64, name: &str, op: &str, kind: &str, time: f64) -> (u64, Piece) {
        (number, Piece { name: name.into(), op: op.into(), kind: kind.into(), time })
    }

    #[test]
    fn an_unnamed_kernel_between_two_named_ones_has_no_name() {
        // The three touch, so on any clock the second one lies between named work.
        let record = Record {
            activities: vec![
                activity("gemm", 11, 0, 4000),
                activity("hidden", 12, 4000, 5000),
                activity("add", 13, 5000, 8000),
            ],
            links: vec![link(11, 1), link(13, 2)],
        };
        let pieces = HashMap::from([
            piece(1, "rocblas_sgemm", "float_matmul", "library", 4500.0),
            piece(2, "binary_contiguous", "", "kernel", 3500.0),
        ]);
        let joined = join(&record, &pieces).unwrap();
        assert_eq!((joined.busy, joined.unnamed, joined.outside_ops), (8000, 1000, 4000));
        assert_eq!(joined.named, Sum { calls: 2, time: 7000 });
        assert_eq!(joined.profiled, 8000.0);
        assert!(!joined.is_met());
        let hidden = BTreeMap::from([(("hidden", Why::Outside), Sum { calls: 1, time: 1000 })]);
        assert_eq!(joined.lacks, hidden);
        let text = joined.report();
        for part in [
            "- named: 87.50 % of it (MISSED); launched by an op or a graph: 50.00 %",
            "| `hidden` | 1 | 0.001 | launched outside the profile's work |",
            "| `gemm` | 1 | 0.004 | rocblas_sgemm |",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn why_an_activity_has_no_name() {
        let record = Record {
            activities: vec![
                activity("a", 1, 0, 10),
                activity("a", 2, 10, 30),
                activity("b", 3, 40, 60),
                activity("c", 4, 70, 80),
            ],
            links: vec![link(2, 7), link(3, 8), link(4, 9), link(50, 10)],
        };
        let pieces = HashMap::from([
            piece(8, "", "op", "kernel", 1.0),
            piece(9, "c", "op", "kernel", 2.0),
            piece(10, "rocblas_sgemm", "op", "library", 3.0),
        ]);
        let joined = join(&record, &pieces).unwrap();
        let lacks: Vec<_> = joined.lacks.iter().map(|((name, why), sum)| (*name, *why, sum.time)).collect();
        assert_eq!(lacks, [("a", Why::Outside, 10), ("a", Why::Lost, 20), ("b", Why::Nameless, 20)]);
        assert_eq!((joined.busy, joined.unnamed, joined.empty), (60, 50, 2));
        assert_eq!(joined.profiled, 2.0, "the time of pieces that ran nothing does not count");
    }

    /// Both run at once, so all of that time has something without a name in it.
    #[test]
    fn a_named_kernel_hides_no_other() {
        let record = Record {
            activities: vec![activity("long", 1, 0, 100), activity("hidden", 2, 20, 70)],
            links: vec![link(1, 1)],
        };
        let pieces = HashMap::from([piece(1, "long", "op", "kernel", 100.0)]);
        let joined = join(&record, &pieces).unwrap();
        assert_eq!((joined.busy, joined.unnamed), (100, 50));
        assert_eq!(joined.named_share(), 0.5);
    }

    #[test]
    fn a_graphs_kernels_have_the_correlation_of_its_launch() {
        let kernels = (0..100).map(|i| activity("k", 5, i * 10, i * 10 + 9));
        let record = Record { activities: kernels.collect(), links: vec![link(5, 3)] };
        let pieces = HashMap::from([piece(3, "graph 1", "", "graph", 1000.0)]);
        let joined = join(&record, &pieces).unwrap();
        assert_eq!((joined.busy, joined.unnamed, joined.outside_ops), (900, 0, 0));
        assert_eq!(joined.of_graphs, Sum { calls: 100, time: 900 });
        assert!(joined.is_met() && joined.report().contains("100.00 % of it (ok)"));
    }

    #[test]
    fn records_that_show_nothing_are_errors() {
        let pieces = HashMap::from([piece(1, "k", "op", "kernel", 1.0)]);
        assert!(join(&Record::EMPTY, &pieces).unwrap_err().contains("no work"));
        let record = Record { activities: vec![activity("k", 1, 0, 1)], links: Vec::new() };
        assert!(join(&record, &pieces).unwrap_err().contains("no external correlations"));
        assert_eq!(join(&record, &HashMap::new()).unwrap().unnamed, 1);
    }

    #[test]
    fn overlapping_times_count_once() {
        assert_eq!(covered(&[(0, 2), (1, 3), (1, 2), (3, 4), (6, 7)]), 5);
        assert_eq!(covered(&[]), 0);
    }
}
