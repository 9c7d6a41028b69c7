//! What the kernels of products with few rows compute beside the product (`projection.h`).

use burn_std::DType;
use hip::Device;

use super::gate::Gate;
use crate::tensor::RocmTensor;

/// The input of a product that follows an RMS norm, where the norm is divided between two kernels.
#[derive(Clone, Debug)]
pub(crate) struct Scaled {
    /// The norm's inputs times its factor, `[rows, width]`.
    pub(crate) rows: RocmTensor,
    /// Sums of squares of the inputs, f32 `[parts, rows]`.
    pub(crate) squares: RocmTensor,
    pub(crate) epsilon: f64,
}

/// What is around the product of a launch, with operands that its kernel takes as they are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Around<'a> {
    /// The squares of [`Scaled`], and epsilon.
    pub(crate) squares: Option<(&'a RocmTensor, f64)>,
    pub(crate) bias: Option<&'a RocmTensor>,
    pub(crate) gate: Option<Gate>,
    pub(crate) residual: Option<&'a RocmTensor>,
    /// The factor, f32, and epsilon of a norm of the output.
    pub(crate) norm: Option<(&'a RocmTensor, f64)>,
}

/// The outputs of a launch.
pub(crate) struct Outputs {
    pub(crate) out: RocmTensor,
    pub(crate) scaled: Option<Scaled>,
}

impl<'a> Around<'a> {
    /// `Surroundings` of `projection.h`, for rows of `inputs`.
    pub(crate) fn numbers(&self, inputs: usize) -> [u32; 4] {
        let (parts, epsilon) =
            self.squares.map_or((0, 0.0), |(squares, epsilon)| (squares.dims()[0], epsilon));
        let inverse = 1.0 / inputs as f32;
        [self.gate.map_or(0, Gate::number), parts as u32, inverse.to_bits(), (epsilon as f32).to_bits()]
    }

    /// The kernel's optional inputs, in the order of its parameters.
    pub(crate) fn inputs(&self) -> [Option<&'a RocmTensor>; 4] {
        let of = |pair: Option<(&'a RocmTensor, f64)>| pair.map(|(tensor, _)| tensor);
        [of(self.squares), self.bias, self.residual, of(self.norm)]
    }

    /// How many tiles of `tile` rows of weights a launch has.
    pub(crate) fn tiles(&self, outs: usize, tile: usize) -> usize {
        if self.gate.is_some() { (outs / 2).div_ceil(tile / 2) } else { outs.div_ceil(tile) }
    }

    /// Memory for the outputs of a product with `outs` rows of weights, `tile` of them at a time.
    pub(crate) fn outputs(
        &self,
        device: &std::sync::Arc<Device>,
        rows: usize,
        outs: usize,
        tile: usize,
        dtype: DType,
    ) -> hip::Result<Outputs> {
        let width = if self.gate.is_some() { outs / 2 } else { outs };
        let out = RocmTensor::empty(device, [rows, width], dtype)?;
        let scaled = match self.norm {
            Some((_, epsilon)) => Some(Scaled {
                rows: out.empty_like()?,
                squares: RocmTensor::empty(device, [self.tiles(outs, tile), rows], DType::F32)?,
                epsilon,
            }),
            None => None,
        };
        Ok(Outputs { out, scaled })
    }
}

impl Outputs {
    /// In the order of the kernel's parameters.
    pub(crate) fn all(&self) -> [Option<&RocmTensor>; 3] {
        let scaled = self.scaled.as_ref();
        [Some(&self.out), scaled.map(|scaled| &scaled.rows), scaled.map(|scaled| &scaled.squares)]
    }
}
