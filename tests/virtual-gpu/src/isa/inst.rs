//! A decoded instruction, and the opcode it belongs to.
//!
//! A handler runs an instruction. It needs the machine's state, whose module needs this file, so
//! the types here are generic over handlers: `H` is the handler of one instruction, and `E` stands
//! for the handlers of an opcode. [`super::exec`] names both.

/// The type of an operand: its width, and how an inline constant is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ty {
    /// No such operand.
    None,
    /// 16-bit integer, low half.
    B16,
    /// 16-bit float, low half.
    F16,
    /// 32 bits: integers and anything untyped.
    B32,
    /// 32-bit float.
    F32,
    /// 64-bit unsigned integer or mask: a literal is zero-extended.
    B64,
    /// 64-bit signed integer: a literal is sign-extended.
    I64,
    /// 64-bit float: a literal is its upper half.
    F64,
    /// Two 16-bit integers.
    PkB16,
    /// Two 16-bit floats.
    PkF16,
    /// A 32-bit float, or a 16-bit one in either half (`v_fma_mix*`).
    Mix,
    /// One bit for each lane, in a scalar register.
    Mask,
    /// This many dwords of registers.
    Wide(u8),
}

impl Ty {
    /// Registers it occupies.
    pub(crate) const fn dwords(self) -> u16 {
        match self {
            Self::None => 0,
            Self::B64 | Self::I64 | Self::F64 => 2,
            Self::Wide(n) => n as u16,
            _ => 1,
        }
    }

    /// Whether it occupies half a register.
    pub(crate) const fn is_half(self) -> bool {
        matches!(self, Self::B16 | Self::F16)
    }
}

/// Where a source operand comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// No such operand.
    None,
    /// Vector register `reg`.
    Vgpr,
    /// Scalar register `reg` (0..=127: SGPRs, VCC, TTMPs, M0, NULL, EXEC).
    Sgpr,
    /// `value`, in the operand's type.
    Constant,
    /// 1 if VCC is 0.
    Vccz,
    /// 1 if EXEC is 0.
    Execz,
    /// SCC.
    Scc,
    /// The first source as DPP permuted it.
    Permuted,
}

/// Which part of a register an SDWA operand (or `op_sel`) selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Select {
    /// Byte 0 to 3.
    Byte(u8),
    /// Half 0 or 1.
    Word(u8),
    /// Everything.
    Dword,
}

impl Select {
    /// From SDWA's three bits.
    pub(crate) fn from_sdwa(bits: u32) -> Option<Self> {
        match bits & 7 {
            b @ 0..=3 => Some(Self::Byte(b as u8)),
            w @ 4..=5 => Some(Self::Word((w - 4) as u8)),
            6 => Some(Self::Dword),
            _ => None,
        }
    }

    /// Shift and mask.
    pub(crate) fn field(self) -> (u32, u32) {
        match self {
            Self::Byte(n) => (u32::from(n) * 8, 0xff),
            Self::Word(n) => (u32::from(n) * 16, 0xffff),
            Self::Dword => (0, u32::MAX),
        }
    }
}

/// A source operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub(crate) value: u64,
    pub(crate) reg: u16,
    pub(crate) source: Source,
    /// A vector register without any modifier.
    pub(crate) plain: bool,
    /// A scalar register or a constant without any modifier.
    pub(crate) uniform: bool,
    pub(crate) neg: bool,
    pub(crate) abs: bool,
    pub(crate) sext: bool,
    pub(crate) select: Select,
    /// Packed operands: bits 0 and 1 select the half for the low and the high result, bits 2 and 3 negate it.
    pub(crate) packed: u8,
}

impl Operand {
    /// The packed selection without modifiers: low half for the low result, high half for the high one.
    pub(crate) const PACKED: u8 = 0b10;

    pub(crate) const NONE: Self = Self {
        value: 0,
        reg: 0,
        source: Source::None,
        plain: false,
        uniform: false,
        neg: false,
        abs: false,
        sext: false,
        select: Select::Dword,
        packed: Self::PACKED,
    };

    pub(crate) fn vgpr(reg: u16) -> Self {
        Self { reg, source: Source::Vgpr, plain: true, ..Self::NONE }
    }

    pub(crate) fn sgpr(reg: u16) -> Self {
        Self { reg, source: Source::Sgpr, uniform: true, ..Self::NONE }
    }

    pub(crate) fn constant(value: u64) -> Self {
        Self { value, source: Source::Constant, uniform: true, ..Self::NONE }
    }

    /// Recomputes `plain` and `uniform` after modifiers were set.
    pub(crate) fn settle(&mut self) {
        let bare = !(self.neg || self.abs) && self.select == Select::Dword && self.packed == Self::PACKED;
        self.plain = bare && self.source == Source::Vgpr;
        self.uniform = bare && matches!(self.source, Source::Sgpr | Source::Constant);
    }
}

/// What an SDWA (or 16-bit) result leaves in the rest of the destination register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unused {
    Zero,
    SignExtend,
    Preserve,
}

/// How DPP permutes the first source.
#[derive(Clone, Debug)]
pub(crate) struct Dpp<H> {
    /// For each lane the lane it reads; 255 for none.
    pub(crate) from: [u8; 32],
    /// Lanes that row and bank masks let write.
    pub(crate) enabled: u32,
    /// Lanes without a source read 0 instead of not writing.
    pub(crate) bound_ctrl: bool,
    /// Lanes read inactive lanes too.
    pub(crate) fetch_inactive: bool,
    /// The register that is permuted, and the handler that runs afterwards.
    pub(crate) reg: u16,
    pub(crate) inner: H,
}

/// A decoded instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction<H, E: 'static> {
    pub(crate) run: H,
    pub(crate) op: &'static Opcode<E>,
    /// Host address.
    pub(crate) pc: u64,
    pub(crate) src: [Operand; 3],
    /// A buffer instruction's scalar offset.
    pub(crate) soffset: Operand,
    /// Destination register: vector or scalar, as `op.dst` says.
    pub(crate) dst: u16,
    /// Scalar destination of carries and comparisons; 126 (EXEC) for `v_cmpx`.
    pub(crate) sdst: u16,
    /// One more than the highest vector register used.
    pub(crate) vgprs: u16,
    /// Bytes.
    pub(crate) size: u8,
    pub(crate) clamp: bool,
    pub(crate) omod: u8,
    pub(crate) op_sel: u8,
    pub(crate) dst_select: Select,
    pub(crate) dst_unused: Unused,
    /// The signed immediate of scalar and memory instructions; a memory instruction's second offset.
    pub(crate) imm: i32,
    pub(crate) imm1: i32,
    /// Memory: return the old value (atomics), index and offset enables, LDS destination.
    pub(crate) glc: bool,
    /// Memory: GLC, SLC or DLC.
    pub(crate) coherent: bool,
    pub(crate) offen: bool,
    pub(crate) idxen: bool,
    pub(crate) to_lds: bool,
    pub(crate) dpp: Option<Box<Dpp<H>>>,
    /// The first dwords of an unknown encoding.
    pub(crate) raw: [u32; 5],
}

impl<H, E> Instruction<H, E> {
    /// Whether control may leave the straight line here, so that a basic block ends.
    pub(crate) fn ends_block(&self) -> bool {
        self.op.flags.contains(Flags::BRANCH)
    }

    /// Address of the following instruction.
    pub(crate) fn next(&self) -> u64 {
        self.pc + u64::from(self.size)
    }
}

bitflags::bitflags! {
    /// Properties of an opcode that decoding needs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Flags: u32 {
        /// Ends a basic block.
        const BRANCH = 1 << 0;
        /// The destination is a source too, after the encoded ones.
        const ACCUMULATE = 1 << 1;
        /// Literal between the sources (`fmamk`).
        const LITERAL_MIDDLE = 1 << 2;
        /// Literal after the sources (`fmaak`).
        const LITERAL_LAST = 1 << 3;
        /// Writes a scalar destination in addition to the vector one, or instead of it.
        const SDST = 1 << 4;
        /// VOP2/VOPC: the last source is VCC unless VOP3 says otherwise.
        const VCC_SOURCE = 1 << 5;
        /// The vector destination field names a scalar register (`v_readlane`).
        const SCALAR_DST = 1 << 6;
        /// Writes EXEC (`v_cmpx`).
        const CMPX = 1 << 7;
        /// Scalar: the immediate is unsigned.
        const UNSIGNED = 1 << 8;
        /// A 32-bit literal follows (`s_setreg_imm32`).
        const LITERAL = 1 << 9;
        /// DS: two offsets of 8 bits.
        const TWO_OFFSETS = 1 << 10;
        /// Memory: atomic; returns the old value if GLC is set.
        const ATOMIC = 1 << 11;
        /// Memory: no address operand.
        const NO_ADDRESS = 1 << 12;
        /// Doesn't exist in VOP3 form.
        const NO_VOP3 = 1 << 13;
        /// Doesn't exist in SDWA and DPP form.
        const NO_SDWA = 1 << 14;
        /// The result goes to the upper half.
        const HIGH_HALF = 1 << 15;
        /// The first source is a vector register without modifiers.
        const VGPR_ONLY = 1 << 16;
        /// Not executed: it faults.
        const LACKING = 1 << 17;
    }
}

/// An opcode: a row of a format's table.
#[derive(Debug)]
pub(crate) struct Opcode<E> {
    pub(crate) name: &'static str,
    pub(crate) exec: E,
    pub(crate) dst: Ty,
    pub(crate) src: [Ty; 3],
    pub(crate) flags: Flags,
}
