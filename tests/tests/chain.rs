//! Deferred element-wise ops that are launched together give the same bits as ops with separate
//! launches, whatever comes between them.
//!
//! A process reads its settings once, so each value of `BURN_ROCM_CHAIN` and
//! `BURN_ROCM_CHAIN_BYTES` has its own process.
#![allow(missing_docs, clippy::unwrap_used)]

use burn::backend::Autodiff;
use burn::module::{AutodiffModule, Module, ModuleMapper, Param};
use burn::nn::{BatchNormConfig, LayerNormConfig};
use burn::tensor::{Tensor, activation};
use burn_backend::tensor::FloatTensor;
use burn_rocm_tests::*;

const CHILD: &str = "BURN_ROCM_TEST_CHAIN_CHILD";

/// The lines that the named test prints in a process with these settings.
fn said(test: &str, [chain, bytes]: [&str; 2], seed: &str, wave: Option<&str>) -> Vec<String> {
    let mut environment = vec![
        (CHILD, "1"),
        ("BURN_ROCM_CHAIN", chain),
        ("BURN_ROCM_CHAIN_BYTES", bytes),
        ("BURN_ROCM_TEST_SEED", seed),
    ];
    environment.extend(wave.map(|wave| ("BURN_ROCM_CPU_WAVE", wave)));
    let text = again(&["--exact", test, "--nocapture", "--test-threads", "1"], &environment);
    text.lines().filter(|line| line.starts_with("tensor ")).map(str::to_owned).collect()
}

/// Compares what the named test prints without chains and with them, on one thread for each block
/// and, on the CPU device, in lockstep.
fn compare(test: &str, settings: &[[&str; 2]]) {
    let seed = Random::new().bits().to_string();
    let lockstep = matches!(std::env::var("BURN_ROCM_PROVIDER").as_deref(), Err(_) | Ok("auto" | "cpu"));
    for wave in [None, Some("32"), Some("64")] {
        if wave.is_some() && !lockstep {
            continue;
        }
        let single = said(test, ["0", ""], &seed, wave);
        assert!(single.len() > 20, "{}", single.len());
        for &setting in settings {
            let joined = said(test, setting, &seed, wave);
            assert_eq!(single.len(), joined.len());
            for (at, (a, b)) in single.iter().zip(&joined).enumerate() {
                assert!(
                    a == b,
                    "seed {seed}, chain {setting:?}, wave {wave:?}, output {at}:\n{a:.200}\n{b:.200}"
                );
            }
        }
    }
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The elements' bits. Every NaN has the same bits here, because processors differ in its sign.
fn bits_of(tensor: FloatTensor<R>) -> Vec<u64> {
    let bits = |x: f64| if x.is_nan() { u64::MAX } else { x.to_bits() };
    read_float::<R>(tensor).iter::<f64>().map(bits).collect()
}

/// One random op that may be deferred, on tensors of one shape.
fn element_wise(random: &Random, x: FloatTensor<R>, y: FloatTensor<R>) -> FloatTensor<R> {
    let scalar = Scalar::Float(random.uniform(-1.5, 1.5));
    match random.below(24) {
        0 => R::float_add(x, y),
        1 => R::float_sub(x, y),
        2 => R::float_mul(x, y),
        3 => R::float_div(x, y),
        4 => R::float_add_scalar(x, scalar),
        5 => R::float_sub_scalar(x, scalar),
        6 => R::float_mul_scalar(x, scalar),
        7 => R::float_div_scalar(x, scalar),
        8 => R::float_neg(x),
        9 => R::float_abs(x),
        10 => R::float_sqrt(R::float_abs(x)),
        11 => R::float_recip(x),
        12 => R::float_exp(R::float_tanh(x)),
        13 => R::float_log(x),
        14 => R::float_tanh(x),
        15 => R::relu(x),
        16 => R::sigmoid(x),
        17 => R::relu_backward(x, y),
        18 => R::sigmoid_backward(x, y),
        19 => R::float_mul(x.clone(), x),
        20 => R::float_sub(y.clone(), R::float_mul_scalar(x, scalar)),
        21 => R::float_powi_scalar(x, Scalar::Int(2)),
        22 => {
            let (shape, dtype) = (x.shape(), float_dtype(x.dtype()));
            R::float_add(x, R::float_full(shape, scalar, &Default::default(), dtype))
        }
        _ => R::float_cos(x), // not deferred
    }
}

/// The shape with some of its axes broadcast.
fn fewer(random: &Random, shape: &[usize]) -> Vec<usize> {
    let kept = random.below(1 << shape.len());
    shape.iter().enumerate().map(|(axis, &size)| if kept >> axis & 1 == 1 { size } else { 1 }).collect()
}

/// One random op on a tensor `x` and another tensor `y`, from which it takes a part, a view or a sum
/// that lies in memory otherwise than the result.
fn strided(random: &Random, x: FloatTensor<R>, y: FloatTensor<R>) -> FloatTensor<R> {
    let shape = x.shape().to_vec();
    let axis = random.below(shape.len());
    let same = shape.iter().position(|&size| size == shape[axis]).filter(|&other| other != axis);
    let other = match random.below(6) {
        // The first elements along some axes, a view of the tensor.
        0 => {
            let part = fewer(random, &shape);
            let slices: Vec<Slice> = part.iter().map(|&size| Slice::new(0, Some(size as isize), 1)).collect();
            R::float_slice(y, &slices)
        }
        1 => R::float_sum_dim(y, axis),
        2 => R::float_expand(R::float_mean_dim(y, axis), Shape::from(shape)),
        3 => R::float_flip(y, &[axis]),
        4 => match same {
            Some(other) => R::float_swap_dims(y, axis, other),
            None => R::float_slice(y, &[]),
        },
        // Small ops between large ones.
        _ => {
            let sum = R::float_mul_scalar(R::float_sum_dim(y, axis), Scalar::Float(0.25));
            R::float_recip(R::float_add_scalar(R::float_abs(sum), Scalar::Float(1.0)))
        }
    };
    match random.below(8) {
        0 => R::float_add(x, other),
        1 => R::float_sub(other, x),
        2 => R::float_mul(x, other),
        3 => R::float_div(x, other),
        4 => R::float_mul(R::float_neg(other), x),
        5 => R::float_sub(R::float_mul_scalar(other.clone(), Scalar::Float(0.5)), R::float_mul(x, other)),
        6 => R::relu(R::float_add(other, x)),
        _ => R::float_add(R::float_mul(R::float_sub(x, other.clone()), other.clone()), other),
    }
}

/// Ops in another float type between two conversions.
fn in_another_type(random: &Random, x: FloatTensor<R>, y: FloatTensor<R>) -> FloatTensor<R> {
    let own = float_dtype(x.dtype());
    let other = [FloatDType::F32, FloatDType::F16, FloatDType::BF16, FloatDType::F64][random.below(4)];
    let cast = |tensor: FloatTensor<R>| R::float_cast(tensor, other);
    let between = match random.below(4) {
        0 => cast(x),
        1 => R::float_mul(cast(x.clone()), cast(R::float_neg(x))),
        2 => R::float_sub(cast(x), R::float_sum_dim(cast(y), 0)),
        _ => R::float_add(R::float_mul_scalar(cast(x), Scalar::Float(0.3)), cast(y)),
    };
    R::float_add_scalar(R::float_cast(between, own), Scalar::Float(0.1))
}

/// Ops in an order that defers, overwrites, frees, slices, moves and reads. At the end prints the
/// bytes of all tensors.
fn random_program(random: &Random, dtype: DType) {
    let d = Default::default();
    let shapes: [&[usize]; 7] =
        [&[4, 33], &[7, 96], &[1, 5], &[64, 64], &[2, 6, 4, 4], &[3, 3, 5, 7], &[2, 3, 2, 3, 2]];
    let fresh = |shape: &[usize]| float(random, shape, dtype, View::Contiguous, -2.0, 2.0).float::<R>(&d);
    let mut tensors: Vec<(usize, FloatTensor<R>)> =
        (0..10).map(|at| (at % shapes.len(), fresh(shapes[at % shapes.len()]))).collect();
    for _ in 0..120 {
        let at = random.below(tensors.len());
        let (shape, x) = tensors[at].clone();
        let alike: Vec<usize> = (0..tensors.len()).filter(|&i| tensors[i].0 == shape).collect();
        let other = alike[random.below(alike.len())];
        let y = tensors[other].1.clone();
        let made = match random.below(38) {
            // The tensor has no other owner, so the op may overwrite it.
            0..=7 => {
                drop(x);
                let x = tensors.swap_remove(at).1;
                element_wise(random, x, y)
            }
            8..=17 => element_wise(random, x, y),
            // A view at an offset into the tensor: the next write may overlap what was read.
            18 => {
                let rows = shapes[shape][0] as isize;
                let first = random.below(rows as usize) as isize;
                let part = R::float_slice(x.clone(), &[Slice::new(first, Some(rows), 1)]);
                let changed = element_wise(random, part.clone(), part);
                R::float_slice_assign(x, &[Slice::new(first, Some(rows), 1)], changed)
            }
            19 => {
                let last = shapes[shape].len() - 1;
                R::float_matmul(R::float_matmul(x.clone(), R::float_swap_dims(x, last - 1, last)), y)
            }
            20 => R::float_expand(R::float_mean_dim(x, 0), Shape::from(shapes[shape].to_vec())),
            21 => fresh(shapes[shape]),
            22 => {
                println!("tensor read {:?}", bits_of(x.clone()));
                x
            }
            24..=33 => strided(random, x, y),
            34..=37 => in_another_type(random, x, y),
            // Another thread continues with it.
            _ => std::thread::scope(|scope| {
                scope.spawn(|| R::float_add(R::float_mul_scalar(x, Scalar::Float(0.5)), y)).join().unwrap()
            }),
        };
        tensors.push((shape, made));
        while tensors.len() > 14 {
            tensors.swap_remove(random.below(tensors.len()));
        }
    }
    for (_, tensor) in tensors {
        println!("tensor {:?}", bits_of(tensor));
    }
}

#[test]
fn bits_are_those_of_single_launches() {
    if is_child() {
        let random = Random::new();
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
            for _ in 0..6 {
                random_program(&random, dtype);
            }
        }
        return;
    }
    let settings = [["1", "8M"], ["2", "4G"], ["5", "1K"], ["16", "3K"], ["16", "8M"]];
    compare("bits_are_those_of_single_launches", &settings);
}

/// The lists that are compiled as a whole: a bias, a norm on known statistics, each with a residual and a
/// ReLU or without, of values for a channel or for each place of a row, in bf16 also with deviations that
/// have no normal reciprocal.
#[test]
fn compiled_lists_have_the_bits_of_single_launches() {
    if !is_child() {
        return compare("compiled_lists_have_the_bits_of_single_launches", &[["16", "8M"], ["3", "4G"]]);
    }
    let (device, random) = (Default::default(), Random::new());
    // The last element ends a thread's eight, or does not.
    for [rows, columns] in [[6, 8], [5, 12], [33, 64], [3, 4], [1, 2052]] {
        for dtype in [FloatDType::F32, FloatDType::F16, FloatDType::BF16] {
            let of = |dims: [usize; 2], special: bool| {
                let value = |_| match random.below(if special { 6 } else { 1000 }) {
                    0 if special => [0.0, 1e-39, 2e38, f32::INFINITY, f32::NAN, 0.5][random.below(6)],
                    _ => random.uniform(-2.0, 2.0) as f32,
                };
                let values: Vec<f32> = (0..dims.iter().product()).map(value).collect();
                Tensor::<R, 2>::from_data(TensorData::new(values, dims), &device).cast(dtype)
            };
            for dims in [[1, columns], [rows, 1]] {
                let (x, more) = (of([rows, columns], false), of([rows, columns], false));
                let [mean, weight, bias] = [(); 3].map(|()| of(dims, false));
                for special in [false, true] {
                    let deviation = of(dims, special);
                    let normed =
                        || (x.clone() - mean.clone()) / deviation.clone() * weight.clone() + bias.clone();
                    let shifted = || x.clone() + bias.clone();
                    let ends: [&dyn Fn(Tensor<R, 2>) -> Tensor<R, 2>; 4] =
                        [&|y| y, &activation::relu, &|y| y + more.clone(), &|y| {
                            activation::relu(y + more.clone())
                        }];
                    for end in ends {
                        for y in [end(normed()), end(shifted())] {
                            println!("tensor {:?}", bits_of(y.into_primitive().tensor()));
                        }
                    }
                }
            }
        }
    }
}

/// Norms, softmax, a residual and a loss of Burn's own modules, forward and backward: ops on
/// tensors, on their statistics and on sums, of sizes that groups of four divide and others.
#[test]
fn gradients_are_those_of_single_launches() {
    if !is_child() {
        let settings = [["16", "8M"], ["16", "2K"], ["3", "4G"]];
        return compare("gradients_are_those_of_single_launches", &settings);
    }
    type A = Autodiff<R>;
    let (device, random) = (Default::default(), Random::new());
    let print = |tensor: Tensor<R, 4>| println!("tensor {:?}", bits_of(tensor.into_primitive().tensor()));
    for (dims, dtype) in [
        ([3, 5, 4, 6], FloatDType::F32),
        ([2, 8, 3, 3], FloatDType::F32),
        ([2, 7, 1, 5], FloatDType::BF16),
        ([4, 8, 4, 4], FloatDType::BF16),
        ([4, 4, 4, 8], FloatDType::F16),
    ] {
        let of = |dims: [usize; 4]| {
            let values: Vec<f32> =
                (0..dims.iter().product()).map(|_| random.uniform(-2.0, 2.0) as f32).collect();
            Tensor::<A, 4>::from_data(TensorData::new(values, dims), &device).cast(dtype).require_grad()
        };
        let norm = BatchNormConfig::new(dims[1]).init::<A>(&device).map(&mut Cast(dtype));
        let row_norm = LayerNormConfig::new(dims[3]).init::<A>(&device).map(&mut Cast(dtype));
        let (x, scale, target) = (of(dims), of([1, dims[1], 1, 1]), of(dims));
        for _ in 0..2 {
            let y = activation::relu(norm.forward(x.clone()) * scale.clone());
            let y = activation::gelu(row_norm.forward(y + x.clone()));
            let y = activation::softmax(y, 3) - activation::log_softmax(target.clone(), 3) * 0.125;
            let distance = y.clone() - target.clone();
            let grads = (distance.clone() * distance).mean().backward();
            print(y.inner());
            for tensor in [&x, &scale, &target] {
                print(tensor.grad(&grads).unwrap());
            }
            let gamma = norm.gamma.val().grad(&grads).unwrap().reshape([1, dims[1], 1, 1]);
            print(gamma);
            print(norm.running_var.value_sync().inner().reshape([1, dims[1], 1, 1]));
        }
        // A norm on known statistics is compiled as a whole, with and without a sum and ReLU.
        let norm = norm.valid();
        let [n, c, h, w] = dims;
        let last = of([n, h, w, c]).inner().permute([0, 3, 1, 2]);
        for x in [x.inner(), last] {
            print(norm.forward(x.clone()));
            print(activation::relu(norm.forward(x.clone())));
            print(norm.forward(x.clone()) + target.clone().inner());
            print(activation::relu(norm.forward(x.clone()) + x));
        }
    }
}

/// Sums and means of what a chain computes, whose kernel then computes both: short and long rows
/// that begin anywhere, neighbouring columns, sums in parts, results that others read too.
#[test]
fn sums_of_a_chain_are_those_of_single_launches() {
    if !is_child() {
        let settings = [["16", "8M"], ["2", "4G"], ["5", "20K"]];
        return compare("sums_of_a_chain_are_those_of_single_launches", &settings);
    }
    let (d, random) = (Default::default(), Random::new());
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for shape in [
            &[3, 1000][..],
            &[70, 33],
            &[300, 40],
            &[2, 20_000],
            &[513, 8],
            &[3, 40, 12],
            &[2, 300, 64],
            &[1, 5000, 4],
            &[4, 6, 5, 8],
        ] {
            let of =
                |shape: &[usize]| float(&random, shape, dtype, View::Contiguous, -2.0, 2.0).float::<R>(&d);
            let (x, row) = (of(shape), of(&fewer(&random, shape)));
            for axis in 0..shape.len() {
                let scalar = Scalar::Float(random.uniform(-1.5, 1.5));
                let product = R::float_mul(R::float_add_scalar(x.clone(), scalar), row.clone());
                let kept = (random.below(2) == 0).then(|| product.clone());
                let sum = match random.below(3) {
                    0 => R::float_mean_dim(product, axis),
                    1 => R::float_sum_dim(R::float_mul(product.clone(), product), axis),
                    _ => R::float_sum_dim(product, axis),
                };
                println!("tensor {:?}", bits_of(R::float_sub(sum, row.clone())));
                if let Some(kept) = kept {
                    println!("tensor {:?}", bits_of(kept));
                }
            }
        }
    }
    // The mean of each channel, as Burn's batch norm has it, of a tensor whose copy may wait.
    let x = float(&random, &[2, 32, 64, 64], DType::F32, View::Contiguous, -2.0, 2.0).float::<R>(&d);
    let mean = |x: FloatTensor<R>| {
        R::float_mean_dim(R::float_reshape(R::float_swap_dims(x, 0, 1), Shape::from(vec![32, 8192])), 1)
    };
    println!("tensor {:?}", bits_of(mean(x.clone())));
    println!("tensor {:?}", bits_of(mean(R::float_mul(x.clone(), x))));
}

/// Converts a module's parameters.
struct Cast(FloatDType);

impl<B: Backend> ModuleMapper<B> for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|tensor| {
            let grad = tensor.is_require_grad();
            let plain = Tensor::<B, D>::from_data(tensor.to_data(), &tensor.device());
            plain.cast(self.0).set_require_grad(grad)
        })
    }
}

/// Compares every functor with burn-flex, as steps of one list, over odd sizes and the remainders
/// of views.
#[test]
fn functors_give_what_burn_flex_gives() {
    if !is_child() {
        for wave in [None, Some("32")] {
            said("functors_give_what_burn_flex_gives", ["16", "8M"], &Random::new().bits().to_string(), wave);
        }
        return;
    }
    let random = Random::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for len in [1, 2, 3, 4, 5, 31, 257, 5000] {
            let of = |low, high| float(&random, &[len], dtype, View::Contiguous, low, high);
            let (x, y) = (of(0.1, 2.0), of(-2.0, 2.0));
            differential!("chain", Tolerance::of(dtype).times(2.0), |B, device| {
                let (x, y) = (x.float::<B>(&device), y.float::<B>(&device));
                let (x, y) = (|| x.clone(), || y.clone());
                let scalar = Scalar::Float(-0.75);
                // All ops are called before the first read, so they are steps of the same lists.
                let asked = vec![
                    B::float_add(x(), y()),
                    B::float_sub(x(), y()),
                    B::float_mul(x(), y()),
                    B::float_div(y(), x()),
                    B::float_add_scalar(x(), scalar),
                    B::float_sub_scalar(x(), scalar),
                    B::float_mul_scalar(x(), scalar),
                    B::float_div_scalar(x(), scalar),
                    B::float_neg(y()),
                    B::float_abs(y()),
                    B::float_sqrt(x()),
                    B::float_recip(x()),
                    B::float_exp(y()),
                    B::float_log(x()),
                    B::float_tanh(y()),
                    B::relu(y()),
                    B::sigmoid(y()),
                    B::relu_backward(B::relu(y()), x()),
                    B::sigmoid_backward(x(), y()),
                    B::float_full(Shape::from(vec![len]), Scalar::Float(0.3), &device, float_dtype(dtype)),
                    B::float_zeros(Shape::from(vec![len]), &device, float_dtype(dtype)),
                ];
                asked.into_iter().map(read_float::<B>).collect::<Vec<_>>()
            });
        }
    }
}

#[test]
fn many_ops_are_one_launch_and_reads_wait_for_them() {
    if !is_child() {
        said("many_ops_are_one_launch_and_reads_wait_for_them", ["16", "8M"], "1", None);
        return;
    }
    let d = Default::default();
    let hip = hip::Device::get(0).expect("a device");
    let one = || R::float_ones(Shape::from(vec![32, 32]), &d, FloatDType::F32);
    let launches = || hip.counters().launches;
    let (x, y) = (one(), one());
    hip.sync().unwrap();
    let before = launches();
    let mut kept = vec![x];
    for _ in 0..32 {
        kept.push(R::float_add(kept.last().unwrap().clone(), y.clone()));
    }
    assert_eq!(launches() - before, 2);
    let sum = R::float_add(kept[32].clone(), y.clone());
    assert_eq!(launches() - before, 2, "one that is put off");
    let other = R::float_add(
        R::float_ones(Shape::from(vec![8]), &d, FloatDType::F32),
        R::float_ones(Shape::from(vec![8]), &d, FloatDType::F32),
    );
    assert_eq!(bits_of(sum)[0], 34f64.to_bits());
    assert_eq!(bits_of(other)[0], 2f64.to_bits());
    for (n, tensor) in kept.into_iter().enumerate() {
        assert_eq!(bits_of(tensor)[1023], (n as f64 + 1.0).to_bits());
    }
}

/// The launches of `ops` after everything before it, and of what is deferred after it.
fn launches_of(ops: impl FnOnce()) -> usize {
    let hip = hip::Device::get(0).expect("a device");
    hip.sync().unwrap();
    let before = hip.counters().launches;
    ops();
    hip.sync().unwrap();
    (hip.counters().launches - before) as usize
}

#[test]
fn broadcasts_and_small_ops_between_large_ones_join() {
    if !is_child() {
        for wave in [None, Some("32")] {
            said("broadcasts_and_small_ops_between_large_ones_join", ["16", "64K"], "1", wave);
        }
        return;
    }
    let d = Default::default();
    let ones = |shape: &[usize]| R::float_ones(Shape::from(shape.to_vec()), &d, FloatDType::F32);
    let (x, mean, var) = (ones(&[4, 8, 8, 8]), ones(&[1, 8, 1, 1]), ones(&[1, 8, 1, 1]));
    // Batch norm in inference: the small ops that give the deviation are one launch, the others one.
    let norm = || {
        let x = R::float_sub(x.clone(), mean.clone());
        let deviation = R::float_sqrt(R::float_add_scalar(var.clone(), Scalar::Float(1e-5)));
        let x = R::float_mul(R::float_div(x, deviation), mean.clone());
        R::relu(R::float_add(x, var.clone()))
    };
    assert_eq!(launches_of(|| drop(norm())), 2);
    // Small ops that the large ones don't need stay behind.
    let apart = || {
        let (mut large, mut small) = (x.clone(), mean.clone());
        for _ in 0..5 {
            large = R::float_mul(large, mean.clone());
            small = R::float_add(small, var.clone());
        }
        (large, small)
    };
    assert_eq!(launches_of(|| drop(apart())), 2);
    // A chain that goes on in bf16. Its results may lie in what held larger ones, unless a block has
    // one thread, which passes results on through memory.
    let one_thread = usize::from(hip::Device::get(0).unwrap().info().max_threads_per_block == 1);
    let half = || {
        let half = R::float_cast(R::float_mul(x.clone(), mean.clone()), FloatDType::BF16);
        R::float_cast(R::float_add(half.clone(), half), FloatDType::F32)
    };
    let launches = launches_of(|| drop(half()));
    assert!(launches <= 1 + 2 * one_thread, "{launches}");
    assert_eq!(bits_of(half())[2047], 2f64.to_bits());
    // A sum of what a chain computed, with one more launch where a block has one thread.
    let sum = || R::float_sum_dim(R::float_mul(x.clone(), mean.clone()), 0);
    assert_eq!(launches_of(|| drop(sum())), 1 + one_thread);
    assert_eq!(bits_of(sum())[511], 4f64.to_bits());
    // More than BURN_ROCM_CHAIN_BYTES: 4 ops, 4 launches.
    let (big, row) = (ones(&[129, 128]), ones(&[1, 128]));
    let large =
        || R::float_neg(R::float_add(R::float_mul(R::float_neg(big.clone()), row.clone()), row.clone()));
    assert_eq!(launches_of(|| drop(large())), 4);
    assert_eq!(bits_of(norm())[2047], 1f64.to_bits());
}

/// The pool may give a dropped result's memory to a result of another list while the first list
/// waits. A step that reads that memory means the new result.
#[test]
fn memory_of_a_dropped_result_may_hold_another_ones() {
    if !is_child() {
        let settings = [["16", "8M"], ["4", "8M"]];
        return compare("memory_of_a_dropped_result_may_hold_another_ones", &settings);
    }
    let (d, random) = (Default::default(), Random::new());
    let two = || Scalar::Float(random.uniform(1.0, 2.0));
    for len in [64, 1000, 1024, 4096, 30_000] {
        let of = |dtype| float(&random, &[len], dtype, View::Contiguous, -2.0, 2.0).float::<R>(&d);
        let (a, b) = (of(DType::F32), of(DType::BF16));
        for _ in 0..2 {
            let converted = || {
                let half = R::float_mul_scalar(b.clone(), two());
                drop(R::float_mul_scalar(a.clone(), two()));
                R::float_cast(half, FloatDType::F32)
            };
            println!("tensor {:?}", bits_of(R::float_sum(converted())));
            // Launches the list that computed it, but not the one of the dropped result.
            let read = converted();
            let half = R::float_slice(read.clone(), &[burn_std::Slice::from(0..len / 2)]);
            let doubled = R::float_mul_scalar(half, two());
            println!("tensor {:?}", bits_of(R::float_add_scalar(read, two())));
            println!("tensor {:?}", bits_of(doubled));
        }
    }
}

/// A graph keeps the memory of an input that is dropped, and reads it in each replay. So the input is
/// computed, even if it was still deferred when it was dropped.
#[test]
fn a_graphs_input_is_computed_though_it_was_dropped() {
    if !is_child() {
        for wave in [None, Some("32")] {
            said("a_graphs_input_is_computed_though_it_was_dropped", ["16", "8M"], "1", wave);
        }
        return;
    }
    let device = burn_rocm::RocmDevice::default();
    // The graph also works without the library handles that its first use would make.
    for dropped_by_sum in [false, true] {
        let x = R::float_ones(Shape::from(vec![1024]), &device, FloatDType::F32);
        let x = R::float_mul_scalar(x, Scalar::Float(2.0));
        let step = || R::float_add_scalar(x.clone(), Scalar::Float(1.0));
        let (graph, y) = burn_rocm::graph::Graph::capture_after(&device, 0, step).unwrap();
        match dropped_by_sum {
            true => assert_eq!(bits_of(R::float_sum(x)), [2048f64.to_bits()]),
            false => drop(x),
        }
        graph.replay().unwrap();
        assert_eq!(bits_of(y), vec![3f64.to_bits(); 1024]);
    }
}

/// A deferred copy of halves has the bits that it copies, also those of a NaN, whatever is deferred
/// with it: a conversion would turn a signalling NaN into a quiet one.
#[test]
fn copies_keep_the_bits_of_a_nan() {
    let name = "copies_keep_the_bits_of_a_nan";
    if is_child() {
        println!(); // ends the line on which the test's name stands
        // 1 MiB, from which on copies are deferred.
        const COLUMNS: usize = 1 << 16;
        for (dtype, nan) in [(DType::F16, 0x7d03u16), (DType::BF16, 0x7f83)] {
            let bits = |row: usize, column: usize| match (row + column) % 5 {
                0 => nan,
                one => (one * 0x0c00) as u16,
            };
            let words: Vec<u8> =
                (0..8 * COLUMNS).flat_map(|at| bits(at / COLUMNS, at % COLUMNS).to_le_bytes()).collect();
            let x = R::float_from_data(
                TensorData::from_bytes_vec(words, [2, 4, COLUMNS], dtype),
                &Default::default(),
            );
            for also in ["nothing", "an op", "a conversion"] {
                let before = R::float_add_scalar(x.clone(), Scalar::Float(1.0));
                let before = (also == "an op").then_some(before);
                let copied = R::float_reshape(R::float_swap_dims(x.clone(), 0, 1), Shape::from([8, COLUMNS]));
                let wide = (also == "a conversion").then(|| R::float_cast(copied.clone(), FloatDType::F32));
                let found = read_float::<R>(copied);
                let right = found.as_bytes().chunks(2).enumerate().all(|(at, word)| {
                    let (row, column) = (at / COLUMNS, at % COLUMNS);
                    // [2, 4] in the other order.
                    word == bits(row % 2 * 4 + row / 2, column).to_le_bytes()
                });
                println!("tensor {dtype:?} with {also}: {right}");
                drop((before, wide));
            }
        }
        return;
    }
    let lockstep = matches!(std::env::var("BURN_ROCM_PROVIDER").as_deref(), Err(_) | Ok("auto" | "cpu"));
    for wave in [None, Some("32"), Some("64")].into_iter().filter(|wave| wave.is_none() || lockstep) {
        let lines = said(name, ["16", "256M"], "1", wave);
        assert!(
            lines.len() == 6 && lines.iter().all(|line| line.ends_with(": true")),
            "{wave:?}: {lines:#?}"
        );
    }
}
