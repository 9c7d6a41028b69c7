//! What a training step needs memory for.

use std::fmt;

use crate::memory::label::{MemoryLabel, memory_label};

/// What a training step needs memory for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryKind {
    /// The model's parameters, and other tensors that outlive the step.
    Parameters,
    /// Gradients, of parameters and of activations.
    Gradients,
    /// The optimizer's state and its intermediate results.
    Optimizer,
    /// What the forward pass computes.
    Activations,
    /// Memory of a library's call, for intermediate results.
    Workspaces,
}

impl MemoryKind {
    /// All kinds.
    pub const ALL: [Self; 5] =
        [Self::Parameters, Self::Gradients, Self::Optimizer, Self::Activations, Self::Workspaces];

    /// The name: the label by which estimates tell the kind.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Parameters => "parameters",
            Self::Gradients => "gradients",
            Self::Optimizer => "optimizer",
            Self::Activations => "activations",
            Self::Workspaces => "workspaces",
        }
    }

    /// [`memory_label`] with the kind's name.
    pub fn label(self) -> MemoryLabel {
        memory_label(self.name())
    }

    /// The kind that a path of labels names. If it names several, the innermost one counts.
    pub fn of_path(path: &str) -> Option<Self> {
        path.rsplit('/').find_map(|name| Self::ALL.into_iter().find(|kind| kind.name() == name))
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryKind::{self, Optimizer, Workspaces};

    #[test]
    fn the_innermost_name_counts() {
        for (path, kind) in [
            ("optimizer", Some(Optimizer)),
            ("step/optimizer/clip", Some(Optimizer)),
            ("activations/block/workspaces", Some(Workspaces)),
            ("optimizers", None),
            ("(no label)", None),
        ] {
            assert_eq!(MemoryKind::of_path(path), kind, "{path}");
        }
    }
}
