//! Collectives: groups of ranks, each of which is one device, of this process or of others.

pub(crate) mod call;
pub(crate) mod captured;
mod compare;
pub(crate) mod element;
pub(crate) mod group;
pub(crate) mod id;
mod in_graph;
mod ledger;
mod library;
mod member;
pub(crate) mod work;

use std::fmt;
use std::sync::Arc;

use crate::collective::call::{Call, Kind, Part, ReduceOp};
use crate::collective::element::Element;
use crate::collective::group::{Beside, issue_beside};
use crate::collective::id::UniqueId;
use crate::collective::ledger::Ledger;
use crate::collective::member::Member;
use crate::collective::work::Work;
use crate::device::Device;
use crate::device::pass::{Behind, Points};
use crate::device::stream::Stream;
use crate::error::{Error, Result};
use crate::launch::kernel::Kernel;
use crate::memory::buffer::Buffer;
use crate::memory::last_use::not_noted;
use crate::rendezvous::Rendezvous;
use crate::settings::settings;

/// One rank of a group: one device.
///
/// A rank has a stream of its own. A call is enqueued there, behind everything that the device's
/// compute stream has been given, and returns a [`Work`]. [`Work::join`] makes the compute stream
/// wait for it. What is enqueued in between runs at the same time.
///
/// All ranks make the same collectives in the same order. RCCL does not check this. Ranks of one
/// process and ranks on CPU devices are compared always, others with
/// [`Config::collective_check`](crate::Config::collective_check). A difference is
/// [`Error::Mismatch`], which names both calls. Between processes on CPU devices it is
/// [`Error::Collective`] unless the setting is on: the CPU device's library finds it there, and its text
/// names both calls as RCCL's functions.
///
/// If a rank dies, aborts, or makes other calls, the group fails: the other ranks' calls end and
/// return an error, at the latest after
/// [`Config::collective_timeout`](crate::Config::collective_timeout). Every later call returns the
/// same error. Results of calls that had not ended are lost, so the device's next read or sync
/// returns it too.
///
/// A thread that captures a graph captures its calls too
/// ([`Device::start_capture`](crate::Device::start_capture)). All ranks capture the same calls and
/// then replay the graphs together, each in a thread or process of its own.
///
/// On CPU devices and with some libraries a call waits for the other ranks. So a thread that drives
/// several ranks issues their calls in one [`Group`](crate::Group).
///
/// A device may be in several groups. Then all ranks issue the groups' collectives in one order, and
/// join those of one group before they start those of the next: two groups' collectives that run
/// side by side may wait for each other.
///
/// ```
/// use hip::{Communicator, DType, Device, Group, Part, ReduceOp};
/// use std::sync::Arc;
///
/// // One process with all devices. `Communicator::connect` joins those of several processes.
/// let devices: Vec<_> = (0..Device::count()?).map(Device::get).collect::<Result<_, _>>()?;
/// let ranks = Communicator::local(&devices)?;
/// let mut buffers = Vec::new();
/// for device in &devices {
///     buffers.push(Arc::new(device.upload(&2.5f32.to_ne_bytes())?));
/// }
/// let mut group = Group::new();
/// for (rank, buffer) in ranks.iter().zip(&buffers) {
///     group.all_reduce(rank, ReduceOp::Sum, DType::F32, 1, Part::whole(buffer), Part::whole(buffer))?;
/// }
/// group.start()?.join()?;
/// let mut sum = [0; 4];
/// devices[0].read(&buffers[0], 0, &mut sum)?;
/// assert_eq!(f32::from_ne_bytes(sum), 2.5 * ranks.len() as f32);
/// # Ok::<(), hip::Error>(())
/// ```
pub struct Communicator(Arc<Member>);

impl Communicator {
    /// Joins the group `id` as `rank` of `size` ranks. Waits for the other ranks, so each has its
    /// own thread or process.
    ///
    /// # Errors
    /// `NotAvailable` if RCCL is missing, with the package to install; `Invalid` for a rank that is
    /// not below `size`, is taken, or disagrees with other ranks about `size`; `Collective` if
    /// another rank does not come in time, or RCCL fails, for instance because two ranks have one
    /// device; `Capture` if this thread captures a graph.
    pub fn new(device: &Arc<Device>, id: &UniqueId, rank: usize, size: usize) -> Result<Self> {
        let op = "Communicator::new";
        if i32::try_from(size).is_err() {
            return Err(Error::invalid(op, format!("at most {} ranks", i32::MAX), size.to_string()));
        }
        if rank >= size {
            return Err(Error::invalid(op, format!("a rank below the {size} ranks"), format!("rank {rank}")));
        }
        device.refuse_captured(op, "a rank joins with a stream of its own")?;
        Member::join(device, id, rank, size, settings()?.collective_timeout).map(Self)
    }

    /// A group of devices of this process. Rank `i` is `devices[i]`.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn local(devices: &[Arc<Device>]) -> Result<Vec<Self>> {
        let op = "Communicator::local";
        if devices.is_empty() {
            return Err(Error::invalid(op, "at least one device", "none"));
        }
        // Checked here, because the threads below are not the one that captures.
        for device in devices {
            device.refuse_captured(op, "a rank joins with a stream of its own")?;
        }
        let id = UniqueId::new()?;
        // Keeps the ledger alive: a rank that begins after another has failed must find the
        // failure.
        let _ledger = Ledger::of(&id, devices.len());
        std::thread::scope(|scope| {
            let join = |(rank, device)| scope.spawn(move || Self::new(device, &id, rank, devices.len()));
            let ranks: Vec<_> = devices.iter().enumerate().map(join).collect();
            let panicked = |_| Err(Error::invalid(op, "ranks that join", "a panic"));
            let joined: Vec<Result<Self>> =
                ranks.into_iter().map(|rank| rank.join().unwrap_or_else(panicked)).collect();
            if joined.iter().any(Result::is_err) {
                // Otherwise each waits for the others when it is dropped.
                joined.iter().flatten().for_each(Self::abort);
            }
            joined.into_iter().collect()
        })
    }

    /// A group of all processes of a rendezvous, each with one device. All of them call it.
    ///
    /// # Errors
    /// As for [`new`](Self::new), and `Collective` if another process could not begin.
    pub fn connect(device: &Arc<Device>, rendezvous: &Rendezvous) -> Result<Self> {
        let world = rendezvous.world();
        // Before the group begins, where a process that lacks something would let the others wait.
        let ready = device
            .refuse_captured("Communicator::connect", "a rank joins with a stream of its own")
            .and_then(|()| device.provider().rccl().map(drop));
        let why = ready.as_ref().err().map(Error::to_string).unwrap_or_default();
        let all = rendezvous.gather(&why.as_bytes()[..why.floor_char_boundary(4096)])?;
        ready?;
        if let Some((rank, why)) = all.iter().enumerate().find(|(_, why)| !why.is_empty()) {
            return Err(Error::Collective {
                call: "Communicator::connect",
                name: "absent".into(),
                detail: format!("rank {rank} can't join: {}", String::from_utf8_lossy(why)),
            });
        }
        // If rank 0 has no id, it says so by sending nothing.
        let own = if world.rank == 0 { Some(UniqueId::new()) } else { None };
        let sent = match &own {
            Some(Ok(id)) => id.as_bytes().as_slice(),
            _ => &[],
        };
        let bytes = rendezvous.broadcast(sent)?;
        if let Some(own) = own {
            return Self::new(device, &own?, world.rank, world.size);
        }
        if bytes.is_empty() {
            return Err(Error::Collective {
                call: "Communicator::connect",
                name: "absent".into(),
                detail: "rank 0 could not begin the group; its own error says why".into(),
            });
        }
        Self::new(device, &UniqueId::from_bytes(&bytes)?, world.rank, world.size)
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// This rank's device.
    pub fn device(&self) -> &Arc<Device> {
        &self.0.device
    }

    fn member(&self) -> &Arc<Member> {
        &self.0
    }

    /// Reduces `count` elements: every rank's `recv[i]` becomes the reduction of all ranks'
    /// `send[i]`. `recv` may be `send`.
    ///
    /// # Errors
    /// Nothing is enqueued after these: `Unsupported` for a type that RCCL can't reduce (`i16`, `u16`,
    /// bools, and fp8 on some GPUs: [`Element::Fp8`]); `Invalid` for a range outside its buffer, on
    /// another device, or that overlaps the other one in part. After these the group has failed:
    /// `Mismatch` if another rank is known to have made another call ([`Communicator`] says which ranks are
    /// compared); `Collective` if RCCL failed, or another rank died, left or did not come in time.
    /// The other calls return them too.
    pub fn all_reduce(
        &self,
        op: ReduceOp,
        dtype: impl Into<Element>,
        count: usize,
        send: Part<'_>,
        recv: Part<'_>,
    ) -> Result<Work> {
        self.issue((Kind::AllReduce(op), dtype.into(), count), Some(send), Some(recv))
    }

    /// As [`all_reduce`](Self::all_reduce) and [`Work::join`]. In a capture, if all earlier calls of the
    /// rank are joined, the call is recorded on the captured stream itself. Then the graph needs no
    /// branch for it, and nothing runs beside it.
    ///
    /// # Errors
    /// As for both.
    pub fn all_reduce_joined(
        &self,
        op: ReduceOp,
        dtype: impl Into<Element>,
        count: usize,
        send: Part<'_>,
        recv: Part<'_>,
    ) -> Result<()> {
        self.issue_joined((Kind::AllReduce(op), dtype.into(), count), send, recv)
    }

    /// Fills parts of buffers on this rank's stream, and reduces each in place, as
    /// [`all_reduce`](Self::all_reduce) does, in one call of RCCL. A part is given with its number of
    /// elements. All runs beside the compute stream: behind a point of a pass, not behind all work that
    /// the compute stream has received. Returns `None` and enqueues nothing if `behind` does not cover
    /// `inputs` and the parts; or if a collective of another group could run side by side with this
    /// one: the device has issued it since the pass began, or it was not joined when the pass began.
    ///
    /// A point covers the buffers that it was made for, and to write them the pass's reserved buffers,
    /// unless these were used since.
    ///
    /// `prepare` loads the kernels, which may compile them, and builds their launches. It returns a
    /// function that enqueues the launches on the stream that it gets, by [`Launch::submit_on`].
    /// They read `inputs` and `constants`, and write the parts. Nobody may use these buffers before
    /// the result is joined, except to read `constants`. Work that writes `constants` was enqueued
    /// before the pass began.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce). An error of `prepare`, or of what it returns, is the
    /// group's failure: the other ranks need not have it, and would wait for this one.
    ///
    /// [`Launch::submit_on`]: crate::Launch::submit_on
    pub fn all_reduce_beside<F>(
        &self,
        behind: &Behind<'_>,
        [inputs, constants]: [&[Arc<Buffer>]; 2],
        op: ReduceOp,
        dtype: impl Into<Element>,
        parts: &[(Part<'_>, usize)],
        prepare: impl FnOnce() -> Result<F>,
    ) -> Result<Option<Work>>
    where
        F: FnMut(&Stream, &mut Vec<Arc<Kernel>>) -> Result<()>,
    {
        if self.0.others_since(behind.points) {
            return Ok(None);
        }
        let dtype = dtype.into();
        let written = parts.iter().map(|(part, _)| part.buffer);
        let Some(point) = behind.event(inputs, written) else { return Ok(None) };
        let checked = |&(part, count): &(Part<'_>, usize)| {
            let call = Call { kind: Kind::AllReduce(op), dtype, count };
            call.prepare(self.device(), (self.rank(), self.size()), Some(part), Some(part))
        };
        let prepared = parts.iter().map(checked).collect::<Result<Vec<_>>>()?;
        let buffers = inputs.iter().chain(constants).cloned().collect();
        // Before the call: if another rank fails while a thread is in a call, that call must
        // return within `RETURNS` (`member.rs`), and a compilation may take longer. What
        // uses the buffers is enqueued by the call, whose work covers these uses.
        let mut fill = not_noted(prepare).map_err(|error| self.0.fail(error))?;
        // Asks for other groups' collectives again: other threads may have issued some meanwhile.
        issue_beside(&self.0, &prepared, behind.points, Beside { point, fill: &mut fill, buffers })
    }

    /// Copies `count` elements of the root's `send` to every rank's `recv`. The other ranks' `send`
    /// is not looked at. `recv` may be `send`.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce), but with every dtype; `Invalid` for a root that is
    /// no rank.
    pub fn broadcast(
        &self,
        dtype: impl Into<Element>,
        count: usize,
        root: usize,
        send: Part<'_>,
        recv: Part<'_>,
    ) -> Result<Work> {
        self.issue((Kind::Broadcast(root), dtype.into(), count), Some(send), Some(recv))
    }

    /// As [`all_reduce`](Self::all_reduce), but only the root gets the reduction. The other ranks'
    /// `recv` is not looked at.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); `Invalid` for a root that is no rank.
    pub fn reduce(
        &self,
        op: ReduceOp,
        dtype: impl Into<Element>,
        count: usize,
        root: usize,
        send: Part<'_>,
        recv: Part<'_>,
    ) -> Result<Work> {
        self.issue((Kind::Reduce(op, root), dtype.into(), count), Some(send), Some(recv))
    }

    /// Gathers `count` elements of each rank: `recv[r * count + i]` becomes rank r's `send[i]`, so
    /// `recv` has `size * count` elements. `send` may be this rank's part of `recv`.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce), but with every dtype.
    pub fn all_gather(
        &self,
        dtype: impl Into<Element>,
        count: usize,
        send: Part<'_>,
        recv: Part<'_>,
    ) -> Result<Work> {
        self.issue((Kind::AllGather, dtype.into(), count), Some(send), Some(recv))
    }

    /// As [`all_gather`](Self::all_gather), joined as by [`all_reduce_joined`](Self::all_reduce_joined).
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce), but with every dtype.
    pub fn all_gather_joined(
        &self,
        dtype: impl Into<Element>,
        count: usize,
        send: Part<'_>,
        recv: Part<'_>,
    ) -> Result<()> {
        self.issue_joined((Kind::AllGather, dtype.into(), count), send, recv)
    }

    /// Reduces `size * count` elements, and gives each rank its part: rank r's `recv[i]` becomes the
    /// reduction of all ranks' `send[r * count + i]`. `recv` may be this rank's part of `send`.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter(
        &self,
        op: ReduceOp,
        dtype: impl Into<Element>,
        count: usize,
        send: Part<'_>,
        recv: Part<'_>,
    ) -> Result<Work> {
        self.issue((Kind::ReduceScatter(op), dtype.into(), count), Some(send), Some(recv))
    }

    /// Sends `count` elements to a rank that receives as many of the same dtype. Two ranks that send
    /// to each other do so in a [`Group`](crate::Group), as does a rank that sends to itself.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce), but with every dtype; `Invalid` for a peer that is
    /// no rank.
    pub fn send(&self, dtype: impl Into<Element>, count: usize, peer: usize, send: Part<'_>) -> Result<Work> {
        self.issue((Kind::Send(peer), dtype.into(), count), Some(send), None)
    }

    /// Receives what a rank sends.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn receive(
        &self,
        dtype: impl Into<Element>,
        count: usize,
        peer: usize,
        recv: Part<'_>,
    ) -> Result<Work> {
        self.issue((Kind::Receive(peer), dtype.into(), count), None, Some(recv))
    }

    /// Whether this rank has issued a collective since the pass began. Its later collectives run
    /// behind that one, so they wait for more than the points of the pass.
    pub fn issued_since(&self, points: &Points) -> bool {
        self.0.issued_since(points)
    }

    /// Asks whether the group has failed.
    ///
    /// # Errors
    /// Its failure.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Gives the group up: the other ranks get an error instead of waiting for this one. A rank
    /// whose thread panics does so by itself.
    pub fn abort(&self) {
        self.0.fail(Error::Collective {
            call: "Communicator::abort",
            name: "aborted".into(),
            detail: format!("rank {} of {} gave the group up", self.rank(), self.size()),
        });
    }
}

impl Drop for Communicator {
    /// Leaves the group, after this rank's work. The last rank of a process may wait until the
    /// group's other ranks leave too, at most a little longer than
    /// [`Config::collective_timeout`](crate::Config::collective_timeout). On CPU devices that is the
    /// process that made the group's id.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abort();
        }
        self.0.leave();
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .field("device", &self.device().info().index)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use super::*;
    use hip_kernels::DType;

    use crate::device::pass::Pass;
    use crate::provider::Provider;
    use crate::{Dry, Group, trace};

    /// A rank alone on a device of its own, and two buffers.
    fn rank() -> (Communicator, Arc<Device>, [Arc<Buffer>; 2]) {
        let device = Arc::new(Device::new(Provider::altered(|_| ()), 0).expect("a device"));
        let rank = Communicator::local(std::slice::from_ref(&device)).expect("a group").remove(0);
        let buffers = [(); 2].map(|()| Arc::new(device.alloc(16).expect("memory")));
        (rank, device, buffers)
    }

    /// The points of a pass in which an op writes the buffer.
    fn pass(device: &Arc<Device>, written: &Buffer, out: &Arc<Buffer>) -> Points {
        let pass = Pass::begin(device, vec![out.clone()], vec![]).expect("a pass");
        {
            let _op = trace::op("collective test", || "");
            device.fill_bytes(written, 0, 0, 16).expect("a fill");
        }
        pass.end()
    }

    /// Reduces the buffers beside the pass, behind the input's last use.
    fn beside<F>(
        rank: &Communicator,
        points: &Points,
        input: &Arc<Buffer>,
        out: &[&Arc<Buffer>],
        prepare: impl FnOnce() -> Result<F>,
    ) -> Result<Option<Work>>
    where
        F: FnMut(&Stream, &mut Vec<Arc<Kernel>>) -> Result<()>,
    {
        let Some(behind) = points.behind([input]) else { return Ok(None) };
        let parts: Vec<_> = out.iter().map(|out| (Part::whole(out), 4)).collect();
        let inputs = [std::slice::from_ref(input), &[]];
        rank.all_reduce_beside(&behind, inputs, ReduceOp::Sum, DType::F32, &parts, prepare)
    }

    fn nothing() -> Result<impl FnMut(&Stream, &mut Vec<Arc<Kernel>>) -> Result<()>> {
        Ok(|_: &Stream, _: &mut Vec<Arc<Kernel>>| Ok(()))
    }

    /// Without RCCL, the error says what to install and that one device does not need it. Indeed,
    /// the device computes before and after.
    #[test]
    fn without_rccl_one_device_works() {
        let device = Arc::new(Device::new(Provider::without_rccl(), 0).expect("a device"));
        let works = || {
            let buffer = device.alloc(16).expect("memory");
            device.fill_bytes(&buffer, 0, 7, 16).expect("a fill");
            let mut found = [0; 16];
            device.read(&buffer, 0, &mut found).expect("a read");
            assert_eq!(found, [7; 16]);
        };
        works();
        let id = UniqueId::new().expect("the other provider's");
        let joined = Communicator::new(&device, &id, 0, 1).map(drop);
        let local = Communicator::local(std::slice::from_ref(&device)).map(drop);
        for error in [joined, local].map(|result| result.expect_err("there is no RCCL")) {
            assert!(matches!(error, Error::NotAvailable { .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("Several devices need it, one does not"), "{text}");
            let packages = ["install the package `rccl` of AMD", "`librccl1` of Debian"];
            let packages = if cfg!(windows) { ["no RCCL for Windows"; 2] } else { packages };
            assert!(packages.iter().all(|package| text.contains(package)), "{text}");
        }
        works();
    }

    /// The other rank hears of the failure, and does not wait for this one until the timeout.
    #[test]
    fn a_rank_that_can_not_begin_fails_the_others() {
        use std::time::{Duration, Instant};
        let device = Arc::new(Device::new(Provider::altered(|_| ()), 0).expect("a device"));
        let dry = Dry::new(&device, None).expect("a dry device");
        for devices in [[&device, dry.device()], [dry.device(), &device]] {
            let begun = Instant::now();
            let joined = Communicator::local(&devices.map(Arc::clone));
            let error = joined.expect_err("a dry device joins nothing");
            assert!(matches!(error, Error::Dry { .. }), "{error}");
            // Far below the timeout of 600 seconds.
            assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        }
    }

    /// Calls of two groups are issued together, and one of the groups has failed. The other one's
    /// ranks must not wait for a call that is not made, and a capture without it is no graph.
    #[test]
    fn calls_that_one_group_refuses_fail_the_other_groups() {
        for captured in [false, true] {
            let (rank, device, [summed, others]) = rank();
            let other = Communicator::local(std::slice::from_ref(&device)).expect("a group").remove(0);
            other.abort();
            // Several ranks' calls are not captured together, but one rank's are.
            let both = [&rank, &other];
            let on = &both[usize::from(captured)..];
            if captured {
                device.start_capture().expect("a capture");
            }
            let mut calls = Group::new();
            for (&on, buffer) in on.iter().zip([&summed, &others]) {
                let part = Part::whole(buffer);
                calls.all_reduce(on, ReduceOp::Sum, DType::F32, 4, part, part).expect("valid arguments");
            }
            let error = calls.start().map(drop).expect_err("a group has failed");
            assert!(matches!(&error, Error::Collective { name, .. } if name == "aborted"), "{error}");
            match captured {
                true => assert_eq!(device.stop_capture().map(drop).expect_err("no call"), error),
                false => assert_eq!(rank.check().expect_err("its call is missing"), error),
            }
        }
    }

    /// One call reduces a buffer that the pass computed, and a reserved one. Nothing else may be
    /// written.
    #[test]
    fn what_the_pass_computed_is_reduced_in_place() {
        let (rank, device, [input, out]) = rank();
        let other = Arc::new(device.alloc(16).expect("memory"));
        let points = pass(&device, &input, &out);
        assert!(beside(&rank, &points, &input, &[&input, &other], nothing).expect("no call").is_none());
        let work = beside(&rank, &points, &input, &[&input, &out], nothing);
        work.expect("a call").expect("beside the pass").join().expect("a reduction");
        assert!(points.behind([&input]).is_none(), "other work may use it from now on");
        assert!(beside(&rank, &points, &input, &[&input], nothing).expect("no call").is_none());
    }

    /// A preparation may compile for seconds. In a call, the watching thread could abort the rank
    /// meanwhile.
    #[test]
    fn a_fill_is_prepared_before_the_call() {
        let (rank, device, [input, out]) = rank();
        let points = pass(&device, &input, &out);
        assert!(!rank.issued_since(&points));
        let prepare = || {
            assert!(!rank.0.is_calling());
            Ok(|_: &Stream, _: &mut Vec<Arc<Kernel>>| {
                assert!(rank.0.is_calling());
                Ok(())
            })
        };
        let work = beside(&rank, &points, &input, &[&out], prepare);
        work.expect("a call").expect("beside the pass").join().expect("a reduction");
        assert!(rank.issued_since(&points));

        let out = Arc::new(device.alloc(16).expect("memory"));
        let points = pass(&device, &input, &out);
        let refuse =
            || Err::<fn(&Stream, &mut Vec<Arc<Kernel>>) -> Result<()>, _>(Error::unsupported("t", DType::I8));
        let failed = beside(&rank, &points, &input, &[&out], refuse);
        assert!(matches!(failed, Err(Error::Unsupported { .. })));
        assert!(matches!(rank.check(), Err(Error::Unsupported { .. })), "the other ranks must not wait");
    }

    /// The compute stream does not wait for it, and the bucket's stream does not either.
    #[test]
    fn a_collective_that_was_not_joined_before_the_pass_is_seen() {
        let (rank, device, [input, out]) = rank();
        let other = Communicator::local(std::slice::from_ref(&device)).expect("a group").remove(0);
        let summed = Arc::new(device.alloc(16).expect("memory"));
        let part = Part::whole(&summed);
        let start =
            |on: &Communicator| on.all_reduce(ReduceOp::Sum, DType::F32, 4, part, part).expect("a call");
        let unjoined = start(&other);
        let points = pass(&device, &input, &out);
        assert!(rank.0.others_since(&points));
        unjoined.join().expect("a reduction");
        assert!(rank.0.others_since(&points), "the pass's points don't wait for it");
        let points = pass(&device, &input, &Arc::new(device.alloc(16).expect("memory")));
        assert!(!rank.0.others_since(&points));
        // Those of the same group run in order.
        let own = start(&rank);
        let points = pass(&device, &input, &Arc::new(device.alloc(16).expect("memory")));
        assert!(!rank.0.others_since(&points) && other.0.others_since(&points));
        drop(own);
        assert!(device.collectives.all_joined());
    }

    /// While a call waits for other ranks, another thread may begin a pass. Here the call's own
    /// thread does.
    #[test]
    fn a_collective_that_is_being_issued_is_seen() {
        let (rank, device, [input, out]) = rank();
        let other = Communicator::local(std::slice::from_ref(&device)).expect("a group").remove(0);
        let points = pass(&device, &input, &out);
        let begun = std::cell::OnceCell::new();
        let prepare = || {
            Ok(|_: &Stream, _: &mut Vec<Arc<Kernel>>| {
                let out = Arc::new(device.alloc(16).expect("memory"));
                begun.set(pass(&device, &input, &out)).expect("one call");
                Ok(())
            })
        };
        let work = beside(&other, &points, &input, &[&out], prepare);
        work.expect("a call").expect("beside the pass").join().expect("a reduction");
        let points = begun.get().expect("a pass");
        assert!(rank.0.others_since(points) && !other.0.others_since(points));
        assert!(device.collectives.all_joined());
    }

    /// A compilation takes seconds, in which another thread may issue one. Here the preparation does.
    #[test]
    fn a_collective_that_was_issued_during_the_preparation_is_seen() {
        let (rank, device, [input, out]) = rank();
        let other = Communicator::local(std::slice::from_ref(&device)).expect("a group").remove(0);
        let points = pass(&device, &input, &out);
        let prepare = || {
            let part = Part::whole(&input);
            other.all_reduce(ReduceOp::Sum, DType::F32, 4, part, part)?.join()?;
            Ok(|_: &Stream, _: &mut Vec<Arc<Kernel>>| Ok(()))
        };
        let work = beside(&rank, &points, &input, &[&out], prepare);
        assert!(work.expect("no call").is_none());
        assert!(!rank.issued_since(&points));
    }
}
