//! VOP1, VOP2, VOPC, their SDWA and DPP forms, VOP3 and VOP3P.

use super::operand::{DPP8, DPP16, LITERAL, SDWA, VGPR};
use super::{Decoder, TABLES, bits};
use crate::isa::LANES;
use crate::isa::exec::{Handler, Op, lanes};
use crate::isa::inst::{Dpp, Flags, Operand, Select, Source, Ty, Unused};
use crate::isa::state::{EXEC, VCC};

impl Decoder<'_> {
    pub(super) fn vop12c(&mut self, word: u32) -> Option<()> {
        let (source, second, dst) = (bits(word, 0, 9), VGPR + bits(word, 9, 8), bits(word, 17, 8));
        let (op, codes, dst) = match bits(word, 25, 6) {
            0b111110 => (TABLES.vopc.get(dst)?, vec![source, second], None),
            0b111111 => (TABLES.vop1.get(bits(word, 9, 8))?, vec![source], Some(dst)),
            code => (TABLES.vop2.get(code)?, vec![source, second], Some(dst)),
        };
        self.set_op(op);
        self.inst.sdst = if op.flags.contains(Flags::CMPX) { EXEC } else { VCC };
        if let Some(dst) = dst {
            self.set_dst(dst);
        }
        match source {
            SDWA => self.sdwa(&codes),
            DPP16 => self.dpp16(&codes),
            code if DPP8.contains(&code) => self.dpp8(&codes, code == DPP8[1]),
            _ => self.vector_sources(&codes),
        }
    }

    /// The sources: the encoded ones, then those that the opcode implies.
    fn vector_sources(&mut self, codes: &[u32]) -> Option<()> {
        let op = self.inst.op;
        let mut codes = codes.to_vec();
        if op.flags.contains(Flags::LITERAL_MIDDLE) {
            codes.insert(1, LITERAL);
        } else if op.flags.contains(Flags::LITERAL_LAST) {
            codes.push(LITERAL);
        }
        for (k, code) in codes.iter().enumerate() {
            self.inst.src[k] = self.source(*code, op.src[k])?;
        }
        self.implied_source(codes.len());
        self.first_is_vgpr()
    }

    /// `None` if an instruction that only takes a vector register has something else as its first source.
    fn first_is_vgpr(&self) -> Option<()> {
        let inst = &self.inst;
        (!inst.op.flags.contains(Flags::VGPR_ONLY) || inst.src[0].plain).then_some(())
    }

    /// The destination as an addend, or VCC, as the last source.
    fn implied_source(&mut self, index: usize) {
        let op = self.inst.op;
        if op.flags.contains(Flags::ACCUMULATE) {
            self.inst.src[index] = self.vgpr(self.inst.dst.into(), op.src[index]);
        } else if op.flags.contains(Flags::VCC_SOURCE) {
            self.inst.src[index] = Operand::sgpr(VCC);
        }
    }

    fn sdwa(&mut self, codes: &[u32]) -> Option<()> {
        let op = self.inst.op;
        let word = self.take()?;
        if op.flags.contains(Flags::NO_SDWA) {
            return None;
        }
        let mut codes = codes.to_vec();
        codes[0] = if bits(word, 23, 1) != 0 { bits(word, 0, 8) } else { VGPR + bits(word, 0, 8) };
        if let Some(second) = codes.get_mut(1)
            && bits(word, 31, 1) != 0
        {
            *second -= VGPR;
        }
        for (k, code) in codes.iter().enumerate() {
            let at = 16 + 8 * k as u32;
            let mut operand = self.source(*code, op.src[k])?;
            operand.select = Select::from_sdwa(bits(word, at, 3))?;
            operand.sext = bits(word, at + 3, 1) != 0;
            operand.neg = bits(word, at + 4, 1) != 0;
            operand.abs = bits(word, at + 5, 1) != 0;
            operand.settle();
            self.inst.src[k] = operand;
        }
        self.implied_source(codes.len());
        if op.dst == Ty::None {
            if bits(word, 15, 1) != 0 && !op.flags.contains(Flags::CMPX) {
                self.inst.sdst = bits(word, 8, 7) as u16;
            }
            return Some(());
        }
        self.inst.dst_select = Select::from_sdwa(bits(word, 8, 3))?;
        self.inst.dst_unused = match bits(word, 11, 2) {
            1 => Unused::SignExtend,
            2 => Unused::Preserve,
            _ => Unused::Zero,
        };
        self.inst.clamp = bits(word, 13, 1) != 0;
        self.inst.omod = bits(word, 14, 2) as u8;
        Some(())
    }

    fn dpp16(&mut self, codes: &[u32]) -> Option<()> {
        let word = self.take()?;
        let control = bits(word, 8, 9);
        let mut from = [255; LANES];
        for (l, from) in from.iter_mut().enumerate() {
            *from = dpp16_source(control, l as u32)?.map_or(255, |lane| lane as u8);
        }
        let (banks, rows) = (bits(word, 24, 4), bits(word, 28, 4));
        let enabled = (0..LANES as u32)
            .filter(|l| rows >> (l / 16) & 1 != 0 && banks >> (l / 4 % 4) & 1 != 0)
            .fold(0, |mask, l| mask | 1 << l);
        self.dpp(codes, bits(word, 0, 8), |dpp| {
            dpp.from = from;
            dpp.enabled = enabled;
            dpp.fetch_inactive = bits(word, 18, 1) != 0;
            dpp.bound_ctrl = bits(word, 19, 1) != 0;
        })?;
        for (k, operand) in self.inst.src.iter_mut().take(codes.len()).enumerate() {
            operand.neg = bits(word, 20 + 2 * k as u32, 1) != 0;
            operand.abs = bits(word, 21 + 2 * k as u32, 1) != 0;
            // Of a packed operand these would mean both halves or one; compilers do not use them.
            let packed = matches!(self.inst.op.src[k], Ty::PkB16 | Ty::PkF16);
            self.unsupported |= packed && (operand.neg || operand.abs);
            operand.settle();
        }
        Some(())
    }

    fn dpp8(&mut self, codes: &[u32], fetch_inactive: bool) -> Option<()> {
        let word = self.take()?;
        self.dpp(codes, bits(word, 0, 8), |dpp| {
            dpp.from = std::array::from_fn(|l| (l & !7) as u8 | bits(word, 8 + 3 * (l as u32 & 7), 3) as u8);
            dpp.fetch_inactive = fetch_inactive;
            // An inactive lane gives 0 (LLVM's syntax of DPP8 modifiers, `fi`).
            dpp.bound_ctrl = true;
        })
    }

    /// The sources, the first one permuted; `set` fills in how.
    fn dpp(&mut self, codes: &[u32], reg: u32, set: impl FnOnce(&mut Dpp<Handler>)) -> Option<()> {
        let op = self.inst.op;
        if op.dst == Ty::None || op.flags.contains(Flags::NO_SDWA) || op.src[0].dwords() != 1 {
            return None;
        }
        let mut codes = codes.to_vec();
        codes[0] = VGPR + reg;
        self.vector_sources(&codes)?;
        self.inst.src[0].source = Source::Permuted;
        self.inst.src[0].plain = false;
        let inner = self.wrap(Handler(lanes::dpp));
        let mut dpp = Dpp {
            from: [255; LANES],
            enabled: u32::MAX,
            bound_ctrl: false,
            fetch_inactive: false,
            reg: reg as u16,
            inner,
        };
        set(&mut dpp);
        self.inst.dpp = Some(Box::new(dpp));
        Some(())
    }

    pub(super) fn vop3(&mut self, word: u32) -> Option<()> {
        let code = bits(word, 16, 10);
        let op = TABLES.vop3.get(code)?;
        if op.flags.contains(Flags::NO_VOP3) {
            return None;
        }
        self.set_op(op);
        let second = self.take()?;
        self.vop3_destinations(op, word);
        let encoded = op.src.iter().filter(|ty| **ty != Ty::None).count()
            - usize::from(op.flags.contains(Flags::ACCUMULATE));
        let op_sel = bits(word, 11, 4);
        // A scalar destination's field occupies the bits of `abs` and `op_sel`.
        let scalar_too = op.flags.contains(Flags::SDST) && op.dst != Ty::None;
        for k in 0..encoded {
            let at = k as u32;
            let mut operand = self.source(bits(second, 9 * at, 9), op.src[k])?;
            operand.neg = bits(second, 29 + at, 1) != 0;
            if !scalar_too {
                operand.abs = bits(word, 8 + at, 1) != 0;
                if op.src[k].is_half() && op_sel >> at & 1 != 0 {
                    operand.select = Select::Word(1);
                }
            }
            if op.src[k] != Ty::Mask {
                operand.settle();
            }
            self.inst.src[k] = operand;
        }
        if op.flags.contains(Flags::ACCUMULATE) {
            self.implied_source(encoded);
            if op.dst.is_half() && op_sel & 8 != 0 {
                self.inst.src[encoded].select = Select::Word(1);
                self.inst.src[encoded].settle();
            }
        }
        if op.dst.is_half() && op_sel & 8 != 0 {
            self.inst.dst_select = Select::Word(1);
        }
        self.inst.op_sel = op_sel as u8;
        self.inst.clamp = bits(word, 15, 1) != 0;
        self.inst.omod = bits(second, 27, 2) as u8;
        self.first_is_vgpr()
    }

    fn vop3_destinations(&mut self, op: &Op, word: u32) {
        let dst = bits(word, 0, 8);
        if op.dst == Ty::None {
            let cmpx = op.flags.contains(Flags::CMPX);
            self.inst.sdst = if cmpx { EXEC } else { dst as u16 & 127 };
        } else {
            self.set_dst(dst);
            self.inst.sdst = bits(word, 8, 7) as u16;
        }
    }

    pub(super) fn vop3p(&mut self, word: u32) -> Option<()> {
        let op = TABLES.vop3p.get(bits(word, 16, 7))?;
        self.set_op(op);
        let second = self.take()?;
        self.set_dst(bits(word, 0, 8));
        let (neg_hi, op_sel) = (bits(word, 8, 3), bits(word, 11, 3));
        let op_sel_hi = bits(second, 27, 2) | bits(word, 14, 1) << 2;
        let neg_lo = bits(second, 29, 3);
        for k in 0..op.src.iter().filter(|ty| **ty != Ty::None).count() {
            let flag = |field: u32| field >> k & 1 != 0;
            let ty = match op.src[k] {
                Ty::Mix if flag(op_sel_hi) => Ty::F16,
                Ty::Mix => Ty::F32,
                ty => ty,
            };
            let mut operand = self.source(bits(second, 9 * k as u32, 9), ty)?;
            match op.src[k] {
                Ty::PkB16 | Ty::PkF16 => {
                    operand.packed = u8::from(flag(op_sel))
                        | u8::from(flag(op_sel_hi)) << 1
                        | u8::from(flag(neg_lo)) << 2
                        | u8::from(flag(neg_hi)) << 3;
                }
                Ty::Mix => {
                    operand.packed = if flag(op_sel_hi) { flag(op_sel).into() } else { Operand::PACKED };
                    operand.neg = flag(neg_lo);
                    operand.abs = flag(neg_hi);
                }
                Ty::F32 => operand.neg = flag(neg_lo),
                _ => {}
            }
            operand.settle();
            self.inst.src[k] = operand;
        }
        self.inst.clamp = bits(word, 15, 1) != 0;
        Some(())
    }
}

/// The lane that `lane` reads under a DPP control (section 6.9.2 of the guide's "DPP"): `Some(None)` beyond the row,
/// `None` for a control that doesn't exist.
fn dpp16_source(control: u32, lane: u32) -> Option<Option<u32>> {
    let (row, at) = (lane & !15, lane & 15);
    let inside = |to: Option<u32>| to.filter(|to| *to < 16).map(|to| row | to);
    let amount = control & 15;
    Some(match control {
        0x000..=0x0ff => Some(lane & !3 | control >> (2 * (lane & 3)) & 3),
        0x101..=0x10f => inside(Some(at + amount)),
        0x111..=0x11f => inside(at.checked_sub(amount)),
        0x121..=0x12f => Some(row | at.wrapping_sub(amount) & 15),
        0x140 => Some(row | (15 - at)),
        0x141 => Some(lane & !7 | (7 - (lane & 7))),
        0x150..=0x15f => Some(row | amount),
        0x160..=0x16f => Some(row | at ^ amount),
        _ => return None,
    })
}
