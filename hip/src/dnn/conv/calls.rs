//! One set of calls for MIOpen's three convolution directions.
//!
//! Immediate mode's functions have one signature for all directions: two sources, the convolution,
//! the destination. Find mode's functions differ in the order of arguments and in their enum.

use std::ffi::c_void;

use miopen_sys::*;

use super::{Choice, ConvDesc, ConvDirection, Handle, OP, Solution, Text, check, no_solution};
use crate::dnn::{one, over_limit, zero};
use crate::memory::span::Span;
use crate::settings::{FindMode, workspace_limit};
use crate::{Error, Result};

/// The arguments of a call: handle, direction, and descriptors and memory of the three tensors.
pub(super) struct Operands<'a> {
    pub(super) handle: &'a Handle,
    pub(super) direction: ConvDirection,
    pub(super) conv: miopenConvolutionDescriptor_t,
    pub(super) x: (miopenTensorDescriptor_t, Span),
    pub(super) w: (miopenTensorDescriptor_t, Span),
    pub(super) y: (miopenTensorDescriptor_t, Span),
}

type Tensor = (miopenTensorDescriptor_t, Span);

const EMPTY: miopenConvSolution_t = miopenConvSolution_t {
    time: 0.0,
    workspace_size: 0,
    solution_id: 0,
    algorithm: miopenConvolutionAlgoGEMM,
};

/// What find mode does besides timing the algorithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    /// What MIOpen's own variables say: by default, nothing.
    AsMiopen,
    /// Tries the parameters of each tunable kernel that MIOpen's database does not have yet.
    Search,
    /// As `Search`, also for kernels that the database has.
    SearchAgain,
}

impl Policy {
    pub(super) fn of(mode: FindMode) -> Self {
        match mode {
            FindMode::Exhaustive => Self::Search,
            FindMode::Retune => Self::SearchAgain,
            _ => Self::AsMiopen,
        }
    }
}

impl Operands<'_> {
    /// The two sources and the destination in the order of immediate mode.
    fn ordered(&self) -> [Tensor; 3] {
        match self.direction {
            ConvDirection::Forward => [self.w, self.x, self.y],
            ConvDirection::BackwardData => [self.y, self.w, self.x],
            ConvDirection::BackwardWeights => [self.y, self.x, self.w],
        }
    }

    /// The solutions in MIOpen's order: those that find mode has timed by their times, else by
    /// MIOpen's estimates.
    fn listed(&self, desc: &ConvDesc) -> Result<Vec<miopenConvSolution_t>> {
        let t = self.handle.table;
        macro_rules! named {
            ($($call:ident),*) => { ($((t.$call, stringify!($call))),*) };
        }
        let (count, get) = match self.direction {
            ConvDirection::Forward => {
                named!(miopenConvolutionForwardGetSolutionCount, miopenConvolutionForwardGetSolution)
            }
            ConvDirection::BackwardData => {
                named!(
                    miopenConvolutionBackwardDataGetSolutionCount,
                    miopenConvolutionBackwardDataGetSolution
                )
            }
            ConvDirection::BackwardWeights => named!(
                miopenConvolutionBackwardWeightsGetSolutionCount,
                miopenConvolutionBackwardWeightsGetSolution
            ),
        };
        let (h, conv, [(a, _), (b, _), (c, _)]) = (self.handle.raw, self.conv, self.ordered());
        let detail = || format!("{desc:?}");
        let mut most = 0;
        // SAFETY: the descriptors are valid; `most` outlives the call.
        let status = unsafe { (count.0)(h, a, b, conv, c, &mut most) };
        check(t, count.1, status, detail)?;
        let mut solutions = vec![EMPTY; most];
        let mut found = 0;
        if most > 0 {
            // SAFETY: `solutions` has room for `most` entries, and outlives the call as `found`
            // does.
            let status = unsafe { (get.0)(h, a, b, conv, c, most, &mut found, solutions.as_mut_ptr()) };
            check(t, get.1, status, detail)?;
        }
        solutions.truncate(found);
        Ok(solutions)
    }

    /// The first solution with an algorithm of find mode and its workspace. The algorithms' numbers
    /// are the same in each direction's enum and in that of the solutions.
    pub(super) fn solution_of(
        &self,
        desc: &ConvDesc,
        algorithm: i32,
        workspace: usize,
    ) -> Result<Option<u64>> {
        let solutions = self.listed(desc)?;
        let of = solutions.iter().find(|solution| {
            // Without MIOpen's database, its first estimate may be another solution of the algorithm.
            solution.algorithm.0 == algorithm && solution.workspace_size == workspace
        });
        Ok(of.map(|solution| solution.solution_id))
    }

    /// The solutions, best first: `preferred` if there is one, then MIOpen's. Only the first is
    /// compiled. Each later one, a fallback, needs less memory than those before it. Without
    /// `products`, solutions that call rocBLAS are left out. So are those that need more workspace
    /// than the limit.
    pub(super) fn solutions(
        &self,
        desc: &ConvDesc,
        products: bool,
        preferred: Option<u64>,
    ) -> Result<Vec<Choice>> {
        let t = self.handle.table;
        macro_rules! named {
            ($($call:ident),*) => { ($((t.$call, stringify!($call))),*) };
        }
        let (workspace, compile) = match self.direction {
            ConvDirection::Forward => named!(
                miopenConvolutionForwardGetSolutionWorkspaceSize,
                miopenConvolutionForwardCompileSolution
            ),
            ConvDirection::BackwardData => named!(
                miopenConvolutionBackwardDataGetSolutionWorkspaceSize,
                miopenConvolutionBackwardDataCompileSolution
            ),
            ConvDirection::BackwardWeights => named!(
                miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize,
                miopenConvolutionBackwardWeightsCompileSolution
            ),
        };
        let (h, conv, [(a, _), (b, _), (c, _)]) = (self.handle.raw, self.conv, self.ordered());
        let detail = || format!("{desc:?}");
        let mut solutions = self.listed(desc)?;
        solutions.retain(|solution| products || solution.algorithm != miopenConvolutionAlgoGEMM);
        if let Some(preferred) = preferred {
            let listed = solutions.iter().position(|solution| solution.solution_id == preferred);
            // MIOpen lists what it estimates to be fast, but takes any solution of the problem.
            let solution = listed
                .map(|at| solutions.remove(at))
                .unwrap_or(miopenConvSolution_t { solution_id: preferred, ..EMPTY });
            solutions.insert(0, solution);
        }

        let limit = workspace_limit();
        let mut choices: Vec<Choice> = Vec::new();
        let mut failed = None;
        let mut least_passed_over: Option<usize> = None;
        for solution in solutions {
            let id = solution.solution_id;
            let mut bytes = 0;
            // SAFETY: the descriptors are valid, and MIOpen returned the id for them.
            let status = unsafe { (workspace.0)(h, a, b, conv, c, id, &mut bytes) };
            if let Err(error) = check(t, workspace.1, status, detail) {
                failed.get_or_insert(error);
                continue;
            }
            let bytes = bytes.max(solution.workspace_size);
            if bytes > limit {
                least_passed_over = Some(least_passed_over.map_or(bytes, |least| least.min(bytes)));
                continue;
            }
            match choices.last() {
                // A fallback is used, and compiled, only when memory is short.
                Some(before) if bytes >= before.workspace => continue,
                Some(_) => {}
                None => {
                    // SAFETY: as above.
                    let status = unsafe { (compile.0)(h, a, b, conv, c, id) };
                    if let Err(error) = check(t, compile.1, status, || format!("{desc:?}, {id}")) {
                        failed.get_or_insert(error);
                        continue;
                    }
                }
            }
            choices.push(Choice { workspace: bytes, solution: Solution::Immediate(id) });
        }
        match (choices.is_empty(), failed, least_passed_over) {
            (false, _, _) => Ok(choices),
            (true, Some(error), _) => Err(error),
            (true, None, Some(least)) => Err(over_limit(OP, desc.dtype, least, Text(self.direction, desc))),
            (true, None, None) => Err(no_solution(self.direction, desc)),
        }
    }

    /// # Safety
    /// The spans hold the tensors that the descriptors describe, until the stream has passed the
    /// call. `space` is as large as the solution's workspace.
    pub(super) unsafe fn immediate(&self, space: Span, id: u64) -> (&'static str, miopenStatus_t) {
        let t = self.handle.table;
        let (call, name) = match self.direction {
            ConvDirection::Forward => {
                (t.miopenConvolutionForwardImmediate, "miopenConvolutionForwardImmediate")
            }
            ConvDirection::BackwardData => {
                (t.miopenConvolutionBackwardDataImmediate, "miopenConvolutionBackwardDataImmediate")
            }
            ConvDirection::BackwardWeights => {
                (t.miopenConvolutionBackwardWeightsImmediate, "miopenConvolutionBackwardWeightsImmediate")
            }
        };
        let [a, b, c] = self.ordered();
        // SAFETY: the caller vouches for the memory, `Operands` for the descriptors.
        let status = unsafe {
            call(
                self.handle.raw,
                a.0,
                a.1.ptr,
                b.0,
                b.1.ptr,
                self.conv,
                c.0,
                c.1.ptr,
                space.ptr,
                space.bytes,
                id,
            )
        };
        (name, status)
    }

    /// The bytes of workspace that find mode needs.
    pub(super) fn find_workspace(&self, desc: &ConvDesc) -> Result<usize> {
        let t = self.handle.table;
        let (call, name) = match self.direction {
            ConvDirection::Forward => {
                (t.miopenConvolutionForwardGetWorkSpaceSize, "miopenConvolutionForwardGetWorkSpaceSize")
            }
            ConvDirection::BackwardData => (
                t.miopenConvolutionBackwardDataGetWorkSpaceSize,
                "miopenConvolutionBackwardDataGetWorkSpaceSize",
            ),
            ConvDirection::BackwardWeights => (
                t.miopenConvolutionBackwardWeightsGetWorkSpaceSize,
                "miopenConvolutionBackwardWeightsGetWorkSpaceSize",
            ),
        };
        let [a, b, c] = self.ordered();
        let mut bytes = 0;
        // SAFETY: the descriptors are valid; `bytes` outlives the call.
        let status = unsafe { call(self.handle.raw, a.0, b.0, self.conv, c.0, &mut bytes) };
        check(t, name, status, || format!("{desc:?}"))?;
        Ok(bytes)
    }

    /// Times the algorithms and returns them with their times in microseconds, fastest first.
    ///
    /// # Safety
    /// As for `immediate`; the destination is overwritten.
    pub(super) unsafe fn find(
        &self,
        desc: &ConvDesc,
        space: Span,
        policy: Policy,
    ) -> Result<Vec<(Choice, f64)>> {
        /// More than the number of algorithms.
        const MOST: usize = 8;
        let empty = miopenConvAlgoPerf_t {
            algorithm: miopenConvAlgoPerf_algorithm { fwd_algo: miopenConvolutionFwdAlgoGEMM },
            time: 0.0,
            memory: 0,
        };
        let (mut perf, mut found) = ([empty; MOST], 0);
        let t = self.handle.table;
        let (x, w, y) = (self.x, self.w, self.y);
        macro_rules! find {
            ($call:ident, $a:ident, $b:ident, $c:ident) => {{
                // SAFETY: the caller vouches for the memory; `perf` has room for `MOST` entries.
                let status = unsafe {
                    (t.$call)(
                        self.handle.raw,
                        $a.0,
                        $a.1.ptr,
                        $b.0,
                        $b.1.ptr,
                        self.conv,
                        $c.0,
                        $c.1.ptr,
                        MOST as i32,
                        &mut found,
                        perf.as_mut_ptr(),
                        space.ptr,
                        space.bytes,
                        policy != Policy::AsMiopen,
                    )
                };
                (stringify!($call), status)
            }};
        }
        let again = policy == Policy::SearchAgain;
        if again {
            self.set_tuning_policy(miopenTuningPolicySearchDbUpdate)?;
        }
        let (call, status) = match self.direction {
            ConvDirection::Forward => find!(miopenFindConvolutionForwardAlgorithm, x, w, y),
            ConvDirection::BackwardData => find!(miopenFindConvolutionBackwardDataAlgorithm, y, w, x),
            ConvDirection::BackwardWeights => find!(miopenFindConvolutionBackwardWeightsAlgorithm, y, x, w),
        };
        if again {
            self.set_tuning_policy(miopenTuningPolicyNone)?;
        }
        check(t, call, status, || format!("{desc:?}"))?;
        let count = usize::try_from(found).unwrap_or(0).min(MOST);
        Ok(perf[..count]
            .iter()
            .map(|perf| {
                // SAFETY: all fields of the union are transparent over i32.
                let solution = Solution::Found(unsafe { perf.algorithm.fwd_algo }.0);
                (Choice { workspace: perf.memory, solution }, f64::from(perf.time) * 1e3)
            })
            .collect())
    }

    /// Sets what the handle's next calls of find mode do with MIOpen's database of kernel
    /// parameters.
    fn set_tuning_policy(&self, policy: miopenTuningPolicy_t) -> Result<()> {
        let call = "miopenSetTuningPolicy";
        let Some(set) = self.handle.table.miopenSetTuningPolicy else {
            let expected = "MIOpen with miopenSetTuningPolicy, which ROCm 6.4 lacks, for `retune`";
            return Err(Error::config("BURN_ROCM_CONV_FIND", expected, "a MIOpen without it"));
        };
        // SAFETY: the handle is valid.
        let status = unsafe { set(self.handle.raw, policy) };
        check(self.handle.table, call, status, || format!("{policy:?}"))
    }

    /// # Safety
    /// As for `immediate`.
    pub(super) unsafe fn found(&self, space: Span, algorithm: i32) -> (&'static str, miopenStatus_t) {
        let t = self.handle.table;
        let (alpha, beta): (*const c_void, *const c_void) = (one(), zero());
        let (x, w, y) = (self.x, self.w, self.y);
        macro_rules! run {
            ($call:ident, $algorithm:ident, $a:ident, $b:ident, $c:ident) => {{
                // SAFETY: the caller vouches for the memory; the scalars are static.
                let status = unsafe {
                    (t.$call)(
                        self.handle.raw,
                        alpha,
                        $a.0,
                        $a.1.ptr,
                        $b.0,
                        $b.1.ptr,
                        self.conv,
                        $algorithm(algorithm),
                        beta,
                        $c.0,
                        $c.1.ptr,
                        space.ptr,
                        space.bytes,
                    )
                };
                (stringify!($call), status)
            }};
        }
        match self.direction {
            ConvDirection::Forward => run!(miopenConvolutionForward, miopenConvFwdAlgorithm_t, x, w, y),
            ConvDirection::BackwardData => {
                run!(miopenConvolutionBackwardData, miopenConvBwdDataAlgorithm_t, y, w, x)
            }
            ConvDirection::BackwardWeights => {
                run!(miopenConvolutionBackwardWeights, miopenConvBwdWeightsAlgorithm_t, y, x, w)
            }
        }
    }
}
