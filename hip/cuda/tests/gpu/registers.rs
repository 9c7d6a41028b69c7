use std::ffi::CStr;
use std::ptr::null_mut;

use cudarc::driver::sys as cuda;
use hip_sys::*;

use crate::{Memory, gpu, kernel, launch, ok};

/// 96 values of a thread, which all live until the end.
const WIDE: &CStr = c"
template <class T> __device__ void wide(const T *x, T *out) {
    T v[96];
    #pragma unroll
    for (int i = 0; i < 96; ++i) v[i] = x[(threadIdx.x + i) % 96];
    for (int round = 0; round < 3; ++round) {
        #pragma unroll
        for (int i = 0; i < 96; ++i) v[i] = v[i] * v[(i + 1) % 96] + v[(i + 7) % 96];
    }
    T sum = 0;
    #pragma unroll
    for (int i = 0; i < 96; ++i) sum += v[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
__global__ void unbound(const float *x, float *out) { wide(x, out); }
__global__ __launch_bounds__(256) void bound(const float *x, float *out) { wide(x, out); }
";

/// Every kernel without launch bounds can start with blocks of 1024 threads, as with AMD's hipRTC.
pub(crate) fn blocks_of_1024_threads_start() {
    let hip = gpu(&[]);
    let [unbound, bound] = [c"unbound", c"bound"].map(|name| kernel(&hip, WIDE, name));
    let registers = |function: hipFunction_t| {
        let mut count = 0;
        let attribute = cuda::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_NUM_REGS;
        // SAFETY: a live function; the pointer is valid.
        let status = unsafe { cuda::cuFuncGetAttribute(&mut count, attribute, function.cast()) };
        assert_eq!(status, cuda::CUresult::CUDA_SUCCESS);
        count
    };
    assert!(registers(unbound) <= 64, "{}", registers(unbound));
    assert!(registers(bound) > 64, "launch bounds give all that 256 threads have: {}", registers(bound));
    let x = Memory::of(&hip, &[0.5f32; 96]);
    let out = Memory::new(&hip, 4 * 1024);
    let run = |function, threads| {
        let (mut from, mut to) = (x.address, out.address);
        let parameters = &mut [(&raw mut from).cast(), (&raw mut to).cast()];
        // SAFETY: the kernel's parameters; the buffers have what it reads and writes.
        unsafe { launch(&hip, function, [1, threads], null_mut(), parameters) }
    };
    ok(run(unbound, 1024));
    let many = out.read::<f32>();
    ok(run(bound, 256));
    let few = out.read::<f32>();
    assert!(many.iter().all(|value| *value == few[0] && value.is_finite()), "{} {}", many[0], few[0]);
    assert_ne!(run(bound, 1024), hipSuccess);
    // SAFETY: no precondition: what was just refused is the thread's last error.
    assert_ne!(unsafe { (hip.hipGetLastError)() }, hipSuccess);
}
