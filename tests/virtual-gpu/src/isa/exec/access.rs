//! The data that a memory instruction moves: sizes, extension, and halves of registers.

use crate::isa::state::Vgpr;

/// Moves one lane's data between memory and registers.
pub(crate) trait Access {
    /// Bytes in memory.
    const BYTES: u32;
    /// Registers.
    const DWORDS: u16;

    /// Loads into lane `lane` of the registers from `dst` on.
    ///
    /// # Safety
    /// `BYTES` bytes at `at` are readable.
    unsafe fn load(at: *const u8, v: &mut [Vgpr], lane: usize);

    /// Stores lane `lane` of the registers.
    ///
    /// # Safety
    /// `BYTES` bytes at `at` are writable.
    unsafe fn store(at: *mut u8, v: &[Vgpr], lane: usize);
}

/// `N` dwords. One or two of them move in one access, as 64-bit atomic loads and stores need.
pub(crate) struct Dwords<const N: usize>;

impl<const N: usize> Access for Dwords<N> {
    const BYTES: u32 = 4 * N as u32;
    const DWORDS: u16 = N as u16;

    #[inline(always)]
    unsafe fn load(at: *const u8, v: &mut [Vgpr], lane: usize) {
        if N == 2 {
            // SAFETY: the caller guarantees 8 bytes.
            let x = unsafe { at.cast::<u64>().read_unaligned() };
            v[0].0[lane] = x as u32;
            v[1].0[lane] = (x >> 32) as u32;
            return;
        }
        if N == 4 {
            // Each half is whole, as on a GPU: RCCL's protocol LL writes data and a flag in 8 bytes.
            for (half, v) in v.chunks_exact_mut(2).take(2).enumerate() {
                // SAFETY: the caller guarantees 16 bytes.
                let x = unsafe { at.cast::<u64>().add(half).read_unaligned() };
                v[0].0[lane] = x as u32;
                v[1].0[lane] = (x >> 32) as u32;
            }
            return;
        }
        // SAFETY: the caller guarantees `4 * N` bytes.
        let x = unsafe { at.cast::<[u32; N]>().read_unaligned() };
        for (reg, x) in v.iter_mut().zip(x) {
            reg.0[lane] = x;
        }
    }

    #[inline(always)]
    unsafe fn store(at: *mut u8, v: &[Vgpr], lane: usize) {
        if N == 2 {
            let x = u64::from(v[0].0[lane]) | u64::from(v[1].0[lane]) << 32;
            // SAFETY: the caller guarantees 8 bytes.
            unsafe { at.cast::<u64>().write_unaligned(x) };
            return;
        }
        if N == 4 {
            for (half, v) in v.chunks_exact(2).take(2).enumerate() {
                let x = u64::from(v[0].0[lane]) | u64::from(v[1].0[lane]) << 32;
                // SAFETY: the caller guarantees 16 bytes.
                unsafe { at.cast::<u64>().add(half).write_unaligned(x) };
            }
            return;
        }
        let mut x = [0u32; N];
        for (x, reg) in x.iter_mut().zip(v) {
            *x = reg.0[lane];
        }
        // SAFETY: the caller guarantees `4 * N` bytes.
        unsafe { at.cast::<[u32; N]>().write_unaligned(x) };
    }
}

macro_rules! narrow {
    ($($(#[$doc:meta])* $name:ident: $t:ty, |$old:ident, $x:ident| $load:expr, |$reg:ident| $store:expr;)*) => { $(
        $(#[$doc])*
        pub(crate) struct $name;

        impl Access for $name {
            const BYTES: u32 = size_of::<$t>() as u32;
            const DWORDS: u16 = 1;

            #[inline(always)]
            unsafe fn load(at: *const u8, v: &mut [Vgpr], lane: usize) {
                // SAFETY: the caller guarantees that many bytes.
                let $x = unsafe { at.cast::<$t>().read_unaligned() };
                let $old = v[0].0[lane];
                let _ = $old;
                v[0].0[lane] = $load;
            }

            #[inline(always)]
            unsafe fn store(at: *mut u8, v: &[Vgpr], lane: usize) {
                let $reg = v[0].0[lane];
                // SAFETY: the caller guarantees that many bytes.
                unsafe { at.cast::<$t>().write_unaligned($store as $t) };
            }
        }
    )* };
}

/// Replaces the low half.
#[inline(always)]
fn low(old: u32, x: u16) -> u32 {
    old & 0xffff_0000 | u32::from(x)
}

/// Replaces the high half.
#[inline(always)]
fn high(old: u32, x: u16) -> u32 {
    old & 0xffff | u32::from(x) << 16
}

narrow! {
    U8: u8, |old, x| x.into(), |r| r;
    I8: i8, |old, x| x as u32, |r| r;
    U16: u16, |old, x| x.into(), |r| r;
    I16: i16, |old, x| x as u32, |r| r;
    U8Low: u8, |old, x| low(old, x.into()), |r| r;
    I8Low: i8, |old, x| low(old, x as u16), |r| r;
    U16Low: u16, |old, x| low(old, x), |r| r;
    U8High: u8, |old, x| high(old, x.into()), |r| r >> 16;
    I8High: i8, |old, x| high(old, x as u16), |r| r >> 16;
    U16High: u16, |old, x| high(old, x), |r| r >> 16;
}
