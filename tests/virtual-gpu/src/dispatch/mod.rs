//! Runs the workgroups of a launch over threads.

mod descriptor;
mod engine;
mod geometry;
mod launch;
mod report;
mod workgroup;

pub use descriptor::KernelDescriptor;
pub use engine::{Engine, Statistics};
pub use geometry::{Geometry, LANES};
pub use launch::{Behaviour, Launch};
pub use report::{FaultReport, LaunchError};
