//! The instruction set: each group of instructions against independent arithmetic, and the decode tables against LLVM.

#![allow(clippy::needless_range_loop, reason = "a lane's number indexes several registers at once")]
#![allow(
    clippy::neg_cmp_op_on_partial_ord,
    clippy::double_comparisons,
    clippy::nonminimal_bool,
    reason = "comparisons with NaN are spelled as the instructions are"
)]

#[path = "isa/harness.rs"]
mod harness;
#[path = "isa/llvm.rs"]
mod llvm;

#[path = "isa/checker.rs"]
mod checker;
#[path = "isa/counters.rs"]
mod counters;
#[path = "isa/division.rs"]
mod division;
#[path = "isa/double.rs"]
mod double;
#[path = "isa/float.rs"]
mod float;
#[path = "isa/fuzz.rs"]
mod fuzz;
#[path = "isa/halves.rs"]
mod halves;
#[path = "isa/integer.rs"]
mod integer;
#[path = "isa/lanes.rs"]
mod lanes;
#[path = "isa/lds.rs"]
mod lds;
#[path = "isa/memory.rs"]
mod memory;
#[path = "isa/operands.rs"]
mod operands;
#[path = "isa/random.rs"]
mod random;
#[path = "isa/scalar.rs"]
mod scalar;
#[path = "isa/scalar64.rs"]
mod scalar64;
