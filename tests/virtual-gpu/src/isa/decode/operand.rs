//! Operand encodings.

use super::Decoder;
use crate::isa::exec::value::F16;
use crate::isa::inst::{Operand, Source, Ty};
use crate::isa::{PRIVATE_APERTURE, SHARED_APERTURE};

/// The source code of a vector register.
pub(super) const VGPR: u32 = 256;
/// The source code of SDWA.
pub(super) const SDWA: u32 = 249;
/// The source code of DPP in rows of 16.
pub(super) const DPP16: u32 = 250;
/// The source codes of DPP in groups of 8, without and with fetching inactive lanes.
pub(super) const DPP8: [u32; 2] = [233, 234];
/// The source code of a literal.
pub(super) const LITERAL: u32 = 255;

/// 240 to 248. In f64, the last one is not rounded but cut off ([`CUT_OFF`]).
pub(super) const FLOATS: [f64; 9] =
    [0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0, std::f64::consts::FRAC_1_PI / 2.0];
/// The bits of 248 in f64.
pub(super) const CUT_OFF: u64 = 0x3fc4_5f30_6dc9_c882;

impl Decoder<'_> {
    /// The operand of a 9-bit source code.
    pub(super) fn source(&mut self, code: u32, ty: Ty) -> Option<Operand> {
        if ty == Ty::None {
            return Some(Operand::NONE);
        }
        let status = |source| Operand { source, ..Operand::NONE };
        let aperture = |high: u32, low: u32| Operand::constant(u64::from(high) << 32 | u64::from(low));
        Some(match code {
            0..=127 => Operand::sgpr(code as u16),
            128..=192 => integer(code as i32 - 128, ty),
            193..=208 => integer(192 - code as i32, ty),
            // The base of flat scratch, the wave's number in ordered append, LDS directly.
            230 | 231 | 239 | 254 => {
                self.unsupported = true;
                Operand::constant(0)
            }
            235 => aperture(SHARED_APERTURE, 0),
            236 => aperture(SHARED_APERTURE, u32::MAX),
            237 => aperture(PRIVATE_APERTURE, 0),
            238 => aperture(PRIVATE_APERTURE, u32::MAX),
            240..=248 => float(code - 240, ty),
            251 => status(Source::Vccz),
            252 => status(Source::Execz),
            253 => status(Source::Scc),
            LITERAL => {
                let word = self.literal()?;
                literal(word, ty)
            }
            VGPR..=511 => self.vgpr(code - VGPR, ty),
            _ => return None,
        })
    }

    /// The literal after the instruction, which all operands share.
    pub(super) fn literal(&mut self) -> Option<u32> {
        if let Some(word) = self.literal {
            return Some(word);
        }
        let word = self.take()?;
        self.literal = Some(word);
        Some(word)
    }
}

/// An inline integer, sign-extended.
fn integer(n: i32, ty: Ty) -> Operand {
    Operand::constant(if ty.dwords() == 2 { i64::from(n) as u64 } else { u64::from(n as u32) })
}

/// An inline float, in the operand's format. Packed floats have it in the low half. Integers of 16
/// bits, packed or not, take the bits of the f32 (LLVM's `getInlineEncodingV216`).
fn float(index: u32, ty: Ty) -> Operand {
    let x = FLOATS[index as usize];
    Operand::constant(match ty {
        Ty::B64 | Ty::I64 | Ty::F64 if index == 8 => CUT_OFF,
        Ty::B64 | Ty::I64 | Ty::F64 => x.to_bits(),
        Ty::F16 | Ty::PkF16 => F16::of(x as f32).0.into(),
        _ => (x as f32).to_bits().into(),
    })
}

/// A literal, extended to 64 bits as its type requires.
pub(super) fn literal(word: u32, ty: Ty) -> Operand {
    Operand::constant(match ty {
        Ty::F64 => u64::from(word) << 32,
        Ty::I64 => i64::from(word as i32) as u64,
        _ => word.into(),
    })
}
