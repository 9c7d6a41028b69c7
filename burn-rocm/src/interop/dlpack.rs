//! The C structs of DLPack 1.1, and the codes of dtypes and devices.
//!
//! Names and layouts are those of `dlpack.h` (<https://github.com/dmlc/dlpack>, tag `v1.1`).
#![allow(non_upper_case_globals, reason = "the names of the C header")]

use core::ffi::c_void;

use burn_std::{BoolStore, DType};

/// `DLPackVersion`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLPackVersion {
    /// Structs of different major versions have different layouts.
    pub major: u32,
    /// Structs of different minor versions have the same layout.
    pub minor: u32,
}

/// The version whose structs this module declares.
pub const DLPACK_VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 1 };

/// The host's memory.
pub const kDLCPU: i32 = 1;
/// The memory of a GPU of NVIDIA.
pub const kDLCUDA: i32 = 2;
/// The memory of a GPU of AMD.
pub const kDLROCM: i32 = 10;

/// `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDevice {
    /// One of the constants above, or another library's.
    pub device_type: i32,
    /// The index among the devices of the type; 0 for the host's memory.
    pub device_id: i32,
}

/// Signed integers.
pub const kDLInt: u8 = 0;
/// Unsigned integers.
pub const kDLUInt: u8 = 1;
/// IEEE floats.
pub const kDLFloat: u8 = 2;
/// bfloat16.
pub const kDLBfloat: u8 = 4;
/// Bools of 8 bits.
pub const kDLBool: u8 = 6;

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDataType {
    /// One of the constants above, or another one of DLPack's.
    pub code: u8,
    /// The bits of one element.
    pub bits: u8,
    /// 1, unless elements are vectors.
    pub lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
#[derive(Debug)]
pub struct DLTensor {
    /// The memory.
    pub data: *mut c_void,
    /// Where the memory is.
    pub device: DLDevice,
    /// The number of dims.
    pub ndim: i32,
    /// The elements' type.
    pub dtype: DLDataType,
    /// The sizes of the dims.
    pub shape: *mut i64,
    /// The strides in elements; null for row-major order.
    pub strides: *mut i64,
    /// The first element's distance from `data`, in bytes.
    pub byte_offset: u64,
}

/// `DLManagedTensor`: the struct of a capsule named `dltensor`.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// The producer's.
    pub manager_ctx: *mut c_void,
    /// Releases the struct and its tensor. The consumer calls it once, from any thread.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// The flag of a tensor that the consumer must not write.
pub const DLPACK_FLAG_BITMASK_READ_ONLY: u64 = 1;
/// The flag of a tensor that the producer has copied for the consumer.
pub const DLPACK_FLAG_BITMASK_IS_COPIED: u64 = 2;

/// `DLManagedTensorVersioned`: the struct of a capsule named `dltensor_versioned`.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// The version. If its major number is not the consumer's, the consumer may only read this
    /// field and call the deleter.
    pub version: DLPackVersion,
    /// The producer's.
    pub manager_ctx: *mut c_void,
    /// Releases the struct and its tensor. The consumer calls it once, from any thread.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// The flags above.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

/// The dtypes that DLPack and this backend have.
const DTYPES: [(DType, u8, u8); 13] = [
    (DType::F64, kDLFloat, 64),
    (DType::F32, kDLFloat, 32),
    (DType::F16, kDLFloat, 16),
    (DType::BF16, kDLBfloat, 16),
    (DType::I64, kDLInt, 64),
    (DType::I32, kDLInt, 32),
    (DType::I16, kDLInt, 16),
    (DType::I8, kDLInt, 8),
    (DType::U64, kDLUInt, 64),
    (DType::U32, kDLUInt, 32),
    (DType::U16, kDLUInt, 16),
    (DType::U8, kDLUInt, 8),
    (DType::Bool(BoolStore::Native), kDLBool, 8),
];

/// Burn's dtype; `None` if this backend has no such elements.
pub(super) fn dtype_of(found: DLDataType) -> Option<DType> {
    let same =
        |&&(_, code, bits): &&(DType, u8, u8)| (code, bits, 1) == (found.code, found.bits, found.lanes);
    DTYPES.iter().find(same).map(|&(dtype, ..)| dtype)
}

/// DLPack's dtype; `None` if DLPack has no such elements.
pub(super) fn data_type(dtype: DType) -> Option<DLDataType> {
    let dtype = match dtype {
        DType::Flex32 => DType::F32,
        DType::Bool(BoolStore::U8) => DType::Bool(BoolStore::Native),
        dtype => dtype,
    };
    let found = DTYPES.iter().find(|(own, ..)| *own == dtype);
    found.map(|&(_, code, bits)| DLDataType { code, bits, lanes: 1 })
}

/// A device for messages.
pub(super) fn device_name(device: DLDevice) -> String {
    let name = match device.device_type {
        kDLCPU => "kDLCPU".into(),
        kDLCUDA => "kDLCUDA".into(),
        kDLROCM => "kDLROCM".into(),
        other => format!("device type {other}"),
    };
    format!("{name}, id {}", device.device_id)
}

#[cfg(test)]
mod tests {
    use core::mem::{offset_of, size_of};

    use super::*;

    /// Sizes and offsets of `dlpack.h` v1.1, by gcc 12 on x86-64.
    #[test]
    fn layouts_are_the_headers() {
        assert_eq!(size_of::<DLTensor>(), 48);
        assert_eq!(offset_of!(DLTensor, device), 8);
        assert_eq!(offset_of!(DLTensor, ndim), 16);
        assert_eq!(offset_of!(DLTensor, dtype), 20);
        assert_eq!(offset_of!(DLTensor, shape), 24);
        assert_eq!(offset_of!(DLTensor, strides), 32);
        assert_eq!(offset_of!(DLTensor, byte_offset), 40);
        assert_eq!(size_of::<DLManagedTensor>(), 64);
        assert_eq!(offset_of!(DLManagedTensor, manager_ctx), 48);
        assert_eq!(offset_of!(DLManagedTensor, deleter), 56);
        assert_eq!(size_of::<DLManagedTensorVersioned>(), 80);
        assert_eq!(offset_of!(DLManagedTensorVersioned, manager_ctx), 8);
        assert_eq!(offset_of!(DLManagedTensorVersioned, deleter), 16);
        assert_eq!(offset_of!(DLManagedTensorVersioned, flags), 24);
        assert_eq!(offset_of!(DLManagedTensorVersioned, dl_tensor), 32);
    }

    #[test]
    fn dtypes_go_there_and_back() {
        for (dtype, code, bits) in DTYPES {
            let found = DLDataType { code, bits, lanes: 1 };
            assert_eq!((data_type(dtype), dtype_of(found)), (Some(found), Some(dtype)));
            assert_eq!(usize::from(bits), 8 * dtype.size());
            assert_eq!(dtype_of(DLDataType { lanes: 2, ..found }), None);
        }
        assert_eq!(data_type(DType::Flex32), data_type(DType::F32));
        assert_eq!(data_type(DType::Bool(BoolStore::U32)), None);
    }
}
