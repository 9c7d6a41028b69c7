//! Immediate mode and find mode. Each direction has one solution, which picks its algorithm by the
//! shape.

use super::super::handle::Handle;
use super::call::Call;
use crate::runtime::{is_graph, run_first};
use hip_provider::miopen::{ConvolutionBuffers, Convolutions, FoundAlgorithm, Outcome};
use hip_provider::require;
use miopen_sys::*;
use std::sync::PoisonError;
use std::time::Instant;

type Convolve<'a> = hip_provider::miopen::Convolve<'a, Handle>;

/// The solution's id in immediate mode, chosen by this library.
const SOLUTION: u64 = 1001;

/// The solution's number in find mode. It is the number of the direct algorithm, which is the same
/// in every direction's enum.
const ALGORITHM: i32 = miopenConvolutionFwdAlgoDirect.0;

fn checked(call: &Convolve<'_>) -> Outcome<Call> {
    Call::new(call.kind, call.conv, [call.x, call.w, call.y])
}

impl Convolutions for Handle {
    type Own = ();

    fn solutions(&self, call: &Convolve<'_>) -> Outcome<Vec<miopenConvSolution_t>> {
        let call = checked(call)?;
        Ok(vec![miopenConvSolution_t {
            time: call.estimate(),
            workspace_size: call.workspace(),
            solution_id: SOLUTION,
            algorithm: miopenConvolutionAlgoDirect,
        }])
    }

    fn solution_workspace(&self, call: &Convolve<'_>, solution: u64) -> Outcome<usize> {
        let call = checked(call)?;
        require(solution == SOLUTION, miopenStatusBadParm)?;
        Ok(call.workspace())
    }

    unsafe fn run_solution(
        &self,
        call: &Convolve<'_>,
        solution: u64,
        buffers: ConvolutionBuffers,
    ) -> Outcome {
        let call = checked(call)?;
        require(solution == SOLUTION, miopenStatusBadParm)?;
        // SAFETY: the caller's buffers.
        unsafe { call.enqueue(buffers) }
    }

    /// Runs the only solution once, to time it. Fails in a captured stream, where nothing runs.
    unsafe fn find(&self, call: &Convolve<'_>, buffers: ConvolutionBuffers) -> Outcome<Vec<FoundAlgorithm>> {
        require(!is_graph(), miopenStatusUnknownError)?;
        let call = checked(call)?;
        run_first();
        let start = Instant::now();
        // SAFETY: the caller's buffers.
        unsafe { call.run(buffers) }?;
        let time = start.elapsed().as_secs_f32() * 1e3;
        let workspace = call.workspace();
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if !found.contains(&call) {
            found.push(call);
        }
        Ok(vec![FoundAlgorithm { number: ALGORITHM, time, workspace }])
    }

    /// As in MIOpen, this fails unless [`Convolutions::find`] was called before with the same
    /// arguments.
    unsafe fn run_found(&self, call: &Convolve<'_>, number: i32, buffers: ConvolutionBuffers) -> Outcome {
        let call = checked(call)?;
        require(number == ALGORITHM, miopenStatusBadParm)?;
        let known = self.found.lock().unwrap_or_else(PoisonError::into_inner).contains(&call);
        require(known, miopenStatusUnknownError)?;
        // SAFETY: the caller's buffers.
        unsafe { call.enqueue(buffers) }
    }
}
