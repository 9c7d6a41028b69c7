//! Layer norm, T5 layer norm and group norm by this provider's kernels. cuDNN has these norms only
//! in its graph API.

use super::handle::{Handle, Operand, check};
use crate::own_kernels;
use core::ffi::c_void;
use hip_provider::miopen::{Normalised, Outcome, RowGradient, RowNorms, Rows};
use miopen_sys::*;
use std::ptr;

/// `Norm` of `own.cu`.
#[repr(C)]
struct Norm {
    rows: i64,
    length: i64,
    groups: i64,
    channels: i64,
    share: i64,
    epsilon: f32,
}

impl From<&Rows<'_, Handle>> for Norm {
    fn from(rows: &Rows<'_, Handle>) -> Self {
        Norm {
            rows: rows.rows as i64,
            length: rows.length as i64,
            groups: rows.groups as i64,
            channels: (rows.length / rows.share) as i64,
            share: rows.share as i64,
            epsilon: rows.epsilon,
        }
    }
}

/// Threads of a block. A row that is too long for one warp is computed by a block.
const BLOCK: u64 = 256;

/// A kernel, and its threads for each row.
struct Kernel {
    name: &'static str,
    team: u64,
}

/// The kernel that keeps a row of this many 16-byte pieces in registers; `None` if the row is too
/// long.
fn kept(data: miopenDataType_t, centred: bool, pieces: i64) -> Outcome<Option<Kernel>> {
    // A warp with 2 or 8 pieces for each thread, or a block of 256 threads with 4 or 8.
    let Some(size) = [64, 256, 1024, 2048].iter().position(|&most| pieces <= most) else { return Ok(None) };
    macro_rules! names {
        ($($data:ident $type:literal)*) => {
            match (data, centred, size) {
                $(
                    ($data, true, 0) => concat!("row_norm<", $type, ", true, 32, 2>"),
                    ($data, true, 1) => concat!("row_norm<", $type, ", true, 32, 8>"),
                    ($data, true, 2) => concat!("row_norm<", $type, ", true, 256, 4>"),
                    ($data, true, _) => concat!("row_norm<", $type, ", true, 256, 8>"),
                    ($data, false, 0) => concat!("row_norm<", $type, ", false, 32, 2>"),
                    ($data, false, 1) => concat!("row_norm<", $type, ", false, 32, 8>"),
                    ($data, false, 2) => concat!("row_norm<", $type, ", false, 256, 4>"),
                    ($data, false, _) => concat!("row_norm<", $type, ", false, 256, 8>"),
                )*
                _ => return Err(miopenStatusNotImplemented),
            }
        };
    }
    let name = names! { miopenFloat "float" miopenHalf "f16" miopenBFloat16 "bf16" };
    Ok(Some(Kernel { name, team: if size < 2 { 32 } else { BLOCK } }))
}

/// The kernel for rows of any length.
fn any(data: miopenDataType_t, centred: bool) -> Outcome<Kernel> {
    let name = match (data, centred) {
        (miopenFloat, true) => "norm_forward<float, true>",
        (miopenFloat, false) => "norm_forward<float, false>",
        (miopenHalf, true) => "norm_forward<f16, true>",
        (miopenHalf, false) => "norm_forward<f16, false>",
        (miopenBFloat16, true) => "norm_forward<bf16, true>",
        (miopenBFloat16, false) => "norm_forward<bf16, false>",
        _ => return Err(miopenStatusNotImplemented),
    };
    Ok(Kernel { name, team: BLOCK })
}

/// The tensors of a call: `y`, weight and bias, and the statistics of each row. All but `y` may be
/// null.
struct Forward {
    y: *mut c_void,
    mean: *mut c_void,
    rstd: *mut c_void,
    parameters: [*mut c_void; 2],
}

/// Launches layer norm if `centred`, else T5 layer norm.
///
/// # Safety
/// The buffers hold what `rows` says.
unsafe fn launch(handle: &Handle, centred: bool, rows: &Rows<'_, Handle>, call: Forward) -> Outcome {
    let (mut norm, mut x, data) = (Norm::from(rows), rows.x.at, rows.x.data);
    let Forward { mut y, mut mean, mut rstd, parameters: [mut weight, mut bias] } = call;
    let width = if data == miopenFloat { 4 } else { 8 };
    let aligned = [x, y, weight, bias].into_iter().all(|at| (at as usize).is_multiple_of(16));
    let in_pieces = norm.share == 1 && norm.groups == 1 && norm.length % width == 0 && aligned;
    let kernel = match in_pieces {
        true => kept(data, centred, norm.length / width)?,
        false => None,
    };
    let kernel = kernel.map_or_else(|| any(data, centred), Ok)?;
    let items = norm.rows as u64 * kernel.team;
    let mut arguments = [
        (&raw mut norm).cast(),
        (&raw mut x).cast(),
        (&raw mut weight).cast(),
        (&raw mut bias).cast(),
        (&raw mut y).cast(),
        (&raw mut mean).cast(),
        (&raw mut rstd).cast(),
    ];
    // SAFETY: the kernel's arguments; the buffers are the caller's.
    unsafe { own_kernels::launch(kernel.name, items, handle.stream(), &mut arguments) }
        .map_err(|_| miopenStatusInternalError)
}

impl RowNorms for Handle {
    unsafe fn norm_forward(&self, rows: &Rows<'_, Self>, to: &Normalised<'_, Self>) -> Outcome {
        let Normalised { y, mean, rstd, parameters } = to;
        check(&[&rows.x, y, mean, rstd])?;
        let mut given = [ptr::null_mut(); 2];
        if let Some([weight, bias]) = parameters {
            check(&[weight, bias])?;
            given = [weight.at, bias.at];
        }
        let call = Forward { y: y.at, mean: mean.at, rstd: rstd.at, parameters: given };
        // SAFETY: the buffers were checked.
        unsafe { launch(self, true, rows, call) }
    }

    unsafe fn t5_norm(
        &self,
        rows: &Rows<'_, Self>,
        weight: &Operand<'_>,
        y: &Operand<'_>,
        rstd: Option<&Operand<'_>>,
    ) -> Outcome {
        check(&[&rows.x, weight, y])?;
        check(rstd.as_slice())?;
        let (mean, rstd) = (ptr::null_mut(), rstd.map_or(ptr::null_mut(), |rstd| rstd.at));
        let call = Forward { y: y.at, mean, rstd, parameters: [weight.at, ptr::null_mut()] };
        // SAFETY: the buffers were checked.
        unsafe { launch(self, false, rows, call) }
    }

    unsafe fn layer_norm_backward(&self, rows: &Rows<'_, Self>, call: &RowGradient<'_, Self>) -> Outcome {
        let RowGradient { dy, dx, mean, rstd, weight, parameters } = call;
        let x = &rows.x;
        check(&[x, dy, dx, mean, rstd])?;
        check(weight.as_ref().as_slice())?;
        let [by_x, by_parameters] = match x.data {
            miopenFloat => ["norm_backward<float>", "norm_parameters<float>"],
            miopenHalf => ["norm_backward<f16>", "norm_parameters<f16>"],
            miopenBFloat16 => ["norm_backward<bf16>", "norm_parameters<bf16>"],
            _ => return Err(miopenStatusNotImplemented),
        };
        let mut norm = Norm::from(rows);
        let mut run = |name, blocks: usize, mut buffers: [*mut c_void; 6]| {
            let mut arguments = vec![ptr::from_mut(&mut norm).cast()];
            arguments.extend(buffers.iter_mut().map(|buffer| ptr::from_mut(buffer).cast()));
            // SAFETY: the kernel's arguments; the buffers are checked.
            unsafe { own_kernels::launch(name, blocks as u64 * BLOCK, self.stream(), &mut arguments) }
                .map_err(|_| miopenStatusInternalError)
        };
        if let Some([dw, db]) = parameters {
            check(&[dw, db])?;
        }
        let weight = weight.as_ref().map_or(ptr::null_mut(), |weight| weight.at);
        run(by_x, rows.rows, [dy.at, x.at, weight, mean.at, rstd.at, dx.at])?;
        if let Some([dw, db]) = parameters {
            // A block computes 32 places of a row.
            let blocks = rows.length.div_ceil(32);
            run(by_parameters, blocks, [dy.at, x.at, mean.at, rstd.at, dw.at, db.at])?;
        }
        Ok(())
    }
}
