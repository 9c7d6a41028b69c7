//! Runs a test's body on the ranks of a group, in child processes of this test program.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::again::again;
use crate::random::Random;
use hip::rendezvous::{Rendezvous, World};
use hip::{Communicator, Device};

/// Says what a child is: `threads`, or `process` for one of several.
const ROLE: &str = "BURN_ROCM_TEST_RANKS";
/// The number of ranks.
const SIZE: &str = "BURN_ROCM_TEST_SIZE";
/// The seed of the ranks' common numbers.
const SEED: &str = "BURN_ROCM_TEST_RANKS_SEED";
/// How long a test's processes may take before they are killed: far longer than any takes.
pub(crate) const MOST: Duration = Duration::from_secs(300);
/// The exit status of a process that dies on purpose.
pub(crate) const DEAD: i32 = 9;

/// What a body gets.
pub(crate) struct Ranks {
    pub(crate) communicator: Communicator,
    /// The same for all ranks.
    pub(crate) seed: u64,
    together: Together,
}

/// How ranks wait for each other outside of their group.
enum Together {
    Threads(Arc<Meeting>),
    Processes(Rendezvous),
}

/// A barrier that panics if a thread never comes, for instance because it has panicked.
struct Meeting {
    size: usize,
    /// How many threads are here, and how often all were.
    state: Mutex<(usize, usize)>,
    changed: Condvar,
}

impl Meeting {
    fn wait(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        if state.0 == self.size {
            *state = (0, state.1 + 1);
            self.changed.notify_all();
            return;
        }
        let round = state.1;
        let (_state, waited) =
            self.changed.wait_timeout_while(state, MOST, |state| state.1 == round).unwrap();
        assert!(!waited.timed_out(), "not all {} ranks came within {MOST:?}", self.size);
    }
}

impl Ranks {
    /// Waits until all ranks are here: without it, a rank that has its result may fail the group
    /// while another one is still on its way out of the same call.
    pub(crate) fn together(&self) {
        match &self.together {
            Together::Threads(meeting) => meeting.wait(),
            Together::Processes(rendezvous) => rendezvous.barrier().unwrap(),
        }
    }
}

pub(crate) fn provider() -> String {
    std::env::var("BURN_ROCM_PROVIDER").ok().filter(|name| !name.is_empty()).unwrap_or("cpu".into())
}

pub(crate) fn on_cpu() -> bool {
    provider() == "cpu"
}

/// The sizes of groups to test.
fn sizes() -> Vec<usize> {
    if on_cpu() {
        return vec![2, 4];
    }
    let count = Device::count().unwrap();
    assert!(count >= 2, "the {} provider has {count} devices, and collectives need 2", provider());
    vec![count]
}

fn number(name: &str) -> usize {
    std::env::var(name).unwrap().parse().unwrap()
}

fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Runs this test again for each size of a group, in a process whose devices are the ranks. In that
/// process, returns the seed and the devices.
pub(crate) fn in_child(test: &str, environment: &[(&str, &str)]) -> Option<(u64, Vec<Arc<Device>>)> {
    if role().is_none() {
        let seed = Random::new().bits().to_string();
        for size in sizes() {
            let size = size.to_string();
            let mut all = vec![
                (ROLE, "threads"),
                (SIZE, &size),
                (SEED, &seed),
                ("BURN_ROCM_CPU_DEVICES", &size),
                ("BURN_ROCM_PROVIDER", "cpu"),
            ];
            let provider = provider();
            all[4].1 = &provider;
            all.extend(environment);
            again(&["--exact", test, "--nocapture", "--test-threads", "1"], &all);
        }
        return None;
    }
    let devices = (0..number(SIZE)).map(|index| Device::get(index).unwrap()).collect();
    Some((std::env::var(SEED).unwrap().parse().unwrap(), devices))
}

/// Runs a body once for each rank, in threads of one process.
pub(crate) fn on_threads(test: &str, environment: &[(&str, &str)], body: impl Fn(Ranks) + Sync) {
    let Some((seed, devices)) = in_child(test, environment) else { return };
    let ranks = Communicator::local(&devices).unwrap();
    let meeting = Arc::new(Meeting { size: ranks.len(), state: Mutex::default(), changed: Condvar::new() });
    let body = &body;
    std::thread::scope(|scope| {
        let run = |communicator| {
            let together = Together::Threads(meeting.clone());
            scope.spawn(move || body(Ranks { communicator, seed, together }))
        };
        let threads: Vec<_> = ranks.into_iter().map(run).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Runs a body once for each rank, in processes. The ranks in `dying` end with the status [`DEAD`].
pub(crate) fn on_processes(
    test: &str,
    environment: &[(&str, &str)],
    dying: &[usize],
    body: impl FnOnce(Ranks),
) {
    in_processes(test, environment, (dying, Some(DEAD)), body);
}

/// As [`on_processes`], but the ranks in `killed` end by `SIGKILL`.
#[cfg(unix)]
pub(crate) fn on_processes_of_which_some_are_killed(
    test: &str,
    environment: &[(&str, &str)],
    killed: &[usize],
    body: impl FnOnce(Ranks),
) {
    in_processes(test, environment, (killed, None), body);
}

/// Ends this process as the kernel ends one that takes too much memory: nothing of it runs any more.
#[cfg(unix)]
pub(crate) fn kill_this_process() -> ! {
    let killed = Command::new("sh").args(["-c", "kill -KILL $PPID"]).status();
    // The signal is on its way.
    std::thread::sleep(MOST);
    panic!("still alive: {killed:?}");
}

/// Some ranks end with a status other than 0, or without one: by `SIGKILL`.
fn in_processes(
    test: &str,
    environment: &[(&str, &str)],
    dying: (&[usize], Option<i32>),
    body: impl FnOnce(Ranks),
) {
    if role().is_none() {
        let seed = Random::new().bits().to_string();
        for size in sizes() {
            run_processes(test, environment, dying, size, &seed);
        }
        return;
    }
    let world = World::from_env().unwrap();
    // Each process of a machine with CPU devices has its own.
    let device = if on_cpu() { 0 } else { world.local_rank };
    let rendezvous = Rendezvous::join(&world).unwrap();
    let communicator = Communicator::connect(&Device::get(device).unwrap(), &rendezvous).unwrap();
    let seed = std::env::var(SEED).unwrap().parse().unwrap();
    body(Ranks { communicator, seed, together: Together::Processes(rendezvous) });
}

/// Ends the processes if a test fails.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn run_processes(
    test: &str,
    environment: &[(&str, &str)],
    (dying, status_of_dying): (&[usize], Option<i32>),
    size: usize,
    seed: &str,
) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let outputs = std::env::temp_dir().join(format!("burn-rocm-ranks-{}-{port}", std::process::id()));
    std::fs::create_dir_all(&outputs).unwrap();
    let output = |rank: usize| outputs.join(rank.to_string());
    let mut processes = Processes(Vec::new());
    for rank in 0..size {
        let file = std::fs::File::create(output(rank)).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads", "1"])
            .env(ROLE, "process")
            .env(SEED, seed)
            .env("BURN_ROCM_PROVIDER", provider())
            .env("BURN_ROCM_CPU_DEVICES", "1")
            // torchrun's variables.
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", size.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        processes.0.push(child);
    }
    let until = Instant::now() + MOST;
    let mut ended = vec![None; size];
    while ended.iter().any(Option::is_none) && Instant::now() < until {
        for (child, ended) in processes.0.iter_mut().zip(&mut ended) {
            if ended.is_none() {
                *ended = child.try_wait().unwrap();
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = |rank: usize| std::fs::read_to_string(output(rank)).unwrap_or_default();
    let everything = || (0..size).map(|rank| format!("rank {rank}:\n{}\n", said(rank))).collect::<String>();
    for (rank, status) in ended.iter().enumerate() {
        let Some(status) = status else { panic!("rank {rank} of {size} hangs\n{}", everything()) };
        let expected = if dying.contains(&rank) { status_of_dying } else { Some(0) };
        #[cfg(unix)]
        if expected.is_none() {
            use std::os::unix::process::ExitStatusExt;
            assert_eq!(status.signal(), Some(9), "rank {rank} of {size}, seed {seed}\n{}", everything());
        }
        assert_eq!(status.code(), expected, "rank {rank} of {size}, seed {seed}\n{}", everything());
        let ran = dying.contains(&rank) || said(rank).contains("1 passed");
        assert!(ran, "rank {rank} of {size} ran no test\n{}", everything());
    }
    std::fs::remove_dir_all(outputs).unwrap();
}
