//! Atomic read-modify-write operations, on device memory and LDS.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::flat::{Kind, Space, Targets, lanes};
use super::{Body, Inst};
use crate::isa::state::{Machine, Step, Vgpr};

/// An operation on 32 or 64 bits.
pub(crate) trait AtomicFn {
    type Word: AtomicWord;
    const BYTES: u32 = size_of::<Self::Word>() as u32;
    /// Whether `other`, a comparison value, follows the data.
    const COMPARES: bool;
    /// The new value.
    fn new(old: Self::Word, data: Self::Word, other: Self::Word) -> Self::Word;

    /// # Safety
    /// `at` is aligned, and points to `BYTES` bytes that may be written.
    #[inline(always)]
    unsafe fn update(at: *mut u8, data: Self::Word, other: Self::Word) -> Self::Word {
        // SAFETY: the caller's promise.
        unsafe { Self::Word::update(at, |old| Self::new(old, data, other)) }
    }

    #[inline(always)]
    fn read(v: &[Vgpr], reg: u16, lane: usize) -> Self::Word {
        Self::Word::read(v, reg as usize, lane)
    }

    #[inline(always)]
    fn write(word: Self::Word, v: &mut [Vgpr], reg: u16, lane: usize) {
        word.write(v, reg as usize, lane);
    }
}

/// A word that the host updates atomically.
pub(crate) trait AtomicWord: Copy + Default {
    /// # Safety
    /// As for [`AtomicFn::update`].
    unsafe fn update(at: *mut u8, f: impl Fn(Self) -> Self) -> Self;
    fn read(v: &[Vgpr], reg: usize, lane: usize) -> Self;
    fn write(self, v: &mut [Vgpr], reg: usize, lane: usize);
}

impl AtomicWord for u32 {
    #[inline(always)]
    unsafe fn update(at: *mut u8, f: impl Fn(Self) -> Self) -> Self {
        // SAFETY: the caller's promise.
        let word = unsafe { AtomicU32::from_ptr(at.cast()) };
        word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| Some(f(old))).unwrap_or_default()
    }
    #[inline(always)]
    fn read(v: &[Vgpr], reg: usize, lane: usize) -> Self {
        v[reg].0[lane]
    }
    #[inline(always)]
    fn write(self, v: &mut [Vgpr], reg: usize, lane: usize) {
        v[reg].0[lane] = self;
    }
}

impl AtomicWord for u64 {
    #[inline(always)]
    unsafe fn update(at: *mut u8, f: impl Fn(Self) -> Self) -> Self {
        // SAFETY: the caller's promise.
        let word = unsafe { AtomicU64::from_ptr(at.cast()) };
        word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| Some(f(old))).unwrap_or_default()
    }
    #[inline(always)]
    fn read(v: &[Vgpr], reg: usize, lane: usize) -> Self {
        u64::from(v[reg].0[lane]) | u64::from(v[reg + 1].0[lane]) << 32
    }
    #[inline(always)]
    fn write(self, v: &mut [Vgpr], reg: usize, lane: usize) {
        v[reg].0[lane] = self as u32;
        v[reg + 1].0[lane] = (self >> 32) as u32;
    }
}

macro_rules! atomics {
    ($($name:ident $compares:literal |$old:ident, $data:ident, $other:ident| $e32:expr, $e64:expr;)*) => { $(
        pub(crate) struct $name<W>(PhantomData<W>);
        impl AtomicFn for $name<u32> {
            type Word = u32;
            const COMPARES: bool = $compares;
            #[inline(always)]
            fn new($old: u32, $data: u32, $other: u32) -> u32 {
                let _ = ($old, $data, $other);
                $e32
            }
        }
        impl AtomicFn for $name<u64> {
            type Word = u64;
            const COMPARES: bool = $compares;
            #[inline(always)]
            fn new($old: u64, $data: u64, $other: u64) -> u64 {
                let _ = ($old, $data, $other);
                $e64
            }
        }
    )* };
    ($($name:ident $compares:literal |$old:ident, $data:ident, $other:ident| $e:expr;)*) => {
        atomics! { $($name $compares |$old, $data, $other| $e, $e;)* }
    };
}

atomics! {
    Swap false |old, data, other| data;
    CompareSwap true |old, data, other| if old == other { data } else { old };
    Add false |old, data, other| old.wrapping_add(data);
    Sub false |old, data, other| old.wrapping_sub(data);
    ReverseSub false |old, data, other| data.wrapping_sub(old);
    ClampedSub false |old, data, other| old.saturating_sub(data);
    MinU false |old, data, other| old.min(data);
    MaxU false |old, data, other| old.max(data);
    And false |old, data, other| old & data;
    Or false |old, data, other| old | data;
    Xor false |old, data, other| old ^ data;
    Inc false |old, data, other| if old >= data { 0 } else { old + 1 };
    Dec false |old, data, other| if old == 0 || old > data { data } else { old - 1 };
    MaskedOr true |old, data, other| old & !data | other;
    Wrap true |old, data, other| if old >= data { old - data } else { old.wrapping_add(other) };
}

/// The smaller number; a number beats NaN, -0 beats +0.
macro_rules! float_min {
    ($t:ty, $old:ident, $data:ident) => {{
        let (a, b) = (<$t>::from_bits($old), <$t>::from_bits($data));
        if a < b || b.is_nan() {
            $old
        } else if a == b {
            $old | $data
        } else {
            $data
        }
    }};
}

/// The larger number; a number beats NaN, +0 beats -0.
macro_rules! float_max {
    ($t:ty, $old:ident, $data:ident) => {{
        let (a, b) = (<$t>::from_bits($old), <$t>::from_bits($data));
        if a > b || b.is_nan() {
            $old
        } else if a == b {
            $old & $data
        } else {
            $data
        }
    }};
}

atomics! {
    MinI false |old, data, other|
        (old as i32).min(data as i32) as u32, (old as i64).min(data as i64) as u64;
    MaxI false |old, data, other|
        (old as i32).max(data as i32) as u32, (old as i64).max(data as i64) as u64;
    MinF false |old, data, other| float_min!(f32, old, data), float_min!(f64, old, data);
    MaxF false |old, data, other| float_max!(f32, old, data), float_max!(f64, old, data);
    AddF false |old, data, other|
        (f32::from_bits(old) + f32::from_bits(data)).to_bits(),
        (f64::from_bits(old) + f64::from_bits(data)).to_bits();
    CompareSwapF true |old, data, other|
        if f32::from_bits(old) == f32::from_bits(other) { data } else { old },
        if f64::from_bits(old) == f64::from_bits(other) { data } else { old };
}

/// An atomic in device memory (or LDS, by FLAT). The data registers hold the data, then the comparison value.
pub(crate) struct Atomic<S, F>(PhantomData<(S, F)>);

impl<S: Space, F: AtomicFn> Body for Atomic<S, F> {
    #[inline(always)]
    fn run(m: &mut Machine<'_>, i: &Inst) -> Step {
        let mut targets = Targets::new();
        let kind = Kind { bytes: F::BYTES, write: true, atomic: true };
        if let Err(step) = S::targets(m, i, kind, &mut targets) {
            return step;
        }
        if m.state.watch.is_some()
            && let stop @ (Step::Jump | Step::Stop) = m.watch_access(i, &targets, kind)
        {
            return stop;
        }
        let v = &mut m.state.regs.v;
        let data = i.src[1].reg;
        let other = if F::COMPARES { data + F::BYTES as u16 / 4 } else { data };
        for l in lanes(targets.whole) {
            let (data, other) = (F::read(v, data, l), F::read(v, other, l));
            // SAFETY: `targets` checked the bytes and their alignment.
            let old = unsafe { F::update(targets.at[l] as *mut u8, data, other) };
            if i.glc {
                F::write(old, v, i.dst, l);
            }
        }
        if i.glc {
            for l in lanes(targets.nothing) {
                F::write(F::Word::default(), v, i.dst, l);
            }
            if m.state.watch.is_some() {
                m.watch_acquire();
            }
        }
        Step::Next
    }
}
