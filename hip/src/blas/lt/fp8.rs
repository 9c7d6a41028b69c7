//! Products of fp8.

use std::sync::Arc;

use super::calls::Pointers;
use super::problem::{Fp8, LtProblem};
use super::{BlasLt, LtAnswer, VectorView};
use crate::device::Device;
use crate::memory::span::Span;
use crate::workarounds::chip;
use crate::{Buffer, DType, Error, Result, carry_faults};

/// Why a chip multiplies no fp8 of these types. hipBLASLt may not know: that of ROCm 6.3 treats OCP's types and FNUZ
/// as one, so its heuristic takes OCP's on gfx942, whose instructions then read the codes as FNUZ
/// (`hip2TensileType` in its `tensile_host.cpp`).
fn foreign(arch: &str, types: [Fp8; 2]) -> Option<&'static str> {
    let chip = chip(arch);
    let has_fnuz = matches!(chip, "gfx940" | "gfx941" | "gfx942");
    let fnuz = types.map(|ty| matches!(ty, Fp8::E4M3Fnuz | Fp8::E5M2Fnuz));
    if has_fnuz && fnuz.contains(&false) {
        return Some("the chip multiplies only FNUZ's types of fp8");
    }
    // NVIDIA's library refuses FNUZ itself, and the CPU device multiplies it.
    (chip.starts_with("gfx") && !has_fnuz && fnuz.contains(&true))
        .then_some("only gfx940, gfx941 and gfx942 multiply FNUZ's types of fp8")
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
                let why = format!("{call} failed: {name}");
                // A product that fails in a capture may work outside it.
                if product.out.buffer.device().captures.here().is_none() {
                    handle.refuse(&problem, why.clone());
                }
                Ok(LtAnswer::Refused(why))
            }
            Err(other) => Err(other),
        }
    }

    /// Whether the chip has the types, and the heuristic returns an algorithm for a product of them: one with 64
    /// rows, inputs and outputs to bf16.
    ///
    /// # Errors
    /// An error of the device.
    pub fn multiplies_fp8(&self, device: &Arc<Device>, types: [Fp8; 2]) -> Result<bool> {
        if foreign(&device.info().arch, types).is_some() {
            return Ok(false);
        }
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
        if let Some(why) = foreign(&out.buffer.device().info().arch, types) {
            return Ok(Err(why));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chips_multiply_their_own_family() {
        use Fp8::*;
        for (arch, ocp, fnuz) in [
            ("gfx940", false, true),
            ("gfx941", false, true),
            ("gfx942:sramecc+:xnack-", false, true),
            ("gfx90a", true, false),
            ("gfx950:sramecc+:xnack-", true, false),
            ("gfx1201", true, false),
            ("sm_90", true, true),
            ("cpu-lockstep", true, true),
        ] {
            let has = |types| foreign(arch, types).is_none();
            for [x, weight] in [[0, 0], [0, 1], [1, 0], [1, 1]] {
                assert_eq!(has([[E4M3, E5M2][x], [E4M3, E5M2][weight]]), ocp, "OCP's on {arch}");
                let types = [[E4M3Fnuz, E5M2Fnuz][x], [E4M3Fnuz, E5M2Fnuz][weight]];
                assert_eq!(has(types), fnuz, "FNUZ on {arch}");
            }
            assert_eq!(has([E4M3, E4M3Fnuz]), ocp && fnuz, "one of each on {arch}");
            assert_eq!(has([E4M3Fnuz, E4M3]), ocp && fnuz, "one of each on {arch}");
        }
    }
}
