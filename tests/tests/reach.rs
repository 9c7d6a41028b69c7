//! Tensors whose elements or offsets exceed a kernel's 32 bits. The environment lowers the limit,
//! so that small tensors are split. One ignored test uses a tensor that is really that large (2.2
//! GB).
#![allow(missing_docs, clippy::unwrap_used)]

use burn_rocm_tests::limits::Terms;
use burn_rocm_tests::*;

/// The ops that split launches or lines, in a process with a low limit.
#[test]
fn small_tensors_under_a_low_limit() {
    const LIMIT: &str = "BURN_ROCM_LAUNCH_REACH";
    if std::env::var_os(LIMIT).is_none() {
        for limit in ["2", "7", "100", "1000"] {
            again(&["--exact", "small_tensors_under_a_low_limit", "--nocapture"], &[(LIMIT, limit)]);
        }
        return;
    }
    let random = Random::new();
    products(&random);
    for shape in [&[300][..], &[40, 9], &[3, 50, 2], &[2, 3, 4, 5], &[1, 200]] {
        for view in View::ALL {
            let dim = random.below(shape.len());
            let dtype = FLOATS[random.below(4)];
            let a = float(&random, shape, dtype, view, -1.0, 1.0);
            let b = float(&random, shape, dtype, View::Permuted, -1.0, 1.0);
            let n = int(&random, shape, DType::I8, view, -5, 5);
            let mut at = shape.to_vec();
            at[dim] = 1 + random.below(2 * shape[dim]);
            let places = int(&random, &at, DType::I32, View::Permuted, 0, shape[dim] as i64);
            let v = float(&random, &at, dtype, View::Permuted, -1.0, 1.0);
            let w = int(&random, &at, DType::I8, View::Permuted, 0, 2);
            let list = int(&random, &[5], DType::I64, View::Contiguous, 0, shape[dim] as i64);
            let m = mask(&random, shape, View::Permuted);
            let what = format!("{dtype:?} {shape:?} {view:?} dim {dim}");
            additions!(what, dtype, |B, device, [a = &a, v = &v]| {
                B::float_scatter_add(dim, a, places.int::<B>(&device), v)
            });
            sums!(what, Terms::of(2, dtype), |B, device, [a = &a, b = &b]| B::float_add(a, b));
            differential!(what.clone(), Tolerance::EXACT, |B, device| {
                let (x, y) = (|| a.float::<B>(&device), || b.float::<B>(&device));
                let at = || places.int::<B>(&device);
                vec![
                    read_float::<B>(B::float_slice_assign(
                        x(),
                        &[Slice::new(1, None, 2)],
                        B::float_slice(y(), &[Slice::new(1, None, 2)]),
                    )),
                    read_float::<B>(B::float_mask_where(x(), m.bool::<B>(&device), y())),
                    read_float::<B>(B::float_gather(dim, x(), at())),
                    read_float::<B>(B::float_select(x(), dim, list.int::<B>(&device))),
                    read_float::<B>(B::float_max_dim(x(), dim)),
                ]
            });
            differential!(format!("{what}, one after the other"), Tolerance::EXACT, |B, device| {
                let parts = vec![a.float::<B>(&device), b.float::<B>(&device), a.float::<B>(&device)];
                vec![read_float::<B>(B::float_cat(parts, dim))]
            });
            differential!(format!("{what}, ints"), Tolerance::EXACT, |B, device| {
                let x = || n.int::<B>(&device);
                let at = || places.int::<B>(&device);
                vec![
                    read_int::<B>(B::int_gather(dim, x(), at())),
                    // Types without atomics are added by one thread per line.
                    read_int::<B>(B::int_scatter_add(dim, x(), at(), w.int::<B>(&device))),
                    read_index::<B>(B::int_argmax(x(), dim)),
                    read_index::<B>(B::int_argmin(x(), dim)),
                    read_index::<B>(B::float_argmax(a.float::<B>(&device), dim, IntDType::I64)),
                ]
            });
        }
    }
}

/// Products with more rows than one call takes: over all batches, and in one matrix.
fn products(random: &Random) {
    for (left, right) in [
        (&[300, 2][..], &[2, 4][..]),
        (&[6, 50, 3], &[1, 3, 2]),
        (&[2, 3, 40, 1], &[1, 1, 1, 1]),
        (&[5, 1, 3], &[5, 3, 2]),
    ] {
        let (a_view, b_view) = (View::ALL[random.below(5)], View::ALL[random.below(5)]);
        let dtype = FLOATS[random.below(4)];
        let a = float(random, left, dtype, a_view, -1.0, 1.0);
        let b = float(random, right, dtype, b_view, -1.0, 1.0);
        let what = format!("{dtype:?} {left:?} {a_view:?} x {right:?} {b_view:?}");
        let terms = Terms::of(left[left.len() - 1], dtype);
        sums!(what, terms, |B, device, [a = &a, b = &b]| B::float_matmul(a, b));
    }
}

/// An axis of more than 2^31 elements: 2.2 GB of bytes.
#[test]
#[ignore = "takes 2.2 GB of memory, twice for a moment, and some seconds"]
fn an_axis_past_31_bits() {
    let device = Default::default();
    let n = (1usize << 31) + 1001;
    let x = R::int_zeros(Shape::from(vec![n]), &device, IntDType::U8);
    let far = [5i64, n as i64 - 1, 1 << 31, (1 << 31) - 1];
    let at = || R::int_from_data(TensorData::from(far), &device);
    let values = R::int_from_data(TensorData::from([1u8, 9, 3, 4]), &device);
    // u8 has no atomics, so one thread per line adds.
    let x = R::int_scatter_add(0, x, at(), values);
    let got = read_int::<R>(R::int_gather(0, x.clone(), at())).to_vec::<u8>().unwrap();
    assert_eq!(got, [1, 9, 3, 4]);
    let got = read_int::<R>(R::int_select(x.clone(), 0, at())).to_vec::<u8>().unwrap();
    assert_eq!(got, [1, 9, 3, 4]);
    let wide = R::int_reshape(x, Shape::from(vec![1, n]));
    let (value, place) = R::int_max_dim_with_indices(wide.clone(), 1);
    assert_eq!(read_int::<R>(value).to_vec::<u8>().unwrap(), [9]);
    let place = read_int::<R>(place);
    assert_eq!(place.iter::<i64>().collect::<Vec<_>>(), [n as i64 - 1]);
    assert_eq!(read_index::<R>(R::int_argmin(wide, 1)).to_vec::<i64>().unwrap(), [0]);
}
