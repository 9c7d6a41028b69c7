//! Norms and their gradients. This file holds what several of them share.

pub(crate) mod batch;
mod batch_rows;
pub(crate) mod channels;
pub(crate) mod group;
pub(crate) mod layer;
pub(crate) mod ranks;
pub(crate) mod rms;

use std::sync::Arc;

use burn_std::DType;
use hip::defaults::Family;
use hip::{Device, DeviceInfo, Functor, Grid, KernelName, Route, Template};

use crate::arg::Arg;
use crate::dtype::{compute_dtype, kernel_type};
use crate::error::{invalid, unsupported_with};
use crate::ops::binary::binary;
use crate::ops::copy::packed;
use crate::ops::create::full_on;
use crate::ops::launch::{max_reach, rows, views_to};
use crate::ops::miopen::{Why, may_replace};
use crate::ops::view::{narrow, reshape};
use crate::tensor::{RocmTensor, check_gradient, float_type, one_device, one_dtype};

/// Checks that the parameters are on `x`'s device, and that all have `x`'s dtype or all have its
/// compute type.
fn fits(op: &'static str, x: &RocmTensor, params: &[&RocmTensor]) -> hip::Result<()> {
    let dtype = x.dtype_of();
    for param in params {
        one_device(op, &[x, param])?;
        one_dtype(op, &[params[0], param])?;
        let found = param.dtype_of();
        if found != dtype && found != compute_dtype(dtype) {
            let or = if compute_dtype(dtype) == dtype { "" } else { " or f32" };
            return invalid(op, format!("parameters of {}{or}", dtype.name()), found.name());
        }
    }
    Ok(())
}

/// The length of `x`'s last axis. Checks that `x` is of a float type, and that gamma has the shape
/// `[length]`.
pub(crate) fn check_rows(op: &'static str, x: &RocmTensor, gamma: &RocmTensor) -> hip::Result<usize> {
    fits(op, x, &[gamma])?;
    float_type(op, x)?;
    let Some(&len) = x.dims().last() else { return invalid(op, "at least one axis", "none") };
    match gamma.dims() == [len] {
        true => Ok(len),
        false => invalid(op, format!("a scale of shape [{len}]"), format!("{:?}", gamma.dims())),
    }
}

/// Checks that MIOpen can normalise `elements` elements of `dtype`. MIOpen counts elements in 32
/// bits, and the parameters must have the same type.
///
/// # Errors
/// `Unsupported` if it can't.
fn for_miopen(op: &'static str, dtype: DType, elements: usize, params: &[DType]) -> hip::Result<()> {
    if elements > max_reach() {
        return unsupported_with(op, dtype, format!("{elements} elements by MIOpen"));
    }
    for &param in params {
        if kernel_type(param)? != kernel_type(dtype)? {
            return unsupported_with(op, dtype, format!("parameters of {} by MIOpen", param.name()));
        }
    }
    Ok(())
}

/// Why MIOpen does not compute a norm; `None` if it does. With `auto`, it does not for the reason
/// `unless`, or if `takes` fails. MIOpen may still refuse the shape when it is called.
///
/// # Errors
/// That of `takes` with `BURN_ROCM_NORM=miopen`, or if no kernel may replace MIOpen after it.
fn passed_over(
    device: &Device,
    unless: Option<&'static str>,
    takes: impl FnOnce() -> hip::Result<()>,
) -> hip::Result<Option<Why>> {
    let route = device.norm_route()?;
    match (route, unless) {
        (Route::Own, _) if device.norms_fill_it() => {
            return Ok(Some(Why::Rule("setting BURN_ROCM_NORM=own")));
        }
        (Route::Own, _) => return Ok(Some(Why::Rule("the library's norms leave most of this device idle"))),
        (Route::Auto, Some(reason)) => return Ok(Some(Why::Rule(reason))),
        _ => {}
    }
    match takes() {
        Ok(()) => Ok(None),
        Err(error) if route == Route::Library || !may_replace(&error) => Err(error),
        // MIOpen lacks the dtypes, is older than that of ROCm 6, can't count the elements, or gives
        // wrong results for the shape.
        Err(error) => Ok(Some(Why::Error(error))),
    }
}

/// Runs `work` on MIOpen unless MIOpen is passed over. Returns whether MIOpen did the work; if not,
/// a kernel of this project must.
fn by_miopen(
    device: &Device,
    passed_over: Option<Why>,
    work: impl FnOnce() -> hip::Result<()>,
) -> hip::Result<bool> {
    if let Some(why) = passed_over {
        return why.tell().map(|()| false);
    }
    match work() {
        Ok(()) => Ok(true),
        Err(error) if device.norm_route()? == Route::Library => Err(error),
        Err(error) => Why::Error(error).tell().map(|()| false),
    }
}

/// How many pieces of 16 bytes each lane keeps if a warp computes each row (`rows_by_warps` of
/// `norm.hip`); `None` if blocks compute the rows. A warp takes rows of f16 and bf16 that consist
/// of whole pieces, if there are enough rows to fill the device. On an H200, a prototype of layer
/// norm of [65536, 4096] bf16 took 273 us by warps, and blocks took 376 us. In f32 blocks reach
/// 97 % of a copy's rate. Nothing was timed on AMD GPUs. There a warp needs no barrier either, and
/// its whole row is in flight. 16 pieces take up to 166 registers, which on GCN and CDNA 1 would leave
/// one wave for each SIMD; CDNA 2 is of the same family here.
fn warp_pieces(info: &DeviceInfo, dtype: DType, rows: usize, len: usize) -> Option<i32> {
    let most = if Family::of(info) == Family::Cdna { 8 } else { 16 };
    let whole = dtype.size() == 2 && len.is_multiple_of(8);
    // 16 warps of 16 pieces are resident on a compute unit of an H200.
    let fills = info.max_threads_per_block > 1 && rows >= 16 * info.compute_units as usize;
    let fits = |&pieces: &i32| pieces <= most && len <= 8 * pieces as usize * info.warp_size as usize;
    if whole && fills { [4, 8, 16].into_iter().find(fits) } else { None }
}

/// The kernel that normalises the rows of `x`, and its grid: `by_blocks`, which computes a row in a
/// block, or `by_warps`, which computes it in a warp. The tensors are packed, and `x` has elements.
fn rows_forward(
    by_blocks: Template,
    by_warps: Template,
    x: &RocmTensor,
    gamma: &RocmTensor,
) -> hip::Result<(KernelName, Grid)> {
    let (device, len) = (x.hip_device(), gamma.len());
    let (info, rows) = (device.info(), x.len() / len);
    let of_types = |kernel: Template| hip::Result::Ok(kernel.ty(x.kernel_type()?).ty(gamma.kernel_type()?));
    Ok(match warp_pieces(info, x.dtype_of(), rows, len) {
        Some(pieces) => {
            const THREADS: usize = 128; // the kernel's launch bounds
            let warps = THREADS / info.warp_size as usize;
            (of_types(by_warps)?.int(pieces), device.grid_rows(rows.div_ceil(warps), THREADS))
        }
        None => (of_types(by_blocks)?, device.grid_kept_rows(rows, len)),
    })
}

/// Row `index` of a matrix.
fn row(matrix: &RocmTensor, index: usize) -> hip::Result<RocmTensor> {
    let len = matrix.dims()[1];
    reshape(narrow(matrix.clone(), 0, index, 1)?, &[len])
}

/// The sums of `[outer, count, len]` over the middle axis, as `[outer, len]` of `dtype`. The terms
/// have the type in which `dtype` is computed.
pub(crate) fn sum_partials(op: &'static str, partial: &RocmTensor, dtype: DType) -> hip::Result<RocmTensor> {
    let device = partial.hip_device();
    let &[outer, count, len] = partial.dims() else {
        return invalid(op, "partial sums of rank 3", format!("{:?}", partial.dims()));
    };
    let out = RocmTensor::empty(device, [outer, len], dtype)?;
    if out.is_empty() {
        return Ok(out);
    }
    let kernel = Template::sum_partials.ty(out.kernel_type()?);
    // The kernel gives 16 columns to a block, so there are few blocks. Each has as many threads as
    // possible, which share the loads.
    let grid = Grid {
        threads: device.info().max_threads_per_block.min(1024),
        ..device.grid_rows(outer * len.div_ceil(16), 16 * count)
    };
    let dims = [Arg::U64(outer as u64), Arg::U64(count as u64), Arg::U64(len as u64)];
    rows(op, device, kernel, grid, &dims, &[partial], &[], &[&out])?;
    Ok(out)
}

/// The grid of a gradient that keeps its rows in registers. Each thread holds 32 bytes of each
/// tensor, in the compute type (64 of f16 and bf16 on NVIDIA), and a block has as many warps as
/// that takes. A compute unit gets at least two blocks and about 1024 threads, so that one block
/// loads while another reduces. It gets more blocks as long as each has at least 32 rows, because
/// the sums that a block writes are then few compared with its rows. Layer norm's gradient of f16
/// and bf16 on NVIDIA is an exception: it gets as many blocks as are resident, which have 512
/// threads on a compute unit, because a thread takes up to 128 registers. On an H200, prototypes
/// took 450 us for [65536, 4096] bf16 with 264 blocks, and 467 us with 1056 (including the sums
/// over all blocks).
fn gradient_grid(kernel: Template, device: &Arc<Device>, rows: usize, len: usize, dtype: DType) -> Grid {
    let info = device.info();
    // As `KEPT` and `MOST_THREADS` of the kernels.
    let twice = Family::of(info) == Family::Nvidia && dtype.size() == 2;
    let (bytes, most) = if twice { (64, 512) } else { (32, 1024) };
    let most = info.max_threads_per_block.min(most);
    let wanted = len.div_ceil(bytes / compute_dtype(dtype).size()).min(most as usize) as u32;
    let threads = wanted.next_multiple_of(info.warp_size).min(most);
    let units = info.compute_units as usize;
    if twice && kernel == Template::layer_norm_rows_backward {
        let resident = units * (512 / threads).max(1) as usize;
        return Grid { blocks: resident.min(rows).max(1) as u32, threads };
    }
    let resident = units * (info.max_threads_per_compute_unit / threads).max(1) as usize;
    let least = units * (1024 / threads).max(2) as usize;
    Grid { blocks: least.max(rows / 32).min(resident).min(rows).max(1) as u32, threads }
}

/// The gradients of a norm over rows with respect to x and, as `[sums, len]`, to the parameters.
#[allow(clippy::too_many_arguments)] // The op's own, and which op it is.
fn rows_backward(
    op: &'static str,
    kernel: Template,
    sums: usize,
    [x, gamma, grad]: [RocmTensor; 3],
    onto: Option<RocmTensor>,
    epsilon: f64,
    params: bool,
) -> hip::Result<(RocmTensor, Option<RocmTensor>)> {
    let len = check_rows(op, &x, &gamma)?;
    for like in [Some(&grad), onto.as_ref()].into_iter().flatten() {
        check_gradient(op, &x, like)?;
    }
    let given = gamma.dtype_of();
    let (x, gamma, grad) = (packed(x)?, packed(gamma)?, packed(grad)?);
    let (device, dtype) = (x.hip_device(), x.dtype_of());
    // The kernel adds `onto` in f32. For other types a separate op adds it afterwards.
    let (by_kernel, behind) = match onto {
        Some(onto) if dtype == DType::F32 => (Some(packed(onto)?), None),
        onto => (None, onto),
    };
    let dx = RocmTensor::empty(device, x.layout().shape().clone(), dtype)?;
    if dx.is_empty() {
        let zeros = params.then(|| full_on(device, [sums, len], 0i64.into(), given)).transpose()?;
        return Ok((dx, zeros));
    }
    let count = dx.len() / len;
    let grid = gradient_grid(kernel, device, count, len, dtype);
    let blocks = grid.blocks as usize;
    let partial =
        params.then(|| RocmTensor::empty(device, [sums, blocks, len], compute_dtype(dtype))).transpose()?;
    let dims = [Arg::U64(count as u64), Arg::U64(len as u64)];
    views_to(
        op,
        device,
        kernel.ty(x.kernel_type()?).ty(gamma.kernel_type()?),
        grid,
        &dims,
        &[Some(&x), Some(&grad), Some(&gamma), by_kernel.as_ref()],
        &[Arg::F64(epsilon)],
        &[Some(&dx), partial.as_ref()],
    )?;
    let sums = partial.map(|partial| sum_partials(op, &partial, given)).transpose()?;
    let dx = match behind {
        Some(onto) => binary(op, Functor::Add, dx, onto)?,
        None => dx,
    };
    Ok((dx, sums))
}
