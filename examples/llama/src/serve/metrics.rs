//! What the server counts, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The upper bounds of a histogram's buckets in seconds. The last bucket has no bound.
const BOUNDS: [f64; 16] =
    [0.001, 0.002, 0.004, 0.006, 0.008, 0.012, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24];

/// How many times took how long.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanoseconds: AtomicU64,
}

impl Histogram {
    /// Counts a time.
    pub fn count(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS.partition_point(|&bound| bound < seconds);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, help: &str) {
        head(out, name, "histogram", help);
        let mut sum = 0;
        for (index, bucket) in self.buckets.iter().enumerate() {
            sum += bucket.load(Relaxed);
            let bound = BOUNDS.get(index).map_or("+Inf".to_owned(), f64::to_string);
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {sum}");
        }
        let seconds = self.nanoseconds.load(Relaxed) as f64 * 1e-9;
        let _ = writeln!(out, "{name}_sum {seconds}\n{name}_count {sum}");
    }
}

/// The counters of a server.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Answers of each route by their status.
    requests: Mutex<BTreeMap<(&'static str, u16), u64>>,
    /// Tokens of prompts that the model computed.
    pub prompt_tokens: AtomicU64,
    /// Tokens of prompts that were in the cache, for each choice.
    pub reused_tokens: AtomicU64,
    /// Tokens that were drawn.
    pub generated_tokens: AtomicU64,
    /// Steps of the model.
    pub steps: AtomicU64,
    /// Sequences that had to give their blocks back and wait again.
    pub preemptions: AtomicU64,
    /// Sequences that were cancelled, because nobody reads their request's answer any more.
    pub cancelled: AtomicU64,
    /// Sequences in the batch.
    pub running: AtomicUsize,
    /// Sequences that wait for their first place in the batch.
    pub waiting: AtomicUsize,
    /// Sequences that gave their blocks back.
    pub preempted: AtomicUsize,
    /// Blocks of the cache that sequences or prefixes have.
    pub blocks_used: AtomicUsize,
    /// Blocks that are kept for prompts with the same start.
    pub blocks_kept: AtomicUsize,
    /// All blocks.
    pub blocks: AtomicUsize,
    /// Kept blocks that could not be freed when no sequence ran: 0, unless the engine is wrong.
    pub blocks_lost: AtomicUsize,
    /// From the submission of a request to its first token.
    pub first: Histogram,
    /// From one token of a sequence to the next.
    pub between: Histogram,
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

impl Metrics {
    /// Counts an answer.
    pub fn answered(&self, route: &'static str, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((route, status)).or_default() += 1;
    }

    /// All counters as text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        head(&mut out, "llama_requests_total", "counter", "Answers by route and HTTP status.");
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        for ((route, status), count) in requests.iter() {
            let _ = writeln!(out, "llama_requests_total{{route=\"{route}\",status=\"{status}\"}} {count}");
        }
        drop(requests);
        for (name, counter, help) in [
            ("llama_prompt_tokens_total", &self.prompt_tokens, "Tokens of prompts that the model computed."),
            (
                "llama_reused_tokens_total",
                &self.reused_tokens,
                "Tokens of prompts found in the cache, for each choice.",
            ),
            ("llama_generated_tokens_total", &self.generated_tokens, "Tokens that were drawn."),
            ("llama_steps_total", &self.steps, "Steps of the model."),
            ("llama_preemptions_total", &self.preemptions, "Sequences that gave their blocks back."),
            ("llama_cancelled_total", &self.cancelled, "Sequences that were cancelled."),
        ] {
            head(&mut out, name, "counter", help);
            let _ = writeln!(out, "{name} {}", counter.load(Relaxed));
        }
        for (name, gauge, help) in [
            ("llama_sequences_running", &self.running, "Sequences in the batch."),
            (
                "llama_sequences_waiting",
                &self.waiting,
                "Sequences that wait for their first place in the batch.",
            ),
            (
                "llama_sequences_preempted",
                &self.preempted,
                "Sequences that gave their blocks back and wait to go on.",
            ),
            ("llama_blocks_used", &self.blocks_used, "Blocks of the cache in use, kept ones included."),
            ("llama_blocks_kept", &self.blocks_kept, "Blocks kept for prompts with the same start."),
            ("llama_blocks", &self.blocks, "Blocks of the cache, 16 tokens each."),
        ] {
            head(&mut out, name, "gauge", help);
            let _ = writeln!(out, "{name} {}", gauge.load(Relaxed));
        }
        self.first.write(
            &mut out,
            "llama_time_to_first_token_seconds",
            "From the request to its first token.",
        );
        self.between.write(
            &mut out,
            "llama_time_between_tokens_seconds",
            "From one token of a sequence to the next.",
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_up_to_each_bound() {
        let histogram = Histogram::default();
        for milliseconds in [1, 3, 3, 20_000] {
            histogram.count(Duration::from_millis(milliseconds));
        }
        let mut text = String::new();
        histogram.write(&mut text, "t", "a time");
        for line in [
            "# TYPE t histogram",
            "t_bucket{le=\"0.001\"} 1",
            "t_bucket{le=\"0.002\"} 1",
            "t_bucket{le=\"0.004\"} 3",
            "t_bucket{le=\"10.24\"} 3",
            "t_bucket{le=\"+Inf\"} 4",
            "t_count 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(text.contains("t_sum 20.007"), "{text}");
    }
}
