//! Kernels chosen by trial: what one process has timed, no other times again, and each candidate's
//! result is the oracle's.
//!
//! The settings and the store belong to a process, so each case is a process of its own.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::PathBuf;

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

/// Sums of a long row, of long columns, and of many rows, each against the oracle, five times. On a
/// device of any size at least the first is cut into parts, so there is something to choose.
#[test]
#[ignore = "run by the tests below, with other settings"]
fn sums_of_lines() {
    let random = Random::new();
    for _ in 0..5 {
        for (shape, axis) in [([1, 300_000], 1), ([30_000, 3], 0), ([9_000, 33], 1)] {
            let x = float(&random, &shape, DType::F32, View::Contiguous, -1.0, 1.0);
            let terms = Terms::of(shape[axis], DType::F32);
            sums!("sum", terms, |B, device, [x = &x]| B::float_sum_dim(x, axis));
        }
    }
    let stats = store().stats();
    println!("{SAID}trials {} stored {}", stats.trials, stats.stored);
    println!("{SAID}hits {} misses {}", stats.hits, stats.misses);
    println!("{SAID}entries {}", stats.entries);
}

#[test]
fn a_second_process_times_no_kernels() {
    let cache = Cache::new("second");
    let first = cache.said_by("sums_of_lines", &[]);
    let entries: usize = first[2].strip_prefix("entries ").unwrap().parse().unwrap();
    assert!(entries >= 1, "{first:?}");
    assert_eq!(first[0], format!("trials {entries} stored {entries}"));
    assert_eq!(first[1], format!("hits 0 misses {entries}"));
    let second = cache.said_by("sums_of_lines", &[]);
    let expected =
        ["trials 0 stored 0".into(), format!("hits {entries} misses 0"), format!("entries {entries}")];
    assert_eq!(second, expected);
}

#[test]
fn nothing_is_timed_unless_asked_and_never_in_deterministic_mode() {
    let none = ["trials 0 stored 0", "hits 0 misses 0", "entries 0"];
    let cache = Cache::new("off");
    assert_eq!(cache.said_by("sums_of_lines", &[("BURN_ROCM_KERNEL_FIND", "0")]), none);
    assert_eq!(cache.said_by("sums_of_lines", &[("BURN_ROCM_DETERMINISTIC", "1")]), none);
    // Without a store each process times for itself.
    let alone = cache.said_by("sums_of_lines", &[("BURN_ROCM_TUNING", "0")]);
    assert!(alone[0] != "trials 0 stored 0" && alone[0].ends_with("stored 0"), "{alone:?}");
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
                let at = usize::from(problem.starts_with("warps"));
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
    cache.said_by("sums_of_lines", &[]);
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
        assert!(imported[0] != "imported 0", "{imported:?}");
        let said = other.said_by("sums_of_lines", &[]);
        assert!(said[1].starts_with("hits ") && !said[1].starts_with("hits 0"), "{candidate}: {said:?}");
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
    println!("{SAID}trials {}", store().stats().trials);
}

/// `burn-rocm-nn`'s tests hold both ways of attention against its formulas. This one shows that the
/// store's candidate is the one that runs.
#[test]
fn attention_takes_the_way_that_is_kept() {
    let lockstep =
        [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CPU_WAVE", "32"), ("BURN_ROCM_CPU_THREADS", "2")];
    let cache = Cache::new("attention");
    let first = cache.said_by("attends", &lockstep);
    assert_eq!((first[0].as_str(), first[2].as_str()), ("1 1", "trials 2"), "{first:?}");
    for way in ["0", "1"] {
        let scale = format!("{way},{way}");
        let seed = [&lockstep[..], &[("KERNEL_FIND_SCALE", &scale)]].concat();
        let text = cache.said_by("replaces_the_solutions", &seed).join("\n");
        let other = Cache::new(&format!("attention-{way}"));
        std::fs::create_dir_all(&other.0).unwrap();
        let file = other.0.with_extension("txt");
        std::fs::write(&file, text + "\n").unwrap();
        let import = [&lockstep[..], &[("KERNEL_FIND_FILE", file.to_str().unwrap())]].concat();
        other.said_by("imports", &import);
        std::fs::remove_file(&file).unwrap();
        let both = format!("{way} {way}");
        assert_eq!(other.said_by("attends", &lockstep), [both.clone(), both, "trials 0".into()]);
    }
}
