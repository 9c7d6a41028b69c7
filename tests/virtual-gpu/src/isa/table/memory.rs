//! Scalar loads, and vector memory. One list makes the tables of FLAT, GLOBAL, SCRATCH and MUBUF,
//! because their opcodes are the same.

use super::Row;
use crate::isa::exec::Op;
use crate::isa::exec::access::{
    Access, Dwords, I8, I8High, I8Low, I16, U8, U8High, U8Low, U16, U16High, U16Low,
};
use crate::isa::exec::atomic::{self as a, Atomic, AtomicFn};
use crate::isa::exec::buffer::Buffer;
use crate::isa::exec::flat::{Flat, Global, Load, Scratch, Store};
use crate::isa::exec::scalar::{InvalidateGl0, MemTime, Nop};
use crate::isa::exec::smem;
use crate::isa::inst::{Flags, Ty};

const NONE: [Ty; 3] = [Ty::None; 3];
const SBASE: [Ty; 3] = [Ty::B64, Ty::B32, Ty::None];
const RESOURCE: [Ty; 3] = [Ty::Wide(4), Ty::B32, Ty::None];

/// Scalar loads of a number of dwords.
macro_rules! scalar_load {
    ($n:literal, $k:literal) => {
        Op::special::<smem::Load<$k>>($n, Ty::Wide($k), SBASE)
    };
    ($n:literal, $k:literal, buffer) => {
        Op::special::<smem::BufferLoad<$k>>($n, Ty::Wide($k), RESOURCE)
    };
}

pub(super) static SMEM: &[Row] = &[
    (0x00, scalar_load!("s_load_dword", 1)),
    (0x01, scalar_load!("s_load_dwordx2", 2)),
    (0x02, scalar_load!("s_load_dwordx4", 4)),
    (0x03, scalar_load!("s_load_dwordx8", 8)),
    (0x04, scalar_load!("s_load_dwordx16", 16)),
    (0x08, scalar_load!("s_buffer_load_dword", 1, buffer)),
    (0x09, scalar_load!("s_buffer_load_dwordx2", 2, buffer)),
    (0x0a, scalar_load!("s_buffer_load_dwordx4", 4, buffer)),
    (0x0b, scalar_load!("s_buffer_load_dwordx8", 8, buffer)),
    (0x0c, scalar_load!("s_buffer_load_dwordx16", 16, buffer)),
    (0x1f, Op::special::<Nop>("s_gl1_inv", Ty::None, NONE)),
    (0x20, Op::special::<Nop>("s_dcache_inv", Ty::None, NONE)),
    (0x24, Op::special::<MemTime>("s_memtime", Ty::B64, NONE)),
    (0x25, Op::special::<MemTime>("s_memrealtime", Ty::B64, NONE)),
    (0x26, Op::special::<Nop>("s_atc_probe", Ty::None, SBASE)),
    (0x27, Op::special::<Nop>("s_atc_probe_buffer", Ty::None, RESOURCE)),
];

/// A load: address, nothing, scalar base or resource.
const fn load<S, A: Access>(name: &'static str) -> Op
where
    Load<S, A>: crate::isa::exec::Body,
{
    Op::wide::<Load<S, A>>(name, Ty::Wide(A::DWORDS as u8), NONE)
}

/// A store.
const fn store<S, A: Access>(name: &'static str) -> Op
where
    Store<S, A>: crate::isa::exec::Body,
{
    Op::wide::<Store<S, A>>(name, Ty::None, [Ty::None, Ty::Wide(A::DWORDS as u8), Ty::None])
}

/// An atomic.
const fn atomic<S, F: AtomicFn>(name: &'static str) -> Op
where
    Atomic<S, F>: crate::isa::exec::Body,
{
    let words = F::BYTES as u8 / 4;
    let data = if F::COMPARES { 2 * words } else { words };
    Op::special::<Atomic<S, F>>(name, Ty::Wide(words), [Ty::None, Ty::Wide(data), Ty::None])
        .with(Flags::ATOMIC)
}

/// The four formats' tables from one list.
macro_rules! formats {
    ($($code:literal $kind:ident $name:literal $t:ty;)*
     atomics $($acode:literal $aname:literal $f:ident;)*
     global $($gcode:literal $gop:expr;)*
     buffer $($bcode:literal $bop:expr;)*) => {
        pub(super) static FLAT: &[Row] = &[
            $(($code, $kind::<Flat, $t>(concat!("flat_", $name))),)*
            $(($acode, atomic::<Flat, a::$f<u32>>(concat!("flat_atomic_", $aname))),)*
            $(($acode + 0x20, atomic::<Flat, a::$f<u64>>(concat!("flat_atomic_", $aname, "_x2"))),)*
        ];
        pub(super) static GLOBAL: &[Row] = &[
            $(($code, $kind::<Global, $t>(concat!("global_", $name))),)*
            $(($acode, atomic::<Global, a::$f<u32>>(concat!("global_atomic_", $aname))),)*
            $(($acode + 0x20, atomic::<Global, a::$f<u64>>(concat!("global_atomic_", $aname, "_x2"))),)*
            $(($gcode, $gop),)*
        ];
        pub(super) static SCRATCH: &[Row] = &[
            $(($code, $kind::<Scratch, $t>(concat!("scratch_", $name))),)*
        ];
        pub(super) static MUBUF: &[Row] = &[
            $(($code, $kind::<Buffer, $t>(concat!("buffer_", $name))),)*
            $(($acode, atomic::<Buffer, a::$f<u32>>(concat!("buffer_atomic_", $aname))),)*
            $(($acode + 0x20, atomic::<Buffer, a::$f<u64>>(concat!("buffer_atomic_", $aname, "_x2"))),)*
            $(($bcode, $bop),)*
        ];
    };
}

/// A buffer instruction with a format: not executed.
const fn format(name: &'static str) -> Op {
    Op::lacking(name, Ty::Wide(1), NONE)
}

formats! {
    0x08 load "load_ubyte" U8;
    0x09 load "load_sbyte" I8;
    0x0a load "load_ushort" U16;
    0x0b load "load_sshort" I16;
    0x0c load "load_dword" Dwords<1>;
    0x0d load "load_dwordx2" Dwords<2>;
    0x0e load "load_dwordx4" Dwords<4>;
    0x0f load "load_dwordx3" Dwords<3>;
    0x18 store "store_byte" U8;
    0x19 store "store_byte_d16_hi" U8High;
    0x1a store "store_short" U16;
    0x1b store "store_short_d16_hi" U16High;
    0x1c store "store_dword" Dwords<1>;
    0x1d store "store_dwordx2" Dwords<2>;
    0x1e store "store_dwordx4" Dwords<4>;
    0x1f store "store_dwordx3" Dwords<3>;
    0x20 load "load_ubyte_d16" U8Low;
    0x21 load "load_ubyte_d16_hi" U8High;
    0x22 load "load_sbyte_d16" I8Low;
    0x23 load "load_sbyte_d16_hi" I8High;
    0x24 load "load_short_d16" U16Low;
    0x25 load "load_short_d16_hi" U16High;
    atomics
    0x30 "swap" Swap;
    0x31 "cmpswap" CompareSwap;
    0x32 "add" Add;
    0x33 "sub" Sub;
    0x35 "smin" MinI;
    0x36 "umin" MinU;
    0x37 "smax" MaxI;
    0x38 "umax" MaxU;
    0x39 "and" And;
    0x3a "or" Or;
    0x3b "xor" Xor;
    0x3c "inc" Inc;
    0x3d "dec" Dec;
    0x3e "fcmpswap" CompareSwapF;
    0x3f "fmin" MinF;
    0x40 "fmax" MaxF;
    global
    0x16 load::<Global, Dwords<1>>("global_load_dword_addtid").with(Flags::NO_ADDRESS);
    0x17 store::<Global, Dwords<1>>("global_store_dword_addtid").with(Flags::NO_ADDRESS);
    0x34 atomic::<Global, a::ClampedSub<u32>>("global_atomic_csub");
    buffer
    0x00 format("buffer_load_format_x");
    0x01 format("buffer_load_format_xy");
    0x02 format("buffer_load_format_xyz");
    0x03 format("buffer_load_format_xyzw");
    0x04 format("buffer_store_format_x");
    0x05 format("buffer_store_format_xy");
    0x06 format("buffer_store_format_xyz");
    0x07 format("buffer_store_format_xyzw");
    0x26 format("buffer_load_format_d16_hi_x");
    0x27 format("buffer_store_format_d16_hi_x");
    0x34 atomic::<Buffer, a::ClampedSub<u32>>("buffer_atomic_csub");
    0x71 Op::special::<InvalidateGl0>("buffer_gl0_inv", Ty::None, NONE).with(Flags::NO_ADDRESS);
    0x72 Op::special::<Nop>("buffer_gl1_inv", Ty::None, NONE).with(Flags::NO_ADDRESS);
    0x80 format("buffer_load_format_d16_x");
    0x81 format("buffer_load_format_d16_xy");
    0x82 format("buffer_load_format_d16_xyz");
    0x83 format("buffer_load_format_d16_xyzw");
    0x84 format("buffer_store_format_d16_x");
    0x85 format("buffer_store_format_d16_xy");
    0x86 format("buffer_store_format_d16_xyz");
    0x87 format("buffer_store_format_d16_xyzw");
}
