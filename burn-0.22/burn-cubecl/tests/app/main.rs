//! Apps of Burn 0.22, as their users write them: no name of this repository appears but in the manifest.

#[expect(unreachable_pub, reason = "the file is a module of a library, too")]
#[path = "../../../../tests/src/again.rs"]
mod again;
mod checkpoint;
mod devices;
mod training;
