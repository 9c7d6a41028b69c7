//! The all-reduces of Burn's distributed training. Burn asks for them one tensor at a time, from
//! one thread for all devices or from a thread for each. The call of the last device completes an
//! all-reduce.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hip::{Communicator, Error, Group, Part, ReduceOp, Work};

use super::copy::packed;
use crate::device::RocmDevice;
use crate::error::invalid;
use crate::meeting::Meeting;
use crate::tensor::{RocmTensor, float_type};

const OP: &str = "all_reduce";

/// Completed all-reduces wait until they have this many bytes on a device or until a sync, and are
/// then issued together. That saves launches for small gradients; larger ones overlap the rest of
/// the backward pass.
const TOGETHER: usize = 4 << 20;

/// All groups of devices that have reduced together, by their indices in ascending order.
static TEAMS: LazyLock<Teams> = LazyLock::new(Teams::default);

#[derive(Default)]
struct Teams {
    all: Mutex<HashMap<Vec<usize>, Team>>,
    /// Signalled when calls were completed or failed.
    changed: Condvar,
}

/// A group of devices.
#[derive(Default)]
struct Team {
    /// One for each device. Empty before the first all-reduce.
    communicators: Vec<Communicator>,
    /// For each device, the calls that wait for those of the other devices.
    waiting: Vec<VecDeque<Call>>,
    /// Completed all-reduces that were not issued yet, with a call of each device.
    complete: Vec<Vec<Call>>,
    /// All-reduces that the devices' compute streams don't wait for yet.
    issued: Vec<Work>,
    /// For each device, the error that its next sync returns.
    failed: Vec<Option<Error>>,
}

/// What a device asked for.
struct Call {
    op: ReduceOp,
    input: RocmTensor,
    output: RocmTensor,
}

impl Call {
    /// The call in an error's text.
    fn text(&self) -> String {
        format!("{OP}({:?}) of {:?} of {}", self.op, self.input.dims(), self.input.dtype_of().name())
    }

    fn bytes(&self) -> usize {
        self.input.len() * self.input.dtype_size()
    }
}

/// Reduces the tensor with those for which the other devices make this call. Each device's calls
/// are taken in order. Returns the result, which must not be used before [`sync`] has returned for
/// the tensor's device. Never waits for other calls.
///
/// # Errors
/// `Invalid` if `devices` lists a device twice or lacks the tensor's; `Unsupported` for a dtype
/// that is not a float type; an error of the device. All other errors are returned by [`sync`].
pub(crate) fn all_reduce(tensor: RocmTensor, op: ReduceOp, devices: &[usize]) -> hip::Result<RocmTensor> {
    float_type(OP, &tensor)?;
    let mut team = devices.to_vec();
    team.sort_unstable();
    let own = tensor.rocm_device().index;
    let at = team.binary_search(&own);
    let (Ok(at), true) = (at, team.windows(2).all(|pair| pair[0] < pair[1])) else {
        return invalid(OP, format!("different devices, one of them {own}"), format!("{devices:?}"));
    };
    if team.len() == 1 || tensor.is_empty() {
        return Ok(tensor);
    }
    tensor.hip_device().refuse_dry(OP, "other ranks would wait for it")?;
    let input = packed(tensor)?;
    // The reduction runs after this op.
    let output = input.empty_like()?.skip_check();
    let mut all = TEAMS.lock();
    let entry = all.entry(team.clone()).or_insert_with(|| Team::of(team.len()));
    entry.waiting[at].push_back(Call { op, input, output: output.clone() });
    entry.complete(&team);
    drop(all);
    TEAMS.changed.notify_all();
    Ok(output)
}

/// Makes the device's later ops wait for its all-reduces. Waits on the host until every other
/// device has made its calls, at most for the collectives' timeout.
///
/// # Errors
/// `Mismatch` if the devices' calls differ; `Collective` if a device did not make its call in time
/// or the library failed; `NotAvailable` if there is no library.
pub(crate) fn sync(device: &RocmDevice) -> hip::Result<()> {
    let timeout = hip::collective_timeout()?;
    let until = Instant::now() + timeout;
    let own = device.index;
    let mut all = TEAMS.lock();
    loop {
        let open = all.iter_mut().find_map(|(team, state)| {
            let at = team.binary_search(&own).ok()?;
            (!state.waiting[at].is_empty()).then_some((team, state, at))
        });
        let Some((team, state, at)) = open else { break };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let error = state.give_up(team, at, timeout);
            drop(all);
            TEAMS.changed.notify_all();
            return Err(error);
        }
        all = TEAMS.changed.wait_timeout(all, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    for (team, state) in all.iter_mut() {
        let Ok(at) = team.binary_search(&own) else { continue };
        state.issue(team);
        // A failed join is a failure of all devices of the group.
        for work in std::mem::take(&mut state.issued) {
            if let Err(error) = work.join() {
                state.communicators.clear();
                state.fail(&error);
            }
        }
        if let Some(error) = state.failed[at].take() {
            return Err(error);
        }
    }
    Ok(())
}

/// The threads of the training for which Burn's server runs, one for each device.
static TRAINING: Mutex<Option<Arc<Meeting>>> = Mutex::new(None);

fn training() -> MutexGuard<'static, Option<Arc<Meeting>>> {
    TRAINING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins a training with so many threads, which [`meet`].
pub(crate) fn open(threads: usize) {
    *training() = Some(Arc::new(Meeting::of(threads)));
}

/// Waits until all threads of the training have called this.
///
/// # Errors
/// `Collective` if they have not after the collectives' timeout.
pub(crate) fn meet() -> hip::Result<()> {
    let meeting = training().clone();
    let Some(meeting) = meeting else { return Ok(()) };
    meeting.meet("the backward pass of every device", hip::collective_timeout()?, || Ok(()))
}

/// Ends the training, and leaves all groups that no call waits in.
pub(crate) fn close() {
    *training() = None;
    let mut left = Vec::new();
    let mut all = TEAMS.lock();
    all.retain(|_, team| {
        let busy = team.waiting.iter().any(|calls| !calls.is_empty()) || !team.complete.is_empty();
        if !busy {
            left.push(std::mem::take(team));
        }
        busy
    });
    // Leaving a group may wait for its work, so the lock is free by then.
    drop(all);
}

impl Teams {
    /// A poisoned lock is harmless: a panic inside leaves no call half taken.
    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<usize>, Team>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Team {
    fn of(size: usize) -> Self {
        Self {
            waiting: (0..size).map(|_| VecDeque::new()).collect(),
            failed: vec![None; size],
            ..Self::default()
        }
    }

    /// Takes the all-reduces for which every device's call is there.
    fn complete(&mut self, team: &[usize]) {
        while self.waiting.iter().all(|calls| !calls.is_empty()) {
            let calls: Vec<Call> = self.waiting.iter_mut().filter_map(VecDeque::pop_front).collect();
            match differ(team, &calls) {
                Some(error) => self.fail(&error),
                None => self.complete.push(calls),
            }
        }
        let bytes: usize = self.complete.iter().map(|calls| calls[0].bytes()).sum();
        if bytes >= TOGETHER {
            self.issue(team);
        }
    }

    /// Issues the completed all-reduces as one group.
    fn issue(&mut self, team: &[usize]) {
        let complete = std::mem::take(&mut self.complete);
        if complete.is_empty() {
            return;
        }
        match self.try_issue(team, &complete) {
            Ok(work) => self.issued.push(work),
            Err(error) => {
                // A group that failed stays failed. The next all-reduce makes a new one.
                self.communicators.clear();
                self.fail(&error);
            }
        }
    }

    fn try_issue(&mut self, team: &[usize], complete: &[Vec<Call>]) -> hip::Result<Work> {
        if self.communicators.is_empty() {
            let devices =
                team.iter().map(|&index| RocmDevice::new(index).open()).collect::<hip::Result<Vec<_>>>()?;
            self.communicators = Communicator::local(&devices)?;
        }
        let mut group = Group::new();
        for calls in complete {
            for (communicator, Call { op, input, output }) in self.communicators.iter().zip(calls) {
                let send = Part { buffer: input.shared_buffer()?, offset: input.layout().offset() };
                let recv = Part::whole(output.shared_buffer()?);
                group.all_reduce(communicator, *op, input.kernel_type()?, input.len(), send, recv)?;
            }
            let outputs = calls.iter().map(|call| call.output.buffer());
            hip::carry_faults(calls.iter().map(|call| call.input.buffer()), outputs);
        }
        group.start()
    }

    /// Keeps the error for the next sync of every device.
    fn fail(&mut self, error: &Error) {
        for failed in &mut self.failed {
            failed.get_or_insert_with(|| error.clone());
        }
    }

    /// Drops the calls that were not completed in time. Returns the error, which the other devices
    /// get too.
    fn give_up(&mut self, team: &[usize], at: usize, timeout: Duration) -> Error {
        let missing: Vec<String> = team
            .iter()
            .zip(&self.waiting)
            .filter(|(_, calls)| calls.is_empty())
            .map(|(index, _)| format!("rocm:{index}"))
            .collect();
        let call = self.waiting[at].front().map(Call::text).unwrap_or_default();
        let error = Error::Collective {
            call: OP,
            name: "timeout".into(),
            detail: format!(
                "rocm:{} called {call}, and {} did not within {timeout:?}",
                team[at],
                missing.join(", ")
            ),
        };
        self.waiting.iter_mut().for_each(VecDeque::clear);
        self.fail(&error);
        self.failed[at] = None;
        error
    }
}

/// The error if the devices' calls are not the same.
fn differ(team: &[usize], calls: &[Call]) -> Option<Error> {
    let same = |call: &Call| {
        (call.op, call.input.dims(), call.input.dtype_of())
            == (calls[0].op, calls[0].input.dims(), calls[0].input.dtype_of())
    };
    let other = calls.iter().position(|call| !same(call))?;
    debug_assert_eq!(team.len(), calls.len());
    Some(Error::Mismatch {
        rank: 0,
        call: calls[0].text(),
        other_rank: other,
        other_call: calls[other].text(),
    })
}
