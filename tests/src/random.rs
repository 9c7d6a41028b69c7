//! Random test data from one printed seed.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::Location;
use std::sync::OnceLock;

/// A small generator (SplitMix64: Steele, Lea and Flood 2014). Its statistical quality is
/// sufficient for tests.
#[derive(Debug)]
pub struct Random(Cell<u64>);

impl Random {
    /// A generator with a stream of its own, from the run's seed (`BURN_ROCM_TEST_SEED`, else the
    /// clock). The seed is printed once.
    ///
    /// With the same seed, a test gets the same numbers in every run, whether it runs alone or
    /// among other tests. With `--test-threads 1` it gets different numbers, which are also the
    /// same in every run with that option.
    #[track_caller]
    pub fn new() -> Self {
        static SEED: OnceLock<u64> = OnceLock::new();
        let thread = std::thread::current();
        // Tests run in parallel. The thread's name, which is the test's, gives each test its own
        // repeatable numbers. With one thread, all tests run on the main thread, so the line of
        // code that makes the generator is used instead of the name.
        let (test, option) = match thread.name() {
            None | Some("main") => (Location::caller().to_string(), " (with --test-threads 1)"),
            Some(name) => (name.to_owned(), ""),
        };
        let seed = *SEED.get_or_init(|| {
            let seed = match std::env::var("BURN_ROCM_TEST_SEED") {
                Ok(text) => text.parse().expect("BURN_ROCM_TEST_SEED is a number"),
                Err(_) => std::time::UNIX_EPOCH.elapsed().expect("the clock is past 1970").as_nanos() as u64,
            };
            eprintln!("BURN_ROCM_TEST_SEED={seed}{option}");
            seed
        });
        let hash = test
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        thread_local!(static CALLS: RefCell<HashMap<String, u64>> = RefCell::default());
        let call = CALLS.with_borrow_mut(|calls| {
            let next = calls.entry(test).or_insert(0);
            std::mem::replace(next, *next + 1)
        });
        Self(Cell::new(seed ^ hash ^ call.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// A generator that gives the same numbers in every run.
    pub const fn from_seed(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    /// 64 random bits.
    pub fn bits(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `low..high`.
    pub fn uniform(&self, low: f64, high: f64) -> f64 {
        low + (high - low) * ((self.bits() >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// Uniform in `0..n`.
    pub fn below(&self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }
}

impl Default for Random {
    #[track_caller]
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::Random;
    use std::thread::Builder;

    #[test]
    fn a_tests_numbers_do_not_depend_on_the_tests_before_it() {
        let on = |name: &str, before: usize| {
            let draw = move || {
                for _ in 0..before {
                    Random::new();
                }
                [Random::new().bits(), Random::new().bits()]
            };
            let thread = Builder::new().name(name.into()).spawn(draw).expect("a thread starts");
            thread.join().expect("it draws")
        };
        let [first, second] = on("main", 0);
        assert_ne!(first, second);
        assert_eq!(on("main", 3), [first, second], "after another test on the main thread");
        assert_eq!(on("a test", 0), on("a test", 0));
        assert_ne!(on("a test", 0), on("another", 0));
    }
}
