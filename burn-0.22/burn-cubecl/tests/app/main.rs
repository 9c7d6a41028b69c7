//! Apps of Burn 0.22 as users write them. Only the manifest names this repository.

#[expect(unreachable_pub, reason = "the file is a module of a library, too")]
#[path = "../../../../tests/src/again.rs"]
mod again;
mod checkpoint;
mod ddp;
mod devices;
mod graph;
mod learner;
mod training;
mod vision;
