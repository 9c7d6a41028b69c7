//! Profiles: which kernels, library calls and copies computed each op, and how long each took on
//! the device.
//!
//! The names are those of the trace ([`crate::trace`]). Events in the streams give the times, and
//! nobody waits for them while work is enqueued (`lane.rs`). If nothing is profiled, an op costs one
//! relaxed load and a launch one more.

pub(crate) mod chrome;
pub(crate) mod correlate;
pub(crate) mod lane;
pub(crate) mod names;
pub(crate) mod output;
pub(crate) mod region;
pub(crate) mod report;
pub(crate) mod session;
pub(crate) mod share;
pub(crate) mod site;
pub(crate) mod table;
#[cfg(all(test, feature = "cpu"))]
mod tests;
pub(crate) mod work;

use std::sync::Arc;

use crate::device::Device;
use crate::error::Result;

pub use self::correlate::{Correlator, correlate};
pub use self::output::write;
pub use self::region::{Region, region};
pub use self::report::{Detail, DeviceTime, Profile, RegionTime, Row};
use self::session::Session;
pub use self::work::WorkKind;

/// Runs `body` and profiles the work that all threads give to all devices meanwhile. At its end,
/// waits for that work.
///
/// What runs the first time also compiles kernels, and lets the libraries load and choose theirs.
/// Run the same work once before, or the times of library calls include that.
///
/// ```
/// let device = hip::Device::get(0)?;
/// let (buffer, profile) = hip::profile(|| {
///     let buffer = device.alloc(1 << 20)?;
///     device.fill_bytes(&buffer, 0, 7, 1 << 20)?;
///     Ok::<_, hip::Error>(buffer)
/// });
/// let rows = profile.rows(hip::profile::Detail::Work);
/// assert_eq!((&*rows[0].work, rows[0].calls, rows[0].bytes), ("memset", 1, Some(1 << 20)));
/// println!("{profile}");
/// # Ok::<(), hip::Error>(())
/// ```
///
/// Work on a stream runs in order, so the times of a stream's rows don't overlap, and their sum is
/// at most [`Profile::wall`]. The time of a piece of work begins when the stream has finished the
/// work before it. If the stream had just become idle, it may include some microseconds in which
/// the host enqueued the work.
///
/// An event after a piece of work costs a GPU 2 to 3 us. So if the host is ahead of the device,
/// short pieces share events once each was timed alone: [`Row::shared`] counts them. A single step
/// is timed piece by piece.
///
/// A launch that fails is in no row. If `body` panics, so does this function. Profiles may overlap:
/// each has all work of its time. While a thread captures a graph, its work is not run and so is in
/// no row; the graph's launches are, and list what they run.
pub fn profile<T>(body: impl FnOnce() -> T) -> (T, Profile) {
    /// Ends the session, also if the body panics.
    struct Ends(Arc<Session>);
    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.end();
        }
    }
    launch_deferred();
    let session = Ends(Session::begin());
    for device in Device::opened() {
        device.sample_memory();
    }
    let result = body();
    launch_deferred();
    session.0.end();
    lane::finish_all();
    (result, Profile::of(&session.0))
}

/// Launches the deferred ops of all devices.
fn launch_deferred() {
    for device in Device::opened() {
        device.compute.catch_up();
    }
}

impl Device {
    /// Measures how many bytes a second its memory reads and writes, by copies of 128 MiB within
    /// it, and waits for them. Later profiles show the share of it that each row reached.
    ///
    /// # Errors
    /// `OutOfMemory` if 256 MiB are not free; `Capture` if this thread captures a graph; `Device`
    /// if HIP fails.
    pub fn measure_bandwidth(self: &Arc<Self>) -> Result<f64> {
        let rate = self.copy_rate(128 << 20)?;
        report::keep_bandwidth(self.info().index, rate);
        Ok(rate)
    }

    /// How many bytes a second copies of as many bytes read and write, the launches included. Waits
    /// for them.
    ///
    /// # Errors
    /// As for [`measure_bandwidth`](Self::measure_bandwidth), with twice `bytes`.
    pub(crate) fn copy_rate(self: &Arc<Self>, bytes: usize) -> Result<f64> {
        self.refuse_captured("measure_bandwidth", "it measures work that runs")?;
        let (from, to) = (self.alloc(bytes)?, self.alloc(bytes)?);
        self.fill_bytes(&from, 0, 0, bytes)?;
        let mut best = f64::INFINITY;
        // The first copy touches new memory, so the best of some counts.
        for _ in 0..4 {
            let [start, stop] = [self.timing_event()?, self.timing_event()?];
            self.compute.record(&start)?;
            self.copy(&from, 0, &to, 0, bytes)?;
            self.compute.record(&stop)?;
            stop.synchronize()?;
            best = best.min(f64::from(stop.elapsed_since(&start)?) / 1e3);
        }
        Ok(2.0 * bytes as f64 / best)
    }
}
