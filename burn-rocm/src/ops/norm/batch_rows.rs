//! Batch norm of 16-bit `[rows, channels]` by kernels that access 8 channels at a time: images whose
//! channels are innermost in memory, or samples without further axes. `batch.rs` chooses them.

use std::sync::Arc;

use burn_std::DType;
use hip::{Device, Grid, Template};

use crate::arg::Arg;
use crate::ops::launch::{is_packed, rows};
use crate::tensor::RocmTensor;

/// The channels in 16 bytes.
const PIECE: usize = 8;

/// The most pieces that a block has side by side: 128 bytes, a cache line of most GPUs.
const MOST_ACROSS: usize = 8;

/// The fewest rows of a thread, so that it has several loads in flight.
const LEAST_ROWS: usize = 4;

/// With fewer rows, the launch that joins the parts would take longer than wider accesses save.
const FEW: usize = 64;

/// `[rows, channels]`.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    rows: usize,
    channels: usize,
}

/// The shape arguments and the grid of a launch.
struct Plan {
    dims: [Arg; 3],
    parts: usize,
    grid: Grid,
}

impl Rows {
    /// `x` of `[rows, channels, ..]`, if the kernels take it together with tensors of its dtype and
    /// `params` of f32.
    pub(super) fn of(x: &RocmTensor, same: &[&RocmTensor], params: &[&RocmTensor]) -> Option<Self> {
        let &[rows, channels, ref rest @ ..] = x.dims() else { return None };
        let one = rest.iter().all(|&dim| dim == 1) && rows >= FEW;
        let whole = channels > 0 && channels.is_multiple_of(PIECE) && u32::try_from(channels).is_ok();
        let half = matches!(x.dtype_of(), DType::F16 | DType::BF16);
        let aligned = is_packed(x) && same.iter().chain(params).all(|tensor| is_packed(tensor));
        (one && whole && half && aligned).then_some(Self { rows, channels })
    }

    /// Divides the rows so that the device is filled `times` times, with at least [`LEAST_ROWS`] for
    /// each thread.
    fn plan(self, device: &Arc<Device>, times: usize) -> Plan {
        let Self { rows, channels } = self;
        let (threads, pieces) = (device.block_threads() as usize, channels / PIECE);
        let across = pieces.next_power_of_two().min(MOST_ACROSS).min(threads);
        let (groups, info) = (pieces.div_ceil(across), device.info());
        let resident =
            info.compute_units as usize * (info.max_threads_per_compute_unit as usize / threads).max(1);
        let most = rows.div_ceil((threads / across).max(1) * LEAST_ROWS);
        let parts = (times * resident / groups).min(most).clamp(1, u32::MAX as usize);
        Plan {
            dims: [Arg::U64(rows as u64), Arg::U32(channels as u32), Arg::U32(parts as u32)],
            parts,
            grid: device.grid_rows(groups.saturating_mul(parts), threads),
        }
    }

    /// Two values of each channel and part, which `template` computes from the rows, and the plan by
    /// which it did.
    fn partial(
        self,
        op: &'static str,
        template: Template,
        inputs: &[&RocmTensor],
    ) -> hip::Result<(RocmTensor, [Arg; 3])> {
        let device = inputs[0].hip_device();
        // Not more blocks than run at once: all parts are joined afterwards.
        let Plan { dims, parts, grid } = self.plan(device, 1);
        let partial = RocmTensor::empty(device, [2, parts, self.channels], DType::F32)?;
        rows(op, device, template.ty(inputs[0].kernel_type()?), grid, &dims, inputs, &[], &[&partial])?;
        Ok((partial, dims))
    }

    /// Joins the parts of each channel.
    fn join(
        self,
        op: &'static str,
        template: Template,
        (inputs, options): (&[&RocmTensor], &[Arg]),
        dims: &[Arg; 3],
        outputs: &[&RocmTensor],
    ) -> hip::Result<()> {
        let device = outputs[0].hip_device();
        let grid = device.grid_rows(self.channels.div_ceil(PIECE.min(device.block_threads() as usize)), 256);
        rows(op, device, template.ty(hip::DType::F32), grid, dims, inputs, options, outputs)
    }

    /// Writes `output`, `statistics` and the running statistics `after`, which were `running`.
    #[allow(clippy::too_many_arguments, reason = "the operands of the op")]
    pub(super) fn train(
        self,
        op: &'static str,
        x: &RocmTensor,
        [gamma, beta]: [&RocmTensor; 2],
        running: [&RocmTensor; 2],
        options: [f64; 2],
        output: &RocmTensor,
        [statistics, after]: [&RocmTensor; 2],
    ) -> hip::Result<()> {
        let (partial, dims) = self.partial(op, Template::batch_norm_rows_moments, &[x])?;
        let inputs = [running[0], running[1], &partial];
        let options = options.map(Arg::F64);
        self.join(op, Template::batch_norm_rows_join, (&inputs, &options), &dims, &[statistics, after])?;
        let [mean, rstd] = [super::row(statistics, 0)?, super::row(statistics, 1)?];
        self.apply(op, x, [gamma, beta, &mean, &rstd], None, output)
    }

    /// Normalises with a mean and a factor, or with a mean and a variance to which an epsilon is
    /// added.
    pub(super) fn apply(
        self,
        op: &'static str,
        x: &RocmTensor,
        [gamma, beta, mean, spread]: [&RocmTensor; 4],
        epsilon: Option<f64>,
        output: &RocmTensor,
    ) -> hip::Result<()> {
        let device = x.hip_device();
        let Plan { dims, grid, .. } = self.plan(device, 4);
        let dims: Vec<Arg> = dims.into_iter().chain([Arg::I32(epsilon.is_some().into())]).collect();
        let kernel = Template::batch_norm_rows_apply.ty(x.kernel_type()?);
        let epsilon = [Arg::F64(epsilon.unwrap_or_default())];
        rows(op, device, kernel, grid, &dims, &[x, gamma, beta, mean, spread], &epsilon, &[output])
    }

    /// Writes the gradient `dx`, and those of gamma and beta to the rows of `sums`.
    pub(super) fn backward(
        self,
        op: &'static str,
        [x, grad]: [&RocmTensor; 2],
        [gamma, statistics]: [&RocmTensor; 2],
        dx: &RocmTensor,
        sums: &RocmTensor,
    ) -> hip::Result<()> {
        let (partial, dims) = self.partial(op, Template::batch_norm_rows_sums, &[x, grad, statistics])?;
        self.join(op, Template::batch_norm_rows_total, (&[&partial], &[]), &dims, &[sums])?;
        let device = x.hip_device();
        let Plan { dims, grid, .. } = self.plan(device, 4);
        let kernel = Template::batch_norm_rows_backward.ty(x.kernel_type()?);
        rows(op, device, kernel, grid, &dims, &[x, grad, gamma, statistics, sums], &[], &[dx])
    }
}
