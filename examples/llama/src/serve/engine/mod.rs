//! The engine: one thread that runs the model for many sequences at once.
//!
//! Each step takes a token of every sequence whose prompt is in the cache, and pieces of prompts up
//! to the step's limit. Sequences come and go between steps. Full blocks of the cache are kept for
//! prompts with the same start. If blocks run out, the sequence that came last gives its blocks
//! back, and runs its tokens again when there is room.

mod chances;
mod handle;
mod job;
mod prefixes;
mod scheduler;
mod sequence;

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use burn_rocm_nn::language::CacheType;

use crate::error::{Error, Result};
use crate::model::Model;
use crate::serve::metrics::Metrics;
use handle::Shared;
use scheduler::Scheduler;

pub(crate) use chances::largest_bytes;
pub use handle::{Handle, Limits, Refusal, Ticket};
pub use job::{Chances, End, Event, Job};

/// Starts an engine in a thread of its own, with a cache that is stored in this way. It ends when
/// all handles and tickets are gone, or with the device's error. Then the tickets that are left get
/// no more events.
///
/// # Errors
/// [`Error::Argument`] for limits of 0, more than 8192 rows, a step of fewer tokens than rows, or a
/// context that the model or the blocks don't have; an error of the device.
pub fn start(
    model: Arc<Model>,
    limits: Limits,
    stored: CacheType,
) -> Result<(Handle, JoinHandle<Result<()>>)> {
    limits.check(model.config().context)?;
    let metrics = Arc::new(Metrics::default());
    metrics.blocks.store(limits.blocks, Ordering::Relaxed);
    let (alive, next) = (AtomicBool::new(true), AtomicU64::new(0));
    let vocabulary = model.config().vocabulary;
    let shared = Arc::new(Shared { limits, vocabulary, metrics, alive, next });
    let (commands, queue) = std::sync::mpsc::channel();
    let scheduler = Scheduler::new(model, (limits, stored), queue, shared.metrics.clone())?;
    let thread = thread::Builder::new().name("engine".to_owned());
    let ended = shared.clone();
    let thread = thread.spawn(move || {
        // An op that fails in the middle panics with the device's error.
        let run = panic::catch_unwind(AssertUnwindSafe(move || scheduler.run()));
        ended.alive.store(false, Ordering::Release);
        run.unwrap_or_else(|payload| {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(|&text| text.to_owned()));
            Err(Error::Read(text.unwrap_or_default()))
        })
    });
    let thread = thread.map_err(Error::server)?;
    Ok((Handle { shared, commands }, thread))
}
