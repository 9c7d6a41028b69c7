//! Tensors of a file, with checks of shape and type.

use burn_backend::DType;
use burn_rocm::RocmError;
use burn_rocm::fused::GroupScales;

/// A tensor of a file: little-endian elements in row-major order.
#[derive(Clone, Copy, Debug)]
pub struct RawTensor<'a> {
    /// Its name, for errors.
    pub name: &'a str,
    /// The elements' bytes.
    pub bytes: &'a [u8],
    /// Its shape.
    pub shape: &'a [usize],
    /// The elements' type.
    pub dtype: DType,
}

/// An `Invalid` that names the tensor.
pub(super) fn invalid<T>(
    op: &'static str,
    expected: impl Into<String>,
    found: impl Into<String>,
) -> Result<T, RocmError> {
    Err(RocmError::Invalid { op, expected: expected.into(), found: found.into() })
}

impl RawTensor<'_> {
    fn wrong<T>(&self, op: &'static str, expected: impl std::fmt::Display) -> Result<T, RocmError> {
        let Self { name, bytes, shape, dtype } = self;
        let found = format!("{} {shape:?} with {} bytes", dtype.name(), bytes.len());
        invalid(op, format!("`{name}`: {expected}"), found)
    }

    /// Checks that the tensor has two axes, and returns them.
    pub(super) fn matrix(&self, op: &'static str) -> Result<[usize; 2], RocmError> {
        match *self.shape {
            [rows, columns] if rows > 0 && columns > 0 => Ok([rows, columns]),
            _ => self.wrong(op, "a matrix"),
        }
    }

    /// Checks shape, type and the number of bytes.
    fn check(&self, op: &'static str, shape: &[usize], types: &[DType]) -> Result<(), RocmError> {
        let bytes = shape.iter().try_fold(self.dtype.size(), |bytes, &axis| bytes.checked_mul(axis));
        if self.shape == shape && types.contains(&self.dtype) && bytes == Some(self.bytes.len()) {
            return Ok(());
        }
        let names: Vec<_> = types.iter().map(|dtype| dtype.name()).collect();
        self.wrong(op, format!("{} {shape:?}", names.join(" or ")))
    }

    /// 32-bit words of a shape.
    pub(super) fn words(&self, op: &'static str, shape: &[usize]) -> Result<Vec<u32>, RocmError> {
        self.check(op, shape, &[DType::I32, DType::U32])?;
        Ok(self.bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    /// Bytes of a shape.
    pub(super) fn bytes(&self, op: &'static str, shape: &[usize]) -> Result<&[u8], RocmError> {
        self.check(op, shape, &[DType::I8, DType::U8])?;
        Ok(self.bytes)
    }

    /// Scales of a shape, in f16, bf16 or f32. If `turned`, they are transposed.
    pub(super) fn scales(
        &self,
        op: &'static str,
        shape: [usize; 2],
        turned: bool,
    ) -> Result<GroupScales, RocmError> {
        self.check(op, &shape, &[DType::F16, DType::BF16, DType::F32])?;
        let halves = || {
            let all: Vec<u16> =
                self.bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
            if turned { transposed(&all, shape) } else { all }
        };
        Ok(match self.dtype {
            DType::F16 => GroupScales::F16(halves()),
            DType::BF16 => GroupScales::BF16(halves()),
            _ => {
                let words = self.bytes.chunks_exact(4);
                let all: Vec<f32> = words.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
                GroupScales::F32(if turned { transposed(&all, shape) } else { all })
            }
        })
    }
}

/// The transposed matrix.
pub(super) fn transposed<T: Copy>(all: &[T], [rows, columns]: [usize; 2]) -> Vec<T> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| all[row * columns + column])).collect()
}

/// The order of inputs by their groups, for groups of `group` inputs; `None` if they are in order.
pub(super) fn order_of(
    op: &'static str,
    groups: &RawTensor<'_>,
    inputs: usize,
    group: Option<usize>,
) -> Result<Option<Vec<u32>>, RocmError> {
    let group = group.unwrap_or(inputs);
    let of = groups.words(op, &[inputs])?;
    // -1 stands for "in order".
    if of.iter().all(|&of| of == u32::MAX) {
        return Ok(None);
    }
    let mut order: Vec<u32> = (0..inputs as u32).collect();
    order.sort_by_key(|&input| of[input as usize]);
    if let Some(place) = (0..inputs).find(|&place| of[order[place] as usize] as usize != place / group) {
        let found = format!("group {} at place {place}", of[order[place] as usize] as i32);
        return invalid(op, format!("`{}`: groups of {group} inputs each", groups.name), found);
    }
    let sorted = order.iter().enumerate().all(|(place, &input)| place == input as usize);
    Ok(if sorted { None } else { Some(order) })
}
