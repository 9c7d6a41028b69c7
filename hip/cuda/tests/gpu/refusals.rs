use std::ffi::c_int;
use std::ptr::{null, null_mut};

use hip_cuda::{Library, miopen_table, rocblas_table};
use miopen_sys::*;
use rocblas_sys::*;

use crate::gpu;

/// MIOpen with a handle, and the descriptors made with it. All are leaked, because the process ends
/// soon.
struct Dnn {
    table: Miopen,
    handle: miopenHandle_t,
}

#[track_caller]
fn done(status: miopenStatus_t) {
    assert_eq!(status, miopenStatusSuccess);
}

impl Dnn {
    fn new() -> Self {
        gpu(&[Library::Cudnn]);
        let (table, mut handle) = (miopen_table(), null_mut());
        // SAFETY: the function is MIOpen's; the pointer is valid, the stream the default one.
        done(unsafe { (table.miopenCreateWithStream)(&mut handle, null_mut()) });
        Self { table, handle }
    }

    /// A tensor descriptor. Each row of the last axis is followed by a gap of `gap` elements.
    fn tensor(&self, data: miopenDataType_t, dims: [c_int; 4], gap: c_int) -> miopenTensorDescriptor_t {
        let mut strides = [1; 4];
        for axis in (0..3).rev() {
            strides[axis] = strides[axis + 1] * dims[axis + 1] + if axis == 2 { gap } else { 0 };
        }
        let mut made = null_mut();
        // SAFETY: the functions are MIOpen's; the arrays have four values.
        unsafe {
            done((self.table.miopenCreateTensorDescriptor)(&mut made));
            done((self.table.miopenSetTensorDescriptor)(made, data, 4, dims.as_ptr(), strides.as_ptr()));
        }
        made
    }

    fn convolution(&self, stride: c_int, dilation: c_int) -> miopenConvolutionDescriptor_t {
        let mut made = null_mut();
        let (padding, stride, dilation) = ([0; 2], [stride; 2], [dilation; 2]);
        // SAFETY: the functions are MIOpen's; the arrays have two values.
        unsafe {
            done((self.table.miopenCreateConvolutionDescriptor)(&mut made));
            done((self.table.miopenInitConvolutionNdDescriptor)(
                made,
                2,
                padding.as_ptr(),
                stride.as_ptr(),
                dilation.as_ptr(),
                miopenConvolution,
            ));
        }
        made
    }

    /// The statuses of the forward direction and the data gradient of a 3x3 convolution: 9x9 to 4x4
    /// with strides of 2, or to 3x3 if the window is dilated.
    fn solutions(&self, data: miopenDataType_t, dilation: c_int, gap: c_int) -> [miopenStatus_t; 2] {
        let out = (9 - 2 * dilation - 1) / 2 + 1;
        let [x, w, y] =
            [[2, 3, 9, 9], [4, 3, 3, 3], [2, 4, out, out]].map(|dims| self.tensor(data, dims, gap));
        let conv = self.convolution(2, dilation);
        let mut count = 0;
        // SAFETY: live handle and descriptors; the pointer is valid.
        unsafe {
            [
                (self.table.miopenConvolutionForwardGetSolutionCount)(self.handle, w, x, conv, y, &mut count),
                (self.table.miopenConvolutionBackwardDataGetSolutionCount)(
                    self.handle,
                    y,
                    w,
                    conv,
                    x,
                    &mut count,
                ),
            ]
        }
    }

    /// The status of an average pooling without memory, which is checked last.
    fn pooling(&self, data: miopenDataType_t, gap: c_int) -> miopenStatus_t {
        let [x, y] = [[2, 3, 8, 8], [2, 3, 4, 4]].map(|dims| self.tensor(data, dims, gap));
        let (mut pool, one, zero) = (null_mut(), 1.0f32, 0.0f32);
        // SAFETY: live handle and descriptors, scalars of the host; null buffers are refused.
        unsafe {
            done((self.table.miopenCreatePoolingDescriptor)(&mut pool));
            let (two, none) = ([2, 2], [0, 0]);
            done((self.table.miopenSetNdPoolingDescriptor)(
                pool,
                miopenPoolingAverage,
                2,
                two.as_ptr(),
                none.as_ptr(),
                two.as_ptr(),
            ));
            (self.table.miopenPoolingForward)(
                self.handle,
                pool,
                (&raw const one).cast(),
                x,
                null(),
                (&raw const zero).cast(),
                y,
                null_mut(),
                false,
                null_mut(),
                0,
            )
        }
    }
}

pub(crate) fn convolutions_that_neither_takes_are_not_implemented() {
    let dnn = Dnn::new();
    for data in [miopenFloat, miopenHalf, miopenBFloat16] {
        assert_eq!(dnn.solutions(data, 1, 0), [miopenStatusSuccess; 2], "{data:?}");
        // Strides and dilations of 2. cuDNN 9.14 fails in the data gradient of these.
        let expected = [miopenStatusSuccess, miopenStatusNotImplemented];
        assert_eq!(dnn.solutions(data, 2, 0), expected, "{data:?}");
        // Weights with gaps.
        assert_eq!(dnn.solutions(data, 1, 5), [miopenStatusNotImplemented; 2], "{data:?}");
    }
    assert_eq!(dnn.solutions(miopenDouble, 1, 0), [miopenStatusNotImplemented; 2]);
}

pub(crate) fn pooling_of_other_types_and_layouts_is_not_implemented() {
    let dnn = Dnn::new();
    for data in [miopenFloat, miopenHalf] {
        assert_eq!(dnn.pooling(data, 3), miopenStatusNotImplemented, "{data:?} with gaps");
        let refused = dnn.pooling(data, 0);
        assert!(
            refused != miopenStatusSuccess && refused != miopenStatusNotImplemented,
            "no memory: {refused:?}"
        );
    }
    for data in [miopenBFloat16, miopenDouble] {
        assert_eq!(dnn.pooling(data, 0), miopenStatusNotImplemented, "{data:?}");
    }
}

/// Otherwise cuDNN would get the strides of another tensor.
pub(crate) fn strides_past_32_bits_are_not_implemented() {
    let dnn = Dnn::new();
    let large = dnn.tensor(miopenFloat, [1; 4], 0);
    let (dims, mut pool, mut bytes) = ([2, 65536, 65537, 1], null_mut(), 0);
    // SAFETY: live descriptors, four lengths, valid pointers.
    unsafe {
        done((dnn.table.miopenSetTensorDescriptor)(large, miopenFloat, 4, dims.as_ptr(), null()));
        done((dnn.table.miopenCreatePoolingDescriptor)(&mut pool));
        let status = (dnn.table.miopenPoolingGetWorkSpaceSizeV2)(pool, large, &mut bytes);
        assert_eq!(status, miopenStatusNotImplemented);
    }
}

/// hip-provider's tests hold the rules for arguments. Here they are checked before cuBLAS
/// is called.
pub(crate) fn products_of_other_types_are_not_implemented() {
    gpu(&[Library::Cublas]);
    let rocblas = rocblas_table();
    let mut handle = null_mut();
    // SAFETY: the function is rocBLAS's; the pointer is valid.
    assert_eq!(unsafe { (rocblas.rocblas_create_handle)(&mut handle) }, rocblas_status_success);
    let gemm = |sums| {
        let (one, none, f32) = (1.0f64, rocblas_operation_none, rocblas_datatype_f32_r);
        let scalar = (&raw const one).cast();
        let (algorithm, at) = (rocblas_gemm_algo_standard, null());
        // SAFETY: a live handle; types are looked at before memory, and null is refused.
        unsafe {
            (rocblas.rocblas_gemm_ex)(
                handle,
                none,
                none,
                4,
                4,
                4,
                scalar,
                at,
                f32,
                4,
                at,
                f32,
                4,
                scalar,
                at,
                f32,
                4,
                null_mut(),
                f32,
                4,
                sums,
                algorithm,
                0,
                0,
            )
        }
    };
    assert_eq!(gemm(rocblas_datatype_f64_r), rocblas_status_not_implemented);
    assert_eq!(gemm(rocblas_datatype_f32_r), rocblas_status_invalid_pointer, "types that it has");
    // SAFETY: the handle made above, used no more.
    assert_eq!(unsafe { (rocblas.rocblas_destroy_handle)(handle) }, rocblas_status_success);
}
