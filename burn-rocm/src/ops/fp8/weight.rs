//! Weights of fp8.

use std::sync::Arc;

use burn_std::DType;
use hip::{
    BlasLt, Device, Error as RocmError, Fp8Product, Functor, LtAnswer, Route, VectorView, matmul_route,
};

use super::super::binary::binary;
use super::super::cast::cast;
use super::super::matmul::{Request, product};
use super::super::qweight::{by_slabs, narrow_type, rows_of};
use super::super::view::{narrow, reshape};
use super::{Fp8Tensor, Fp8Type, fp8_decode};
use crate::device::RocmDevice;
use crate::dtype::kernel_type;
use crate::error::{invalid, unsupported};
use crate::tensor::{RocmTensor, one_device, one_dtype};

/// What products with a weight of fp8 do with their inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Fp8Inputs {
    /// They stay as they are, and the weight is converted to floats.
    #[default]
    Floats,
    /// They become fp8, each time with the scale of their greatest magnitude ([`Fp8Tensor::quantize`]).
    Dynamic,
    /// They become fp8 with this scale ([`Fp8Tensor::quantize_by`]). It is the scale for the type in which the weight
    /// was given: if the weight became FNUZ, the scale doubles, so that inputs keep their range.
    Scale(f32),
}

/// [`Fp8Inputs`] on the device.
#[derive(Clone, Debug)]
enum Inputs {
    Floats,
    Dynamic,
    Scale(RocmTensor),
}

/// A weight `[outs, inputs]` of fp8 with a scale for each output. It is frozen.
#[derive(Clone, Debug)]
pub struct Fp8Weight {
    ty: Fp8Type,
    codes: RocmTensor,
    /// `[outs]`
    scales: RocmTensor,
    /// `[1]`: the scale of all outputs, or 1 if each has its own.
    scale: RocmTensor,
    each_has_its_own: bool,
    /// What the numbers of the type given are in units of those of `ty`: 2 if the weight became FNUZ, else 1. Scales
    /// of the type given must be multiplied by it.
    converted: f32,
    inputs: Inputs,
}

fn floats_on(device: &Arc<Device>, floats: &[f32]) -> hip::Result<RocmTensor> {
    RocmTensor::new(device.upload(bytemuck::cast_slice(floats))?, [floats.len()].into(), DType::F32)
}

impl Fp8Weight {
    /// Copies a weight to a device: codes `[outs, inputs]` in row-major order, and a scale for each
    /// output, or one for all.
    ///
    /// # Errors
    /// `Invalid` for another number of codes or scales; an error of the device.
    pub fn upload(
        ty: Fp8Type,
        shape: [usize; 2],
        codes: &[u8],
        scales: &[f32],
        device: &RocmDevice,
    ) -> Result<Self, RocmError> {
        const OP: &str = "fp8 weights";
        let [outs, inputs] = shape;
        let fits = outs.checked_mul(inputs).is_some_and(|all| all > 0 && all == codes.len());
        if !fits || ![1, outs].contains(&scales.len()) {
            let found = format!("{} codes and {} scales", codes.len(), scales.len());
            return invalid(OP, format!("{shape:?} codes, and 1 or {outs} scales"), found);
        }
        let device: &Arc<Device> = &device.open()?;
        // Makes the handle now, because a capture can't. If it can't be made, products say so.
        let _ = library(device);
        let all: Vec<f32> = scales.iter().copied().cycle().take(outs).collect();
        let one = if let [one] = scales { *one } else { 1.0 };
        Ok(Self {
            ty,
            codes: RocmTensor::new(device.upload(codes)?, shape.into(), DType::U8)?,
            scales: floats_on(device, &all)?,
            scale: floats_on(device, &[one])?,
            each_has_its_own: scales.len() > 1,
            converted: 1.0,
            inputs: Inputs::Floats,
        })
    }

    /// [`upload`](Self::upload) of OCP's codes as FNUZ, the type that gfx942 multiplies: the codes
    /// stay, and scales double, also that of [`Fp8Inputs::Scale`].
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub fn upload_as_fnuz(
        ty: Fp8Type,
        shape: [usize; 2],
        codes: &[u8],
        scales: &[f32],
        device: &RocmDevice,
    ) -> Result<Self, RocmError> {
        let factor = if ty.fnuz() == ty { 1.0 } else { 2.0 };
        let codes: Vec<u8> = codes.iter().map(|&code| ty.to_fnuz(code)).collect();
        let scales: Vec<f32> = scales.iter().map(|scale| scale * factor).collect();
        let weight = Self::upload(ty.fnuz(), shape, &codes, &scales, device)?;
        Ok(Self { converted: factor, ..weight })
    }

    /// [`upload`](Self::upload) in the type that the device multiplies: as FNUZ if hipBLASLt multiplies that and
    /// not OCP's, as on gfx942. A device without products of fp8 keeps the type.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub fn upload_native(
        ty: Fp8Type,
        shape: [usize; 2],
        codes: &[u8],
        scales: &[f32],
        device: &RocmDevice,
    ) -> Result<Self, RocmError> {
        let open: &Arc<Device> = &device.open()?;
        let multiplies = |ty: Fp8Type| match library(open) {
            Ok(lt) => lt.multiplies_fp8(open, [ty.of_inputs(), ty].map(Fp8Type::library)),
            Err(_) => Ok(false),
        };
        match native(ty, multiplies)? {
            own if own == ty => Self::upload(ty, shape, codes, scales, device),
            _ => Self::upload_as_fnuz(ty, shape, codes, scales, device),
        }
    }

    /// The same weight. Its products treat their inputs in this way.
    ///
    /// # Errors
    /// `Invalid` for a scale that is not finite and positive, or that doubles beyond f32; an error of the device.
    pub fn with_inputs(self, inputs: Fp8Inputs) -> Result<Self, RocmError> {
        let device = self.codes.hip_device();
        let inputs = match inputs {
            Fp8Inputs::Floats => Inputs::Floats,
            Fp8Inputs::Dynamic => Inputs::Dynamic,
            Fp8Inputs::Scale(scale) if (scale * self.converted).is_finite() && scale > 0.0 => {
                Inputs::Scale(floats_on(device, &[scale * self.converted])?)
            }
            Fp8Inputs::Scale(scale) => {
                return invalid("fp8 inputs", "a finite positive scale", scale.to_string());
            }
        };
        Ok(Self { inputs, ..self })
    }

    /// The type.
    pub fn ty(&self) -> Fp8Type {
        self.ty
    }

    /// The device.
    pub fn device(&self) -> RocmDevice {
        self.codes.rocm_device()
    }

    /// `[outs, inputs]`.
    pub fn shape(&self) -> [usize; 2] {
        [self.codes.dims()[0], self.codes.dims()[1]]
    }

    /// `count` rows from `first` on as floats.
    fn floats(&self, first: usize, count: usize, dtype: DType) -> hip::Result<RocmTensor> {
        let rows = |tensor: &RocmTensor| narrow(tensor.clone(), 0, first, count);
        fp8_decode(rows(&self.codes)?, self.ty, Some(rows(&self.scales)?), dtype)
    }

    /// All weights as floats.
    ///
    /// # Errors
    /// `Unsupported` for a dtype other than f32, f16 and bf16; an error of the device.
    pub fn dequantize(&self, dtype: DType) -> Result<RocmTensor, RocmError> {
        self.floats(0, self.shape()[0], dtype)
    }

    /// `x` times the transposed weight, plus the bias. [`Fp8Inputs`] decides whether `x` becomes fp8 first.
    ///
    /// # Shapes
    /// - `x`: `[.., inputs]`; `bias`: `[outs]`; output: `[.., outs]`
    ///
    /// # Errors
    /// `Invalid` if shapes, dtypes or devices do not fit; `Unsupported` for a dtype other than f32,
    /// f16 and bf16; an error of the device.
    pub fn linear(&self, x: RocmTensor, bias: Option<RocmTensor>) -> Result<RocmTensor, RocmError> {
        const OP: &str = "fp8_linear";
        one_device(OP, &[&x, &self.codes])?;
        narrow_type(OP, &x)?;
        let [outs, inputs] = self.shape();
        if let Some(bias) = &bias {
            one_device(OP, &[&x, bias])?;
            one_dtype(OP, &[&x, bias])?;
            if bias.dims() != [outs] {
                return invalid(OP, format!("a bias of shape [{outs}]"), format!("{:?}", bias.dims()));
            }
        }
        let dtype = x.dtype_of();
        let (x, mut shape) = rows_of(OP, x, inputs)?;
        shape.push(outs);
        let out = match &self.inputs {
            Inputs::Floats => self.by_conversion(OP, x)?,
            Inputs::Dynamic => self.multiply(&Fp8Tensor::quantize(x, self.ty.of_inputs())?, dtype)?,
            Inputs::Scale(scale) => {
                self.multiply(&Fp8Tensor::quantize_by(x, self.ty.of_inputs(), scale.clone())?, dtype)?
            }
        };
        let out = reshape(out, &shape)?;
        match bias {
            Some(bias) => binary(OP, Functor::Add, out, bias),
            None => Ok(out),
        }
    }

    /// `x` times the transposed weight. hipBLASLt multiplies the codes if its heuristic has an algorithm for the
    /// types and sizes. Otherwise `x` and up to 32 MiB of weights at a time become floats of `dtype`, which
    /// rounds them, or of f32 for f16, whose range may not hold them. The product of the scale of `x` and that of the
    /// weight must be a normal f32.
    ///
    /// If each output has a scale of its own, hipBLASLt's result is in f32, and a kernel multiplies it by the
    /// scales.
    ///
    /// # Shapes
    /// - `x`: `[.., inputs]`; output: `[.., outs]`
    ///
    /// # Errors
    /// `Invalid` if shapes or devices do not fit; `Unsupported` for a dtype other than f32, f16 and bf16; an
    /// error of the device.
    pub fn multiply(&self, x: &Fp8Tensor, dtype: DType) -> Result<RocmTensor, RocmError> {
        const OP: &str = "fp8_linear";
        one_device(OP, &[x.codes(), &self.codes])?;
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return unsupported(OP, dtype);
        }
        let [outs, inputs] = self.shape();
        let (codes, mut shape) = rows_of(OP, x.codes().clone(), inputs)?;
        shape.push(outs);
        let out = match self.by_library(x, &codes, dtype)? {
            Some(out) => out,
            None => {
                // f16 may not hold numbers whose products it holds.
                let between = if dtype == DType::F16 { DType::F32 } else { dtype };
                cast(self.by_conversion(OP, reshape(x.dequantize(between)?, codes.dims())?)?, dtype)?
            }
        };
        reshape(out, &shape)
    }

    /// The product of the codes `[rows, inputs]`, if hipBLASLt computes it. If not, the summary says why.
    fn by_library(&self, x: &Fp8Tensor, codes: &RocmTensor, dtype: DType) -> hip::Result<Option<RocmTensor>> {
        let device = codes.hip_device();
        let ([outs, inputs], rows) = (self.shape(), codes.dims()[0]);
        let of_library = if self.each_has_its_own { DType::F32 } else { dtype };
        let out = RocmTensor::empty(device, [rows, outs], of_library)?;
        let answer = match library(device) {
            Ok(lt) => lt.multiply_fp8(&Fp8Product {
                types: [x.ty(), self.ty].map(Fp8Type::library),
                sizes: [rows, inputs, outs],
                x: vector(codes),
                weight: vector(&self.codes),
                scales: [vector(x.scale()), vector(&self.scale)],
                dtype: kernel_type(of_library)?,
                out: vector(&out),
            })?,
            Err(error) => LtAnswer::Refused(error.to_string()),
        };
        match answer {
            LtAnswer::Computed if self.each_has_its_own => {
                let scaled = binary("fp8_linear", Functor::Mul, out, self.scales.clone())?;
                cast(scaled, dtype).map(Some)
            }
            LtAnswer::Computed => Ok(Some(out)),
            LtAnswer::Passed => Ok(None),
            LtAnswer::Refused(why) => {
                hip::trace::fell_back(|| why);
                Ok(None)
            }
        }
    }

    /// `x [rows, inputs]` times the weight as floats.
    fn by_conversion(&self, op: &'static str, x: RocmTensor) -> hip::Result<RocmTensor> {
        let (shape, dtype) = (self.shape(), x.dtype_of());
        let out = RocmTensor::empty(x.hip_device(), [x.dims()[0], shape[0]], dtype)?;
        if !out.is_empty() {
            by_slabs(op, x, shape, &out, |first, count| self.floats(first, count, dtype))?;
        }
        Ok(out)
    }

    /// The gradient of [`linear`](Self::linear) with respect to `x`.
    ///
    /// # Shapes
    /// - `grad`: `[.., outs]`; output: `[.., inputs]`
    ///
    /// # Errors
    /// As for [`linear`](Self::linear).
    pub fn linear_x_backward(&self, grad: RocmTensor) -> Result<RocmTensor, RocmError> {
        const OP: &str = "fp8_linear_x_backward";
        one_device(OP, &[&grad, &self.codes])?;
        narrow_type(OP, &grad)?;
        let [outs, inputs] = self.shape();
        let (grad, mut shape) = rows_of(OP, grad, outs)?;
        shape.push(inputs);
        let floats = self.dequantize(grad.dtype_of())?;
        reshape(product(Request::gradient(OP, 1.0), grad, floats)?, &shape)
    }
}

/// The type in which a weight of type `ty` is uploaded.
fn native(ty: Fp8Type, multiplies: impl Fn(Fp8Type) -> hip::Result<bool>) -> hip::Result<Fp8Type> {
    Ok(if ty != ty.fnuz() && !multiplies(ty)? && multiplies(ty.fnuz())? { ty.fnuz() } else { ty })
}

/// hipBLASLt, unless the settings want products by this project's kernels.
fn library(device: &Device) -> hip::Result<&BlasLt> {
    match matmul_route()? {
        Route::Own => Err(RocmError::NotAvailable {
            reason: "setting BURN_ROCM_MATMUL=own".into(),
            searched: Vec::new(),
        }),
        _ => device.blas_lt_fp8(),
    }
}

/// A packed tensor's elements.
fn vector(tensor: &RocmTensor) -> VectorView<'_> {
    VectorView { buffer: tensor.buffer(), offset: tensor.layout().offset() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_become_fnuz_where_only_that_is_multiplied() {
        use Fp8Type::*;
        let fnuz: &[Fp8Type] = &[E4M3Fnuz, E5M2Fnuz];
        let both: &[Fp8Type] = &[E4M3, E4M3Fnuz];
        for (multiplied, ty, expected) in [
            (fnuz, E4M3, E4M3Fnuz),
            (fnuz, E5M2, E5M2Fnuz),
            (fnuz, E4M3Fnuz, E4M3Fnuz),
            (both, E4M3, E4M3),
            (both, E5M2, E5M2),
            (&[], E4M3, E4M3),
        ] {
            let found = native(ty, |asked| Ok(multiplied.contains(&asked)));
            assert_eq!(found, Ok(expected), "{ty:?} where {multiplied:?} are multiplied");
        }
    }
}
