//! What a broadcast of a module checks and finds, for both versions of Burn.

use burn_rocm::{Communicator, RocmDevice, RocmError};

use super::parallel::all_are;

/// Checks that tensors with these devices are on the device of this rank.
pub(crate) fn are_own(
    op: &'static str,
    devices: impl IntoIterator<Item = RocmDevice>,
    ranks: &Communicator,
) -> Result<(), RocmError> {
    let Some(found) = devices.into_iter().find(|device| *device != ranks.device()) else { return Ok(()) };
    let expected = format!("every tensor of the module on {}, this rank's device", ranks.device());
    let found = format!(
        "a tensor on {found}: move the module there; or, if the module is a clone, it shares running statistics \
         with others: make each thread's module in its thread"
    );
    Err(RocmError::Invalid { op, expected, found })
}

/// This rank's error, or one if another rank has one.
pub(crate) fn agreed(
    op: &'static str,
    own: Result<(), RocmError>,
    ranks: &Communicator,
) -> Result<(), RocmError> {
    let all = all_are(ranks, own.is_ok());
    own?;
    match all? {
        true => Ok(()),
        false => Err(RocmError::Invalid {
            op,
            expected: "a module that no rank refuses".into(),
            found: "an error of another rank".into(),
        }),
    }
}

/// Whether the fields around a tensor hold statistics; the innermost one is last.
#[derive(Default)]
pub(crate) struct Fields(Vec<bool>);

impl Fields {
    pub(crate) fn enter(&mut self, name: &str) {
        self.0.push(["running_mean", "running_var"].contains(&name));
    }

    pub(crate) fn exit(&mut self) {
        self.0.pop();
    }

    pub(crate) fn are_statistics(&self) -> bool {
        self.0.last().is_some_and(|&is| is)
    }
}
