//! Which of rocBLAS's solutions computes a product: rocBLAS's own choice, the tuning store's, or
//! what timing finds ([`Config::gemm_find`](crate::Config::gemm_find)).

use std::cmp::Ordering;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rocblas_sys::*;

use super::Blas;
use super::calls::Product;
use super::problem::{DEFAULT, GemmProblem, number};
use super::rounding::{Inputs, first_apart, first_outside};
use crate::memory::span::Span;
use crate::settings::{GemmFind, settings};
use crate::spans;
use crate::tuning::{CLEARLY, TuningEntry, TuningStore, USES_BEFORE_FIND, tuning_store};
use crate::{Buffer, Error, Result};

/// rocBLAS lists hundreds of solutions for some shapes. Each takes `(ROUNDS + 1) * REPEATS`
/// launches, so 32 of them take as long as 768 products. Of a longer list, every n-th is timed.
const MOST_CANDIDATES: usize = 32;
/// Times that each solution is timed, one after the other, so that a change of the clock meets all
/// of them. The least time counts.
pub(super) const ROUNDS: usize = 5;
/// Products between two events, because the events take microseconds themselves.
pub(super) const REPEATS: usize = 4;
/// The most shapes that are remembered. rocBLAS chooses for further ones.
const MOST_SHAPES: usize = 1 << 14;
/// Bytes before and behind a trial's result, which no solution may write.
pub(super) const GUARD: usize = 4096;
/// What fills a trial's memory, in every byte: NaN in every float type. A solution that reads a
/// result which it should only write then gives NaN.
pub(super) const FILL: u8 = 0xff;

/// The choices so far, by problem.
pub(super) struct Chooser<P> {
    store: &'static TuningStore,
    shapes: Mutex<HashMap<P, Known>>,
}

/// What is known of a shape.
struct Known {
    /// The store's generation when the shape was last looked up there.
    asked: Option<u64>,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    /// The number of products so far.
    Used(u32),
    Chosen(i32),
}

/// What to do for a product.
pub(super) enum Step {
    Use(i32),
    Time,
}

/// A matrix in memory, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) buffer: &'a Buffer,
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

impl Source<'_> {
    /// Its bytes. Recorded errors stay for the program's next read.
    pub(super) fn read(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.bytes];
        self.buffer.device().read_quietly(self.buffer, self.offset, &mut bytes)?;
        Ok(bytes)
    }
}

impl Chooser<GemmProblem> {
    /// `None` if rocBLAS always chooses.
    pub(super) fn new(table: &Rocblas, deterministic: bool) -> Result<Option<Self>> {
        let chooses = settings()?.gemm_find == GemmFind::Auto
            && !deterministic
            && table.rocblas_gemm_strided_batched_ex_get_solutions.is_some();
        Ok(chooses.then(|| Self::with(tuning_store())))
    }
}

impl<P: Eq + Hash> Chooser<P> {
    pub(super) fn with(store: &'static TuningStore) -> Self {
        Self { store, shapes: Mutex::default() }
    }

    /// What to do for a product. `stored` asks the tuning store.
    pub(super) fn step(&self, problem: P, can_time: bool, stored: impl FnOnce() -> Option<i32>) -> Step {
        let mut shapes = self.shapes.lock().unwrap_or_else(PoisonError::into_inner);
        let many = shapes.len() >= MOST_SHAPES;
        let known = match shapes.entry(problem) {
            Entry::Vacant(_) if many => return Step::Use(DEFAULT),
            Entry::Vacant(new) => new.insert(Known { asked: None, state: State::Used(0) }),
            Entry::Occupied(known) => known.into_mut(),
        };
        let generation = self.store.generation();
        if known.asked.replace(generation) != Some(generation)
            && let Some(solution) = stored()
        {
            known.state = State::Chosen(solution);
        }
        match known.state {
            State::Chosen(solution) => Step::Use(solution),
            State::Used(uses) if uses < USES_BEFORE_FIND || !can_time => {
                known.state = State::Used(uses.saturating_add(1));
                Step::Use(DEFAULT)
            }
            State::Used(_) => {
                // Other threads use the default meanwhile, and nobody times again after an error.
                known.state = State::Chosen(DEFAULT);
                Step::Time
            }
        }
    }

    /// The choice for a problem, if there is one.
    pub(super) fn chosen(&self, problem: &P) -> Option<i32> {
        let shapes = self.shapes.lock().unwrap_or_else(PoisonError::into_inner);
        match shapes.get(problem) {
            Some(Known { state: State::Chosen(solution), .. }) => Some(*solution),
            _ => None,
        }
    }

    /// Chooses a solution for a problem.
    pub(super) fn choose(&self, problem: P, solution: i32) {
        let mut shapes = self.shapes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = shapes.get_mut(&problem) {
            known.state = State::Chosen(solution);
        }
    }
}

impl Blas {
    /// Computes a product by the solution that was chosen for its shape. `sources` are the first
    /// and second operand and the result.
    ///
    /// # Safety
    /// As for `Handle::gemm`; the sources are the memory of `product` and `out`.
    pub(super) unsafe fn gemm_chosen(
        &self,
        chooser: &Chooser<GemmProblem>,
        product: &Product<'_>,
        out: Span,
        sources: [Source<'_>; 3],
    ) -> Result<()> {
        let device = sources[2].buffer.device();
        let problem = product.problem();
        let can_time = device.captures.here().is_none() && !device.is_dry();
        let step = match device.is_replica() {
            true => Step::Use(DEFAULT),
            false => chooser.step(problem, can_time, || self.stored(chooser.store, &problem)),
        };
        let solution = match step {
            Step::Use(solution) => solution,
            Step::Time => {
                // SAFETY: the caller's memory.
                match unsafe { self.fastest(chooser.store, product, out, sources) } {
                    Ok(Some((solution, microseconds))) => {
                        chooser.choose(problem, solution);
                        self.keep(chooser.store, &problem, solution, microseconds);
                        solution
                    }
                    Ok(None) => DEFAULT,
                    Err(error) => {
                        if matches!(error, Error::OutOfMemory { .. }) {
                            device.pool.made_up_for(1);
                        }
                        log::debug!("{problem} was not timed: {error}");
                        DEFAULT
                    }
                }
            }
        };
        let run = |solution| {
            let handle = device.call(&self.handle)?;
            // SAFETY: the caller's memory.
            unsafe { handle.gemm(product, out.ptr, solution) }
        };
        match run(solution) {
            Err(error) if solution != DEFAULT => {
                // rocBLAS's own choice is what runs without trials, so strict settings allow it.
                log::info!("{error}; rocBLAS chooses the solution for {problem}");
                // What fails in a capture may work outside it.
                if !can_time {
                    return run(DEFAULT);
                }
                chooser.choose(problem, DEFAULT);
                run(DEFAULT)?;
                let (device, library) = (&self.identity.device, &self.identity.library);
                chooser.store.refused(device, library, &problem.to_string());
                Ok(())
            }
            done => done,
        }
    }

    /// The tuning store's solution.
    fn stored(&self, store: &TuningStore, problem: &GemmProblem) -> Option<i32> {
        store.directory()?;
        let (device, library) = (&self.identity.device, &self.identity.library);
        let entry = store.get(device, library, &problem.to_string())?;
        let solution = i32::try_from(entry.solution).ok().map(number);
        if solution.is_none() {
            store.refused(device, library, &problem.to_string());
        }
        solution
    }

    fn keep(&self, store: &TuningStore, problem: &GemmProblem, solution: i32, microseconds: f64) {
        store.keep(&TuningEntry {
            device: self.identity.device.clone(),
            library: self.identity.library.clone(),
            problem: problem.to_string(),
            solution: solution.into(),
            workspace: 0,
            microseconds,
        });
    }

    /// The fastest solution and its microseconds; `None` if rocBLAS lists none besides its default.
    /// The products are computed into memory of their own.
    ///
    /// # Safety
    /// As for `gemm_chosen`.
    unsafe fn fastest(
        &self,
        store: &TuningStore,
        product: &Product<'_>,
        out: Span,
        sources: [Source<'_>; 3],
    ) -> Result<Option<(i32, f64)>> {
        let [first, second, result] = sources;
        let device = result.buffer.device();
        let mut listed = {
            let handle = device.call(&self.handle)?;
            // SAFETY: the caller's memory.
            unsafe { handle.solutions(product, out.ptr) }?
        };
        listed.retain(|&solution| number(solution) != DEFAULT);
        listed.sort_unstable();
        listed.dedup();
        if listed.is_empty() {
            return Ok(None);
        }
        let step = listed.len().div_ceil(MOST_CANDIDATES);
        let mut candidates: Vec<(i32, f64)> =
            listed.into_iter().step_by(step).map(|solution| (solution, f64::INFINITY)).collect();
        candidates.insert(0, (DEFAULT, f64::INFINITY));

        let size = GUARD + result.bytes + GUARD;
        let new = || -> Result<Buffer> {
            let buffer = device.alloc(size)?;
            device.fill_bytes(&buffer, 0, FILL, size)?;
            Ok(buffer)
        };
        let scratch = new()?;
        // A copy of what the product adds to, because other tensors may lie between the rows of the
        // result, and other threads may write them during the trial.
        let adds = match product.beta == 0.0 {
            true => None,
            false => {
                let adds = new()?;
                device.copy(result.buffer, result.offset, &adds, GUARD, result.bytes)?;
                Some(adds)
            }
        };
        store.count_trial();
        let begun = Instant::now();
        let prepare = || match &adds {
            None => device.fill_bytes(&scratch, 0, FILL, size),
            Some(adds) => device.copy(adds, 0, &scratch, 0, size),
        };
        let launch = |solution| {
            let handle = device.call(&self.handle)?;
            let out = scratch.as_ptr().wrapping_byte_add(GUARD);
            // SAFETY: the caller's operands; from there on, the scratch memory is as large as the
            // result.
            unsafe { handle.launch(product, out, solution) }
        };
        let (start, end) = (device.timing_event()?, device.timing_event()?);
        let time = |solution| -> Result<f64> {
            device.make_current()?;
            device.compute_stream().record(&start)?;
            for _ in 0..REPEATS {
                launch(solution)?;
            }
            device.compute_stream().record(&end)?;
            end.synchronize()?;
            Ok(f64::from(end.elapsed_since(&start)?) * 1e3 / REPEATS as f64)
        };
        prepare()?;
        // The first round loads kernels and is not counted.
        for round in 0..=ROUNDS {
            let mut failed = Vec::new();
            for (solution, least) in &mut candidates {
                match time(*solution) {
                    Ok(microseconds) if round > 0 => *least = least.min(microseconds),
                    Ok(_) => {}
                    Err(error) if *solution == DEFAULT => return Err(error),
                    Err(error) => {
                        log::debug!("solution {solution} of {}: {error}", product.problem());
                        failed.push(*solution);
                    }
                }
            }
            candidates.retain(|(solution, _)| !failed.contains(solution));
        }

        spans::tuned(&product.problem(), begun.elapsed());

        let default = candidates.remove(0);
        candidates.retain(|(_, microseconds)| *microseconds < CLEARLY * default.1);
        candidates.sort_by(|one, other| one.1.partial_cmp(&other.1).unwrap_or(Ordering::Equal));
        if candidates.is_empty() {
            return Ok(Some(default));
        }
        // The result of a solution that is not faster does not matter, so only the others are
        // compared, fastest first.
        let compute = |solution| {
            prepare()?;
            launch(solution)?;
            Source { buffer: &scratch, offset: 0, bytes: size }.read()
        };
        let (first, second) = (first.read()?, second.read()?);
        let before = match &adds {
            None => vec![FILL; size],
            Some(adds) => Source { buffer: adds, offset: 0, bytes: size }.read()?,
        };
        let matrices = GUARD..GUARD + result.bytes;
        let inputs = Inputs { first: &first, second: &second, added: &before[matrices.clone()] };
        let expected = compute(DEFAULT)?;
        for (solution, microseconds) in candidates {
            let found = compute(solution)?;
            let outside = first_outside(product.plan, product.kind.output.size(), GUARD, [&before, &found]);
            let apart = || {
                first_apart(
                    product.kind,
                    product.plan,
                    [product.alpha, product.beta],
                    product.alternative(),
                    &inputs,
                    [&expected[matrices.clone()], &found[matrices.clone()]],
                )
            };
            match outside.or_else(apart) {
                None => return Ok(Some((solution, microseconds))),
                Some(apart) => {
                    log::warn!("rocBLAS's solution {solution} of {} is not used: {apart}", product.problem());
                }
            }
        }
        Ok(Some(default))
    }
}

#[cfg(all(test, feature = "cpu"))]
mod tests;
