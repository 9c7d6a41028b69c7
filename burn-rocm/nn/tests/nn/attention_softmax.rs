//! The kernels that compute attention's softmax or its gradient together with the product before
//! it: compared with the formulas in f64, and the conditions under which they run. The CPU device,
//! whose blocks have one thread, does not use these kernels; there the ops that run instead must
//! give the same results.

use burn_rocm::RocmTensor;
use burn_rocm::fused::{AttentionOptions, AttentionPath, attention, attention_backward};
use burn_rocm_tests::trace::during;
use burn_rocm_tests::{FloatTensorOps, R, read_float};

use crate::attention_formulas::{Case, Given, case, expected};
use crate::attention_fused::{Lies, on_device};
use crate::bounded::{assert_bounded, exact};
use crate::support::*;

const KERNELS: [&str; 2] = ["attention_softmax<f32", "attention_softmax_backward<f32"];

/// Whether a device of this kind uses the kernels at all.
fn joins() -> bool {
    let device = hip::Device::get(0).unwrap();
    device.block_threads() == 256
        && !device.info().has_f32_matrix_units()
        && hip::matmul_route() != Ok(hip::Route::Library)
}

/// The batch size for which 2 heads of `tiles` tiles each give every compute unit a tile.
fn batch(tiles: usize) -> usize {
    (hip::Device::get(0).unwrap().info().compute_units as usize).div_ceil(2 * tiles)
}

fn options() -> AttentionOptions {
    AttentionOptions { path: AttentionPath::Composed, ..AttentionOptions::default() }
}

fn drawn(random: &Random, shape: [usize; 4], span: f64) -> TensorData {
    let values = (0..shape.iter().product()).map(|_| random.uniform(-span, span)).collect();
    TensorData::new::<f64, _>(values, shape)
}

/// The output and the gradients of a call, and which of the kernels ran.
fn run(
    inputs: [RocmTensor; 3],
    grad: RocmTensor,
    options: &AttentionOptions,
) -> (Vec<TensorData>, [usize; 2]) {
    let ((out, grads), lines) = during(|| {
        let [q, k, v] = inputs.clone();
        let attended = attention(q, k, v, None, options).unwrap();
        let grads = attention_backward(inputs, None, attended.kept, grad, options, [true; 3]).unwrap();
        (attended.out, grads)
    });
    let found = [out].into_iter().chain(grads.into_iter().map(Option::unwrap)).map(read_float::<R>).collect();
    let counted = KERNELS.map(|kernel| lines.iter().filter(|line| line.contains(kernel)).count());
    (found, counted)
}

/// Sizes for which the kernels run: whole tiles, tiles with unused rows and columns, the last of
/// several tiles, sums of 4 to 64 terms, and rows of several heads that share keys.
#[test]
fn the_kernels_against_the_formulas() {
    let random = Random::new();
    let sizes: [([usize; 4], usize, usize); 8] = [
        // queries, keys, features of queries and of values; tiles of queries; heads that share keys
        ([64, 512, 8, 4], 1, 1),
        ([57, 400, 4, 20], 1, 1),
        ([125, 508, 20, 64], 2, 1),
        ([128, 256, 64, 12], 1, 1),
        ([230, 192, 12, 8], 2, 1),
        ([101, 228, 28, 36], 1, 1),
        ([32, 512, 8, 4], 1, 2),
        ([57, 196, 12, 20], 2, 4),
    ];
    for ([queries, keys, width, values], tiles, group) in sizes {
        let case = case([batch(tiles), 2 * group, queries, keys, width, values]).grouped(group);
        let Case { batch, heads, .. } = case;
        for (trial, lies) in [Lies::Packed, Lies::SequenceFirst, Lies::BatchFirst].into_iter().enumerate() {
            let options =
                AttentionOptions { scale: (trial == 1).then_some(-0.7), quiet: trial == 2, ..options() };
            // Large scores too, for which only a few weights of a row count.
            let span = [1.0, 3.0, 8.0][random.below(3)];
            let q = drawn(&random, [batch, heads, queries, width], span);
            let k = drawn(&random, [batch, 2, keys, width], 1.0);
            let v = drawn(&random, [batch, 2, keys, values], 1.0);
            let grad = drawn(&random, [batch, heads, queries, values], 1.0);
            let [rq, rk, rv, rg] =
                [&q, &k, &v, &grad].map(|data| exact(data.clone().convert_dtype(DType::F32).iter::<f64>()));
            let weights_grad = exact(vec![0.0; batch * heads * queries * keys]);
            let given = Given {
                case,
                q: &rq,
                k: &rk,
                v: &rv,
                grad: &rg,
                weights_grad: &weights_grad,
                mask: None,
                options: &options,
            };
            let expected = expected(&given, DType::F32);
            let [q, k, v, grad] = [&q, &k, &v, &grad].map(|data| on_device(data, DType::F32, lies));
            let (ours, counted) = run([q, k, v], grad, &options);
            let what = format!("{case:?} {lies:?} {options:?} span {span}");
            assert_eq!(counted, [usize::from(joins()); 2], "{what}");
            let [by_q, by_k, by_v] = expected.grads;
            assert_bounded(&what, &ours, &[expected.out, by_q, by_k, by_v]);
        }
    }
}

/// Shapes that these kernels do not take are computed by products and a kernel over the rows.
/// `attention_fused.rs` compares those results.
#[test]
fn other_sizes_types_and_options_are_products() {
    let random = Random::new();
    let draw = |shape: [usize; 4], dtype, lies| on_device(&drawn(&random, shape, 1.0), dtype, lies);
    let batch = batch(1);
    let of = |queries, keys, width, dtype, lies| {
        let [q, k, v, grad] = [queries, keys, keys, queries].map(|n| draw([batch, 2, n, width], dtype, lies));
        ([q, k, v], grad)
    };
    let packed = Lies::Packed;
    let causal = AttentionOptions { causal: true, ..options() };
    for (what, (inputs, grad), options) in [
        ("few columns of a tile", of(64, 260, 8, DType::F32, packed), options()),
        ("more columns than a tile has", of(64, 516, 8, DType::F32, packed), options()),
        ("columns that are no multiple of four", of(64, 511, 8, DType::F32, packed), options()),
        ("few rows of a tile", of(40, 512, 8, DType::F32, packed), options()),
        ("terms that are no multiple of four", of(64, 512, 6, DType::F32, packed), options()),
        ("many terms", of(64, 512, 68, DType::F32, packed), options()),
        ("f16", of(64, 512, 8, DType::F16, packed), options()),
        ("causal", of(64, 512, 8, DType::F32, packed), causal),
    ] {
        let (found, counted) = run(inputs, grad, &options);
        assert_eq!(counted, [0; 2], "{what}");
        assert!(found.iter().all(|data| data.iter::<f32>().all(f32::is_finite)), "{what}");
    }
    // Rows that do not begin at multiples of 16 bytes.
    let wide = draw([batch, 2, 512, 9], DType::F32, packed);
    let cut = |rows: usize| {
        let of_rows = [(0, batch), (0, 2), (0, rows), (1, 9)]
            .map(|(a, b)| burn::tensor::Slice::new(a, Some(b as isize), 1));
        R::float_slice(wide.clone(), &of_rows)
    };
    let (_, counted) = run([cut(64), cut(512), cut(512)], cut(64), &options());
    assert_eq!(counted, [0; 2], "rows that begin anywhere");
}

/// A row with a NaN becomes NaN, a row of -inf becomes 0, and other rows are not affected.
#[test]
fn special_rows() {
    let (batch, queries, keys) = (batch(1), 64, 512);
    let mut q = vec![1.0; batch * 2 * queries * 4];
    q[5 * 4 + 1] = f64::NAN;
    q[7 * 4..8 * 4].fill(f64::NEG_INFINITY);
    let of = |values: Vec<f64>, n: usize| {
        on_device(&TensorData::new(values, [batch, 2, n, 4]), DType::F32, Lies::Packed)
    };
    let (q, k) = (of(q, queries), of(vec![1.0; batch * 2 * keys * 4], keys));
    let v = of(vec![0.5; batch * 2 * keys * 4], keys);
    let attended = attention(q, k, v, None, &options()).unwrap();
    let out: Vec<f32> = read_float::<R>(attended.out).iter::<f32>().collect();
    for (row, found) in out.chunks(4).enumerate() {
        for x in found {
            match row {
                5 => assert!(x.is_nan(), "{row} {found:?}"),
                7 => assert_eq!(*x, 0.0, "{row} {found:?}"),
                _ => assert!((x - 0.5).abs() < 1e-6, "{row} {found:?}"),
            }
        }
    }
}
