//! The comparison of results.

use burn_backend::{DType, TensorData};

/// How far two results may be apart: `|ours - theirs| <= absolute + relative * |theirs|`.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// In the result's own unit.
    pub absolute: f64,
    /// As a share of the expected value.
    pub relative: f64,
}

impl Tolerance {
    /// The same bits (any NaN equals any other).
    pub const EXACT: Self = Self { absolute: 0.0, relative: 0.0 };

    /// For one operation in `dtype`: a few units in the last place; exact for integers and bools.
    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::F64 => Self { absolute: 1e-13, relative: 1e-13 },
            DType::F32 => Self { absolute: 1e-6, relative: 1e-6 },
            DType::F16 => Self { absolute: 1e-3, relative: 1e-3 },
            DType::BF16 => Self { absolute: 8e-3, relative: 8e-3 },
            _ => Self::EXACT,
        }
    }

    /// For a sum of `terms` products or values of about unit size.
    pub fn sum(dtype: DType, terms: usize) -> Self {
        let one = Self::of(dtype);
        let growth = (terms.max(1) as f64).sqrt() * 2.0;
        Self { absolute: one.absolute * growth, relative: one.relative * growth }
    }

    /// For a sum of `terms` products of about unit size that is added in f32 (f64 in f64) and rounded to `dtype`
    /// then, and once more where a bias of at most 1 is added to it: held against a reference that is rounded once.
    pub fn rounded_sum(dtype: DType, terms: usize) -> Self {
        // Half a unit in the last place of 1.
        let half = match dtype {
            DType::F16 => 2f64.powi(-11),
            DType::BF16 => 2f64.powi(-8),
            _ => return Self::sum(dtype, terms).times(2.0),
        };
        let added = Self::sum(DType::F32, terms).times(2.0).absolute;
        Self { absolute: added + half, relative: 4.0 * half }
    }

    /// For a convolution and its gradients, whose elements are sums of up to `terms` products of about unit size:
    /// [`Self::rounded_sum`] where kernels of this project compute it.
    ///
    /// A library's may round parts of a sum first. MIOpen's by products on gfx1030 do: each image's part of a
    /// weight's gradient, each tap's of an input's.
    pub fn convolution(dtype: DType, terms: usize) -> Self {
        let sum = Self::rounded_sum(dtype, terms);
        let ours = hip::provider().is_ok_and(|provider| provider.kind() == hip::ProviderKind::Cpu)
            || matches!(hip::conv_route(), Ok(hip::Route::Own));
        let parts = match dtype {
            DType::F16 | DType::BF16 if !ours => (terms as f64).sqrt() * sum.relative / 4.0,
            _ => 0.0,
        };
        Self { absolute: sum.absolute + parts, ..sum }
    }

    /// Wider by a factor.
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
