//! Layout ops on quantised tensors keep the values bit by bit, and the data equals that of
//! `burn-flex`.

use super::quantized::{STORES, VALUES, parts, read_q, same};
use burn_backend::quantization::{QuantLevel, QuantScheme};
use burn_backend::tensor::QuantizedTensor;
use burn_rocm_tests::*;

/// Defines each op on float and on quantised tensors: its name, and its body for either kind.
macro_rules! layout_ops {
    (|$B:ident, $t:ident, $device:ident| $(($name:literal, $float:expr, $quantized:expr)),* $(,)?) => {
        fn names() -> Vec<&'static str> {
            vec![$($name),*]
        }
        fn on_floats<$B: Backend>(
            name: &str,
            $t: burn_backend::tensor::FloatTensor<$B>,
        ) -> burn_backend::tensor::FloatTensor<$B> {
            match name {
                $($name => { let $device = $B::float_device(&$t); let _ = &$device; $float })*
                other => panic!("{other}"),
            }
        }
        fn on_quantized<$B: Backend>(name: &str, $t: QuantizedTensor<$B>) -> QuantizedTensor<$B> {
            match name {
                $($name => { let $device = $B::q_device(&$t); let _ = &$device; $quantized })*
                other => panic!("{other}"),
            }
        }
    };
}

fn indices<B: Backend>(
    values: &[i64],
    shape: &[usize],
    device: &B::Device,
) -> burn_backend::tensor::IntTensor<B> {
    let data = TensorData::new(values.to_vec(), Shape::from(shape.to_vec()));
    B::int_from_data(data, device)
}

const SHAPE: [usize; 3] = [4, 6, 16];

// The ops' results hold whole blocks of 4, of 16 and of 32.
layout_ops! { |B, t, device|
    ("reshape", B::float_reshape(t, Shape::from(vec![12, 32])), B::q_reshape(t, Shape::from(vec![12, 32]))),
    ("flatten", B::float_reshape(t, Shape::from(vec![384])), B::q_reshape(t, Shape::from(vec![384]))),
    ("swap_dims", B::float_swap_dims(t, 0, 2), B::q_swap_dims(t, 0, 2)),
    ("transpose", B::float_transpose(t), B::q_transpose(t)),
    ("permute", B::float_permute(t, &[1, 2, 0]), B::q_permute(t, &[1, 2, 0])),
    ("permute outer", B::float_permute(t, &[1, 0, 2]), B::q_permute(t, &[1, 0, 2])),
    ("flip", B::float_flip(t, &[0, 2]), B::q_flip(t, &[0, 2])),
    ("flip outer", B::float_flip(t, &[1]), B::q_flip(t, &[1])),
    ("slice", B::float_slice(t, &SLICE), B::q_slice(t, &SLICE)),
    ("slice rows", B::float_slice(t, &ROWS), B::q_slice(t, &ROWS)),
    ("expand", B::float_expand(B::float_slice(t, &FIRST), Shape::from(vec![2, 5, 6, 16])),
        B::q_expand(B::q_slice(t, &FIRST), Shape::from(vec![2, 5, 6, 16]))),
    ("select 0", B::float_select(t, 0, indices::<B>(&[3, 0, 3], &[3], &device)),
        B::q_select(t, 0, indices::<B>(&[3, 0, 3], &[3], &device))),
    ("select 1", B::float_select(t, 1, indices::<B>(&[5, 1], &[2], &device)),
        B::q_select(t, 1, indices::<B>(&[5, 1], &[2], &device))),
    ("select 2", B::float_select(t, 2, indices::<B>(&[5, 1, 15, 0], &[4], &device)),
        B::q_select(t, 2, indices::<B>(&[5, 1, 15, 0], &[4], &device))),
    ("gather", B::float_gather(1, t, indices::<B>(&GATHER, &[4, 1, 16], &device)),
        B::q_gather(1, t, indices::<B>(&GATHER, &[4, 1, 16], &device))),
    ("repeat_dim 0", B::float_repeat_dim(t, 0, 3), B::q_repeat_dim(t, 0, 3)),
    ("repeat_dim 2", B::float_repeat_dim(t, 2, 2), B::q_repeat_dim(t, 2, 2)),
}

static SLICE: [Slice; 3] = [
    Slice { start: 0, end: None, step: 1 },
    Slice { start: 1, end: None, step: 2 },
    Slice { start: 0, end: None, step: -2 },
];
static ROWS: [Slice; 1] = [Slice { start: 1, end: Some(3), step: 1 }];
static FIRST: [Slice; 1] = [Slice { start: 2, end: Some(3), step: 1 }];
const GATHER: [i64; 64] = {
    let mut list = [0; 64];
    let mut i = 0;
    while i < 64 {
        list[i] = (i * 7 % 6) as i64;
        i += 1;
    }
    list
};

/// Whether the op stores its result anew, because no view can express it and it moves parts of
/// blocks.
fn stores(name: &str, level: QuantLevel) -> bool {
    let of_16 = name == "select 1" && level == QuantLevel::block([2, 16]);
    of_16 || ["gather", "select 2", "repeat_dim 0", "repeat_dim 2"].contains(&name)
}

#[test]
fn values_keep_their_scale() {
    let random = Random::new();
    for value in VALUES {
        for store in STORES {
            for level in [
                QuantLevel::Tensor,
                QuantLevel::block([16]),
                QuantLevel::block([2, 16]),
                QuantLevel::block([4]),
            ] {
                let scheme = QuantScheme::default().with_value(value).with_store(store).with_level(level);
                let x = float(&random, &SHAPE, DType::F32, View::Contiguous, -3.0, 2.0);
                let q = R::quantize_dynamic(x.float::<R>(&Default::default()), &scheme);
                let floats = R::dequantize(q.clone(), FloatDType::F32);
                for name in names() {
                    let what = format!("{name} of {scheme:?}");
                    let ours = on_quantized::<R>(name, q.clone());
                    assert_eq!(ours.dtype(), q.dtype(), "{what}");
                    let expected = read_float::<R>(on_floats::<R>(name, floats.clone()));
                    let back = read_float::<R>(R::dequantize(ours.clone(), FloatDType::F32));
                    if level == QuantLevel::Tensor || !stores(name, level) {
                        assert_close(&what, std::slice::from_ref(&back), &[expected], Tolerance::EXACT);
                    } else {
                        // The values are quantised again by the range of their new neighbours,
                        // which the first rounding widened by half a step. The error is half a step
                        // of that range.
                        let steps = f64::from(value.range().1 - value.range().0);
                        let step = Tolerance { absolute: (3.0 + 3.0 / steps) / steps * 1.01, relative: 0.0 };
                        assert_close(&what, std::slice::from_ref(&back), &[expected], step);
                    }
                    // Reading stores the data anew, whatever the tensor's views.
                    let data = read_q::<R>(ours);
                    if level == QuantLevel::Tensor {
                        let read = R::q_from_data(data, &Default::default());
                        let read = read_float::<R>(R::dequantize(read, FloatDType::F32));
                        assert_close(&what, &[read], &[back], Tolerance::EXACT);
                    }
                }
            }
        }
    }
}

#[test]
fn data_is_that_of_burn_flex() {
    let random = Random::new();
    for value in VALUES {
        for level in
            [QuantLevel::Tensor, QuantLevel::block([16]), QuantLevel::block([2, 16]), QuantLevel::block([4])]
        {
            for store in STORES {
                let scheme = QuantScheme::default().with_value(value).with_store(store).with_level(level);
                let x = float(&random, &SHAPE, DType::F32, View::Contiguous, -3.0, 2.0);
                let q = read_q::<R>(R::quantize_dynamic(x.float::<R>(&Default::default()), &scheme));
                for name in names() {
                    let ours =
                        read_q::<R>(on_quantized::<R>(name, R::q_from_data(q.clone(), &Default::default())));
                    let theirs =
                        read_q::<O>(on_quantized::<O>(name, O::q_from_data(q.clone(), &Default::default())));
                    let what = format!("{name} of {scheme:?}");
                    if level == QuantLevel::Tensor && !name.starts_with("repeat_dim") {
                        same(&what, ours, theirs);
                        continue;
                    }
                    // Here a block that moves as a whole keeps its scale. The oracle measures it
                    // again, which may change values by one step if the range is asymmetric.
                    assert_eq!(ours.shape, theirs.shape, "{what}");
                    let ((ours, scales), (theirs, their_scales)) = (parts(ours), parts(theirs));
                    assert_eq!(scales.len(), their_scales.len(), "{what}");
                    let block = ours.len() / scales.len();
                    for (i, (a, b)) in ours.iter().zip(&theirs).enumerate() {
                        let (s, t) = (scales[i / block], their_scales[i / block]);
                        let (a, b) = (f32::from(*a) * s, f32::from(*b) * t);
                        assert!((a - b).abs() <= 1.01 * s.max(t), "{what}: value {i} is {a} instead of {b}");
                    }
                }
            }
        }
    }
}

/// Sizes that end within a word, and every view of a view.
#[test]
fn chains_of_views() {
    let random = Random::new();
    for value in VALUES {
        for store in STORES {
            for level in [QuantLevel::Tensor, QuantLevel::block([7])] {
                let scheme = QuantScheme::default().with_value(value).with_store(store).with_level(level);
                let x = float(&random, &[5, 3, 7], DType::F16, View::Sliced, -3.0, 2.0);
                let mut q = R::quantize_dynamic(x.float::<R>(&Default::default()), &scheme);
                let mut f = R::dequantize(q.clone(), FloatDType::F32);
                for _ in 0..6 {
                    match random.below(5) {
                        0 => {
                            (q, f) = (R::q_permute(q, &[2, 0, 1]), R::float_permute(f, &[2, 0, 1]));
                        }
                        1 => {
                            (q, f) = (R::q_flip(q, &[1]), R::float_flip(f, &[1]));
                        }
                        2 if f.shape()[0] > 2 => {
                            let s = [Slice::new(1, None, 2)];
                            (q, f) = (R::q_slice(q, &s), R::float_slice(f, &s));
                        }
                        3 if level == QuantLevel::Tensor => {
                            let [a, b, c] = f.shape().dims();
                            let shape = Shape::from(vec![c, a, b]);
                            (q, f) = (R::q_reshape(q, shape.clone()), R::float_reshape(f, shape));
                        }
                        _ => {
                            (q, f) = (R::q_swap_dims(q, 0, 2), R::float_swap_dims(f, 0, 2));
                        }
                    }
                    for dtype in FLOATS {
                        let ours = read_float::<R>(R::dequantize(q.clone(), float_dtype(dtype)));
                        let theirs = read_float::<R>(R::float_cast(f.clone(), float_dtype(dtype)));
                        assert_close(&format!("{scheme:?}"), &[ours], &[theirs], Tolerance::EXACT);
                    }
                }
            }
        }
    }
}

#[test]
fn devices() {
    let scheme = QuantScheme::default();
    let x = float(&Random::new(), &[4, 8], DType::F32, View::Contiguous, -3.0, 2.0);
    let q = R::quantize_dynamic(x.float::<R>(&Default::default()), &scheme);
    let device = R::q_device(&q);
    assert_eq!(device, Default::default());
    let moved = R::q_transpose(R::q_to_device(R::q_transpose(q.clone()), &device));
    same("q_to_device", read_q::<R>(moved), read_q::<R>(q));
}
