//! Compares the ranks' calls between processes, for `BURN_ROCM_COLLECTIVE_CHECK=1`.

use std::sync::Arc;

use hip_kernels::DType;

use crate::collective::call::{Call, Kind, Part, Prepared, Step};
use crate::collective::member::Member;
use crate::collective::work::Work;
use crate::error::{Error, Result};

/// The bytes of a step's description. Longer ones are cut; none of today's is longer.
const BYTES: usize = 160;

/// Gathers the descriptions of the ranks' steps, and compares them. The caller leaves out sends and
/// receives, because not all ranks take part in them.
///
/// A description contains the step's place among the steps that are taken together. So ranks that
/// take different numbers of steps differ in the first.
pub(super) fn compare(
    steps: &[(&Arc<Member>, Step)],
    enqueue: impl Fn(&[(&Arc<Member>, &Prepared)]) -> Result<Work>,
) -> Result<()> {
    let collectives: Vec<_> = steps.iter().filter(|(member, _)| member.ledger.has_others()).collect();
    // The first round compares each rank's first step, the second its second, and so on: in a
    // round, a rank gathers once.
    for round in 0..collectives.len() {
        let mut gathers = Vec::new();
        for (at, (member, step)) in collectives.iter().enumerate() {
            let same = |other: &&&(&Arc<Member>, Step)| Arc::ptr_eq(other.0, member);
            let before = collectives[..at].iter().filter(same).count();
            if before != round {
                continue;
            }
            let of = collectives.iter().filter(same).count();
            let text = format!("{step}, call {} of {of}", before + 1);
            gathers.push(Gather::new(member, text)?);
        }
        if gathers.is_empty() {
            break;
        }
        let calls: Vec<_> = gathers.iter().map(|gather| (gather.member, &gather.prepared)).collect();
        enqueue(&calls)?.join()?;
        let compared: Vec<_> = gathers.iter().map(|gather| (gather.member, gather.compare())).collect();
        if compared.iter().all(|(_, result)| result.is_ok()) {
            continue;
        }
        // Every rank of a group with a difference sees one in this round. None gives the group up
        // before all have seen it: otherwise some would only hear that another rank gave up. The other
        // groups may have ranks that saw none, so they gather no more.
        for (member, result) in &compared {
            result.as_ref().err().into_iter().for_each(|error| member.will_fail(error.clone()));
        }
        let differ = |at: &usize| compared[*at].1.is_err();
        let again: Vec<_> = (0..calls.len()).filter(differ).map(|at| calls[at]).collect();
        let _ = enqueue(&again).and_then(Work::wait);
        // All of them, although only the first error is returned.
        let failed = compared.into_iter().filter_map(|(member, result)| Some(member.fail(result.err()?)));
        failed.reduce(|first, _| first).map_or(Ok(()), Err)?;
    }
    Ok(())
}

/// One rank's exchange of descriptions.
struct Gather<'a> {
    member: &'a Arc<Member>,
    text: String,
    prepared: Prepared,
}

impl<'a> Gather<'a> {
    fn new(member: &'a Arc<Member>, mut text: String) -> Result<Self> {
        text.truncate(text.floor_char_boundary(BYTES));
        let mut own = [0; BYTES];
        own[..text.len()].copy_from_slice(text.as_bytes());
        let send = Arc::new(member.device.upload(&own)?);
        let recv = Arc::new(member.device.alloc(BYTES * member.size)?);
        let call = Call { kind: Kind::AllGather, dtype: DType::U8.into(), count: BYTES };
        let ranks = (member.rank, member.size);
        let prepared =
            call.prepare(&member.device, ranks, Some(Part::whole(&send)), Some(Part::whole(&recv)))?;
        Ok(Self { member, text, prepared })
    }

    /// Reads the other ranks' descriptions.
    fn compare(&self) -> Result<()> {
        let [_, Some(recv)] = &self.prepared.buffers else { return Ok(()) };
        let mut all = vec![0; BYTES * self.member.size];
        self.member.device.read(recv, 0, &mut all)?;
        for (rank, bytes) in all.chunks_exact(BYTES).enumerate() {
            let text = String::from_utf8_lossy(bytes);
            let text = text.trim_end_matches('\0');
            if text != self.text {
                return Err(Error::Mismatch {
                    rank: self.member.rank,
                    call: self.text.clone(),
                    other_rank: rank,
                    other_call: text.into(),
                });
            }
        }
        Ok(())
    }
}
