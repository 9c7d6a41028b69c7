//! Ops, regions and launches of graphs as spans of the crate `tracing`, and compilations and
//! timings of algorithms and kernels as its events, with the feature `tracing`. Without the feature
//! these functions do nothing.
//!
//! Spans and events have the target `burn_rocm` and the level `TRACE`. `tracing` fixes a span's
//! name when the program is compiled, so spans are named `op`, `region` and `graph`, and their own
//! names are fields. `otel.name` is the field that `tracing-opentelemetry` shows as the name.

use std::fmt::Display;
use std::time::Duration;

use crate::watch::Shapes;

#[cfg(feature = "tracing")]
mod on {
    use std::cell::RefCell;

    use tracing::Level;
    use tracing::span::EnteredSpan;

    use super::{Display, Duration, Shapes};
    use crate::profile::names;
    use crate::watch;

    thread_local! {
        /// That of the thread's running op. Not in the op's guard, because a future may hold that
        /// and move to another thread.
        static OP: RefCell<Option<EnteredSpan>> = const { RefCell::new(None) };
    }

    /// A span of the calling thread, until it is dropped.
    pub(crate) struct Span(#[expect(dead_code, reason = "ends where it is dropped")] Option<EnteredSpan>);

    /// Whether a subscriber wants spans.
    #[inline]
    pub(crate) fn enabled() -> bool {
        tracing::span_enabled!(target: "burn_rocm", Level::TRACE)
    }

    /// Begins the span of the thread's running op.
    pub(crate) fn begin_op(op: &'static str, dtype: &'static str, shapes: &dyn Fn(&mut Shapes<'_>)) {
        let shapes = watch::with_shapes(shapes, names::shown);
        let span = tracing::trace_span!(target: "burn_rocm", "op", otel.name = op, op, dtype, shapes);
        // It fails only while the thread ends.
        let _ = OP.try_with(|running| running.replace(Some(span.entered())));
    }

    /// Ends what [`begin_op`] began.
    pub(crate) fn end_op() {
        let ended = OP.try_with(RefCell::take);
        drop(ended);
    }

    pub(crate) fn region(name: &str) -> Span {
        let span = || tracing::trace_span!(target: "burn_rocm", "region", otel.name = name, region = name);
        Span(enabled().then(|| span().entered()))
    }

    /// The host's launch of a graph.
    pub(crate) fn graph(number: u64, runs: &dyn Display) -> Span {
        let span = || {
            let name = format!("graph {number}");
            tracing::trace_span!(target: "burn_rocm", "graph", otel.name = name, number, %runs)
        };
        Span(enabled().then(|| span().entered()))
    }

    /// A kernel was compiled.
    pub(crate) fn compiled(kernel: &str, time: Duration) {
        let milliseconds = time.as_secs_f64() * 1e3;
        tracing::trace!(target: "burn_rocm", kernel, milliseconds, "compiled");
    }

    /// Algorithms of a library, or this project's kernels, were timed.
    pub(crate) fn tuned(what: &dyn Display, time: Duration) {
        let milliseconds = time.as_secs_f64() * 1e3;
        tracing::trace!(target: "burn_rocm", %what, milliseconds, "tuned");
    }
}

#[cfg(feature = "tracing")]
pub(crate) use on::*;

/// Nothing.
#[cfg(not(feature = "tracing"))]
pub(crate) struct Span;

#[cfg(not(feature = "tracing"))]
mod off {
    use super::{Display, Duration, Shapes, Span};

    #[inline(always)]
    pub(crate) const fn enabled() -> bool {
        false
    }

    pub(crate) fn begin_op(_: &'static str, _: &'static str, _: &dyn Fn(&mut Shapes<'_>)) {}

    #[inline(always)]
    pub(crate) const fn end_op() {}

    #[inline(always)]
    pub(crate) const fn region(_: &str) -> Span {
        Span
    }

    #[inline(always)]
    pub(crate) fn graph(_: u64, _: &dyn Display) -> Span {
        Span
    }

    #[inline(always)]
    pub(crate) fn compiled(_: &str, _: Duration) {}

    #[inline(always)]
    pub(crate) fn tuned(_: &dyn Display, _: Duration) {}
}

#[cfg(not(feature = "tracing"))]
pub(crate) use off::*;
