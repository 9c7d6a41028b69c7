//! Whether an algorithm's results lie as close to the exact ones as rounding explains.
//!
//! The reference is rocBLAS's product of the same operands, to which the host adds what follows, in
//! f64. The bounds of both products are those of `rounding`: a sum of `k` terms lies within
//! `gamma |a| |b|` of the exact one, with the norms of a row of `a` and a column of `b`.

use super::{Epilogue, LtActivation, LtProduct};
use crate::blas::choose::Source;
use crate::blas::layout::Operand;
use crate::blas::rounding::{limits, norms_of, value};
use crate::blas::{MatrixView, VectorView};
use crate::{DType, Result};

/// The relative error of the libraries' tanh. NVIDIA's instruction `tanh.approx.f32` has 2^-11 (PTX
/// ISA, "tanh"); an exponential and a division have less.
const TANH: f64 = 1.0 / 2048.0;
/// The greatest slope of GELU by tanh, and of its derivative.
/// The derivative is at most 1.1290 (at 1.4630), and its own at most 0.7979 (at 0).
const SLOPE: f64 = 1.13;
/// `sqrt(2 / pi)`
const FACTOR: f64 = 0.797_884_560_802_865_4;
const CUBIC: f64 = 0.044_715;

fn tanh_of(x: f64) -> f64 {
    (FACTOR * (x + CUBIC * x * x * x)).tanh()
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + tanh_of(x))
}

/// GELU's derivative, and how far it may be off because tanh is.
fn gelu_derivative(x: f64) -> (f64, f64) {
    let tanh = tanh_of(x);
    let inner = 0.5 * x * FACTOR * (1.0 + 3.0 * CUBIC * x * x);
    let off = TANH * (0.5 + 2.0 * tanh * tanh * inner.abs());
    (0.5 * (1.0 + tanh) + inner * (1.0 - tanh * tanh), off)
}

/// A value, and how far a right result may be from it.
#[derive(Clone, Copy)]
struct Near {
    value: f64,
    off: f64,
}

impl Near {
    /// Why a result is too far; `None` if it is not.
    fn apart(self, found: f64, what: &str, at: [usize; 2]) -> Option<String> {
        let Self { value, off } = self;
        let alike = found == value || found.is_nan() && value.is_nan();
        // False for a NaN, and if one of the two is infinite. A bound that is infinite, because an
        // operand is, shows nothing.
        if alike || off.is_finite() && (found - value).abs() <= off {
            return None;
        }
        Some(format!("{what} is {found} at {},{}, expected {value}, allowed {off:e}", at[0], at[1]))
    }
}

/// The inputs of a product and rocBLAS's product of its operands, in the host's memory.
pub(super) struct Reference {
    product: Vec<u8>,
    onto: Vec<u8>,
    /// The bias, or what GELU has read.
    epilogue: Vec<u8>,
    /// The sums of the columns of `b` and of their magnitudes, if they are wanted.
    sums: Vec<[f64; 2]>,
    /// Norms of the rows of `a`, and of the columns of `b`.
    norms: [Vec<f64>; 2],
}

impl Reference {
    pub(super) fn new(of: &LtProduct<'_>) -> Result<Self> {
        let LtProduct { dtype, a, b, onto, out, epilogue, gradient } = *of;
        let device = out.buffer.device();
        let (rows, cols, k) = (out.rows, out.cols, a.cols);
        let scratch = device.alloc(rows * cols * dtype.size())?;
        let place = MatrixView {
            buffer: &scratch,
            offset: 0,
            rows,
            cols,
            row_stride: cols,
            col_stride: 1,
            batch_stride: 0,
        };
        device.blas()?.gemm(dtype, 1, a, b, place, 1.0, 0.0, gradient)?;
        let read = |view: &MatrixView<'_>| -> Result<Vec<u8>> {
            let bytes = view.strided().extent(1).unwrap_or(0) * dtype.size();
            Source { buffer: view.buffer, offset: view.offset * dtype.size(), bytes }.read()
        };
        let vector = |view: &VectorView<'_>| of.vector(view).read();
        let (left, right) = (read(&a)?, read(&b)?);
        // As `norms_of` wants a matrix: a leading dimension, and whether vectors are contiguous.
        let norms = |bytes: &[u8], count, vector_stride: usize, element_stride: usize| {
            let contiguous = element_stride == 1 || k == 1;
            let ld = if contiguous { vector_stride } else { element_stride };
            let operand = Operand { transpose: false, ld: ld as i32, batch_stride: 0 };
            norms_of(bytes, dtype, &operand, 0, count, k, contiguous)
        };
        let column = |column: usize| {
            (0..k).fold([0.0, 0.0], |[sum, magnitudes], row| {
                let term = value(&right, dtype, row * b.row_stride + column * b.col_stride);
                [sum + term, magnitudes + term.abs()]
            })
        };
        Ok(Self {
            product: Source { buffer: &scratch, offset: 0, bytes: scratch.len() }.read()?,
            onto: onto.as_ref().map(read).transpose()?.unwrap_or_default(),
            epilogue: match &epilogue {
                Epilogue::Forward { bias, .. } => bias.as_ref().map(vector).transpose()?.unwrap_or_default(),
                Epilogue::GeluGradient { before, .. } => read(before)?,
                Epilogue::ColumnSums(_) => Vec::new(),
            },
            sums: match epilogue {
                Epilogue::ColumnSums(_) => (0..cols).map(column).collect(),
                _ => Vec::new(),
            },
            norms: [
                norms(&left, rows, a.row_stride, a.col_stride),
                norms(&right, cols, b.col_stride, b.row_stride),
            ],
        })
    }

    /// The first result of a product that is further from the reference than rounding explains.
    pub(super) fn first_apart(&self, of: &LtProduct<'_>) -> Result<Option<String>> {
        let LtProduct { dtype, a, out, epilogue, .. } = *of;
        let (rows, cols, k) = (out.rows, out.cols, a.cols);
        let found = of.matrix(&out).read()?;
        let (sum, stored, least) = limits(dtype);
        let terms = (k + 4) as f64 * 2.0 * sum;
        let gamma = if terms < 1.0 { terms / (1.0 - terms) } else { f64::INFINITY };
        let before = match &epilogue {
            Epilogue::Forward { before, .. } => before.as_ref().map(|before| of.matrix(before).read()),
            _ => None,
        };
        let before = before.transpose()?;
        let mut column_sums = vec![[0.0; 3]; cols];
        for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
            let at = row * cols + col;
            let at_onto = of.onto.map(|onto| row * onto.row_stride + col * onto.col_stride);
            let onto = at_onto.map_or(0.0, |at| value(&self.onto, dtype, at));
            let product = value(&self.product, dtype, at);
            let scale = self.norms[0][row] * self.norms[1][col];
            // Both products' sums, the rounding of rocBLAS's result, and subnormals that count as 0.
            let flushed = least * (1.0 + (k as f64).sqrt() * (self.norms[0][row] + self.norms[1][col]));
            let x = Near {
                value: product + onto,
                off: 2.0 * (gamma * scale + flushed) + stored * product.abs() + 4.0 * sum * onto.abs(),
            };
            let result = match epilogue {
                Epilogue::Forward { activation, ref bias, .. } => {
                    let bias = bias.map_or(0.0, |_| value(&self.epilogue, dtype, col));
                    let x = Near { value: x.value + bias, off: x.off + 4.0 * sum * bias.abs() };
                    if let Some(before) = &before {
                        let apart = rounded(x, dtype).apart(value(before, dtype, at), "the sum", [row, col]);
                        if apart.is_some() {
                            return Ok(apart);
                        }
                    }
                    match activation {
                        None => x,
                        // A library may give 0 for a NaN.
                        Some(LtActivation::Relu) if x.value.is_nan() => continue,
                        Some(LtActivation::Relu) => Near { value: x.value.max(0.0), ..x },
                        Some(LtActivation::GeluTanh) => Near {
                            value: gelu(x.value),
                            off: SLOPE * x.off + 0.5 * TANH * x.value.abs() + 8.0 * sum * x.value.abs(),
                        },
                    }
                }
                Epilogue::GeluGradient { .. } => {
                    let (slope, off) = gelu_derivative(value(&self.epilogue, dtype, at));
                    let off = SLOPE * x.off + (x.value.abs() + x.off) * (off + 8.0 * sum);
                    Near { value: x.value * slope, off }
                }
                Epilogue::ColumnSums(_) => x,
            };
            let [value_sum, magnitudes, offs] = &mut column_sums[col];
            *value_sum += result.value;
            *magnitudes += result.value.abs();
            *offs += result.off;
            let apart = rounded(result, dtype).apart(value(&found, dtype, at), "the result", [row, col]);
            if apart.is_some() {
                return Ok(apart);
            }
        }
        let sums = match &epilogue {
            Epilogue::GeluGradient { sums: Some(sums), .. } | Epilogue::ColumnSums(sums) => {
                of.vector(sums).read()?
            }
            _ => return Ok(None),
        };
        for (col, &[exact, magnitudes, offs]) in column_sums.iter().enumerate() {
            let near = match epilogue {
                Epilogue::ColumnSums(_) => {
                    let [exact, magnitudes] = self.sums[col];
                    Near { value: exact, off: gamma * magnitudes + (k as f64 + 1.0) * least }
                }
                _ => {
                    // The sums may be of rounded results.
                    let each = 2.0 * (rows + 4) as f64 * sum + stored;
                    Near { value: exact, off: offs + each * magnitudes + (rows as f64 + 1.0) * least }
                }
            };
            let apart = rounded(near, dtype).apart(value(&sums, dtype, col), "the sum of a column", [0, col]);
            if apart.is_some() {
                return Ok(apart);
            }
        }
        Ok(None)
    }
}

/// The same, after a rounding to the dtype.
fn rounded(near: Near, dtype: DType) -> Near {
    let (_, stored, least) = limits(dtype);
    Near { off: near.off + stored * (near.value.abs() + near.off) + least, ..near }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_derivative_is_that_of_gelu_and_the_slopes_bound_it() {
        for i in -800..=800 {
            let (x, step) = (f64::from(i) / 100.0, 1e-6);
            let (derivative, off) = gelu_derivative(x);
            let found = (gelu(x + step) - gelu(x - step)) / (2.0 * step);
            assert!((derivative - found).abs() < 1e-8, "{x}: {derivative} and {found}");
            assert!(derivative.abs() <= SLOPE && off < 4.0 * TANH * (1.0 + x.abs().powi(3)));
        }
    }

    #[test]
    fn what_is_too_far_is_found() {
        let near = Near { value: 1.0, off: 0.25 };
        for (found, apart) in [(1.0, false), (1.25, false), (0.75, false), (1.3, true), (f64::NAN, true)] {
            assert_eq!(near.apart(found, "it", [0, 0]).is_some(), apart, "{found}");
        }
        assert!(Near { value: f64::NAN, off: 0.0 }.apart(f64::NAN, "it", [0, 0]).is_none());
        let half = rounded(near, DType::BF16);
        assert!(half.off > 0.25 + 1.0 / 256.0 && half.off < 0.26);
    }
}
