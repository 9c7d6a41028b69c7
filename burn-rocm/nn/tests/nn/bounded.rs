//! Numbers with limits of their errors: the running error analysis of Higham 2002, section 3.3.

use burn::tensor::{bf16, f16};
use burn_rocm_tests::limits::{assert_within, growth, least, unit, wide};

use crate::support::*;

/// A number, and the limit of a result's distance from it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Bounded {
    pub(crate) value: f64,
    pub(crate) off: f64,
}

impl Bounded {
    pub(crate) fn exact(value: f64) -> Self {
        Self { value, off: 0.0 }
    }

    pub(crate) fn plus(self, other: Self, step: f64) -> Self {
        let value = self.value + other.value;
        Self { value, off: self.off + other.off + step * value.abs() }
    }

    pub(crate) fn minus(self, other: Self, step: f64) -> Self {
        self.plus(Self { value: -other.value, ..other }, step)
    }

    pub(crate) fn times(self, other: Self, step: f64) -> Self {
        let mut sum = Sum::default();
        sum.add(self, other);
        Self { value: sum.value, off: sum.off + step * sum.magnitude }
    }
}

/// These numbers, without errors.
pub(crate) fn exact(values: impl IntoIterator<Item = f64>) -> Vec<Bounded> {
    values.into_iter().map(Bounded::exact).collect()
}

/// A sum of products.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum {
    pub(crate) value: f64,
    pub(crate) off: f64,
    pub(crate) magnitude: f64,
    pub(crate) terms: usize,
}

impl Sum {
    pub(crate) fn add(&mut self, a: Bounded, b: Bounded) {
        self.value += a.value * b.value;
        self.off += a.off * b.value.abs() + a.value.abs() * b.off + a.off * b.off;
        self.magnitude += (a.value * b.value).abs() + a.off * b.value.abs() + a.value.abs() * b.off;
        self.terms += 1;
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.value += other.value;
        self.off += other.off;
        self.magnitude += other.magnitude;
        self.terms += other.terms;
    }

    pub(crate) fn of(a: impl IntoIterator<Item = Bounded>, b: impl IntoIterator<Item = Bounded>) -> Self {
        let mut sum = Self::default();
        a.into_iter().zip(b).for_each(|(a, b)| sum.add(a, b));
        sum
    }
}

/// How results of `dtype` are rounded: computed in f32 (f64 for f64), then stored in `dtype`.
#[derive(Clone, Copy)]
pub(crate) struct Roundings {
    dtype: DType,
    /// The rounding error of one operation.
    pub(crate) step: f64,
    /// The rounding error of one stored number.
    store: f64,
}

impl Roundings {
    pub(crate) fn of(dtype: DType) -> Self {
        let computed = wide(dtype);
        Self { dtype, step: unit(computed), store: if computed == dtype { 0.0 } else { unit(dtype) } }
    }

    pub(crate) fn growth(self, terms: usize) -> f64 {
        growth(terms, wide(self.dtype))
    }

    /// [`of_gelu`] of this type.
    pub(crate) fn of_gelu(self) -> f64 {
        of_gelu(self.dtype)
    }

    /// A number that may be stored. One that `dtype` has and that is off by less than half the
    /// distance to its neighbours is stored as it is.
    pub(crate) fn stored(self, x: Bounded) -> Bounded {
        let held = match self.dtype {
            DType::F16 => f16::from_f64(x.value).to_f64() == x.value,
            DType::BF16 => bf16::from_f64(x.value).to_f64() == x.value,
            _ => false,
        };
        if held && x.off < self.store / 2.0 * x.value.abs() {
            return x;
        }
        Bounded { value: x.value, off: x.off + self.store * (x.value.abs() + x.off) + least(self.dtype) }
    }

    /// The error of an operation whose result is about as large as `x` and is stored.
    pub(crate) fn once(self, x: Bounded) -> f64 {
        (self.step + self.store) * (x.value.abs() + x.off) + least(self.dtype)
    }

    /// A sum whose terms are added in any order.
    pub(crate) fn summed(self, sum: &Sum) -> Bounded {
        Bounded { value: sum.value, off: sum.off + self.growth(sum.terms) * sum.magnitude }
    }

    /// The stored sum of products.
    pub(crate) fn dot(self, a: &[Bounded], b: &[Bounded]) -> Bounded {
        self.stored(self.summed(&Sum::of(a.iter().copied(), b.iter().copied())))
    }

    /// A sum in `parts`. The parts and their sums are stored.
    pub(crate) fn in_parts(self, sum: &Sum, parts: usize) -> Bounded {
        let Bounded { value, off } = self.summed(sum);
        let each = (self.step + self.store) * (sum.magnitude + off) + 2.0 * least(self.dtype);
        Bounded { value, off: off + parts as f64 * each }
    }

    pub(crate) fn all(self, sums: Vec<Sum>) -> Vec<Bounded> {
        sums.iter().map(|sum| self.stored(self.summed(sum))).collect()
    }
}

/// References with their limits.
pub(crate) fn bounded(expected: &[[TensorData; 2]]) -> Vec<Vec<Bounded>> {
    let of = |[reference, limits]: &[TensorData; 2]| {
        let pairs = reference.iter::<f64>().zip(limits.iter::<f64>());
        pairs.map(|(value, off)| Bounded { value, off }).collect()
    };
    expected.iter().map(of).collect()
}

/// Asserts that each result is within its limits.
pub(crate) fn assert_bounded(what: &str, found: &[TensorData], expected: &[Vec<Bounded>]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (result, (found, expected)) in found.iter().zip(expected).enumerate() {
        let sides = sides(found.dtype);
        let data = |of: &dyn Fn(&Bounded) -> f64| {
            TensorData::new(expected.iter().map(of).collect::<Vec<f64>>(), found.shape.clone())
        };
        let (reference, limits) = (data(&|x| x.value), data(&|x| sides * x.off));
        assert_within(&format!("{what}, result {result}"), found, &reference, &limits);
    }
}

/// Whether all elements of a finite result are within their limits.
pub(crate) fn is_bounded(found: &TensorData, expected: &[Bounded]) -> bool {
    let sides = sides(found.dtype);
    found.iter::<f64>().zip(expected).all(|(found, x)| (found - x.value).abs() <= sides * x.off)
}

/// Asserts that the limits reject zeros, another order and doubled values.
pub(crate) fn assert_wrong_fails(what: &str, found: &TensorData, expected: &[Bounded]) {
    assert_rejected(what, found, expected, ("doubled", 2.0));
}

/// Whether there are 16 values that differ by more than rounding, so that wrong ones can be told.
pub(crate) fn is_varied(expected: &[Bounded]) -> bool {
    let mut values: Vec<f64> = expected.iter().map(|x| x.value).collect();
    values.sort_by(f64::total_cmp);
    let most = values.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    values.dedup_by(|next, x| *next - *x <= 1e-6 * most);
    values.len() >= 16
}

/// Asserts that the limits of results that should have at least 16 different elements reject zeros,
/// another order, and values that are 1 % off (2 % in bf16). Returns how many results these are.
/// Elements are different that are further apart than the reference's own errors.
#[must_use]
pub(crate) fn assert_narrow(what: &str, found: &[TensorData], expected: &[Vec<Bounded>]) -> usize {
    let mut checked = 0;
    for (result, (found, expected)) in found.iter().zip(expected).enumerate() {
        if is_varied(expected) {
            let off = if found.dtype == DType::BF16 { ("2 % off", 1.02) } else { ("1 % off", 1.01) };
            assert_rejected(&format!("{what}, result {result}"), found, expected, off);
            checked += 1;
        }
    }
    checked
}

/// Asserts that the limits reject zeros, another order, and the values times a factor. The other
/// order is left out where neighbours are equal but for rounding: the output of a batch norm with
/// one channel whose weight is nearly 0, in bf16.
fn assert_rejected(what: &str, found: &TensorData, expected: &[Bounded], (way, factor): (&str, f64)) {
    let values: Vec<f64> = found.iter::<f64>().collect();
    let mut turned = values.clone();
    turned.rotate_left(1);
    let most = values.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    let rounding = 4.0 * unit(found.dtype) * most;
    let mut wrong =
        vec![("zeros", vec![0.0; values.len()]), (way, values.iter().map(|x| factor * x).collect())];
    if values.iter().zip(&turned).any(|(x, next)| (x - next).abs() > rounding) {
        wrong.push(("another order", turned));
    }
    for (way, wrong) in wrong {
        let wrong = TensorData::new(wrong, found.shape.clone()).convert_dtype(found.dtype);
        assert!(!is_bounded(&wrong, expected), "{what} passes although it is {way}");
    }
}
