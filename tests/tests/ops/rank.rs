//! Tensors with more dims than a kernel takes. Because they are permuted, no two neighbouring dims
//! can be merged.

use burn_rocm_tests::limits::Terms;
use burn_rocm_tests::*;

fn permutation(random: &Random, rank: usize) -> Vec<usize> {
    let mut axes: Vec<usize> = (0..rank).collect();
    for i in (1..rank).rev() {
        axes.swap(i, random.below(i + 1));
    }
    axes
}

#[test]
fn ranks_nine_to_twelve() {
    let random = Random::new();
    for rank in 9..=12 {
        for _ in 0..3 {
            let mut shape = vec![2; rank];
            shape[random.below(rank)] = 3;
            shape[random.below(rank)] = 1;
            // `a` is `base` with its axes in this order.
            let axes = permutation(&random, rank);
            let mut base = vec![0; rank];
            for (d, &axis) in axes.iter().enumerate() {
                base[axis] = shape[d];
            }
            let thin: Vec<usize> = shape.iter().map(|&n| if random.below(2) == 0 { 1 } else { n }).collect();
            let dtype = FLOATS[random.below(4)];
            let a = float(&random, &base, dtype, View::Contiguous, -1.0, 1.0);
            let b = float(&random, &thin, dtype, View::Permuted, -1.0, 1.0);
            let n = int(&random, &base, DType::I32, View::Contiguous, 1, 50);
            let m = mask(&random, &shape, View::Permuted);
            let dim = random.below(rank);
            let places = int(&random, &shape, DType::I64, View::Permuted, 0, shape[dim] as i64);
            let list = int(&random, &[4], DType::I32, View::Contiguous, 0, shape[dim] as i64);
            let cut: Vec<Slice> = shape
                .iter()
                .map(|&n| {
                    Slice::new(
                        random.below(n) as isize,
                        Some(n as isize),
                        if random.below(3) == 0 { -1 } else { 1 },
                    )
                })
                .collect();
            let what = format!("rank {rank}: {dtype:?} {shape:?} by {axes:?}, {thin:?}, dim {dim}");
            let terms = Terms::of(shape.iter().product(), dtype);
            sums!(what, terms, |B, device, [a = &a]| B::float_sum(B::float_permute(a, &axes)));
            let terms = Terms::of(shape[dim], dtype);
            sums!(what, terms, |B, device, [a = &a]| B::float_sum_dim(B::float_permute(a, &axes), dim));
            sums!(what, terms, |B, device, [a = &a]| B::float_cumsum(B::float_permute(a, &axes), dim));
            let added = float(&random, &base, dtype, View::Contiguous, -1.0, 1.0);
            additions!(what, dtype, |B, device, [a = &a, v = &added]| {
                let [a, v] = [a, v].map(|t| B::float_permute(t, &axes));
                B::float_scatter_add(dim, a, places.int::<B>(&device), v)
            });
            differential!(what.clone(), Tolerance::of(dtype), |B, device| {
                let x = || B::float_permute(a.float::<B>(&device), &axes);
                let y = || b.float::<B>(&device);
                vec![
                    read_float::<B>(B::float_add(x(), y())),
                    read_float::<B>(B::float_mul(y(), x())),
                    read_float::<B>(B::float_exp(x())),
                ]
            });
            differential!(what.clone(), Tolerance::EXACT, |B, device| {
                let x = || B::float_permute(a.float::<B>(&device), &axes);
                let y = || b.float::<B>(&device);
                let at = || places.int::<B>(&device);
                vec![
                    read_float::<B>(x()),
                    read_float::<B>(B::float_max_dim(x(), dim)),
                    read_float::<B>(B::float_sort(x(), dim, true)),
                    read_float::<B>(B::float_cat(
                        vec![x(), x(), B::float_expand(y(), Shape::from(shape.clone()))],
                        dim,
                    )),
                    read_float::<B>(B::float_slice(x(), &cut)),
                    read_float::<B>(B::float_slice_assign(
                        x(),
                        &cut,
                        B::float_slice(B::float_neg(x()), &cut),
                    )),
                    read_float::<B>(B::float_repeat_dim(x(), dim, 3)),
                    read_float::<B>(B::float_flip(x(), &[dim])),
                    read_float::<B>(B::float_gather(dim, x(), at())),
                    read_float::<B>(B::float_select(x(), dim, list.int::<B>(&device))),
                    read_float::<B>(B::float_mask_where(x(), m.bool::<B>(&device), B::float_neg(x()))),
                    read_float::<B>(B::float_mask_fill(x(), m.bool::<B>(&device), Scalar::Float(0.25))),
                    read_float::<B>(B::float_reshape(
                        x(),
                        Shape::from(vec![shape.iter().product::<usize>()]),
                    )),
                ]
            });
            differential!(format!("{what}, ints"), Tolerance::EXACT, |B, device| {
                let x = || B::int_permute(n.int::<B>(&device), &axes);
                vec![
                    read_int::<B>(B::int_add(x(), B::int_flip(x(), &[0]))),
                    read_int::<B>(B::int_div(x(), B::int_flip(x(), &[dim]))),
                    read_index::<B>(B::int_argmax(x(), dim)),
                    read_bool::<B>(B::int_greater(x(), B::int_flip(x(), &[dim]), BoolDType::Native)),
                    read_bool::<B>(B::bool_not(m.bool::<B>(&device))),
                    read_int::<B>(B::int_gather(dim, x(), places.int::<B>(&device))),
                ]
            });
        }
    }
}
