//! Vector instructions that move data between lanes, or between registers chosen at run time.

use super::Inst;
use super::lanes::{fetch, write};
use super::scalar::bodies;
use super::{Body, value::Value};
use crate::isa::state::{Machine, Step};
use crate::isa::{FaultKind, LANES};

bodies! {
    /// Reads lane 0 if no lane is active.
    ReadFirstLane |m, i| {
        let regs = &mut m.state.regs;
        let exec = regs.exec();
        let lane = if exec == 0 { 0 } else { exec.trailing_zeros() as usize };
        let value = lane_of(m, i, lane);
        m.state.regs.set_sgpr(i.dst, value);
        Step::Next
    }
    ReadLane |m, i| {
        let lane = m.state.regs.scalar(&i.src[1]) as usize % LANES;
        let value = lane_of(m, i, lane);
        m.state.regs.set_sgpr(i.dst, value);
        Step::Next
    }
    WriteLane |m, i| {
        let regs = &mut m.state.regs;
        let (value, lane) = (regs.scalar(&i.src[0]), regs.scalar(&i.src[1]) as usize % LANES);
        regs.v[i.dst as usize].0[lane] = value;
        Step::Next
    }
    PermLane16 |m, i| { permlane(m, i, 0) }
    PermLaneX16 |m, i| { permlane(m, i, 16) }
    Swap |m, i| {
        let regs = &mut m.state.regs;
        let exec = regs.exec();
        let (a, b) = (regs.v[i.dst as usize].0, regs.v[i.src[0].reg as usize].0);
        write(&mut regs.v[i.dst as usize], &b, exec);
        write(&mut regs.v[i.src[0].reg as usize], &a, exec);
        Step::Next
    }
    MovRelS |m, i| { let m0 = m.state.regs.m0(); mov_rel(m, i, m0, 0) }
    MovRelD |m, i| { let m0 = m.state.regs.m0(); mov_rel(m, i, 0, m0) }
    MovRelSd |m, i| { let m0 = m.state.regs.m0(); mov_rel(m, i, m0, m0) }
    MovRelSd2 |m, i| {
        let m0 = m.state.regs.m0();
        mov_rel(m, i, m0 & 0x3ff, m0 >> 16 & 0x3ff)
    }
    SwapRel |m, i| {
        let m0 = m.state.regs.m0();
        let from = u32::from(i.src[0].reg) + (m0 & 0x3ff);
        let to = u32::from(i.dst) + (m0 >> 16 & 0x3ff);
        if let Some(step) = beyond(m, i, from.max(to)) {
            return step;
        }
        let regs = &mut m.state.regs;
        let exec = regs.exec();
        let (a, b) = (regs.v[to as usize].0, regs.v[from as usize].0);
        write(&mut regs.v[to as usize], &b, exec);
        write(&mut regs.v[from as usize], &a, exec);
        Step::Next
    }
}

fn lane_of(m: &Machine<'_>, i: &Inst, lane: usize) -> u32 {
    let regs = &m.state.regs;
    if i.src[0].plain { regs.v[i.src[0].reg as usize].0[lane] } else { regs.scalar(&i.src[0]) }
}

/// A fault if `reg` isn't allocated.
fn beyond(m: &mut Machine<'_>, i: &Inst, reg: u32) -> Option<Step> {
    let allocated = m.state.regs.v.len() as u32;
    (reg >= allocated)
        .then(|| m.fault(i, None, FaultKind::Register { count: reg.saturating_add(1), allocated }))
}

/// `v_mov` with the source and destination registers offset.
fn mov_rel(m: &mut Machine<'_>, i: &Inst, source: u32, destination: u32) -> Step {
    let mut operand = i.src[0];
    let to = u32::from(i.dst).wrapping_add(destination);
    let from = if operand.plain { u32::from(operand.reg).wrapping_add(source) } else { 0 };
    if let Some(step) = beyond(m, i, from.max(to)) {
        return step;
    }
    operand.reg = if operand.plain { from as u16 } else { operand.reg };
    let state = &mut *m.state;
    let view = fetch::<u32>(&state.regs, &operand, &mut state.spread[0]);
    let value = std::array::from_fn(|l| u32::get(view, l));
    let exec = state.regs.exec();
    write(&mut state.regs.v[to as usize], &value, exec);
    Step::Next
}

/// Each lane reads the lane of its row (or, with `other` 16, of the other row) that four bits of the scalar
/// selectors name. `op_sel` bit 0 fetches inactive lanes, bit 1 makes missing sources 0.
fn permlane(m: &mut Machine<'_>, i: &Inst, other: usize) -> Step {
    let regs = &mut m.state.regs;
    let exec = regs.exec();
    let select = u64::from(regs.scalar(&i.src[1])) | u64::from(regs.scalar(&i.src[2])) << 32;
    let (fetch_inactive, bound_ctrl) = (i.op_sel & 1 != 0, i.op_sel & 2 != 0);
    let data = regs.v[i.src[0].reg as usize].0;
    let (mut value, mut writes) = ([0; LANES], 0);
    for l in 0..LANES {
        let from = (l & 16 ^ other) | (select >> (4 * (l & 15)) & 15) as usize;
        let valid = fetch_inactive || exec >> from & 1 != 0;
        value[l] = if valid { data[from] } else { 0 };
        writes |= u32::from(valid || bound_ctrl) << l;
    }
    write(&mut regs.v[i.dst as usize], &value, exec & writes);
    Step::Next
}
