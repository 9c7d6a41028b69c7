//! RCCL's types, constants and functions; names, values and signatures are AMD's.
#![allow(missing_docs)] // The reference of NCCL describes each function and value.

use core::ffi::{c_char, c_int, c_void};
use hip_sys::hipStream_t;

/// What an `ncclComm_t` points to.
#[repr(C)]
pub struct ncclComm {
    _private: [u8; 0],
}
/// One rank of a group.
pub type ncclComm_t = *mut ncclComm;

/// The length of [`ncclUniqueId`] in bytes.
pub const NCCL_UNIQUE_ID_BYTES: c_int = 128;

/// Names a group. One rank makes it, and all ranks join by it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclUniqueId {
    pub internal: [c_char; 128],
}

hip_sys::c_enum! {
    /// What a call returns.
    pub enum ncclResult_t {
        ncclSuccess = 0,
        ncclUnhandledCudaError = 1,
        ncclSystemError = 2,
        ncclInternalError = 3,
        ncclInvalidArgument = 4,
        ncclInvalidUsage = 5,
        ncclRemoteError = 6,
        ncclInProgress = 7,
    }
}

hip_sys::c_enum! {
    /// What a reduction does.
    pub enum ncclRedOp_t {
        ncclSum = 0,
        ncclProd = 1,
        ncclMax = 2,
        ncclMin = 3,
        ncclAvg = 4,
    }
}

hip_sys::c_enum! {
    /// The type of elements.
    pub enum ncclDataType_t {
        ncclInt8 = 0,
        ncclUint8 = 1,
        ncclInt32 = 2,
        ncclUint32 = 3,
        ncclInt64 = 4,
        ncclUint64 = 5,
        ncclFloat16 = 6,
        ncclFloat32 = 7,
        ncclFloat64 = 8,
        ncclBfloat16 = 9,
        /// This and the next one exist from 2.24 on. On gfx942 they are FNUZ's types.
        ncclFloat8e4m3 = 10,
        ncclFloat8e5m2 = 11,
    }
}

hip_sys::function_table! {
    /// The functions of `librccl`, and of NVIDIA's `libnccl`.
    pub struct Rccl {
        required {
            fn ncclGetVersion(version: *mut c_int) -> ncclResult_t;
            fn ncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> ncclResult_t;
            fn ncclCommInitRank(
                comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int,
            ) -> ncclResult_t;
            fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t;
            fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t;
            fn ncclCommGetAsyncError(comm: ncclComm_t, asyncError: *mut ncclResult_t) -> ncclResult_t;
            fn ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t;
            fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t;
            fn ncclGetErrorString(result: ncclResult_t) -> *const c_char;
            fn ncclAllReduce(
                sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
                op: ncclRedOp_t, comm: ncclComm_t, stream: hipStream_t,
            ) -> ncclResult_t;
            fn ncclBroadcast(
                sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
                comm: ncclComm_t, stream: hipStream_t,
            ) -> ncclResult_t;
            fn ncclReduce(
                sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
                op: ncclRedOp_t, root: c_int, comm: ncclComm_t, stream: hipStream_t,
            ) -> ncclResult_t;
            fn ncclAllGather(
                sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: ncclDataType_t,
                comm: ncclComm_t, stream: hipStream_t,
            ) -> ncclResult_t;
            fn ncclReduceScatter(
                sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: ncclDataType_t,
                op: ncclRedOp_t, comm: ncclComm_t, stream: hipStream_t,
            ) -> ncclResult_t;
            fn ncclSend(
                sendbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int, comm: ncclComm_t,
                stream: hipStream_t,
            ) -> ncclResult_t;
            fn ncclRecv(
                recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, peer: c_int, comm: ncclComm_t,
                stream: hipStream_t,
            ) -> ncclResult_t;
            fn ncclGroupStart() -> ncclResult_t;
            fn ncclGroupEnd() -> ncclResult_t;
        }
        optional {
            fn ncclGetLastError(comm: ncclComm_t) -> *const c_char;
        }
    }
}
