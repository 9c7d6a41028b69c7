//! Tensors of fp8 with one scale.

use burn_backend::Scalar;
use burn_std::DType;
use hip::{Error as RocmError, Template};

use super::super::copy::packed;
use super::super::create::full_on;
use super::super::launch::{views, views_to};
use super::super::qweight::narrow_type;
use super::super::view::reshape;
use super::{Fp8Type, fp8_decode};
use crate::arg::Arg;
use crate::error::invalid;
use crate::tensor::{RocmTensor, one_device};

/// A tensor of fp8. Each number is the value of a code times the scale.
#[derive(Clone, Debug)]
pub struct Fp8Tensor {
    ty: Fp8Type,
    codes: RocmTensor,
    scale: RocmTensor,
}

/// The least elements of a part, of which one block finds the greatest magnitude.
const PART: usize = 1024;

impl Fp8Tensor {
    /// `x` in fp8. The scale makes the greatest finite magnitude of `x` the greatest number of the type: it is
    /// their quotient, but at least 2^-126, and 1 if all is 0. Infinities and NaN get the code that
    /// [`Fp8Type::encode`] without `saturate` gives them, and do not count for the scale. So they change no other
    /// number.
    ///
    /// # Errors
    /// `Unsupported` for a dtype other than f32, f16 and bf16; an error of the device.
    pub fn quantize(x: RocmTensor, ty: Fp8Type) -> Result<Self, RocmError> {
        const OP: &str = "fp8_quantize";
        let kernel = Template::fp8_extent.ty(narrow_type(OP, &x)?);
        let x = packed(x)?;
        let n = x.len();
        let device = x.hip_device();
        if n == 0 {
            let scale = full_on(device, [1], Scalar::Float(1.0), DType::F32)?;
            return Ok(Self {
                ty,
                codes: RocmTensor::empty(device, x.layout().shape().clone(), DType::U8)?,
                scale,
            });
        }
        let parts = (4 * device.info().compute_units as usize).clamp(1, (n / PART).max(1));
        let extents = RocmTensor::empty(device, [parts], DType::F32)?;
        let scale = RocmTensor::empty(device, [1], DType::F32)?;
        let dims = [Arg::U64(parts as u64), Arg::U64(n as u64)];
        views(OP, device, kernel, device.grid_rows(parts, n / parts), &dims, &[Some(&x)], &[], &extents)?;
        let codes = codes(OP, &x, ty, &extents, parts, Some(&scale))?;
        Ok(Self { ty, codes, scale })
    }

    /// `x` in fp8, with a scale (f32, `[1]`). Numbers beyond the type's greatest become the greatest. Infinities
    /// and NaN: as for [`quantize`](Self::quantize).
    ///
    /// # Errors
    /// `Invalid` for a scale of another shape, dtype or device; as for [`quantize`](Self::quantize).
    pub fn quantize_by(x: RocmTensor, ty: Fp8Type, scale: RocmTensor) -> Result<Self, RocmError> {
        const OP: &str = "fp8_quantize";
        let scale = one_scale(OP, scale)?;
        one_device(OP, &[&x, &scale])?;
        narrow_type(OP, &x)?;
        let codes = codes(OP, &packed(x)?, ty, &scale, 0, None)?;
        Ok(Self { ty, codes, scale })
    }

    /// A tensor of codes (u8) and a scale (f32, `[1]`).
    ///
    /// # Errors
    /// `Invalid` for another dtype, for a scale of another shape, and for several devices.
    pub fn of_codes(ty: Fp8Type, codes: RocmTensor, scale: RocmTensor) -> Result<Self, RocmError> {
        const OP: &str = "fp8 tensor";
        if codes.dtype_of() != DType::U8 {
            return invalid(OP, "codes of u8", codes.dtype_of().name());
        }
        let scale = one_scale(OP, scale)?;
        one_device(OP, &[&codes, &scale])?;
        Ok(Self { ty, codes: packed(codes)?, scale })
    }

    /// The type.
    pub fn ty(&self) -> Fp8Type {
        self.ty
    }

    /// The sizes of the axes.
    pub fn dims(&self) -> &[usize] {
        self.codes.dims()
    }

    /// The codes, u8, in row-major order.
    pub fn codes(&self) -> &RocmTensor {
        &self.codes
    }

    /// The scale, f32, `[1]`.
    pub fn scale(&self) -> &RocmTensor {
        &self.scale
    }

    /// The numbers.
    ///
    /// # Errors
    /// `Unsupported` for a dtype other than f32, f16 and bf16; an error of the device.
    pub fn dequantize(&self, dtype: DType) -> Result<RocmTensor, RocmError> {
        let flat = reshape(self.codes.clone(), &[1, self.codes.len()])?;
        reshape(fp8_decode(flat, self.ty, Some(self.scale.clone()), dtype)?, self.dims())
    }
}

/// A scale, packed.
fn one_scale(op: &'static str, scale: RocmTensor) -> hip::Result<RocmTensor> {
    if scale.dims() != [1] || scale.dtype_of() != DType::F32 {
        let found = format!("{:?} of {}", scale.dims(), scale.dtype_of().name());
        return invalid(op, "a scale [1] of f32", found);
    }
    packed(scale)
}

/// The codes of a packed tensor. With `parts`, `extents` has the greatest magnitudes of as many parts, and the
/// scale is stored; else it has the scale.
fn codes(
    op: &'static str,
    x: &RocmTensor,
    ty: Fp8Type,
    extents: &RocmTensor,
    parts: usize,
    scale: Option<&RocmTensor>,
) -> hip::Result<RocmTensor> {
    let device = x.hip_device();
    let out = RocmTensor::empty(device, x.layout().shape().clone(), DType::U8)?;
    let kernel = Template::fp8_quantize.functor(ty.functor()).ty(narrow_type(op, x)?);
    let greatest = ty.decode(ty.greatest());
    let dims = [Arg::U64(x.len() as u64), Arg::U64(parts as u64), Arg::F32(greatest)];
    let inputs = [Some(x), Some(extents)];
    if !out.is_empty() {
        views_to(op, device, kernel, device.grid(x.len()), &dims, &inputs, &[], &[scale, Some(&out)])?;
    }
    Ok(out)
}
