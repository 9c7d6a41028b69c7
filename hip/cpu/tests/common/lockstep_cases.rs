// lockstep.rs and lockstep64.rs include this file, because a process reads its settings once.

use common::*;
use hip_kernels::{DType, Functor, Template};
use hip_sys::*;
use std::{
    ffi::c_void,
    ptr::null_mut,
    sync::{Mutex, MutexGuard, Once, PoisonError},
};

/// Runs one test at a time, because faults and their texts belong to the process.
fn start() -> MutexGuard<'static, ()> {
    static START: Once = Once::new();
    static ALONE: Mutex<()> = Mutex::new(());
    START.call_once(|| unsafe { std::env::set_var("BURN_ROCM_CPU_WAVE", WAVE.to_string()) });
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const PRELUDE: &str = "#include \"prelude.h\"\n";

/// Launches a wrong kernel. The launch itself is accepted, the next call reports the fault, and the
/// one after it works.
fn fault(source: &str, name: &str, blocks: u32, threads: u32, arguments: &mut [*mut c_void]) -> (hipError_t, String) {
    let kernel = kernel(&format!("{PRELUDE}{source}"), name);
    assert_eq!(launch(kernel, blocks, threads, arguments), hipSuccess);
    let status = call!(HIP, hipDeviceSynchronize);
    ok!(HIP, hipDeviceSynchronize);
    assert_ne!(status, hipSuccess, "the mistake was not found");
    let text = hip_cpu::last_fault().unwrap();
    assert!(text.contains(name) && text.contains("BURN_ROCM_CPU_SEED"), "{text}");
    (status, text)
}

const REVERSE: &str = "__global__ void reverse(u32 *x) {
    SHARED(u32, row, 256);
    row[threadIdx.x] = x[threadIdx.x];
    sync_threads();
    x[threadIdx.x] = row[blockDim.x - 1 - threadIdx.x];
}";

#[test]
fn shared_memory_and_barriers() {
    let _alone = start();
    let x = Memory::of(&(0..256).collect::<Vec<u32>>());
    assert_eq!(launch(kernel(&format!("{PRELUDE}{REVERSE}"), "reverse"), 1, 256, &mut [arg(&x.0)]), hipSuccess);
    assert_eq!(x.read::<u32>(), (0..256).rev().collect::<Vec<_>>());
}

#[test]
fn a_missing_barrier_gives_wrong_results() {
    let _alone = start();
    let mutant = REVERSE.replace("    sync_threads();\n", "");
    assert_ne!(mutant, REVERSE);
    let x = Memory::of(&(0..256).collect::<Vec<u32>>());
    assert_eq!(launch(kernel(&format!("{PRELUDE}{mutant}"), "reverse"), 1, 256, &mut [arg(&x.0)]), hipSuccess);
    let x = x.read::<u32>();
    assert_ne!(x, (0..256).rev().collect::<Vec<_>>());
    assert!(x.contains(&u32::MAX), "shared memory is poisoned");
}

#[test]
fn a_divergent_barrier() {
    let _alone = start();
    let (status, text) = fault(
        "__global__ void half(u32 *x) { if (threadIdx.x < 16) { sync_threads(); } x[threadIdx.x] = 0; }",
        "half", 1, 64, &mut [arg(&Memory::new(256).0)],
    );
    assert_eq!(status, hipErrorLaunchFailure);
    assert!(text.contains("divergent barrier") && text.contains("has returned"), "{text}");
    let (status, text) = fault(
        "__global__ void two(u32 *x) {
            if (threadIdx.x & 1) { sync_threads(); x[threadIdx.x] = 1; } else { x[threadIdx.x] = 2; sync_threads(); }
        }",
        "two", 1, 64, &mut [arg(&Memory::new(256).0)],
    );
    assert_eq!(status, hipErrorLaunchFailure);
    assert!(text.contains("another barrier"), "{text}");
}

#[test]
fn warps_have_the_size_that_was_asked_for() {
    let _alone = start();
    let mut warp = 0;
    ok!(HIP, hipDeviceGetAttribute, &mut warp, hipDeviceAttributeWarpSize, 0);
    assert_eq!(warp as usize, WAVE);
    let source = "__global__ void sum(u32 *x, u32 *out) {
        u32 v = x[threadIdx.x];
        for (i32 d = warpSize / 2; d > 0; d /= 2) v += __shfl_down(v, d);
        if (threadIdx.x % warpSize == 0) out[threadIdx.x / warpSize] = v;
    }";
    let total = |source: &str| {
        let (x, out) = (Memory::of(&[1u32; 256]), Memory::of(&[0u32; 8]));
        let kernel = kernel(&format!("{PRELUDE}{source}"), "sum");
        assert_eq!(launch(kernel, 1, 256, &mut [arg(&x.0), arg(&out.0)]), hipSuccess);
        out.try_read::<u32>().map(|out| out[..256 / WAVE].to_vec())
    };
    assert_eq!(total(source), Ok(vec![WAVE as u32; 256 / WAVE]));
    // A kernel that assumes the other warp size computes wrong results or is refused.
    let other = if WAVE == 32 { "64" } else { "32" };
    let mutant = source.replace("warpSize", other);
    assert_ne!(total(&mutant), Ok(vec![WAVE as u32; 256 / WAVE]));
}

#[test]
fn shuffles_up_xor_and_ballot() {
    let _alone = start();
    let source = "__global__ void lanes(u32 *out) {
        u32 lane = threadIdx.x % warpSize;
        u32 up = __shfl_up(lane, 1), flipped = __shfl_xor(lane, 5);
        u32 first = __shfl(lane + 7, 0), quarter = __shfl(lane, 3, 16);
        u64 odd = __ballot(lane & 1);
        bool right = up == (lane ? lane - 1 : 0) && flipped == (lane ^ 5) && first == 7 && quarter == (lane & ~15u) + 3
            && odd == (warpSize == 64 ? 0xaaaaaaaaaaaaaaaaull : 0xaaaaaaaaull) && __any(lane == 9) && !__all(lane == 9);
        out[threadIdx.x] = right;
    }";
    let out = Memory::of(&[0u32; 128]);
    assert_eq!(launch(kernel(&format!("{PRELUDE}{source}"), "lanes"), 1, 128, &mut [arg(&out.0)]), hipSuccess);
    assert_eq!(out.read::<u32>(), [1; 128]);
}

#[test]
fn divergent_warps_meet_again() {
    let _alone = start();
    // Lanes loop a different number of times before a shuffle of all lanes.
    let source = "__global__ void diverge(u32 *out) {
        u32 lane = threadIdx.x % warpSize, v = 0;
        if (lane < 8) { v = (u32)__ballot(1); } else { for (u32 i = 0; i < lane; ++i) v += (u32)__popcount(i); }
        out[threadIdx.x] = __shfl(v, 3);
    }".replace("__popcount(i)", "(i & 1)");
    let out = Memory::of(&[0u32; 64]);
    assert_eq!(launch(kernel(&format!("{PRELUDE}{source}"), "diverge"), 1, 64, &mut [arg(&out.0)]), hipSuccess);
    assert_eq!(out.read::<u32>(), [0xff; 64]);
}

#[test]
fn a_shuffle_with_inactive_lanes() {
    let _alone = start();
    let (status, text) = fault(
        "__global__ void gone(u32 *x) {
            if (threadIdx.x >= 20) return;
            x[threadIdx.x] = shuffle(threadIdx.x, (i32)threadIdx.x + 1);
        }",
        "gone", 1, 64, &mut [arg(&Memory::new(256).0)],
    );
    assert_eq!(status, hipErrorLaunchFailure);
    assert!(text.contains("shuffles from lane 20") && text.contains("has returned"), "{text}");
    let (_, text) = fault(
        "__global__ void other(u32 *x) {
            if (threadIdx.x & 1) x[threadIdx.x] = shuffle(7u, (i32)threadIdx.x & ~1);
            else x[threadIdx.x] = 2 * shuffle(9u, 0);
        }",
        "other", 1, 32, &mut [arg(&Memory::new(256).0)],
    );
    assert!(text.contains("is at another call") || text.contains("has returned"), "{text}");
}

#[test]
fn a_shared_memory_overrun() {
    let _alone = start();
    let x = Memory::new(1024);
    let places =
        [("threadIdx.x + 1", "0 bytes past its end"), ("(i32)threadIdx.x - 1", "bytes before its start")];
    for (index, place) in places {
        let source = format!(
            "__global__ void over(u32 *x) {{
                SHARED(u32, before, 16);
                SHARED(u32, row, 64);
                before[threadIdx.x % 16] = 0;
                row[{index}] = threadIdx.x;
                sync_threads();
                x[threadIdx.x] = row[threadIdx.x] + before[0];
            }}"
        );
        let (status, text) = fault(&source, "over", 2, 64, &mut [arg(&x.0)]);
        assert_eq!(status, hipErrorIllegalAddress);
        assert!(text.contains("shared array row of 256 bytes") && text.contains(place), "{text}");
    }
    let (_, text) = fault(
        "__global__ void much(u32 *x) { SHARED(u32, all, 16385); all[threadIdx.x] = 1; \
         sync_threads(); x[0] = all[1]; }",
        "much", 1, 32, &mut [arg(&x.0)],
    );
    assert!(text.contains("65540 bytes of shared memory"), "{text}");
}

#[test]
fn an_overrun_of_device_memory() {
    let _alone = start();
    let x = Memory::new(40);
    let (status, text) =
        fault("__global__ void past(u32 *x) { x[threadIdx.x] = 1; }", "past", 1, 11, &mut [arg(&x.0)]);
    assert_eq!(status, hipErrorIllegalAddress);
    assert!(text.contains("allocation of 40 bytes"), "{text}");
}

#[test]
fn wild_accesses_and_divisions_by_zero() {
    let _alone = start();
    let x = Memory::of(&[0i32; 64]);
    let (status, text) = fault(
        "__global__ void wild(i32 *x) { SHARED(u32, at, 64); x[(u64)at[threadIdx.x] * 4096] = 1; }",
        "wild", 1, 64, &mut [arg(&x.0)],
    );
    assert_eq!(status, hipErrorIllegalAddress);
    assert!(text.contains("accesses the address"), "{text}");
    let (status, text) =
        fault("__global__ void zero(i32 *x) { x[0] = 7 / x[threadIdx.x]; }", "zero", 1, 64, &mut [arg(&x.0)]);
    assert_eq!(status, hipErrorLaunchFailure);
    assert!(text.contains("by zero"), "{text}");
    // Other processors give the smallest integer again, and no exception.
    if cfg!(target_arch = "x86_64") {
        let operands = Memory::of(&[i32::MIN, -1]);
        let (status, text) =
            fault("__global__ void by_one(i32 *x) { x[0] = x[0] / x[1]; }", "by_one", 1, 1, &mut [arg(&operands.0)]);
        assert_eq!(status, hipErrorLaunchFailure);
        assert!(text.contains("by -1"), "{text}");
    }
    // Also a stack that is too small.
    let (status, text) = fault(
        "__global__ void deep(i32 *x) {
            volatile i32 all[32768];
            for (i32 i = 0; i < 32768; ++i) all[i] = i;
            x[0] = all[x[1]];
        }",
        "deep", 1, 2, &mut [arg(&x.0)],
    );
    assert_eq!(status, hipErrorIllegalAddress);
    assert!(text.contains("accesses the address"), "{text}");
}

/// Whatever lockstep was doing when the stack ended, the next launch works.
#[test]
fn a_stack_that_ends_while_shared_memory_is_made() {
    let _alone = start();
    let source = "__attribute__((noinline)) u32 down(u32 n, u32 *x) {
        volatile u32 pad[16];
        pad[0] = n;
        if (n) return down(n - 1, x) + pad[0];
        SHARED(u32, a, 4);
        a[0] = n;
        return a[0] + pad[0];
    }
    __global__ void deep(u32 n, u32 *x) { x[threadIdx.x] = down(n, x); }";
    let deep = kernel(&format!("{PRELUDE}{source}"), "deep");
    let reverse = kernel(&format!("{PRELUDE}{REVERSE}"), "reverse");
    let x = Memory::of(&[0u32; 64]);
    let mut overrun = Vec::new();
    // A frame has at least 80 bytes, so the last depth is past the end of the stack.
    for depth in 200u32..900 {
        assert_eq!(launch(deep, 1, 1, &mut [arg(&depth), arg(&x.0)]), hipSuccess, "depth {depth}");
        overrun.push(call!(HIP, hipDeviceSynchronize) != hipSuccess);
        assert_eq!(launch(reverse, 1, 64, &mut [arg(&x.0)]), hipSuccess, "after depth {depth}");
        ok!(HIP, hipDeviceSynchronize);
    }
    assert!(!overrun[0] && overrun[overrun.len() - 1] && overrun.is_sorted());
}

#[test]
fn dynamic_shared_memory_and_many_blocks() {
    let _alone = start();
    let source = "__global__ void rotate(u32 *x) {
        extern __shared__ u32 row[];
        u32 base = blockIdx.x * blockDim.x;
        row[threadIdx.x] = x[base + threadIdx.x];
        sync_threads();
        x[base + threadIdx.x] = row[(threadIdx.x + 1) % blockDim.x];
    }";
    let x = Memory::of(&(0..3000).collect::<Vec<u32>>());
    let rotate = kernel(&format!("{PRELUDE}{source}"), "rotate");
    let mut arguments = [arg(&x.0)];
    ok!(
        HIP, hipModuleLaunchKernel, rotate, 30, 1, 1, 100, 1, 1, 400, null_mut(), arguments.as_mut_ptr(), null_mut()
    );
    let expected: Vec<u32> = (0..3000).map(|i| i / 100 * 100 + (i + 1) % 100).collect();
    assert_eq!(x.read::<u32>(), expected);
    let mut arguments = [arg(&x.0)];
    ok!(
        HIP, hipModuleLaunchKernel, rotate, 30, 1, 1, 100, 1, 1, 396, null_mut(), arguments.as_mut_ptr(), null_mut()
    );
    assert_eq!(call!(HIP, hipDeviceSynchronize), hipErrorIllegalAddress);
}

#[test]
fn built_in_kernels_and_block_shapes() {
    let _alone = start();
    let family = hip_kernels::family_of(Template::binary_contiguous);
    let name = Template::binary_contiguous.functor(Functor::Add).ty(DType::I32).to_string();
    let code = compile(family.source, hip_kernels::HEADERS, &[&name], &[]).unwrap();
    assert!(code.len() < 1000, "served from the table");
    let add = function(load(&code).unwrap(), &name).unwrap();
    for (blocks, threads) in [(1, 1), (1, 33), (3, 64), (2, 1000), (5, 256)] {
        let n = 1237usize;
        let a: Vec<i32> = (0..n as i32).collect();
        let (a, out) = (Memory::of(&a), Memory::new(4 * n));
        assert_eq!(
            launch(add, blocks, threads, &mut [arg(&(n as u64)), arg(&a.0), arg(&a.0), arg(&out.0)]),
            hipSuccess
        );
        assert!(out.read::<i32>().iter().enumerate().all(|(i, x)| *x == 2 * i as i32));
    }
    assert_eq!(launch(add, 1, 1025, &mut [null_mut(); 4]), hipErrorInvalidValue);
}

#[test]
fn block_reductions_of_the_prelude() {
    let _alone = start();
    let source = "__global__ void total(u32 n, const f32 *x, f32 *out) {
        f32 sum = block_reduce_range(n, 0.0f, [=](u64 i) { return x[i]; },
            [](f32 a, f32 b) { return a + b; });
        f32 most = block_reduce_range(n, -1.0f, [=](u64 i) { return x[i]; },
            [](f32 a, f32 b) { return a > b ? a : b; });
        if (threadIdx.x == 0) { out[2 * blockIdx.x] = sum; out[2 * blockIdx.x + 1] = most; }
    }";
    let total = kernel(&format!("{PRELUDE}{source}"), "total");
    let x = Memory::of(&(0..1000).map(|i| i as f32).collect::<Vec<_>>());
    // Whole warps, as in a device's grids.
    for threads in [1, 2, 3, 4, 5, 8, 1024 / WAVE].map(|warps| (warps * WAVE) as u32) {
        let out = Memory::of(&[0f32; 4]);
        assert_eq!(launch(total, 2, threads, &mut [arg(&1000u32), arg(&x.0), arg(&out.0)]), hipSuccess);
        assert_eq!(out.read::<f32>(), [499500.0, 999.0, 499500.0, 999.0], "{threads} threads");
    }
}
