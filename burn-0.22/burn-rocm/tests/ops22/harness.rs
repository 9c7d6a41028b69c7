//! The two backends, their common inputs, and the comparison.

use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) use burn_backend::ops::*;
use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
pub(crate) use burn_backend::{Backend, DType, Scalar, Shape, TensorData, TensorMetadata};
pub(crate) use burn_rocm_022::{RocmError, take_last_error};
pub(crate) use burn_std::{BoolStore, FloatDType, IndexingUpdateOp, IntDType};

pub(crate) use crate::input::{Input, View, float, int, mask};
pub(crate) use crate::random::Random;

/// The backend under test.
pub(crate) type R = burn_rocm_022::Rocm;
/// The oracle.
pub(crate) type O = burn_flex::Flex;

pub(crate) const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];
pub(crate) const INTS: [DType; 8] =
    [DType::I64, DType::I32, DType::I16, DType::I8, DType::U64, DType::U32, DType::U16, DType::U8];
/// Shapes that are empty, of one element, odd, and around 16-byte vectors and block edges.
pub(crate) const SHAPES: &[&[usize]] = &[
    &[0],
    &[1],
    &[17],
    &[2049],
    &[5, 7],
    &[33, 1],
    &[0, 4],
    &[64, 65],
    &[2, 3, 4],
    &[3, 1, 17],
    &[2, 3, 1, 5],
    &[2, 2, 3, 2, 3],
];

/// The device under test, in the type of Burn's traits.
pub(crate) fn device() -> burn_rocm_022::BurnDevice {
    crate::trace::to_file();
    burn_rocm_022::RocmDevice::new(0).into()
}

/// Runs one body on both backends, each with its own `B` and `device`, and asserts the same bits.
/// Any NaN equals any other.
#[macro_export]
macro_rules! same {
    ($what:expr, |$B:ident, $device:ident| $body:expr) => {{
        #[allow(unused_braces)]
        let ours: Vec<burn_backend::TensorData> = {
            #[allow(dead_code)]
            type $B = $crate::harness::R;
            let $device = $crate::harness::device();
            $body
        };
        #[allow(unused_braces)]
        let theirs: Vec<burn_backend::TensorData> = {
            #[allow(dead_code)]
            type $B = $crate::harness::O;
            let $device = Default::default();
            $body
        };
        $crate::harness::assert_same(&$what, &ours, &theirs);
    }};
}

pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    burn_std::future::block_on(future)
}

pub(crate) fn read_float<B: Backend>(tensor: FloatTensor<B>) -> TensorData {
    wait(B::float_into_data(tensor)).unwrap()
}

pub(crate) fn read_int<B: Backend>(tensor: IntTensor<B>) -> TensorData {
    wait(B::int_into_data(tensor)).unwrap()
}

/// Reads a bool tensor as Rust's bools. The oracle returns some bools as bytes under the name of
/// their store.
pub(crate) fn read_bool<B: Backend>(tensor: BoolTensor<B>) -> TensorData {
    let (bytes, shape, _) = wait(B::bool_into_data(tensor)).unwrap().into_parts();
    TensorData::from_bytes(bytes, shape, DType::Bool(BoolStore::Native))
}

/// Reads an integer tensor as `I64`, if the backend chooses its type.
pub(crate) fn read_index<B: Backend>(tensor: IntTensor<B>) -> TensorData {
    read_int::<B>(B::int_cast(tensor, IntDType::I64))
}

/// The elements of a float input in f64, in row-major order, after rounding to its dtype.
pub(crate) fn exact(input: &Input) -> Vec<f64> {
    values(&read_float::<O>(O::float_cast(input.float::<O>(&Default::default()), FloatDType::F64)))
}

pub(crate) fn values(data: &TensorData) -> Vec<f64> {
    data.iter::<f64>().collect()
}

/// Half a unit in the last place of 1.
pub(crate) fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 2f64.powi(-53),
        DType::F32 => 2f64.powi(-24),
        DType::F16 => 2f64.powi(-11),
        _ => 2f64.powi(-8),
    }
}

/// The type in which a kernel computes `dtype`.
pub(crate) fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// The relative error of rounding a result to `dtype`, if it was computed in a wider type.
pub(crate) fn rounding(dtype: DType) -> f64 {
    if wide(dtype) == dtype { 0.0 } else { unit(dtype) }
}

/// Half the distance between the smallest numbers of a type.
pub(crate) fn least(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-25),
        DType::BF16 => 2f64.powi(-134),
        DType::F32 => 2f64.powi(-150),
        _ => 0.0,
    }
}

#[track_caller]
pub(crate) fn assert_same(what: &impl std::fmt::Display, ours: &[TensorData], theirs: &[TensorData]) {
    assert_eq!(ours.len(), theirs.len(), "{what}: number of results");
    for (k, (a, b)) in ours.iter().zip(theirs).enumerate() {
        assert_eq!(a.shape(), b.shape(), "{what}: shape of result {k}");
        assert_eq!(a.dtype(), b.dtype(), "{what}: dtype of result {k}");
        if a.dtype().is_float() {
            for (i, (x, y)) in a.iter::<f64>().zip(b.iter::<f64>()).enumerate() {
                let same = x == y || (x.is_nan() && y.is_nan());
                assert!(same, "{what}: result {k}, element {i} of {:?}: {x} instead of {y}", a.shape());
            }
        } else {
            let differs = a.as_bytes().iter().zip(b.as_bytes()).position(|(x, y)| x != y);
            let same = differs.is_none() && a.as_bytes().len() == b.as_bytes().len();
            assert!(same, "{what}: result {k} of {:?} differs from byte {differs:?} on", a.shape());
        }
    }
}

/// Asserts that each result is within its limit of the expected value.
#[track_caller]
pub(crate) fn assert_within(
    what: &impl std::fmt::Display,
    found: &TensorData,
    expected: &[f64],
    limits: &[f64],
) {
    let found = values(found);
    assert_eq!((found.len(), limits.len()), (expected.len(), expected.len()), "{what}: number of elements");
    for (i, ((x, y), limit)) in found.iter().zip(expected).zip(limits).enumerate() {
        let near = (x - y).abs() <= *limit || x == y || (x.is_nan() && y.is_nan());
        assert!(near, "{what}: element {i}: {x} instead of {y}, {:e} off, limit {limit:e}", (x - y).abs());
    }
}

/// Asserts that `body` panics with a typed error of this backend, and returns the error.
#[track_caller]
pub(crate) fn refused<T>(what: &str, body: impl FnOnce() -> T) -> RocmError {
    take_last_error();
    assert!(catch_unwind(AssertUnwindSafe(body)).is_err(), "{what}: not refused");
    take_last_error().unwrap_or_else(|| panic!("{what}: no typed error"))
}

/// Whether `body` panics.
pub(crate) fn panics<T>(body: impl FnOnce() -> T) -> bool {
    catch_unwind(AssertUnwindSafe(body)).is_err()
}

/// A random view of a shape.
pub(crate) fn view(random: &Random) -> View {
    View::ALL[random.below(View::ALL.len())]
}

/// Random floats with NaN, infinities, both zeros and ties.
pub(crate) fn special(random: &Random, shape: &[usize], dtype: DType) -> Input {
    Input::new(shape, dtype, view(random), || match random.below(12) {
        0 => f64::NAN,
        1 => f64::INFINITY,
        2 => f64::NEG_INFINITY,
        3 => 0.0,
        4 => -0.0,
        _ => random.below(17) as f64 / 4.0 - 2.0,
    })
}
