//! Runs cases on both sides and compares the results.

use crate::draw::{Draw, Side, draw};
use burn_rocm_tests::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// How close the results must be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// The same bits.
    Exact,
    /// Within this many times the error of one operation in the compute type, plus the result's
    /// rounding for f16 and bf16. The oracle computes these in f32 too.
    Near(f64),
    /// Within given limits: for each result the oracle gives a reference in f64 and the limit of
    /// each element's error.
    Within,
    /// Equal to one of two results, which the oracle gives for each result.
    Either,
}

/// An op, and its body for each backend.
pub(crate) struct Op {
    pub(crate) name: &'static str,
    pub(crate) ours: fn(&Draw) -> Vec<TensorData>,
    pub(crate) theirs: fn(&Draw) -> Vec<TensorData>,
    pub(crate) bound: Bound,
    /// Cases for which the oracle is known to be wrong or to have no answer. Ours must then only
    /// return a result or a typed error.
    pub(crate) known: fn(&Draw) -> bool,
}

/// `name, bound: body;` for each op. The body sees one side of the comparison as `c` and its
/// backend as `B`. `unless` selects the cases that the oracle gets wrong.
macro_rules! table {
    (|$c:ident, $B:ident| $($name:ident, $bound:expr $(, unless $known:expr)? => $body:expr;)*) => {
        pub(crate) const OPS: &[$crate::run::Op] = &[$({
            fn body<$B: burn_rocm_tests::Backend>($c: &$crate::draw::Side<'_, $B>) -> Vec<burn_rocm_tests::TensorData> {
                $body
            }
            fn run<$B: burn_rocm_tests::Backend>(d: &$crate::draw::Draw) -> Vec<burn_rocm_tests::TensorData> {
                let side = $crate::draw::Side::<$B>::new(d, matches!($bound, $crate::run::Bound::Near(_)));
                $crate::run::finish(body(&side), side)
            }
            #[allow(unused_mut, unused_assignments)]
            let mut known: fn(&$crate::draw::Draw) -> bool = |_| false;
            $(known = $known;)?
            $crate::run::Op {
                name: stringify!($name),
                ours: run::<burn_rocm_tests::R>,
                theirs: run::<burn_rocm_tests::O>,
                bound: $bound,
                known,
            }
        }),*];
    };
}
pub(crate) use table;

/// The results, followed by the operands' clones.
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

/// A runner of `cases` cases whose numbers come from the run's printed seed.
pub(crate) fn runner(cases: u32) -> TestRunner {
    let random = Random::new();
    let mut seed = [0; 32];
    seed.chunks_mut(8).for_each(|part| part.copy_from_slice(&random.bits().to_le_bytes()));
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 4000, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

/// The outcomes of an op's cases.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Both sides gave results, which were compared.
    pub(crate) compared: u32,
    /// The oracle is known to have no correct answer.
    pub(crate) known: u32,
    /// Both sides failed, ours with a typed error.
    pub(crate) failed: u32,
}

impl Tally {
    /// Whether fewer than half of the cases, or none, were compared.
    pub(crate) fn is_too_low(self) -> bool {
        self.compared == 0 || 2 * self.compared < self.compared + self.known + self.failed
    }

    fn add(&mut self, other: Self) {
        self.compared += other.compared;
        self.known += other.known;
        self.failed += other.failed;
    }
}

/// The outcome of a case that passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Compared,
    Known,
    Failed,
}

/// The ops of a table that `BURN_ROCM_FUZZ_OP` selects.
pub(crate) fn named(all: &'static [Op]) -> Vec<&'static Op> {
    let part = std::env::var("BURN_ROCM_FUZZ_OP").unwrap_or_default();
    all.iter().filter(|op| op.name.contains(&part)).collect()
}

const SURVEY: &str = "BURN_ROCM_FUZZ_SURVEY";

/// Runs random cases of these ops.
///
/// # Panics
/// If a case fails, or if fewer than half of an op's cases were compared.
pub(crate) fn family(ops: &[&Op], hundredths: u32) {
    let mut tallies = run(ops, cases(hundredths));
    let mut low = Vec::new();
    for (op, tally) in ops.iter().zip(&mut tallies) {
        // With few cases, most of them may be known ones by chance.
        if tally.is_too_low() {
            tally.add(run(&[*op], 200)[0]);
        }
        let line = format!("{}: {tally:?}", op.name);
        println!("{line}");
        if tally.is_too_low() {
            low.push(line);
        }
    }
    assert!(low.is_empty(), "fewer than half were compared: {low:#?}");
}

/// The outcomes of `cases` random cases of these ops.
fn run(ops: &[&Op], cases: u32) -> Vec<Tally> {
    let survey = hip::switch(SURVEY, std::env::var_os(SURVEY)).unwrap_or_else(|error| panic!("{error}"));
    if survey {
        println!("{SURVEY}: failures are printed, but not counted, and no test fails for them");
    }
    let tallies = RefCell::new(vec![Tally::default(); ops.len()]);
    let result = runner(cases).run(&draw(ops.len()), |case| {
        let tally = &mut tallies.borrow_mut()[case.op];
        match check(ops[case.op], &case) {
            Ok(Fate::Compared) => tally.compared += 1,
            Ok(Fate::Known) => tally.known += 1,
            Ok(Fate::Failed) => tally.failed += 1,
            Err(why) if survey => println!("{why}\n  {case:?}"),
            Err(why) => return Err(TestCaseError::fail(why)),
        }
        Ok(())
    });
    match result {
        Ok(()) => tallies.into_inner(),
        Err(TestError::Fail(why, case)) => panic!("{why}\n{case:#?}"),
        Err(other) => panic!("{other}"),
    }
}

/// Our op's results, or the text of its typed error.
///
/// # Errors
/// A panic without a typed error, and a typed error beside a result.
fn of_ours(op: &Op, case: &Draw) -> Result<Result<Vec<TensorData>, String>, String> {
    drop(burn_rocm::take_last_error());
    let ours = caught(|| (op.ours)(case));
    match (&ours, burn_rocm::take_last_error()) {
        (Err(why), None) => Err(format!("{} panicked without a typed error: {why}", op.name)),
        (Ok(_), Some(error)) => Err(format!("{} gave a result beside a typed error: {error}", op.name)),
        _ => Ok(ours),
    }
}

/// Runs one case on both sides and compares the results.
///
/// # Errors
/// Why the case fails.
pub(crate) fn check(op: &Op, case: &Draw) -> Result<Fate, String> {
    let ours = of_ours(op, case)?;
    if (op.known)(case) {
        return Ok(Fate::Known);
    }
    match (ours, caught(|| (op.theirs)(case))) {
        (Ok(ours), Ok(theirs)) => compare(op, &ours, &theirs).map(|()| Fate::Compared),
        (Ok(_), Err(why)) => {
            Err(format!("{}: the oracle failed, which `known` does not list: {why}", op.name))
        }
        (Err(why), Ok(_)) => Err(format!("{} failed: {why}", op.name)),
        (Err(_), Err(_)) => Ok(Fate::Failed),
    }
}

/// Both sides' results, if both have an answer for the case.
pub(crate) fn both(op: &Op, case: &Draw) -> Result<Option<[Vec<TensorData>; 2]>, String> {
    let ours = of_ours(op, case)?;
    if (op.known)(case) {
        return Ok(None);
    }
    Ok(ours.ok().zip(caught(|| (op.theirs)(case)).ok()).map(|(ours, theirs)| [ours, theirs]))
}

/// The error allowed to an op's result of `dtype`.
fn tolerance(bound: Bound, dtype: DType) -> Tolerance {
    match bound {
        Bound::Exact | Bound::Within | Bound::Either => Tolerance::EXACT,
        Bound::Near(times) if matches!(dtype, DType::F16 | DType::BF16) => {
            let near = Tolerance::of(DType::F32).times(times);
            // The other side may round to the neighbouring value, which is a unit in the last place
            // away.
            let least = if dtype == DType::F16 { 2f64.powi(-24) } else { 0.0 };
            Tolerance {
                absolute: near.absolute + least,
                relative: near.relative + 2.01 * limits::unit(dtype),
            }
        }
        Bound::Near(times) => Tolerance::of(dtype).times(times),
    }
}

/// Compares the results of both sides.
pub(crate) fn compare(op: &Op, ours: &[TensorData], theirs: &[TensorData]) -> Result<(), String> {
    if matches!(op.bound, Bound::Within) {
        return caught(|| within(op.name, ours, theirs));
    }
    if matches!(op.bound, Bound::Either) {
        return caught(|| either(op.name, ours, theirs));
    }
    caught(|| {
        assert_eq!(ours.len(), theirs.len(), "{}: number of results", op.name);
        for (k, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            let what = format!("{}, result {k}", op.name);
            let widened = matches!(op.bound, Bound::Near(_))
                && matches!(ours.dtype, DType::F16 | DType::BF16)
                && theirs.dtype == DType::F32;
            let theirs = if widened { theirs.clone().convert_dtype(ours.dtype) } else { theirs.clone() };
            assert_close(&what, std::slice::from_ref(ours), &[theirs], tolerance(op.bound, ours.dtype));
        }
    })
}

/// Compares results with references and limits.
fn within(name: &str, ours: &[TensorData], theirs: &[TensorData]) {
    by_pairs(name, ours, theirs, |what, found, [reference, limits]| {
        limits::assert_within(&what, found, reference, limits);
    });
}

/// Compares results that each have two correct values.
fn either(name: &str, ours: &[TensorData], theirs: &[TensorData]) {
    by_pairs(name, ours, theirs, |what, found, answers| {
        let same = |answer: &TensorData| {
            let values = || found.iter::<f64>().eq(answer.iter::<f64>());
            found.dtype == answer.dtype && found.shape == answer.shape && values()
        };
        let [first, second] = answers;
        assert!(same(first) || same(second), "{what}: {found} instead of {first} or {second}");
    });
}

/// Gives `check` each result and the oracle's pair for it. After the results come the operands'
/// clones, as many on each side, which must be equal.
fn by_pairs(
    name: &str,
    ours: &[TensorData],
    theirs: &[TensorData],
    check: impl Fn(std::fmt::Arguments<'_>, &TensorData, [&TensorData; 2]),
) {
    let results = theirs.len().checked_sub(ours.len()).expect("two for each result");
    let (pairs, kept) = theirs.split_at(2 * results);
    for (k, (found, pair)) in ours.iter().zip(pairs.chunks(2)).enumerate() {
        check(format_args!("{name}, result {k}"), found, [&pair[0], &pair[1]]);
    }
    assert_close(&format_args!("{name}, the operands' clones"), &ours[results..], kept, Tolerance::EXACT);
}
