//! Weights that Burn quantised.

use burn_std::DType;
use hip::Error as RocmError;

use super::super::quantized::quantize::unpacked;
use super::super::transfer::read;
use super::{GroupScales, GroupZeros, GroupedWeights, WeightParts};
use crate::burn;
use crate::error::{invalid, unsupported_with};
use crate::qtensor::RocmQTensor;

const OP: &str = "quantised weights";

impl WeightParts {
    /// A weight `[outs, inputs]` that Burn quantised: with one scale, or with blocks along the
    /// inputs. Values of 2 bits are stored in 4. Waits for the device.
    ///
    /// # Errors
    /// `Invalid` for another rank; `Unsupported` for blocks that are no multiple of 32 or do not
    /// divide a row, and for views of blocks other than their own order; an error of the device.
    pub fn of_burn(tensor: &RocmQTensor) -> Result<Self, RocmError> {
        let &[outs, inputs] = tensor.dims() else {
            return invalid(OP, "[outs, inputs]", format!("{:?}", tensor.dims()));
        };
        let refused = |what: String| unsupported_with(OP, DType::QFloat(*tensor.scheme_of()), what);
        let block = tensor.format().block;
        if let Some(block) = block {
            if block == 0 || !inputs.is_multiple_of(block) || !block.is_multiple_of(32) {
                return refused(format!("blocks of {block} values in rows of {inputs}"));
            }
            if !tensor.layout().is_contiguous() || tensor.layout().offset() != 0 {
                return refused("a view of blocks".into());
            }
        }
        let data = read(unpacked(OP, tensor)?)?;
        let codes: &[u8] = burn::bytes(&data);
        let data = read(tensor.scales().clone())?;
        let all: Vec<f32> = bytemuck::pod_collect_to_vec(burn::bytes(&data));
        let count = block.map_or(outs, |block| outs * inputs / block);
        let scales = match block {
            None => all.first().map_or(Vec::new(), |&scale| vec![scale; outs]),
            Some(_) => all.get(..count).map_or(Vec::new(), <[f32]>::to_vec),
        };
        let (bits, zero) = if tensor.format().range.1 > 7.0 { (8, 128u8) } else { (4, 8) };
        let weights = GroupedWeights {
            shape: [outs, inputs],
            bits,
            group: block,
            scales: GroupScales::F32(scales),
            zeros: GroupZeros::All(zero),
            order: None,
        };
        Self::grouped(weights, |out, input| codes[out * inputs + input].wrapping_add(zero))
    }
}
