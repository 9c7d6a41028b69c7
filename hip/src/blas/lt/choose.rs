//! Which of hipBLASLt's algorithms computes a product, or whether the caller does without it: the
//! tuning store's choice, or what timing finds.

use std::cmp::Ordering;
use std::time::Instant;

use super::calls::NO_SCALES;
use super::problem::LtProblem;
use super::verify::Reference;
use super::{BlasLt, Chooser, LtProduct};
use crate::blas::choose::{FILL, GUARD, REPEATS, ROUNDS, Source, Step};
use crate::device::Device;
use crate::tuning::{CLEARLY, TuningEntry, tuning_store};
use crate::{Buffer, Error, Result, spans};

/// The number for the way without hipBLASLt. Algorithm `n` of the heuristic has `TODAY + 1 + n`.
pub(super) const TODAY: i32 = 0;

impl BlasLt {
    /// What computes a product: [`TODAY`], or 1 more than the number of an algorithm.
    pub(super) fn chosen(
        &self,
        chooser: &Chooser<LtProblem>,
        product: &LtProduct<'_>,
        problem: &LtProblem,
        today: &mut dyn FnMut() -> Result<()>,
    ) -> Result<i32> {
        let device = product.out.buffer.device();
        if device.is_replica() {
            return Ok(TODAY);
        }
        let can_time = device.captures.here().is_none() && !device.is_dry();
        match chooser.step(*problem, can_time, || self.stored(problem)) {
            Step::Use(choice) => Ok(choice),
            Step::Time => {
                let (choice, microseconds) = match self.fastest(product, problem, today) {
                    Ok(Some(found)) => found,
                    Ok(None) => return Ok(TODAY),
                    Err(error) => {
                        if matches!(error, Error::OutOfMemory { .. }) {
                            device.pool.made_up_for(1);
                        }
                        log::debug!("{problem} was not timed: {error}");
                        return Ok(TODAY);
                    }
                };
                chooser.choose(*problem, choice);
                let [device, library] = self.names.clone();
                tuning_store().keep(&TuningEntry {
                    device,
                    library,
                    problem: problem.to_string(),
                    solution: choice.into(),
                    workspace: 0,
                    microseconds,
                });
                Ok(choice)
            }
        }
    }

    /// The tuning store's choice.
    fn stored(&self, problem: &LtProblem) -> Option<i32> {
        tuning_store().directory()?;
        let [device, library] = &self.names;
        let entry = tuning_store().get(device, library, &problem.to_string())?;
        let choice = i32::try_from(entry.solution).ok().filter(|&choice| choice >= TODAY);
        if choice.is_none() {
            tuning_store().refused(device, library, &problem.to_string());
        }
        choice
    }

    /// Stops using hipBLASLt for a problem, because it failed. A failure in a capture changes
    /// nothing, because the product may work outside it.
    pub(super) fn refused(&self, problem: &LtProblem, device: &Device) {
        let Some(chooser) = self.chooser.as_ref().filter(|_| device.captures.here().is_none()) else {
            return;
        };
        chooser.choose(*problem, TODAY);
        let [device, library] = &self.names;
        tuning_store().refused(device, library, &problem.to_string());
    }

    /// The fastest choice and its microseconds; `None` if hipBLASLt has no algorithm. The products are
    /// computed into memory of their own, between guard bytes, which no algorithm may write.
    pub(super) fn fastest(
        &self,
        product: &LtProduct<'_>,
        problem: &LtProblem,
        today: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<(i32, f64)>> {
        let device = product.out.buffer.device();
        let Ok(count) = device.call(&self.handle)?.algorithms(problem, NO_SCALES) else { return Ok(None) };
        let room = |place: Source<'_>| device.alloc(GUARD + place.bytes + GUARD);
        let rooms: Vec<Buffer> = product.places().map(room).collect::<Result<_>>()?;
        let product = &product.written_to(&rooms, GUARD / product.dtype.size());
        let Ok((_, pointers)) = self.resolve(product)? else { return Ok(None) };
        let fill = || rooms.iter().try_for_each(|room| device.fill_bytes(room, 0, FILL, room.len()));
        fill()?;
        tuning_store().count_trial();
        let begun = Instant::now();
        let mut launch = |choice: i32| match choice {
            TODAY => today(),
            // SAFETY: the product's memory, which `resolve` checked.
            _ => unsafe { device.call(&self.handle)?.launch(problem, &pointers, choice - TODAY - 1) },
        };
        let (start, end) = (device.timing_event()?, device.timing_event()?);
        let mut time = |choice| -> Result<f64> {
            device.make_current()?;
            device.compute_stream().record(&start)?;
            for _ in 0..REPEATS {
                launch(choice)?;
            }
            device.compute_stream().record(&end)?;
            end.synchronize()?;
            Ok(f64::from(end.elapsed_since(&start)?) * 1e3 / REPEATS as f64)
        };
        let mut candidates: Vec<(i32, f64)> =
            (0..=count as i32).map(|choice| (TODAY + choice, f64::INFINITY)).collect();
        // The first round loads kernels and is not counted.
        for round in 0..=ROUNDS {
            let mut failed = Vec::new();
            for (choice, least) in &mut candidates {
                match time(*choice) {
                    Ok(microseconds) if round > 0 => *least = least.min(microseconds),
                    Ok(_) => {}
                    Err(error) if *choice == TODAY => return Err(error),
                    Err(error) => {
                        log::debug!("algorithm {} of {problem}: {error}", *choice - TODAY - 1);
                        failed.push(*choice);
                    }
                }
            }
            candidates.retain(|(choice, _)| !failed.contains(choice));
        }
        spans::tuned(problem, begun.elapsed());

        let default = candidates.remove(0);
        candidates.retain(|(_, microseconds)| *microseconds < CLEARLY * default.1);
        candidates.sort_by(|one, other| one.1.partial_cmp(&other.1).unwrap_or(Ordering::Equal));
        if candidates.is_empty() {
            return Ok(Some(default));
        }
        // Only algorithms that are faster may be used, so only their results are compared.
        let reference = Reference::new(product)?;
        for (choice, microseconds) in candidates {
            // NaN everywhere, so that nothing that another algorithm wrote counts as a result.
            fill()?;
            launch(choice)?;
            let apart = match first_outside(&rooms)? {
                None => reference.first_apart(product)?,
                outside => outside,
            };
            match apart {
                None => return Ok(Some((choice, microseconds))),
                Some(apart) => {
                    log::warn!(
                        "hipBLASLt's algorithm {} of {problem} is not used: {apart}",
                        choice - TODAY - 1
                    );
                }
            }
        }
        Ok(Some(default))
    }
}

/// A description of what an algorithm has written outside its results, if anything.
fn first_outside(rooms: &[Buffer]) -> Result<Option<String>> {
    for room in rooms {
        for offset in [0, room.len() - GUARD] {
            let guard = Source { buffer: room, offset, bytes: GUARD }.read()?;
            if let Some(at) = guard.iter().position(|&byte| byte != FILL) {
                let from = (offset + at) as isize - GUARD as isize;
                return Ok(Some(format!("it writes byte {from} of {}", room.len() - 2 * GUARD)));
            }
        }
    }
    Ok(None)
}
