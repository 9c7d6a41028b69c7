//! Ops that select, sort, write or pad elements.

use burn_std::{PadMode, Slice};

use crate::harness::*;
use crate::same;

fn chance(random: &Random, shape: &[usize], likely: usize) -> Input {
    let bools = DType::Bool(BoolStore::Native);
    Input::new(shape, bools, view(random), || (random.below(8) < likely) as u8 as f64)
}

#[test]
fn mask_select() {
    let random = Random::new();
    for shape in SHAPES {
        for likely in [0, 1, 4, 8] {
            let m = chance(&random, shape, likely);
            for dtype in FLOATS {
                let x = float(&random, shape, dtype, view(&random), -2.0, 2.0);
                same!(format!("float_mask_select {dtype:?} {shape:?}"), |B, device| {
                    let out = B::float_mask_select(x.float::<B>(&device), m.bool::<B>(&device));
                    vec![read_float::<B>(wait(out))]
                });
            }
            for dtype in INTS {
                let x = int(&random, shape, dtype, view(&random), 0, 100);
                same!(format!("int_mask_select {dtype:?} {shape:?}"), |B, device| {
                    let out = B::int_mask_select(x.int::<B>(&device), m.bool::<B>(&device));
                    vec![read_int::<B>(wait(out))]
                });
            }
            let x = mask(&random, shape, view(&random));
            same!(format!("bool_mask_select {shape:?}"), |B, device| {
                let out = B::bool_mask_select(x.bool::<B>(&device), m.bool::<B>(&device));
                vec![read_bool::<B>(wait(out))]
            });
        }
    }
    let device = device();
    let x = float(&random, &[2, 3], DType::F32, View::Contiguous, 0.0, 1.0).float::<R>(&device);
    let m = mask(&random, &[3], View::Contiguous).bool::<R>(&device);
    let error = refused("a mask of another shape", || wait(R::float_mask_select(x, m)));
    assert!(matches!(error, RocmError::Invalid { op: "float_mask_select", .. }), "{error:?}");
}

/// Asserts that no line of `k` indices along the last axis has an index twice.
fn assert_distinct(what: &str, places: &TensorData, k: usize) {
    for line in values(places).chunks(k.max(1)) {
        let mut sorted = line.to_vec();
        sorted.sort_by(f64::total_cmp);
        assert!(sorted.windows(2).all(|pair| pair[0] < pair[1]), "{what}: {line:?}");
    }
}

/// Equal elements may have burn-flex's indices in any order, so the elements at the indices are
/// compared.
#[test]
fn topk_with_indices() {
    let random = Random::new();
    for shape in SHAPES.iter().filter(|shape| !shape.contains(&0)) {
        for dim in 0..shape.len() {
            for k in [0, 1, shape[dim].div_ceil(2), shape[dim]] {
                for dtype in FLOATS {
                    let x = special(&random, shape, dtype);
                    let what = format!("float_topk_with_indices {dtype:?} {shape:?} {dim} {k}");
                    same!(what, |B, device| {
                        let x = x.float::<B>(&device);
                        let (out, at) = B::float_topk_with_indices(x.clone(), dim, k, IntDType::I32);
                        assert_distinct(
                            &what,
                            &read_int::<B>(B::int_swap_dims(at.clone(), dim, shape.len() - 1)),
                            k,
                        );
                        vec![read_float::<B>(out), read_float::<B>(B::float_gather(dim, x, at))]
                    });
                }
                for dtype in INTS {
                    let x = int(&random, shape, dtype, view(&random), 0, 100);
                    let what = format!("int_topk_with_indices {dtype:?} {shape:?} {dim} {k}");
                    same!(what, |B, device| {
                        let x = x.int::<B>(&device);
                        let (out, at) = B::int_topk_with_indices(x.clone(), dim, k);
                        assert_distinct(
                            &what,
                            &read_index::<B>(B::int_swap_dims(at.clone(), dim, shape.len() - 1)),
                            k,
                        );
                        vec![read_int::<B>(out), read_int::<B>(B::int_gather(dim, x, at))]
                    });
                }
            }
        }
    }
    let x = float(&random, &[2, 3], DType::F32, View::Contiguous, 0.0, 1.0).float::<R>(&device());
    let error = refused("too many", || R::float_topk_with_indices(x, 1, 4, IntDType::I32));
    assert!(matches!(error, RocmError::Invalid { op: "float_topk_with_indices", .. }), "{error:?}");
}

#[test]
fn pad() {
    let random = Random::new();
    for shape in SHAPES {
        for mode in
            [PadMode::Constant(-1.5), PadMode::Constant(f32::INFINITY), PadMode::Reflect, PadMode::Edge]
        {
            let padding: Vec<(usize, usize)> = shape
                .iter()
                .map(|&size| {
                    let most = match mode {
                        PadMode::Constant(_) => 4,
                        PadMode::Reflect => size.min(5),
                        PadMode::Edge => {
                            if size == 0 {
                                1
                            } else {
                                5
                            }
                        }
                    };
                    (random.below(most), random.below(most))
                })
                .collect();
            if mode == PadMode::Reflect && shape.contains(&0) {
                continue; // refused, below
            }
            for dtype in FLOATS {
                let x = float(&random, shape, dtype, view(&random), -2.0, 2.0);
                same!(format!("float_pad {dtype:?} {shape:?} {padding:?} {mode:?}"), |B, device| {
                    vec![read_float::<B>(B::float_pad(x.float::<B>(&device), &padding, mode))]
                });
            }
            let mode = if mode == PadMode::Constant(f32::INFINITY) { PadMode::Constant(7.0) } else { mode };
            let mode = if mode == PadMode::Constant(-1.5) { PadMode::Constant(0.0) } else { mode };
            for dtype in INTS {
                let x = int(&random, shape, dtype, view(&random), 0, 100);
                same!(format!("int_pad {dtype:?} {shape:?} {padding:?} {mode:?}"), |B, device| {
                    vec![read_int::<B>(B::int_pad(x.int::<B>(&device), &padding, mode))]
                });
            }
        }
    }
    for (shape, padding, mode) in [
        ([3, 0], [(0, 0), (0, 0)], PadMode::Reflect),
        ([3, 2], [(3, 0), (0, 0)], PadMode::Reflect),
        ([3, 2], [(0, 0), (0, 2)], PadMode::Reflect),
        ([3, 0], [(0, 0), (1, 0)], PadMode::Edge),
    ] {
        let x = float(&random, &shape, DType::F32, View::Contiguous, 0.0, 1.0);
        let what = format!("{shape:?} {padding:?} {mode:?}");
        assert!(panics(|| O::float_pad(x.float::<O>(&Default::default()), &padding, mode)), "{what}");
        let error = refused(&what, || R::float_pad(x.float::<R>(&device()), &padding, mode));
        assert!(matches!(error, RocmError::Invalid { op: "float_pad", .. }), "{what}: {error:?}");
        // Burn's own suite expects these words.
        let words = if mode == PadMode::Reflect { "Reflect padding" } else { "edge padding" };
        assert!(error.to_string().contains(words), "{what}: {error}");
    }
}

/// Indices below `size`, of shape `shape`. No line along `dim` has an index twice, unless the line
/// is longer than `size`.
fn rotated(random: &Random, shape: &[usize], dim: usize, size: usize) -> Input {
    let (line, behind) = (shape[dim], shape[dim + 1..].iter().product::<usize>());
    let starts: Vec<usize> = (0..shape.iter().product::<usize>()).map(|_| random.below(size)).collect();
    let mut at = 0..;
    Input::new(shape, DType::I32, View::Contiguous, || {
        let i: usize = at.next().unwrap();
        let (first, along) = (i / behind / line * behind + i % behind, i / behind % line);
        ((starts[first] + along) % size) as f64
    })
}

/// Tests each update. Indices repeat, except for assignments: which of several values is kept is
/// not defined.
#[test]
fn scatter_and_select_assign() {
    use IndexingUpdateOp::{Add, Assign, Max, Min, Mul};
    let random = Random::new();
    let shapes: &[&[usize]] = &[&[1], &[17], &[300], &[5, 7], &[33, 1], &[64, 65], &[2, 3, 4], &[3, 1, 17]];
    for shape in shapes {
        for dim in 0..shape.len() {
            for update in [Assign, Add, Mul, Min, Max] {
                let most = if update == Assign { shape[dim] } else { 2 * shape[dim] };
                let [mut smaller, mut values] = [shape.to_vec(), shape.to_vec()];
                [smaller[dim], values[dim]] = [random.below(most + 1), random.below(most + 1)];
                let (at, list) = match update {
                    Assign => (
                        rotated(&random, &smaller, dim, shape[dim]),
                        rotated(&random, &values[dim..=dim], 0, shape[dim]),
                    ),
                    _ => (
                        int(&random, &smaller, DType::I32, view(&random), 0, shape[dim] as i64),
                        int(&random, &values[dim..=dim], DType::I64, View::Contiguous, 0, shape[dim] as i64),
                    ),
                };
                // Small whole numbers and powers of two. Their sums and products are exact in any
                // order.
                let number = |random: &Random| match update {
                    Mul => [1.0, -1.0, 0.5, 2.0][random.below(4)],
                    _ => random.below(9) as f64 - 4.0,
                };
                // With more repetitions, products would overflow f16 beyond 2^15.
                let few = at_most(&at, dim, 12) && list.shape()[0] <= 24;
                for dtype in FLOATS.into_iter().filter(|dtype| few || *dtype != DType::F16 || update != Mul) {
                    let x = Input::new(shape, dtype, view(&random), || number(&random));
                    let v = Input::new(&smaller, dtype, view(&random), || number(&random));
                    let w = Input::new(&values, dtype, view(&random), || number(&random));
                    same!(
                        format!("float_scatter {update:?} {dtype:?} {shape:?} {dim} {smaller:?}"),
                        |B, device| {
                            let [x, v] = [x.float::<B>(&device), v.float::<B>(&device)];
                            vec![read_float::<B>(B::float_scatter(dim, x, at.int::<B>(&device), v, update))]
                        }
                    );
                    same!(
                        format!("float_select_assign {update:?} {dtype:?} {shape:?} {dim} {values:?}"),
                        |B, device| {
                            let [x, w] = [x.float::<B>(&device), w.float::<B>(&device)];
                            vec![read_float::<B>(B::float_select_assign(
                                x,
                                dim,
                                list.int::<B>(&device),
                                w,
                                update,
                            ))]
                        }
                    );
                }
                for dtype in INTS {
                    let x = int(&random, shape, dtype, view(&random), 0, 100);
                    let v = int(&random, &smaller, dtype, view(&random), 0, 100);
                    let w = int(&random, &values, dtype, view(&random), 0, 100);
                    // Both backends wrap.
                    same!(format!("int_scatter {update:?} {dtype:?} {shape:?} {dim}"), |B, device| {
                        let [x, v] = [x.int::<B>(&device), v.int::<B>(&device)];
                        vec![read_int::<B>(B::int_scatter(dim, x, at.int::<B>(&device), v, update))]
                    });
                    same!(format!("int_select_assign {update:?} {dtype:?} {shape:?} {dim}"), |B, device| {
                        let [x, w] = [x.int::<B>(&device), w.int::<B>(&device)];
                        vec![read_int::<B>(B::int_select_assign(x, dim, list.int::<B>(&device), w, update))]
                    });
                }
            }
        }
    }
}

/// Whether the indices have at most `most` entries along the axis.
fn at_most(indices: &Input, dim: usize, most: usize) -> bool {
    indices.shape()[dim] <= most
}

/// NaN and infinities under `Min` and `Max`: a NaN value never replaces a number.
#[test]
fn scattered_extremes_of_nan() {
    let random = Random::new();
    for update in [IndexingUpdateOp::Min, IndexingUpdateOp::Max] {
        for dtype in FLOATS {
            let [x, v] = [special(&random, &[40, 3], dtype), special(&random, &[90, 3], dtype)];
            let list = int(&random, &[90], DType::I32, View::Contiguous, 0, 40);
            same!(format!("float_select_assign {update:?} {dtype:?} of NaN"), |B, device| {
                let [x, v] = [x.float::<B>(&device), v.float::<B>(&device)];
                vec![read_float::<B>(B::float_select_assign(x, 0, list.int::<B>(&device), v, update))]
            });
        }
    }
}

/// Windows: their number where a size is no multiple of the step.
#[test]
fn unfold() {
    let random = Random::new();
    for (size, window, step) in [(7, 3, 2), (7, 3, 5), (3, 3, 4), (8, 1, 3)] {
        let x = float(&random, &[2, size, 3], DType::F32, view(&random), -2.0, 2.0);
        same!(format!("float_unfold {size} {window} {step}"), |B, device| {
            vec![read_float::<B>(B::float_unfold(x.float::<B>(&device), 1, window, step))]
        });
    }
}

/// An axis shorter than a window has none, as Burn's documentation says; burn-flex refuses it.
#[test]
fn no_windows() {
    let device = device();
    let of = |shape: &[usize]| Shape::from(shape.to_vec());
    for (size, window, step) in [(3, 5, 1), (0, 1, 2), (4, 1 << 40, 1)] {
        let shape = [2, size, 3];
        let expected = [2, 0, 3, window];
        let floats = R::float_unfold(R::float_ones(of(&shape), &device, FloatDType::F16), 1, window, step);
        let ints = R::int_unfold(R::int_ones(of(&shape), &device, IntDType::I64), 1, window, step);
        let bools = R::bool_unfold(R::bool_ones(of(&shape), &device, BoolStore::U8), 1, window, step);
        for found in [floats.shape(), ints.shape(), bools.shape()] {
            assert_eq!(found.as_slice(), expected, "{window} of {size}");
        }
        assert!(read_float::<R>(floats).num_elements() == 0);
    }
}

/// A padded size that no integer holds is refused before anything is allocated.
#[test]
fn padding_beyond_every_size() {
    for (padding, mode) in
        [([(usize::MAX, 0), (1, 1)], PadMode::Constant(0.0)), ([(0, 0), (usize::MAX - 1, 2)], PadMode::Edge)]
    {
        let x = R::float_ones(Shape::from([2, 3]), &device(), FloatDType::F32);
        let error = refused("too much", || R::float_pad(x, &padding, mode));
        assert!(matches!(error, RocmError::Invalid { op: "float_pad", .. }), "{mode:?}: {error:?}");
    }
}

/// The message names the shape that the caller's values should have, whatever the update and the axis.
#[test]
fn values_of_another_shape() {
    use IndexingUpdateOp::{Add, Assign, Max, Min, Mul};
    let device = device();
    let ones = |shape: &[usize]| R::float_ones(Shape::from(shape.to_vec()), &device, FloatDType::F32);
    for update in [Assign, Add, Mul, Min, Max] {
        for values in [&[3usize, 4] as &[usize], &[2, 3], &[3]] {
            let list = R::int_zeros(Shape::from([2]), &device, IntDType::I32);
            let error = refused("another shape", || {
                R::float_select_assign(ones(&[3, 5]), 1, list, ones(values), update)
            });
            let RocmError::Invalid { op: "float_select_assign", expected, found } = error else {
                panic!("{update:?} {values:?}: {error:?}");
            };
            assert_eq!(
                (expected, found),
                ("values of shape [3, 2]".into(), format!("{values:?}")),
                "{update:?}"
            );
        }
    }
}

/// A slice with a step that is negative, as 0.22 writes it.
#[test]
fn slices() {
    let random = Random::new();
    let x = float(&random, &[9, 5], DType::F32, View::Contiguous, -2.0, 2.0);
    for slices in [
        [Slice::new(1, Some(8), 3), Slice::new(0, None, -1)],
        [Slice::new(0, None, -2), Slice::new(-3, None, 1)],
    ] {
        same!(format!("float_slice {slices:?}"), |B, device| {
            vec![read_float::<B>(B::float_slice(x.float::<B>(&device), &slices))]
        });
    }
}
