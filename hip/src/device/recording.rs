//! What this crate and HIP record during a capture.

use std::any::Any;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;

use hip_sys::{hipGraph_t, hipGraphExec_t};

use crate::device::context::Context;
use crate::device::event::Event;
use crate::device::stream::Stream;
use crate::error::{Error, Result};
use crate::profile::work::Key;
use crate::trace;

/// The error of a driver without the functions for graphs.
pub(crate) fn no_graphs() -> Error {
    let what = "this driver, which lacks HIP's functions for graphs".to_owned();
    Error::Unsupported { op: "graph capture", dtype: None, what: Some(what) }
}

/// What this crate records during a capture.
#[derive(Default)]
pub(crate) struct Recording {
    /// What the graph needs for as long as it may run: kernels, words for faults, host memory that
    /// it reads.
    pub(crate) kept: Vec<Box<dyn Send>>,
    /// The first error, if any; with one, the capture gives no graph.
    pub(crate) spoiled: Option<Error>,
    /// The thread's counts before the capture.
    pub(crate) before: trace::Counts,
    /// What the graph runs, with how often, if the capture is profiled.
    pub(crate) work: BTreeMap<Key, u64>,
    /// The capture's number, which no other capture has.
    pub(crate) number: u64,
    /// The collectives in their order. Their type is the module `collective`'s.
    pub(crate) collectives: Vec<Box<dyn Any + Send>>,
    /// The streams of ranks whose collectives are captured, by the ranks' numbers.
    pub(crate) forks: BTreeMap<u64, Fork>,
}

/// A stream that is captured because it waited for the capture's own.
pub(crate) struct Fork {
    pub(crate) stream: Arc<Stream>,
    /// Behind all that it was given.
    pub(crate) end: Option<Event>,
}

/// The graph that HIP recorded.
pub(crate) struct Template<'a> {
    context: &'a Context,
    raw: hipGraph_t,
}

impl<'a> Template<'a> {
    /// Owns the graph, which may be null.
    pub(crate) fn new(context: &'a Context, raw: hipGraph_t) -> Self {
        Self { context, raw }
    }

    pub(crate) fn instantiate(&self) -> Result<hipGraphExec_t> {
        let Some(instantiate) = self.context.hip().hipGraphInstantiateWithFlags else {
            return Err(no_graphs());
        };
        self.context.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the function is HIP's, the graph is alive; it writes one handle.
        let status = unsafe { instantiate(&mut raw, self.raw, 0) };
        self.context.check("hipGraphInstantiateWithFlags", status)?;
        Ok(raw)
    }
}

impl Drop for Template<'_> {
    fn drop(&mut self) {
        if let Some(destroy) = self.context.hip().hipGraphDestroy.filter(|_| !self.raw.is_null()) {
            // SAFETY: the function is HIP's; nobody else has the handle.
            let status = unsafe { destroy(self.raw) };
            self.context.record_status("hipGraphDestroy", status);
        }
    }
}
