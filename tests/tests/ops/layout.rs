//! Ops that move data or make views, without computing.

use burn_rocm_tests::*;

/// A random factorisation of `count` into `rank` factors.
fn reshaped(random: &Random, count: usize) -> Vec<usize> {
    let mut shape = vec![];
    let mut rest = count;
    for divisor in 2..=count.max(1) {
        while rest.is_multiple_of(divisor) && rest > 0 && shape.len() < 5 {
            shape.push(divisor);
            rest /= divisor;
        }
    }
    shape.push(rest);
    for i in (1..shape.len()).rev() {
        shape.swap(i, random.below(i + 1));
    }
    shape
}

#[test]
fn reshape_of_every_view() {
    let random = Random::new();
    for &shape in SHAPES {
        for view in View::ALL {
            let to = reshaped(&random, shape.iter().product());
            let (dtype, to) = (FLOATS[random.below(4)], Shape::from(to));
            let a = float(&random, shape, dtype, view, -1.0, 1.0);
            let i = int(&random, shape, DType::I16, view, -9, 9);
            let m = mask(&random, shape, view);
            differential!(
                format!("reshape {dtype:?} {shape:?} {view:?} to {to:?}"),
                Tolerance::EXACT,
                |B, device| {
                    vec![
                        read_float::<B>(B::float_reshape(a.float::<B>(&device), to.clone())),
                        read_int::<B>(B::int_reshape(i.int::<B>(&device), to.clone())),
                        read_bool::<B>(B::bool_reshape(m.bool::<B>(&device), to.clone())),
                    ]
                }
            );
        }
    }
}

#[test]
fn permute_swap_flip() {
    let random = Random::new();
    for &shape in SHAPES {
        for view in View::ALL {
            let rank = shape.len();
            let mut axes: Vec<usize> = (0..rank).collect();
            for i in (1..rank).rev() {
                axes.swap(i, random.below(i + 1));
            }
            let (d1, d2) = (random.below(rank), random.below(rank));
            let flipped: Vec<usize> = (0..rank).filter(|_| random.below(2) == 0).collect();
            let dtype = FLOATS[random.below(4)];
            let a = float(&random, shape, dtype, view, -1.0, 1.0);
            let i = int(&random, shape, DType::I64, view, -9, 9);
            let m = mask(&random, shape, view);
            differential!(
                format!("permute {axes:?} flip {flipped:?} {dtype:?} {shape:?} {view:?}"),
                Tolerance::EXACT,
                |B, device| {
                    vec![
                        read_float::<B>(B::float_permute(a.float::<B>(&device), &axes)),
                        read_float::<B>(B::float_swap_dims(a.float::<B>(&device), d1, d2)),
                        read_float::<B>(B::float_flip(a.float::<B>(&device), &flipped)),
                        read_int::<B>(B::int_permute(i.int::<B>(&device), &axes)),
                        read_int::<B>(B::int_flip(i.int::<B>(&device), &flipped)),
                        read_bool::<B>(B::bool_permute(m.bool::<B>(&device), &axes)),
                        read_bool::<B>(B::bool_flip(m.bool::<B>(&device), &flipped)),
                    ]
                }
            );
        }
    }
}

/// A slice for each dim. Where the dim has elements, its step may have either sign.
fn slices(random: &Random, shape: &[usize]) -> Vec<Slice> {
    let slice = |&n: &usize| {
        let start = random.below(n);
        let end = start + random.below(n - start + usize::from(n > start));
        let end = if n == 0 { 0 } else { end.clamp(start + usize::from(start < n), n) };
        let step = [1, 1, 2, 3, -1, -2][random.below(6)];
        Slice::new(start as isize, Some(end as isize), step)
    };
    shape.iter().map(slice).collect()
}

#[test]
fn slice_and_assign() {
    let random = Random::new();
    for &shape in SHAPES {
        for view in View::ALL {
            let cut = slices(&random, shape);
            let dtype = FLOATS[random.below(4)];
            let a = float(&random, shape, dtype, view, -1.0, 1.0);
            let i = int(&random, shape, DType::I32, view, -9, 9);
            let m = mask(&random, shape, view);
            differential!(
                format!("slice {cut:?} {dtype:?} {shape:?} {view:?}"),
                Tolerance::EXACT,
                |B, device| {
                    let part = B::float_slice(a.float::<B>(&device), &cut);
                    // The doubled part is written back, into a shared tensor and into one that is
                    // not shared.
                    let doubled = B::float_mul_scalar(part.clone(), Scalar::Float(2.0));
                    let shared = a.float::<B>(&device);
                    let assigned = B::float_slice_assign(shared.clone(), &cut, doubled.clone());
                    let owned = B::float_slice_assign(shared.clone(), &cut, doubled);
                    let ints = B::int_slice(i.int::<B>(&device), &cut);
                    let int_assigned =
                        B::int_slice_assign(i.int::<B>(&device), &cut, B::int_neg(ints.clone()));
                    let bools = B::bool_slice(m.bool::<B>(&device), &cut);
                    let bool_assigned =
                        B::bool_slice_assign(m.bool::<B>(&device), &cut, B::bool_not(bools.clone()));
                    vec![
                        read_float::<B>(part),
                        read_float::<B>(assigned),
                        read_float::<B>(owned),
                        read_float::<B>(shared),
                        read_int::<B>(ints),
                        read_int::<B>(int_assigned),
                        read_bool::<B>(bools),
                        read_bool::<B>(bool_assigned),
                    ]
                }
            );
        }
    }
}

#[test]
fn cat_and_repeat() {
    let random = Random::new();
    for &shape in SHAPES {
        for dim in 0..shape.len() {
            let mut other = shape.to_vec();
            other[dim] = random.below(5);
            let (left, right) = (View::ALL[random.below(5)], View::ALL[random.below(5)]);
            let dtype = FLOATS[random.below(4)];
            let a = float(&random, shape, dtype, left, -1.0, 1.0);
            let b = float(&random, &other, dtype, right, -1.0, 1.0);
            let (i, j) =
                (int(&random, shape, DType::U8, left, 0, 9), int(&random, &other, DType::U8, right, 0, 9));
            let (m, n) = (mask(&random, shape, left), mask(&random, &other, right));
            differential!(
                format!("cat {dtype:?} {shape:?} {left:?} with {other:?} {right:?} dim {dim}"),
                Tolerance::EXACT,
                |B, device| {
                    vec![
                        read_float::<B>(B::float_cat(
                            vec![a.float::<B>(&device), b.float::<B>(&device), a.float::<B>(&device)],
                            dim,
                        )),
                        read_int::<B>(B::int_cat(vec![i.int::<B>(&device), j.int::<B>(&device)], dim)),
                        read_bool::<B>(B::bool_cat(vec![m.bool::<B>(&device), n.bool::<B>(&device)], dim)),
                    ]
                }
            );
            differential!(
                format!("repeat {dtype:?} {shape:?} {left:?} dim {dim}"),
                Tolerance::EXACT,
                |B, device| {
                    vec![
                        read_float::<B>(B::float_repeat_dim(a.float::<B>(&device), dim, 3)),
                        read_int::<B>(B::int_repeat_dim(i.int::<B>(&device), dim, 2)),
                        read_bool::<B>(B::bool_repeat_dim(m.bool::<B>(&device), dim, 2)),
                    ]
                }
            );
        }
    }
}

#[test]
fn unfold_windows() {
    let random = Random::new();
    for &shape in SHAPES {
        for dim in 0..shape.len() {
            if shape[dim] == 0 {
                continue;
            }
            let (size, step) = (1 + random.below(shape[dim].min(5)), 1 + random.below(3));
            let view = View::ALL[random.below(5)];
            let a = float(&random, shape, DType::F32, view, -1.0, 1.0);
            let i = int(&random, shape, DType::I32, view, -9, 9);
            let m = mask(&random, shape, view);
            differential!(
                format!("unfold {shape:?} {view:?} dim {dim} size {size} step {step}"),
                Tolerance::EXACT,
                |B, device| {
                    vec![
                        read_float::<B>(B::float_unfold(a.float::<B>(&device), dim, size, step)),
                        read_int::<B>(B::int_unfold(i.int::<B>(&device), dim, size, step)),
                        read_bool::<B>(B::bool_unfold(m.bool::<B>(&device), dim, size, step)),
                    ]
                }
            );
        }
    }
}

/// Transposes large enough for the tiled kernel, with sizes near multiples of its tiles.
#[test]
fn large_transposes() {
    let random = Random::new();
    for dtype in [DType::F32, DType::F64, DType::F16] {
        for shape in [&[64usize, 64] as &[usize], &[33, 65], &[3, 100, 31], &[2, 3, 129, 40]] {
            let a = float(&random, shape, dtype, View::Contiguous, -1.0, 1.0);
            let rank = shape.len();
            differential!(format!("transpose {dtype:?} {shape:?}"), Tolerance::EXACT, |B, device| {
                let turned = B::float_swap_dims(a.float::<B>(&device), rank - 2, rank - 1);
                vec![read_float::<B>(B::float_add_scalar(turned, Scalar::Float(0.0)))]
            });
        }
    }
}

/// Outer axes are permuted, flipped and sliced while runs of elements stay contiguous. The runs
/// have a multiple of 16 bytes or not, and begin at such a multiple or not.
#[test]
fn runs_that_stay_together() {
    let random = Random::new();
    for dtype in FLOATS {
        for (run, from) in [(16usize, 0isize), (32, 8), (24, 8), (32, 3), (13, 0)] {
            let a = float(&random, &[3, 5, run + from as usize], dtype, View::Contiguous, -1.0, 1.0);
            let m = mask(&random, &[3, 5, run + from as usize], View::Contiguous);
            let cut = [Slice::new(1, None, 1), Slice::new(0, None, 2), Slice::new(from, None, 1)];
            differential!(format!("{dtype:?} runs of {run} from {from}"), Tolerance::EXACT, |B, device| {
                let cut_off = || B::float_slice(a.float::<B>(&device), &cut);
                vec![
                    read_float::<B>(B::float_permute(cut_off(), &[1, 0, 2])),
                    read_float::<B>(B::float_flip(cut_off(), &[0, 1])),
                    read_bool::<B>(B::bool_permute(B::bool_slice(m.bool::<B>(&device), &cut), &[1, 0, 2])),
                ]
            });
        }
    }
}

/// Transposes of bytes, which the kernel moves in squares of 8 x 8.
#[test]
fn transposed_bytes() {
    let random = Random::new();
    for shape in [[40usize, 72], [128, 136], [33, 40], [200, 48]] {
        let m = mask(&random, &shape, View::Contiguous);
        let i = int(&random, &shape, DType::I8, View::Contiguous, -100, 100);
        differential!(format!("{shape:?}"), Tolerance::EXACT, |B, device| {
            vec![
                read_bool::<B>(B::bool_swap_dims(m.bool::<B>(&device), 0, 1)),
                read_int::<B>(B::int_swap_dims(i.int::<B>(&device), 0, 1)),
            ]
        });
    }
}

/// Transposes of matrices with one short side, in both directions: dense ones, ones cut out of
/// larger tensors at aligned and odd places, and empty ones.
#[test]
fn narrow_transposes() {
    let random = Random::new();
    let given = [[16, 64, 9], [3, 1500, 9], [2, 5000, 3], [64, 49, 3], [400, 5, 3], [0, 64, 9], [4, 0, 9]];
    let drawn = |_| {
        let len = match random.below(3) {
            0 => 1 + random.below(40),
            1 => 16 * (1 + random.below(30)),
            _ => 1 + random.below(700),
        };
        [1 + random.below(12), len, 2 + random.below(31)]
    };
    for [batch, len, width] in given.into_iter().chain((0..30).map(drawn)) {
        let (first, from) = (random.below(2).min(batch), [0, 0, 1, 8, 16][random.below(5)].min(len));
        let cut = |axis: usize| {
            let mut cut =
                [Slice::new(first as isize, None, 1), Slice::new(0, None, 1), Slice::new(0, None, 1)];
            cut[axis] = Slice::new(from as isize, None, 1);
            cut
        };
        let long = len + from;
        for (shape, cut) in [([first + batch, long, width], cut(1)), ([first + batch, width, long], cut(2))] {
            let a = float(&random, &shape, FLOATS[random.below(4)], View::Contiguous, -1.0, 1.0);
            let i = int(&random, &shape, INTS[random.below(8)], View::Contiguous, 0, 100);
            let m = mask(&random, &shape, View::Contiguous);
            differential!(format!("{shape:?} from {first}, {from}"), Tolerance::EXACT, |B, device| {
                let a = B::float_slice(a.float::<B>(&device), &cut);
                let i = B::int_slice(i.int::<B>(&device), &cut);
                let m = B::bool_slice(m.bool::<B>(&device), &cut);
                vec![
                    read_float::<B>(B::float_swap_dims(a, 1, 2)),
                    read_int::<B>(B::int_swap_dims(i, 1, 2)),
                    read_bool::<B>(B::bool_swap_dims(m, 1, 2)),
                ]
            });
        }
    }
}
