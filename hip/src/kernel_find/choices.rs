//! What is chosen by trial, and what a device has chosen.

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hip_kernels::{DType, Template};

/// An op on a class of shapes, for which one candidate is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelProblem {
    choice: &'static str,
    pub(super) template: Template,
    dtype: DType,
    sizes: [usize; 3],
}

impl KernelProblem {
    /// The class of these sizes, each of which counts as the next power of two. `choice` says what is
    /// chosen, such as `rows of a thread`. `template` is the kernel, whose source counts.
    pub fn new(choice: &'static str, template: Template, dtype: DType, sizes: [usize; 3]) -> Self {
        let class = |size: usize| size.checked_next_power_of_two().unwrap_or(size);
        Self { choice, template, dtype, sizes: sizes.map(class) }
    }
}

impl Display for KernelProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c] = self.sizes;
        write!(f, "{} {:?} {} up to {a}x{b}x{c}", self.choice, self.template, self.dtype)
    }
}

/// What a device has chosen.
#[derive(Default)]
pub(crate) struct KernelChoices(Mutex<HashMap<KernelProblem, Trial>>);

#[derive(Default)]
pub(super) struct Trial {
    /// The tuning store's generation when the problem was last looked up there.
    pub(super) asked: Option<u64>,
    pub(super) uses: u32,
    pub(super) chosen: Option<usize>,
}

impl KernelChoices {
    pub(super) fn all(&self) -> MutexGuard<'_, HashMap<KernelProblem, Trial>> {
        // A panic under the lock leaves the map as it was.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
