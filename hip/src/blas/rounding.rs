//! How far two ways to compute the same product may lie apart.

use super::Kind;
use super::layout::{Operand, Plan};
use crate::DType;

/// The bytes of a product's operands and of what it adds to, each from its first element on.
pub(super) struct Inputs<'a> {
    pub(super) first: &'a [u8],
    pub(super) second: &'a [u8],
    /// Not read if nothing is added to.
    pub(super) added: &'a [u8],
}

/// The first element at which two results of a product lie further apart than rounding explains.
///
/// Each sum of `k` products lies within `gamma * |alpha| * sum |a b|` of the exact one, with
/// `gamma = (k + 4) u / (1 - (k + 4) u)`, in any order of its terms (Higham, "Accuracy and
/// Stability of Numerical Algorithms", section 3.1). The 4 are for alpha, beta, their sum and
/// second-order terms. `u` is taken twice, because matrix units may truncate. By Cauchy and
/// Schwarz, `sum |a b|` is at most the product of the norms of a row and a column. The result is
/// rounded once more to its type. A subnormal operand or result may count as 0. Two results may lie
/// twice as far apart as one from the exact result.
pub(super) fn first_apart(
    kind: Kind,
    plan: &Plan,
    [alpha, beta]: [f64; 2],
    alternative: bool,
    inputs: &Inputs<'_>,
    [one, other]: [&[u8]; 2],
) -> Option<String> {
    let Plan { m, n, k, batch, first, second, ldc, stride_c, .. } = *plan;
    let (m, n, k) = (m as usize, n as usize, k as usize);
    let (sum, stored, least) = limits(kind.input);
    let terms = (k + 4) as f64 * 2.0 * sum;
    // The alternative rounds each operand to bf16.
    let operands = if alternative { 4.0 * limits(DType::BF16).1 } else { 0.0 };
    let relative = if terms < 1.0 { terms / (1.0 - terms) + stored + operands } else { f64::INFINITY };
    let mut norms = (Vec::new(), Vec::new());
    for batch in 0..batch as usize {
        if batch == 0 || first.batch_stride != 0 {
            norms.0 = norms_of(inputs.first, kind.input, &first, batch, m, k, first.transpose);
        }
        if batch == 0 || second.batch_stride != 0 {
            norms.1 = norms_of(inputs.second, kind.input, &second, batch, n, k, !second.transpose);
        }
        for (column, row) in (0..n).flat_map(|column| (0..m).map(move |row| (column, row))) {
            let at = batch * stride_c as usize + column * ldc as usize + row;
            let (x, y) = (value(one, kind.output, at), value(other, kind.output, at));
            if x == y || x.is_nan() && y.is_nan() {
                continue;
            }
            let (a, b) = (norms.0[row], norms.1[column]);
            let added = if beta == 0.0 { 0.0 } else { (beta * value(inputs.added, kind.output, at)).abs() };
            let flushed = least * (1.0 + alpha.abs() * (k as f64).sqrt() * (a + b));
            let bound = 2.0 * (relative * (alpha.abs() * a * b + added) + flushed);
            // False for a NaN, and if one result is infinite. A bound that is infinite, because an
            // operand is, shows nothing.
            let within = bound.is_finite() && (x - y).abs() <= bound;
            if !kind.input.is_float() || !within {
                return Some(format!("{x} and {y} at {row},{column} of matrix {batch}, allowed {bound:e}"));
            }
        }
    }
    None
}

/// The first byte that a product wrote outside its matrices: before the first element, between two
/// columns or two matrices, or behind the last element. The first element lies `guard` bytes into
/// the memory, and `size` is the size of an element.
pub(super) fn first_outside(
    plan: &Plan,
    size: usize,
    guard: usize,
    [before, after]: [&[u8]; 2],
) -> Option<String> {
    let Plan { m, n, batch, ldc, stride_c, .. } = *plan;
    let mut inside = vec![false; before.len()];
    for (matrix, column) in (0..batch as usize).flat_map(|matrix| (0..n as usize).map(move |at| (matrix, at)))
    {
        let at = guard + (matrix * stride_c as usize + column * ldc as usize) * size;
        if let Some(column) = inside.get_mut(at..at + m as usize * size) {
            column.fill(true);
        }
    }
    let differs = |&at: &usize| !inside[at] && before[at] != after[at];
    let at = (0..before.len()).find(differs)?;
    Some(format!(
        "it writes outside the result, {} bytes from its first element",
        at as isize - guard as isize
    ))
}

/// The unit roundoff of a dtype's sums, that of its results, and its least normal number.
pub(super) fn limits(dtype: DType) -> (f64, f64, f64) {
    let single = f64::from(f32::EPSILON) / 2.0;
    let least = f64::from(f32::MIN_POSITIVE);
    match dtype {
        DType::F64 => (f64::EPSILON / 2.0, f64::EPSILON / 2.0, f64::MIN_POSITIVE),
        DType::F16 => (single, 2f64.powi(-11), 2f64.powi(-14)),
        DType::BF16 => (single, 2f64.powi(-8), least),
        _ => (single, single, least),
    }
}

/// The norms of `count` vectors of `k` elements. In memory each vector is contiguous, or its
/// elements lie a leading dimension apart.
pub(super) fn norms_of(
    bytes: &[u8],
    dtype: DType,
    operand: &Operand,
    batch: usize,
    count: usize,
    k: usize,
    contiguous: bool,
) -> Vec<f64> {
    let (start, ld) = (batch * operand.batch_stride as usize, operand.ld as usize);
    let (vector, element) = if contiguous { (ld, 1) } else { (1, ld) };
    let mut squares = vec![0.0; count];
    if dtype.is_float() {
        for (i, square) in squares.iter_mut().enumerate() {
            *square = (0..k).map(|l| value(bytes, dtype, start + i * vector + l * element).powi(2)).sum();
        }
    }
    squares.into_iter().map(f64::sqrt).collect()
}

/// An element of a matrix in the host's memory.
pub(super) fn value(bytes: &[u8], dtype: DType, at: usize) -> f64 {
    let size = dtype.size();
    let Some(raw) = bytes.get(at * size..(at + 1) * size) else { return f64::NAN };
    let mut own = [0; 8];
    own[..size].copy_from_slice(raw);
    let bits = u64::from_le_bytes(own);
    match dtype {
        DType::F64 => f64::from_bits(bits),
        DType::F16 => from_f16(bits as u16),
        DType::BF16 => f64::from(f32::from_bits((bits as u32) << 16)),
        DType::I32 => f64::from(bits as i32),
        DType::I8 => f64::from(bits as i8),
        _ => f64::from(f32::from_bits(bits as u32)),
    }
}

/// The value of a binary16's bits.
fn from_f16(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        0x1f if fraction == 0.0 => f64::INFINITY,
        0x1f => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_has_its_value() {
        for bits in 0..=u16::MAX {
            let (found, expected) = (from_f16(bits), half::f16::from_bits(bits).to_f64());
            assert!(found == expected || found.is_nan() && expected.is_nan(), "{bits:#x}: {found}");
        }
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// 1 x 1 products of `k` terms in f32.
    fn apart(a: &[f32], b: &[f32], one: f32, other: f32) -> bool {
        let operand = |transpose| Operand { transpose, ld: a.len() as i32, batch_stride: 0 };
        let plan = Plan {
            swap: false,
            m: 1,
            n: 1,
            k: a.len() as i32,
            batch: 1,
            first: operand(true),
            second: operand(false),
            ldc: 1,
            stride_c: 0,
        };
        let kind = Kind { input: DType::F32, output: DType::F32 };
        let inputs = Inputs { first: &bytes(a), second: &bytes(b), added: &[] };
        let results = [bytes(&[one]), bytes(&[other])];
        first_apart(kind, &plan, [1.0, 0.0], false, &inputs, [&results[0], &results[1]]).is_some()
    }

    #[test]
    fn other_orders_of_a_sum_are_allowed_and_a_lost_term_is_not() {
        let a: Vec<f32> = (0..500).map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0).collect();
        let b: Vec<f32> = (0..500).map(|i| ((i * 53 % 97) as f32 - 48.0) / 11.0).collect();
        let products = || a.iter().zip(&b).map(|(a, b)| a * b);
        let (forward, backward): (f32, f32) = (products().sum(), products().rev().sum());
        assert_ne!(forward, backward, "the orders differ");
        assert!(!apart(&a, &b, forward, backward));
        let lost: f32 = products().skip(1).sum();
        assert!(apart(&a, &b, forward, lost), "{forward} and {lost}");
        assert!(apart(&a, &b, forward, f32::NAN) && apart(&a, &b, f32::INFINITY, forward));
        assert!(!apart(&a, &b, f32::NAN, f32::NAN) && !apart(&a, &b, f32::INFINITY, f32::INFINITY));
    }
}
