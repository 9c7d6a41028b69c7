//! Buffer addresses (MUBUF): a resource descriptor of four scalar registers, an index, offsets, and a range.
//!
//! The guide's section 8.1.5, "Buffer Addressing", and 8.1.5.1, "Range Checking".

use super::Inst;
use super::flat::{Kind, Space, Targets, bounds32, lanes};
use crate::isa::LANES;
use crate::isa::inst::Source;
use crate::isa::state::{Machine, Step};

/// Accesses through a buffer resource.
pub(crate) struct Buffer;

/// A buffer resource descriptor.
#[derive(Clone, Copy, Debug)]
struct Resource {
    base: u64,
    stride: u64,
    records: u64,
    /// Private memory: offsets are within the lane.
    swizzle: bool,
    /// How the range is checked.
    range: Range,
    add_lane: bool,
}

/// OOB_SELECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Range {
    /// Index and offset.
    Structured,
    /// Index only.
    Index,
    /// Only that the buffer isn't empty.
    NotEmpty,
    /// The offset, in bytes.
    Raw,
}

impl Resource {
    fn new(m: &Machine<'_>, reg: u16) -> Self {
        let word = |k: u16| m.state.regs.sgpr(reg + k);
        let stride = u64::from(word(1) >> 16 & 0x3fff);
        let range = match word(3) >> 28 & 3 {
            _ if stride == 0 => Range::Raw,
            0 => Range::Structured,
            1 => Range::Index,
            2 => Range::NotEmpty,
            _ => Range::Raw,
        };
        Self {
            base: u64::from(word(0)) | u64::from(word(1) & 0xffff) << 32,
            stride,
            records: word(2).into(),
            swizzle: word(1) >> 31 != 0,
            range,
            add_lane: word(3) >> 23 & 1 != 0,
        }
    }

    /// How many of `bytes` at this place are in range. Raw buffers are checked dword by dword.
    #[inline(always)]
    fn in_range(&self, index: u64, offset: u64, scalar: u64, bytes: u64) -> u64 {
        let fits = match self.range {
            Range::Structured => index < self.records && offset + bytes <= self.stride,
            Range::Index => index < self.records,
            Range::NotEmpty => self.records != 0,
            Range::Raw => {
                let limit = self.records.saturating_sub(scalar);
                let at = index * self.stride + offset;
                return if at + bytes <= limit {
                    bytes
                } else if at + 4 > limit || bytes <= 4 {
                    0
                } else {
                    (limit - at) & !3
                };
            }
        };
        if fits { bytes } else { 0 }
    }
}

impl Space for Buffer {
    #[inline(always)]
    fn targets(m: &mut Machine<'_>, i: &Inst, kind: Kind, targets: &mut Targets) -> Result<(), Step> {
        let exec = m.state.regs.exec();
        let resource = Resource::new(m, i.src[2].reg);
        let scalar = u64::from(m.state.regs.scalar(&i.soffset));
        let offset = i.imm as u64;
        if resource.swizzle {
            return private(m, i, kind, offset + scalar / LANES as u64, targets);
        }
        let vaddr = i.src[0].reg as usize;
        if resource.stride == 0 && !i.idxen && !resource.add_lane && i.offen {
            let own = &m.state.regs.v[vaddr].0;
            let (first, last) = bounds32(own, exec);
            let fixed = offset + scalar;
            if u64::from(last) + fixed + u64::from(kind.bytes) <= resource.records {
                // A raw buffer, and all lanes in range.
                let base = resource.base + fixed;
                for l in 0..LANES {
                    targets.at[l] = base + u64::from(own[l]);
                }
                targets.whole = exec;
                let span = (base + u64::from(first), base + u64::from(last));
                return m.check_span(i, &targets.at, exec, span, kind);
            }
        }
        let v = &m.state.regs.v;
        for l in 0..LANES {
            let mut index = if i.idxen { u64::from(v[vaddr].0[l]) } else { 0 };
            if resource.add_lane {
                index += l as u64;
            }
            let own = if i.offen { u64::from(v[vaddr + usize::from(i.idxen)].0[l]) } else { 0 };
            let inside = resource.in_range(index, own + offset, scalar, kind.bytes.into());
            let place = index.wrapping_mul(resource.stride).wrapping_add(own + offset + scalar);
            targets.at[l] = resource.base.wrapping_add(place);
            let bit = 1 << l;
            if inside == kind.bytes.into() {
                targets.whole |= bit;
            } else if inside == 0 {
                targets.nothing |= bit;
            } else {
                targets.part |= bit;
                targets.bytes[l] = inside as u8;
            }
        }
        targets.whole &= exec;
        targets.nothing &= exec;
        targets.part &= exec;
        m.check_global(i, &targets.at, targets.whole, kind)?;
        for l in lanes(targets.part) {
            let part = Kind { bytes: targets.bytes[l].into(), ..kind };
            m.check_global(i, &targets.at, 1 << l, part)?;
        }
        Ok(())
    }
}

/// Scratch through the resource that the kernel's preamble made.
#[inline(never)]
fn private(m: &mut Machine<'_>, i: &Inst, kind: Kind, base: u64, t: &mut Targets) -> Result<(), Step> {
    t.whole = m.state.regs.exec();
    for l in lanes(t.whole) {
        let own = if i.offen && i.src[0].source == Source::Vgpr {
            m.state.regs.v[i.src[0].reg as usize + usize::from(i.idxen)].0[l]
        } else {
            0
        };
        // Offsets wrap at 32 bits: the compiler folds negative ones.
        let offset = u64::from((base as u32).wrapping_add(own));
        t.at[l] = m.private(i, l, offset, kind.bytes)?;
    }
    Ok(())
}
