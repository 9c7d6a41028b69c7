//! Running cases on both sides, and comparing.

use crate::draw::{Draw, Side, draw};
use burn_rocm_tests::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// How near the results must be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// The same bits.
    Exact,
    /// So many times what one operation may be off.
    Near(f64),
    /// So many times what a sum over all elements may be off.
    Sum(f64),
    /// By limits of their own: for each result the oracle gives a reference in f64 and how far each element may be off.
    Within,
}

/// One op: its body for each backend.
pub(crate) struct Op {
    pub(crate) name: &'static str,
    pub(crate) ours: fn(&Draw) -> Vec<TensorData>,
    pub(crate) theirs: fn(&Draw) -> Vec<TensorData>,
    pub(crate) bound: Bound,
    /// Cases in which the oracle is known to be wrong or to have no answer: then ours only must come back, by a result or an error.
    pub(crate) known: fn(&Draw) -> bool,
}

/// `name, bound: body;` for each op, the body seeing one side of the comparison as `c` and its backend as `B`;
/// `unless` names the cases that the oracle gets wrong.
macro_rules! table {
    (|$c:ident, $B:ident| $($name:ident, $bound:expr $(, unless $known:expr)? => $body:expr;)*) => {
        pub(crate) const OPS: &[$crate::run::Op] = &[$({
            fn body<$B: burn_rocm_tests::Backend>($c: &$crate::draw::Side<'_, $B>) -> Vec<burn_rocm_tests::TensorData> {
                $body
            }
            fn run<$B: burn_rocm_tests::Backend>(d: &$crate::draw::Draw) -> Vec<burn_rocm_tests::TensorData> {
                let side = $crate::draw::Side::<$B>::new(d);
                $crate::run::finish(body(&side), side)
            }
            #[allow(unused_mut, unused_assignments)]
            let mut known: fn(&$crate::draw::Draw) -> bool = |_| false;
            $(known = $known;)?
            $crate::run::Op { name: stringify!($name), ours: run::<burn_rocm_tests::R>, theirs: run::<burn_rocm_tests::O>, bound: $bound, known }
        }),*];
    };
}
pub(crate) use table;

/// The results, and what became of the operands' clones.
pub(crate) fn finish<B: Backend>(mut results: Vec<TensorData>, side: Side<'_, B>) -> Vec<TensorData> {
    results.extend(side.kept());
    results
}

thread_local!(static QUIET: Cell<bool> = const { Cell::new(false) });

/// The text of a panic in `body`, which is not printed.
pub(crate) fn caught<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    let text = |panic: Box<dyn Any + Send>| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().unwrap_or(&"a panic without a text").to_string(),
    };
    let before = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(body)).map_err(text);
    QUIET.set(before);
    result
}

/// The number of cases of a test that takes `hundredths` of all.
pub(crate) fn cases(hundredths: u32) -> u32 {
    let all = std::env::var("BURN_ROCM_FUZZ_CASES")
        .map_or(10_000, |text| text.parse::<u64>().expect("BURN_ROCM_FUZZ_CASES is a number"));
    (all * u64::from(hundredths) / 100).clamp(1, u64::from(u32::MAX)) as u32
}

/// A runner of so many cases whose numbers come from the run's printed seed.
pub(crate) fn runner(cases: u32) -> TestRunner {
    let random = Random::new();
    let mut seed = [0; 32];
    seed.chunks_mut(8).for_each(|part| part.copy_from_slice(&random.bits().to_le_bytes()));
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 4000, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

/// Runs the drawn cases of a table of ops.
pub(crate) fn family(all: &[Op], hundredths: u32) {
    let part = std::env::var("BURN_ROCM_FUZZ_OP").unwrap_or_default();
    let ops: Vec<&Op> = all.iter().filter(|op| op.name.contains(&part)).collect();
    if ops.is_empty() {
        return;
    }
    let survey = std::env::var_os("BURN_ROCM_FUZZ_SURVEY").is_some();
    let result = runner(cases(hundredths)).run(&draw(ops.len()), |case| {
        let op = ops[case.op];
        let result = check(op, &case);
        match result {
            Err(why) if survey => {
                println!("{why}\n  {case:?}");
                Ok(())
            }
            other => other.map_err(TestCaseError::fail),
        }
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, case)) => panic!("{why}\n{case:#?}"),
        Err(other) => panic!("{other}"),
    }
}

fn check(op: &Op, case: &Draw) -> Result<(), String> {
    let ours = caught(|| (op.ours)(case));
    if (op.known)(case) {
        return Ok(()); // whatever ours gives, or raises: it came back
    }
    let theirs = caught(|| (op.theirs)(case));
    let (ours, theirs) = match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => (ours, theirs),
        (Ok(_), Err(why)) => return Err(format!("{}: the oracle failed, unknown yet: {why}", op.name)),
        (Err(why), Ok(_)) => return Err(format!("{} failed: {why}", op.name)),
        (Err(_), Err(_)) => return Ok(()),
    };
    let terms = case.dims.iter().product::<usize>().min(5000);
    if matches!(op.bound, Bound::Within) {
        return caught(|| within(op.name, &ours, &theirs));
    }
    let tolerance = |dtype| match op.bound {
        Bound::Exact | Bound::Within => Tolerance::EXACT,
        Bound::Near(times) => Tolerance::of(dtype).times(times),
        Bound::Sum(times) => Tolerance::sum(dtype, terms.max(64)).times(times),
    };
    caught(|| {
        assert_eq!(ours.len(), theirs.len(), "{}: number of results", op.name);
        for (k, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            let what = format!("{}, result {k}", op.name);
            assert_close(
                &what,
                std::slice::from_ref(ours),
                std::slice::from_ref(theirs),
                tolerance(ours.dtype),
            );
        }
    })
}

/// Compares results with references and limits; behind them come the operands' clones, as many on both sides.
fn within(name: &str, ours: &[TensorData], theirs: &[TensorData]) {
    let results = theirs.len().checked_sub(ours.len()).expect("two for each result");
    let (pairs, kept) = theirs.split_at(2 * results);
    for (k, (found, pair)) in ours.iter().zip(pairs.chunks(2)).enumerate() {
        let (reference, limits) = (&pair[0], &pair[1]);
        assert_eq!(found.shape, reference.shape, "{name}: shape of result {k}");
        let all = found.iter::<f64>().zip(reference.iter::<f64>()).zip(limits.iter::<f64>());
        for (i, ((x, y), limit)) in all.enumerate() {
            let same = x == y || (x.is_nan() && y.is_nan());
            assert!(
                same || (x - y).abs() <= limit,
                "{name}: result {k} ({:?}), element {i} of {:?}: {x} instead of {y}, off by {} of {limit}",
                found.dtype,
                found.shape,
                (x - y).abs()
            );
        }
    }
    assert_close(&format_args!("{name}, the operands' clones"), &ours[results..], kept, Tolerance::EXACT);
}
