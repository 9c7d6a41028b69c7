//! Choices of this project's kernels by trial ([`Config::kernel_find`](crate::Config::kernel_find)):
//! where an op can be computed in several ways that give the same result but for the order of sums,
//! they are timed once a class of shapes has come back, and the fastest is kept in the tuning store.

pub(crate) mod choices;

use std::sync::atomic::Ordering;
use std::time::Instant;

use hip_kernels::family_of;

use crate::Config;
use crate::compile::rtc::source_hash;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::settings::{FindMode, GemmFind, deterministic, settings};
use crate::spans;
use crate::tuning::{CLEARLY, TuningEntry, USES_BEFORE_FIND, tuning_store};
use choices::KernelProblem;

/// How often each candidate is timed. The best time counts.
const ROUNDS: usize = 3;
/// Calls in one time.
const CALLS: usize = 4;
/// The most problems of a device. A program with more takes the defaults for the rest.
const MOST: usize = 4096;

/// What the tuning store has in place of a library: the kernel's source.
fn library(problem: KernelProblem) -> String {
    let family = family_of(problem.template);
    format!("burn-rocm {}.hip {:032x}", family.name, source_hash(family))
}

impl Device {
    /// Whether kernels are chosen by trial. Never in deterministic mode, because the fastest may
    /// differ between runs, nor once the device has been in a group of several ranks.
    pub fn finds_kernels(&self) -> bool {
        settings().is_ok_and(|settings| settings.kernel_find) && !deterministic() && !self.is_replica()
    }

    /// Whether the device has been in a group of several ranks. Each of them could find another
    /// candidate to be the fastest, whose sums have other bits. What all ranks compute alike, such as
    /// the norm of gradients, would differ then, and the replicas of the parameters would drift apart.
    pub(crate) fn is_replica(&self) -> bool {
        self.replica.load(Ordering::Relaxed)
    }

    /// Called when the device joins a group of several ranks.
    pub(crate) fn becomes_replica(&self) {
        let before = self.replica.swap(true, Ordering::Relaxed);
        let find = |settings: &Config| settings.kernel_find || settings.gemm_find != GemmFind::Off;
        if !before && !deterministic() && settings().is_ok_and(find) {
            log::warn!(
                "device {} is in a group of several ranks, which could choose differently: \
                 BURN_ROCM_KERNEL_FIND and BURN_ROCM_GEMM_FIND no longer apply to it",
                self.info().index
            );
        }
    }

    /// The candidate to use: the first, until the problem has come back. Then `run` computes it by
    /// each candidate, into memory of its own, and the fastest is kept. Other processes find it in
    /// the tuning store. The host waits for the device while it times. While the thread captures a
    /// graph, and on a dry device, nothing is timed: the candidate is what was chosen before, or the
    /// first.
    ///
    /// # Errors
    /// `Device` if HIP fails. If `run` fails, the first candidate is used, and nothing is kept.
    pub fn kernel_choice(
        &self,
        problem: KernelProblem,
        candidates: &[usize],
        run: impl FnMut(usize) -> Result<()>,
    ) -> Result<usize> {
        match self.finds_kernels() {
            true => self.choice(problem, candidates, run),
            false => Ok(candidates[0]),
        }
    }

    /// As [`Device::kernel_choice`], for a convolution that a library or a kernel may compute. The
    /// first candidate is the library. The third use times the candidates, unless
    /// [`Config::conv_find`] is `immediate` or the device is deterministic. A group of several ranks
    /// times too, as MIOpen does there: each rank convolves samples of its own, and all ranks get the
    /// same average of their gradients.
    ///
    /// # Errors
    /// As for [`Device::kernel_choice`].
    pub fn conv_choice(
        &self,
        problem: KernelProblem,
        candidates: &[usize],
        run: impl FnMut(usize) -> Result<()>,
    ) -> Result<usize> {
        let finds = settings().is_ok_and(|settings| settings.conv_find != FindMode::Immediate);
        match finds && !deterministic() {
            true => self.choice(problem, candidates, run),
            false => Ok(candidates[0]),
        }
    }

    fn choice(
        &self,
        problem: KernelProblem,
        candidates: &[usize],
        run: impl FnMut(usize) -> Result<()>,
    ) -> Result<usize> {
        let [default, _, ..] = *candidates else { return Ok(candidates[0]) };
        {
            let mut all = self.kernel_choices.all();
            if all.len() >= MOST && !all.contains_key(&problem) {
                return Ok(default);
            }
            let trial = all.entry(problem).or_default();
            let generation = tuning_store().generation();
            if trial.asked.replace(generation) != Some(generation)
                && let Some(known) = self.known_kernel(problem, candidates)
            {
                trial.chosen = Some(known);
            }
            if let Some(chosen) = trial.chosen {
                // Another shape of the class may have other candidates.
                return Ok(if candidates.contains(&chosen) { chosen } else { default });
            }
            if self.is_capturing() || self.is_dry() {
                return Ok(default);
            }
            trial.uses += 1;
            if trial.uses <= USES_BEFORE_FIND {
                return Ok(default);
            }
            // Nobody else times it, and `run` itself finds the default.
            trial.chosen = Some(default);
        }
        tuning_store().count_trial();
        let begun = Instant::now();
        let found = self.fastest(candidates, run);
        spans::tuned(&problem, begun.elapsed());
        let (fastest, microseconds) = match found {
            Ok(found) => found,
            Err(error) => {
                if matches!(error, Error::OutOfMemory { .. }) {
                    self.pool.made_up_for(1);
                }
                log::debug!("{problem} was not timed: {error}");
                return Ok(default);
            }
        };
        log::debug!("{problem}: {fastest} of {candidates:?}, {microseconds} us");
        self.kernel_choices.all().entry(problem).or_default().chosen = Some(fastest);
        tuning_store().keep(&TuningEntry {
            device: self.info().tuned_as(),
            library: library(problem),
            problem: problem.to_string(),
            solution: fastest as i64,
            workspace: 0,
            microseconds,
        });
        Ok(fastest)
    }

    /// The store's candidate, if it still is one.
    fn known_kernel(&self, problem: KernelProblem, candidates: &[usize]) -> Option<usize> {
        tuning_store().directory()?;
        let device = self.info().tuned_as();
        let entry = tuning_store().get(&device, &library(problem), &problem.to_string())?;
        candidates.iter().copied().find(|&candidate| candidate as i64 == entry.solution)
    }

    /// The candidate with the best time of a call, and that time in microseconds: the first, unless
    /// another is clearly faster. The candidates take turns, so that a clock that changes affects all.
    fn fastest(
        &self,
        candidates: &[usize],
        mut run: impl FnMut(usize) -> Result<()>,
    ) -> Result<(usize, f64)> {
        for &candidate in candidates {
            // The first call compiles.
            run(candidate)?;
        }
        let mut best = vec![f64::INFINITY; candidates.len()];
        for _ in 0..ROUNDS {
            for (best, &candidate) in best.iter_mut().zip(candidates) {
                let (start, end) = (self.timing_event()?, self.timing_event()?);
                self.make_current()?;
                self.compute.record(&start)?;
                for _ in 0..CALLS {
                    run(candidate)?;
                }
                self.make_current()?;
                self.compute.record(&end)?;
                end.synchronize()?;
                *best = best.min(f64::from(end.elapsed_since(&start)?) * 1e3 / CALLS as f64);
            }
        }
        let default = (candidates[0], best[0]);
        let clearly = |&(_, time): &(usize, f64)| time < CLEARLY * default.1;
        let others = candidates.iter().copied().zip(best).filter(clearly);
        Ok(others.min_by(|(_, a), (_, b)| a.total_cmp(b)).unwrap_or(default))
    }
}
