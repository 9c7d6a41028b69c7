//! DS: the local data share.

use super::Row;
use crate::isa::exec::access::{
    Access, Dwords, I8, I8High, I8Low, I16, U8, U8High, U8Low, U16, U16High, U16Low,
};
use crate::isa::exec::atomic::{self as a, AtomicFn};
use crate::isa::exec::ds::{self as d, Exchange2, Read, Read2, Update, Write, Write2};
use crate::isa::exec::scalar::Nop;
use crate::isa::exec::{Body, Exec, Op};
use crate::isa::inst::{Flags, Ty};

const NONE: [Ty; 3] = [Ty::None; 3];
const ADDRESS: [Ty; 3] = [Ty::B32, Ty::None, Ty::None];
const ADDRESS_DATA: [Ty; 3] = [Ty::B32, Ty::B32, Ty::None];

const fn read<A: Access>(name: &'static str) -> Op {
    Op::wide::<Read<A>>(name, Ty::Wide(A::DWORDS as u8), ADDRESS)
}

const fn write<A: Access>(name: &'static str) -> Op {
    Op::wide::<Write<A>>(name, Ty::None, [Ty::B32, Ty::Wide(A::DWORDS as u8), Ty::None])
}

const fn read2<A: Access, const UNIT: u32>(name: &'static str) -> Op {
    Op::wide::<Read2<A, UNIT>>(name, Ty::Wide(2 * A::DWORDS as u8), ADDRESS).with(Flags::TWO_OFFSETS)
}

const fn write2<A: Access, const UNIT: u32>(name: &'static str) -> Op {
    let data = Ty::Wide(A::DWORDS as u8);
    Op::wide::<Write2<A, UNIT>>(name, Ty::None, [Ty::B32, data, data]).with(Flags::TWO_OFFSETS)
}

/// Two exchanges.
const fn exchange2<F: AtomicFn, const UNIT: u32>(name: &'static str) -> Op
where
    Exchange2<F, UNIT>: Body,
{
    let (word, both) = (Ty::Wide(F::BYTES as u8 / 4), Ty::Wide(F::BYTES as u8 / 2));
    Op::special::<Exchange2<F, UNIT>>(name, both, [Ty::B32, word, word]).with(Flags::TWO_OFFSETS)
}

/// An atomic without and with a result; the latter's opcode is 0x20 higher.
macro_rules! atomics {
    ($table:ident: $($code:literal $name:literal $rname:literal $f:ty $(, $swapped:literal)?;)*) => {
        static $table: &[Row] = &[
            $(($code, atomic::<$f, false, { false $(|| $swapped)? }>($name)),)*
            $(($code + 0x20, atomic::<$f, true, { false $(|| $swapped)? }>($rname)),)*
        ];
    };
}

const fn atomic<F: AtomicFn, const RETURN: bool, const SWAPPED: bool>(name: &'static str) -> Op {
    let word = Ty::Wide(F::BYTES as u8 / 4);
    let other = if F::COMPARES { word } else { Ty::None };
    Op {
        exec: Exec::scalar::<Update<F, RETURN, SWAPPED>>(),
        ..Op::special::<Nop>(name, if RETURN { word } else { Ty::None }, [Ty::B32, word, other])
    }
}

atomics! { ATOMICS:
    0x00 "ds_add_u32" "ds_add_rtn_u32" a::Add<u32>;
    0x01 "ds_sub_u32" "ds_sub_rtn_u32" a::Sub<u32>;
    0x02 "ds_rsub_u32" "ds_rsub_rtn_u32" a::ReverseSub<u32>;
    0x03 "ds_inc_u32" "ds_inc_rtn_u32" a::Inc<u32>;
    0x04 "ds_dec_u32" "ds_dec_rtn_u32" a::Dec<u32>;
    0x05 "ds_min_i32" "ds_min_rtn_i32" a::MinI<u32>;
    0x06 "ds_max_i32" "ds_max_rtn_i32" a::MaxI<u32>;
    0x07 "ds_min_u32" "ds_min_rtn_u32" a::MinU<u32>;
    0x08 "ds_max_u32" "ds_max_rtn_u32" a::MaxU<u32>;
    0x09 "ds_and_b32" "ds_and_rtn_b32" a::And<u32>;
    0x0a "ds_or_b32" "ds_or_rtn_b32" a::Or<u32>;
    0x0b "ds_xor_b32" "ds_xor_rtn_b32" a::Xor<u32>;
    0x0c "ds_mskor_b32" "ds_mskor_rtn_b32" a::MaskedOr<u32>;
    0x10 "ds_cmpst_b32" "ds_cmpst_rtn_b32" a::CompareSwap<u32>, true;
    0x11 "ds_cmpst_f32" "ds_cmpst_rtn_f32" a::CompareSwapF<u32>, true;
    0x12 "ds_min_f32" "ds_min_rtn_f32" a::MinF<u32>;
    0x13 "ds_max_f32" "ds_max_rtn_f32" a::MaxF<u32>;
    0x40 "ds_add_u64" "ds_add_rtn_u64" a::Add<u64>;
    0x41 "ds_sub_u64" "ds_sub_rtn_u64" a::Sub<u64>;
    0x42 "ds_rsub_u64" "ds_rsub_rtn_u64" a::ReverseSub<u64>;
    0x43 "ds_inc_u64" "ds_inc_rtn_u64" a::Inc<u64>;
    0x44 "ds_dec_u64" "ds_dec_rtn_u64" a::Dec<u64>;
    0x45 "ds_min_i64" "ds_min_rtn_i64" a::MinI<u64>;
    0x46 "ds_max_i64" "ds_max_rtn_i64" a::MaxI<u64>;
    0x47 "ds_min_u64" "ds_min_rtn_u64" a::MinU<u64>;
    0x48 "ds_max_u64" "ds_max_rtn_u64" a::MaxU<u64>;
    0x49 "ds_and_b64" "ds_and_rtn_b64" a::And<u64>;
    0x4a "ds_or_b64" "ds_or_rtn_b64" a::Or<u64>;
    0x4b "ds_xor_b64" "ds_xor_rtn_b64" a::Xor<u64>;
    0x4c "ds_mskor_b64" "ds_mskor_rtn_b64" a::MaskedOr<u64>;
    0x50 "ds_cmpst_b64" "ds_cmpst_rtn_b64" a::CompareSwap<u64>, true;
    0x51 "ds_cmpst_f64" "ds_cmpst_rtn_f64" a::CompareSwapF<u64>, true;
    0x52 "ds_min_f64" "ds_min_rtn_f64" a::MinF<u64>;
    0x53 "ds_max_f64" "ds_max_rtn_f64" a::MaxF<u64>;
}

static OTHERS: &[Row] = &[
    (0x0d, write::<Dwords<1>>("ds_write_b32")),
    (0x0e, write2::<Dwords<1>, 1>("ds_write2_b32")),
    (0x0f, write2::<Dwords<1>, 64>("ds_write2st64_b32")),
    (0x14, Op::special::<Nop>("ds_nop", Ty::None, NONE)),
    (0x15, atomic::<a::AddF<u32>, false, false>("ds_add_f32")),
    (0x18, Op::lacking("ds_gws_sema_release_all", Ty::None, NONE)),
    (0x19, Op::lacking("ds_gws_init", Ty::None, ADDRESS)),
    (0x1a, Op::lacking("ds_gws_sema_v", Ty::None, NONE)),
    (0x1b, Op::lacking("ds_gws_sema_br", Ty::None, ADDRESS)),
    (0x1c, Op::lacking("ds_gws_sema_p", Ty::None, NONE)),
    (0x1d, Op::lacking("ds_gws_barrier", Ty::None, ADDRESS)),
    (0x1e, write::<U8>("ds_write_b8")),
    (0x1f, write::<U16>("ds_write_b16")),
    (0x2d, atomic::<a::Swap<u32>, true, false>("ds_wrxchg_rtn_b32")),
    (0x2e, exchange2::<a::Swap<u32>, 1>("ds_wrxchg2_rtn_b32")),
    (0x2f, exchange2::<a::Swap<u32>, 64>("ds_wrxchg2st64_rtn_b32")),
    (0x34, atomic::<a::Wrap<u32>, true, false>("ds_wrap_rtn_b32")),
    (0x35, Op::special::<d::Swizzle>("ds_swizzle_b32", Ty::B32, ADDRESS)),
    (0x36, read::<Dwords<1>>("ds_read_b32")),
    (0x37, read2::<Dwords<1>, 1>("ds_read2_b32")),
    (0x38, read2::<Dwords<1>, 64>("ds_read2st64_b32")),
    (0x39, read::<I8>("ds_read_i8")),
    (0x3a, read::<U8>("ds_read_u8")),
    (0x3b, read::<I16>("ds_read_i16")),
    (0x3c, read::<U16>("ds_read_u16")),
    (0x3d, Op::special::<d::Consume>("ds_consume", Ty::B32, NONE)),
    (0x3e, Op::special::<d::Append>("ds_append", Ty::B32, NONE)),
    (0x3f, Op::lacking("ds_ordered_count", Ty::B32, ADDRESS)),
    (0x4d, write::<Dwords<2>>("ds_write_b64")),
    (0x4e, write2::<Dwords<2>, 1>("ds_write2_b64")),
    (0x4f, write2::<Dwords<2>, 64>("ds_write2st64_b64")),
    (0x55, atomic::<a::AddF<u32>, true, false>("ds_add_rtn_f32")),
    (0x6d, atomic::<a::Swap<u64>, true, false>("ds_wrxchg_rtn_b64")),
    (0x6e, exchange2::<a::Swap<u64>, 1>("ds_wrxchg2_rtn_b64")),
    (0x6f, exchange2::<a::Swap<u64>, 64>("ds_wrxchg2st64_rtn_b64")),
    (0x76, read::<Dwords<2>>("ds_read_b64")),
    (0x77, read2::<Dwords<2>, 1>("ds_read2_b64")),
    (0x78, read2::<Dwords<2>, 64>("ds_read2st64_b64")),
    (0x7e, Op::lacking("ds_condxchg32_rtn_b64", Ty::B64, [Ty::B32, Ty::B64, Ty::None])),
    (0xa0, write::<U8High>("ds_write_b8_d16_hi")),
    (0xa1, write::<U16High>("ds_write_b16_d16_hi")),
    (0xa2, read::<U8Low>("ds_read_u8_d16")),
    (0xa3, read::<U8High>("ds_read_u8_d16_hi")),
    (0xa4, read::<I8Low>("ds_read_i8_d16")),
    (0xa5, read::<I8High>("ds_read_i8_d16_hi")),
    (0xa6, read::<U16Low>("ds_read_u16_d16")),
    (0xa7, read::<U16High>("ds_read_u16_d16_hi")),
    (0xb0, Op::special::<d::WriteThread>("ds_write_addtid_b32", Ty::None, [Ty::None, Ty::B32, Ty::None])),
    (0xb1, Op::special::<d::ReadThread>("ds_read_addtid_b32", Ty::B32, NONE)),
    (0xb2, Op::special::<d::Permute>("ds_permute_b32", Ty::B32, ADDRESS_DATA)),
    (0xb3, Op::special::<d::BackPermute>("ds_bpermute_b32", Ty::B32, ADDRESS_DATA)),
    (0xde, write::<Dwords<3>>("ds_write_b96")),
    (0xdf, write::<Dwords<4>>("ds_write_b128")),
    (0xfe, read::<Dwords<3>>("ds_read_b96")),
    (0xff, read::<Dwords<4>>("ds_read_b128")),
];

pub(super) static DS: &[&[Row]] = &[ATOMICS, OTHERS];
