//! The HIP runtime and hipRTC through their C API, with this provider's own refusals. hip-provider
//! tests the refusals that providers share. This file has built-in kernels, kernels compiled at run
//! time, and launches.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::macro_metavars_in_unsafe)]

#[path = "../common/mod.rs"]
mod common;
mod runtime;

use common::*;
use hip_kernels::{DType, Functor, Template, families};
use hip_sys::*;
use std::{
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
