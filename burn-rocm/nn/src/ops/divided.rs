//! Parameters of which each rank of a group has a part: which of a module's they are, and what all
//! ranks must know of their gradients.

use std::cell::{Cell, RefCell};

use burn_backend::{DType, TensorMetadata};
use burn_rocm::fused::amp::{Growth, Scale, cast_all};
use burn_rocm::fused::one_value;
use burn_rocm::fused::optim::norm;
use burn_rocm::{Communicator, ReduceOp, RocmError, RocmTensor};

/// The last field of a module with divided parameters. A visitor of Burn sees parameters and names
/// only, so it learns of the group here.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) ranks: Communicator,
    /// How many module fields the module has before this one.
    fields: usize,
    /// The first ones, which hold divided parameters. The others are the same on every rank.
    divided: usize,
}

thread_local! {
    /// Whether a [`Places`] follows this thread's visitor.
    static FOLLOWED: Cell<bool> = const { Cell::new(false) };
    /// The mark that the visitor passed last.
    static PASSED: RefCell<Option<Mark>> = const { RefCell::new(None) };
}

impl Mark {
    pub(crate) fn new(ranks: &Communicator, [divided, fields]: [usize; 2]) -> Self {
        Self { ranks: ranks.clone(), fields, divided }
    }

    /// A visitor passes the mark. Does nothing if the visitor does not look for marks.
    pub(crate) fn pass(&self) {
        if FOLLOWED.get() {
            PASSED.set(Some(self.clone()));
        }
    }
}

/// Finds the divided parameters among those that a visitor sees.
#[derive(Default)]
pub(crate) struct Places {
    /// How many of the visited modules' fields enclose the next parameter.
    depth: usize,
    /// For each depth, the number of parameters before each field of the modules there.
    before: Vec<Vec<usize>>,
    /// The group of each parameter.
    of: Vec<Option<usize>>,
    groups: Vec<Communicator>,
}

impl Places {
    /// Runs `visit`, which takes a visitor that reports to this through a module.
    pub(crate) fn follow(visit: impl FnOnce()) {
        /// Also after a panic.
        struct End;
        impl Drop for End {
            fn drop(&mut self) {
                FOLLOWED.set(false);
                PASSED.take();
            }
        }
        let _end = End;
        FOLLOWED.set(true);
        visit();
    }

    pub(crate) fn enter(&mut self) {
        if self.before.len() == self.depth {
            self.before.push(Vec::new());
        }
        self.before[self.depth].push(self.of.len());
        self.depth += 1;
    }

    pub(crate) fn parameter(&mut self) {
        self.of.push(None);
    }

    pub(crate) fn exit(&mut self) {
        self.depth -= 1;
        self.before.truncate(self.depth + 1);
        let Some(Mark { ranks, fields, divided }) = PASSED.take() else { return };
        let before = &self.before[self.depth];
        // The last field is the mark's.
        let first = before.len() - 1 - fields;
        let group = self.groups.iter().position(|group| group.is(&ranks)).unwrap_or_else(|| {
            self.groups.push(ranks);
            self.groups.len() - 1
        });
        self.of[before[first]..before[first + divided]].fill(Some(group));
    }

    /// The groups, and the group of each parameter in the visitor's order.
    pub(crate) fn found(self) -> (Vec<Communicator>, Vec<Option<usize>>) {
        (self.groups, self.of)
    }
}

/// The Euclidean norm of a model's gradients, of shape `[1]`. A gradient with a group is
/// divided among its ranks; one without is the same on every rank. A group comes with the
/// dtype in which its ranks exchange norms. Every rank must call this, even one without gradients.
///
/// # Errors
/// `Invalid` for no gradients and no groups; as [`norm`]; an error of the collectives.
pub(crate) fn norm_of_all(
    groups: &[(Communicator, DType)],
    grads: &[(RocmTensor, Option<usize>)],
) -> Result<RocmTensor, RocmError> {
    let of = |group| -> Vec<RocmTensor> {
        grads.iter().filter(|(_, found)| *found == group).map(|(grad, _)| grad.clone()).collect()
    };
    let whole = of(None);
    if groups.is_empty() {
        return norm(&whole);
    }
    let mut norms = Vec::with_capacity(1 + groups.len());
    if !whole.is_empty() {
        norms.push(norm(&whole)?);
    }
    for (index, (ranks, dtype)) in groups.iter().enumerate() {
        let parts = of(Some(index));
        let own = match parts.is_empty() {
            true => one_value(&ranks.device(), 0.0, *dtype)?,
            false => cast_all(vec![norm(&parts)?], *dtype)?.remove(0),
        };
        norms.push(if ranks.size() == 1 { own } else { ranks.all_gather_joined(own)? });
    }
    // The norm of norms is that of all.
    norm(&norms)
}

/// The flags, set if one of them is set on any rank of these groups. Every rank must call this.
///
/// # Errors
/// `Invalid` for flags of several devices; an error of the collectives or of the device.
pub(crate) fn agreed(
    groups: &[Communicator],
    mut flags: Vec<RocmTensor>,
) -> Result<Vec<RocmTensor>, RocmError> {
    for ranks in groups.iter().filter(|ranks| ranks.size() > 1) {
        if flags.len() > 1 {
            return Err(RocmError::Invalid {
                op: "GradScaler::step",
                expected: "all gradients on one device, because layers are divided among ranks".into(),
                found: format!("gradients on {} devices", flags.len()),
            });
        }
        let own = flags.pop().map_or_else(|| one_value(&ranks.device(), 0.0, DType::U32), Ok)?;
        debug_assert_eq!(own.dtype(), DType::U32);
        flags.push(ranks.all_reduce_joined(ReduceOp::Max, own)?);
    }
    Ok(flags)
}

/// The gradients divided by the scale, and the step's flag, which all ranks of these groups share.
/// Also sets the scale for the next step: in the same launch if there are no groups, else by the flag
/// on which the ranks agreed. Every rank must call this.
///
/// # Errors
/// As [`agreed`]; `Invalid` for a gradient on another device than the scale's.
pub(crate) fn unscale(
    scale: &Scale,
    by: Growth,
    groups: &[Communicator],
    grads: Vec<RocmTensor>,
) -> Result<(Vec<RocmTensor>, RocmTensor), RocmError> {
    if groups.is_empty() {
        return scale.unscale_and_update(grads, by);
    }
    let (grads, flag) = scale.unscale(grads)?;
    let flag = agreed(groups, vec![flag])?.pop().expect("the flag of this rank, or of all");
    scale.update(&flag, by)?;
    Ok((grads, flag))
}

/// Refuses a module whose layers are divided among the ranks that would mix them: each has another
/// part, of the same shape.
pub(crate) fn refuse_own(
    op: &'static str,
    ranks: &Communicator,
    groups: &[Communicator],
) -> Result<(), RocmError> {
    if ranks.size() == 1 || !groups.iter().any(|group| group.is(ranks)) {
        return Ok(());
    }
    Err(RocmError::Invalid {
        op,
        expected: "a group of ranks that hold the same part of the divided layers".into(),
        found: format!(
            "the group that divides the layers (rank {} of {}): make a `DataParallel` for each part",
            ranks.rank(),
            ranks.size()
        ),
    })
}

/// Refuses what a rank would compute from its own part of divided parameters alone.
pub(crate) fn refuse_divided(op: &'static str, what: &str, groups: &[Communicator]) -> Result<(), RocmError> {
    match groups.iter().any(|ranks| ranks.size() > 1) {
        true => Err(RocmError::Unsupported { op, dtype: None, what: Some(what.into()) }),
        false => Ok(()),
    }
}
