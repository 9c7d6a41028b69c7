//! The HIP runtime and hipRTC through their C API: built-in kernels and kernels compiled at run
//! time, memory, handles, and this provider's own refusals. Those that it shares are tested in
//! hip-provider.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::macro_metavars_in_unsafe)]

mod common;

use common::*;
use hip_kernels::{DType, Functor, Template, families};
use hip_sys::*;
use std::{
    ffi::{CStr, c_void},
    panic::catch_unwind,
    ptr::null_mut,
    sync::{
        Once,
        atomic::{AtomicI32, AtomicUsize, Ordering},
    },
};

/// Gives the whole process two devices.
fn start() {
    static START: Once = Once::new();
    START.call_once(|| unsafe { std::env::set_var("BURN_ROCM_CPU_DEVICES", "2") });
}

fn binary(names: &[&str]) -> Vec<u8> {
    let family = families().iter().find(|family| family.name == "binary").unwrap();
    compile(family.source, hip_kernels::HEADERS, names, &["--offload-arch=cpu", "-O3"]).unwrap()
}

#[test]
fn built_in_kernels_run_for_any_grid() {
    start();
    let name = Template::binary_contiguous.functor(Functor::Add).ty(DType::F32).to_string();
    let code = binary(&[&name]);
    assert!(code.len() < 1000, "served from the table, not compiled");
    let function = function(load(&code).unwrap(), &name).unwrap();
    for n in [0usize, 1, 2, 3, 17, 1000, 4097] {
        let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let b: Vec<f32> = (0..n).map(|i| 0.5 * i as f32).collect();
        for blocks in [1, 2, 3, 8, 1000] {
            if n == 0 {
                continue;
            }
            let (a, b, out) = (Memory::of(&a), Memory::of(&b), Memory::new(4 * n));
            let status =
                launch(function, blocks, 1, &mut [arg(&(n as u64)), arg(&a.0), arg(&b.0), arg(&out.0)]);
            assert_eq!(status, hipSuccess);
            let out: Vec<f32> = out.read();
            assert!(out.iter().enumerate().all(|(i, x)| *x == 1.5 * i as f32), "n {n}, {blocks} blocks");
        }
    }
}

#[test]
fn packed_arguments() {
    start();
    let name = "binary_contiguous<Mul, i32>";
    let function = function(load(&binary(&[name])).unwrap(), name).unwrap();
    let (a, b, out) = (Memory::of(&[2i32, 3]), Memory::of(&[5i32, 7]), Memory::new(8));
    let mut packed = [2usize, a.0 as usize, b.0 as usize, out.0 as usize];
    for (size, expected) in [(32usize, hipSuccess), (31, hipErrorInvalidValue)] {
        let mut extra = [
            std::ptr::without_provenance_mut(1),
            packed.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(2),
            arg(&size),
            std::ptr::without_provenance_mut(3),
        ];
        let status = call!(
            HIP,
            hipModuleLaunchKernel,
            function,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            null_mut(),
            null_mut(),
            extra.as_mut_ptr()
        );
        assert_eq!(status, expected);
    }
    assert_eq!(out.read::<i32>(), [10, 21]);
}

#[test]
fn launches_that_amd_refuses() {
    start();
    let name = "binary_contiguous<Add, f32>";
    let module = load(&binary(&[name])).unwrap();
    let good = function(module, name).unwrap();
    assert_eq!(function(module, "binary_contiguous<Sub, f32>"), Err(hipErrorNotFound));
    let n = 0u64;
    let mut arguments = [arg(&n); 4];
    let mut run = |function, grid: [u32; 3], block: u32, shared, stream| {
        call!(
            HIP,
            hipModuleLaunchKernel,
            function,
            grid[0],
            grid[1],
            grid[2],
            block,
            1,
            1,
            shared,
            stream,
            arguments.as_mut_ptr(),
            null_mut()
        )
    };
    assert_eq!(run(good, [1; 3], 1, 0, null_mut()), hipSuccess);
    assert_eq!(run(0x1234usize as hipFunction_t, [1; 3], 1, 0, null_mut()), hipErrorInvalidHandle);
    assert_eq!(run(good, [0, 1, 1], 1, 0, null_mut()), hipErrorInvalidValue);
    assert_eq!(run(good, [1, 65537, 1], 1, 0, null_mut()), hipErrorInvalidValue);
    assert_eq!(run(good, [1; 3], 2, 0, null_mut()), hipErrorInvalidValue);
    assert_eq!(run(good, [1; 3], 1, 65537, null_mut()), hipErrorInvalidValue);
    assert_eq!(run(good, [1; 3], 1, 0, 0x77usize as hipStream_t), hipErrorInvalidValue);
    ok!(HIP, hipSetDevice, 1);
    assert_eq!(run(good, [1; 3], 1, 0, null_mut()), hipErrorInvalidDevice);
    ok!(HIP, hipSetDevice, 0);
    ok!(HIP, hipModuleUnload, module);
    assert_eq!(run(good, [1; 3], 1, 0, null_mut()), hipErrorInvalidHandle);
    assert_eq!(call!(HIP, hipModuleUnload, module), hipErrorInvalidHandle);
}

#[test]
fn dynamic_shared_memory() {
    start();
    let header = "__device__ float *of_header() { extern __shared__ float row[]; return row; }\n";
    let source = "#include \"mine.h\"
        #define TURN row[0] = x[1]; row[1] = x[0]; x[0] = row[0]; x[1] = row[1];
        template <class A, class B> struct Pair { A a; B b; };
        __global__ void plain(float *x) { extern __shared__ float row[]; TURN }
        __global__ void macro(float *x) { HIP_DYNAMIC_SHARED(float, row) TURN }
        __global__ void header(float *x) { float *row = of_header(); TURN }
        __global__ void pairs(float *x) {
            extern __shared__ Pair<float, float> pairs[];
            float *row = (float *)pairs;
            TURN
        }
        __global__ void aligned(float *x) {
            extern __shared__ __attribute__((aligned(64))) unsigned char bytes[];
            float *row = (float *)bytes;
            TURN
            x[0] += (unsigned long long)row % 64;
        }";
    let names = ["plain", "macro", "header", "pairs", "aligned"];
    let module = load(&compile(source, &[("mine.h", header)], &names, &[]).unwrap()).unwrap();
    let mut expected = [1.0f32, 2.0];
    let x = Memory::of(&expected);
    for name in names {
        assert_eq!(launch_with(function(module, name).unwrap(), 1, 1, 64, &mut [arg(&x.0)]), hipSuccess);
        expected.reverse();
        assert_eq!(x.read::<f32>(), expected, "{name}");
    }
    ok!(HIP, hipModuleUnload, module);
    let outside = "extern __shared__ float row[]; __global__ void outside(float *x) { *x = *row; }";
    assert!(compile(outside, &[], &["outside"], &[]).is_err());
}

/// The destructor of a thread-local value may enqueue work. The thread used this value first, so it
/// drops it last, after the library's own values.
#[test]
fn work_while_a_thread_ends() {
    static ADD: AtomicUsize = AtomicUsize::new(0);
    static AT_THE_END: AtomicI32 = AtomicI32::new(0);
    struct AtEnd;
    impl Drop for AtEnd {
        fn drop(&mut self) {
            AT_THE_END.store(catch_unwind(sum).unwrap_or_default(), Ordering::Relaxed);
        }
    }
    thread_local!(static AT_END: AtEnd = const { AtEnd });
    /// 41 and 1.
    fn sum() -> i32 {
        let x = Memory::new(4);
        ok!(HIP, hipMemsetD32Async, x.0, 41, 1, null_mut());
        let add = ADD.load(Ordering::Relaxed) as hipFunction_t;
        assert_eq!(launch_with(add, 1, 1, 64, &mut [arg(&x.0)]), hipSuccess);
        x.read::<i32>()[0]
    }
    start();
    let source = "extern \"C\" __global__ void add(int *x) {
        extern __shared__ int shared[];
        int *scratch = (int *)hip_cpu_scratch(64);
        shared[0] = x[0];
        scratch[0] = shared[0] + 1;
        x[0] = scratch[0];
    }";
    let module = load(&compile(source, &[], &[], &[]).unwrap()).unwrap();
    ADD.store(function(module, "add").unwrap() as usize, Ordering::Relaxed);
    let thread = std::thread::spawn(|| {
        AT_END.with(|_| ());
        sum()
    });
    assert_eq!(thread.join().unwrap(), 42);
    assert_eq!(AT_THE_END.load(Ordering::Relaxed), 42);
}

/// Ranges may overlap, and each registration counts for itself.
#[test]
fn registered_memory_is_the_devices_until_it_is_unregistered() {
    start();
    let memory = Memory::new(64);
    let mut local = [7u8; 64];
    let first = local.as_mut_ptr();
    let at = |offset: usize| -> *mut c_void { first.wrapping_add(offset).cast() };
    let copies = |offset: usize, bytes: usize| {
        let kind = hipMemcpyDeviceToDevice;
        call!(HIP, hipMemcpyAsync, memory.0, at(offset), bytes, kind, null_mut()) == hipSuccess
    };
    assert!(!copies(0, 1));
    ok!(HIP, hipHostRegister, at(8), 32, 0);
    assert!(copies(8, 32) && copies(39, 1) && !copies(7, 2) && !copies(8, 33) && !copies(40, 1));
    ok!(HIP, hipHostRegister, at(8), 16, 0);
    ok!(HIP, hipHostRegister, at(16), 40, 0);
    assert!(copies(8, 32) && copies(16, 40) && !copies(8, 48), "a range lies in one registration");
    ok!(HIP, hipHostUnregister, at(8));
    assert!(copies(8, 32), "the shorter one ended");
    ok!(HIP, hipHostUnregister, at(8));
    assert!(!copies(8, 1) && copies(16, 40));
    assert_eq!(call!(HIP, hipHostUnregister, at(8)), hipErrorInvalidValue);
    assert_eq!(call!(HIP, hipHostUnregister, at(20)), hipErrorInvalidValue);
    ok!(HIP, hipHostUnregister, at(16));
    assert!(!copies(16, 1));
    assert_eq!(call!(HIP, hipHostRegister, at(0), usize::MAX, 0), hipErrorInvalidValue);
}

#[test]
fn memory_is_checked() {
    start();
    let memory = Memory::of(&[1u8; 1000]);
    assert_eq!(memory.0 as usize % 256, 0);
    let inside = memory.0.wrapping_byte_add(8);
    assert_eq!(call!(HIP, hipFree, inside), hipErrorInvalidValue);
    let mut local = [0u8; 2000];
    let foreign: *mut c_void = local.as_mut_ptr().cast();
    assert_eq!(call!(HIP, hipFree, foreign), hipErrorInvalidValue);
    let copy = |to, from: *const c_void, n, kind| call!(HIP, hipMemcpyAsync, to, from, n, kind, null_mut());
    assert_eq!(copy(foreign, memory.0, 1000, hipMemcpyDeviceToHost), hipSuccess);
    assert_eq!(copy(foreign, memory.0, 1001, hipMemcpyDeviceToHost), hipErrorInvalidValue);
    assert_eq!(call!(HIP, hipMemsetAsync, memory.0, 7, 1001, null_mut()), hipErrorInvalidValue);
    ok!(HIP, hipMemsetAsync, memory.0, 7, 10, null_mut());
    ok!(HIP, hipMemsetD32Async, memory.0.wrapping_byte_add(12), -1, 2, null_mut());
    assert_eq!(
        memory.read::<u8>()[..22],
        [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 1, 1, 255, 255, 255, 255, 255, 255, 255, 255, 1, 1]
    );
    let mut pointer = memory.0;
    assert_eq!(call!(HIP, hipMalloc, &mut pointer, 1 << 45), hipErrorOutOfMemory);
    assert_eq!(call!(HIP, hipMalloc, &mut pointer, usize::MAX - 10), hipErrorOutOfMemory);
    ok!(HIP, hipMalloc, &mut pointer, 0);
    assert!(pointer.is_null());
    ok!(HIP, hipFree, pointer);
    let mut twice = null_mut();
    ok!(HIP, hipMalloc, &mut twice, 64);
    ok!(HIP, hipFree, twice);
    assert_eq!(call!(HIP, hipFree, twice), hipErrorInvalidValue);
    let mut pinned = null_mut();
    ok!(HIP, hipHostMalloc, &mut pinned, 64, 0);
    assert_eq!(call!(HIP, hipFree, pinned), hipErrorInvalidValue);
    ok!(HIP, hipHostFree, pinned);
    assert_eq!(call!(HIP, hipHostFree, pinned), hipErrorInvalidValue);
    let (mut free, mut total) = (0, 0);
    ok!(HIP, hipMemGetInfo, &mut free, &mut total);
    assert!(free > 0 && free <= total);
}

#[test]
fn large_copies_and_fills() {
    start();
    let words = (10 << 20) / 4 + 3;
    let data: Vec<u32> = (0..words as u32).collect();
    let one = Memory::of(&data);
    let two = Memory::new(4 * words);
    ok!(HIP, hipMemcpyAsync, two.0, one.0, one.1, hipMemcpyDeviceToDevice, null_mut());
    assert!(two.read::<u32>() == data);
    ok!(HIP, hipMemcpyPeerAsync, one.0, 0, two.0, 1, 4096, null_mut());
    assert_eq!(call!(HIP, hipMemcpyPeerAsync, one.0, 0, two.0, 2, 4096, null_mut()), hipErrorInvalidDevice);
    ok!(HIP, hipMemsetD32Async, two.0, 77, words, null_mut());
    assert!(two.read::<u32>().iter().all(|x| *x == 77));
}

#[test]
fn devices_streams_and_events() {
    start();
    ok!(HIP, hipInit, 0);
    let mut count = 0;
    ok!(HIP, hipGetDeviceCount, &mut count);
    assert_eq!(count, 2);
    assert_eq!(call!(HIP, hipSetDevice, 2), hipErrorInvalidDevice);
    assert_eq!(call!(HIP, hipSetDevice, -1), hipErrorInvalidDevice);
    let attribute = |which| {
        let mut value = 0;
        ok!(HIP, hipDeviceGetAttribute, &mut value, which, 0);
        value
    };
    assert_eq!(attribute(hipDeviceAttributeWarpSize), 1);
    assert_eq!(attribute(hipDeviceAttributeMaxThreadsPerBlock), 1);
    assert!(attribute(hipDeviceAttributeMultiprocessorCount) >= 1);
    let mut properties = hipDeviceProp_tR0600 { before: [1; 1160], gcnArchName: [1; 256], after: [1; 56] };
    ok!(HIP.hipGetDevicePropertiesR0600.as_ref().map(|f| Wrap { f: *f }).unwrap(), f, &mut properties, 0);
    let arch = unsafe { CStr::from_ptr(properties.gcnArchName.as_ptr()) }.to_str().unwrap();
    assert!(arch.starts_with("cpu-"), "{arch}");
    let mut can = 0;
    ok!(HIP, hipDeviceCanAccessPeer, &mut can, 0, 1);
    assert_eq!(can, 1);
    ok!(HIP, hipDeviceEnablePeerAccess, 1, 0);
    assert_eq!(call!(HIP, hipDeviceEnablePeerAccess, 1, 0), hipErrorPeerAccessAlreadyEnabled);

    let mut stream = null_mut();
    ok!(HIP, hipStreamCreateWithFlags, &mut stream, hipStreamNonBlocking);
    let event = |flags| {
        let mut event = null_mut();
        ok!(HIP, hipEventCreateWithFlags, &mut event, flags);
        event
    };
    let (start, stop, untimed) = (event(0), event(0), event(hipEventDisableTiming));
    let mut ms = 0.0;
    assert_eq!(call!(HIP, hipEventElapsedTime, &mut ms, start, stop), hipErrorInvalidHandle);
    ok!(HIP, hipEventRecord, start, stream);
    std::thread::sleep(std::time::Duration::from_millis(5));
    ok!(HIP, hipEventRecord, stop, stream);
    ok!(HIP, hipEventRecord, untimed, stream);
    ok!(HIP, hipStreamWaitEvent, stream, untimed, 0);
    ok!(HIP, hipEventQuery, stop);
    ok!(HIP, hipEventSynchronize, stop);
    ok!(HIP, hipEventElapsedTime, &mut ms, start, stop);
    assert!((5.0..1000.0).contains(&ms), "{ms}");
    assert_eq!(call!(HIP, hipEventElapsedTime, &mut ms, start, untimed), hipErrorInvalidHandle);
    ok!(HIP, hipEventDestroy, start);
    assert_ne!(call!(HIP, hipEventRecord, start, stream), hipSuccess);
    assert_ne!(call!(HIP, hipEventDestroy, start), hipSuccess);
    ok!(HIP, hipStreamSynchronize, stream);
    ok!(HIP, hipStreamDestroy, stream);
    assert_ne!(call!(HIP, hipStreamSynchronize, stream), hipSuccess);
    assert_ne!(call!(HIP, hipStreamDestroy, stream), hipSuccess);
    ok!(HIP, hipDeviceSynchronize);
}

struct Wrap {
    f: unsafe extern "C" fn(*mut hipDeviceProp_tR0600, i32) -> hipError_t,
}

#[test]
fn other_sources_go_to_the_hosts_compiler() {
    start();
    let source = "#include \"mine.h\"\n\
        template <class T> __global__ void scale(T *x, int n, T by) {\n\
            for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)\n\
                x[i] *= by * FACTOR;\n\
        }\n\
        extern \"C\" __global__ void root(float *x) { x[blockIdx.x] = sqrtf(x[blockIdx.x]); }\n\
        extern \"C\" __global__ void total(float *x, float *sum) { atomicAdd(sum, x[blockIdx.x]); }\n";
    let header = [("mine.h", "#define FACTOR TWO\n")];
    let names = ["scale<float>", "scale<long long>", "root", "total"];
    let code = compile(source, &header, &names, &["-DTWO=2", "--offload-arch=x"]).unwrap();
    // As another process would read it from a file.
    let module = load(&code.clone()).unwrap();
    let x = Memory::of(&[1.0f32, 4.0, 9.0]);
    let scale = function(module, "scale<float>").unwrap();
    assert_eq!(launch(scale, 3, 1, &mut [arg(&x.0), arg(&3i32), arg(&0.5f32)]), hipSuccess);
    assert_eq!(launch(function(module, "root").unwrap(), 3, 1, &mut [arg(&x.0)]), hipSuccess);
    let sum = Memory::of(&[0.0f32]);
    assert_eq!(launch(function(module, "total").unwrap(), 3, 1, &mut [arg(&x.0), arg(&sum.0)]), hipSuccess);
    assert_eq!(x.read::<f32>(), [1.0, 2.0, 3.0]);
    assert_eq!(sum.read::<f32>(), [6.0]);
    ok!(HIP, hipModuleUnload, module);

    let log = compile("__global__ void k(int *x) { *x = nowhere; }", &[], &["k"], &[]).unwrap_err();
    assert!(log.contains("nowhere") && log.contains("test.hip"), "{log}");
    assert!(
        compile("__global__ void k() {}", &[], &["k"], &["--no-such-option"])
            .unwrap_err()
            .contains("no-such-option")
    );
}

/// Vector types and fast functions are there without a header, as in hipRTC, with `prelude.h` too.
#[test]
fn hips_vector_types_and_fast_functions() {
    start();
    let source = "
        __device__ int max(int a, int) { return a + 100; } // the program's own comes first
        extern \"C\" __global__ void vectors(const float4 *x, float2 by, int4 *ints, float4 *out) {
            __shared__ float4 held[2];
            held[0] = x[0];
            float4 sum = held[0] * 2.0f + make_float4(by.x, by.y, 0, 1);
            sum -= 1;
            uint2 both = make_uint2(7, 9) / 2u;
            ints[0] = int4{(int)both.x, (int)both.y, sizeof(float3), alignof(double2)};
            ints[1] = -ints[0] + int4(1);
            ints[2].x = (ints[0] == ints[0]) + 2 * (ints[0] != ints[1]);
            out[0] = sum;
        }
        extern \"C\" __global__ void functions(float *x, int *n) {
            float nan = x[0] - x[0] + __builtin_nanf(\"\");
            float all[] = {rsqrtf(x[0]), __expf(x[1]), __logf(x[2]), __fdividef(x[0], x[1]), min(x[0], x[1]),
                           max(x[0], 5), min(nan, 2.0f), max(3.0f, nan), (float)rsqrt(0.25)};
            for (int i = 0; i < 9; ++i) x[i] = all[i];
            n[0] = min(-3, 2);
            n[1] = max(1, 2);
            n[2] = max(1u, 2u) + min(5ll, 4ll);
        }";
    let with_prelude = format!("#include \"prelude.h\"\n{source}");
    // It declares functions that are built in here.
    let with_math = format!("#include <math.h>\n{source}");
    let plain = compile(source, &[], &["vectors", "functions"], &[]);
    let prelude = compile(&with_prelude, hip_kernels::HEADERS, &["vectors", "functions"], &[]);
    let math = compile(&with_math, &[], &["vectors", "functions"], &[]);
    for code in [plain, prelude, math] {
        let module = load(&code.unwrap()).unwrap();
        let (x, out) = (Memory::of(&[1.0f32, 2.0, 3.0, 4.0]), Memory::new(16));
        let ints = Memory::new(48);
        // A float2 of 10 and 20, at its alignment.
        let by = u64::from(10.0f32.to_bits()) | u64::from(20.0f32.to_bits()) << 32;
        let vectors = function(module, "vectors").unwrap();
        assert_eq!(launch(vectors, 1, 1, &mut [arg(&x.0), arg(&by), arg(&ints.0), arg(&out.0)]), hipSuccess);
        assert_eq!(out.read::<f32>(), [11.0, 23.0, 5.0, 8.0]);
        assert_eq!(ints.read::<i32>()[..9], [3, 4, 12, 16, -2, -3, -11, -15, 3]);
        let (x, n) = (Memory::of(&[4.0f32, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]), Memory::new(12));
        let functions = function(module, "functions").unwrap();
        assert_eq!(launch(functions, 1, 1, &mut [arg(&x.0), arg(&n.0)]), hipSuccess);
        assert_eq!(x.read::<f32>(), [0.5, 1.0f32.exp(), 0.0, 4.0, 1.0, 5.0, 2.0, 3.0, 2.0]);
        assert_eq!(n.read::<i32>(), [-3, 101, 6]);
        ok!(HIP, hipModuleUnload, module);
    }
}

#[test]
fn a_changed_header_is_compiled() {
    start();
    let family = families().iter().find(|family| family.name == "binary").unwrap();
    let name = "binary_contiguous<Add, f32>";
    let mut headers: Vec<_> = hip_kernels::HEADERS.to_vec();
    let (_, functors) = headers.iter_mut().find(|(name, _)| *name == "functors.h").unwrap();
    let changed = functors.replace("return a + b;", "return a + b + (T)1;");
    assert_ne!(changed, *functors);
    *functors = &changed;
    let code = compile(family.source, &headers, &[name], &[]).unwrap();
    let function = function(load(&code).unwrap(), name).unwrap();
    let (a, b, out) = (Memory::of(&[1.0f32]), Memory::of(&[2.0f32]), Memory::new(4));
    assert_eq!(launch(function, 1, 1, &mut [arg(&1u64), arg(&a.0), arg(&b.0), arg(&out.0)]), hipSuccess);
    assert_eq!(out.read::<f32>(), [4.0]);
}

#[test]
fn damaged_code_is_refused() {
    start();
    let code = binary(&["binary_contiguous<Add, f32>"]);
    for at in (0..code.len()).step_by(7) {
        let mut damaged = code.clone();
        damaged[at] = !damaged[at];
        assert_eq!(load(&damaged), Err(hipErrorInvalidImage));
    }
    assert_eq!(load(&[0x7f, b'E', b'L', b'F'].repeat(16)), Err(hipErrorInvalidImage));
}

#[test]
fn program_handles_are_checked() {
    start();
    let mut program = null_mut();
    ok!(
        RTC,
        hiprtcCreateProgram,
        &mut program,
        c"".as_ptr(),
        std::ptr::null(),
        0,
        std::ptr::null(),
        std::ptr::null()
    );
    let mut lowered = std::ptr::null();
    assert_eq!(
        call!(RTC, hiprtcGetLoweredName, program, c"k".as_ptr(), &mut lowered),
        HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION
    );
    ok!(RTC, hiprtcCompileProgram, program, 0, std::ptr::null());
    assert_eq!(
        call!(RTC, hiprtcAddNameExpression, program, c"k".as_ptr()),
        HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION
    );
    assert_eq!(
        call!(RTC, hiprtcGetLoweredName, program, c"k".as_ptr(), &mut lowered),
        HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID
    );
    let mut stale = program;
    ok!(RTC, hiprtcDestroyProgram, &mut program);
    assert_eq!(call!(RTC, hiprtcDestroyProgram, &mut stale), HIPRTC_ERROR_INVALID_PROGRAM);
    assert_eq!(call!(RTC, hiprtcCompileProgram, stale, 0, std::ptr::null()), HIPRTC_ERROR_INVALID_PROGRAM);
}

#[test]
fn threads_keep_a_devices_order() {
    start();
    let source = "extern \"C\" __global__ void add(int *x) { *x += 1; }";
    let add = function(load(&compile(source, &[], &[], &[]).unwrap()).unwrap(), "add").unwrap() as usize;
    let x = Memory::of(&[0i32]);
    let address = x.0 as usize;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                for _ in 0..1000 {
                    assert_eq!(launch(add as hipFunction_t, 1, 1, &mut [arg(&address)]), hipSuccess);
                }
            });
        }
    });
    assert_eq!(x.read::<i32>(), [4000]);
}

/// Branches of a capture: a stream joins by an event, and must be waited for. Work of a branch runs no
/// earlier than where the capture's own stream waits for it.
#[test]
fn captures_have_branches() {
    start();
    let hip = hip_cpu::hip_table();
    let (begin, end) = (hip.hipStreamBeginCapture.unwrap(), hip.hipStreamEndCapture.unwrap());
    let [mut own, mut branch, mut other] = [null_mut(); 3];
    let [mut fork, mut join, mut later] = [null_mut(); 3];
    let (mut graph, mut exec) = (null_mut(), null_mut());
    let memory = Memory::of(&[1u32; 4]);
    let copied = Memory::of(&[0u32; 4]);
    unsafe {
        for stream in [&mut own, &mut branch, &mut other] {
            assert_eq!((hip.hipStreamCreateWithFlags)(stream, hipStreamNonBlocking), hipSuccess);
        }
        for event in [&mut fork, &mut join, &mut later] {
            assert_eq!((hip.hipEventCreateWithFlags)(event, hipEventDisableTiming), hipSuccess);
        }
        let set = |value, stream| (hip.hipMemsetD32Async)(memory.0, value, 4, stream);
        let copy = |stream| {
            (hip.hipMemcpyAsync)(copied.0.cast(), memory.0.cast(), 16, hipMemcpyDeviceToDevice, stream)
        };
        let forks = || {
            assert_eq!(begin(own, hipStreamCaptureModeRelaxed), hipSuccess);
            assert_eq!((hip.hipEventRecord)(fork, own), hipSuccess);
            assert_eq!((hip.hipStreamWaitEvent)(branch, fork, 0), hipSuccess);
        };

        // The copy is in the branch, and no earlier than the join. What the capture's own stream does
        // in between runs before.
        forks();
        assert_eq!(copy(branch), hipSuccess);
        assert_eq!((hip.hipEventRecord)(join, branch), hipSuccess);
        assert_eq!(set(7, own), hipSuccess);
        // The host can't ask for captured events.
        assert_eq!((hip.hipEventQuery)(join), hipErrorCapturedEvent);
        assert_eq!((hip.hipEventSynchronize)(fork), hipErrorCapturedEvent);
        assert_eq!((hip.hipStreamWaitEvent)(own, join, 0), hipSuccess);
        assert_eq!(set(8, own), hipSuccess);
        // Neither can a branch end the capture.
        assert_eq!(end(branch, &mut graph), hipErrorStreamCaptureUnmatched);
        assert_eq!(end(own, &mut graph), hipSuccess);
        assert_eq!((memory.read::<u32>(), copied.read::<u32>()), (vec![1; 4], vec![0; 4]));
        assert_eq!(hip.hipGraphInstantiateWithFlags.unwrap()(&mut exec, graph, 0), hipSuccess);
        assert_eq!(hip.hipGraphLaunch.unwrap()(exec, own), hipSuccess);
        assert_eq!((memory.read::<u32>(), copied.read::<u32>()), (vec![8; 4], vec![7; 4]));
        assert_eq!(hip.hipGraphExecDestroy.unwrap()(exec), hipSuccess);
        assert_eq!(hip.hipGraphDestroy.unwrap()(graph), hipSuccess);
        // The branch has left the capture, and runs its work again. Its events are stale.
        assert_eq!(set(3, branch), hipSuccess);
        assert_eq!(memory.read::<u32>(), [3; 4]);
        assert_eq!((hip.hipStreamWaitEvent)(branch, fork, 0), hipErrorCapturedEvent);
        assert_eq!((hip.hipEventRecord)(fork, branch), hipSuccess);
        assert_eq!((hip.hipEventQuery)(fork), hipSuccess);

        // Nobody waits for the branch.
        forks();
        assert_eq!(set(4, branch), hipSuccess);
        assert_eq!(end(own, &mut graph), hipErrorStreamCaptureUnjoined);
        assert_eq!(set(5, branch), hipSuccess);

        // Two captures don't mix, and work that runs is not waited for.
        forks();
        assert_eq!(begin(other, hipStreamCaptureModeRelaxed), hipSuccess);
        assert_eq!((hip.hipEventRecord)(later, other), hipSuccess);
        assert_eq!((hip.hipStreamWaitEvent)(branch, later, 0), hipErrorStreamCaptureMerge);
        assert_eq!(end(own, &mut graph), hipErrorStreamCaptureInvalidated);
        assert_eq!(end(other, &mut graph), hipErrorStreamCaptureInvalidated);
        assert_eq!(begin(own, hipStreamCaptureModeRelaxed), hipSuccess);
        assert_eq!((hip.hipEventRecord)(join, branch), hipSuccess);
        assert_eq!((hip.hipStreamWaitEvent)(own, join, 0), hipErrorStreamCaptureIsolation);
        assert_eq!(end(own, &mut graph), hipErrorStreamCaptureInvalidated);
        assert_eq!(memory.read::<u32>(), [5; 4]);
        for event in [fork, join, later] {
            assert_eq!((hip.hipEventDestroy)(event), hipSuccess);
        }
        for stream in [own, branch, other] {
            assert_eq!((hip.hipStreamDestroy)(stream), hipSuccess);
        }
    }
}

#[test]
fn captures_end_as_amds_do() {
    start();
    let hip = hip_cpu::hip_table();
    let (begin, end) = (hip.hipStreamBeginCapture.unwrap(), hip.hipStreamEndCapture.unwrap());
    let (mut stream, mut graph, mut exec) = (null_mut(), std::ptr::dangling_mut(), null_mut());
    let memory = Memory::of(&[1u32; 4]);
    unsafe {
        assert_eq!((hip.hipStreamCreateWithFlags)(&mut stream, hipStreamNonBlocking), hipSuccess);
        assert_eq!(end(stream, &mut graph), hipErrorIllegalState, "nothing was begun");
        assert_eq!(begin(stream, hipStreamCaptureModeThreadLocal), hipSuccess);
        assert_eq!(begin(stream, hipStreamCaptureModeRelaxed), hipErrorIllegalState);
        // Another thread can't end it.
        let address = stream as usize;
        let ended = std::thread::spawn(move || {
            let mut graph = null_mut();
            end(address as hipStream_t, &mut graph)
        });
        assert_eq!(ended.join().unwrap(), hipErrorStreamCaptureWrongThread);
        assert_eq!((hip.hipMemsetD32Async)(memory.0, 5, 4, stream), hipSuccess);
        // Captured work does not run, so nobody can wait for it.
        assert_eq!((hip.hipStreamSynchronize)(stream), hipErrorStreamCaptureUnsupported);
        assert_eq!(end(stream, &mut graph), hipErrorStreamCaptureInvalidated);
        assert!(graph.is_null());
        assert_eq!((hip.hipStreamSynchronize)(stream), hipSuccess);
        assert_eq!(memory.read::<u32>(), [1; 4]);
        // A call that is refused is not captured, and spoils nothing.
        assert_eq!(begin(stream, hipStreamCaptureModeRelaxed), hipSuccess);
        assert_ne!((hip.hipMemsetD32Async)(memory.0, 7, 400, stream), hipSuccess);
        assert_eq!((hip.hipMemsetD32Async)(memory.0, 6, 4, stream), hipSuccess);
        assert_eq!(end(stream, &mut graph), hipSuccess);
        assert_eq!(hip.hipGraphInstantiateWithFlags.unwrap()(&mut exec, graph, 0), hipSuccess);
        assert_eq!(hip.hipGraphDestroy.unwrap()(graph), hipSuccess);
        assert_eq!(hip.hipGraphDestroy.unwrap()(graph), hipErrorInvalidValue);
        assert_eq!(memory.read::<u32>(), [1; 4]);
        assert_eq!(hip.hipGraphLaunch.unwrap()(exec, stream), hipSuccess);
        assert_eq!(memory.read::<u32>(), [6; 4]);
        assert_eq!(hip.hipGraphExecDestroy.unwrap()(exec), hipSuccess);
        assert_eq!(hip.hipGraphLaunch.unwrap()(exec, stream), hipErrorInvalidValue);
        assert_eq!((hip.hipStreamDestroy)(stream), hipSuccess);
    }
}
