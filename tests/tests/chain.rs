//! Deferred element-wise ops that are launched together give the same bits as ops with separate
//! launches, whatever comes between them.
//!
//! A process reads `BURN_ROCM_CHAIN` once, so each setting has its own process.
#![allow(missing_docs, clippy::unwrap_used)]

use burn_backend::tensor::FloatTensor;
use burn_rocm_tests::*;

const CHILD: &str = "BURN_ROCM_TEST_CHAIN_CHILD";

/// The lines that the named test prints in a process with this setting.
fn said(test: &str, chain: &str, seed: &str, wave: Option<&str>) -> Vec<String> {
    let mut environment = vec![(CHILD, "1"), ("BURN_ROCM_CHAIN", chain), ("BURN_ROCM_TEST_SEED", seed)];
    environment.extend(wave.map(|wave| ("BURN_ROCM_CPU_WAVE", wave)));
    let text = again(&["--exact", test, "--nocapture", "--test-threads", "1"], &environment);
    text.lines().filter(|line| line.starts_with("tensor ")).map(str::to_owned).collect()
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

/// Ops in an order that defers, overwrites, frees, slices, moves and reads. At the end prints the
/// bytes of all tensors.
fn random_program(random: &Random, dtype: DType) {
    let d = Default::default();
    let shapes = [[4, 33], [7, 96], [1, 5], [64, 64]];
    let fresh = |shape: &[usize]| float(random, shape, dtype, View::Contiguous, -2.0, 2.0).float::<R>(&d);
    let mut tensors: Vec<(usize, FloatTensor<R>)> =
        (0..8).map(|at| (at % shapes.len(), fresh(&shapes[at % shapes.len()]))).collect();
    for _ in 0..120 {
        let at = random.below(tensors.len());
        let (shape, x) = tensors[at].clone();
        let alike: Vec<usize> = (0..tensors.len()).filter(|&i| tensors[i].0 == shape).collect();
        let other = alike[random.below(alike.len())];
        let y = tensors[other].1.clone();
        let made = match random.below(24) {
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
            19 => R::float_matmul(R::float_matmul(x.clone(), R::float_transpose(x)), y),
            20 => R::float_expand(R::float_mean_dim(x, 0), Shape::from(shapes[shape].to_vec())),
            21 => fresh(&shapes[shape]),
            22 => {
                println!("tensor read {:?}", bits_of(x.clone()));
                x
            }
            // Another thread continues with it.
            _ => std::thread::scope(|scope| {
                scope.spawn(|| R::float_add(R::float_mul_scalar(x, Scalar::Float(0.5)), y)).join().unwrap()
            }),
        };
        tensors.push((shape, made));
        while tensors.len() > 12 {
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
    let seed = Random::new().bits().to_string();
    let test = "bits_are_those_of_single_launches";
    let lockstep = matches!(std::env::var("BURN_ROCM_PROVIDER").as_deref(), Err(_) | Ok("auto" | "cpu"));
    for wave in [None, Some("32"), Some("64")] {
        if wave.is_some() && !lockstep {
            continue;
        }
        let single = said(test, "0", &seed, wave);
        assert!(single.len() > 200, "{}", single.len());
        for chain in ["1", "2", "5", "16"] {
            let joined = said(test, chain, &seed, wave);
            assert_eq!(single.len(), joined.len());
            for (at, (a, b)) in single.iter().zip(&joined).enumerate() {
                assert!(
                    a == b,
                    "seed {seed}, chain {chain}, wave {wave:?}, output {at}:\n{a:.200}\n{b:.200}"
                );
            }
        }
    }
}

/// Compares every functor with burn-flex, as steps of one list, over odd sizes and the remainders
/// of views.
#[test]
fn functors_give_what_burn_flex_gives() {
    if !is_child() {
        for wave in [None, Some("32")] {
            said("functors_give_what_burn_flex_gives", "16", &Random::new().bits().to_string(), wave);
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
        said("many_ops_are_one_launch_and_reads_wait_for_them", "16", "1", None);
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
