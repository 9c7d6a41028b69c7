//! The comparison of results.

use burn_backend::{DType, TensorData};

/// How much two results may differ: `|ours - theirs| <= absolute + relative * |theirs|`.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// An absolute difference.
    pub absolute: f64,
    /// As a share of the expected value.
    pub relative: f64,
}

impl Tolerance {
    /// The same bits; any NaN equals any other NaN.
    pub const EXACT: Self = Self { absolute: 0.0, relative: 0.0 };

    /// The tolerance of one operation in `dtype`: a few units in the last place, and exact for
    /// integers and bools. For sums see [`crate::limits`].
    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::F64 => Self { absolute: 1e-13, relative: 1e-13 },
            DType::F32 => Self { absolute: 1e-6, relative: 1e-6 },
            DType::F16 => Self { absolute: 1e-3, relative: 1e-3 },
            DType::BF16 => Self { absolute: 8e-3, relative: 8e-3 },
            _ => Self::EXACT,
        }
    }

    /// The tolerance times a factor.
    pub fn times(self, factor: f64) -> Self {
        Self { absolute: self.absolute * factor, relative: self.relative * factor }
    }
}

/// Asserts that two lists of results agree in shape, dtype and values.
///
/// # Panics
/// With `what`, the first element that differs and both values.
#[track_caller]
pub fn assert_close(
    what: &impl std::fmt::Display,
    ours: &[TensorData],
    theirs: &[TensorData],
    tolerance: Tolerance,
) {
    assert_eq!(ours.len(), theirs.len(), "{what}: number of results");
    for (k, (a, b)) in ours.iter().zip(theirs).enumerate() {
        assert_eq!(a.shape, b.shape, "{what}: shape of result {k}");
        assert_eq!(a.dtype, b.dtype, "{what}: dtype of result {k}");
        if a.dtype == b.dtype && !matches!(a.dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16) {
            let (x, y): (Vec<i128>, Vec<i128>) = (integers(a), integers(b));
            if let Some(i) = (0..x.len()).find(|&i| x[i] != y[i]) {
                panic!("{what}: result {k}, element {i} of {:?}: {} instead of {}", a.shape, x[i], y[i]);
            }
            continue;
        }
        for (i, (x, y)) in a.iter::<f64>().zip(b.iter::<f64>()).enumerate() {
            let near = (x - y).abs() <= tolerance.absolute + tolerance.relative * y.abs();
            let same = x == y || (x.is_nan() && y.is_nan());
            assert!(
                same || near,
                "{what}: result {k} ({:?}), element {i} of {:?}: {x} instead of {y} ({tolerance:?})",
                a.dtype,
                a.shape
            );
        }
    }
}

fn integers(data: &TensorData) -> Vec<i128> {
    match data.dtype {
        DType::U64 => data.iter::<u64>().map(i128::from).collect(),
        _ => data.iter::<i64>().map(i128::from).collect(),
    }
}
