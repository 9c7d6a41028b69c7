//! What unit of the GPU an instruction occupies, for counters.

use super::inst::{Opcode, Ty};

/// A class of instructions that the hardware issues alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Class {
    /// Vector arithmetic on 32-bit floats, comparisons and conversions among it.
    F32,
    /// The same on 16-bit floats, packed or not.
    F16,
    /// The same on 64-bit floats.
    F64,
    /// Integers, bits and moves.
    Integer,
    /// Products of 32-bit integers, which take four times as long.
    IntegerProduct,
    /// Exponentials, logarithms, reciprocals, roots, sines and cosines.
    Transcendental,
    /// Dot products of packed operands.
    Dot,
    /// Vector loads: global, flat, buffer and scratch.
    Load,
    /// Vector stores.
    Store,
    /// Atomics in global memory.
    Atomic,
    /// The local data share, lane permutations by its crossbar among it.
    Lds,
    /// Scalar arithmetic.
    Scalar,
    /// Scalar loads.
    ScalarMemory,
    /// Branches, calls and returns.
    Branch,
    /// Waits for memory.
    Wait,
    /// Barriers.
    Barrier,
    /// Whatever occupies no unit: `s_nop`, `s_clause`, `s_endpgm`, invalidations of caches.
    Other,
}

impl Class {
    /// All classes, in the order of their numbers.
    pub const ALL: [Self; 17] = [
        Self::F32,
        Self::F16,
        Self::F64,
        Self::Integer,
        Self::IntegerProduct,
        Self::Transcendental,
        Self::Dot,
        Self::Load,
        Self::Store,
        Self::Atomic,
        Self::Lds,
        Self::Scalar,
        Self::ScalarMemory,
        Self::Branch,
        Self::Wait,
        Self::Barrier,
        Self::Other,
    ];

    /// The name of its column.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "valu_f32",
            Self::F16 => "valu_f16",
            Self::F64 => "valu_f64",
            Self::Integer => "valu_int",
            Self::IntegerProduct => "valu_int_mul",
            Self::Transcendental => "valu_trans",
            Self::Dot => "valu_dot",
            Self::Load => "vmem_load",
            Self::Store => "vmem_store",
            Self::Atomic => "vmem_atomic",
            Self::Lds => "lds",
            Self::Scalar => "salu",
            Self::ScalarMemory => "smem",
            Self::Branch => "branch",
            Self::Wait => "wait",
            Self::Barrier => "barrier",
            Self::Other => "other",
        }
    }

    /// Whether EXEC says which lanes take part.
    pub fn is_vector(self) -> bool {
        (self as usize) < Self::Scalar as usize
    }

    /// The class of an opcode, by its name's parts and its operands' types.
    pub(crate) fn of<E>(op: &Opcode<E>) -> Self {
        let name = op.name;
        let (unit, rest) = name.split_once('_').unwrap_or((name, ""));
        match unit {
            "v" => Self::of_vector(rest, op.dst, op.src),
            "s" => Self::of_scalar(rest),
            "ds" if rest != "nop" => Self::Lds,
            "global" | "flat" | "buffer" | "scratch" => match rest.split('_').next() {
                Some("load") => Self::Load,
                Some("store") => Self::Store,
                Some("atomic") => Self::Atomic,
                _ => Self::Other,
            },
            _ => Self::Other,
        }
    }

    fn of_vector(rest: &str, dst: Ty, src: [Ty; 3]) -> Self {
        let operation = rest.split('_').next().unwrap_or(rest);
        match operation {
            "exp" | "log" | "rcp" | "rsq" | "sqrt" | "sin" | "cos" => return Self::Transcendental,
            _ if operation.starts_with("dot") => return Self::Dot,
            _ => {}
        }
        let has = |types: &[Ty]| types.contains(&dst) || src.iter().any(|ty| types.contains(ty));
        if has(&[Ty::F64]) {
            Self::F64
        } else if has(&[Ty::F32, Ty::Mix]) {
            Self::F32
        } else if has(&[Ty::F16, Ty::PkF16]) {
            Self::F16
        } else if matches!(rest, "mul_lo_u32" | "mul_hi_u32" | "mul_hi_i32" | "mad_u64_u32" | "mad_i64_i32") {
            Self::IntegerProduct
        } else {
            Self::Integer
        }
    }

    fn of_scalar(rest: &str) -> Self {
        match rest.split('_').next().unwrap_or(rest) {
            "branch" | "cbranch" | "call" | "setpc" | "swappc" | "rfe" => Self::Branch,
            "load" | "dcache" | "gl1" | "atc" | "memtime" | "memrealtime" => Self::ScalarMemory,
            "buffer" => Self::ScalarMemory,
            "waitcnt" | "wait" => Self::Wait,
            "barrier" => Self::Barrier,
            "nop" | "endpgm" | "setkill" | "sethalt" | "sleep" | "setprio" | "sendmsg" | "sendmsghalt"
            | "trap" | "icache" | "incperflevel" | "decperflevel" | "ttracedata" | "code" | "inst"
            | "clause" => Self::Other,
            _ => Self::Scalar,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::table::TABLES;

    #[test]
    fn numbers_are_places_and_names_differ() {
        for (place, class) in Class::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, place);
            assert!(Class::ALL[..place].iter().all(|other| other.name() != class.name()));
        }
    }

    #[test]
    fn opcodes_have_the_class_of_their_unit() {
        let tables = &*TABLES;
        let class = |name: &str| {
            let rows = (0..1024)
                .flat_map(|code| [tables.vop3.get(code), tables.global.get(code), tables.sopp.get(code)])
                .chain((0..256).flat_map(|code| [tables.vop3p.get(code), tables.ds.get(code)]))
                .chain((0..256).flat_map(|code| [tables.smem.get(code), tables.sop2.get(code)]))
                .flatten();
            Class::of(rows.into_iter().find(|op| op.name == name).unwrap_or_else(|| panic!("no {name}")))
        };
        for (name, expected) in [
            ("v_fma_f32", Class::F32),
            ("v_cmp_lt_f32", Class::F32),
            ("v_cvt_f16_f32", Class::F32),
            ("v_fma_mix_f32", Class::F32),
            ("v_fma_f16", Class::F16),
            ("v_pk_fma_f16", Class::F16),
            ("v_fma_f64", Class::F64),
            ("v_frexp_exp_i32_f64", Class::F64),
            ("v_mov_b32", Class::Integer),
            ("v_pk_add_u16", Class::Integer),
            ("v_mul_lo_u32", Class::IntegerProduct),
            ("v_rcp_f32", Class::Transcendental),
            ("v_dot2_f32_f16", Class::Dot),
            ("global_load_dword", Class::Load),
            ("global_store_short", Class::Store),
            ("global_atomic_add", Class::Atomic),
            ("ds_read_b32", Class::Lds),
            ("ds_nop", Class::Other),
            ("s_add_u32", Class::Scalar),
            ("s_load_dword", Class::ScalarMemory),
            ("s_branch", Class::Branch),
            ("s_barrier", Class::Barrier),
            ("s_waitcnt", Class::Wait),
            ("s_endpgm", Class::Other),
        ] {
            assert_eq!(class(name), expected, "{name}");
        }
    }
}
