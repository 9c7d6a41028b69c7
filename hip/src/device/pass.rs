//! Passes: a thread's ops between two moments, with points in between that other streams can wait
//! for.
//!
//! The host enqueues a backward pass far ahead of the device. A collective that is enqueued after
//! the pass, but waits only for a point in the middle, runs beside the pass's rest. Nobody has to
//! be called while the pass is enqueued.
//!
//! Why a stream that waits for [`Points::after`] may use the buffers:
//!
//! - An op's work is enqueued between the op's begin and its end, or joins the compute stream's
//!   list of deferred steps there. An op may say that it [goes on](crate::trace::op_goes_on) as a new
//!   one.
//! - A point is recorded where an outermost op begins, so no op is under way on this thread, and
//!   all its earlier ops are enqueued or in that list. Recording an event in the compute stream
//!   launches the list first. So the point is behind the work of all earlier ops of the pass.
//! - A buffer notes the last op of the pass that used its address, whatever for. Every other use
//!   makes the last use unknown for good, and then there is no such point
//!   ([`LastUse`](crate::memory::last_use::LastUse)).
//! - So the first point behind the last op is behind all work that uses the buffer, until somebody
//!   uses it again: then the use is noted, and only the caller who already waits for the point has
//!   to keep the buffer unchanged, as with every [`Work`](crate::Work).

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::device::Device;
use crate::device::collectives::Before;
use crate::device::event::Event;
use crate::error::{Error, Result};
use crate::memory::buffer::Buffer;
use crate::memory::last_use;
use crate::trace;
use crate::watch;

/// So many pieces of work are between two points if the caller wants none in particular. An event
/// takes the host about as long as a third of a launch.
const EVERY: u64 = 8;

/// The number of open passes. Ops are watched while there is one.
static OPEN_PASSES: Mutex<usize> = Mutex::new(0);

/// The number of the last pass.
static LAST: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static OPEN: RefCell<Option<Open>> = const { RefCell::new(None) };
}

/// The pass of a thread.
struct Open {
    device: Arc<Device>,
    number: u32,
    /// The number of the last op that began.
    op: u32,
    points: Vec<Point>,
    /// After which ops the caller wants points, in ascending order.
    wanted: Vec<u32>,
    /// How many of them are over.
    over: usize,
    /// The thread's launches when the last point was recorded.
    launches: u64,
    /// The device's collectives before the pass.
    before: Before,
    /// The capture of which the pass is a part.
    capture: Option<u64>,
}

/// An event behind the work of the ops up to this one.
struct Point {
    op: u32,
    event: Event,
}

impl Open {
    fn op_begins(&mut self) {
        let due = match self.wanted.is_empty() {
            true => trace::counts().launches() - self.launches >= EVERY && !self.device.stream().defers(),
            false => self.wanted.get(self.over).is_some_and(|&wanted| wanted <= self.op),
        };
        if due {
            self.add_point();
        }
        self.op += 1;
        last_use::op_begins(address(&self.device), self.number, self.op);
    }

    fn add_point(&mut self) {
        while self.wanted.get(self.over).is_some_and(|&wanted| wanted <= self.op) {
            self.over += 1;
        }
        self.launches = trace::counts().launches();
        if self.device.captures.number() != self.capture {
            // The point would then be after other work. So it would inside `uncaptured`.
            return;
        }
        match self.device.stream().mark() {
            Ok(event) => self.points.push(Point { op: self.op, event }),
            // Whoever needs this point waits for a later one.
            Err(error) => log::debug!("a pass has a point less: {error}"),
        }
    }
}

fn address(device: &Arc<Device>) -> usize {
    Arc::as_ptr(device).addr()
}

/// Called where an outermost op begins on any thread, while there is a pass.
fn op_begins() {
    // `try_with` fails only while the thread ends. An op that begins while a point is recorded is
    // none of the pass.
    let _ = OPEN.try_with(|open| {
        if let Ok(mut open) = open.try_borrow_mut()
            && let Some(open) = &mut *open
        {
            open.op_begins();
        }
    });
}

/// Ops of the calling thread that use one device. Dropping it ends it. It stays on its thread.
#[must_use = "the pass ends where this is dropped"]
pub struct Pass {
    number: u32,
    reserved: Vec<Arc<Buffer>>,
    _thread: PhantomData<*const ()>,
}

impl Pass {
    /// Begins a pass. After each op whose number is in `wanted`, in ascending order, the pass has a
    /// point. If the list is empty, there is a point after every few launches.
    ///
    /// Other streams may write `reserved` as soon as they have waited for a point. So these buffers
    /// must be new.
    ///
    /// # Errors
    /// `Invalid` for a buffer that was used or is on another device, or if the thread has a pass
    /// already; `Device` if HIP fails.
    pub fn begin(device: &Arc<Device>, reserved: Vec<Arc<Buffer>>, wanted: Vec<u32>) -> Result<Self> {
        const OP: &str = "Pass::begin";
        let is_new = |buffer: &Arc<Buffer>| {
            Arc::ptr_eq(buffer.device(), device) && !buffer.is_foreign() && buffer.last_use.is_never()
        };
        if !reserved.iter().all(is_new) {
            return Err(Error::invalid(OP, "new buffers of the device", "a buffer of another kind"));
        }
        watch::at_ops(op_begins);
        let before = device.collectives.before_pass();
        // The first point. Earlier users of the reserved memory are enqueued before it, because the
        // pool gives memory out again only once they are.
        let first = Point { op: 0, event: device.stream().mark()? };
        let number = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        let capture = device.captures.number();
        let (device, points, launches) = (device.clone(), vec![first], trace::counts().launches());
        let pass = Open { device, number, op: 0, points, wanted, over: 0, launches, before, capture };
        OPEN.with(|open| match &mut *open.borrow_mut() {
            Some(_) => Err(Error::invalid(OP, "a thread without a pass", "a thread with one")),
            none => {
                *none = Some(pass);
                Ok(())
            }
        })?;
        let mut passes = OPEN_PASSES.lock().unwrap_or_else(PoisonError::into_inner);
        *passes += 1;
        watch::switch(watch::PASS, true);
        Ok(Self { number, reserved, _thread: PhantomData })
    }

    /// Ends the pass, with a last point.
    pub fn end(mut self) -> Points {
        let reserved = std::mem::take(&mut self.reserved);
        let mut open = self.close();
        if let Some(open) = &mut open {
            open.add_point();
        }
        let (ops, points, before, capture) =
            open.map_or_else(Default::default, |open| (open.op, open.points, open.before, open.capture));
        Points { pass: self.number, ops, points, reserved, before, capture }
    }

    /// Takes the pass off its thread.
    fn close(&mut self) -> Option<Open> {
        let open = OPEN.try_with(|open| open.borrow_mut().take()).ok().flatten()?;
        last_use::op_ends();
        let mut passes = OPEN_PASSES.lock().unwrap_or_else(PoisonError::into_inner);
        *passes -= 1;
        if *passes == 0 {
            watch::switch(watch::PASS, false);
        }
        Some(open)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass").field("number", &self.number).finish_non_exhaustive()
    }
}

/// The points of a pass that has ended.
pub struct Points {
    pass: u32,
    ops: u32,
    /// In the order of the stream.
    points: Vec<Point>,
    reserved: Vec<Arc<Buffer>>,
    /// The device's collectives before the pass.
    pub(crate) before: Before,
    /// The capture of which the pass was a part. Only work of the same capture can wait for its
    /// points.
    capture: Option<u64>,
}

impl Points {
    /// The number of the pass's ops.
    pub fn ops(&self) -> u32 {
        self.ops
    }

    /// How many points there are, with those at the pass's begin and end.
    pub fn count(&self) -> usize {
        self.points.len()
    }

    /// The number of the pass's last op that used one of the buffers, from 1; 0 for no buffers.
    /// `None` if a buffer was not used in the pass, or may be used by other work too.
    pub fn last_use<'a>(&self, buffers: impl IntoIterator<Item = &'a Arc<Buffer>>) -> Option<u32> {
        let mut last = 0;
        for buffer in buffers {
            // A replay may use it again at any time. Within one capture, all work belongs to the same
            // replay.
            if self.capture.is_none() && buffer.is_of_graph() {
                return None;
            }
            last = last.max(buffer.last_use.in_pass(self.pass)?);
        }
        Some(last)
    }

    /// The number of the op behind which the first point is that is behind this op.
    pub fn point_after(&self, op: u32) -> Option<u32> {
        self.find(op).map(|point| point.op)
    }

    /// The first point behind everything that used the buffers until now. `None` if there is none.
    pub fn behind<'a>(&self, buffers: impl IntoIterator<Item = &'a Arc<Buffer>>) -> Option<Behind<'_>> {
        let mut weak = Vec::new();
        let last = self.last_use(buffers.into_iter().inspect(|buffer| weak.push(Arc::downgrade(buffer))))?;
        Some(Behind { points: self, last, point: self.find(last)?, buffers: weak })
    }

    fn find(&self, op: u32) -> Option<&Point> {
        self.points.iter().find(|point| point.op >= op)
    }
}

/// A point behind all uses of some buffers until [`Points::behind`] found it, for another stream that
/// uses them. Nobody may use these buffers meanwhile, except that stream.
#[derive(Debug)]
pub struct Behind<'a> {
    pub(crate) points: &'a Points,
    last: u32,
    point: &'a Point,
    /// Weak, so that their owners can still be counted.
    buffers: Vec<Weak<Buffer>>,
}

impl Behind<'_> {
    /// The number of the pass's last op that used one of the buffers; 0 for no buffers.
    pub fn last_use(&self) -> u32 {
        self.last
    }

    /// The number of the op behind which the point is.
    pub fn point(&self) -> u32 {
        self.point.op
    }

    /// The point, for a stream that uses `used` and writes `written`. `None` if it does not cover one
    /// of them, or if the calling thread's capture is not the pass's. It covers the buffers that it
    /// was made for, and to write the pass's reserved buffers, as long as nobody uses them.
    pub(crate) fn event<'a>(
        &self,
        used: &[Arc<Buffer>],
        written: impl IntoIterator<Item = &'a Arc<Buffer>>,
    ) -> Option<&Event> {
        let covers =
            |buffer: &Arc<Buffer>| self.buffers.iter().any(|own| std::ptr::eq(own.as_ptr(), &**buffer));
        let is_new = |buffer: &Arc<Buffer>| {
            let reserved = self.points.reserved.iter().any(|own| Arc::ptr_eq(own, buffer));
            reserved && buffer.last_use.is_never()
        };
        let may_write = |buffer: &Arc<Buffer>| {
            buffer.device().captures.number() == self.points.capture && (covers(buffer) || is_new(buffer))
        };
        (used.iter().all(covers) && written.into_iter().all(may_write)).then_some(&self.point.event)
    }
}

impl fmt::Debug for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Point").field("op", &self.op).finish_non_exhaustive()
    }
}

impl fmt::Debug for Points {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let points: Vec<_> = self.points.iter().map(|point| point.op).collect();
        f.debug_struct("Points").field("ops", &self.ops).field("points", &points).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace;

    fn device() -> Arc<Device> {
        Device::get(0).expect("a provider with a device")
    }

    /// An op that uses the buffers.
    fn use_in_op(device: &Device, buffers: &[&Buffer]) {
        let _op = trace::op("pass test", || "");
        // Inside, an op is no op of the pass.
        let _inner = trace::op("inner", || "");
        for buffer in buffers {
            device.fill_bytes(buffer, 0, 1, 4).expect("a fill");
        }
    }

    fn buffer(device: &Arc<Device>) -> Arc<Buffer> {
        Arc::new(device.alloc(4).expect("memory"))
    }

    #[test]
    fn points_are_behind_the_wanted_ops_and_at_both_ends() {
        let device = device();
        let [a, b, c, out] = [(); 4].map(|()| buffer(&device));
        let pass = Pass::begin(&device, vec![out.clone()], vec![2, 3, 9]).expect("a pass");
        for used in [&[&*a][..], &[&*b], &[&*a, &*c], &[], &[&*c]] {
            use_in_op(&device, used);
        }
        let points = pass.end();
        let behind: Vec<u32> = points.points.iter().map(|point| point.op).collect();
        assert_eq!((points.ops(), &behind[..]), (5, &[0, 2, 3, 5][..]));
        let last = |buffers: &[&Arc<Buffer>]| points.last_use(buffers.iter().copied());
        assert_eq!(
            [last(&[]), last(&[&a]), last(&[&b]), last(&[&a, &b])],
            [Some(0), Some(3), Some(2), Some(3)]
        );
        assert_eq!([0, 1, 4, 6].map(|op| points.point_after(op)), [Some(0), Some(2), Some(5), None]);
        let point = |used: &Arc<Buffer>, written: &[&Arc<Buffer>]| {
            let behind = points.behind([used])?;
            behind.event(std::slice::from_ref(used), written.iter().copied()).map(std::ptr::from_ref)
        };
        let first = Some(std::ptr::from_ref(&points.points[1].event));
        assert_eq!((point(&b, &[&out]), point(&b, &[&b]), point(&b, &[&b, &out])), (first, first, first));
        assert!(
            point(&b, &[&a]).is_none() && point(&b, &[&out, &a]).is_none(),
            "neither its own nor reserved"
        );
        let behind = points.behind([&b]).expect("a point");
        assert_eq!((behind.last_use(), behind.point()), (2, 2));
        assert!(
            behind.event(std::slice::from_ref(&a), [&out]).is_none(),
            "it is not behind that buffer's uses"
        );
        // The stream that waits for the point uses it.
        b.lend();
        assert_eq!(behind.event(std::slice::from_ref(&b), [&b]).map(std::ptr::from_ref), first);
        assert!(point(&b, &[&out]).is_none() && last(&[&a, &b]).is_none());
        out.address();
        assert!(point(&a, &[&out]).is_none(), "the result was used meanwhile");
    }

    #[test]
    fn without_wishes_there_is_a_point_after_every_few_launches() {
        let device = device();
        let filled = buffer(&device);
        let pass = Pass::begin(&device, vec![], vec![]).expect("a pass");
        for _ in 0..3 * EVERY + 1 {
            use_in_op(&device, &[&filled]);
        }
        let points = pass.end();
        let behind: Vec<u64> = points.points.iter().map(|point| point.op.into()).collect();
        assert_eq!(behind, [0, EVERY, 2 * EVERY, 3 * EVERY, 3 * EVERY + 1]);
    }

    #[test]
    fn a_use_that_is_not_of_an_op_of_the_pass_is_unknown() {
        let device = device();
        let all: [_; 5] = std::array::from_fn(|_| buffer(&device));
        let [outside, before, other, earlier, after] = &all;
        before.address();
        let first = Pass::begin(&device, vec![], vec![]).expect("a pass");
        use_in_op(&device, &[earlier]);
        drop(first);
        let pass = Pass::begin(&device, vec![], vec![]).expect("the first pass has ended");
        assert!(Pass::begin(&device, vec![], vec![]).is_err(), "a second pass on this thread");
        outside.address();
        std::thread::scope(|scope| drop(scope.spawn(|| use_in_op(&device, &[other]))));
        use_in_op(&device, &[outside, before, other, after]);
        let points = pass.end();
        use_in_op(&device, &[after]);
        for (index, buffer) in all.iter().enumerate() {
            assert_eq!(points.last_use([buffer]), None, "{index}");
        }
        assert!(Pass::begin(&device, vec![outside.clone()], vec![]).is_err(), "a used buffer");
    }

    /// A point inside `uncaptured` is on another stream than the pass.
    #[test]
    fn a_pass_of_a_capture_has_no_points_outside_of_it() {
        let device = device();
        let (inside, outside) = (buffer(&device), buffer(&device));
        device.start_capture().expect("a capture");
        let pass = Pass::begin(&device, vec![], vec![1, 2]).expect("a pass");
        use_in_op(&device, &[&inside]);
        crate::uncaptured(|| use_in_op(&device, &[&outside]));
        use_in_op(&device, &[&inside]);
        let points = pass.end();
        drop(device.stop_capture().expect("a graph"));
        let behind: Vec<u32> = points.points.iter().map(|point| point.op).collect();
        assert_eq!(behind, [0, 2, 3], "the point behind the first op would be outside");
    }
}
