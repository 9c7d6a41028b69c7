//! Pooling: averages by cuDNN, maxima by this provider's kernels, because cuDNN does not return the
//! indices of maxima.

use super::handle::{Handle, Operand, check};
use super::status::{answered, check_buffer, one, zero};
use crate::own_kernels;
use core::ffi::{c_int, c_void};
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::{Outcome, Own, Pooling, Poolings, Tensor};
use hip_provider::require;
use miopen_sys::*;
use std::ptr;

/// cuDNN's descriptor.
pub(super) struct Raw(cudnn::cudnnPoolingDescriptor_t);

/// What a `miopenPoolingDescriptor_t` points to.
type Described = hip_provider::miopen::Described<Pooling, Raw>;

impl Own<Pooling> for Raw {
    fn new() -> Outcome<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the function is cuDNN's, the pointer valid.
        answered(unsafe { cudnn::cudnnCreatePoolingDescriptor(&mut raw) })?;
        Ok(Raw(raw))
    }

    fn set(&mut self, values: &Pooling) -> Outcome {
        use cudnn::cudnnPoolingMode_t::*;
        let mode = match values.mode {
            miopenPoolingMax => CUDNN_POOLING_MAX,
            miopenPoolingAverage => CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING,
            _ => CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING,
        };
        let nan = cudnn::cudnnNanPropagation_t::CUDNN_PROPAGATE_NAN;
        let lists = [&values.window, &values.pad, &values.stride];
        let [window, pad, stride] =
            lists.map(|list| list.iter().map(|&value| value as c_int).collect::<Vec<_>>());
        let axes = window.len() as c_int;
        // SAFETY: cuDNN's descriptor; the three lists are equally long.
        answered(unsafe {
            let (window, pad, stride) = (window.as_ptr(), pad.as_ptr(), stride.as_ptr());
            cudnn::cudnnSetPoolingNdDescriptor(self.0, mode, nan, axes, window, pad, stride)
        })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: cuDNN's descriptor; calls that read it have returned.
        let _ = unsafe { cudnn::cudnnDestroyPoolingDescriptor(self.0) };
    }
}

/// `Axis` of `own.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Axis {
    input: c_int,
    output: c_int,
    window: c_int,
    stride: c_int,
    pad: c_int,
}

/// `Pool` of `own.cu`. In 2-D the first axis has length 1.
#[repr(C)]
#[derive(Clone, Copy)]
struct Shape {
    planes: i64,
    axes: [Axis; 3],
    masked: c_int,
}

impl Shape {
    fn new(pooling: &Pooling, x: &Tensor, y: &Tensor) -> Outcome<Self> {
        require(matches!(x.data, miopenFloat | miopenHalf), miopenStatusNotImplemented)?;
        let mut shape = Shape {
            planes: (x.dims[0] * x.dims[1]) as i64,
            axes: [Axis { input: 1, output: 1, window: 1, stride: 1, pad: 0 }; 3],
            masked: c_int::from(pooling.index_mode == miopenPoolingWorkspaceIndexMask),
        };
        for (i, axis) in shape.axes[3 - pooling.window.len()..].iter_mut().enumerate() {
            *axis = Axis {
                input: x.dims[i + 2] as c_int,
                output: y.dims[i + 2] as c_int,
                window: pooling.window[i] as c_int,
                stride: pooling.stride[i] as c_int,
                pad: pooling.pad[i] as c_int,
            };
        }
        Ok(shape)
    }
}

/// The kernel of `own.cu` for these types.
fn kernel(backward: bool, pooling: &Pooling, data: miopenDataType_t) -> Outcome<&'static str> {
    macro_rules! names {
        ($($type:ident $index:ident $arguments:literal;)*) => {
            match (data, pooling.index) {
                $( ($type, $index) => match (backward, pooling.window.len()) {
                    (true, 3) => concat!("max_backward<3, ", $arguments, ">"),
                    (true, _) => concat!("max_backward<2, ", $arguments, ">"),
                    (false, 3) => concat!("max_forward<3, ", $arguments, ">"),
                    (false, _) => concat!("max_forward<2, ", $arguments, ">"),
                }, )*
                _ => return Err(miopenStatusNotImplemented),
            }
        };
    }
    Ok(names! {
        miopenFloat miopenIndexUint8 "float, unsigned char";
        miopenFloat miopenIndexUint16 "float, u16";
        miopenFloat miopenIndexUint32 "float, u32";
        miopenFloat miopenIndexUint64 "float, u64";
        miopenHalf miopenIndexUint8 "f16, unsigned char";
        miopenHalf miopenIndexUint16 "f16, u16";
        miopenHalf miopenIndexUint32 "f16, u32";
        miopenHalf miopenIndexUint64 "f16, u64";
    })
}

/// # Safety
/// The buffers are of the shape's sizes.
unsafe fn launch(
    handle: &Handle,
    name: &'static str,
    mut shape: Shape,
    items: usize,
    mut buffers: [*mut c_void; 3],
) -> Outcome {
    let [a, b, c] = &mut buffers;
    let mut arguments =
        [(&raw mut shape).cast(), ptr::from_mut(a).cast(), ptr::from_mut(b).cast(), ptr::from_mut(c).cast()];
    // SAFETY: the kernel's arguments; the buffers are the caller's.
    unsafe { own_kernels::launch(name, items as u64, handle.stream(), &mut arguments) }
        .map_err(|_| miopenStatusInternalError)
}

impl Poolings for Handle {
    type Own = Raw;

    unsafe fn pool_forward(
        &self,
        pooling: &Described,
        x: &Operand<'_>,
        y: &Operand<'_>,
        indices: Option<*mut c_void>,
    ) -> Outcome {
        let shape = Shape::new(pooling, x, y)?;
        check(&[x, y])?;
        if pooling.mode != miopenPoolingMax {
            let (one, zero) = (one(x.data), zero());
            let (raw, xt, x, yt, y) = (pooling.own.0, x.own.raw, x.at, y.own.raw, y.at);
            // SAFETY: live handle and descriptors, buffers of their sizes, scalars of this program.
            return answered(unsafe { cudnn::cudnnPoolingForward(self.raw, raw, one, xt, x, zero, yt, y) });
        }
        if let Some(indices) = indices {
            check_buffer(indices, pooling.workspace(y.count()))?;
        }
        let indices = indices.unwrap_or(ptr::null_mut());
        let name = kernel(false, pooling, x.data)?;
        // SAFETY: the buffers were checked.
        unsafe { launch(self, name, shape, y.count(), [x.at, y.at, indices]) }
    }

    unsafe fn pool_backward(
        &self,
        pooling: &Described,
        [x, y]: [&Operand<'_>; 2],
        dy: &Operand<'_>,
        dx: &Operand<'_>,
        indices: *mut c_void,
    ) -> Outcome {
        let shape = Shape::new(pooling, dx, dy)?;
        check(&[dy, dx])?;
        if pooling.mode == miopenPoolingMax {
            check_buffer(indices, pooling.workspace(dy.count()))?;
            let name = kernel(true, pooling, dx.data)?;
            // A thread has four neighbouring pixels of a line.
            let width = dx.dims.last().copied().unwrap_or(1).max(1);
            let pieces = dx.count() / width * width.div_ceil(4);
            // SAFETY: the buffers were checked.
            return unsafe { launch(self, name, shape, pieces, [dy.at, indices, dx.at]) };
        }
        let (one, zero, raw) = (one(x.data), zero(), pooling.own.0);
        let (xt, yt, dyt, dxt) = (x.own.raw, y.own.raw, dy.own.raw, dx.own.raw);
        // An average's gradient reads neither x nor y, but cuDNN refuses null pointers.
        let (y, x) = (if y.at.is_null() { dy.at } else { y.at }, if x.at.is_null() { dx.at } else { x.at });
        let (dy, dx) = (dy.at, dx.at);
        // SAFETY: as above.
        answered(unsafe {
            cudnn::cudnnPoolingBackward(self.raw, raw, one, yt, y, dyt, dy, xt, x, zero, dxt, dx)
        })
    }
}
