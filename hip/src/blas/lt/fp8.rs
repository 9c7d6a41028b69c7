//! Products of fp8.

use std::sync::Arc;

use super::calls::Pointers;
use super::problem::LtProblem;
use super::{BlasLt, LtAnswer, VectorView};
use crate::device::Device;
use crate::memory::span::Span;
use crate::{Buffer, DType, Error, Result, carry_faults};

/// A type of fp8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8 {
    /// OCP's E4M3.
    E4M3,
    /// OCP's E5M2.
    E5M2,
    /// E4M3 of gfx942.
    E4M3Fnuz,
    /// E5M2 of gfx942.
    E5M2Fnuz,
}

/// A product `out = (x_scale x) (weight_scale weight)^T` of packed matrices, `x [rows, inputs]` and
/// `weight [outs, inputs]` of fp8. Sums are f32. `out` may overlap no other operand.
#[derive(Clone, Copy)]
pub struct Fp8Product<'a> {
    /// The types of `x` and of the weight.
    pub types: [Fp8; 2],
    /// rows, inputs, outs.
    pub sizes: [usize; 3],
    /// The codes of `x`.
    pub x: VectorView<'a>,
    /// The weight's codes.
    pub weight: VectorView<'a>,
    /// The scales of `x` and of the weight, an f32 each. hipBLASLt may multiply them by each other first.
    pub scales: [VectorView<'a>; 2],
    /// The type of the result: f32, f16 or bf16.
    pub dtype: DType,
    /// The result, `[rows, outs]`.
    pub out: VectorView<'a>,
}

impl BlasLt {
    /// Computes a product by the first algorithm that the heuristic returns, or says why none does.
    ///
    /// # Errors
    /// `Invalid` for views that reach past a buffer's end, or a result that overlaps an operand; an
    /// error of the device. hipBLASLt's own errors are answers.
    pub fn multiply_fp8(&self, product: &Fp8Product<'_>) -> Result<LtAnswer> {
        let (problem, pointers) = match self.resolve_fp8(product)? {
            Ok(resolved) => resolved,
            Err(why) => return Ok(LtAnswer::Refused(why.into())),
        };
        let handle = product.out.buffer.device().call(&self.handle)?;
        if let Err(why) = handle.algorithms(&problem, pointers.scales) {
            return Ok(LtAnswer::Refused(why));
        }
        // SAFETY: `resolve_fp8` checked the memory; the pool keeps it until the stream has passed the
        // call.
        match unsafe { handle.multiply(&problem, &pointers, 0) } {
            Ok(()) => {
                let [x_scale, weight_scale] = product.scales;
                let read: [&Buffer; 4] =
                    [product.x, product.weight, x_scale, weight_scale].map(|view| view.buffer);
                carry_faults(read, [product.out.buffer]);
                Ok(LtAnswer::Computed)
            }
            Err(Error::HipblasLt { call, name, .. }) => {
                Ok(LtAnswer::Refused(format!("{call} failed: {name}")))
            }
            Err(other) => Err(other),
        }
    }

    /// Whether the heuristic returns an algorithm for a product of two types: one with 64 rows, inputs and
    /// outputs to bf16.
    ///
    /// # Errors
    /// An error of the device.
    pub fn multiplies_fp8(&self, device: &Arc<Device>, types: [Fp8; 2]) -> Result<bool> {
        let Some(problem) = LtProblem::fp8(DType::BF16, types, [64; 3]) else { return Ok(false) };
        // The heuristic looks at whether there are scales, and does not read them.
        let scale = device.alloc(size_of::<f32>())?;
        let scales = [scale.as_ptr().cast_const(); 2];
        Ok(device.call(&self.handle)?.algorithms(&problem, scales).is_ok())
    }

    /// The problem and its memory, or why hipBLASLt does not take it.
    #[allow(clippy::type_complexity)]
    fn resolve_fp8(
        &self,
        product: &Fp8Product<'_>,
    ) -> Result<std::result::Result<(LtProblem, Pointers), &'static str>> {
        const OP: &str = "hipblaslt fp8";
        let Fp8Product { types, sizes, x, weight, scales, dtype, out } = *product;
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Ok(Err("hipBLASLt does not have the dtype here"));
        }
        if sizes.contains(&0) {
            return Ok(Err("hipBLASLt takes no empty product"));
        }
        let Some(problem) = LtProblem::fp8(dtype, types, sizes) else {
            return Ok(Err("hipBLASLt gets only sizes of 31 bits"));
        };
        let [rows, inputs, outs] = sizes;
        let span = |view: VectorView<'_>, elements: [usize; 2], size: usize| {
            let overflow = || Error::invalid(OP, "a view that fits memory", format!("{sizes:?}"));
            let bytes = elements[0].checked_mul(elements[1]).and_then(|all| all.checked_mul(size));
            let offset = view.offset.checked_mul(size).ok_or_else(overflow)?;
            Span::new(OP, self.device, view.buffer, offset, bytes.ok_or_else(overflow)?)
        };
        let (x, weight) = (span(x, [rows, inputs], 1)?, span(weight, [outs, inputs], 1)?);
        let [x_scale, weight_scale] = scales.map(|scale| span(scale, [1, 1], size_of::<f32>()));
        let (x_scale, weight_scale) = (x_scale?, weight_scale?);
        let out =
            span(out, [rows, outs], dtype.size())?.apart_from(OP, &[x, weight, x_scale, weight_scale])?;
        let pointers = Pointers {
            first: weight.ptr,
            second: x.ptr,
            onto: out.ptr,
            out: out.ptr,
            bias: std::ptr::null_mut(),
            before: std::ptr::null_mut(),
            scales: [weight_scale.ptr, x_scale.ptr].map(<*mut _>::cast_const),
        };
        match pointers.are_aligned() {
            true => Ok(Ok((problem, pointers))),
            false => Ok(Err("hipBLASLt gets only tensors that begin at multiples of 16 bytes")),
        }
    }
}
