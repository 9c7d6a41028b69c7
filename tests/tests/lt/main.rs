//! hipBLASLt's epilogues against f64, and when they are used: by the heuristic's first algorithm
//! (`on`), by trial (`auto`), and not at all.
//!
//! A process has one set of settings, so each case is a process of its own.
#![allow(missing_docs, clippy::unwrap_used)]

mod exact;

use std::path::PathBuf;

use burn_backend::TensorData;
use burn_rocm::tuning::store;
use burn_rocm::{ProviderKind, RocmDevice, RocmTensor, fused};
use burn_rocm_tests::trace::during;
use burn_rocm_tests::*;
use exact::{BEFORE, Matrix, Misses, assert_near, gelu, slope};
use hip::{Epilogue, LtActivation, LtAnswer, LtProduct, VectorView};

const ON: (&str, &str) = ("BURN_ROCM_HIPBLASLT", "on");
const AUTO: (&str, &str) = ("BURN_ROCM_HIPBLASLT", "auto");
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn said(what: &str, value: impl std::fmt::Debug) {
    println!("{SAID}{what} {value:?}");
}

fn on_cpu() -> bool {
    burn_rocm::provider().unwrap().kind() == ProviderKind::Cpu
}

fn own(dtype: DType) -> hip::DType {
    match dtype {
        DType::F16 => hip::DType::F16,
        DType::BF16 => hip::DType::BF16,
        _ => hip::DType::F32,
    }
}

/// The epilogues of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Plain,
    Bias,
    Relu,
    ReluBias,
    Gelu,
    GeluBias,
    GeluKept,
    GeluBiasKept,
    Gradient,
    GradientSums,
    Sums,
}

const KINDS: [Kind; 11] = [
    Kind::Plain,
    Kind::Bias,
    Kind::Relu,
    Kind::ReluBias,
    Kind::Gelu,
    Kind::GeluBias,
    Kind::GeluKept,
    Kind::GeluBiasKept,
    Kind::Gradient,
    Kind::GradientSums,
    Kind::Sums,
];

/// Computes a product and checks all its results. `false` if hipBLASLt refuses it.
///
/// The bounds: a sum of `k` products in f32 is within `2 (k + 4) u` of the sum of magnitudes; the 2
/// is for matrix units, which may truncate. GELU by tanh and its derivative have slopes of at most
/// 1.13, and NVIDIA's fast tanh a relative error of 2^-11. A library may round the sum to the
/// result's type before it adds the bias, and before GELU or its gradient. On an H200, cuBLASLt does
/// the first in f16 for operands of odd sizes, and the last in bf16.
fn holds(
    random: &Random,
    dtype: DType,
    [rows, cols, k]: [usize; 3],
    turned: [bool; 2],
    gap: usize,
    adds: bool,
    kind: Kind,
) -> bool {
    let a = Matrix::new(random, dtype, [rows, k], turned[0], gap);
    let b = Matrix::new(random, dtype, [k, cols], turned[1], gap);
    let onto = Matrix::new(random, dtype, [rows, cols], false, gap);
    let before = Matrix::new(random, dtype, [rows, cols], false, 0);
    let out = Matrix::new(random, dtype, [rows, cols], false, 0);
    let vector = Matrix::new(random, dtype, [1, cols], false, 0);
    let in_vector = VectorView { buffer: &vector.buffer, offset: BEFORE };
    use Kind::*;
    let forward = |bias: bool, activation, keeps: bool| Epilogue::Forward {
        bias: bias.then_some(in_vector),
        activation,
        before: keeps.then(|| before.view()),
    };
    let (relu, tanh) = (Some(LtActivation::Relu), Some(LtActivation::GeluTanh));
    let epilogue = match kind {
        Plain => forward(false, None, false),
        Bias => forward(true, None, false),
        Relu => forward(false, relu, false),
        ReluBias => forward(true, relu, false),
        Gelu => forward(false, tanh, false),
        GeluBias => forward(true, tanh, false),
        GeluKept => forward(false, tanh, true),
        GeluBiasKept => forward(true, tanh, true),
        Gradient => Epilogue::GeluGradient { before: before.view(), sums: None },
        GradientSums => Epilogue::GeluGradient { before: before.view(), sums: Some(in_vector) },
        Sums => Epilogue::ColumnSums(in_vector),
    };
    let product = LtProduct {
        dtype: own(dtype),
        a: a.view(),
        b: b.view(),
        onto: adds.then(|| onto.view()),
        out: out.view(),
        epilogue,
        gradient: false,
    };
    let device = hip::Device::get(0).unwrap();
    let answer = device.blas_lt().unwrap().multiply(&product, &mut || panic!("nothing is timed")).unwrap();
    let what = format!("{kind:?} {dtype:?} {rows} x {cols} x {k}, turned {turned:?}, gap {gap}, adds {adds}");
    if answer != LtAnswer::Computed {
        assert!(!on_cpu(), "{what}: {answer:?}");
        return false;
    }
    let unit = limits::unit(DType::F32);
    let has_bias = matches!(kind, Bias | ReluBias | GeluBias | GeluBiasKept);
    let (found, stored, sums) = (out.read(dtype), before.read(dtype), vector.read(dtype));
    let (mut columns, mut misses) = (vec![[0.0; 3]; cols], Misses::default());
    for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
        let terms = (0..k).map(|l| a.at(row, l) * b.at(l, col));
        let (mut x, mut all) = terms.fold((0.0, 0.0), |(sum, all), x| (sum + x, all + x.abs()));
        let others =
            [if adds { onto.at(row, col) } else { 0.0 }, if has_bias { vector.at(0, col) } else { 0.0 }];
        let mut greatest = 0.0;
        for other in others {
            // What the library may round before it adds the bias.
            greatest = f64::max(greatest, x.abs());
            (x, all) = (x + other, all + other.abs());
        }
        let before_bias = if has_bias { limits::unit(dtype) * greatest } else { 0.0 };
        let off = 2.0 * (k as f64 + 4.0) * unit * all + before_bias;
        let at = row * cols + col;
        if matches!(kind, GeluKept | GeluBiasKept) {
            misses.check(x, off, stored[at], dtype, || format!("before GELU at {row},{col}"));
        }
        let (expected, off) = match kind {
            Plain | Bias | Sums => (x, off),
            Relu | ReluBias => (x.max(0.0), off),
            Gelu | GeluBias | GeluKept | GeluBiasKept => {
                let rounded = limits::unit(dtype) * x.abs();
                (gelu(x), 1.13 * (off + rounded) + (2f64.powi(-12) + 8.0 * unit) * x.abs())
            }
            Gradient | GradientSums => {
                let (slope, slope_off) = slope(before.at(row, col));
                let off = off + limits::unit(dtype) * x.abs();
                (x * slope, 1.13 * off + (x.abs() + off) * (slope_off + 8.0 * unit))
            }
        };
        let text = || {
            let kept = matches!(kind, GeluKept | GeluBiasKept).then(|| stored[at]);
            format!("at {row},{col} of a sum {x}, kept as {kept:?}")
        };
        misses.check(expected, off, found[at], dtype, text);
        let [sum, magnitudes, offs] = &mut columns[col];
        (*sum, *magnitudes, *offs) = (*sum + expected, *magnitudes + expected.abs(), *offs + off);
    }
    for col in 0..cols {
        let (expected, off) = match kind {
            GradientSums => {
                // The library may sum rounded results.
                let [sum, magnitudes, offs] = columns[col];
                let each = 2.0 * (rows as f64 + 4.0) * unit + limits::unit(dtype);
                (sum, offs + each * magnitudes + rows as f64 * limits::least(dtype))
            }
            Sums => {
                let terms = (0..k).map(|l| b.at(l, col));
                let (sum, all) = terms.fold((0.0, 0.0), |(sum, all), x| (sum + x, all + x.abs()));
                (sum, 2.0 * (k as f64 + 4.0) * unit * all)
            }
            _ => continue,
        };
        misses.check(expected, off, sums[col], dtype, || format!("the sum of column {col}"));
    }
    misses.assert_none(&what);
    true
}

#[test]
#[ignore = "run by the test below, with another setting"]
fn each_epilogue() {
    let random = Random::new();
    let mut computed = [0; KINDS.len()];
    for dtype in DTYPES {
        // Aligned sizes, which every library has, then sizes, gaps and vectors that are odd.
        for (sizes, gap) in [
            ([64, 96, 128], 0),
            ([48, 64, 320], 8),
            ([33, 17, 29], 0),
            ([5, 40, 7], 3),
            ([1, 32, 64], 0),
            ([40, 1, 16], 0),
            ([1, 1, 1], 0),
            ([8, 24, 1], 1),
        ] {
            for turned in [[false, false], [true, false], [false, true], [true, true]] {
                let adds = random.below(2) == 1;
                for (kind, count) in KINDS.into_iter().zip(&mut computed) {
                    *count += usize::from(holds(&random, dtype, sizes, turned, gap, adds, kind));
                }
            }
        }
    }
    for (kind, count) in KINDS.iter().zip(computed) {
        println!("{kind:?}: {count} of {} computed", 3 * 8 * 4);
    }
    said("each", computed.iter().all(|&count| count > 0));
}

#[test]
fn epilogues_are_within_rounding_of_f64() {
    assert_eq!(said_by("each_epilogue", &[ON]), ["each true"]);
}

/// Tensors of a linear layer.
struct Layer {
    x: RocmTensor,
    weight: RocmTensor,
    bias: RocmTensor,
    onto: RocmTensor,
}

impl Layer {
    fn new(random: &Random, dtype: DType, rows: usize, [inner, outer]: [usize; 2]) -> Self {
        let device = RocmDevice::default();
        let tensor =
            |shape: &[usize]| float(random, shape, dtype, View::Contiguous, -1.0, 1.0).float::<R>(&device);
        Self {
            x: tensor(&[rows, inner]),
            weight: tensor(&[inner, outer]),
            bias: tensor(&[outer]),
            onto: tensor(&[rows, outer]),
        }
    }

    /// The ops whose products hipBLASLt may join, each result with its name.
    fn results(&self) -> Vec<(&'static str, RocmTensor)> {
        let Self { x, weight, bias, onto } = self;
        let bias_of = || Some(bias.clone());
        let gradients = fused::linear_backward(x.clone(), weight.clone(), onto.clone(), [true; 3]).unwrap();
        vec![
            ("linear", R::linear(x.clone(), weight.clone(), bias_of())),
            ("add", fused::linear_add(onto.clone(), x.clone(), weight.clone(), bias.clone()).unwrap()),
            ("relu", fused::linear_relu(x.clone(), weight.clone(), bias_of()).unwrap()),
            ("weight", gradients.weight.unwrap()),
            ("bias", gradients.bias.unwrap()),
        ]
    }

    /// Checks results against f64. Without hipBLASLt a product is rounded before what follows.
    fn check(&self, results: Vec<(&'static str, RocmTensor)>) {
        let dtype = self.x.dtype();
        let values =
            |tensor: &RocmTensor| -> Vec<f64> { read_float::<R>(tensor.clone()).iter::<f64>().collect() };
        let [x, weight, bias, onto] = [&self.x, &self.weight, &self.bias, &self.onto].map(values);
        let (rows, outer) = (onto.len() / bias.len(), bias.len());
        let inner = x.len() / rows;
        let product = |left: &dyn Fn(usize) -> f64, right: &dyn Fn(usize) -> f64, count: usize| {
            (0..count).map(|l| left(l) * right(l)).fold((0.0, 0.0), |(sum, all), x| (sum + x, all + x.abs()))
        };
        let bound = |count: usize, all: f64| 2.0 * (count as f64 + 4.0) * limits::unit(DType::F32) * all;
        for (name, found) in results {
            let found = values(&found);
            for (at, &found) in found.iter().enumerate() {
                let (row, col) = (at / outer, at % outer);
                let (expected, off) = match name {
                    "bias" => {
                        let (sum, all) = product(&|l| onto[l * outer + col], &|_| 1.0, rows);
                        (sum, bound(rows, all))
                    }
                    "weight" => {
                        let (sum, all) = product(&|l| x[l * inner + row], &|l| onto[l * outer + col], rows);
                        (sum, bound(rows, all))
                    }
                    _ => {
                        let (sum, all) =
                            product(&|l| x[row * inner + l], &|l| weight[l * outer + col], inner);
                        let rounded = limits::unit(dtype) * sum.abs();
                        let added = bias[col] + if name == "add" { onto[at] } else { 0.0 };
                        let total = sum + added;
                        let all = all + bias[col].abs() + onto[at].abs();
                        (if name == "relu" { total.max(0.0) } else { total }, bound(inner, all) + rounded)
                    }
                };
                assert_near(expected, off, found, dtype, || format!("{name} {dtype:?} at {row},{col}"));
            }
        }
    }
}

/// Computes layers four times each, and prints how many products hipBLASLt computed.
#[test]
#[ignore = "run by the tests below, with other settings"]
fn layers_four_times() {
    let random = Random::new();
    let mut lines = Vec::new();
    for dtype in DTYPES {
        let layer = Layer::new(&random, dtype, 48, [64, 32]);
        for _ in 0..4 {
            let (results, traced) = during(|| layer.results());
            lines.extend(traced);
            layer.check(results);
        }
    }
    // The number may be smaller on other devices, whose hipBLASLt may have no algorithm for some.
    said("joined", lines.iter().filter(|line| line.contains("hipblasLtMatmul")).count());
    let stats = store().stats();
    said("trials", (stats.trials, stats.hits, stats.stored, stats.entries));
}

/// Problems of [`layers_four_times`] with an epilogue: three dtypes of a layer, of a sum, of ReLU, and
/// of gradients.
const JOINED: usize = 3 * 4;
/// With `auto`, also the products alone: of the layer, and of the gradients of input and weight.
const TIMED: usize = JOINED + 3 * 3;

#[test]
fn layers_join_where_asked_and_not_else() {
    let none = ["joined 0", "trials (0, 0, 0, 0)"];
    let off = ("BURN_ROCM_HIPBLASLT", "off");
    let deterministic = ("BURN_ROCM_DETERMINISTIC", "1");
    let own = ("BURN_ROCM_MATMUL", "own");
    let cache = Cache::new("asked");
    for variables in [&[][..], &[off], &[ON, deterministic], &[AUTO, deterministic], &[ON, own]] {
        assert_eq!(cache.said_by("layers_four_times", variables), none, "{variables:?}");
    }
    let said = cache.said_by("layers_four_times", &[ON]);
    assert_eq!(said[1], none[1], "nothing is timed");
    if on_cpu() {
        assert_eq!(said[0], format!("joined {}", 4 * JOINED));
    } else {
        assert_ne!(said[0], none[0]);
    }
}

/// A cache folder of a test's own.
struct Cache(PathBuf);

impl Cache {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("burn-rocm-lt-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    fn said_by(&self, test: &str, variables: &[(&str, &str)]) -> Vec<String> {
        let folder = self.0.to_str().unwrap();
        said_by(test, &[&[("BURN_ROCM_CACHE_DIR", folder)], variables].concat())
    }

    /// Gives every entry this choice.
    fn replace_choices(&self, choice: i64) {
        for file in std::fs::read_dir(self.0.join("tuning")).unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.lines().map(|line| match line.starts_with("solution ") {
                true => format!("solution {choice}\n"),
                false => format!("{line}\n"),
            });
            std::fs::write(&path, lines.collect::<String>()).unwrap();
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_second_process_times_nothing() {
    let cache = Cache::new("second");
    let first = cache.said_by("layers_four_times", &[AUTO]);
    if on_cpu() {
        assert_eq!(first[1], format!("trials ({TIMED}, 0, {TIMED}, {TIMED})"));
    }
    let entries = first[1].rsplit_once(", ").unwrap().1.trim_end_matches(')').to_owned();
    assert_ne!(entries, "0");
    let second = cache.said_by("layers_four_times", &[AUTO]);
    // The store is not asked for a product alone where hipBLASLt computes it with its epilogue.
    let nothing = (second[1].starts_with("trials (0, "), second[1].ends_with(&format!(", 0, {entries})")));
    assert_eq!(nothing, (true, true), "{second:?}");
}

/// The CPU device, which has no TF32: on a GPU with TF32 the results would miss the bounds of f32.
#[test]
fn tf32_has_entries_of_its_own() {
    let cache = Cache::new("tf32");
    let cpu = ("BURN_ROCM_PROVIDER", "cpu");
    cache.said_by("layers_four_times", &[cpu, AUTO]);
    let tf32 = [cpu, AUTO, ("BURN_ROCM_CUDA_TF32", "1")];
    let said = cache.said_by("layers_four_times", &tf32);
    assert_eq!(said[1], format!("trials ({TIMED}, 0, {TIMED}, {})", 2 * TIMED));
}

/// Results are right with any choice in the store. A choice that hipBLASLt does not have is
/// removed.
#[test]
fn every_stored_choice_computes() {
    let cache = Cache::new("each");
    cache.said_by("layers_four_times", &[AUTO]);
    // The products with an epilogue, and the gradient of the input.
    let all = Some(4 * (JOINED + 3));
    for (choice, joined) in [(0, Some(0)), (1, all), (2, all), (-7, None), (99, None)] {
        cache.replace_choices(choice);
        let said = cache.said_by("layers_four_times", &[AUTO]);
        if let (Some(joined), true) = (joined, on_cpu()) {
            assert_eq!(said[0], format!("joined {joined}"), "{choice}");
        }
        if choice == 99 && on_cpu() {
            assert_eq!(said[1], format!("trials (0, {TIMED}, 0, 0)"), "{choice}");
        }
        if choice < 0 {
            cache.said_by("layers_four_times", &[AUTO]);
        }
    }
}

#[test]
fn a_library_that_fails_is_done_without() {
    for call in ["hipblasLtCreate", "hipblasLtMatmulAlgoGetHeuristic", "hipblasLtMatmul"] {
        let cache = Cache::new(call);
        let variables = [("BURN_ROCM_PROVIDER", "cpu"), ON, ("BURN_ROCM_CPU_FAIL", call)];
        let said = cache.said_by("layers_four_times", &variables);
        assert_eq!(said, ["joined 0", "trials (0, 0, 0, 0)"], "{call}");
        let variables = [("BURN_ROCM_PROVIDER", "cpu"), AUTO, ("BURN_ROCM_CPU_FAIL", call)];
        assert_eq!(cache.said_by("layers_four_times", &variables)[0], "joined 0", "{call}");
    }
}

/// Products that are captured: nothing is timed, and the graph computes what the ops do.
#[test]
#[ignore = "run by the tests below, with other settings"]
fn in_a_graph() {
    use burn_rocm::graph::Graph;
    let layer = Layer::new(&Random::new(), DType::F32, 48, [64, 32]);
    for _ in 0..2 {
        layer.check(layer.results());
    }
    let before = store().stats().trials;
    // The third use of most.
    let (graph, results) = Graph::capture_after(&RocmDevice::default(), 0, || layer.results()).unwrap();
    graph.replay().unwrap();
    said("trials", store().stats().trials - before);
    layer.check(results);
}

#[test]
fn a_capture_times_nothing() {
    let cache = Cache::new("graph");
    for mode in [ON, AUTO] {
        assert_eq!(cache.said_by("in_a_graph", &[mode]), ["trials 0"], "{mode:?}");
    }
}

#[test]
#[ignore = "run by the test below, on two devices"]
fn of_two_ranks() {
    let devices = [0, 1].map(|index| hip::Device::get(index).unwrap());
    let _ranks = hip::Communicator::local(&devices).unwrap();
    layers_four_times();
}

#[test]
fn ranks_do_not_choose() {
    let cache = Cache::new("ranks");
    let two = [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CPU_DEVICES", "2"), AUTO];
    assert_eq!(cache.said_by("of_two_ranks", &two), ["joined 0", "trials (0, 0, 0, 0)"]);
}

/// What is said of a linear layer before the device is in a group of ranks, and in it.
#[test]
#[ignore = "run by the test below, on two devices"]
fn said_of_two_ranks() {
    let layer = Layer::new(&Random::new(), DType::F32, 48, [64, 32]);
    for _ in 0..4 {
        layer.results();
    }
    let device = RocmDevice::default();
    let by = || {
        let linear = fused::FusedOp::Linear { outputs: 32 };
        let support = fused::supports(&linear, &device, DType::F32, &[48, 64]).unwrap();
        (support.forward, support.backward)
    };
    let alone = by();
    let devices = [0, 1].map(|index| hip::Device::get(index).unwrap());
    let _ranks = hip::Communicator::local(&devices).unwrap();
    said("by", [alone, by()]);
}

#[test]
fn ranks_are_not_said_to_join() {
    let cache = Cache::new("said");
    cache.said_by("layers_four_times", &[("BURN_ROCM_PROVIDER", "cpu"), AUTO]);
    cache.replace_choices(1);
    let two = [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CPU_DEVICES", "2"), AUTO];
    let [joined, composed] = ["HipblasLt", "Composed"].map(|by| format!("(Some({by}), Some({by}))"));
    assert_eq!(cache.said_by("said_of_two_ranks", &two), [format!("by [{joined}, {composed}]")]);
}

/// ReLU of NaN: the kernel's is NaN, as Burn's is. A library's may be 0, and the CPU device's is, as
/// AMD's maximum of a NaN and 0 is 0. An infinite element stays what it is.
#[test]
#[ignore = "run by the test below, with other settings"]
fn relu_of_nan() {
    let device = RocmDevice::default();
    let tensor =
        |values: Vec<f32>, shape: [usize; 2]| R::float_from_data(TensorData::new(values, shape), &device);
    let x = tensor([f32::NAN, 1.0, f32::INFINITY, f32::NEG_INFINITY].repeat(4), [4, 4]);
    let identity = (0..16).map(|at| if at % 5 == 0 { 1.0 } else { 0.0 }).collect();
    let bias = R::float_from_data(TensorData::new(vec![0f32; 4], [4]), &device);
    // Each row of x times the identity has NaN everywhere, because NaN and infinities times 0 are NaN.
    let out = fused::linear_relu(x, tensor(identity, [4, 4]), Some(bias.clone())).unwrap();
    let of_nan = read_float::<R>(out).iter::<f32>().collect::<Vec<_>>();
    let far = tensor(vec![f32::INFINITY, f32::NEG_INFINITY, 1.0, -1.0], [4, 1]);
    let out = fused::linear_relu(far, tensor(vec![1.0; 4], [1, 4]), Some(bias)).unwrap();
    let of_infinities = read_float::<R>(out).iter::<f32>().step_by(4).collect::<Vec<_>>();
    assert_eq!(of_infinities, [f32::INFINITY, 0.0, 1.0, 0.0]);
    assert!(of_nan.iter().all(|value| value.is_nan() || *value == 0.0), "{of_nan:?}");
    said("nan", of_nan.iter().all(|value| value.is_nan()));
}

#[test]
fn only_a_library_may_lose_a_nan() {
    assert_eq!(said_by("relu_of_nan", &[]), ["nan true"]);
    let said = said_by("relu_of_nan", &[ON]);
    if on_cpu() {
        assert_eq!(said, ["nan false"]);
    }
}
