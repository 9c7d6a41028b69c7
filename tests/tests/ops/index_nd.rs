//! Gather and scatter by index tuples, and the indices where bools are true.

use burn_backend::tensor::IndexingUpdateOp;
use burn_rocm_tests::*;
use burn_std::future::block_on;

const UPDATES: [IndexingUpdateOp; 5] = [
    IndexingUpdateOp::Assign,
    IndexingUpdateOp::Add,
    IndexingUpdateOp::Mul,
    IndexingUpdateOp::Min,
    IndexingUpdateOp::Max,
];

/// `count` tuples of `length` indices into `shape`. With `once` all tuples differ.
fn tuples(random: &Random, shape: &[usize], count: usize, length: usize, once: bool) -> Vec<i64> {
    let slices: usize = shape[..length].iter().product();
    let mut all: Vec<usize> = (0..slices).collect();
    let mut out = Vec::new();
    for _ in 0..count {
        let mut place = match once {
            true => all.swap_remove(random.below(all.len())),
            false => random.below(slices),
        };
        let mut tuple = vec![0; length];
        for d in (0..length).rev() {
            tuple[d] = (place % shape[d]) as i64;
            place /= shape[d];
        }
        out.extend(tuple);
    }
    out
}

#[test]
fn gather_and_scatter_nd() {
    let random = Random::new();
    let shapes: [&[usize]; 8] =
        [&[7], &[257], &[5, 7], &[3, 33], &[2, 3, 4], &[2, 3, 1, 5], &[2, 2, 3, 2, 3], &[40, 20]];
    for shape in shapes {
        for length in 1..=shape.len() {
            for update in UPDATES {
                let slices: usize = shape[..length].iter().product();
                // If several assignments go to one element, any may win, so each element is
                // assigned once.
                let once = matches!(update, IndexingUpdateOp::Assign);
                let count = if once { random.below(slices + 1).max(1) } else { 1 + random.below(2 * slices) };
                let index = [DType::I64, DType::I32, DType::I16][random.below(3)];
                let places = tuples(&random, shape, count, length, once);
                let batch: Vec<usize> = if count % 2 == 0 { vec![2, count / 2] } else { vec![count] };
                let dims = [&batch[..], &[length]].concat();
                let places = TensorData::new(places, Shape::from(dims)).convert_dtype(index);
                let rest = [&batch[..], &shape[length..]].concat();
                let view = View::ALL[random.below(5)];
                let other = View::ALL[random.below(5)];
                let dtype = FLOATS[random.below(4)];
                let a = float(&random, shape, dtype, view, 0.5, 1.5);
                let v = float(&random, &rest, dtype, other, 0.5, 1.5);
                let what = format!(
                    "gather_nd, scatter_nd {update:?} {dtype:?} {shape:?} {view:?} by {index:?} {batch:?} x {length}"
                );
                differential!(what, Tolerance::EXACT, |B, device| {
                    let at = B::int_from_data(places.clone(), &device);
                    vec![read_float::<B>(B::float_gather_nd(a.float::<B>(&device), at))]
                });
                match update {
                    IndexingUpdateOp::Add => additions!(what, dtype, |B, device, [a = &a, v = &v]| {
                        B::float_scatter_nd(a, B::int_from_data(places.clone(), &device), v, update)
                    }),
                    IndexingUpdateOp::Mul => {
                        let (ours, [reference, _]) = sides!(|B, device, [a = &a, v = &v]| {
                            B::float_scatter_nd(a, B::int_from_data(places.clone(), &device), v, update)
                        });
                        assert_eq!(ours.dtype, dtype, "{what}");
                        let limits = limits::products(&reference, count + 1, dtype);
                        limits::assert_within(&what, &ours, &reference, &limits);
                    }
                    _ => differential!(what, Tolerance::EXACT, |B, device| {
                        let at = B::int_from_data(places.clone(), &device);
                        let (x, y) = (a.float::<B>(&device), v.float::<B>(&device));
                        vec![read_float::<B>(B::float_scatter_nd(x, at, y, update))]
                    }),
                }
                let dtype = INTS[random.below(8)];
                let a = int(&random, shape, dtype, view, 0, 2);
                let v = int(&random, &rest, dtype, other, 0, 2);
                if count < 60 {
                    let what = format!(
                        "int gather_nd, scatter_nd {update:?} {dtype:?} {shape:?} by {index:?} {batch:?} x {length}"
                    );
                    differential!(what, Tolerance::EXACT, |B, device| {
                        let at = || B::int_from_data(places.clone(), &device);
                        let (x, y) = (a.int::<B>(&device), v.int::<B>(&device));
                        vec![
                            read_int::<B>(B::int_gather_nd(x.clone(), at())),
                            read_int::<B>(B::int_scatter_nd(x, at(), y, update)),
                        ]
                    });
                }
            }
        }
    }
}

/// Integer sums and products wrap, as in all integer arithmetic of this backend.
#[test]
fn sums_and_products_wrap() {
    let device = Default::default();
    for dtype in INTS {
        let data = |values: &[i64]| {
            let shape = Shape::from(vec![values.len()]);
            R::int_from_data(TensorData::new(values.to_vec(), shape).convert_dtype(dtype), &device)
        };
        let at = || R::int_from_data(TensorData::new(vec![1i32, 1, 0], Shape::from(vec![3, 1])), &device);
        let read = |tensor| read_int::<R>(tensor).iter::<i64>().collect::<Vec<_>>();
        let sum = read(R::int_scatter_nd(data(&[1, 2]), at(), data(&[3, 4, 5]), IndexingUpdateOp::Add));
        assert_eq!(sum, [6, 9], "{dtype:?}");
        let product =
            read(R::int_scatter_nd(data(&[100, 2]), at(), data(&[3, 4, 100]), IndexingUpdateOp::Mul));
        let low = |v: i64| match dtype {
            DType::I8 => v as i8 as i64,
            DType::U8 => v as u8 as i64,
            _ => v,
        };
        assert_eq!(product, [low(10000), 24], "{dtype:?}");
    }
}

/// Empty gathers and scatters, and tuples without an index.
#[test]
fn nd_without_elements() {
    let device = Default::default();
    let x = || R::float_from_data(TensorData::from([[1.0f32, 2.0], [3.0, 4.0]]), &device);
    let at = |dims: [usize; 2]| R::int_zeros(Shape::from(dims.to_vec()), &device, IntDType::I32);
    let none = R::float_gather_nd(x(), at([0, 1]));
    assert_eq!(none.dims(), [0, 2]);
    let kept = R::float_scatter_nd(
        x(),
        at([0, 1]),
        R::float_zeros(Shape::from(vec![0, 2]), &device, FloatDType::F32),
        IndexingUpdateOp::Mul,
    );
    assert_eq!(read_float::<R>(kept).to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    // A tuple without an index names the whole tensor.
    let whole = R::float_gather_nd(x(), at([3, 0]));
    assert_eq!(whole.dims(), [3, 2, 2]);
    assert_eq!(read_float::<R>(whole).to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0].repeat(3));
}

#[test]
fn argwhere() {
    let random = Random::new();
    let more: [&[usize]; 3] = [&[100_003], &[313, 67], &[2, 1, 2, 1, 3, 1, 2, 2, 3]];
    for &shape in SHAPES.iter().chain(&more) {
        for view in View::ALL {
            if shape.len() == 9 && view != View::Contiguous {
                continue;
            }
            let dense = mask(&random, shape, view);
            let sparse = Input::new(shape, DType::Bool(BoolStore::Native), view, || {
                (random.below(100) == 0) as u8 as f64
            });
            for (input, dtype) in [(&dense, IntDType::I64), (&sparse, IntDType::I32), (&dense, IntDType::I16)]
            {
                if dtype == IntDType::I16 && shape.iter().any(|&n| n > 30_000) {
                    continue;
                }
                differential!(
                    format!("argwhere {shape:?} {view:?} {dtype:?}"),
                    Tolerance::EXACT,
                    |B, device| {
                        let found = block_on(B::bool_argwhere(input.bool::<B>(&device), dtype));
                        vec![read_int::<B>(found)]
                    }
                );
            }
        }
    }
    // Four-byte bools, and bools of which none is true.
    let device = Default::default();
    let wide = R::bool_from_data(TensorData::new(vec![0u32, 1, 0, 1], Shape::from(vec![2, 2])), &device);
    let found = read_int::<R>(block_on(R::bool_argwhere(wide, IntDType::I64)));
    assert_eq!(found.to_vec::<i64>().unwrap(), [0, 1, 1, 1]);
    let none = block_on(R::bool_argwhere(
        R::bool_zeros(Shape::from(vec![5, 3]), &device, BoolDType::Native),
        IntDType::I64,
    ));
    assert_eq!(none.dims(), [0, 2]);
    assert_eq!(read_int::<R>(none).num_elements(), 0);
}
