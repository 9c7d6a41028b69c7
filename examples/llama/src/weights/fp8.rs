//! Matrices of fp8 in Hugging Face folders, which become floats when they are loaded.

use std::num::NonZero;
use std::thread;

use burn::tensor::{DType, TensorData};
use burn_rocm::fused::Fp8Type;
use safetensors::Dtype;

/// How the matrices of a checkpoint have their scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fp8 {
    /// The outputs and inputs of a block that shares a scale. Without blocks, all outputs share one
    /// scale, or each has its own.
    pub(super) block: Option<[usize; 2]>,
}

impl Fp8 {
    /// The last parts of the names of scales. Weights are multiplied by either.
    pub(super) const SCALES: [&str; 2] = ["weight_scale_inv", "weight_scale"];

    /// The last parts of the names of tensors beside a matrix that this program may leave unread:
    /// scales of activations, which stay floats here.
    pub(super) const UNREAD: [&str; 2] = ["input_scale", "activation_scale"];

    /// The outputs and inputs that a scale covers where the scales have this shape, or the text of
    /// the shapes that would fit.
    pub(super) fn covered(self, [outs, inputs]: [usize; 2], scales: &[usize]) -> Result<[usize; 2], String> {
        match (self.block, scales) {
            (Some([rows, columns]), _) => {
                let blocks = [outs.div_ceil(rows), inputs.div_ceil(columns)];
                if scales == blocks { Ok([rows, columns]) } else { Err(format!("{blocks:?}")) }
            }
            (None, [] | [1] | [1, 1]) => Ok([outs, inputs]),
            (None, [rows] | [rows, 1]) if *rows == outs => Ok([1, inputs]),
            (None, _) => Err(format!("[1] or [{outs}, 1]")),
        }
    }
}

/// The type of a file's elements, if it is OCP's fp8.
pub(super) fn fp8_type(dtype: Dtype) -> Option<Fp8Type> {
    match dtype {
        Dtype::F8_E4M3 => Some(Fp8Type::E4M3),
        Dtype::F8_E5M2 => Some(Fp8Type::E5M2),
        _ => None,
    }
}

/// A matrix of fp8 in a file.
#[derive(Debug)]
pub(super) struct Matrix<'a> {
    pub(super) ty: Fp8Type,
    /// `[outs, inputs]`.
    pub(super) shape: [usize; 2],
    pub(super) codes: &'a [u8],
    /// The outputs and inputs that a scale covers.
    pub(super) covered: [usize; 2],
    /// The bytes of the scales, and their type.
    pub(super) scales: (&'a [u8], DType),
}

impl Matrix<'_> {
    /// The weights in f32: the number of each code times its scale, rounded once. By all processors.
    pub(super) fn floats(&self) -> Vec<f32> {
        let ([outs, inputs], [rows, columns]) = (self.shape, self.covered);
        let (bytes, dtype) = self.scales;
        let count = bytes.len() / dtype.size();
        let scales = TensorData::from_bytes_vec(bytes.to_vec(), [count], dtype);
        let scales: Vec<f32> = scales.iter::<f32>().collect();
        let numbers: [f32; 256] = std::array::from_fn(|code| self.ty.decode(code as u8));
        let across = inputs.div_ceil(columns);
        let fill = |first: usize, values: &mut [f32], codes: &[u8]| {
            let matrix = values.chunks_exact_mut(inputs).zip(codes.chunks_exact(inputs));
            for (row, (values, codes)) in (first..).zip(matrix) {
                let scales = &scales[row / rows * across..][..across];
                for ((values, codes), scale) in
                    values.chunks_mut(columns).zip(codes.chunks(columns)).zip(scales)
                {
                    let scaled =
                        |(value, &code): (&mut f32, &u8)| *value = numbers[usize::from(code)] * scale;
                    values.iter_mut().zip(codes).for_each(scaled);
                }
            }
        };
        let mut values = vec![0.0; self.codes.len()];
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let share = outs.div_ceil(threads);
        thread::scope(|scope| {
            let parts = values.chunks_mut(share * inputs).zip(self.codes.chunks(share * inputs));
            for (part, (values, codes)) in parts.enumerate() {
                scope.spawn(move || fill(part * share, values, codes));
            }
        });
        values
    }
}
