//! Ranks' data, and what collectives make of it.

use crate::random::Random;
use half::{bf16, f16};
use hip::{DType, ReduceOp};

pub(crate) const REDUCED: [DType; 10] = [
    DType::F64,
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U8,
];
/// Those that can only be moved.
pub(crate) const MOVED: [DType; 3] = [DType::I16, DType::U16, DType::Bool];

pub(crate) const OPS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Max, ReduceOp::Min, ReduceOp::Average];

/// Elements of a dtype, as bytes.
pub(crate) fn draw(random: &Random, dtype: DType, count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * dtype.size());
    for _ in 0..count {
        let value = random.uniform(-2.0, 2.0);
        match dtype {
            DType::F64 => bytes.extend(value.to_ne_bytes()),
            DType::F32 => bytes.extend((value as f32).to_ne_bytes()),
            DType::F16 => bytes.extend(f16::from_f64(value).to_ne_bytes()),
            DType::BF16 => bytes.extend(bf16::from_f64(value).to_ne_bytes()),
            DType::Bool => bytes.push((random.bits() & 1) as u8),
            // All bits, so that sums and products wrap around.
            _ => bytes.extend(&random.bits().to_ne_bytes()[..dtype.size()]),
        }
    }
    bytes
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at * N..][..N].try_into().unwrap()
}

fn float(dtype: DType, bytes: &[u8], at: usize) -> f64 {
    match dtype {
        DType::F64 => f64::from_ne_bytes(part(bytes, at)),
        DType::F32 => f32::from_ne_bytes(part(bytes, at)).into(),
        DType::F16 => f16::from_ne_bytes(part(bytes, at)).to_f64(),
        _ => bf16::from_ne_bytes(part(bytes, at)).to_f64(),
    }
}

fn int(dtype: DType, bytes: &[u8], at: usize) -> i128 {
    match dtype {
        DType::I64 => i64::from_ne_bytes(part(bytes, at)).into(),
        DType::I32 => i32::from_ne_bytes(part(bytes, at)).into(),
        DType::I8 => i8::from_ne_bytes(part(bytes, at)).into(),
        DType::U64 => u64::from_ne_bytes(part(bytes, at)).into(),
        DType::U32 => u32::from_ne_bytes(part(bytes, at)).into(),
        _ => u8::from_ne_bytes(part(bytes, at)).into(),
    }
}

/// A value modulo the type's range.
fn wrapped(dtype: DType, value: i128) -> i128 {
    match dtype {
        DType::I64 => (value as i64).into(),
        DType::I32 => (value as i32).into(),
        DType::I8 => (value as i8).into(),
        DType::U64 => (value as u64).into(),
        DType::U32 => (value as u32).into(),
        _ => (value as u8).into(),
    }
}

/// Half a unit in the last place of 1, and the smallest positive number.
fn unit(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F64 => (2f64.powi(-53), f64::from_bits(1)),
        DType::F32 => (2f64.powi(-24), 2f64.powi(-149)),
        DType::F16 => (2f64.powi(-11), 2f64.powi(-24)),
        _ => (2f64.powi(-8), 2f64.powi(-133)),
    }
}

/// Checks a reduction of the ranks' elements, from element `first` of each on.
///
/// Floats are held against f64. A sum of n terms in any order, in the type itself, errs by at most
/// `(n - 1) u` of the terms' magnitudes (Higham 2002, section 4.2), and a product by `(n - 1) u` of
/// itself, to first order. An average may also round 1/n and each term times 1/n, before the sum,
/// and a result computed in another type is rounded once: 3 more. Terms of second order are less
/// than 1 more, for the few ranks here. Integers and extremes are exact.
pub(crate) fn check(
    what: &str,
    (op, dtype, count): (ReduceOp, DType, usize),
    inputs: &[Vec<u8>],
    first: usize,
    found: &[u8],
) {
    let ranks = inputs.len();
    assert_eq!(found.len(), count * dtype.size(), "{what}");
    for at in 0..count {
        let place = || format!("{what}: {op:?} of {dtype:?}, element {at} of {count}, {ranks} ranks");
        if dtype.is_float() {
            let terms: Vec<_> = inputs.iter().map(|input| float(dtype, input, first + at)).collect();
            let found = float(dtype, found, at);
            let exact = match op {
                ReduceOp::Sum => terms.iter().sum(),
                ReduceOp::Average => terms.iter().sum::<f64>() / ranks as f64,
                ReduceOp::Product => terms.iter().product(),
                ReduceOp::Max => terms.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                ReduceOp::Min => terms.iter().copied().fold(f64::INFINITY, f64::min),
            };
            let (u, least) = unit(dtype);
            let magnitudes: f64 = terms.iter().map(|term| term.abs()).sum();
            let roundings = (ranks - 1 + 4) as f64;
            let bound = match op {
                ReduceOp::Sum => roundings * u * magnitudes,
                ReduceOp::Average => roundings * u * magnitudes / ranks as f64,
                ReduceOp::Product => roundings * u * exact.abs(),
                ReduceOp::Max | ReduceOp::Min => 0.0,
            };
            // f64 itself rounds as often.
            let own = if dtype == DType::F64 { bound } else { 0.0 };
            // Each rounding of a result that underflows errs by half of the smallest number.
            let under = if bound == 0.0 { 0.0 } else { roundings * least };
            let error = (found - exact).abs();
            assert!(error <= bound + own + under, "{}: {found}, not {exact} ({error:e})", place());
        } else {
            let terms = inputs.iter().map(|input| int(dtype, input, first + at));
            let wrap = |value| wrapped(dtype, value);
            let exact = match op {
                ReduceOp::Sum => wrap(terms.sum()),
                // Towards 0, of the sum that may have wrapped.
                ReduceOp::Average => wrap(wrap(terms.sum()) / ranks as i128),
                ReduceOp::Product => terms.fold(1, |product, term| wrap(product * term)),
                ReduceOp::Max => terms.max().unwrap(),
                ReduceOp::Min => terms.min().unwrap(),
            };
            assert_eq!(int(dtype, found, at), exact, "{}", place());
        }
    }
}

/// The sum as the CPU device computes it: in f32 for f16 and bf16, in the order of the ranks.
pub(crate) fn ordered_sum(dtype: DType, inputs: &[Vec<u8>], count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for at in 0..count {
        let terms = inputs.iter().map(|input| float(dtype, input, at) as f32);
        let sum = terms.reduce(|sum, term| sum + term).unwrap();
        match dtype {
            DType::F16 => bytes.extend(f16::from_f32(sum).to_ne_bytes()),
            DType::BF16 => bytes.extend(bf16::from_f32(sum).to_ne_bytes()),
            _ => bytes.extend(sum.to_ne_bytes()),
        }
    }
    bytes
}
