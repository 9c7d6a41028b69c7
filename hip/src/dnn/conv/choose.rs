//! How a convolution is computed: MIOpen's choice, the tuning store's, or what timing finds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use miopen_sys::*;

use super::calls::Policy;
use super::{Choice, ConvDesc, ConvDirection, ConvProblem, OP, Prepared, Solution, workspace_span};
use crate::device::Device;
use crate::dnn::{Dnn, TensorArg, elements};
use crate::memory::span::Span;
use crate::settings::{FindMode, settings, workspace_limit};
use crate::spans;
use crate::tuning::{TuningEntry, USES_BEFORE_FIND, tuning_store};
use crate::{Buffer, Error, Result};

/// A convolution to choose for.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub(super) prepared: &'a Prepared,
    pub(super) direction: ConvDirection,
    pub(super) desc: &'a ConvDesc,
    pub(super) spans: [Span; 3],
    /// A buffer of the call.
    pub(super) at: &'a Buffer,
}

/// The find mode that MIOpen is to use, if not its own default.
pub(super) fn find_mode(mode: FindMode) -> Option<miopenConvolutionFindMode_t> {
    match mode {
        FindMode::Auto | FindMode::Immediate | FindMode::Find => None,
        FindMode::Normal | FindMode::Exhaustive | FindMode::Retune => Some(miopenConvolutionFindModeNormal),
        FindMode::Fast => Some(miopenConvolutionFindModeFast),
        FindMode::Hybrid => Some(miopenConvolutionFindModeHybrid),
        FindMode::DynamicHybrid => Some(miopenConvolutionFindModeDynamicHybrid),
    }
}

/// What the tuning store calls a problem that was timed with a limit of workspaces; `None` if there
/// is no limit.
fn limited(problem: &str, limit: usize) -> Option<String> {
    (limit < usize::MAX).then(|| format!("{problem}, at most {limit} bytes of workspace"))
}

impl Dnn {
    /// The ways to compute a convolution at a shape's first use, best first.
    pub(super) fn choices(&self, task: Task<'_>) -> Result<Vec<Choice>> {
        let Task { prepared, direction, desc, spans, at } = task;
        // Find mode runs every algorithm, including those that call rocBLAS, and rocBLAS must not
        // run if it has no kernels for the device. In a capture nothing runs, so nothing can be
        // timed. On a dry device nothing runs either, but the search takes its memory.
        let captured = at.device().captures.here().is_some();
        let is_dry = at.device().is_dry();
        let find = settings()?.conv_find;
        let known = match find.uses_store() && self.products {
            true => self.known(task),
            false => None,
        };
        if known.is_none() && find.at_first_use() && self.products && !captured {
            match self.find(task) {
                // A solution may keep to the limit even if no algorithm of find mode does. On a dry
                // device find mode finds no algorithm.
                Ok(found) if found.is_empty() && (is_dry || workspace_limit() < usize::MAX) => {}
                Err(error @ Error::Miopen { .. }) if workspace_limit() < usize::MAX => {
                    log::info!("{error}; perhaps all of find mode's algorithms pass the limit of workspaces");
                }
                // A solution may need less memory than the hungriest algorithm.
                Err(error @ Error::OutOfMemory { .. }) => {
                    at.device().pool.made_up_for(1);
                    log::debug!("{direction:?} of {desc:?} was not timed: {error}");
                }
                found => return found,
            }
        }
        let handle = self.begin(at)?;
        let operands = prepared.operands(&handle, direction, spans);
        // MIOpen's numbers are not negative. 0 is none of them, so it is refused.
        let number = |entry: &TuningEntry| u64::try_from(entry.solution).unwrap_or(0);
        let choices = operands.solutions(desc, self.products, known.as_ref().map(number))?;
        if let Some(entry) = known {
            if choices[0].solution == Solution::Immediate(number(&entry)) {
                // The auto mode then times nothing.
                prepared.uses.store(USES_BEFORE_FIND + 1, Ordering::Relaxed);
                prepared.stored.get_or_init(|| entry);
            } else if !captured && !is_dry && workspace_limit() == usize::MAX {
                tuning_store().refused(&entry.device, &entry.library, &entry.problem);
            }
        }
        Ok(choices)
    }

    /// The ways to use now: `choices` until the shape has been used often enough to be timed, then
    /// the timed ones. In deterministic mode nothing is timed, because the fastest algorithm may
    /// differ between runs.
    pub(super) fn chosen<'a>(&self, task: Task<'a>) -> &'a [Choice] {
        let Task { prepared, direction, desc, at, .. } = task;
        let auto = settings().is_ok_and(|settings| settings.conv_find == FindMode::Auto);
        if !auto || self.deterministic || !self.products || prepared.choices.is_empty() {
            return &prepared.choices;
        }
        let captured = at.device().captures.here().is_some();
        if !captured
            && prepared.timed.get().is_none()
            && prepared.uses.fetch_add(1, Ordering::Relaxed) == USES_BEFORE_FIND
        {
            // If there is no memory for a timed algorithm's workspace, the untimed choices are
            // used.
            let timed = match self.find(task) {
                Ok(found) => found.into_iter().chain(prepared.choices.iter().copied()).collect(),
                Err(error) => {
                    if matches!(error, Error::OutOfMemory { .. }) {
                        at.device().pool.made_up_for(1);
                    }
                    log::debug!("{direction:?} of {desc:?} was not timed: {error}");
                    Vec::new()
                }
            };
            log::debug!("{direction:?} of {desc:?}, timed: {timed:?}");
            prepared.timed.get_or_init(|| timed);
        }
        match prepared.timed.get() {
            Some(timed) if !timed.is_empty() => timed,
            _ => &prepared.choices,
        }
    }

    /// Times the algorithms, keeps the fastest in the tuning store, and returns them, fastest first.
    /// They overwrite the convolution's output.
    fn find(&self, task: Task<'_>) -> Result<Vec<Choice>> {
        let Task { prepared, direction, desc, spans, at } = task;
        let policy = Policy::of(settings()?.conv_find);
        let bytes = {
            let handle = self.begin(at)?;
            prepared.operands(&handle, direction, spans).find_workspace(desc)?
        };
        // MIOpen passes over what needs more than it gets.
        let bytes = bytes.min(workspace_limit());
        let workspace = crate::dnn::workspace(at.device(), bytes)?;
        let space = workspace_span(&workspace, bytes);
        if !at.device().is_dry() {
            tuning_store().count_trial();
        }
        let start = Instant::now();
        let mut found = {
            let handle = self.begin(at)?;
            // SAFETY: as in `convolve`. The convolution overwrites the output again.
            unsafe { prepared.operands(&handle, direction, spans).find(desc, space, policy) }?
        };
        spans::tuned(&format_args!("{direction:?} of {desc:?}"), start.elapsed());
        found.retain(|(choice, _)| choice.workspace <= workspace_limit());
        // In fast mode, MIOpen may give its estimate in place of a time.
        if let Some((fastest, microseconds)) = found.first()
            && settings()?.conv_find != FindMode::Fast
            && microseconds.is_finite()
            && *microseconds > 0.0
        {
            prepared.fastest.get_or_init(|| *microseconds);
            self.keep(task, *fastest, *microseconds);
        }
        Ok(found.into_iter().map(|(choice, _)| choice).collect())
    }

    /// As [`entry`](Self::entry), for a convolution that is being prepared. The store counts it.
    fn known(&self, task: Task<'_>) -> Option<TuningEntry> {
        let store = tuning_store();
        store.directory()?;
        let entry = self.entry(task);
        store.count(entry.is_some());
        entry
    }

    /// The tuning store's entry for a convolution, if it keeps to the limit of workspaces: the entry
    /// without a limit, or else the entry with this limit. The store does not count it.
    fn entry(&self, task: Task<'_>) -> Option<TuningEntry> {
        let Task { prepared, direction, desc, at, .. } = task;
        let store = tuning_store();
        store.directory()?;
        let (problem, limit) = (prepared.problem(direction, desc), workspace_limit());
        let device = at.device().info().tuned_as();
        let within = |problem: &str| {
            let entry = store.peek(&device, &self.version, problem);
            entry.filter(|entry| entry.workspace <= limit)
        };
        within(&problem).or_else(|| within(&limited(&problem, limit)?))
    }

    /// Whether an import has added an entry for a convolution since the convolution was prepared.
    /// False in a capture, where nothing is prepared anew.
    ///
    /// # Errors
    /// `Config` for an invalid setting.
    pub(super) fn has_news(&self, task: Task<'_>) -> Result<bool> {
        let (asked, generation) = (&task.prepared.asked, tuning_store().generation());
        // Relaxed: if two threads find a new entry, both prepare.
        if asked.load(Ordering::Relaxed) == generation
            || task.at.device().captures.here().is_some()
            || !(self.products && settings()?.conv_find.uses_store())
        {
            return Ok(false);
        }
        asked.store(generation, Ordering::Relaxed);
        let entry = self.entry(task);
        Ok(entry.is_some() && task.prepared.stored.get() != entry.as_ref())
    }

    /// Keeps a timed algorithm in the tuning store, as the solution that immediate mode knows. An
    /// algorithm of find mode runs only in the process that has found it.
    fn keep(&self, task: Task<'_>, found: Choice, microseconds: f64) {
        let Task { prepared, direction, desc, spans, at } = task;
        let Solution::Found(algorithm) = found.solution else { return };
        if tuning_store().directory().is_none() {
            return;
        }
        // What is fastest within a limit must not replace what is fastest without one.
        let problem = prepared.problem(direction, desc);
        let problem = limited(&problem, workspace_limit()).unwrap_or(problem);
        let solution = self.begin(at).and_then(|handle| {
            prepared.operands(&handle, direction, spans).solution_of(desc, algorithm, found.workspace)
        });
        let solution = solution.map(|found| found.and_then(|number| i64::try_from(number).ok()));
        match solution {
            Ok(Some(solution)) => tuning_store().keep(&TuningEntry {
                device: at.device().info().tuned_as(),
                library: self.version.clone(),
                problem,
                solution,
                workspace: found.workspace,
                microseconds,
            }),
            Ok(None) => log::debug!("{direction:?} of {desc:?}: no solution has algorithm {algorithm}"),
            Err(error) => log::debug!("{direction:?} of {desc:?} is not kept: {error}"),
        }
    }

    /// Times a convolution ahead, on memory whose contents don't matter, and keeps what it finds in
    /// the tuning store. Returns false without timing if the store has it, if MIOpen does not compute
    /// it, or if one of the tensors has no elements.
    ///
    /// # Errors
    /// `Invalid` for shapes that don't fit together; `Config` if the tuning store is off; `Capture`
    /// if this thread captures a graph; those of [`Dnn::conv_forward`].
    pub fn tune(&self, device: &Arc<Device>, problem: &ConvProblem) -> Result<bool> {
        if tuning_store().directory().is_none() {
            let found = "a store that is off (BURN_ROCM_TUNING, BURN_ROCM_CACHE, BURN_ROCM_DETERMINISTIC)";
            return Err(Error::config("tuning store", "a folder for its entries", found));
        }
        device.refuse_captured("tuning", "nothing can be timed in a graph")?;
        device.refuse_dry("tuning", "nothing runs")?;
        Ok(self.trial(device, problem)?.is_some_and(|(_, is_new)| is_new))
    }

    /// Microseconds of the fastest way to compute a convolution, if it was timed before, or else is
    /// timed now. `None` if MIOpen does not compute it, if one of the tensors has no elements, or if
    /// MIOpen's fast mode has estimated and not timed.
    ///
    /// # Errors
    /// Those of [`Dnn::tune`].
    pub(super) fn fastest(&self, device: &Arc<Device>, problem: &ConvProblem) -> Result<Option<f64>> {
        let known = self.convolutions[problem.direction as usize].peek(&problem.desc);
        match known.and_then(|prepared| prepared.fastest.get().copied()) {
            Some(microseconds) => Ok(Some(microseconds)),
            None => Ok(self.trial(device, problem)?.and_then(|(microseconds, _)| microseconds)),
        }
    }

    /// What the tuning store has for a convolution, or else what timing finds: the fastest way's
    /// microseconds, and whether it was timed, in fast mode perhaps without a time. `None` if MIOpen
    /// does not compute the convolution, or if one of the tensors has no elements.
    fn trial(&self, device: &Arc<Device>, problem: &ConvProblem) -> Result<Option<(Option<f64>, bool)>> {
        let ConvProblem { direction, desc } = problem;
        desc.validate()?;
        if !self.products || [&desc.x, &desc.w, &desc.y].iter().any(|dims| dims.contains(&0)) {
            return Ok(None);
        }
        let tensor = |dims: &[usize]| {
            let bytes = elements(OP, dims)?.saturating_mul(desc.dtype.size());
            let buffer = device.alloc(bytes)?;
            // Subnormal numbers and NaN may take longer than others.
            device.fill_bytes(&buffer, 0, 0, bytes)?;
            Ok(buffer)
        };
        let (x, w, y) = (tensor(&desc.x)?, tensor(&desc.w)?, tensor(&desc.y)?);
        let spans = self.conv_spans(desc, TensorArg::new(&x), TensorArg::new(&w), TensorArg::new(&y))?;
        let cache = &self.convolutions[*direction as usize];
        let is_new = cache.peek(desc).is_none();
        let prepared = cache.get(desc, || self.prepare(*direction, desc, spans, &y))?;
        if prepared.refused.check().is_err() {
            return Ok(None);
        }
        let timed = || Some((prepared.fastest.get().copied(), true));
        let is_timed = |choice: &Choice| matches!(choice.solution, Solution::Found(_));
        if is_new && prepared.choices.first().is_some_and(is_timed) {
            // The mode times at the first use, which this was.
            return Ok(timed());
        }
        let task = Task { prepared: &prepared, direction: *direction, desc, spans, at: &y };
        // The preparation has counted it.
        if settings()?.conv_find.uses_store()
            && let Some(entry) = self.entry(task)
        {
            return Ok(Some((Some(entry.microseconds), false)));
        }
        let found = self.find(task)?;
        let ways = || found.into_iter().chain(prepared.choices.iter().copied()).collect();
        prepared.timed.get_or_init(ways);
        Ok(timed())
    }
}
