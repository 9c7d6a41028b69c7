//! The tuning store: what one process has timed, no other times again; and shapes that do not come
//! back cost no preparation by MIOpen.
//!
//! A process has one store and one set of settings, so each case is a process of its own.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use burn_rocm::tuning::{ConvProblem, store, tune};
use burn_rocm::{ProviderKind, RocmDevice, RocmError};
use burn_rocm_tests::limits::Terms;
use burn_rocm_tests::trace::during;
use burn_rocm_tests::*;

/// A cache folder of a test's own.
struct Cache(PathBuf);

impl Cache {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("burn-rocm-tuning-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    fn said_by(&self, test: &str, variables: &[(&str, &str)]) -> Vec<String> {
        let folder = self.0.to_str().unwrap();
        said_by(test, &[&[("BURN_ROCM_CACHE_DIR", folder)], variables].concat())
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn said(what: &str, value: impl std::fmt::Debug) {
    println!("{SAID}{what} {value:?}");
}

fn say_statistics() {
    let stats = store().stats();
    said("trials", stats.trials);
    said("hits", stats.hits);
    said("misses", stats.misses);
    said("stored", stats.stored);
    said("entries", stats.entries);
}

fn statistics(trials: usize, hits: usize, misses: usize, stored: usize, entries: usize) -> [String; 5] {
    let all = [("trials", trials), ("hits", hits), ("misses", misses), ("stored", stored)];
    let [a, b, c, d] = all.map(|(name, count)| format!("{name} {count}"));
    [a, b, c, d, format!("entries {entries}")]
}

fn options() -> ConvOptions<2> {
    ConvOptions::new([1, 1], [1, 1], [1, 1], 1)
}

/// Problems of [`five_steps`]: two layers in three directions.
const PROBLEMS: usize = 6;

/// The variables that tell a child which file to write at its end, and which to read after two steps.
const EXPORT: &str = "BURN_ROCM_TEST_EXPORT";
const IMPORT: &str = "BURN_ROCM_TEST_IMPORT";

/// Two convolutions with their gradients, five times, each time against the oracle.
#[test]
#[ignore = "run by the tests below, with other settings"]
fn five_steps() {
    let random = Random::new();
    for step in 0..5 {
        if let Some(file) = std::env::var_os(IMPORT).filter(|_| step == 2) {
            assert_eq!(store().import(Path::new(&file)).unwrap(), PROBLEMS);
        }
        for (x, w, y) in
            [([2, 3, 9, 9], [4, 3, 3, 3], [2, 4, 9, 9]), ([2, 4, 9, 9], [2, 4, 3, 3], [2, 2, 9, 9])]
        {
            let input = |shape: &[usize]| float(&random, shape, DType::F32, View::Contiguous, -1.0, 1.0);
            let (x, w, g) = (input(&x), input(&w), input(&y));
            // On a GPU, the fastest algorithm may be Winograd's, whose transforms make the error larger:
            // for 3 x 3 windows and tiles of up to 4 x 4 at most some 100 times (Barabasz et al.,
            // "Error analysis and improving the accuracy of Winograd convolution", 2020).
            let factor = if burn_rocm::provider().unwrap().kind() == ProviderKind::Cpu { 1 } else { 100 };
            let terms = |count: usize| Terms::of(factor * count, DType::F32);
            sums!("forward", terms(4 * 9), |B, device, [x = &x, w = &w]| B::conv2d(x, w, None, options()));
            sums!("data", terms(4 * 9), |B, device, [x = &x, w = &w, g = &g]| {
                B::conv2d_x_backward(x, w, g, options())
            });
            sums!("weights", terms(2 * 81), |B, device, [x = &x, w = &w, g = &g]| {
                B::conv2d_weight_backward(x, w, g, options())
            });
        }
    }
    if let Some(file) = std::env::var_os(EXPORT) {
        assert_eq!(store().export(Path::new(&file)).unwrap(), PROBLEMS);
    }
    say_statistics();
}

/// What another process has timed serves from the third use on, so nothing is timed then.
#[test]
fn an_import_reaches_shapes_that_were_used() {
    let (from, to) = (Cache::new("from"), Cache::new("to"));
    let file = from.0.join("exported");
    let file = file.to_str().unwrap();
    from.said_by("five_steps", &[(EXPORT, file)]);
    let found = to.said_by("five_steps", &[(IMPORT, file)]);
    assert_eq!(found, statistics(0, PROBLEMS, PROBLEMS, PROBLEMS, PROBLEMS));
}

#[test]
fn a_second_process_times_nothing() {
    let cache = Cache::new("second");
    assert_eq!(cache.said_by("five_steps", &[]), statistics(PROBLEMS, 0, PROBLEMS, PROBLEMS, PROBLEMS));
    assert_eq!(cache.said_by("five_steps", &[]), statistics(0, PROBLEMS, 0, 0, PROBLEMS));
    let find = [("BURN_ROCM_CONV_FIND", "find")];
    assert_eq!(cache.said_by("five_steps", &find), statistics(0, PROBLEMS, 0, 0, PROBLEMS));
}

/// With a limit of workspaces, a problem is asked for under two names. It counts once.
#[test]
fn a_second_process_with_a_limit_times_nothing() {
    let cache = Cache::new("limit");
    let limit = [("BURN_ROCM_WORKSPACE_LIMIT", "1G")];
    assert_eq!(cache.said_by("five_steps", &limit), statistics(PROBLEMS, 0, PROBLEMS, PROBLEMS, PROBLEMS));
    assert_eq!(cache.said_by("five_steps", &limit), statistics(0, PROBLEMS, 0, 0, PROBLEMS));
}

#[test]
fn what_is_off_keeps_nothing() {
    let cache = Cache::new("off");
    for (variable, trials) in
        [("BURN_ROCM_DETERMINISTIC", 0), ("BURN_ROCM_TUNING", PROBLEMS), ("BURN_ROCM_CACHE", PROBLEMS)]
    {
        let value = if variable == "BURN_ROCM_DETERMINISTIC" { "1" } else { "0" };
        assert_eq!(
            cache.said_by("five_steps", &[(variable, value)]),
            statistics(trials, 0, 0, 0, 0),
            "{variable}"
        );
    }
    let immediate = [("BURN_ROCM_CONV_FIND", "immediate")];
    assert_eq!(cache.said_by("five_steps", &immediate), statistics(0, 0, 0, 0, 0));
}

#[test]
fn each_find_mode_times_at_the_first_use() {
    for mode in ["find", "normal", "fast", "hybrid", "dynamic_hybrid", "exhaustive"] {
        let cache = Cache::new(mode);
        let found = cache.said_by("five_steps", &[("BURN_ROCM_CONV_FIND", mode)]);
        // Fast mode may give estimates in place of times, which are not kept.
        let kept = if mode == "fast" { 0 } else { PROBLEMS };
        assert_eq!(found, statistics(PROBLEMS, 0, PROBLEMS, kept, kept), "{mode}");
    }
}

/// Only AMD's MIOpen searches the parameters of kernels again.
#[test]
#[ignore = "run by the test below"]
fn searches_again() {
    let (random, device) = (Random::new(), Default::default());
    let input = |shape: &[usize]| float(&random, shape, DType::F32, View::Contiguous, -1.0, 1.0);
    let (x, w) = (input(&[2, 3, 9, 9]).float::<R>(&device), input(&[4, 3, 3, 3]).float::<R>(&device));
    let done = std::panic::catch_unwind(|| R::conv2d(x, w, None, options()));
    match burn_rocm::take_last_error() {
        None => said("done", done.is_ok()),
        Some(RocmError::Config { found, .. }) => said("refused", found),
        Some(other) => panic!("{other}"),
    }
}

#[test]
fn a_search_again_is_done_or_refused_by_name() {
    let cache = Cache::new("again");
    let said = cache.said_by("searches_again", &[("BURN_ROCM_CONV_FIND", "retune")]);
    let rocm = burn_rocm::provider().unwrap().kind() == ProviderKind::Rocm;
    assert!(said == ["refused \"a MIOpen without it\""] || rocm && said == ["done true"], "{said:?}");
}

/// 100 lengths that come once, then one of them again and again. Says how many of the first hundred
/// MIOpen computed, then which uses of the last.
#[test]
#[ignore = "run by the test below, with other settings"]
fn a_hundred_lengths() {
    let (random, device) = (Random::new(), Default::default());
    let weights = float(&random, &[4, 3, 5], DType::F32, View::Contiguous, -1.0, 1.0);
    let by_miopen = |length: usize| {
        let signal = float(&random, &[2, 3, length], DType::F32, View::Contiguous, -1.0, 1.0);
        let options = || ConvOptions::<1>::new([1], [2], [1], 1);
        let lines =
            during(|| R::conv1d(signal.float::<R>(&device), weights.float::<R>(&device), None, options())).1;
        sums!("conv1d", Terms::of(3 * 5, DType::F32), |B, device, [x = &signal, w = &weights]| {
            B::conv1d(x, w, None, options())
        });
        lines.iter().any(|line| line.contains("miopenConvolution"))
    };
    let first = (100..200).filter(|&length| by_miopen(length)).count();
    said("first", first);
    said("prepared", store().stats().misses + store().stats().hits);
    let uses: Vec<bool> = (0..4).map(|_| by_miopen(190)).collect();
    said("again", uses);
}

#[test]
fn lengths_that_do_not_come_back_are_not_prepared_by_miopen() {
    let cache = Cache::new("lengths");
    // `by_miopen` convolves each length twice.
    for (fresh, first, prepared, again) in [
        ("auto", 8, 8, [false, true, true, true]),
        ("2", 0, 0, [true; 4]),
        ("6", 0, 0, [false, false, true, true]),
        ("0", 100, 100, [true; 4]),
    ] {
        let said = cache.said_by("a_hundred_lengths", &[("BURN_ROCM_CONV_FRESH", fresh)]);
        let expected = [format!("first {first}"), format!("prepared {prepared}"), format!("again {again:?}")];
        assert_eq!(said, expected, "BURN_ROCM_CONV_FRESH={fresh}");
    }
}

/// Reads the problem from the trace, as `burn-rocm-tune` does.
#[test]
#[ignore = "run by the test below, with a cache folder"]
fn tunes_what_was_traced() {
    let (random, device) = (Random::new(), Default::default());
    let input = |shape: &[usize]| float(&random, shape, DType::F32, View::Contiguous, -1.0, 1.0);
    let (x, w) = (input(&[2, 3, 9, 9]).float::<R>(&device), input(&[4, 3, 3, 3]).float::<R>(&device));
    let lines = during(|| R::conv2d(x, w, None, options())).1;
    let problems: Vec<_> = lines.iter().filter_map(|line| ConvProblem::find(line)).collect();
    let [problem] = problems.as_slice() else { panic!("{lines:?}") };
    said("traced", (&problem.desc.x, &problem.desc.w, problem.direction));
    let device = RocmDevice::default();
    said("timed", [tune(&device, problem), tune(&device, problem)]);
    let mut new = problem.clone();
    (new.desc.x[0], new.desc.y[0]) = (3, 3);
    let before = store().stats();
    said("new", tune(&device, &new));
    let after = store().stats();
    said("counted", (after.hits - before.hits, after.misses - before.misses));
    let mut empty = problem.clone();
    (empty.desc.x[0], empty.desc.y[0]) = (0, 0);
    said("empty", tune(&device, &empty));
    empty.desc.y[0] = 1;
    said("wrong", matches!(tune(&device, &empty), Err(RocmError::Invalid { .. })));
    said("entries", store().entries().iter().filter(|entry| entry.problem == problem.to_string()).count());
}

#[test]
fn a_traced_shape_is_tuned_ahead_once() {
    let cache = Cache::new("ahead");
    let said = cache.said_by("tunes_what_was_traced", &[]);
    let expected = [
        "traced ([2, 3, 9, 9], [4, 3, 3, 3], Forward)",
        "timed [Ok(true), Ok(false)]",
        "new Ok(true)",
        "counted (0, 1)",
        "empty Ok(false)",
        "wrong true",
        "entries 1",
    ];
    assert_eq!(said, expected);
}

/// Gives each entry this solution, and says their number.
#[test]
#[ignore = "run by the test below, with a cache folder"]
fn replaces_the_solutions() {
    let solution = std::env::var("SOLUTION").unwrap();
    let folder = store().directory().unwrap();
    let mut replaced = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let line = |line: &str| match line.starts_with("solution ") {
            true => format!("solution {solution}\n"),
            false => format!("{line}\n"),
        };
        std::fs::write(&path, text.lines().map(line).collect::<String>()).unwrap();
        replaced += 1;
    }
    said("replaced", replaced);
}

/// [`five_steps`], and the entries that MIOpen refused.
#[test]
#[ignore = "run by the test below, with a cache folder"]
fn five_steps_of_refused_solutions() {
    five_steps();
    said("outdated", store().stats().outdated);
}

/// Another solution computes, the entry goes, and the next process times again.
#[test]
fn a_solution_that_miopen_refuses_is_forgotten() {
    let cache = Cache::new("refused");
    cache.said_by("five_steps", &[]);
    for solution in ["999999", "-1"] {
        let replaced = cache.said_by("replaces_the_solutions", &[("SOLUTION", solution)]);
        assert_eq!(replaced, [format!("replaced {PROBLEMS}")]);
        let said = cache.said_by("five_steps_of_refused_solutions", &[("BURN_ROCM_CONV_FIND", "find")]);
        let all = [&statistics(0, PROBLEMS, 0, 0, 0)[..], &[format!("outdated {PROBLEMS}")]].concat();
        assert_eq!(said, all, "{solution}");
        let again = cache.said_by("five_steps", &[("BURN_ROCM_CONV_FIND", "find")]);
        assert_eq!(again, statistics(PROBLEMS, 0, PROBLEMS, PROBLEMS, PROBLEMS), "{solution}");
    }
}
