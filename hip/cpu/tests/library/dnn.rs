//! MIOpen's handle and descriptors for tests.
#![allow(dead_code, unreachable_pub)]

use half::{bf16, f16};
use miopen_sys::*;

pub struct Dnn {
    pub table: Miopen,
    pub handle: miopenHandle_t,
}

impl Dnn {
    pub fn new() -> Self {
        let table = hip_cpu::miopen_table();
        let mut handle = core::ptr::null_mut();
        // SAFETY: an out-pointer.
        let status = unsafe { (table.miopenCreateWithStream)(&mut handle, core::ptr::null_mut()) };
        assert_eq!(status, miopenStatusSuccess);
        Dnn { table, handle }
    }

    pub fn tensor(&self, data: miopenDataType_t, dims: &[usize]) -> Tensor {
        let dims: Vec<i32> = dims.iter().map(|&dim| dim as i32).collect();
        let mut descriptor = core::ptr::null_mut();
        // SAFETY: out-pointers and arrays of their length.
        unsafe {
            assert_eq!((self.table.miopenCreateTensorDescriptor)(&mut descriptor), miopenStatusSuccess);
            let rank = dims.len() as i32;
            let status = (self.table.miopenSetTensorDescriptor)(
                descriptor,
                data,
                rank,
                dims.as_ptr(),
                core::ptr::null(),
            );
            assert_eq!(status, miopenStatusSuccess);
        }
        Tensor { table: self.table, descriptor }
    }
}

impl Drop for Dnn {
    fn drop(&mut self) {
        // SAFETY: created above, destroyed once.
        unsafe { (self.table.miopenDestroy)(self.handle) };
    }
}

pub struct Tensor {
    table: Miopen,
    descriptor: miopenTensorDescriptor_t,
}

impl Tensor {
    pub fn get(&self) -> miopenTensorDescriptor_t {
        self.descriptor
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: created above, destroyed once.
        unsafe { (self.table.miopenDestroyTensorDescriptor)(self.descriptor) };
    }
}

/// A type with its MIOpen name.
pub trait Typed: super::Number {
    const DATA: miopenDataType_t;
}
impl Typed for f32 {
    const DATA: miopenDataType_t = miopenFloat;
}
impl Typed for f64 {
    const DATA: miopenDataType_t = miopenDouble;
}
impl Typed for f16 {
    const DATA: miopenDataType_t = miopenHalf;
}
impl Typed for bf16 {
    const DATA: miopenDataType_t = miopenBFloat16;
}
