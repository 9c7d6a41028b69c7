//! One set of calls for MIOpen's three convolution directions.
//!
//! Immediate mode's functions have one signature for all directions: two sources, the convolution,
//! the destination. Find mode's functions differ in the order of arguments and in their enum.

use std::ffi::c_void;

use miopen_sys::*;

use super::{Choice, ConvDesc, Direction, Handle, Solution, check, no_solution};
use crate::Result;
use crate::dnn::{one, zero};
use crate::memory::span::Span;

/// The arguments of a call: handle, direction, and descriptors and memory of the three tensors.
pub(super) struct Operands<'a> {
    pub(super) handle: &'a Handle,
    pub(super) direction: Direction,
    pub(super) conv: miopenConvolutionDescriptor_t,
    pub(super) x: (miopenTensorDescriptor_t, Span),
    pub(super) w: (miopenTensorDescriptor_t, Span),
    pub(super) y: (miopenTensorDescriptor_t, Span),
}

type Tensor = (miopenTensorDescriptor_t, Span);

impl Operands<'_> {
    /// The two sources and the destination in the order of immediate mode.
    fn ordered(&self) -> [Tensor; 3] {
        match self.direction {
            Direction::Forward => [self.w, self.x, self.y],
            Direction::BackwardData => [self.y, self.w, self.x],
            Direction::BackwardWeights => [self.y, self.x, self.w],
        }
    }

    /// The solutions, best first. Only the first is compiled. Each later one, a fallback, needs
    /// less memory than those before it. Without `products`, solutions that call rocBLAS are left
    /// out.
    pub(super) fn solutions(&self, desc: &ConvDesc, products: bool) -> Result<Vec<Choice>> {
        let t = self.handle.table;
        macro_rules! named {
            ($($call:ident),*) => { ($((t.$call, stringify!($call))),*) };
        }
        let (count, get, workspace, compile) = match self.direction {
            Direction::Forward => named!(
                miopenConvolutionForwardGetSolutionCount,
                miopenConvolutionForwardGetSolution,
                miopenConvolutionForwardGetSolutionWorkspaceSize,
                miopenConvolutionForwardCompileSolution
            ),
            Direction::BackwardData => named!(
                miopenConvolutionBackwardDataGetSolutionCount,
                miopenConvolutionBackwardDataGetSolution,
                miopenConvolutionBackwardDataGetSolutionWorkspaceSize,
                miopenConvolutionBackwardDataCompileSolution
            ),
            Direction::BackwardWeights => named!(
                miopenConvolutionBackwardWeightsGetSolutionCount,
                miopenConvolutionBackwardWeightsGetSolution,
                miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize,
                miopenConvolutionBackwardWeightsCompileSolution
            ),
        };
        let (h, conv, [(a, _), (b, _), (c, _)]) = (self.handle.raw, self.conv, self.ordered());
        let detail = || format!("{desc:?}");

        let mut most = 0;
        // SAFETY: the descriptors are valid; `most` outlives the call.
        let status = unsafe { (count.0)(h, a, b, conv, c, &mut most) };
        check(t, count.1, status, detail)?;
        let empty = miopenConvSolution_t {
            time: 0.0,
            workspace_size: 0,
            solution_id: 0,
            algorithm: miopenConvolutionAlgoGEMM,
        };
        let mut solutions = vec![empty; most];
        let mut found = 0;
        if most > 0 {
            // SAFETY: `solutions` has room for `most` entries, and outlives the call as `found`
            // does.
            let status = unsafe { (get.0)(h, a, b, conv, c, most, &mut found, solutions.as_mut_ptr()) };
            check(t, get.1, status, detail)?;
        }
        solutions.truncate(found);
        solutions.retain(|solution| products || solution.algorithm != miopenConvolutionAlgoGEMM);

        let mut choices: Vec<Choice> = Vec::new();
        let mut failed = None;
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
        match (choices.is_empty(), failed) {
            (false, _) => Ok(choices),
            (true, Some(error)) => Err(error),
            (true, None) => Err(no_solution(self.direction, desc)),
        }
    }

    /// # Safety
    /// The spans hold the tensors that the descriptors describe, until the stream has passed the
    /// call. `space` is as large as the solution's workspace.
    pub(super) unsafe fn immediate(&self, space: Span, id: u64) -> (&'static str, miopenStatus_t) {
        let t = self.handle.table;
        let (call, name) = match self.direction {
            Direction::Forward => (t.miopenConvolutionForwardImmediate, "miopenConvolutionForwardImmediate"),
            Direction::BackwardData => {
                (t.miopenConvolutionBackwardDataImmediate, "miopenConvolutionBackwardDataImmediate")
            }
            Direction::BackwardWeights => {
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
            Direction::Forward => {
                (t.miopenConvolutionForwardGetWorkSpaceSize, "miopenConvolutionForwardGetWorkSpaceSize")
            }
            Direction::BackwardData => (
                t.miopenConvolutionBackwardDataGetWorkSpaceSize,
                "miopenConvolutionBackwardDataGetWorkSpaceSize",
            ),
            Direction::BackwardWeights => (
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

    /// Times the algorithms and returns them, fastest first.
    ///
    /// # Safety
    /// As for `immediate`; the destination is overwritten.
    pub(super) unsafe fn find(&self, desc: &ConvDesc, space: Span) -> Result<Vec<Choice>> {
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
                        false,
                    )
                };
                (stringify!($call), status)
            }};
        }
        let (call, status) = match self.direction {
            Direction::Forward => find!(miopenFindConvolutionForwardAlgorithm, x, w, y),
            Direction::BackwardData => find!(miopenFindConvolutionBackwardDataAlgorithm, y, w, x),
            Direction::BackwardWeights => find!(miopenFindConvolutionBackwardWeightsAlgorithm, y, x, w),
        };
        check(t, call, status, || format!("{desc:?}"))?;
        let count = usize::try_from(found).unwrap_or(0).min(MOST);
        Ok(perf[..count]
            .iter()
            .map(|perf| Choice {
                workspace: perf.memory,
                // SAFETY: all fields of the union are transparent over i32.
                solution: Solution::Found(unsafe { perf.algorithm.fwd_algo }.0),
            })
            .collect())
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
            Direction::Forward => run!(miopenConvolutionForward, miopenConvFwdAlgorithm_t, x, w, y),
            Direction::BackwardData => {
                run!(miopenConvolutionBackwardData, miopenConvBwdDataAlgorithm_t, y, w, x)
            }
            Direction::BackwardWeights => {
                run!(miopenConvolutionBackwardWeights, miopenConvBwdWeightsAlgorithm_t, y, x, w)
            }
        }
    }
}
