//! A linear layer of a decoder with the norm before it, and the gate or sum and the norm after it.

use burn_backend::Scalar;
use burn_std::DType;
use hip::{Error as RocmError, Functor, Grid, Template};

use super::around::{Around, Outputs, Scaled};
use super::gate::{Gate, gated_halves};
use crate::arg::Arg;
use crate::error::invalid;
use crate::ops::binary::{binary, scalar};
use crate::ops::cast::cast;
use crate::ops::copy::packed;
use crate::ops::index::select;
use crate::ops::launch::{is_packed, views_to};
use crate::ops::linear::linear;
use crate::ops::norm::check_rows;
use crate::ops::norm::rms::rms_norm;
use crate::ops::qweight::{MOST_ROWS, QuantWeight, narrow_type, quant_linear};
use crate::ops::reduce::sum_dim;
use crate::ops::unary::unary;
use crate::ops::view::{narrow, reshape, swap_dims};
use crate::tensor::{RocmTensor, one_device, one_dtype};

const OP: &str = "projection";

/// The rows of weights of a block of `row_product.hip`: on GPUs, and on the CPU device.
const TILES: [usize; 2] = [8, 32];
/// The threads of a block of the kernel on GPUs.
const THREADS: u32 = 256;

/// The weight `[outs, inputs]` of a [`projection`].
#[derive(Clone, Copy, Debug)]
pub enum ProjectionWeight<'a> {
    /// Floats of the dtype of the input.
    Floats(&'a RocmTensor),
    /// Codes with scales.
    Quantised(&'a QuantWeight),
}

/// The input of a [`projection`].
#[derive(Clone, Debug)]
pub struct Projected(Input);

#[derive(Clone, Debug)]
enum Input {
    Whole(RocmTensor),
    /// The result of a norm that the product's kernel completes.
    Scaled(Scaled),
}

impl From<RocmTensor> for Projected {
    fn from(rows: RocmTensor) -> Self {
        Self(Input::Whole(rows))
    }
}

impl Projected {
    fn rows(&self) -> &RocmTensor {
        match &self.0 {
            Input::Whole(rows) | Input::Scaled(Scaled { rows, .. }) => rows,
        }
    }

    /// The rows, after the norm.
    ///
    /// # Errors
    /// An error of the device.
    pub fn into_rows(self) -> Result<RocmTensor, RocmError> {
        match self.0 {
            Input::Whole(rows) => Ok(rows),
            Input::Scaled(scaled) => completed(scaled),
        }
    }

    /// `count` rows from `first` on.
    ///
    /// # Errors
    /// `Invalid` for rows that don't exist.
    pub fn narrow(self, first: usize, count: usize) -> Result<Self, RocmError> {
        Ok(Self(match self.0 {
            Input::Whole(rows) => Input::Whole(narrow(rows, 0, first, count)?),
            Input::Scaled(Scaled { rows, squares, epsilon }) => Input::Scaled(Scaled {
                rows: narrow(rows, 0, first, count)?,
                squares: narrow(squares, 1, first, count)?,
                epsilon,
            }),
        }))
    }

    /// The rows at the indices, ints `[count]`.
    ///
    /// # Errors
    /// `Invalid` for indices of another shape or dtype; an error of the device.
    pub fn select(self, indices: RocmTensor) -> Result<Self, RocmError> {
        Ok(Self(match self.0 {
            Input::Whole(rows) => Input::Whole(select(OP, rows, 0, indices)?),
            Input::Scaled(Scaled { rows, squares, epsilon }) => Input::Scaled(Scaled {
                rows: select(OP, rows, 0, indices.clone())?,
                squares: select(OP, squares, 1, indices)?,
                epsilon,
            }),
        }))
    }
}

/// What a [`projection`] computes beside its product.
#[derive(Clone, Debug, Default)]
pub struct Projection {
    /// Added to the product, `[outs]`.
    pub bias: Option<RocmTensor>,
    /// The first half of the outputs goes through this activation and is multiplied by the second.
    pub gate: Option<Gate>,
    /// Added to the result, and of its shape.
    pub residual: Option<RocmTensor>,
    /// The factor and the epsilon of an RMS norm of the result, for a projection that follows. The
    /// factor is as long as a row of the result, and f32 or of its dtype.
    pub norm: Option<(RocmTensor, f64)>,
}

/// `residual + act(gate)(x weight^T + bias)`. Each part but the product may be absent. With a norm,
/// also this result's norm for the projection that follows. For one row, and for up to 16 rows with
/// quantised weights, this is one launch, which reads each weight once (two if the weight's inputs
/// have an order of their own or are no multiple of 32). For more rows there are several.
///
/// In one launch, numbers between the parts are f32. The norm is then divided between this launch and
/// the next: the result times the factor is rounded to the dtype, as the norm would be. In f16 it
/// could overflow where the norm does not, so there the norm is a launch of its own.
///
/// # Shapes
/// - `x`: `[rows, inputs]`
/// - output: `[rows, outs]`, or `[rows, outs / 2]` with a gate; its norm: the same
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices do not fit, or for a gate of an odd number of outputs;
/// `Unsupported` for a dtype other than f32, f16 and bf16; an error of the device.
pub fn projection(
    x: Projected,
    weight: ProjectionWeight<'_>,
    options: Projection,
) -> Result<(RocmTensor, Option<Projected>), RocmError> {
    let rows = x.rows();
    narrow_type(OP, rows)?;
    let [outs, inputs] = match weight {
        ProjectionWeight::Quantised(weight) => weight.shape(),
        ProjectionWeight::Floats(weight) => {
            one_device(OP, &[rows, weight])?;
            one_dtype(OP, &[rows, weight])?;
            match *weight.dims() {
                [outs, inputs] => [outs, inputs],
                ref dims => return invalid(OP, "a weight with 2 axes", format!("{dims:?}")),
            }
        }
    };
    let &[count, width] = rows.dims() else {
        return invalid(OP, "an input with 2 axes", format!("{:?}", rows.dims()));
    };
    if width != inputs {
        return invalid(OP, format!("rows of {inputs}"), width.to_string());
    }
    let width = match options.gate {
        Some(_) if outs % 2 == 1 => {
            return invalid(OP, "an even number of outputs for a gate", outs.to_string());
        }
        Some(_) => outs / 2,
        None => outs,
    };
    let check = |tensor: Option<RocmTensor>, expected: &[usize]| -> hip::Result<Option<RocmTensor>> {
        let Some(tensor) = tensor else { return Ok(None) };
        one_device(OP, &[rows, &tensor])?;
        one_dtype(OP, &[rows, &tensor])?;
        match tensor.dims() == expected {
            true => packed(tensor).map(Some),
            false => invalid(OP, format!("a tensor of shape {expected:?}"), format!("{:?}", tensor.dims())),
        }
    };
    let bias = check(options.bias, &[outs])?;
    let residual = check(options.residual, &[count, width])?;
    if let Some((factor, _)) = &options.norm {
        one_device(OP, &[rows, factor])?;
        if factor.dims() != [width] {
            return invalid(OP, format!("a factor of shape [{width}]"), format!("{:?}", factor.dims()));
        }
    }
    let options = Projection { bias, residual, ..options };
    match launch(&x, weight, &options)? {
        Some(Outputs { out, scaled: Some(scaled) }) => Ok((out, Some(Projected(Input::Scaled(scaled))))),
        Some(Outputs { out, scaled: None }) => with_norm(out, options.norm),
        None => by_several(x, weight, options),
    }
}

/// A result and its norm.
fn with_norm(
    out: RocmTensor,
    norm: Option<(RocmTensor, f64)>,
) -> hip::Result<(RocmTensor, Option<Projected>)> {
    let normed = match norm {
        Some((factor, epsilon)) => {
            check_rows(OP, &out, &factor)?;
            Some(Projected(Input::Whole(rms_norm(out.clone(), factor, epsilon)?)))
        }
        None => None,
    };
    Ok((out, normed))
}

/// [`projection`] by several launches.
fn by_several(
    x: Projected,
    weight: ProjectionWeight<'_>,
    Projection { bias, gate, residual, norm }: Projection,
) -> hip::Result<(RocmTensor, Option<Projected>)> {
    let x = x.into_rows()?;
    let mut y = match weight {
        ProjectionWeight::Floats(weight) => linear(x, swap_dims(weight.clone(), 0, 1)?, bias)?,
        ProjectionWeight::Quantised(weight) => quant_linear(x, weight, bias)?,
    };
    if let Some(gate) = gate {
        y = gated_halves(gate, y)?;
    }
    if let Some(residual) = residual {
        y = binary(OP, Functor::Add, residual, y)?;
    }
    with_norm(y, norm)
}

/// The norm that a kernel left for the next one.
fn completed(Scaled { rows, squares, epsilon }: Scaled) -> hip::Result<RocmTensor> {
    let (count, width, dtype) = (rows.dims()[0], rows.dims()[1], rows.dtype_of());
    let mean = scalar(OP, Functor::Mul, sum_dim(OP, squares, 0)?, Scalar::Float(1.0 / width as f64))?;
    let root = unary(OP, Functor::Sqrt, scalar(OP, Functor::Add, mean, Scalar::Float(epsilon))?)?;
    let normed = binary(OP, Functor::Div, cast(rows, DType::F32)?, reshape(root, &[count, 1])?)?;
    cast(normed, dtype)
}

/// The projection in one launch, without a norm in f16; `None` if no kernel takes the operands.
fn launch(x: &Projected, weight: ProjectionWeight<'_>, options: &Projection) -> hip::Result<Option<Outputs>> {
    let rows = x.rows();
    if rows.is_empty() || rows.dims()[0] > MOST_ROWS {
        return Ok(None);
    }
    let norm = match &options.norm {
        Some((factor, epsilon)) if factor.dtype_of() == DType::F32 && rows.dtype_of() != DType::F16 => {
            Some((packed(factor.clone())?, *epsilon))
        }
        _ => None,
    };
    let squares = match &x.0 {
        Input::Scaled(Scaled { squares, epsilon, .. }) => Some((packed(squares.clone())?, *epsilon)),
        Input::Whole(_) => None,
    };
    let around = Around {
        squares: squares.as_ref().map(|(squares, epsilon)| (squares, *epsilon)),
        bias: options.bias.as_ref(),
        gate: options.gate,
        residual: options.residual.as_ref(),
        norm: norm.as_ref().map(|(factor, epsilon)| (factor, *epsilon)),
    };
    match weight {
        ProjectionWeight::Floats(weight) => with_floats(rows, weight, &around),
        ProjectionWeight::Quantised(weight) => weight.few(OP, rows, &around),
    }
}

/// The product of one row with float weights by `row_product.hip`; `None` if it doesn't take them as
/// they are. For more rows, a library's product is faster.
fn with_floats(x: &RocmTensor, weight: &RocmTensor, around: &Around<'_>) -> hip::Result<Option<Outputs>> {
    let ([rows, inputs], outs) = ([x.dims()[0], x.dims()[1]], weight.dims()[0]);
    if rows != 1 || outs == 0 || !inputs.is_multiple_of(8) || !is_packed(weight) {
        return Ok(None);
    }
    // The kernel counts in 32 bits, to a tile and a step beyond the ends.
    if outs.max(inputs) > i32::MAX as usize {
        return Ok(None);
    }
    let (wide, long) = (outs as u32, inputs as u32);
    let x = packed(x.clone())?;
    let device = x.hip_device();
    let alone = device.block_threads() == 1;
    let tile = TILES[usize::from(alone)];
    let grid = device.grid_rows(around.tiles(outs, tile), THREADS as usize);
    let grid = if alone { grid } else { Grid { threads: THREADS, ..grid } };
    let [gate, parts, inverse, epsilon] = around.numbers(inputs);
    let sizes = Arg::U32x12([wide, long, gate, parts, inverse, epsilon, 0, 0, 0, 0, 0, 0]);
    let outputs = around.outputs(device, rows, outs, tile, x.dtype_of())?;
    let [squares, bias, residual, factor] = around.inputs();
    let read = [Some(&x), Some(weight), squares, bias, residual, factor];
    let kernel = Template::row_product.ty(x.kernel_type()?);
    views_to(OP, device, kernel, grid, &[sizes], &read, &[], &outputs.all())?;
    Ok(Some(outputs))
}
