//! Compares every family of ops with the peer, in small cases, which show the cost of a call, and
//! in large ones.
//!
//! The figure of a family is the geometric mean of its ratios. Its bar is 1.

use burn_backend::backend::ops::{
    ActivationOps, BoolTensorOps, ConvOptions, ConvTransposeOptions, FloatTensorOps, GridSampleOptions,
    IntTensorOps, InterpolateMode, InterpolateOptions, ModuleOps, UnfoldOptions,
};
use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_backend::{Backend, DType, Distribution, Scalar, Shape, Slice};
use burn_std::{BoolDType, FloatDType, IntDType};

use crate::Options;
use crate::cases::{Ours, Peer, compare, sync};
use crate::table::Row;

const BOOL: BoolDType = BoolDType::Native;
/// The two sizes of most cases, in elements: one that fits a core's caches, and 4 MiB of f32.
const SIZES: [usize; 2] = [1 << 12, 1 << 20];

/// How often a case repeats its op within one measurement. Small cases repeat it so often that the
/// cost of reading the clock is negligible.
fn times(elements: usize) -> usize {
    ((1 << 18) / elements.max(1)).clamp(1, 64)
}

fn floats<B: Backend>(device: &B::Device, dtype: DType, shape: &[usize]) -> FloatTensor<B> {
    B::float_random(Shape::from(shape.to_vec()), Distribution::Uniform(0.1, 0.9), device, dtype.into())
}

fn ints<B: Backend>(device: &B::Device, dtype: DType, shape: &[usize], below: usize) -> IntTensor<B> {
    let range = Distribution::Uniform(1.0, below as f64);
    B::int_random(Shape::from(shape.to_vec()), range, device, dtype.into())
}

fn bools<B: Backend>(device: &B::Device, shape: &[usize]) -> BoolTensor<B> {
    B::float_greater_elem(floats::<B>(device, DType::F32, shape), Scalar::Float(0.5), BOOL)
}

/// The ratios of a family's cases.
struct Family<'a> {
    name: &'static str,
    options: &'a Options,
    rows: &'a mut Vec<Row>,
    cases: Vec<(f64, f64)>,
}

impl Family<'_> {
    fn push(&mut self, case: String, times: usize, (ours, peer): (f64, f64)) {
        let (ours, peer) = (ours / times as f64, peer / times as f64);
        eprintln!("{}: {case}: {:.2}", self.name, ours / peer);
        self.cases.push((ours, peer));
        if self.options.verbose {
            let case = format!("{}: {case}", self.name);
            self.rows.push(Row { case, ours, peer: Some(peer), bar: f64::INFINITY });
        }
    }
}

impl Drop for Family<'_> {
    fn drop(&mut self) {
        let mean = |pick: fn(&(f64, f64)) -> f64| {
            (self.cases.iter().map(|case| pick(case).ln()).sum::<f64>() / self.cases.len() as f64).exp()
        };
        let case = format!("{}, {} cases", self.name, self.cases.len());
        self.rows.push(Row { case, ours: mean(|case| case.0), peer: Some(mean(|case| case.1)), bar: 1.0 });
    }
}

/// Times one body on both backends, repeated `$times` times in a measurement. The state is made
/// beforehand.
macro_rules! case {
    ($family:expr, $times:expr, $name:expr, |$B:ident, $device:ident| $setup:expr, |$state:ident| $body:expr) => {{
        let times = $times;
        macro_rules! side {
            ($backend:ty) => {{
                type $B = $backend;
                let device: <$B as burn_backend::backend::BackendTypes>::Device = Default::default();
                let $device = &device;
                let state = $setup;
                move || {
                    for _ in 0..times {
                        let $state = &state;
                        let _ = $body;
                    }
                    sync::<$B>(&device);
                }
            }};
        }
        let figures = compare($family.options, side!(Ours), side!(Peer));
        $family.push($name.to_string(), times, figures);
    }};
}

// These modules come after the macro, because they use it.
mod modules;
mod special;
mod tensors;

/// Runs every family.
pub(crate) fn families(options: &Options, rows: &mut Vec<Row>) {
    macro_rules! family {
        ($name:literal, |$family:ident| $body:expr) => {
            if options.families.as_deref().is_none_or(|named| named.is_empty() || named == $name) {
                let mut family = Family { name: $name, options, rows: &mut *rows, cases: Vec::new() };
                let $family = &mut family;
                $body;
            }
        };
    }
    family!("binary", |family| tensors::binary(family));
    family!("unary", |family| tensors::unary(family));
    family!("compare", |family| tensors::comparisons(family));
    family!("cast", |family| tensors::casts(family));
    family!("layout", |family| tensors::layout(family));
    family!("mask", |family| tensors::masks(family));
    family!("reduce", |family| tensors::reductions(family));
    family!("scan", |family| tensors::scans(family));
    family!("index", |family| tensors::indices(family));
    family!("sort", |family| tensors::sorts(family));
    family!("random", |family| tensors::random(family));
    family!("softmax", |family| modules::softmax(family));
    family!("norm", |family| modules::norm(family));
    family!("matmul", |family| modules::products(family));
    family!("conv", |family| modules::convolutions(family));
    family!("pool", |family| modules::pools(family));
    family!("interpolate", |family| modules::interpolations(family));
    family!("fft", |family| modules::transforms(family));
    family!("quantize", |family| special::quantization(family));
    family!("q_matmul", |family| special::quantized_products(family));
    family!("deform_conv", |family| special::deformable(family));
    family!("ctc", |family| special::sequences(family));
}
