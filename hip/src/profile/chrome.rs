//! A profile's timeline as a Chrome trace, which Perfetto opens.
//!
//! Times are microseconds since the profile began. The host is a process whose threads have ops and
//! regions. Each device is a process whose threads are its streams, with a counter of its memory.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Write};

use crate::json::Json;
use crate::profile::names;
use crate::profile::session::{Collected, Done, Span};
use crate::watch::thread_name;

/// The number of the process that stands for the host. Device `i` is process `DEVICES + i`.
const HOST: usize = 1;
const DEVICES: usize = 2;

/// The trace of an event list that began at `begun`.
pub(crate) fn write(collected: &Collected, begun: u64) -> String {
    let mut events = Events { text: String::from("{\"traceEvents\":["), any: false };
    events.names(collected);
    let zero = begun as i64;
    let mut spans: Vec<&Span> = collected.spans.iter().collect();
    // What contains others comes first.
    spans.sort_by_key(|span| (span.thread, span.start, u64::MAX - span.stop));
    for span in spans {
        let (name, kind) = match span.is_region {
            true => (names::string(span.who.region), "region"),
            false => (names::string(span.who.op), "op"),
        };
        let name = name.rsplit('/').next().unwrap_or_default();
        let (at, time) = (Micros(span.start as i64 - zero), Micros((span.stop - span.start) as i64));
        events.add(format_args!(
            r#""ph":"X","name":{},"cat":"{kind}","pid":{HOST},"tid":{},"ts":{at},"dur":{time},"args":{{{}}}"#,
            Json(name),
            span.thread,
            Who(&span.who),
        ));
    }
    let mut done: Vec<&Done> = collected.done.iter().collect();
    done.sort_by_key(|done| (done.lane, done.start, done.stop));
    for done in done {
        let shift = collected.lanes.get(&done.lane).map_or(0, |lane| lane.zero) - zero;
        let start = (done.start as i64 + shift).max(0);
        let stop = (done.stop as i64 + shift).max(start);
        let name = names::string(done.key.name);
        let mut more = String::new();
        for (what, count) in [("bytes", done.load.bytes), ("flops", done.load.flops)] {
            if count > 0 {
                // Writing to a string can't fail.
                let _ = write!(more, r#","{what}":{count}"#);
            }
        }
        if done.number > 0 {
            // As above.
            let _ = write!(more, r#","piece":{}"#, done.number);
        }
        if done.shared {
            more += r#","shared event":true"#;
        }
        events.add(format_args!(
            r#""ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{},"thread":{}{more}}}"#,
            Json(&name),
            done.key.kind.name(),
            DEVICES + done.key.device,
            done.lane,
            Micros(start),
            Micros(stop - start),
            Who(&done.key.who),
            Json(&thread_name(done.thread)),
        ));
    }
    for sample in &collected.memory {
        events.add(format_args!(
            r#""ph":"C","name":"memory","pid":{},"tid":0,"ts":{},"args":{{"in use":{},"reserved":{}}}"#,
            DEVICES + sample.device,
            Micros((sample.at as i64 - zero).max(0)),
            sample.used,
            sample.reserved,
        ));
    }
    let left_out = collected.left_out;
    events.text
        + &format!("\n],\"displayTimeUnit\":\"ns\",\"otherData\":{{\"entries left out\":{left_out}}}}}\n")
}

struct Events {
    text: String,
    any: bool,
}

impl Events {
    fn add(&mut self, event: fmt::Arguments<'_>) {
        let comma = if self.any { "," } else { "" };
        self.any = true;
        // Writing to a string can't fail.
        let _ = write!(self.text, "{comma}\n{{{event}}}");
    }

    /// The names of the processes and their threads.
    fn names(&mut self, collected: &Collected) {
        let name = |what: &str, pid: usize, tid: u32, name: &str| {
            let name = Json(name);
            format!(r#""ph":"M","name":"{what}","pid":{pid},"tid":{tid},"args":{{"name":{name}}}"#)
        };
        let mut all = vec![name("process_name", HOST, 0, "host")];
        let threads: BTreeSet<u32> = collected.spans.iter().map(|span| span.thread).collect();
        all.extend(threads.iter().map(|&thread| name("thread_name", HOST, thread, &thread_name(thread))));
        let streams = collected.lanes.values().map(|lane| lane.device);
        let devices: BTreeSet<usize> =
            streams.chain(collected.memory.iter().map(|sample| sample.device)).collect();
        all.extend(
            devices.iter().map(|&index| name("process_name", DEVICES + index, 0, &format!("device {index}"))),
        );
        all.extend(
            collected
                .lanes
                .iter()
                .map(|(&number, lane)| name("thread_name", DEVICES + lane.device, number, &lane.label)),
        );
        all.iter().for_each(|event| self.add(format_args!("{event}")));
    }
}

/// Nanoseconds, shown as microseconds.
struct Micros(i64);

impl Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.max(0);
        write!(f, "{}.{:03}", nanos / 1000, nanos % 1000)
    }
}

/// The members of an object that say on whose behalf something was done.
struct Who<'a>(&'a crate::profile::work::Who);

impl Display for Who<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (op, region) = (names::string(self.0.op), names::string(self.0.region));
        let shapes = names::shapes_string(self.0.shapes);
        let (dtype, shapes) = (Json(self.0.dtype), Json(&shapes));
        write!(f, r#""op":{},"dtype":{dtype},"shapes":{shapes},"region":{}"#, Json(&op), Json(&region))?;
        match &*names::string(self.0.site) {
            "" => Ok(()),
            site => write!(f, r#","call site":{}"#, Json(site)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_microseconds() {
        assert_eq!(
            [0, 7, 1_234_567, -3].map(|nanos| Micros(nanos).to_string()),
            ["0.000", "0.007", "1234.567", "0.000"]
        );
    }
}
