//! `BURN_ROCM_CHANNELS_LAST=auto`: a layer has its channels last if its times say so. The times are
//! this test's own, written into the tuning store, because a machine's are not known beforehand.
//!
//! A process has one set of settings, so each case is a process of its own.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;

use burn_rocm::RocmTensor;
use burn_rocm::tuning::store;
use burn_rocm_tests::limits::Terms;
use burn_rocm_tests::*;

/// Microseconds that exceed those of every copy here.
const LONG: f64 = 1e9;
const SHORT: f64 = 1e-3;

fn is_last(tensor: &RocmTensor) -> bool {
    R::float_permute(tensor.clone(), &[0, 2, 3, 1]).is_contiguous() && !tensor.is_contiguous()
}

/// A layer and its gradients three times, each against the oracle, then the order of their results.
#[test]
#[ignore = "run by the tests below, with other settings"]
fn four_steps() {
    let random = Random::new();
    let options = || ConvOptions::<2>::new([1, 1], [1, 1], [1, 1], 1);
    for dtype in [DType::F16, DType::BF16] {
        let input = |shape: &[usize]| float(&random, shape, dtype, View::Contiguous, -1.0, 1.0);
        let (x, w, g) = (input(&[2, 16, 9, 7]), input(&[8, 16, 3, 3]), input(&[2, 8, 9, 7]));
        let terms = |count: usize| Terms::of(count, dtype);
        for step in 0..3 {
            let what = |name: &str| format!("{name}, {dtype:?}, step {step}");
            sums!(what("forward"), terms(16 * 9), |B, device, [x = &x, w = &w]| {
                B::conv2d(x, w, None, options())
            });
            sums!(what("data"), terms(8 * 9), |B, device, [x = &x, w = &w, g = &g]| {
                B::conv2d_x_backward(x, w, g, options())
            });
            sums!(what("weights"), terms(2 * 63), |B, device, [x = &x, w = &w, g = &g]| {
                B::conv2d_weight_backward(x, w, g, options())
            });
        }
        let [x, w, g] = [x, w, g].map(|input| input.float::<R>(&Default::default()));
        let y = R::conv2d(x.clone(), w.clone(), None, options());
        let dx = R::conv2d_x_backward(x.clone(), w.clone(), g.clone(), options());
        let dw = R::conv2d_weight_backward(x, w, g, options());
        println!("{SAID}{:?}", [y, dx, dw].map(|tensor| is_last(&tensor)));
    }
    println!("{SAID}{}", store().stats().trials);
}

/// A cache folder of a test's own, with the times of both orders.
struct Cache(PathBuf);

impl Cache {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("burn-rocm-order-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        let cache = Self(path);
        // Two dtypes, three directions, two orders.
        assert_eq!(cache.said(&[])[2], "12", "the third use times each order");
        cache
    }

    /// What [`four_steps`] says: the orders of f16, those of bf16, and the trials.
    fn said(&self, variables: &[(&str, &str)]) -> [String; 3] {
        let own = [("BURN_ROCM_CACHE_DIR", self.0.to_str().unwrap()), ("BURN_ROCM_CHANNELS_LAST", "auto")];
        said_by("four_steps", &[&own, variables].concat()).try_into().unwrap()
    }

    /// The orders, which must be the same for both dtypes, and the trials.
    fn orders(&self, variables: &[(&str, &str)]) -> (String, String) {
        let [f16, bf16, trials] = self.said(variables);
        assert_eq!(f16, bf16);
        (f16, trials)
    }

    /// Gives each entry the time that `of` has for its problem.
    fn set(&self, of: impl Fn(&str) -> f64) {
        let mut set = 0;
        for file in fs::read_dir(self.0.join("tuning")).unwrap() {
            let path = file.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let problem = text.lines().find_map(|line| line.strip_prefix("problem ")).unwrap();
            let time = format!("microseconds {}", of(problem));
            let line = |line: &str| if line.starts_with("microseconds") { time.clone() } else { line.into() };
            let lines: Vec<String> = text.lines().map(line).collect();
            fs::write(&path, lines.join("\n") + "\n").unwrap();
            set += 1;
        }
        assert_eq!(set, 12);
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_problem_last(problem: &str) -> bool {
    problem.ends_with("channels-last")
}

#[test]
fn the_faster_order_is_taken_and_nothing_is_timed_again() {
    let cache = Cache::new("faster");
    cache.set(|problem| if is_problem_last(problem) { SHORT } else { LONG });
    assert_eq!(cache.orders(&[]), ("[true, true, true]".into(), "0".into()));
    assert_eq!(cache.orders(&[("BURN_ROCM_CHANNELS_LAST", "off")]).0, "[false, false, false]");
    assert_eq!(cache.orders(&[("BURN_ROCM_CONV_FIND", "immediate")]).0, "[false, false, false]");
    assert_eq!(
        cache.orders(&[("BURN_ROCM_DETERMINISTIC", "1")]),
        ("[false, false, false]".into(), "0".into())
    );
    cache.set(|problem| if is_problem_last(problem) { LONG } else { SHORT });
    assert_eq!(cache.orders(&[]), ("[false, false, false]".into(), "0".into()));
}

#[test]
fn the_sum_over_a_layers_directions_decides() {
    let cache = Cache::new("sum");
    // Row-major 5, channels last 1: the forward pass alone would choose the other order.
    let time = |problem: &str| match (problem.contains("forward"), is_problem_last(problem)) {
        (true, true) => LONG,
        (true, false) => SHORT,
        (false, true) => SHORT,
        (false, false) => 2.5 * LONG,
    };
    cache.set(time);
    assert_eq!(cache.orders(&[]).0, "[true, true, true]");
}
