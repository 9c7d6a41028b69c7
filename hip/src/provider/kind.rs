//! The kinds of providers and their names.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// An implementation of HIP, hipRTC, rocBLAS and MIOpen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProviderKind {
    /// AMD's own libraries, for AMD GPUs.
    Rocm,
    /// HIP over the CUDA driver, for NVIDIA GPUs.
    Cuda,
    /// HIP on the host's CPU, for machines without a GPU.
    Cpu,
}

impl ProviderKind {
    /// Every kind, in the order in which `auto` tries them.
    pub const ALL: [Self; 3] = [Self::Rocm, Self::Cuda, Self::Cpu];

    /// The name, as `BURN_ROCM_PROVIDER` spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rocm => "rocm",
            Self::Cuda => "cuda",
            Self::Cpu => "cpu",
        }
    }
}

impl fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ProviderKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| Error::config("provider", "one of rocm, cuda, cpu", format!("`{name}`")))
    }
}
