//! hipBLASLt on the host's CPU: products with epilogues, and products of fp8, summed in `f32`.
//!
//! The same call with the same number of threads gives the same bits.
#![allow(non_upper_case_globals)] // AMD's names.

use crate::numeric::device::{in_stream, is_device_memory};
use crate::numeric::element::Single;
use crate::numeric::fp8::Format;
use crate::numeric::multiply::{Operand, Product, multiply};
use crate::numeric::shared::Shared;
use crate::runtime::enqueue;
use crate::settings::Failure;
use core::ffi::c_void;
use half::{bf16, f16};
use hip_provider::hipblaslt::{Activation, Algorithm, Call, Epilogue, Outcome, Problem, is_fp8};
use hip_provider::require;
use hipblaslt_sys::*;

/// The CPU device's hipBLASLt.
pub fn hipblaslt_table() -> Hipblaslt {
    hip_provider::hipblaslt::table::<Handle>()
}

/// What a `hipblasLtHandle_t` points to.
struct Handle;

/// The number of the algorithm that adds up each sum in one run.
const WHOLE: u64 = 1;
/// The number of the algorithm that adds up [`BLOCK`] terms at a time, and then these sums.
const BLOCKED: u64 = 2;
/// Terms of a sum of [`BLOCKED`].
const BLOCK: usize = 256;

impl hip_provider::hipblaslt::Handle for Handle {
    /// The version in ROCm 7.2, whose behaviour this library follows.
    fn version() -> i32 {
        100_202
    }

    fn create() -> Outcome<Self> {
        require(!Failure::HipblasltHandle.is_asked(), HIPBLAS_STATUS_ALLOC_FAILED)?;
        Ok(Self)
    }

    fn algorithms(&mut self, problem: &Problem, _: usize, most: usize) -> Outcome<Vec<Algorithm>> {
        require(!Failure::HipblasltHeuristic.is_asked(), HIPBLAS_STATUS_NOT_SUPPORTED)?;
        require(!problem.is_fp8() || multiplies_fp8(problem), HIPBLAS_STATUS_NOT_SUPPORTED)?;
        Ok([WHOLE, BLOCKED].iter().take(most).map(|&number| Algorithm { number, workspace: 0 }).collect())
    }

    unsafe fn multiply(&mut self, call: &Call) -> Outcome {
        require(!Failure::HipblasltProducts.is_asked(), HIPBLAS_STATUS_EXECUTION_FAILED)?;
        require([WHOLE, BLOCKED].contains(&call.algorithm), HIPBLAS_STATUS_INVALID_VALUE)?;
        let problem = &call.problem;
        require(!problem.is_fp8() || multiplies_fp8(problem), HIPBLAS_STATUS_NOT_SUPPORTED)?;
        let call = *call;
        let run = move || {
            // SAFETY: the call was checked, and its buffers are of this type.
            unsafe {
                match call.problem.ty {
                    HIP_R_16F => compute::<f16>(&call),
                    HIP_R_16BF => compute::<bf16>(&call),
                    _ => compute::<f32>(&call),
                }
            }
            Ok(())
        };
        // SAFETY: the work holds the addresses of the call's buffers and plain values.
        in_stream(call.stream, || unsafe { enqueue(run) }).unwrap_or(Err(HIPBLAS_STATUS_EXECUTION_FAILED))
    }

    fn is_device_memory(pointer: *const c_void, bytes: usize) -> bool {
        is_device_memory(pointer, bytes)
    }
}

/// Whether a product of fp8 is computed: if cuBLASLt on Hopper and hipBLASLt on one of AMD's chips
/// compute it. Both have its types of one family, A transposed and B not, and no two E5M2. cuBLASLt wants
/// columns at multiples of 16 bytes.
///
/// Source: <https://docs.nvidia.com/cuda/cublas/#cublasltmatmul>.
fn multiplies_fp8(problem: &Problem) -> bool {
    let types = problem.operands;
    let [lda, ldb, ..] = problem.ld;
    let types_fit = types.contains(&HIP_R_8F_E4M3) && !types.iter().any(|&ty| is_fnuz(ty))
        || types.contains(&HIP_R_8F_E4M3_FNUZ) && types.iter().all(|&ty| is_fnuz(ty));
    types_fit
        && problem.transposed == [true, false]
        && [problem.m as i64, problem.k as i64, lda, ldb].iter().all(|size| size % 16 == 0)
        && problem.raw_epilogue == HIPBLASLT_EPILOGUE_DEFAULT
}

fn is_fnuz(ty: hipDataType) -> bool {
    matches!(ty, HIP_R_8F_E4M3_FNUZ | HIP_R_8F_E5M2_FNUZ)
}

/// The numbers of all codes of a type of fp8.
fn numbers(ty: hipDataType) -> [f32; 256] {
    let format = Format { e4m3: matches!(ty, HIP_R_8F_E4M3 | HIP_R_8F_E4M3_FNUZ), fnuz: is_fnuz(ty) };
    core::array::from_fn(|code| format.number(code as u8))
}

/// `len` elements of a buffer.
///
/// # Safety
/// They are there, of this type, and nobody writes them meanwhile.
unsafe fn widened<T: Single>(from: *const c_void, start: usize, to: &mut [f32]) {
    // SAFETY: the caller's.
    let from = unsafe { core::slice::from_raw_parts(from.cast::<T>().add(start), to.len()) };
    T::widen_slice(from, to);
}

/// Stores rounded values.
///
/// # Safety
/// The elements from `start` on are there, of this type, and no other code uses them meanwhile.
unsafe fn store<T: Single>(to: *mut c_void, start: usize, from: &[f32]) {
    // SAFETY: the caller's.
    let to = unsafe { core::slice::from_raw_parts_mut(to.cast::<T>().add(start), from.len()) };
    T::narrow_slice(from, to);
}

/// A matrix of `T`, or of a type of fp8, as packed columns.
///
/// # Safety
/// As [`widened`].
unsafe fn matrix<T: Single>(
    from: *const c_void,
    ty: hipDataType,
    (rows, cols): (usize, usize),
    ld: i64,
) -> Vec<f32> {
    let mut all = vec![0.0; rows * cols];
    if is_fp8(ty) {
        let numbers = numbers(ty);
        for (column, to) in all.chunks_mut(rows).enumerate() {
            // SAFETY: the caller's matrix, of one byte for each element.
            let codes =
                unsafe { core::slice::from_raw_parts(from.cast::<u8>().add(column * ld as usize), rows) };
            to.iter_mut().zip(codes).for_each(|(to, &code)| *to = numbers[usize::from(code)]);
        }
        return all;
    }
    for (column, to) in all.chunks_mut(rows).enumerate() {
        // SAFETY: the caller's matrix.
        unsafe { widened::<T>(from, column * ld as usize, to) };
    }
    all
}

/// # Safety
/// The call was checked, for buffers of `T`.
unsafe fn compute<T: Single>(call: &Call) {
    let Call { problem, alpha, beta, scales, .. } = *call;
    let Problem { m, n, k, transposed, ld, epilogue, .. } = problem;
    // SAFETY: the caller's operands.
    let (a, b) = unsafe {
        (
            matrix::<T>(call.a, problem.operands[0], problem.stored_a(), ld[0]),
            matrix::<T>(call.b, problem.operands[1], problem.stored_b(), ld[1]),
        )
    };
    let strides = |turned: bool, rows: usize| if turned { (rows as isize, 1) } else { (1, rows as isize) };
    let a_strides = strides(transposed[0], problem.stored_a().0);
    let b_strides = strides(transposed[1], problem.stored_b().0);
    // SAFETY: the caller's scales, an f32 each.
    let scale = |at: *const c_void| if at.is_null() { 1.0 } else { unsafe { at.cast::<f32>().read() } };
    let scales = scales.map(scale);
    let mut products = vec![0.0; m * n];
    let (a_at, b_at, c_at) =
        (Shared(a.as_ptr().cast_mut()), Shared(b.as_ptr().cast_mut()), Shared(products.as_mut_ptr()));
    let block = if call.algorithm == BLOCKED { BLOCK } else { k };
    for first in (0..k).step_by(block) {
        // SAFETY: packed copies of the operands, and `products` for the result; the terms from
        // `first` on are inside both.
        unsafe {
            multiply(1, |_| Product {
                m,
                n,
                k: block.min(k - first),
                a: Operand {
                    at: a_at.get().wrapping_offset(first as isize * a_strides.1),
                    row: a_strides.0,
                    column: a_strides.1,
                },
                b: Operand {
                    at: b_at.get().wrapping_offset(first as isize * b_strides.0),
                    row: b_strides.0,
                    column: b_strides.1,
                },
                c: c_at.get(),
                c_row: 1,
                c_column: m as isize,
                alpha,
                beta: if first == 0 { 0.0 } else { 1.0 },
            });
        }
    }
    let mut bias = vec![0.0; problem.bias_len()];
    match epilogue {
        // SAFETY: the caller's bias.
        Epilogue::Forward { bias: true, .. } => unsafe { widened::<T>(call.bias, 0, &mut bias) },
        Epilogue::Sums { first } => {
            let (operand, (row, column)) = if first { (&a, a_strides) } else { (&b, b_strides) };
            let (along, inner) = if first { (row, column) } else { (column, row) };
            for (at, sum) in bias.iter_mut().enumerate() {
                *sum = (0..k).map(|term| operand[at * along as usize + term * inner as usize]).sum();
            }
        }
        _ => {}
    }
    let (mut added, mut aux) = (vec![0.0; m], vec![0.0; m]);
    for (column, values) in products.chunks_mut(m).enumerate() {
        // Apart from alpha, because a factor of 0 must not hide a NaN.
        if problem.is_fp8() {
            values.iter_mut().for_each(|value| *value = *value * scales[0] * scales[1]);
        }
        if beta != 0.0 {
            // SAFETY: the caller's matrix. It may be the result, whose column is written later.
            unsafe { widened::<T>(call.c, column * ld[2] as usize, &mut added) };
            values.iter_mut().zip(&added).for_each(|(value, added)| *value += beta * added);
        }
        let aux_start = column * problem.aux_ld as usize;
        match epilogue {
            Epilogue::Forward { activation, aux: stores, bias: biased } => {
                if biased {
                    values.iter_mut().zip(&bias).for_each(|(value, bias)| *value += bias);
                }
                if stores {
                    // SAFETY: the caller's matrix.
                    unsafe { store::<T>(call.aux, aux_start, values) };
                }
                for value in values.iter_mut() {
                    *value = activation.map_or(*value, |activation| activated(activation, *value));
                }
            }
            Epilogue::GeluGradient { sums } => {
                // SAFETY: the caller's matrix.
                unsafe { widened::<T>(call.aux, aux_start, &mut aux) };
                for ((value, at), sum) in values.iter_mut().zip(&aux).zip(bias.iter_mut()) {
                    *value *= gelu_derivative(*at);
                    if sums {
                        *sum += *value;
                    }
                }
            }
            Epilogue::Sums { .. } => {}
        }
        // SAFETY: the caller's result.
        unsafe { store::<T>(call.d, column * ld[3] as usize, values) };
    }
    if matches!(epilogue, Epilogue::GeluGradient { sums: true } | Epilogue::Sums { .. }) {
        // SAFETY: the caller's place for the sums.
        unsafe { store::<T>(call.bias, 0, &bias) };
    }
}

/// `sqrt(2 / pi)`
const FACTOR: f32 = 0.797_884_6;
const CUBIC: f32 = 0.044_715;

fn activated(activation: Activation, x: f32) -> f32 {
    match activation {
        // As the GPU's maximum of two numbers, which is 0 for a NaN and 0.
        Activation::Relu => x.max(0.0),
        Activation::Gelu => 0.5 * x * (1.0 + (FACTOR * (x + CUBIC * x * x * x)).tanh()),
    }
}

fn gelu_derivative(x: f32) -> f32 {
    let tanh = (FACTOR * (x + CUBIC * x * x * x)).tanh();
    let inner = FACTOR * (1.0 + 3.0 * CUBIC * x * x);
    // Far from 0, where tanh is 1 exactly, x may overflow the last term.
    let slope = 1.0 - tanh * tanh;
    0.5 * (1.0 + tanh) + if slope == 0.0 { 0.0 } else { 0.5 * x * slope * inner }
}
