//! How a call's sequences lie in memory: padded to one number of rows, or packed, one after the
//! other along the rows.

use hip::{Fault, Template};

use super::strides;
use crate::arg::Arg;
use crate::error::invalid;
use crate::ops::copy::packed;
use crate::ops::launch::rows;
use crate::tensor::{RocmTensor, one_device};

/// A call's sequences, for the kernels that store no scores.
#[derive(Clone, Debug)]
pub(super) enum Sequences {
    /// Operands `[batch, heads, rows, features]`.
    Padded,
    /// Operands `[1, heads, rows, features]`.
    Packed {
        /// The number of sequences.
        count: usize,
        /// `[2, count + 1]`: the offsets of queries and of keys. The kernels read no row outside of
        /// them, so they must have been checked.
        offsets: RocmTensor,
    },
}

impl Sequences {
    /// Packed sequences with these offsets `[count + 1]` of queries and of keys. A kernel checks
    /// that they ascend from 0 to the numbers of rows, `lengths`. If they don't, no sequence has
    /// rows, and reads of what is computed from the offsets return the fault.
    ///
    /// # Errors
    /// `Invalid` unless both tensors have the same number of 32-bit or 64-bit integers: at least
    /// one, and at least two if there are rows. `Invalid` for 2^31 rows or more.
    pub(super) fn packed(
        op: &'static str,
        like: &RocmTensor,
        [queries, keys]: [&RocmTensor; 2],
        lengths: [usize; 2],
    ) -> hip::Result<Self> {
        one_device(op, &[like, queries, keys])?;
        let (dtype, found) = (queries.dtype_of(), || format!("{:?} and {:?}", queries.dims(), keys.dims()));
        if dtype != keys.dtype_of() || !matches!(queries.kernel_type()?, hip::DType::I32 | hip::DType::I64) {
            let found = format!("{dtype:?} and {:?}", keys.dtype_of());
            return invalid(op, "offsets of one dtype, I32 or I64", found);
        }
        let (&[entries], true) = (queries.dims(), queries.dims() == keys.dims()) else {
            return invalid(op, "offsets [sequences + 1] of queries and of keys", found());
        };
        // Without sequences, there are no rows.
        let least = if lengths == [0, 0] { 1 } else { 2 };
        if entries < least {
            return invalid(op, format!("at least {least} offsets of {lengths:?} rows"), found());
        }
        let count = entries - 1;
        if lengths.iter().any(|&rows| rows > i32::MAX as usize) || count >= i32::MAX as usize {
            let expected = format!("at most {} rows and sequences", i32::MAX);
            return invalid(op, expected, format!("{lengths:?} rows, {count} sequences"));
        }
        let device = like.hip_device();
        let kernel = Template::attention_offsets.ty(queries.kernel_type()?);
        let offsets = RocmTensor::empty(device, [2, entries], burn_std::DType::I32)?;
        let dims = [count, lengths[0], lengths[1]].map(|n| Arg::U64(n as u64));
        let inputs = [packed(queries.clone())?, packed(keys.clone())?];
        let mut grid = device.grid_rows(1, 2 * entries);
        grid.blocks = 1; // the threads of a block share the verdict
        let flag = [Arg::Flag(op, Fault::Offset)];
        rows(op, device, kernel, grid, &dims, &inputs.each_ref(), &flag, &[&offsets])?;
        Ok(Self::Packed { count, offsets })
    }

    pub(super) fn are_packed(&self) -> bool {
        matches!(self, Self::Packed { .. })
    }

    /// The offsets as an operand of the kernels.
    pub(super) fn offsets(&self) -> Option<&RocmTensor> {
        match self {
            Self::Padded => None,
            Self::Packed { offsets, .. } => Some(offsets),
        }
    }

    /// The sizes (batch, heads, queries, keys, features of queries and keys) and the features of values
    /// as an argument of the kernels (`Shape`).
    pub(super) fn shape(&self, sizes: [usize; 5], values: usize, group: usize) -> Arg {
        let [batch, heads, queries, keys, width] = sizes;
        let pairs = match self {
            Self::Padded => batch * heads,
            Self::Packed { count, .. } => *count,
        };
        Arg::I64x7([pairs, heads, queries, keys, width, values, group].map(|n| n as i64))
    }

    /// The strides of an operand (`View`). A packed sequence begins at the row that its offset
    /// names, so the stride of the rows takes the place of the batch axis' stride.
    pub(super) fn strides(&self, tensor: Option<&RocmTensor>) -> Arg {
        match (self, strides(tensor)) {
            (Self::Packed { .. }, Arg::I64x4([_, head, row, column])) => Arg::I64x4([row, head, row, column]),
            (_, strides) => strides,
        }
    }

    /// How many tiles of `tile` rows there are, at most (`PackedPlace` of `attention_sequences.h`).
    pub(super) fn tiles(&self, [batch, heads, rows]: [usize; 3], tile: usize) -> usize {
        match self {
            Self::Padded => batch * heads * rows.div_ceil(tile),
            Self::Packed { count, .. } => heads * (rows / tile + count),
        }
    }
}
