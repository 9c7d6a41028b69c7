//! The opcode tables: one row per instruction, with its operands' types and its semantics.
//!
//! Opcode numbers are those of the guide's chapter 13, "Microcode Formats", and of its tables of opcodes.

mod ds;
mod memory;
mod sop;
mod vop1;
mod vop2;
mod vop3;
mod vop3p;
mod vopc;

use std::sync::LazyLock;

use super::exec::lanes::{LaneFn, Lanes, Output, Saturating};
use super::exec::scalar::{Scalar, ScalarFn, Word};
use super::exec::value::Value;
use super::exec::{Body, Exec, Op, scalar};
use super::inst::{Flags, Ty};

/// A row: the opcode's number in its format, and what it does.
pub(crate) type Row = (u16, Op);

impl Op {
    /// An instruction that treats each lane alike.
    const fn lanes<F: LaneFn>(name: &'static str) -> Self {
        Self {
            name,
            exec: Exec::lanes::<Lanes<F>>(),
            dst: F::R::DST,
            src: [F::A::TY, F::B::TY, F::C::TY],
            flags: if F::R::SDST { Flags::SDST } else { Flags::empty() },
        }
    }

    /// The same for integers, with another function for the clamp bit.
    const fn saturating<F: LaneFn, G: LaneFn>(name: &'static str) -> Self {
        Self { exec: Exec::lanes::<Saturating<F, G>>(), ..Self::lanes::<F>(name) }
    }

    /// Scalar arithmetic.
    const fn scalar<F: ScalarFn>(name: &'static str) -> Self {
        Self {
            name,
            exec: Exec::scalar::<Scalar<F>>(),
            dst: F::R::TY,
            src: [F::A::TY, F::B::TY, Ty::None],
            flags: Flags::empty(),
        }
    }

    /// An instruction with a body of its own.
    pub(crate) const fn special<B: Body>(name: &'static str, dst: Ty, src: [Ty; 3]) -> Self {
        Self { name, exec: Exec::scalar::<B>(), dst, src, flags: Flags::empty() }
    }

    /// An instruction that is known, and faults when it runs.
    pub(crate) const fn lacking(name: &'static str, dst: Ty, src: [Ty; 3]) -> Self {
        Self::special::<scalar::Unsupported>(name, dst, src).with(Flags::BRANCH.union(Flags::LACKING))
    }

    /// The same at every level of the host.
    const fn wide<B: Body>(name: &'static str, dst: Ty, src: [Ty; 3]) -> Self {
        Self { name, exec: Exec::lanes::<B>(), dst, src, flags: Flags::empty() }
    }

    pub(crate) const fn with(self, flags: Flags) -> Self {
        Self { flags: self.flags.union(flags), ..self }
    }
}

/// The opcode to which an encoding without a row decodes.
pub(crate) static UNKNOWN: Op =
    Op::special::<scalar::Unknown>("", Ty::None, [Ty::None; 3]).with(Flags::BRANCH);

/// An instruction of the graphics formats: known, not executed.
pub(crate) static GRAPHICS: [Op; 3] = [
    Op::lacking("exp", Ty::None, [Ty::None; 3]),
    Op::lacking("image", Ty::None, [Ty::None; 3]),
    Op::lacking("v_interp", Ty::None, [Ty::None; 3]),
];

/// A lane function from a closure's text: `@ modal, mode, (three operands), result, body`.
macro_rules! lane_fn {
    ($modal:literal $m:ident ($a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty) $R:ty, $e:expr) => {{
        struct F;
        impl $crate::isa::exec::lanes::LaneFn for F {
            type A = $A;
            type B = $B;
            type C = $C;
            type R = $R;
            const MODAL: bool = $modal;
            #[inline(always)]
            #[allow(clippy::unused_unit)]
            fn eval<M: $crate::isa::exec::mode::Mode>($m: M, $a: $A, $b: $B, $c: $C) -> $R {
                $e
            }
        }
        $crate::isa::exec::Op::lanes::<F>
    }};
}

/// An integer or bit operation: `int!("name", |a: u32, b: u32| -> u32 { .. })`.
macro_rules! int {
    ($n:expr, |$a:ident: $A:ty| -> $R:ty $e:block) => {
        lane_fn!(false _m ($a: $A, _b: (), _c: ()) $R, $e)($n)
    };
    ($n:expr, |$a:ident: $A:ty, $b:ident: $B:ty| -> $R:ty $e:block) => {
        lane_fn!(false _m ($a: $A, $b: $B, _c: ()) $R, $e)($n)
    };
    ($n:expr, |$a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty| -> $R:ty $e:block) => {
        lane_fn!(false _m ($a: $A, $b: $B, $c: $C) $R, $e)($n)
    };
}

/// A floating-point operation, under MODE `m`: `fp!("name", |m, a: f32| -> f32 { .. })`.
macro_rules! fp {
    ($n:expr, |$m:ident, $a:ident: $A:ty| -> $R:ty $e:block) => {
        lane_fn!(true $m ($a: $A, _b: (), _c: ()) $R, $e)($n)
    };
    ($n:expr, |$m:ident, $a:ident: $A:ty, $b:ident: $B:ty| -> $R:ty $e:block) => {
        lane_fn!(true $m ($a: $A, $b: $B, _c: ()) $R, $e)($n)
    };
    ($n:expr, |$m:ident, $a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty| -> $R:ty $e:block) => {
        lane_fn!(true $m ($a: $A, $b: $B, $c: $C) $R, $e)($n)
    };
}

/// An integer operation, and its form with the clamp bit.
macro_rules! saturating {
    ($n:expr, |$a:ident: $A:ty, $b:ident: $B:ty| -> $R:ty $e:block, $s:block) => {
        saturating!($n, |$a: $A, $b: $B, _c: ()| -> $R $e, $s)
    };
    ($n:expr, |$a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty| -> $R:ty $e:block, $s:block) => {{
        struct Wrap;
        struct Clamp;
        saturating!(@ Wrap ($a: $A, $b: $B, $c: $C) $R, $e);
        saturating!(@ Clamp ($a: $A, $b: $B, $c: $C) $R, $s);
        $crate::isa::exec::Op::saturating::<Wrap, Clamp>($n)
    }};
    (@ $f:ident ($a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty) $R:ty, $e:block) => {
        impl $crate::isa::exec::lanes::LaneFn for $f {
            type A = $A;
            type B = $B;
            type C = $C;
            type R = $R;
            const MODAL: bool = false;
            #[inline(always)]
            fn eval<M: $crate::isa::exec::mode::Mode>(_: M, $a: $A, $b: $B, $c: $C) -> $R $e
        }
    };
}

pub(crate) use {fp, int, lane_fn, saturating};

/// All formats, indexed by opcode.
pub(crate) struct Tables {
    pub(crate) sop1: Index<256>,
    pub(crate) sop2: Index<128>,
    pub(crate) sopk: Index<32>,
    pub(crate) sopc: Index<128>,
    pub(crate) sopp: Index<128>,
    pub(crate) smem: Index<256>,
    pub(crate) vop1: Index<256>,
    pub(crate) vop2: Index<64>,
    pub(crate) vopc: Index<256>,
    /// VOPC at 0, VOP2 at 0x100, VOP1 at 0x180, and what only VOP3 has.
    pub(crate) vop3: Index<1024>,
    pub(crate) vop3p: Index<128>,
    pub(crate) ds: Index<256>,
    pub(crate) flat: Index<128>,
    pub(crate) global: Index<128>,
    pub(crate) scratch: Index<128>,
    pub(crate) mubuf: Index<256>,
}

/// Rows by opcode.
pub(crate) struct Index<const N: usize>([Option<&'static Op>; N]);

impl<const N: usize> Index<N> {
    fn new(parts: &[&'static [Row]]) -> Self {
        let mut index = Self([None; N]);
        parts.iter().for_each(|rows| index.add(0, rows));
        index
    }

    fn add(&mut self, base: usize, rows: &'static [Row]) {
        for (code, op) in rows {
            let slot = &mut self.0[base + *code as usize];
            debug_assert!(slot.is_none(), "{} has the opcode of another row", op.name);
            *slot = Some(op);
        }
    }

    /// The row of an opcode.
    pub(crate) fn get(&self, code: u32) -> Option<&'static Op> {
        self.0.get(code as usize).copied().flatten()
    }
}

/// The tables, indexed.
pub(crate) static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let mut vop3 = Index::new(&[vop3::VOP3]);
    let mut vopc = Index::new(&[]);
    for rows in vopc::VOPC {
        vopc.add(0, rows.as_flattened());
        vop3.add(0, rows.as_flattened());
    }
    vop3.add(0x100, vop2::VOP2);
    vop3.add(0x180, vop1::VOP1);
    Tables {
        sop1: Index::new(&[sop::SOP1]),
        sop2: Index::new(&[sop::SOP2]),
        sopk: Index::new(&[sop::SOPK]),
        sopc: Index::new(&[sop::SOPC]),
        sopp: Index::new(&[sop::SOPP]),
        smem: Index::new(&[memory::SMEM]),
        vop1: Index::new(&[vop1::VOP1]),
        vop2: Index::new(&[vop2::VOP2]),
        vopc,
        vop3,
        vop3p: Index::new(&[vop3p::VOP3P]),
        ds: Index::new(ds::DS),
        flat: Index::new(&[memory::FLAT]),
        global: Index::new(&[memory::GLOBAL]),
        scratch: Index::new(&[memory::SCRATCH]),
        mubuf: Index::new(&[memory::MUBUF]),
    }
});
