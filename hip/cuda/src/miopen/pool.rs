//! Pooling. Averages are cuDNN's. Maxima are this provider's own: cuDNN keeps no index of a maximum.

use super::handle::{Handle, with};
use super::status::{answered, check_buffer, one, zero};
use super::tensor::{Tensor, tensor};
use crate::own_kernels;
use core::ffi::{c_int, c_void};
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::{Outcome, Own, Pooling, answer, object, plain_scalars, status};
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

pub(super) unsafe extern "C" fn miopenPoolingGetWorkSpaceSizeV2(
    poolDesc: miopenPoolingDescriptor_t,
    yDesc: miopenTensorDescriptor_t,
    workSpaceSize: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller's descriptors and out-pointer.
    status(|| unsafe {
        let pooling = object::<Described, _>(poolDesc)?;
        let y = tensor(yDesc)?;
        answer(workSpaceSize, pooling.workspace(y.count()))
    })
}

/// `own.cu`'s: what there is of an axis.
#[repr(C)]
#[derive(Clone, Copy)]
struct Axis {
    input: c_int,
    output: c_int,
    window: c_int,
    stride: c_int,
    pad: c_int,
}

/// `own.cu`'s. In 2-D the first axis is one of length 1.
#[repr(C)]
#[derive(Clone, Copy)]
struct Shape {
    planes: i64,
    axes: [Axis; 3],
    masked: c_int,
}

impl Shape {
    /// Checks the descriptors against each other.
    fn new(pooling: &Pooling, x: &Tensor, y: &Tensor) -> Outcome<Self> {
        let spatial = pooling.window.len();
        let rank = spatial + 2;
        require(x.dims.len() == rank && y.dims.len() == rank && x.data == y.data, miopenStatusBadParm)?;
        require(x.dims[..2] == y.dims[..2], miopenStatusBadParm)?;
        require(matches!(x.data, miopenFloat | miopenHalf), miopenStatusNotImplemented)?;
        x.require_packed()?;
        y.require_packed()?;
        let mut shape = Shape {
            planes: (x.dims[0] * x.dims[1]) as i64,
            axes: [Axis { input: 1, output: 1, window: 1, stride: 1, pad: 0 }; 3],
            masked: c_int::from(pooling.index_mode == miopenPoolingWorkspaceIndexMask),
        };
        for (i, axis) in shape.axes[3 - spatial..].iter_mut().enumerate() {
            *axis = Axis {
                input: x.dims[i + 2] as c_int,
                output: y.dims[i + 2] as c_int,
                window: pooling.window[i] as c_int,
                stride: pooling.stride[i] as c_int,
                pad: pooling.pad[i] as c_int,
            };
            let padded = axis.input + 2 * axis.pad;
            require(padded >= axis.window, miopenStatusBadParm)?;
            require(axis.output == (padded - axis.window) / axis.stride + 1, miopenStatusBadParm)?;
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
    unsafe { own_kernels::launch(name, items as u64, handle.stream, &mut arguments) }
        .map_err(|_| miopenStatusInternalError)
}

pub(super) unsafe extern "C" fn miopenPoolingForward(
    handle: miopenHandle_t,
    poolDesc: miopenPoolingDescriptor_t,
    alpha: *const c_void,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    beta: *const c_void,
    yDesc: miopenTensorDescriptor_t,
    y: *mut c_void,
    do_backward: bool,
    workSpace: *mut c_void,
    workSpaceSize: usize,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, scalars and buffers, which are checked.
    unsafe {
        with(handle, |handle| {
            let (pooling, xt, yt) = (object::<Described, _>(poolDesc)?, tensor(xDesc)?, tensor(yDesc)?);
            let shape = Shape::new(pooling, xt, yt)?;
            plain_scalars(alpha, beta, xt.data)?;
            check_buffer(x, xt.bytes())?;
            check_buffer(y, yt.bytes())?;
            if pooling.mode != miopenPoolingMax {
                let (xt, yt) = (xt.raw, yt.raw);
                return answered(cudnn::cudnnPoolingForward(
                    handle.raw,
                    pooling.own.0,
                    one(),
                    xt,
                    x,
                    zero(),
                    yt,
                    y,
                ));
            }
            let indices = if do_backward {
                let bytes = yt.count() * pooling.index_size();
                require(workSpaceSize >= bytes, miopenStatusBadParm)?;
                check_buffer(workSpace, bytes)?;
                workSpace
            } else {
                ptr::null_mut()
            };
            let name = kernel(false, pooling, xt.data)?;
            launch(handle, name, shape, yt.count(), [x.cast_mut(), y, indices])
        })
    }
}

pub(super) unsafe extern "C" fn miopenPoolingBackward(
    handle: miopenHandle_t,
    poolDesc: miopenPoolingDescriptor_t,
    alpha: *const c_void,
    yDesc: miopenTensorDescriptor_t,
    y: *const c_void,
    dyDesc: miopenTensorDescriptor_t,
    dy: *const c_void,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    beta: *const c_void,
    dxDesc: miopenTensorDescriptor_t,
    dx: *mut c_void,
    workSpace: *mut c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, scalars and buffers, which are checked.
    unsafe {
        with(handle, |handle| {
            let pooling = object::<Described, _>(poolDesc)?;
            let (yt, dyt, xt, dxt) = (tensor(yDesc)?, tensor(dyDesc)?, tensor(xDesc)?, tensor(dxDesc)?);
            Shape::new(pooling, xt, yt)?;
            let shape = Shape::new(pooling, dxt, dyt)?;
            plain_scalars(alpha, beta, dxt.data)?;
            check_buffer(dy, dyt.bytes())?;
            check_buffer(dx, dxt.bytes())?;
            if pooling.mode == miopenPoolingMax {
                check_buffer(workSpace, dyt.count() * pooling.index_size())?;
                let name = kernel(true, pooling, dxt.data)?;
                return launch(handle, name, shape, dxt.count(), [dy.cast_mut(), workSpace, dx]);
            }
            // An average's gradient reads neither x nor y; cuDNN wants pointers.
            let (y, x) = (if y.is_null() { dy } else { y }, if x.is_null() { dx.cast_const() } else { x });
            answered(cudnn::cudnnPoolingBackward(
                handle.raw,
                pooling.own.0,
                one(),
                yt.raw,
                y,
                dyt.raw,
                dy,
                xt.raw,
                x,
                zero(),
                dxt.raw,
                dx,
            ))
        })
    }
}
