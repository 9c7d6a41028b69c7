//! Kernels chosen by trial: what one process has timed, no other times again, and each candidate's
//! result is the oracle's.
//!
//! The settings and the store belong to a process, so each case is a process of its own.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use burn_rocm::fused::{AttentionOptions, AttentionPath, attention, attention_backward};
use burn_rocm::tuning::store;
use burn_rocm_tests::limits::Terms;
use burn_rocm_tests::trace::during;
use burn_rocm_tests::*;

/// A cache folder of a test's own.
struct Cache(PathBuf);

impl Cache {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("burn-rocm-kernels-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    fn said_by(&self, test: &str, variables: &[(&str, &str)]) -> Vec<String> {
        let folder = self.0.to_str().unwrap();
        let find = [("BURN_ROCM_KERNEL_FIND", "1"), ("BURN_ROCM_CACHE_DIR", folder)];
        said_by(test, &[&find, variables].concat())
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The variables that tell a child which file to write at its end, and which to read after two rounds.
const EXPORT: &str = "BURN_ROCM_TEST_EXPORT";
const IMPORT: &str = "BURN_ROCM_TEST_IMPORT";

/// Sums of a long row, of long columns, and of many rows, each against the oracle, five times. On a
/// device of any size at least the first is cut into parts, so there is something to choose.
#[test]
#[ignore = "run by the tests below, with other settings"]
fn sums_of_lines() {
    let random = Random::new();
    for round in 0..5 {
        if let Some(file) = std::env::var_os(IMPORT).filter(|_| round == 2) {
            store().import(Path::new(&file)).unwrap();
        }
        for (shape, axis) in [([1, 300_000], 1), ([30_000, 3], 0), ([9_000, 33], 1)] {
            let x = float(&random, &shape, DType::F32, View::Contiguous, -1.0, 1.0);
            let terms = Terms::of(shape[axis], DType::F32);
            sums!("sum", terms, |B, device, [x = &x]| B::float_sum_dim(x, axis));
        }
    }
    if let Some(file) = std::env::var_os(EXPORT) {
        store().export(Path::new(&file)).unwrap();
    }
    let stats = store().stats();
    println!("{SAID}trials {} stored {}", stats.trials, stats.stored);
    println!("{SAID}hits {} misses {}", stats.hits, stats.misses);
    println!("{SAID}entries {}", stats.entries);
}

/// The entries that [`sums_of_lines`] leaves, at least one.
fn entries_of(said: &[String]) -> usize {
    let entries = said[2].strip_prefix("entries ").unwrap().parse().unwrap();
    assert!(entries >= 1, "{said:?}");
    entries
}

/// What a process says that finds everything in the store.
fn all_known(entries: usize) -> [String; 3] {
    ["trials 0 stored 0".into(), format!("hits {entries} misses 0"), format!("entries {entries}")]
}

#[test]
fn a_second_process_times_no_kernels() {
    let cache = Cache::new("second");
    let first = cache.said_by("sums_of_lines", &[]);
    let entries = entries_of(&first);
    assert_eq!(first[0], format!("trials {entries} stored {entries}"));
    assert_eq!(first[1], format!("hits 0 misses {entries}"));
    assert_eq!(cache.said_by("sums_of_lines", &[]), all_known(entries));
}

/// What another process has timed serves from the third use on, so nothing is timed then.
#[test]
fn an_import_reaches_classes_that_were_used() {
    let (from, to) = (Cache::new("from"), Cache::new("to"));
    let file = from.0.join("exported");
    let file = file.to_str().unwrap();
    let entries = entries_of(&from.said_by("sums_of_lines", &[(EXPORT, file)]));
    let found = to.said_by("sums_of_lines", &[(IMPORT, file)]);
    let looked = format!("hits {entries} misses {entries}");
    assert_eq!(found, [format!("trials 0 stored {entries}"), looked, format!("entries {entries}")]);
}

/// In a group of two ranks, nothing is timed, and what the store has is not used.
#[test]
#[ignore = "run by the test below, on two devices"]
fn of_two_ranks() {
    let devices = [0, 1].map(|index| hip::Device::get(index).unwrap());
    let ranks = hip::Communicator::local(&devices).unwrap();
    assert!(devices.iter().all(|device| !device.finds_kernels()));
    drop(ranks);
    sums_of_lines();
}

#[test]
fn ranks_do_not_choose() {
    let cache = Cache::new("ranks");
    let two = [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CPU_DEVICES", "2")];
    let entries = entries_of(&cache.said_by("sums_of_lines", &two));
    let expected = ["trials 0 stored 0".into(), "hits 0 misses 0".into(), format!("entries {entries}")];
    assert_eq!(cache.said_by("of_two_ranks", &two), expected);
}

#[test]
fn nothing_is_timed_unless_asked_and_never_in_deterministic_mode() {
    let none = ["trials 0 stored 0", "hits 0 misses 0", "entries 0"];
    let cache = Cache::new("off");
    assert_eq!(cache.said_by("sums_of_lines", &[("BURN_ROCM_KERNEL_FIND", "0")]), none);
    assert_eq!(cache.said_by("sums_of_lines", &[("BURN_ROCM_DETERMINISTIC", "1")]), none);
    // Without a store each process times for itself.
    let trials = entries_of(&cache.said_by("sums_of_lines", &[]));
    let alone = cache.said_by("sums_of_lines", &[("BURN_ROCM_TUNING", "0")]);
    assert_eq!(alone, [format!("trials {trials} stored 0").as_str(), "hits 0 misses 0", "entries 0"]);
}

/// The solutions of all entries, in place of those that were timed.
#[test]
#[ignore = "run by the test below"]
fn replaces_the_solutions() {
    let scale = std::env::var("KERNEL_FIND_SCALE").unwrap();
    let file = std::env::temp_dir().join(format!("burn-rocm-kernels-{}.txt", std::process::id()));
    store().export(&file).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let (mut changed, mut best) = (0, String::new());
    for line in text.lines() {
        let line = match line.split_once(' ') {
            // The lines of one entry follow each other: the problem, then its solution.
            Some(("problem", problem)) => {
                let second = ["warps", "attention_softmax_backward"];
                let at = usize::from(second.iter().any(|part| problem.contains(part)));
                best = scale.split(',').nth(at).unwrap().to_owned();
                line.to_owned()
            }
            Some(("solution", _)) => {
                changed += 1;
                format!("solution {best}")
            }
            // So that the entry is faster than the one that is there.
            Some(("microseconds", _)) => "microseconds 0.001".to_owned(),
            _ => line.to_owned(),
        };
        println!("{SAID}{line}");
    }
    assert!(changed > 0);
    let _ = std::fs::remove_file(&file);
}

#[test]
#[ignore = "run by the test below"]
fn imports() {
    let file = PathBuf::from(std::env::var("KERNEL_FIND_FILE").unwrap());
    println!("{SAID}imported {}", store().import(&file).unwrap());
}

/// The candidates of sums in parts are the default, half of it and twice as much.
#[test]
fn each_candidate_gives_the_oracles_result() {
    let cache = Cache::new("candidates");
    let entries = entries_of(&cache.said_by("sums_of_lines", &[]));
    let units = hip::Device::get(0).unwrap();
    let blocks = units.defaults().sum_row_blocks;
    for (candidate, warps) in [(blocks / 2, 0), (blocks, 1), (2 * blocks, 0)] {
        let scale = format!("{candidate},{warps}");
        let text = cache.said_by("replaces_the_solutions", &[("KERNEL_FIND_SCALE", &scale)]).join("\n");
        let other = Cache::new(&format!("candidate-{candidate}"));
        std::fs::create_dir_all(&other.0).unwrap();
        let file = other.0.with_extension("txt");
        std::fs::write(&file, text + "\n").unwrap();
        let imported = other.said_by("imports", &[("KERNEL_FIND_FILE", file.to_str().unwrap())]);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(imported, [format!("imported {entries}")]);
        assert_eq!(other.said_by("sums_of_lines", &[]), all_known(entries), "{candidate}");
    }
}

/// A number that is no candidate counts as none: the third use times.
#[test]
fn what_is_no_candidate_is_not_used() {
    let cache = Cache::new("unknown");
    let entries = entries_of(&cache.said_by("sums_of_lines", &[]));
    let text = cache.said_by("replaces_the_solutions", &[("KERNEL_FIND_SCALE", "12345,12345")]).join("\n");
    let other = Cache::new("unknown-others");
    std::fs::create_dir_all(&other.0).unwrap();
    let file = other.0.with_extension("txt");
    std::fs::write(&file, text + "\n").unwrap();
    other.said_by("imports", &[("KERNEL_FIND_FILE", file.to_str().unwrap())]);
    std::fs::remove_file(&file).unwrap();
    let expected = [
        format!("trials {entries} stored {entries}"),
        format!("hits {entries} misses 0"),
        format!("entries {entries}"),
    ];
    assert_eq!(other.said_by("sums_of_lines", &[]), expected);
}

/// Sums of single columns, then of columns that a thread takes several of, of one class of sizes.
#[test]
#[ignore = "run by the test below"]
fn sums_of_columns() {
    let random = Random::new();
    for _ in 0..5 {
        for shape in [[30_000, 3], [30_000, 4]] {
            let x = float(&random, &shape, DType::F32, View::Contiguous, -1.0, 1.0);
            sums!("sum", Terms::of(shape[0], DType::F32), |B, device, [x = &x]| B::float_sum_dim(x, 0));
        }
    }
    for entry in store().entries() {
        println!("{SAID}{}", entry.problem);
    }
}

/// Their candidates differ, so neither may take what was chosen for the other. Lockstep, because a
/// block of the CPU device has one thread otherwise, which takes single columns.
#[test]
fn single_and_neighbouring_columns_are_chosen_apart() {
    let lockstep =
        [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CPU_WAVE", "32"), ("BURN_ROCM_CPU_THREADS", "2")];
    let problems = Cache::new("columns").said_by("sums_of_columns", &lockstep);
    for kind in ["sums of single columns", "sums of neighbouring columns"] {
        assert_eq!(problems.iter().filter(|problem| problem.contains(kind)).count(), 1, "{problems:?}");
    }
}

/// Attention with its gradient, four times. Says how often the kernels of a product and its softmax
/// ran at the second and at the fourth use.
#[test]
#[ignore = "run by the test below, in lockstep mode"]
fn attends() {
    let (random, device) = (Random::new(), Default::default());
    let batch = hip::Device::get(0).unwrap().info().compute_units.div_ceil(2) as usize;
    let input = |rows: usize, width: usize| {
        float(&random, &[batch, 2, rows, width], DType::F32, View::Contiguous, -1.0, 1.0).float::<R>(&device)
    };
    let inputs = [input(64, 8), input(512, 8), input(512, 4)];
    let grad = input(64, 4);
    let options = AttentionOptions { path: AttentionPath::Composed, ..AttentionOptions::default() };
    for time in 0..4 {
        let (_, lines) = during(|| {
            let [q, k, v] = inputs.clone();
            let attended = attention(q, k, v, None, &options).unwrap();
            let (kept, grad) = (attended.kept, grad.clone());
            attention_backward(inputs.clone(), None, kept, grad, &options, [true; 3]).unwrap()
        });
        let ran = |kernel: &str| lines.iter().filter(|line| line.contains(kernel)).count();
        if time % 2 == 1 {
            println!("{SAID}{} {}", ran("attention_softmax<f32"), ran("attention_softmax_backward<f32"));
        }
    }
    println!("{SAID}trials {} entries {}", store().stats().trials, store().stats().entries);
}

/// `burn-rocm-nn`'s tests hold both ways of attention against its formulas. This one shows that the
/// store's candidate is the one that runs.
#[test]
fn attention_takes_the_way_that_is_kept() {
    let lockstep =
        [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CPU_WAVE", "32"), ("BURN_ROCM_CPU_THREADS", "2")];
    let cache = Cache::new("attention");
    let first = cache.said_by("attends", &lockstep);
    assert_eq!((first[0].as_str(), first[2].as_str()), ("1 1", "trials 2 entries 2"), "{first:?}");
    // Forward and backward are chosen apart.
    for ways in [["0", "0"], ["0", "1"], ["1", "0"], ["1", "1"]] {
        let scale = ways.join(",");
        let seed = [&lockstep[..], &[("KERNEL_FIND_SCALE", &scale)]].concat();
        let text = cache.said_by("replaces_the_solutions", &seed).join("\n");
        let other = Cache::new(&format!("attention-{scale}"));
        std::fs::create_dir_all(&other.0).unwrap();
        let file = other.0.with_extension("txt");
        std::fs::write(&file, text + "\n").unwrap();
        let import = [&lockstep[..], &[("KERNEL_FIND_FILE", file.to_str().unwrap())]].concat();
        other.said_by("imports", &import);
        std::fs::remove_file(&file).unwrap();
        let both = ways.join(" ");
        assert_eq!(other.said_by("attends", &lockstep), [both.clone(), both, "trials 0 entries 2".into()]);
    }
}
