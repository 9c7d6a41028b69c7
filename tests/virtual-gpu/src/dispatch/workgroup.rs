//! A workgroup's waves, scheduled in turns.

use crate::dispatch::{Launch, LaunchError};
use crate::isa::{Counters, Lds, LdsInit, Stop, Wave};
use crate::memory::Pages;

/// At the start and after a barrier, a wave yields at this many waits for memory, so that the waves
/// advance roughly together, as on a GPU. Some kernels lack a barrier and work only in that order:
/// MIOpen's `SoftMaxBlock` reads `reduction_tmp[0]` when wave 0 may already be writing it.
const WAITS: u32 = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    AtBarrier,
    Ended,
}

/// How a turn ended.
pub(super) enum Turn {
    /// Every wave has ended.
    Ended,
    /// Every wave that can run has used up its instructions and yielded.
    Busy,
    /// A wave sleeps, most likely to wait for another workgroup.
    Asleep,
}

/// The waves of a workgroup, its LDS and its private memory.
pub(super) struct Workgroup {
    place: [u32; 3],
    waves: Vec<Wave>,
    states: Vec<State>,
    lds: Lds,
    scratch: Option<Pages>,
    /// How many turns ended before the workgroup did.
    pub(super) turns: u32,
}

impl Workgroup {
    /// The workgroup with this number. It reuses the memory of a workgroup that ended, if there is
    /// one.
    ///
    /// # Errors
    /// [`LaunchError::Invalid`] if there is no memory for its private memory.
    pub(super) fn start(launch: &Launch, number: u64, spare: Option<Self>) -> Result<Self, LaunchError> {
        let (place, poison) = (launch.geometry.group(number), launch.behaviour.poison);
        let waves = launch.geometry.waves();
        let lds = LdsInit { size: launch.lds_size, poison, races: launch.behaviour.races };
        let mut group = match spare {
            Some(mut group) => {
                group.place = place;
                group.lds.reset(&lds);
                group
            }
            None => {
                let size = launch.private_size as usize * 32 * waves as usize;
                let scratch = match size {
                    0 => None,
                    _ => Some(
                        Pages::new(size).map_err(|_| LaunchError::Invalid("no room for private memory"))?,
                    ),
                };
                let lds = Lds::new(&lds);
                Self { place, waves: Vec::new(), states: Vec::new(), lds, scratch, turns: 0 }
            }
        };
        if let (Some(scratch), true) = (&group.scratch, poison) {
            // SAFETY: the pages are this workgroup's own, and no wave of it runs.
            unsafe { scratch.as_ptr().write_bytes(0xff, scratch.length()) };
        }
        let base = group.scratch.as_ref().map_or(0, Pages::start);
        for wave in 0..waves {
            let scratch = base + u64::from(launch.private_size) * 32 * u64::from(wave);
            launch.start(place, wave, scratch, |init| match group.waves.get_mut(wave as usize) {
                Some(wave) => wave.reset(init),
                None => group.waves.push(Wave::new(init)),
            });
        }
        if launch.behaviour.counters {
            group.waves.iter_mut().for_each(Wave::count);
        }
        if let Some(races) = launch.races.as_ref().and_then(|races| races.group(number)) {
            group.waves.iter_mut().for_each(|wave| wave.find_races(&races));
        }
        group.states.clear();
        // Waves without a lane in the grid do not start, as on the GPU.
        group.states.extend((0..waves).map(|wave| match launch.geometry.lanes(place, wave).1 {
            0 => State::Ended,
            _ => State::Ready,
        }));
        group.turns = 0;
        group.together(launch);
        Ok(group)
    }

    /// Makes the waves advance in small steps for a while.
    fn together(&mut self, launch: &Launch) {
        if launch.behaviour.turns && self.waves.len() > 1 {
            self.waves.iter_mut().for_each(|wave| wave.set_waits(WAITS));
        }
    }

    /// The instructions that its waves have executed.
    pub(super) fn instructions(&self) -> u64 {
        self.waves.iter().map(Wave::steps).sum()
    }

    /// Adds what its waves have counted.
    pub(super) fn add_counters(&self, sum: &mut Counters) {
        self.waves.iter().filter_map(Wave::counters).for_each(|counters| sum.merge(counters));
    }

    /// Runs every wave, through barriers, until all of them have ended or have yielded after
    /// `quantum` instructions.
    ///
    /// # Errors
    /// A wave's fault.
    pub(super) fn turn(&mut self, launch: &Launch, quantum: u64) -> Result<Turn, LaunchError> {
        loop {
            let (mut asleep, mut waits) = (false, false);
            for (number, (wave, state)) in self.waves.iter_mut().zip(&mut self.states).enumerate() {
                if *state != State::Ready {
                    continue;
                }
                match wave.run(launch.code, &mut self.lds, launch.memory, quantum) {
                    Stop::End => *state = State::Ended,
                    Stop::Barrier => *state = State::AtBarrier,
                    Stop::Yield => {}
                    Stop::Wait => waits = true,
                    Stop::Sleep => asleep = true,
                    Stop::Fault(fault) => return Err(launch.report(self.place, number as u32, fault)),
                }
            }
            if self.states.iter().all(|&state| state == State::Ended) {
                return Ok(Turn::Ended);
            }
            if !self.states.contains(&State::Ready) {
                // Waves that have ended don't hold up a barrier.
                for state in self.states.iter_mut().filter(|state| **state == State::AtBarrier) {
                    *state = State::Ready;
                }
                self.lds.barrier();
                self.waves.iter_mut().for_each(Wave::meet);
                self.together(launch);
            } else if !waits {
                self.turns += 1;
                return Ok(if asleep { Turn::Asleep } else { Turn::Busy });
            }
        }
    }
}
