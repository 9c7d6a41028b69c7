//! Apps of Burn 0.22, as their users write them: no name of this repository appears but in the manifest.

mod checkpoint;
mod devices;
mod training;
