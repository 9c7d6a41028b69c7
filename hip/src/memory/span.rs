//! A checked range of device memory, as library calls take it.

use std::ffi::c_void;

use crate::{Buffer, Error, Result};

/// An address and a length that lie inside one buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) ptr: *mut c_void,
    pub(crate) bytes: usize,
}

impl Span {
    /// The null pointer, for an absent tensor.
    pub(crate) const NULL: Self = Self { ptr: std::ptr::null_mut(), bytes: 0 };

    /// The range of `bytes` bytes that begins at `offset`.
    ///
    /// # Errors
    ///
    /// `Invalid` unless they lie inside the buffer and the buffer is on device `device`.
    pub(crate) fn new(
        op: &'static str,
        device: usize,
        buffer: &Buffer,
        offset: usize,
        bytes: usize,
    ) -> Result<Self> {
        let found = buffer.device().info().index;
        if found != device {
            return Err(Error::invalid(
                op,
                format!("memory of device {device}"),
                format!("memory of device {found}"),
            ));
        }
        match offset.checked_add(bytes) {
            // In bounds, or one past the end if `bytes` is 0.
            Some(end) if end <= buffer.len() => {
                Ok(Self { ptr: buffer.as_ptr().wrapping_byte_add(offset), bytes })
            }
            _ => Err(Error::invalid(
                op,
                format!("{bytes} bytes from byte {offset} on"),
                format!("a buffer of {} bytes", buffer.len()),
            )),
        }
    }

    /// This range. `Invalid` if it overlaps one of the operands.
    pub(crate) fn apart_from(self, op: &'static str, operands: &[Span]) -> Result<Self> {
        for other in operands {
            let (a, b) = (self.ptr as usize, other.ptr as usize);
            if self.bytes > 0 && other.bytes > 0 && a < b + other.bytes && b < a + self.bytes {
                return Err(Error::invalid(
                    op,
                    "a result apart from the operands",
                    "a result that overlaps one",
                ));
            }
        }
        Ok(self)
    }

    /// Checks that results overlap neither what is read nor each other.
    ///
    /// # Errors
    /// `Invalid` if two of them overlap.
    pub(crate) fn all_apart(op: &'static str, results: &[Span], read: &[Span]) -> Result<()> {
        for (at, result) in results.iter().enumerate() {
            result.apart_from(op, read)?.apart_from(op, &results[..at])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Span;

    fn span(at: usize, bytes: usize) -> Span {
        Span { ptr: std::ptr::without_provenance_mut(at), bytes }
    }

    #[test]
    fn overlaps_are_found() {
        for (a, b, apart) in [
            ((16, 8), (24, 8), true),
            ((24, 8), (16, 8), true),
            ((16, 8), (23, 8), false),
            ((16, 8), (16, 8), false),
            ((16, 8), (0, 64), false),
            ((16, 0), (0, 64), true),
            ((16, 8), (20, 0), true),
        ] {
            let (a, b) = (span(a.0, a.1), span(b.0, b.1));
            assert_eq!(a.apart_from("t", &[b]).is_ok(), apart, "{a:?} {b:?}");
            assert_eq!(Span::all_apart("t", &[Span::NULL, a], &[b]).is_ok(), apart, "{a:?} {b:?}");
            assert_eq!(Span::all_apart("t", &[a, Span::NULL, b], &[]).is_ok(), apart, "{a:?} {b:?}");
        }
    }
}
