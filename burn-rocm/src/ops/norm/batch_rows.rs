//! Batch norm of 16-bit `[rows, channels]` by kernels that access 8 channels at a time: images whose
//! channels are innermost in memory, or samples without further axes. `batch.rs` chooses them.

use std::sync::Arc;

use burn_std::DType;
use hip::{Device, Grid, Template};

use crate::arg::Arg;
use crate::ops::launch::{is_packed, max_reach, rows};
use crate::tensor::RocmTensor;

/// The channels in 16 bytes.
const PIECE: usize = 8;

/// The most pieces that a block has side by side: 128 bytes, a cache line of most GPUs.
const MOST_ACROSS: usize = 8;

/// The fewest rows of a thread, so that it has several loads in flight.
const LEAST_ROWS: usize = 4;

/// The most parts that each block joins itself, which saves a launch. A thread of a block of 256
/// then reads at most four parts of 8 channels.
const JOINED: usize = 128;

/// The most parts that all blocks together may join so. Each part is 512 bytes, read from a cache.
const READ: usize = 1 << 15;

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

    /// As [`plan`](Self::plan), for kernels that keep sums, and whether the next kernel joins the
    /// parts. The sums take so many registers that only two of eight blocks run at once. More parts
    /// than these blocks take would only make the joining slower. With up to twice [`JOINED`]
    /// parts, the plan has [`JOINED`], so that the next kernel can join them.
    fn plan_sums(self, device: &Arc<Device>) -> (Plan, bool) {
        let plan = self.plan(device, [1, 4], usize::MAX);
        let blocks = self.plan(device, [4, 1], usize::MAX).grid.blocks as usize;
        // On the CPU device a launch costs next to nothing.
        let read = blocks * (plan.parts.min(JOINED) + 1);
        let few = plan.parts <= 2 * JOINED && read < READ.min(max_reach());
        let joined = few && device.block_threads() > 1;
        (if joined { self.plan(device, [1, 4], JOINED) } else { plan }, joined)
    }

    /// Divides the rows into at most `limit` parts, so that the device is filled `times` times (a
    /// numerator and a denominator), with at least [`LEAST_ROWS`] for each thread.
    fn plan(self, device: &Arc<Device>, times: [usize; 2], limit: usize) -> Plan {
        let Self { rows, channels } = self;
        let (threads, pieces) = (device.block_threads() as usize, channels / PIECE);
        let across = pieces.next_power_of_two().min(MOST_ACROSS).min(threads);
        let (groups, info) = (pieces.div_ceil(across), device.info());
        let units = info.compute_units as usize;
        let resident = units * (info.max_threads_per_compute_unit as usize / threads).max(1);
        let blocks = (times[0] * resident / times[1]).max(units);
        let most = rows.div_ceil((threads / across).max(1) * LEAST_ROWS);
        let parts = (blocks / groups).min(most).min(limit).clamp(1, u32::MAX as usize);
        Plan {
            dims: [Arg::U64(rows as u64), Arg::U32(channels as u32), Arg::U32(parts as u32)],
            parts,
            grid: device.grid_rows(groups.saturating_mul(parts), threads),
        }
    }

    /// Two values of each channel and part, which `template` computes from the rows. Also the plan
    /// of that launch, and whether the next kernel joins the parts.
    fn partial(
        self,
        op: &'static str,
        template: Template,
        inputs: &[&RocmTensor],
    ) -> hip::Result<(RocmTensor, Plan, bool)> {
        let device = inputs[0].hip_device();
        let (Plan { dims, parts, grid }, joined) = self.plan_sums(device);
        let partial = RocmTensor::empty(device, [2, parts, self.channels], DType::F32)?;
        rows(op, device, template.ty(inputs[0].kernel_type()?), grid, &dims, inputs, &[], &[&partial])?;
        Ok((partial, Plan { dims, parts, grid }, joined))
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

    /// Writes the output or its ReLU, the statistics, and the running mean and variance, which were
    /// `running`.
    #[allow(clippy::too_many_arguments, reason = "the operands of the op")]
    pub(super) fn train(
        self,
        op: &'static str,
        x: &RocmTensor,
        [gamma, beta]: [&RocmTensor; 2],
        running: [&RocmTensor; 2],
        options: [f64; 2],
        relu: bool,
        [output, statistics, mean_after, variance_after]: [&RocmTensor; 4],
    ) -> hip::Result<()> {
        let (partial, Plan { dims, parts, .. }, joined) =
            self.partial(op, Template::batch_norm_rows_moments, &[x])?;
        let options = options.map(Arg::F64);
        if !joined {
            let inputs = [running[0], running[1], &partial];
            let outputs = [statistics, mean_after, variance_after];
            self.join(op, Template::batch_norm_rows_join, (&inputs, &options), &dims, &outputs)?;
            let [mean, rstd] = [super::row(statistics, 0)?, super::row(statistics, 1)?];
            return self.apply(op, x, [gamma, beta, &mean, &rstd], None, relu, output);
        }
        let kernel = match relu {
            true => Template::batch_norm_rows_relu_joined,
            false => Template::batch_norm_rows_apply_joined,
        };
        let inputs = [x, gamma, beta, running[0], running[1], &partial];
        let outputs = [output, statistics, mean_after, variance_after];
        self.joined(op, kernel, parts, (&inputs, &options), &outputs)
    }

    /// The mean and `1 / sqrt(variance + epsilon)` of each channel, `[2, channels]`. Leaves the
    /// `running` mean and variance as they are.
    pub(super) fn statistics(
        self,
        op: &'static str,
        x: &RocmTensor,
        [mean, variance]: [&RocmTensor; 2],
        epsilon: f64,
    ) -> hip::Result<RocmTensor> {
        let (partial, Plan { dims, .. }, _) = self.partial(op, Template::batch_norm_rows_moments, &[x])?;
        let statistics = RocmTensor::empty(x.hip_device(), [2, self.channels], DType::F32)?;
        let (inputs, options) = ([mean, variance, &partial], [0.0, epsilon].map(Arg::F64));
        let outputs = [&statistics, mean, variance];
        self.join(op, Template::batch_norm_rows_join, (&inputs, &options), &dims, &outputs)?;
        Ok(statistics)
    }

    /// A kernel that joins the parts of its channels itself.
    fn joined(
        self,
        op: &'static str,
        template: Template,
        parts: usize,
        (inputs, options): (&[&RocmTensor], &[Arg]),
        outputs: &[&RocmTensor],
    ) -> hip::Result<()> {
        let device = inputs[0].hip_device();
        let Plan { dims, grid, .. } = self.plan(device, [4, 1], usize::MAX);
        let dims: Vec<Arg> = dims.into_iter().chain([Arg::U32(parts as u32)]).collect();
        rows(op, device, template.ty(inputs[0].kernel_type()?), grid, &dims, inputs, options, outputs)
    }

    /// Normalises with a mean and a factor, or with a mean and a variance to which an epsilon is
    /// added. Then takes the ReLU if `relu` is set.
    pub(super) fn apply(
        self,
        op: &'static str,
        x: &RocmTensor,
        [gamma, beta, mean, spread]: [&RocmTensor; 4],
        epsilon: Option<f64>,
        relu: bool,
        output: &RocmTensor,
    ) -> hip::Result<()> {
        let device = x.hip_device();
        let Plan { dims, grid, .. } = self.plan(device, [4, 1], usize::MAX);
        let dims: Vec<Arg> = dims.into_iter().chain([Arg::I32(epsilon.is_some().into())]).collect();
        let kernel = if relu { Template::batch_norm_rows_relu } else { Template::batch_norm_rows_apply };
        let kernel = kernel.ty(x.kernel_type()?);
        let epsilon = [Arg::F64(epsilon.unwrap_or_default())];
        rows(op, device, kernel, grid, &dims, &[x, gamma, beta, mean, spread], &epsilon, &[output])
    }

    /// Writes the gradient `dx`, and those of gamma and beta to the rows of `sums`. With a `beta`, the
    /// norm has a ReLU after it.
    #[allow(clippy::too_many_arguments, reason = "the operands of the op")]
    pub(super) fn backward(
        self,
        op: &'static str,
        [x, grad]: [&RocmTensor; 2],
        gamma: &RocmTensor,
        beta: Option<&RocmTensor>,
        statistics: &RocmTensor,
        dx: &RocmTensor,
        sums: &RocmTensor,
    ) -> hip::Result<()> {
        let [first, last, joined] = match beta {
            None => [
                Template::batch_norm_rows_sums,
                Template::batch_norm_rows_backward,
                Template::batch_norm_rows_backward_joined,
            ],
            Some(_) => [
                Template::batch_norm_rows_relu_sums,
                Template::batch_norm_rows_relu_backward,
                Template::batch_norm_rows_relu_backward_joined,
            ],
        };
        let inputs: Vec<_> = match beta {
            None => vec![x, grad, statistics],
            Some(beta) => vec![x, grad, gamma, beta, statistics],
        };
        let (partial, Plan { dims, parts, .. }, here) = self.partial(op, first, &inputs)?;
        let of = [x, grad, gamma].into_iter().chain(beta).chain([statistics]);
        if here {
            let inputs: Vec<_> = of.chain([&partial]).collect();
            return self.joined(op, joined, parts, (&inputs, &[]), &[dx, sums]);
        }
        self.join(op, Template::batch_norm_rows_total, (&[&partial], &[]), &dims, &[sums])?;
        let device = x.hip_device();
        let Plan { dims, grid, .. } = self.plan(device, [4, 1], usize::MAX);
        let inputs: Vec<_> = of.chain([sums]).collect();
        rows(op, device, last.ty(x.kernel_type()?), grid, &dims, &inputs, &[], &[dx])
    }
}
