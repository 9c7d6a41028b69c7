//! Runs the workgroups of a launch over threads.

mod descriptor;
mod engine;
mod geometry;
mod launch;
mod workgroup;

pub use descriptor::KernelDescriptor;
pub use engine::Engine;
pub use geometry::{Geometry, LANES};
pub use launch::{Behaviour, FaultReport, Launch, LaunchError};
