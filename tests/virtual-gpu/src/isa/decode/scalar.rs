//! SOP2, SOP1, SOPK, SOPC, SOPP and SMEM.

use super::operand::literal;
use super::{Decoder, TABLES, bits, signed};
use crate::isa::inst::{Flags, Operand, Ty};
use crate::isa::state::NULL;

impl Decoder<'_> {
    pub(super) fn sop(&mut self, word: u32) -> Option<()> {
        let tables = &*TABLES;
        match word >> 23 {
            0b1_0111_1101 => {
                self.set_op(tables.sop1.get(bits(word, 8, 8))?);
                self.scalar_dst(bits(word, 16, 7));
                self.scalar_sources(&[bits(word, 0, 8)])
            }
            0b1_0111_1110 => {
                self.set_op(tables.sopc.get(bits(word, 16, 7))?);
                self.scalar_sources(&[bits(word, 0, 8), bits(word, 8, 8)])
            }
            0b1_0111_1111 => {
                self.set_op(tables.sopp.get(bits(word, 16, 7))?);
                self.inst.imm = signed(word, 16);
                Some(())
            }
            _ if word >> 28 == 0b1011 => self.sopk(word),
            _ => {
                self.set_op(tables.sop2.get(bits(word, 23, 7))?);
                self.scalar_dst(bits(word, 16, 7));
                self.scalar_sources(&[bits(word, 0, 8), bits(word, 8, 8)])
            }
        }
    }

    fn sopk(&mut self, word: u32) -> Option<()> {
        let op = TABLES.sopk.get(bits(word, 23, 5))?;
        self.set_op(op);
        let reg = bits(word, 16, 7);
        self.scalar_dst(reg);
        self.inst.imm = signed(word, 16);
        let immediate = if op.flags.contains(Flags::UNSIGNED) { word & 0xffff } else { self.inst.imm as u32 };
        self.inst.src[0] = Operand::sgpr(reg as u16);
        if op.flags.contains(Flags::LITERAL) {
            let word = self.literal()?;
            self.inst.src[0] = literal(word, Ty::B32);
        }
        self.inst.src[1] = Operand::constant(immediate.into());
        Some(())
    }

    fn scalar_dst(&mut self, reg: u32) {
        self.inst.dst = reg as u16;
    }

    fn scalar_sources(&mut self, codes: &[u32]) -> Option<()> {
        let op = self.inst.op;
        for (k, code) in codes.iter().enumerate() {
            self.inst.src[k] = self.source(*code, op.src[k])?;
        }
        if op.flags.contains(Flags::ACCUMULATE) {
            self.inst.src[codes.len()] = Operand::sgpr(self.inst.dst);
        }
        Some(())
    }

    pub(super) fn smem(&mut self, word: u32) -> Option<()> {
        self.set_op(TABLES.smem.get(bits(word, 18, 8))?);
        let second = self.take()?;
        self.scalar_dst(bits(word, 6, 7));
        self.inst.src[0] = Operand::sgpr(2 * bits(word, 0, 6) as u16);
        let offset = bits(second, 25, 7) as u16;
        self.inst.src[1] = if offset == NULL { Operand::constant(0) } else { Operand::sgpr(offset) };
        self.inst.imm = signed(second, 21);
        self.inst.coherent = bits(word, 16, 1) != 0 || bits(word, 14, 1) != 0;
        Some(())
    }
}
