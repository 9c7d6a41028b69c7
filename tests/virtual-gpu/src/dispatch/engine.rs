//! The threads that run workgroups.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::dispatch::workgroup::{Turn, Workgroup};
use crate::dispatch::{Launch, LaunchError};
use crate::isa::Counters;

/// The most waves that a thread runs in turns if they wait for one another.
const RESIDENT_WAVES: u64 = 4096;
/// How many instructions a wave executes before it yields: at first, and the least to which this
/// shrinks once workgroups wait for others. Large enough that switching costs nothing, and small
/// enough that 4096 waiting waves do not take minutes.
const QUANTUM: u64 = 1 << 18;
const LEAST_QUANTUM: u64 = 1 << 12;
/// A workgroup that has yielded this often most likely waits for another one.
const PATIENCE: u32 = 3;

/// What a launch took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Workgroups of the grid.
    pub workgroups: u64,
    /// Instructions that waves executed.
    pub instructions: u64,
    /// What the waves did; all 0 unless the launch's behaviour asks for counters.
    pub counters: Counters,
}

/// A launch in progress.
struct Job {
    launch: Launch,
    /// The next workgroup to start.
    next: AtomicU64,
    count: u64,
    quantum: AtomicU64,
    /// Instructions of waves that ended.
    instructions: AtomicU64,
    counters: Mutex<Counters>,
    stop: AtomicBool,
    error: Mutex<Option<LaunchError>>,
}

#[derive(Default)]
struct Offers {
    /// Each job with the number of helpers at work on it.
    jobs: Vec<(Arc<Job>, usize)>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    offers: Mutex<Offers>,
    /// A job was offered, or the engine closed.
    offered: Condvar,
    /// A helper left a job.
    left: Condvar,
}

/// Runs launches. Any number of threads may call [`Engine::run`] at once; helpers join all of them.
pub struct Engine {
    shared: Arc<Shared>,
    helpers: Vec<std::thread::JoinHandle<()>>,
}

impl Engine {
    /// An engine that runs a launch on up to `threads` threads, the caller's among them. With one, a launch's
    /// workgroups always run in the same order.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let helper = |number| {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("virtual-gpu-{number}"));
            // Without a helper the others do the work.
            thread.spawn(move || shared.help()).ok()
        };
        let helpers = (1..threads).filter_map(helper).collect();
        Self { shared, helpers }
    }

    /// Runs a launch to its end, or until it is cancelled.
    ///
    /// # Errors
    /// The first fault of a wave. Workgroups that have not ended by then are abandoned.
    pub fn run(&self, mut launch: Launch) -> Result<Statistics, LaunchError> {
        launch.check()?;
        let count = launch.geometry.group_count();
        let job = Arc::new(Job {
            launch,
            next: AtomicU64::new(0),
            count,
            quantum: AtomicU64::new(QUANTUM),
            instructions: AtomicU64::new(0),
            counters: Mutex::default(),
            stop: AtomicBool::new(false),
            error: Mutex::default(),
        });
        let share = count > 1 && !self.helpers.is_empty();
        if share {
            self.shared.lock().jobs.push((Arc::clone(&job), 0));
            self.shared.offered.notify_all();
        }
        job.work();
        if share {
            let mut offers = self.shared.lock();
            while let Some(place) = offers.jobs.iter().position(|(other, _)| Arc::ptr_eq(other, &job)) {
                if offers.jobs[place].1 == 0 {
                    offers.jobs.swap_remove(place);
                    break;
                }
                offers = self.shared.left.wait(offers).unwrap_or_else(PoisonError::into_inner);
            }
        }
        let error = job.error.lock().unwrap_or_else(PoisonError::into_inner).take();
        let instructions = job.instructions.load(Ordering::Relaxed);
        let counters = std::mem::take(&mut *job.counters());
        error.map_or(Ok(Statistics { workgroups: count, instructions, counters }), Err)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.offered.notify_all();
        for helper in self.helpers.drain(..) {
            // A helper that panicked has already reported it.
            let _ = helper.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Offers> {
        self.offers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn help(&self) {
        let mut offers = self.lock();
        while !offers.closed {
            let Some((job, helpers)) = offers.jobs.iter_mut().find(|(job, _)| job.has_more()) else {
                offers = self.offered.wait(offers).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            *helpers += 1;
            let job = Arc::clone(job);
            drop(offers);
            job.work();
            offers = self.lock();
            if let Some((_, helpers)) = offers.jobs.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &job)) {
                *helpers -= 1;
                self.left.notify_all();
            }
        }
    }
}

impl Job {
    fn has_more(&self) -> bool {
        let ended = self.stop.load(Ordering::Relaxed) || self.launch.cancelled.load(Ordering::Relaxed);
        !ended && self.next.load(Ordering::Relaxed) < self.count
    }

    fn counters(&self) -> MutexGuard<'_, Counters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs workgroups until none is left.
    fn work(&self) {
        if let Err(error) = self.run_groups() {
            self.stop.store(true, Ordering::Relaxed);
            self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }

    fn run_groups(&self) -> Result<(), LaunchError> {
        let waves = u64::from(self.launch.geometry.waves());
        let mut resident: VecDeque<Workgroup> = VecDeque::new();
        let mut spare = None;
        // Whether the last workgroup to run seems to wait for one that has not started.
        let mut waiting = false;
        while !self.stop.load(Ordering::Relaxed) && !self.launch.cancelled.load(Ordering::Relaxed) {
            let room = resident.is_empty() || waiting && resident.len() as u64 * waves < RESIDENT_WAVES;
            if room && self.has_more() {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                if number < self.count {
                    resident.push_front(Workgroup::start(&self.launch, number, spare.take())?);
                }
            }
            let Some(mut group) = resident.pop_front() else { break };
            let quantum = self.quantum.load(Ordering::Relaxed);
            waiting = match group.turn(&self.launch, quantum)? {
                Turn::Ended => {
                    self.instructions.fetch_add(group.instructions(), Ordering::Relaxed);
                    if self.launch.behaviour.counters {
                        group.add_counters(&mut self.counters());
                    }
                    spare = Some(group);
                    false
                }
                turn => {
                    let waits = matches!(turn, Turn::Asleep) || group.turns > PATIENCE;
                    resident.push_back(group);
                    if waits {
                        self.quantum.store((quantum / 2).max(LEAST_QUANTUM), Ordering::Relaxed);
                        std::thread::yield_now();
                    }
                    waits
                }
            };
        }
        Ok(())
    }
}
