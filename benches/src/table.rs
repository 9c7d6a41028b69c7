//! Rows, and their output.

use std::fmt::Write;

/// One measured case.
#[derive(Debug)]
pub(crate) struct Row {
    /// The name of the case.
    pub(crate) case: String,
    /// Median seconds on this backend.
    pub(crate) ours: f64,
    /// Median seconds on the peer; `None` if the case has no peer.
    pub(crate) peer: Option<f64>,
    /// The largest allowed ratio (with a peer) or number of seconds (without one).
    pub(crate) bar: f64,
}

impl Row {
    /// The figure that is compared with the bar.
    fn figure(&self) -> f64 {
        self.peer.map_or(self.ours, |peer| self.ours / peer)
    }
}

/// The rows as a Markdown table.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let mut text =
        String::from("| case | burn-rocm | burn-flex | ratio | bar | |\n|---|---:|---:|---:|---:|---|\n");
    for row in rows {
        let peer = row.peer.map_or("-".into(), time);
        let ratio = row.peer.map_or("-".into(), |_| format!("{:.2}", row.figure()));
        let bar = match row.peer {
            _ if row.bar.is_infinite() => "-".into(),
            Some(_) => format!("{:.2}", row.bar),
            None => time(row.bar),
        };
        let verdict = if row.figure() <= row.bar { "ok" } else { "over" };
        let _ =
            writeln!(text, "| {} | {} | {peer} | {ratio} | {bar} | {verdict} |", row.case, time(row.ours));
    }
    text
}

/// The rows as CSV: seconds.
pub(crate) fn csv(rows: &[Row]) -> String {
    let mut text = String::from("case,ours_s,peer_s,bar\n");
    for row in rows {
        let peer = row.peer.map_or(String::new(), |p| p.to_string());
        let _ = writeln!(text, "\"{}\",{},{peer},{}", row.case, row.ours, row.bar);
    }
    text
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}
