//! DS, FLAT (with GLOBAL and SCRATCH), MUBUF and MTBUF.

use super::{Decoder, TABLES, bits, signed};
use crate::isa::exec::Op;
use crate::isa::inst::{Flags, Operand, Ty};
use crate::isa::state::NULL;

/// The scalar address of SCRATCH that stands for no address at all.
const NO_ADDRESS: u32 = 0x7f;

/// Buffer instructions whose data has a format of its own.
static TYPED_BUFFER: Op = Op::lacking("tbuffer", Ty::None, [Ty::None; 3]);

impl Decoder<'_> {
    pub(super) fn ds(&mut self, word: u32) -> Option<()> {
        let op = TABLES.ds.get(bits(word, 18, 8))?;
        self.set_op(op);
        let second = self.take()?;
        // The global data share.
        self.unsupported |= bits(word, 17, 1) != 0;
        if op.flags.contains(Flags::TWO_OFFSETS) {
            self.inst.imm = bits(word, 0, 8) as i32;
            self.inst.imm1 = bits(word, 8, 8) as i32;
        } else {
            self.inst.imm = bits(word, 0, 16) as i32;
        }
        for k in 0..3 {
            if op.src[k] != Ty::None {
                self.inst.src[k] = self.vgpr(bits(second, 8 * k as u32, 8), op.src[k]);
            }
        }
        self.set_dst(bits(second, 24, 8));
        Some(())
    }

    pub(super) fn flat(&mut self, word: u32) -> Option<()> {
        let (tables, code) = (&*TABLES, bits(word, 18, 7));
        let segment = bits(word, 14, 2);
        let op = match segment {
            0 => tables.flat.get(code)?,
            1 => tables.scratch.get(code)?,
            2 => tables.global.get(code)?,
            _ => return None,
        };
        self.set_op(op);
        let second = self.take()?;
        let (address, scalar) = (bits(second, 0, 8), bits(second, 16, 7));
        // LDS as the destination.
        self.unsupported |= bits(word, 13, 1) != 0;
        self.inst.imm = if segment == 0 { bits(word, 0, 11) as i32 } else { signed(word, 12) };
        self.inst.glc = bits(word, 16, 1) != 0;
        self.inst.coherent = self.inst.glc || bits(word, 12, 1) != 0 || bits(word, 17, 1) != 0;
        let has_scalar = segment != 0 && scalar != u32::from(NULL) && scalar != NO_ADDRESS;
        if op.flags.contains(Flags::NO_ADDRESS) {
            self.inst.src[2] = Operand::sgpr(if has_scalar { scalar as u16 } else { NULL });
        } else {
            if has_scalar {
                self.inst.src[2] = Operand::sgpr(scalar as u16);
            }
            match segment {
                1 if has_scalar || scalar == NO_ADDRESS => {}
                1 => self.inst.src[0] = self.vgpr(address, Ty::B32),
                _ => self.inst.src[0] = self.vgpr(address, if has_scalar { Ty::B32 } else { Ty::B64 }),
            }
        }
        self.data(bits(second, 8, 8), bits(second, 24, 8));
        Some(())
    }

    /// Data and destination: atomics have the latter only if they return something.
    fn data(&mut self, data: u32, dst: u32) {
        let op = self.inst.op;
        if op.src[1] != Ty::None {
            self.inst.src[1] = self.vgpr(data, op.src[1]);
        }
        if !op.flags.contains(Flags::ATOMIC) || self.inst.glc {
            self.set_dst(dst);
        }
    }

    pub(super) fn mubuf(&mut self, word: u32) -> Option<()> {
        let op = TABLES.mubuf.get(bits(word, 18, 8))?;
        self.set_op(op);
        let second = self.take()?;
        if op.flags.contains(Flags::NO_ADDRESS) || op.flags.contains(Flags::BRANCH) {
            return Some(());
        }
        self.inst.imm = bits(word, 0, 12) as i32;
        self.inst.offen = bits(word, 12, 1) != 0;
        self.inst.idxen = bits(word, 13, 1) != 0;
        self.inst.glc = bits(word, 14, 1) != 0;
        self.inst.coherent = self.inst.glc || bits(word, 15, 1) != 0 || bits(second, 22, 1) != 0;
        self.inst.to_lds = bits(word, 16, 1) != 0;
        // TFE: a status dword after the data, for partially resident textures.
        self.unsupported |= bits(second, 23, 1) != 0;
        let addresses = u16::from(self.inst.offen) + u16::from(self.inst.idxen);
        if addresses > 0 {
            self.inst.src[0] = self.vgpr(bits(second, 0, 8), Ty::Wide(addresses as u8));
        }
        self.inst.src[2] = Operand::sgpr(4 * bits(second, 16, 5) as u16);
        self.inst.soffset = self.source(bits(second, 24, 8), Ty::B32)?;
        let data = bits(second, 8, 8);
        if self.inst.to_lds {
            return Some(());
        }
        self.data(data, data);
        Some(())
    }

    pub(super) fn mtbuf(&mut self, _: u32) -> Option<()> {
        self.take()?;
        self.set_op(&TYPED_BUFFER);
        Some(())
    }
}
