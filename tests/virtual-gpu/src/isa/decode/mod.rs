//! Decoding: from dwords to an [`Inst`].
//!
//! The guide's chapter 13 gives the formats. The upper bits of the first dword tell which one it is.

mod memory;
mod operand;
mod scalar;
mod text;
mod vector;

use super::exec::scalar::UnsupportedForm;
use super::exec::{Exec, Handler, Inst, Op};
use super::inst::{Flags, Operand, Select, Ty, Unused};
use super::table::{GRAPHICS, TABLES, UNKNOWN};
pub use text::operands;

/// The handler of a known instruction in a form that isn't supported.
const UNSUPPORTED_FORM: Exec = Exec::scalar::<UnsupportedForm>();
/// The longest encoding in dwords (MIMG with addresses of its own).
pub(crate) const LONGEST: usize = 5;

/// Decodes the instruction at `pc`, whose dwords are `words` (as many as there are). An encoding
/// that has no row in the tables, or is incomplete, becomes an instruction that faults when it
/// runs.
pub(crate) fn decode(pc: u64, words: &[u32]) -> Inst {
    let mut decoder = Decoder::new(pc, words);
    match decoder.format() {
        Some(()) => decoder.finish(),
        None => unknown(pc, words),
    }
}

/// The bits of `word` from `low` on.
fn bits(word: u32, low: u32, count: u32) -> u32 {
    word >> low & (u32::MAX >> (32 - count))
}

/// Sign-extends the low `count` bits.
fn signed(word: u32, count: u32) -> i32 {
    (word << (32 - count)) as i32 >> (32 - count)
}

fn blank(pc: u64, op: &'static Op) -> Inst {
    Inst {
        run: op.exec.pick(),
        op,
        pc,
        src: [Operand::NONE; 3],
        soffset: Operand::NONE,
        dst: 0,
        sdst: 0,
        vgprs: 0,
        size: 4,
        clamp: false,
        omod: 0,
        op_sel: 0,
        dst_select: Select::Dword,
        dst_unused: Unused::Zero,
        imm: 0,
        imm1: 0,
        glc: false,
        coherent: false,
        offen: false,
        idxen: false,
        to_lds: false,
        dpp: None,
        raw: [0; LONGEST],
    }
}

fn unknown(pc: u64, words: &[u32]) -> Inst {
    let mut inst = blank(pc, &UNKNOWN);
    let count = words.len().min(LONGEST);
    inst.raw[..count].copy_from_slice(&words[..count]);
    inst.size = 4 * count.max(1) as u8;
    inst
}

/// An instruction that is being decoded. Methods return `None` for encodings that don't exist.
struct Decoder<'a> {
    words: &'a [u32],
    /// Dwords taken.
    next: usize,
    literal: Option<u32>,
    /// The encoding exists, but has an operand or a modifier that isn't supported: the global data
    /// share, LDS as an operand, partially resident textures.
    unsupported: bool,
    inst: Inst,
}

impl<'a> Decoder<'a> {
    fn new(pc: u64, words: &'a [u32]) -> Self {
        Self { words, next: 1, literal: None, unsupported: false, inst: blank(pc, &UNKNOWN) }
    }

    /// The instruction, once its format is decoded.
    fn finish(mut self) -> Inst {
        self.inst.size = 4 * self.next as u8;
        if self.unsupported {
            self.inst.run = UNSUPPORTED_FORM.pick();
        }
        self.inst
    }
}

impl Decoder<'_> {
    fn format(&mut self) -> Option<()> {
        let word = *self.words.first()?;
        match word >> 26 {
            0b110010 => self.graphics(2, 1),
            0b110011 => self.vop3p(word),
            0b110101 => self.vop3(word),
            0b110110 => self.ds(word),
            0b110111 => self.flat(word),
            0b111000 => self.mubuf(word),
            0b111010 => self.mtbuf(word),
            0b111100 => self.graphics(1, 2 + bits(word, 1, 2) as usize),
            0b111101 => self.smem(word),
            0b111110 => self.graphics(0, 2),
            _ if word >> 31 == 0 => self.vop12c(word),
            _ if word >> 30 == 0b10 => self.sop(word),
            _ => None,
        }
    }

    /// Exports, images, interpolation: known by length only.
    fn graphics(&mut self, index: usize, dwords: usize) -> Option<()> {
        self.words.get(..dwords)?;
        self.next = dwords;
        self.set_op(&GRAPHICS[index]);
        Some(())
    }

    fn set_op(&mut self, op: &'static Op) {
        self.inst.op = op;
        self.inst.run = op.exec.pick();
        if op.dst.is_half() {
            let half = u8::from(op.flags.contains(Flags::HIGH_HALF));
            (self.inst.dst_select, self.inst.dst_unused) = (Select::Word(half), Unused::Preserve);
        }
    }

    /// The next dword.
    fn take(&mut self) -> Option<u32> {
        let word = *self.words.get(self.next)?;
        self.next += 1;
        Some(word)
    }

    /// Counts a vector register operand.
    fn uses(&mut self, reg: u16, ty: Ty) {
        if ty != Ty::None {
            self.inst.vgprs = self.inst.vgprs.max(reg + ty.dwords());
        }
    }

    /// A vector register operand.
    fn vgpr(&mut self, reg: u32, ty: Ty) -> Operand {
        self.uses(reg as u16, ty);
        Operand::vgpr(reg as u16)
    }

    /// The vector destination.
    fn set_dst(&mut self, reg: u32) {
        self.inst.dst = reg as u16;
        let ty = self.inst.op.dst;
        if !self.inst.op.flags.contains(Flags::SCALAR_DST) {
            self.uses(reg as u16, ty);
        }
    }

    /// Puts a handler in front of the instruction's own, which it returns.
    fn wrap(&mut self, outer: Handler) -> Handler {
        std::mem::replace(&mut self.inst.run, outer)
    }
}

/// What the tables know of an encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// The mnemonic, without a suffix for the format.
    pub name: &'static str,
    /// Bytes.
    pub size: u8,
    /// Whether the virtual GPU executes it. If not, a wave that comes to it faults.
    pub executed: bool,
}

/// Describes the instruction that starts with `words`; `None` if the tables don't know it. For tools
/// that read machine code, or compare the tables with another disassembler.
pub fn describe(words: &[u32]) -> Option<Description> {
    let mut decoder = Decoder::new(0, words);
    decoder.format()?;
    let executed = !decoder.unsupported && !decoder.inst.op.flags.contains(Flags::LACKING);
    let inst = decoder.finish();
    (!inst.op.name.is_empty()).then_some(Description { name: inst.op.name, size: inst.size, executed })
}
