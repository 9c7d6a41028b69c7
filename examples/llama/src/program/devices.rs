//! `--devices`: a thread for each device.

use std::thread;

use burn_rocm::{Communicator, RocmDevice};

use super::arguments::Arguments;
use crate::error::{Error, Result};

/// Aborts the group if a rank ends before it is done, also by a panic. The others get an error
/// instead of waiting.
struct Member<'a> {
    ranks: &'a Communicator,
    done: bool,
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.ranks.abort();
        }
    }
}

fn as_member<T>(ranks: &Communicator, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let mut member = Member { ranks, done: false };
    let result = run();
    member.done = result.is_ok();
    result
}

/// Runs `first` on the first device, in this thread, and `others` on each of the others. With one
/// device there is no rank.
pub(super) fn on_each<T>(
    arguments: &Arguments,
    others: impl Fn(&Communicator) -> Result<()> + Sync,
    first: impl FnOnce(Option<&Communicator>) -> Result<T>,
) -> Result<T> {
    arguments.of.select()?;
    let count = arguments.devices;
    if count == 1 {
        return first(None);
    }
    let all = RocmDevice::all()?;
    let Some(devices) = all.get(..count) else {
        let expected = format!("at most as many devices as there are ({})", all.len());
        return Err(Error::Argument { name: "devices", expected, found: count.to_string() });
    };
    let ranks = Communicator::local(devices)?;
    thread::scope(|scope| {
        let others = &others;
        let spawned: Vec<_> =
            ranks[1..].iter().map(|ranks| scope.spawn(move || as_member(ranks, || others(ranks)))).collect();
        let result = as_member(&ranks[0], || first(Some(&ranks[0])));
        for thread in spawned {
            match thread.join() {
                Ok(Ok(())) => {}
                // The other rank's own error says more than this one's, that a rank is missing.
                Ok(Err(error)) if result.is_ok() || !is_of_group(&error) => return Err(error),
                Ok(Err(_)) => {}
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        result
    })
}

/// Whether the error is that another rank has failed.
fn is_of_group(error: &Error) -> bool {
    matches!(error, Error::Device(burn_rocm::RocmError::Collective { .. }))
}
