//! VOPC: comparisons, into VCC (or, with VOP3 and SDWA, any scalar register) or EXEC.

use super::{Row, fp, int, lane_fn};
use crate::isa::exec::Op;
use crate::isa::exec::float::{self as f, Float};
use crate::isa::exec::lanes::Outcome;
use crate::isa::exec::value::F16;
use crate::isa::inst::Flags;

/// Both forms of a comparison: `v_cmp_*` and, 16 opcodes on, `v_cmpx_*`.
macro_rules! both {
    ($code:literal, $name:expr, $namex:expr, $op:expr) => {{
        const CMP: Op = $op;
        [($code, Op { name: $name, ..CMP }), ($code + 0x10, Op { name: $namex, ..CMP.with(Flags::CMPX) })]
    }};
}

/// A table of comparisons of one type.
macro_rules! compare {
    ($table:ident: $ty:literal, $kind:ident, $t:ty; $($code:literal $name:literal |$a:ident, $b:ident| $e:expr;)*) => {
        static $table: &[[Row; 2]] = &[$(both!(
            $code,
            concat!("v_cmp_", $name, "_", $ty),
            concat!("v_cmpx_", $name, "_", $ty),
            $kind!(@ $t, |$a, $b| $e)
        ),)*];
    };
}

macro_rules! integers {
    (@ $t:ty, |$a:ident, $b:ident| $e:expr) => {
        int!("", |$a: $t, $b: $t| -> Outcome {
            let _ = ($a, $b);
            Outcome($e)
        })
    };
}

macro_rules! floats {
    (@ $t:ty, |$a:ident, $b:ident| $e:expr) => {
        fp!("", |m, $a: $t, $b: $t| -> Outcome {
            let ($a, $b) = (f::input(m, $a), f::input(m, $b));
            let _ = ($a, $b);
            Outcome($e)
        })
    };
}

/// Neither operand is NaN.
#[inline(always)]
fn ordered<T: Float>(a: T, b: T) -> bool {
    !(a.is_nan() || b.is_nan())
}

/// The 16 comparisons of floats.
macro_rules! float_table {
    ($table:ident: $ty:literal, $t:ty,
     $c0:literal $c1:literal $c2:literal $c3:literal $c4:literal $c5:literal $c6:literal $c7:literal
     $c8:literal $c9:literal $ca:literal $cb:literal $cc:literal $cd:literal $ce:literal $cf:literal) => {
        compare! { $table: $ty, floats, $t;
            $c0 "f" |a, b| false;
            $c1 "lt" |a, b| a.lt(b);
            $c2 "eq" |a, b| a.same(b);
            $c3 "le" |a, b| a.lt(b) || a.same(b);
            $c4 "gt" |a, b| b.lt(a);
            $c5 "lg" |a, b| a.lt(b) || b.lt(a);
            $c6 "ge" |a, b| b.lt(a) || a.same(b);
            $c7 "o" |a, b| ordered(a, b);
            $c8 "u" |a, b| !ordered(a, b);
            $c9 "nge" |a, b| !(b.lt(a) || a.same(b));
            $ca "nlg" |a, b| !(a.lt(b) || b.lt(a));
            $cb "ngt" |a, b| !b.lt(a);
            $cc "nle" |a, b| !(a.lt(b) || a.same(b));
            $cd "neq" |a, b| !a.same(b);
            $ce "nlt" |a, b| !a.lt(b);
            $cf "tru" |a, b| true;
        }
    };
}

/// The six orders of integers.
macro_rules! order_table {
    ($table:ident: $ty:literal, $t:ty,
     $c1:literal $c2:literal $c3:literal $c4:literal $c5:literal $c6:literal $($f:literal $always:literal)?) => {
        compare! { $table: $ty, integers, $t;
            $($f "f" |a, b| false;)?
            $c1 "lt" |a, b| a < b;
            $c2 "eq" |a, b| a == b;
            $c3 "le" |a, b| a <= b;
            $c4 "gt" |a, b| a > b;
            $c5 "ne" |a, b| a != b;
            $c6 "ge" |a, b| a >= b;
            $($always "t" |a, b| true;)?
        }
    };
}

/// `v_cmp_class`: whether the number belongs to one of the classes whose bits are set.
macro_rules! class {
    ($table:ident: $ty:literal, $t:ty, $code:literal) => {
        static $table: &[[Row; 2]] = &[both!(
            $code,
            concat!("v_cmp_class_", $ty),
            concat!("v_cmpx_class_", $ty),
            int!("", |a: $t, b: u32| -> Outcome { Outcome(f::class(a) & b != 0) })
        )];
    };
}

float_table! { F32: "f32", f32, 0x00 0x01 0x02 0x03 0x04 0x05 0x06 0x07 0x08 0x09 0x0a 0x0b 0x0c 0x0d 0x0e 0x0f }
float_table! { F64: "f64", f64, 0x20 0x21 0x22 0x23 0x24 0x25 0x26 0x27 0x28 0x29 0x2a 0x2b 0x2c 0x2d 0x2e 0x2f }
float_table! { F16T: "f16", F16, 0xc8 0xc9 0xca 0xcb 0xcc 0xcd 0xce 0xcf 0xe8 0xe9 0xea 0xeb 0xec 0xed 0xee 0xef }
order_table! { I32: "i32", i32, 0x81 0x82 0x83 0x84 0x85 0x86 0x80 0x87 }
order_table! { I16: "i16", i16, 0x89 0x8a 0x8b 0x8c 0x8d 0x8e }
order_table! { I64: "i64", i64, 0xa1 0xa2 0xa3 0xa4 0xa5 0xa6 0xa0 0xa7 }
order_table! { U16: "u16", u16, 0xa9 0xaa 0xab 0xac 0xad 0xae }
order_table! { U32: "u32", u32, 0xc1 0xc2 0xc3 0xc4 0xc5 0xc6 0xc0 0xc7 }
order_table! { U64: "u64", u64, 0xe1 0xe2 0xe3 0xe4 0xe5 0xe6 0xe0 0xe7 }
class! { CLASS32: "f32", f32, 0x88 }
class! { CLASS16: "f16", F16, 0x8f }
class! { CLASS64: "f64", f64, 0xa8 }

pub(super) static VOPC: &[&[[Row; 2]]] =
    &[F32, F64, F16T, I32, I16, I64, U16, U32, U64, CLASS32, CLASS16, CLASS64];
