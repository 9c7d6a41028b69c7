//! Profiling windows: the time between two events on the device's compute stream.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use burn_backend::{ProfileDuration, ProfileTicks, ProfileToken};
use burn_std::profile::Instant;
use hip::{Device, Event};

use crate::device::RocmDevice;
use crate::error::invalid;
use crate::waiting::enqueue_own;

/// An open window.
struct Window {
    device: Arc<Device>,
    start: Event,
    /// The host's time when it opened. Burn's durations begin at a time of the host's clock.
    opened: Instant,
}

/// The open windows by their tokens, and the number of the next token.
struct Windows {
    open: BTreeMap<u64, Window>,
    next: u64,
}

fn windows() -> MutexGuard<'static, Windows> {
    static WINDOWS: Mutex<Windows> = Mutex::new(Windows { open: BTreeMap::new(), next: 0 });
    WINDOWS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records an event with timing after all work that the device has so far, including deferred ops.
fn now(device: &Arc<Device>) -> hip::Result<Event> {
    enqueue_own()?;
    let event = device.timing_event()?;
    device.compute_stream().record(&event)?;
    Ok(event)
}

/// Opens a window.
pub(super) fn start(device: &RocmDevice) -> hip::Result<ProfileToken> {
    let window = device.open().and_then(|device| {
        let start = now(&device)?;
        Ok(Window { device, start, opened: Instant::now() })
    })?;
    let mut windows = windows();
    let id = windows.next;
    windows.next += 1;
    windows.open.insert(id, window);
    Ok(ProfileToken { id, opened_on: device.index as u64 })
}

/// Closes a window. Resolving its duration waits for the device.
///
/// # Errors
/// `Invalid` if the window is not open on the device.
pub(super) fn end(device: &RocmDevice, token: ProfileToken) -> hip::Result<ProfileDuration> {
    let window = match token.opened_on == device.index as u64 {
        true => windows().open.remove(&token.id),
        false => None,
    };
    let Some(Window { device: on, start, opened }) = window else {
        return invalid("profile_end", format!("a window that is open on {device}"), format!("{token:?}"));
    };
    let end = now(&on)?;
    Ok(ProfileDuration::new_device_time_maybe(async move {
        match end.synchronize().and_then(|()| end.elapsed_since(&start)) {
            Ok(milliseconds) => {
                let taken = Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3);
                Some(ProfileTicks::from_start_end(opened, opened + taken))
            }
            Err(error) => {
                log::warn!("a profiling window has no duration: {error}");
                None
            }
        }
    }))
}

/// Closes a window without a measurement.
pub(super) fn abandon(token: ProfileToken) {
    windows().open.remove(&token.id);
}
