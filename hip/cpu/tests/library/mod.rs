//! Shared by the tests of libraries: device buffers, random input with a printed seed, comparison
//! with an `f64` reference.
#![allow(dead_code, unreachable_pub)] // Each test program uses its part.

pub mod conv;
pub mod dnn;

use core::ffi::c_void;
use half::{bf16, f16};
use std::sync::OnceLock;

fn hip() -> &'static hip_sys::Hip {
    static HIP: OnceLock<hip_sys::Hip> = OnceLock::new();
    HIP.get_or_init(hip_cpu::hip_table)
}

/// A device buffer.
pub struct Device<T> {
    at: *mut T,
    len: usize,
}

impl<T: Copy> Device<T> {
    pub fn new(values: &[T]) -> Self {
        let mut at: *mut c_void = core::ptr::null_mut();
        // SAFETY: an out-pointer; the copy stays inside the allocation, which the host can reach on
        // this provider.
        unsafe {
            assert_eq!((hip().hipMalloc)(&mut at, size_of_val(values).max(1)), hip_sys::hipSuccess);
            core::ptr::copy_nonoverlapping(values.as_ptr(), at.cast::<T>(), values.len());
        }
        Device { at: at.cast(), len: values.len() }
    }

    pub fn get(&self) -> Vec<T> {
        // SAFETY: the buffer's own length; every call has finished when it returned.
        unsafe { core::slice::from_raw_parts(self.at, self.len) }.to_vec()
    }

    pub fn ptr(&self) -> *mut T {
        self.at
    }

    pub fn void(&self) -> *mut c_void {
        self.at.cast()
    }

    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

impl<T> Drop for Device<T> {
    fn drop(&mut self) {
        // SAFETY: allocated above, freed once.
        unsafe { (hip().hipFree)(self.at.cast()) };
    }
}

/// A stream of random numbers. The seed is printed; `BURN_ROCM_TEST_SEED` sets it.
pub struct Random(u64);

impl Random {
    pub fn new(name: &str) -> Self {
        let seed = match std::env::var("BURN_ROCM_TEST_SEED") {
            Ok(text) => text.parse().expect("BURN_ROCM_TEST_SEED is a number"),
            Err(_) => std::time::UNIX_EPOCH.elapsed().expect("the clock is past 1970").as_nanos() as u64,
        };
        println!("{name}: BURN_ROCM_TEST_SEED={seed}");
        Random(seed | 1)
    }

    /// SplitMix64.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `below`, exclusive.
    pub fn below(&mut self, below: usize) -> usize {
        (self.next() % below as u64) as usize
    }

    /// From -1 to 1.
    pub fn value(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    pub fn values<T: Number>(&mut self, len: usize) -> Vec<T> {
        (0..len).map(|_| T::of(self.value())).collect()
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// A floating-point element type.
pub trait Number: Copy + 'static {
    /// A bound on the relative error of a rounded result.
    const ERROR: f64;
    fn of(value: f64) -> Self;
    fn f64(self) -> f64;
}
macro_rules! number {
    ($($t:ty, $error:expr, $of:expr, $f64:expr;)+) => { $(impl Number for $t {
        const ERROR: f64 = $error;
        fn of(value: f64) -> Self { $of(value) }
        fn f64(self) -> f64 { $f64(self) }
    })+ };
}
number! {
    f32, 3e-6, |v: f64| v as f32, f64::from;
    f64, 1e-13, |v| v, |v| v;
    f16, 1.5e-3, f16::from_f64, f16::to_f64;
    bf16, 1.2e-2, bf16::from_f64, bf16::to_f64;
}

/// Compares with a reference. Errors are relative to the reference's largest value, or to `floor`
/// if that is larger.
pub fn close<T: Number>(what: &str, found: &[T], expected: &[f64], floor: f64) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    let scale = expected.iter().fold(floor, |scale, value| scale.max(value.abs()));
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found.f64() - expected).abs() / scale;
        assert!(
            error <= T::ERROR,
            "{what}: at {index} found {} expected {expected}, error {error:e}",
            found.f64()
        );
    }
}

pub fn wide<T: Number>(values: &[T]) -> Vec<f64> {
    values.iter().map(|value| value.f64()).collect()
}
