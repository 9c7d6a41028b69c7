//! Random operands.

use burn_backend::ops::FloatTensorOps;
use burn_backend::{Backend, DType, Distribution, Shape};
use burn_rocm::{Rocm, RocmTensor};

/// Seeds the first device's random numbers, so that each run of a program has the same operands.
pub(crate) fn seed() {
    <Rocm as Backend>::seed(&Default::default(), 1);
}

/// A tensor of new random numbers in [-0.5, 0.5) on the first device.
pub(crate) fn drawn(shape: &[usize], dtype: DType) -> RocmTensor {
    let (shape, uniform) = (Shape::from(shape.to_vec()), Distribution::Uniform(-0.5, 0.5));
    <Rocm as FloatTensorOps<Rocm>>::float_random(shape, uniform, &Default::default(), dtype.into())
}
