//! Group norm. With one group for each channel it is instance norm.

use burn_std::DType;
use hip::{Device, Error as RocmError, GroupNormDesc, Template};

use super::batch::channel_sums;
use super::{by_miopen, fits, for_miopen, gradient_grid, passed_over, row, sum_partials};
use crate::arg::Arg;
use crate::dtype::{compute_dtype, kernel_type};
use crate::error::invalid;
use crate::ops::copy::packed;
use crate::ops::create::full_on;
use crate::ops::launch::{views_in_part, views_to};
use crate::ops::miopen::{Why, whole};
use crate::tensor::{RocmTensor, check_gradient, float_type};

const OP: &str = "group_norm";

/// The fewest groups for which MIOpen has kernels. With fewer, MIOpen searches its solvers and
/// fails.
const LEAST_GROUPS: usize = 32;

/// A tensor seen as `[batch, groups, channels, spatial]`.
#[derive(Clone, Copy)]
struct Groups {
    batch: usize,
    groups: usize,
    /// The channels of all groups together.
    channels: usize,
    spatial: usize,
}

impl Groups {
    fn of(op: &'static str, x: &RocmTensor, params: &[&RocmTensor], groups: usize) -> hip::Result<Self> {
        float_type(op, x)?;
        let &[batch, channels, ref rest @ ..] = x.dims() else {
            return invalid(op, "an input of shape [batch, channels, ..]", format!("{:?}", x.dims()));
        };
        if groups == 0 || !channels.is_multiple_of(groups) {
            return invalid(op, format!("groups that divide {channels} channels"), groups.to_string());
        }
        fits(op, x, params)?;
        for param in params {
            if param.dims() != [channels] {
                return invalid(op, format!("a scale of shape [{channels}]"), format!("{:?}", param.dims()));
            }
        }
        Ok(Self { batch, groups, channels, spatial: rest.iter().product() })
    }

    fn rows(self) -> usize {
        self.batch * self.groups
    }

    fn len(self) -> usize {
        self.channels / self.groups * self.spatial
    }

    fn dims(self) -> [Arg; 4] {
        [self.rows(), self.len(), self.groups, self.spatial].map(|dim| Arg::U64(dim as u64))
    }
}

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta`, where mean and variance are taken over
/// each group of channels of each sample ([Wu and He 2018](https://arxiv.org/abs/1803.08494));
/// without `params`, gamma is 1 and beta 0.
///
/// MIOpen computes it if MIOpen has group norm for the dtype, the parameters have that dtype too,
/// and there are at least 32 groups. Otherwise a kernel of this project does. `BURN_ROCM_NORM`
/// overrides the choice.
///
/// # Shapes
/// - x, result: `[batch, channels, ..]`
/// - gamma, beta: `[channels]`, of dtypes as for [`layer_norm`](crate::fused::layer_norm())
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices do not fit; `Unsupported` for integers, or if
/// `BURN_ROCM_NORM=miopen` and MIOpen lacks the dtype or the parameters have another one; `Miopen`
/// if only MIOpen may run and it fails; an error of the device.
pub fn group_norm(
    x: RocmTensor,
    params: Option<[RocmTensor; 2]>,
    groups: usize,
    epsilon: f64,
) -> Result<RocmTensor, RocmError> {
    let shape = Groups::of(OP, &x, &params.iter().flatten().collect::<Vec<_>>(), groups)?;
    let x = packed(x)?;
    let params = match params {
        Some([gamma, beta]) => Some([packed(gamma)?, packed(beta)?]),
        None => None,
    };
    let out = x.empty_like()?;
    if out.is_empty() {
        return Ok(out);
    }
    let parameters = params.as_ref().map(|[gamma, _]| gamma.dtype_of());
    let passed_over = without_miopen(x.hip_device(), x.dtype_of(), parameters, groups, x.len())?;
    if by_miopen(x.hip_device(), passed_over, || library(OP, shape, &x, params.as_ref(), epsilon, &out))? {
        return Ok(out);
    }
    let [gamma, beta] = params.as_ref().map_or([None; 2], |params| params.each_ref().map(Some));
    let device = x.hip_device();
    let kernel = Template::group_norm_rows.ty(x.kernel_type()?).ty(gamma.unwrap_or(&x).kernel_type()?);
    let grid = device.grid_rows(shape.rows(), shape.len());
    let inputs = [Some(&x), gamma, beta];
    views_to(OP, device, kernel, grid, &shape.dims(), &inputs, &[Arg::F64(epsilon)], &[Some(&out)])?;
    Ok(out)
}

/// Why MIOpen does not compute the norm of `elements` elements of `dtype`; `None` if it does.
/// `parameters`: the dtype of gamma and beta, if there are any.
pub(crate) fn without_miopen(
    device: &Device,
    dtype: DType,
    parameters: Option<DType>,
    groups: usize,
    elements: usize,
) -> hip::Result<Option<Why>> {
    let unless = match parameters {
        None => Some("MIOpen's group norm needs parameters"),
        Some(_) if groups < LEAST_GROUPS => Some("MIOpen has no group norm of fewer than 32 groups"),
        Some(_) => None,
    };
    passed_over(device, unless, || {
        for_miopen(OP, dtype, elements, parameters.as_slice())?;
        device.dnn()?.has_group_norm(kernel_type(dtype)?)
    })
}

/// Computes the norm by MIOpen. A kernel then recomputes groups whose variance MIOpen computes
/// inaccurately, as for a layer norm.
fn library(
    op: &'static str,
    shape: Groups,
    x: &RocmTensor,
    params: Option<&[RocmTensor; 2]>,
    epsilon: f64,
    out: &RocmTensor,
) -> hip::Result<()> {
    let (device, dtype) = (x.hip_device(), x.dtype_of());
    let Groups { batch, groups, channels, spatial } = shape;
    let desc = GroupNormDesc { dtype: x.kernel_type()?, batch, channels, spatial, groups };
    let dnn = device.dnn()?;
    let [gamma, beta] = match params {
        Some(params) => params.clone(),
        None => [
            full_on(device, [channels], 1i64.into(), dtype)?,
            full_on(device, [channels], 0i64.into(), dtype)?,
        ],
    };
    let statistics = RocmTensor::empty(device, [2, shape.rows()], dtype)?;
    let [mean, rstd] = [row(&statistics, 0)?, row(&statistics, 1)?];
    let [px, pg, pb, po, pm, pr] = [x, &gamma, &beta, out, &mean, &rstd].map(whole);
    dnn.group_norm_forward(&desc, px, pg, pb, epsilon as f32, po, pm, pr)?;
    let kernel = Template::group_norm_repair.ty(x.kernel_type()?);
    let hip::Grid { threads, .. } = device.grid_rows(shape.rows(), shape.len());
    let grid = hip::Grid { threads, ..device.grid(shape.rows() * threads as usize) };
    let inputs = [Some(x), Some(&gamma), Some(&beta), Some(&mean), Some(&rstd)];
    views_in_part(op, device, kernel, grid, &shape.dims(), &inputs, &[Arg::F64(epsilon)], out)
}

/// The gradients of [`group_norm`] with respect to x and, if `params` asks for them, to gamma and
/// beta (in gamma's dtype), from x and the output's gradient.
///
/// # Errors
/// As for [`group_norm`], except MIOpen's: a kernel of this project computes the gradient, because
/// MIOpen has none.
pub fn group_norm_backward(
    x: RocmTensor,
    gamma: Option<RocmTensor>,
    grad: RocmTensor,
    groups: usize,
    epsilon: f64,
    params: bool,
) -> Result<(RocmTensor, Option<[RocmTensor; 2]>), RocmError> {
    const OP: &str = "group_norm_backward";
    let shape = Groups::of(OP, &x, &gamma.iter().collect::<Vec<_>>(), groups)?;
    check_gradient(OP, &x, &grad)?;
    let given = gamma.as_ref().unwrap_or(&x).dtype_of();
    let (x, gamma, grad) = (packed(x)?, gamma.map(packed).transpose()?, packed(grad)?);
    let (device, dtype) = (x.hip_device(), x.dtype_of());
    let dx = x.empty_like()?;
    if dx.is_empty() {
        let zeros = || full_on(device, [shape.channels], 0i64.into(), given);
        return Ok((dx, if params { Some([zeros()?, zeros()?]) } else { None }));
    }
    let statistics =
        params.then(|| RocmTensor::empty(device, [2, shape.rows()], compute_dtype(dtype))).transpose()?;
    let kernel = Template::group_norm_rows_backward;
    let grid = gradient_grid(kernel, device, shape.rows(), shape.len(), dtype);
    views_to(
        OP,
        device,
        kernel.ty(x.kernel_type()?).ty(gamma.as_ref().unwrap_or(&x).kernel_type()?),
        grid,
        &shape.dims(),
        &[Some(&x), Some(&grad), gamma.as_ref()],
        &[Arg::F64(epsilon)],
        &[Some(&dx), statistics.as_ref()],
    )?;
    let Some(statistics) = statistics else { return Ok((dx, None)) };
    let share = shape.channels / groups;
    let partial = channel_sums(OP, &x, &grad, &statistics, [groups, share])?;
    let sums = sum_partials(OP, &partial, given)?;
    Ok((dx, Some([row(&sums, 0)?, row(&sums, 1)?])))
}
