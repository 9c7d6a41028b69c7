//! Reads of several tensors: Burn's default, one after the other. The first waits for the device, the others find
//! it done.

use burn_backend::ops::TransactionOps;

use super::{BoolElement, FloatElement, IntElement, Rocm};

impl<F: FloatElement, I: IntElement, B: BoolElement> TransactionOps<Self> for Rocm<F, I, B> {}
