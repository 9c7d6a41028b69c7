//! Inputs: data, and the layout through which an op sees it.

use crate::Random;
use burn_backend::tensor::{BoolTensor, Device, FloatTensor, IntTensor};
use burn_backend::{Backend, DType, Shape, Slice, TensorData};

/// The layout of an input in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Contiguous.
    Contiguous,
    /// Dims stored in reverse order.
    Permuted,
    /// Cut out of a larger tensor, every second element of the last dim.
    Sliced,
    /// Reversed along every dim.
    Flipped,
    /// One element (or row) repeated over the first dim by stride 0.
    Expanded,
}

impl View {
    /// Every view.
    pub const ALL: [Self; 5] =
        [Self::Contiguous, Self::Permuted, Self::Sliced, Self::Flipped, Self::Expanded];
}

/// Data and its view, the same on both backends.
#[derive(Clone, Debug)]
pub struct Input {
    base: TensorData,
    view: View,
    shape: Vec<usize>,
}

macro_rules! build {
    (
        $(#[$doc:meta])* $name:ident, $tensor:ident,
        $from:ident, $permute:ident, $slice:ident, $flip:ident, $expand:ident
    ) => {
        $(#[$doc])*
        pub fn $name<B: Backend>(&self, device: &Device<B>) -> $tensor<B> {
            let tensor = B::$from(self.base.clone(), device);
            let rank = self.shape.len();
            let axes: Vec<usize> = (0..rank).collect();
            match self.view {
                View::Contiguous => tensor,
                View::Permuted => B::$permute(tensor, &axes.iter().rev().copied().collect::<Vec<_>>()),
                View::Sliced => B::$slice(tensor, &sliced(&self.shape)),
                View::Flipped => B::$flip(tensor, &axes),
                View::Expanded => B::$expand(tensor, Shape::from(self.shape.clone())),
            }
        }
    };
}

fn sliced(shape: &[usize]) -> Vec<Slice> {
    let last = shape.len() - 1;
    let slice = |(d, &n): (usize, &usize)| {
        let (n, start) = (n as isize, 1);
        if d == last {
            Slice::new(start, Some(start + 2 * n), 2)
        } else {
            Slice::new(start, Some(start + n), 1)
        }
    };
    shape.iter().enumerate().map(slice).collect()
}

impl Input {
    /// Data of `dtype` for a tensor of `shape` seen through `view`; element values come from
    /// `value`.
    ///
    /// A tensor without elements can't be expanded, so it is made contiguous.
    pub fn new(shape: &[usize], dtype: DType, view: View, mut value: impl FnMut() -> f64) -> Self {
        let view = if view == View::Expanded && shape.contains(&0) { View::Contiguous } else { view };
        let base: Vec<usize> = match view {
            View::Contiguous | View::Flipped => shape.to_vec(),
            View::Permuted => shape.iter().rev().copied().collect(),
            View::Sliced => {
                let last = shape.len() - 1;
                shape.iter().enumerate().map(|(d, &n)| if d == last { 2 * n + 2 } else { n + 2 }).collect()
            }
            View::Expanded => shape.iter().enumerate().map(|(d, &n)| if d == 0 { 1 } else { n }).collect(),
        };
        let count = base.iter().product();
        let values: Vec<f64> = (0..count).map(|_| value()).collect();
        let base = TensorData::new(values, Shape::from(base)).convert_dtype(dtype);
        Self { base, view, shape: shape.to_vec() }
    }

    /// The same numbers in another dtype, through the same view.
    #[must_use]
    #[allow(dead_code)] // The tests for Burn 0.22 include this file too.
    pub fn converted(&self, dtype: DType) -> Self {
        Self { base: self.base.clone().convert_dtype(dtype), ..self.clone() }
    }

    /// The shape that the op sees.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    build!(
        /** The input as a float tensor. */
        float, FloatTensor, float_from_data, float_permute, float_slice, float_flip, float_expand
    );
    build!(
        /** The input as an integer tensor. */
        int, IntTensor, int_from_data, int_permute, int_slice, int_flip, int_expand
    );
    build!(
        /** The input as a bool tensor. */
        bool, BoolTensor, bool_from_data, bool_permute, bool_slice, bool_flip, bool_expand
    );
}

/// Uniform floats in `low..high`.
pub fn float(random: &Random, shape: &[usize], dtype: DType, view: View, low: f64, high: f64) -> Input {
    Input::new(shape, dtype, view, || random.uniform(low, high))
}

/// Uniform integers in `low..high`.
pub fn int(random: &Random, shape: &[usize], dtype: DType, view: View, low: i64, high: i64) -> Input {
    Input::new(shape, dtype, view, || (low + random.below((high - low) as usize) as i64) as f64)
}

/// Random bools.
pub fn mask(random: &Random, shape: &[usize], view: View) -> Input {
    Input::new(shape, DType::Bool(burn_std::BoolStore::Native), view, || random.below(2) as f64)
}
