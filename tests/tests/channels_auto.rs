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

/// Problems of [`four_steps`]: two dtypes, three directions, two orders.
const PROBLEMS: usize = 2 * 3 * 2;

/// A cache folder of a test's own, with the times of both orders.
struct Cache {
    path: PathBuf,
    /// The entries. A library can keep an algorithm only if its immediate mode has it too, and on a
    /// GPU the fastest may be another one, which each process times again.
    kept: usize,
}

impl Cache {
    /// An empty folder.
    fn empty(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("burn-rocm-order-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self { path, kept: 0 }
    }

    /// With what a process keeps that runs the test `child`.
    fn filled_by(name: &str, child: &str) -> Self {
        let mut cache = Self::empty(name);
        said_by(child, &cache.variables());
        cache.kept = cache.files().len();
        cache
    }

    fn new(name: &str) -> Self {
        let mut cache = Self::empty(name);
        assert_eq!(cache.said(&[])[2], PROBLEMS.to_string(), "the third use times each order");
        cache.kept = cache.files().len();
        let all = burn_rocm::provider().unwrap().kind() == burn_rocm::ProviderKind::Cpu;
        let least = if all { PROBLEMS } else { PROBLEMS / 2 };
        assert!((least..=PROBLEMS).contains(&cache.kept), "{} are kept", cache.kept);
        cache
    }

    /// The trials of a process that finds what is kept.
    fn trials(&self) -> String {
        (PROBLEMS - self.kept).to_string()
    }

    /// The environment of a process that uses this folder.
    fn variables(&self) -> [(&str, &str); 2] {
        [("BURN_ROCM_CACHE_DIR", self.path.to_str().unwrap()), ("BURN_ROCM_CHANNELS_LAST", "auto")]
    }

    /// The same, with own kernels for few weights on every provider: on the CPU device, blocks of one
    /// thread have none.
    fn variables_with_own_kernels(&self) -> Vec<(&str, &str)> {
        let mut variables = self.variables().to_vec();
        if burn_rocm::provider().unwrap().kind() == burn_rocm::ProviderKind::Cpu {
            variables.push(("BURN_ROCM_CPU_WAVE", "32"));
        }
        variables
    }

    /// The tuning store's entries.
    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(self.path.join("tuning")).unwrap().map(|file| file.unwrap().path()).collect()
    }

    /// What [`four_steps`] says: the orders of f16, those of bf16, and the trials.
    fn said(&self, variables: &[(&str, &str)]) -> [String; 3] {
        said_by("four_steps", &[&self.variables(), variables].concat()).try_into().unwrap()
    }

    /// The orders, which must be the same for both dtypes, and the trials.
    fn orders(&self, variables: &[(&str, &str)]) -> (String, String) {
        let [f16, bf16, trials] = self.said(variables);
        assert_eq!(f16, bf16);
        (f16, trials)
    }

    /// Gives each entry the time that `of` has for its problem.
    fn set(&self, of: impl Fn(&str) -> f64) {
        let files = self.files();
        assert_eq!(files.len(), self.kept);
        for path in files {
            let text = fs::read_to_string(&path).unwrap();
            let problem = text.lines().find_map(|line| line.strip_prefix("problem ")).unwrap();
            let time = format!("microseconds {}", of(problem));
            let line = |line: &str| if line.starts_with("microseconds") { time.clone() } else { line.into() };
            let lines: Vec<String> = text.lines().map(line).collect();
            fs::write(&path, lines.join("\n") + "\n").unwrap();
        }
    }

    /// Makes the library (0) or own kernels (1) the choice wherever both were timed.
    fn set_choices(&self, choice: usize) {
        let mut changed = 0;
        for path in self.files() {
            let text = fs::read_to_string(&path).unwrap();
            if text.contains("library or kernel") {
                let line = |line: &str| match line.starts_with("solution ") {
                    true => format!("solution {choice}\n"),
                    false => format!("{line}\n"),
                };
                fs::write(&path, text.lines().map(line).collect::<String>()).unwrap();
                changed += 1;
            }
        }
        assert!(changed > 0, "no choice is kept");
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn is_problem_last(problem: &str) -> bool {
    problem.ends_with("channels-last")
}

#[test]
fn the_faster_order_is_taken_and_nothing_is_timed_again() {
    let cache = Cache::new("faster");
    cache.set(|problem| if is_problem_last(problem) { SHORT } else { LONG });
    assert_eq!(cache.orders(&[]), ("[true, true, true]".into(), cache.trials()));
    assert_eq!(cache.orders(&[("BURN_ROCM_CHANNELS_LAST", "off")]).0, "[false, false, false]");
    assert_eq!(cache.orders(&[("BURN_ROCM_CONV_FIND", "immediate")]).0, "[false, false, false]");
    assert_eq!(
        cache.orders(&[("BURN_ROCM_DETERMINISTIC", "1")]),
        ("[false, false, false]".into(), "0".into())
    );
    cache.set(|problem| if is_problem_last(problem) { LONG } else { SHORT });
    assert_eq!(cache.orders(&[]), ("[false, false, false]".into(), cache.trials()));
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

/// A layer three times in one step, then its gradients, as a network with shared weights has it. Says
/// the order of the results after three steps.
#[test]
#[ignore = "run by the test below, with other settings"]
fn a_shared_layer() {
    let (random, device) = (Random::new(), Default::default());
    let options = || ConvOptions::<2>::new([1, 1], [1, 1], [1, 1], 1);
    let input =
        |shape: &[usize]| float(&random, shape, DType::F16, View::Contiguous, -1.0, 1.0).float::<R>(&device);
    let (x, w, g) = (input(&[2, 16, 9, 7]), input(&[8, 16, 3, 3]), input(&[2, 8, 9, 7]));
    let forward = || R::conv2d(x.clone(), w.clone(), None, options());
    for _ in 0..3 {
        let _ = [(); 3].map(|()| forward());
        for _ in 0..3 {
            let _ = R::conv2d_x_backward(x.clone(), w.clone(), g.clone(), options());
            let _ = R::conv2d_weight_backward(x.clone(), w.clone(), g.clone(), options());
        }
    }
    println!("{SAID}{}", is_last(&forward()));
}

/// The forward pass alone would choose channels last, all directions together don't.
#[test]
fn a_shared_layer_is_decided_by_all_of_its_directions() {
    let cache = Cache::new("shared");
    let time = |problem: &str| match (problem.contains("forward"), is_problem_last(problem)) {
        (true, false) => LONG,
        (true, true) => SHORT,
        (false, true) => 2.5 * LONG,
        (false, false) => SHORT,
    };
    cache.set(time);
    assert_eq!(said_by("a_shared_layer", &cache.variables()), ["false"]);
    assert_eq!(cache.orders(&[]).0, "[false, false, false]");
}

/// A transposed convolution and its gradients, against the oracle. Its forward pass is another one's
/// gradient. Says the orders of the fourth results.
#[test]
#[ignore = "run by the test below, with other settings"]
fn transposed() {
    let (random, device) = (Random::new(), Default::default());
    let options = || ConvTransposeOptions::<2>::new([1, 1], [1, 1], [0, 0], [1, 1], 1);
    let input = |shape: &[usize]| float(&random, shape, DType::F16, View::Contiguous, -1.0, 1.0);
    let (x, w, g) = (input(&[2, 8, 9, 7]), input(&[8, 16, 3, 3]), input(&[2, 16, 9, 7]));
    for step in 0..4 {
        let terms = |count: usize| Terms::of(count, DType::F16);
        sums!(format!("forward {step}"), terms(8 * 9), |B, device, [x = &x, w = &w]| {
            B::conv_transpose2d(x, w, None, options())
        });
        let [x, w, g] = [&x, &w, &g].map(|input| input.float::<R>(&device));
        let y = R::conv_transpose2d(x.clone(), w.clone(), None, options());
        let dx = R::conv_transpose2d_x_backward(w.clone(), g.clone(), options());
        let dw = R::conv_transpose2d_weight_backward(x, w, g, options());
        if step == 3 {
            println!("{SAID}{:?}", [y, dx, dw].map(|tensor| is_last(&tensor)));
        }
    }
}

#[test]
fn a_transposed_convolution_is_decided_as_any_other() {
    let cache = Cache::filled_by("transposed", "transposed");
    for last in [true, false] {
        cache.set(|problem| if is_problem_last(problem) == last { SHORT } else { LONG });
        assert_eq!(said_by("transposed", &cache.variables()), [format!("{:?}", [last; 3])]);
    }
}

/// An image's layer and the gradient of its weights three times, then the order of their results.
#[test]
#[ignore = "run by the tests below, with other settings"]
fn image() {
    let (random, device) = (Random::new(), Default::default());
    let options = || ConvOptions::<2>::new([1, 1], [1, 1], [1, 1], 1);
    let input =
        |shape: &[usize]| float(&random, shape, DType::F16, View::Contiguous, -1.0, 1.0).float::<R>(&device);
    let (x, w) = (input(&[2, 3, 9, 7]), input(&[16, 3, 3, 3]));
    let step = || {
        let y = R::conv2d(x.clone(), w.clone(), None, options());
        // The result's gradient has its order.
        [y.clone(), R::conv2d_weight_backward(x.clone(), w.clone(), y, options())]
    };
    (0..3).for_each(|_| drop(step()));
    println!("{SAID}{:?}", step().map(|tensor| is_last(&tensor)));
}

/// If both orders of an image's layer take the same time, its result has its channels last.
#[test]
fn an_image_begins_a_run_without_a_gain() {
    let cache = Cache::filled_by("image", "image");
    cache.set(|_| 1.0);
    assert_eq!(said_by("image", &cache.variables()), ["[true, true]"]);
    cache.set(|problem| if is_problem_last(problem) { LONG } else { SHORT });
    assert_eq!(said_by("image", &cache.variables()), ["[false, false]"]);
}

/// A cache by which own kernels compute an image's layer from its first use on, and both orders take the
/// same time.
fn by_own_kernels(name: &str) -> Cache {
    let mut cache = Cache::empty(name);
    said_by("image", &cache.variables_with_own_kernels());
    cache.set_choices(1);
    cache.kept = cache.files().len();
    cache.set(|_| 1.0);
    cache
}

/// An image's layer begins a run also if own kernels compute it from its first use on.
#[test]
fn an_image_begins_a_run_by_own_kernels() {
    let cache = by_own_kernels("own");
    let [said] = said_by("image", &cache.variables_with_own_kernels()).try_into().unwrap();
    assert!(said.starts_with("[true"), "{said}");
}

/// A network's first layer four times. Says whether the kernels for few weights computed the last.
#[test]
#[ignore = "run by the test below, with other settings"]
fn first_layer() {
    let (random, device) = (Random::new(), Default::default());
    let input = |shape: &[usize]| float(&random, shape, DType::F16, View::Contiguous, -1.0, 1.0);
    let (x, w) = (input(&[2, 3, 9, 7]), input(&[16, 3, 3, 3]));
    let options = || ConvOptions::<2>::new([1, 1], [1, 1], [1, 1], 1);
    let mut own = false;
    for step in 0..4 {
        let terms = Terms::of(27, DType::F16);
        let what = format!("first layer, step {step}");
        let (_, lines) = burn_rocm_tests::trace::during(|| {
            R::conv2d(x.float::<R>(&device), w.float::<R>(&device), None, options())
        });
        own = lines.iter().any(|line| line.contains("kernel conv_few_forward<"));
        if step == 3 {
            sums!(what, terms, |B, device, [x = &x, w = &w]| B::conv2d(x, w, None, options()));
        }
    }
    println!("{SAID}{own}");
}

/// The kernels for few weights compete with the library before an order is chosen, too.
#[test]
fn a_first_layer_is_timed_against_own_kernels() {
    let cache = Cache::empty("first");
    let own = cache.variables_with_own_kernels();
    said_by("first_layer", &own);
    for (choice, computes) in [(1, "true"), (0, "false")] {
        cache.set_choices(choice);
        assert_eq!(said_by("first_layer", &own), [computes]);
    }
}

/// Sizes that come once cost no timing: own kernels compute them, and their orders are not asked for.
#[test]
#[ignore = "run by the test below, with other settings"]
fn once_each() {
    let (random, device) = (Random::new(), Default::default());
    let w = float(&random, &[8, 16, 3, 3], DType::F16, View::Contiguous, -1.0, 1.0).float::<R>(&device);
    let options =
        burn_rocm::fused::Conv2dOptions { stride: [1; 2], padding: [1; 2], dilation: [1; 2], groups: 1 };
    let uses: usize = std::env::var("USES").unwrap().parse().unwrap();
    for length in 5..15 {
        let x = float(&random, &[2, 16, 9, length], DType::F16, View::Contiguous, -1.0, 1.0);
        let x = x.float::<R>(&device);
        for _ in 0..uses {
            let act = burn_rocm::fused::Act::Relu;
            burn_rocm::fused::conv_act(act, x.clone(), w.clone(), None, options).unwrap();
        }
    }
    println!("{SAID}{} {}", store().stats().trials, store().stats().misses);
}

/// A layer with a plan (convolution, bias and ReLU in one call) counts each use once.
#[test]
fn a_plan_counts_a_use_once_and_no_fresh_size() {
    let cache = Cache::new("plan");
    let own = [&cache.variables()[..], &[("BURN_ROCM_CONV_FIND", "auto")]].concat();
    // Two uses of a size are too few for timing, by a plan or not.
    let twice = [&own[..], &[("USES", "2")]].concat();
    assert_eq!(said_by("once_each", &twice)[0].split(' ').next(), Some("0"));
    let fresh = [&own[..], &[("USES", "3"), ("BURN_ROCM_CONV_FRESH", "3")]].concat();
    assert_eq!(said_by("once_each", &fresh), ["0 0"]);
}

/// A transposed convolution with an image as its result, and its gradients. Says the orders of the fourth
/// results.
#[test]
#[ignore = "run by the test below, with other settings"]
fn transposed_to_an_image() {
    let (random, device) = (Random::new(), Default::default());
    let options = || ConvTransposeOptions::<2>::new([1, 1], [1, 1], [0, 0], [1, 1], 1);
    let input =
        |shape: &[usize]| float(&random, shape, DType::F16, View::Contiguous, -1.0, 1.0).float::<R>(&device);
    let (x, w, g) = (input(&[2, 16, 9, 7]), input(&[16, 3, 3, 3]), input(&[2, 3, 9, 7]));
    for step in 0..4 {
        let y = R::conv_transpose2d(x.clone(), w.clone(), None, options());
        let dx = R::conv_transpose2d_x_backward(w.clone(), g.clone(), options());
        let dw = R::conv_transpose2d_weight_backward(x.clone(), w.clone(), g.clone(), options());
        if step == 3 {
            println!("{SAID}{:?}", [y, dx, dw].map(|tensor| is_last(&tensor)));
        }
    }
}

/// The gradient of a row-major layer's image has the layer's order.
#[test]
fn a_transposed_layer_to_an_image_keeps_its_order() {
    let cache = Cache::filled_by("to-an-image", "transposed_to_an_image");
    cache.set(|_| 1.0);
    assert_eq!(said_by("transposed_to_an_image", &cache.variables()), ["[false, false, false]"]);
}

/// Says the orders of the results of five uses of an image's layer, and the trials.
#[test]
#[ignore = "run by the tests below, with other settings"]
fn image_steps() {
    let (random, device) = (Random::new(), Default::default());
    let options = || ConvOptions::<2>::new([1, 1], [1, 1], [1, 1], 1);
    let input =
        |shape: &[usize]| float(&random, shape, DType::F16, View::Contiguous, -1.0, 1.0).float::<R>(&device);
    let (x, w) = (input(&[2, 3, 9, 7]), input(&[16, 3, 3, 3]));
    let orders: Vec<bool> =
        (0..5).map(|_| is_last(&R::conv2d(x.clone(), w.clone(), None, options()))).collect();
    println!("{SAID}{orders:?} {}", store().stats().trials);
}

/// The third use applies what it has just timed, by own kernels as by the library.
#[test]
fn own_kernels_take_the_order_that_they_have_timed() {
    let cache = by_own_kernels("own3");
    let own = cache.variables_with_own_kernels();
    let library = [&own[..], &[("BURN_ROCM_CONV", "miopen")]].concat();
    assert_eq!(said_by("image_steps", &own), said_by("image_steps", &library));
}

/// Own kernels compute a size that counts as fresh, so MIOpen must not meet it.
#[test]
fn own_kernels_time_no_fresh_size() {
    let cache = by_own_kernels("ownfresh");
    // Only the choice of own kernels is known.
    for path in cache.files() {
        if !fs::read_to_string(&path).unwrap().contains("library or kernel") {
            fs::remove_file(&path).unwrap();
        }
    }
    let fresh = [&cache.variables_with_own_kernels()[..], &[("BURN_ROCM_CONV_FRESH", "100")]].concat();
    let [said] = said_by("image_steps", &fresh).try_into().unwrap();
    assert!(said.ends_with(" 0"), "MIOpen was timed: {said}");
}
