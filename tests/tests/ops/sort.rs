//! Sorts and the ops that are based on them.

use burn_rocm_tests::lockstep::{fewer, in_lockstep};
use burn_rocm_tests::*;

/// Lengths near a block's tile of 1,024, and beyond the 16,384 elements that one thread of the CPU
/// device sorts: a single run, and an odd number of runs.
const LONG: &[&[usize]] = &[&[2, 1024], &[1025], &[3, 5000], &[2500, 2], &[50_001]];

const LONG_IN_LOCKSTEP: &[&[usize]] = &[&[2, 1024], &[1025], &[2, 1500], &[1500, 2], &[3001]];

fn shapes() -> impl Iterator<Item = &'static [usize]> {
    SHAPES
        .iter()
        .chain(if in_lockstep() { LONG_IN_LOCKSTEP } else { LONG })
        .copied()
        .filter(|shape| !shape.contains(&0))
}

/// The dims of a shape.
fn dims(shape: &[usize]) -> impl Iterator<Item = usize> {
    0..shape.len()
}

/// The order that a stable sort gives, computed from the values of one tensor. (The oracle's sort
/// is not stable.)
fn expected(values: &TensorData, shape: &[usize], dim: usize, descending: bool) -> Vec<i64> {
    fn order(at: &mut [usize], descending: bool, compare: impl Fn(usize, usize) -> std::cmp::Ordering) {
        at.sort_by(|&a, &b| if descending { compare(b, a) } else { compare(a, b) });
    }
    let (len, inner) = (shape[dim], shape[dim + 1..].iter().product::<usize>());
    let count: usize = shape.iter().product();
    let mut out = vec![0; count];
    let floats: Option<Vec<f64>> =
        FLOATS.contains(&values.dtype).then(|| values.clone().convert::<f64>().to_vec().unwrap());
    let unsigned: Option<Vec<u64>> = (values.dtype == DType::U64).then(|| values.to_vec().unwrap());
    let signed: Option<Vec<i64>> =
        (floats.is_none() && unsigned.is_none()).then(|| values.clone().convert::<i64>().to_vec().unwrap());
    for line in 0..count / len {
        let first = line / inner * len * inner + line % inner;
        let mut at: Vec<usize> = (0..len).collect();
        let place = |i: usize| first + i * inner;
        if let Some(v) = &floats {
            order(&mut at, descending, |a, b| v[place(a)].total_cmp(&v[place(b)]));
        } else if let Some(v) = &unsigned {
            order(&mut at, descending, |a, b| v[place(a)].cmp(&v[place(b)]));
        } else if let Some(v) = &signed {
            order(&mut at, descending, |a, b| v[place(a)].cmp(&v[place(b)]));
        }
        for (i, from) in at.into_iter().enumerate() {
            out[place(i)] = from as i64;
        }
    }
    out
}

#[track_caller]
fn places(what: &str, ours: TensorData, values: &TensorData, shape: &[usize], dim: usize, descending: bool) {
    let ours: Vec<i64> = ours.to_vec().unwrap();
    assert!(
        ours == expected(values, shape, dim, descending),
        "{what}: the places are not those of a stable sort"
    );
}

#[test]
fn floats() {
    let random = Random::new();
    for dtype in FLOATS {
        for shape in fewer(shapes(), 3, &random) {
            let view = View::ALL[random.below(5)];
            // Half of the values are from a short list, so that many are equal. NaN, infinities and
            // both zeros are in that list.
            let few = [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.0, -1.0];
            let a = Input::new(shape, dtype, view, || match random.below(2) {
                0 => few[random.below(few.len())],
                _ => random.uniform(-2.0, 2.0),
            });
            for dim in dims(shape) {
                let descending = random.below(2) == 1;
                let what = format!("sort {dtype:?} {shape:?} {view:?} dim {dim} descending {descending}");
                differential!(what, Tolerance::EXACT, |B, device| {
                    let a = || a.float::<B>(&device);
                    vec![
                        read_float::<B>(B::float_sort(a(), dim, descending)),
                        read_float::<B>(B::float_sort_with_indices(a(), dim, descending, IntDType::I64).0),
                        read_float::<B>(B::float_topk(a(), dim, shape[dim].div_ceil(3))),
                    ]
                });
                let device = Default::default();
                let tensor = a.float::<R>(&device);
                let values = read_float::<R>(tensor.clone());
                let at = R::float_argsort(tensor.clone(), dim, descending, IntDType::I64);
                places(&what, read_int::<R>(at), &values, shape, dim, descending);
                let (_, at) = R::float_sort_with_indices(tensor.clone(), dim, descending, IntDType::I32);
                assert_eq!(at.dtype(), DType::I32);
                places(&what, read_index::<R>(at), &values, shape, dim, descending);
                let k = shape[dim] / 2;
                let top = R::float_argtopk(tensor.clone(), dim, k, IntDType::I64);
                let mut first = vec![Slice::from(..); shape.len()];
                first[dim] = Slice::from(0..k);
                let all = R::float_argsort(tensor, dim, true, IntDType::I64);
                assert_eq!(read_int::<R>(top), read_int::<R>(R::int_slice(all, &first)), "{what}");
            }
        }
    }
}

#[test]
fn integers() {
    let random = Random::new();
    for dtype in INTS {
        for shape in fewer(shapes(), 3, &random) {
            let view = View::ALL[random.below(5)];
            let signed = matches!(dtype, DType::I64 | DType::I32 | DType::I16 | DType::I8);
            let low = if signed { -120 } else { 0 };
            // Also the extremes of the 8-bit types.
            let ends = [0.0, if signed { -128.0 } else { 255.0 }, 127.0];
            let a = Input::new(shape, dtype, view, || match random.below(8) {
                0 => ends[random.below(3)],
                _ => (low + random.below(240) as i64) as f64,
            });
            for dim in dims(shape) {
                let descending = random.below(2) == 1;
                let what = format!("sort {dtype:?} {shape:?} {view:?} dim {dim} descending {descending}");
                differential!(what, Tolerance::EXACT, |B, device| {
                    let a = || a.int::<B>(&device);
                    vec![
                        read_int::<B>(B::int_sort(a(), dim, descending)),
                        read_int::<B>(B::int_sort_with_indices(a(), dim, descending).0),
                    ]
                });
                let device = Default::default();
                let tensor = a.int::<R>(&device);
                let values = read_int::<R>(tensor.clone());
                let at = R::int_argsort(tensor.clone(), dim, descending);
                places(&what, read_index::<R>(at), &values, shape, dim, descending);
                let (_, at) = R::int_sort_with_indices(tensor.clone(), dim, descending);
                places(&what, read_index::<R>(at), &values, shape, dim, descending);
                let k = shape[dim] / 2;
                let mut first = vec![Slice::from(..); shape.len()];
                first[dim] = Slice::from(0..k);
                let sorted = R::int_sort(tensor.clone(), dim, true);
                let order = R::int_argsort(tensor.clone(), dim, true);
                for (top, all) in
                    [(R::int_topk(tensor.clone(), dim, k), sorted), (R::int_argtopk(tensor, dim, k), order)]
                {
                    assert_eq!(read_int::<R>(top), read_int::<R>(R::int_slice(all, &first)), "{what}");
                }
            }
        }
    }
}

/// Keys whose upper and lower halves both matter.
#[test]
fn eight_byte_keys() {
    let random = Random::new();
    let device = Default::default();
    let draw = || match random.below(3) {
        0 => random.below(3) as u64,
        1 => (random.below(3) as u64) << 62 | random.below(3) as u64,
        _ => u64::MAX - random.below(1 << 40) as u64,
    };
    for count in [40, 1000, 40_000] {
        let values: Vec<u64> = (0..count).map(|_| draw()).collect();
        for descending in [false, true] {
            let mut want = values.clone();
            want.sort_unstable();
            if descending {
                want.reverse();
            }
            let data = TensorData::new(values.clone(), [count]);
            let ours = read_int::<R>(R::int_sort(R::int_from_data(data, &device), 0, descending));
            assert!(ours.to_vec::<u64>().unwrap() == want, "u64, {count}, descending {descending}");

            let signed: Vec<i64> = values.iter().map(|&v| v as i64).collect();
            let mut want = signed.clone();
            want.sort_unstable();
            if descending {
                want.reverse();
            }
            let data = TensorData::new(signed, [count]);
            let ours = read_int::<R>(R::int_sort(R::int_from_data(data, &device), 0, descending));
            assert!(ours.to_vec::<i64>().unwrap() == want, "i64, {count}, descending {descending}");
        }
    }
}

#[test]
fn of_nothing() {
    for shape in [&[0][..], &[0, 4], &[4, 0], &[2, 0, 3]] {
        for dim in 0..shape.len() {
            let device = Default::default();
            let a =
                R::float_from_data(TensorData::new(Vec::<f32>::new(), Shape::from(shape.to_vec())), &device);
            let (sorted, at) = R::float_sort_with_indices(a.clone(), dim, false, IntDType::I64);
            assert_eq!((sorted.shape().as_slice(), at.shape().as_slice()), (shape, shape));
            assert_eq!((sorted.dtype(), at.dtype()), (DType::F32, DType::I64));
            let top = R::float_topk(a, dim, 0);
            assert_eq!(top.shape()[dim], 0);
        }
    }
}

#[test]
fn more_than_there_is() {
    let device = Default::default();
    let a = || R::float_from_data(TensorData::from([1.0f32, 3.0, 2.0]), &device);
    assert!(std::panic::catch_unwind(|| R::float_topk(a(), 0, 4)).is_err());
    assert!(std::panic::catch_unwind(|| R::float_sort(a(), 1, false)).is_err());
    let top = read_float::<R>(R::float_topk(a(), 0, 3));
    assert_eq!(top.to_vec::<f32>().unwrap(), [3.0, 2.0, 1.0]);
}
