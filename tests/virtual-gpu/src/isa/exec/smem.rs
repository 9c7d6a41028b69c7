//! Scalar loads.

use super::{Body, Inst};
use crate::isa::FaultKind;
use crate::isa::state::{Machine, Step};

/// `s_load_dword*` of `N` dwords. Addresses are rounded down to dwords.
pub(crate) struct Load<const N: usize>;

impl<const N: usize> Body for Load<N> {
    #[inline(always)]
    fn run(m: &mut Machine<'_>, i: &Inst) -> Step {
        let regs = &m.state.regs;
        let offset = u64::from(regs.scalar(&i.src[1])).wrapping_add_signed(i.imm.into());
        let address = regs.sgpr64(i.src[0].reg).wrapping_add(offset) & !3;
        let bytes = 4 * N as u32;
        if let Err(error) = m.memory.check(address, bytes.into(), false, &mut m.state.hint) {
            return m.fault(i, None, FaultKind::Memory { address, bytes, write: false, error });
        }
        // SAFETY: the allocation map has these bytes.
        let data = unsafe { (address as *const [u32; N]).read_unaligned() };
        for (reg, x) in (i.dst..).zip(data) {
            m.state.regs.set_sgpr(reg, x);
        }
        if m.state.watch.is_some() { m.watch_scalar(i, address, bytes) } else { Step::Next }
    }
}

/// `s_buffer_load_dword*`: dwords beyond the buffer's range read as 0.
pub(crate) struct BufferLoad<const N: usize>;

impl<const N: usize> Body for BufferLoad<N> {
    #[inline(always)]
    fn run(m: &mut Machine<'_>, i: &Inst) -> Step {
        let regs = &m.state.regs;
        let word = |k: u16| regs.sgpr(i.src[0].reg + k);
        let base = u64::from(word(0)) | u64::from(word(1) & 0xffff) << 32;
        let stride = u64::from(word(1) >> 16 & 0x3fff).max(1);
        let limit = u64::from(word(2)) * stride;
        let offset = u64::from(regs.scalar(&i.src[1])).wrapping_add_signed(i.imm.into()) & !3;
        let (mut data, mut inside) = ([0; N], 0);
        for (k, x) in data.iter_mut().enumerate() {
            let at = offset.wrapping_add(4 * k as u64);
            if at.saturating_add(4) > limit {
                continue;
            }
            let address = base.wrapping_add(at);
            if let Err(error) = m.memory.check(address, 4, false, &mut m.state.hint) {
                return m.fault(i, None, FaultKind::Memory { address, bytes: 4, write: false, error });
            }
            // SAFETY: the allocation map has these bytes.
            *x = unsafe { (address as *const u32).read_unaligned() };
            inside += 4;
        }
        for (reg, x) in (i.dst..).zip(data) {
            m.state.regs.set_sgpr(reg, x);
        }
        // Offsets only grow, so what is in range comes first.
        if m.state.watch.is_some() && inside > 0 {
            return m.watch_scalar(i, base.wrapping_add(offset), inside);
        }
        Step::Next
    }
}
