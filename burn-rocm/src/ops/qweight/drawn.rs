//! Weights whose codes the device draws, to measure speed without a checkpoint.

use burn_backend::Distribution;
use burn_std::DType;

use super::parts::{CHUNK, checked};
use super::{QuantWeight, WeightFormat};
use crate::device::RocmDevice;
use crate::error::invalid;
use crate::ops::create::full_on;
use crate::ops::random::random;
use crate::tensor::RocmTensor;

const OP: &str = "QuantWeight::random";

impl QuantWeight {
    /// A weight with uniform random codes of 4 or 8 bits, in groups of `group` inputs with f16
    /// scales. Each 4-bit group has its own zero point, as when floats are rounded. The
    /// mean is 0, and the standard deviation is `deviation`, rounded with the scale. The codes
    /// never leave the device, and take the numbers of its random stream.
    ///
    /// # Errors
    /// `Invalid` for a shape without elements, other bits, a group that is no power of two from 32,
    /// and a deviation whose scale is no normal f16; an error of the device.
    pub fn random(
        shape: [usize; 2],
        bits: u32,
        group: usize,
        deviation: f64,
        device: &RocmDevice,
    ) -> hip::Result<Self> {
        checked(shape)?;
        let [outs, inputs] = shape;
        let (format, zero) = match bits {
            4 => (WeightFormat::Int4, 0),
            8 => (WeightFormat::Int8, 128),
            _ => return invalid(OP, "4 or 8 bits", format!("{bits} bits")),
        };
        if group < CHUNK || !group.is_power_of_two() {
            return invalid(OP, "groups of a power of two from 32", group.to_string());
        }
        // The deviation of whole numbers below 2^bits that are all as likely.
        let scale = deviation / ((f64::from(1u32 << (2 * bits)) - 1.0) / 12.0).sqrt();
        if !(6.2e-5..65504.0).contains(&scale) {
            return invalid(OP, "a deviation whose scale is a normal f16", deviation.to_string());
        }
        let padded = inputs.next_multiple_of(CHUNK);
        let groups = if group < inputs { inputs.div_ceil(group) } else { 1 };
        let shift = if group < inputs { (group / CHUNK).trailing_zeros() } else { 31 };
        let bytes = |count: usize, low: f64, high: f64| -> hip::Result<RocmTensor> {
            random(device, [count].into(), Distribution::Uniform(low, high), DType::U8)
        };
        // Half of the groups have 7 as their 0 and half 8, so the mean is 0.
        let extra = if bits == 4 { Some(bytes(outs * groups, 7.0, 9.0)?) } else { None };
        Ok(Self {
            format,
            shape,
            codes: bytes(outs * padded * bits as usize / 8, 0.0, 256.0)?,
            upper: None,
            scales: full_on(&device.open()?, [outs * groups], scale.into(), DType::F16)?,
            extra,
            order: None,
            kind: 0,
            zero,
            groups,
            shift,
        })
    }
}
