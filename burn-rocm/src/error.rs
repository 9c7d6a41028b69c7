//! Errors on their way through Burn's op methods, which return no `Result`.

use std::any::Any;
use std::cell::RefCell;
use std::panic::resume_unwind;

use burn_backend::ExecutionError;
use burn_std::DType;
use hip::Error;

use crate::guard;

thread_local! {
    static LAST: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// Returns the typed error of this thread's last op that panicked, or of its last read or sync that
/// failed, and clears it.
///
/// Burn's op methods return no `Result`. An op that fails panics with the error's text before it
/// has changed any tensor. After a `catch_unwind`, this function returns the typed error, and
/// further ops work. Reads and `sync` return Burn's error type, which holds only the text
/// (`into_data` panics with it). This function returns the typed error of these too.
///
/// ```
/// # use burn::tensor::Tensor;
/// use burn_rocm::{Rocm, RocmError, take_last_error};
/// # let device = Default::default();
///
/// let ones = |shape: [usize; 2]| Tensor::<Rocm, 2>::ones(shape, &device);
/// let index = Tensor::from_ints([7], &device);
/// assert!(ones([2, 3]).select(0, index).try_into_data().is_err());
/// assert!(matches!(take_last_error(), Some(RocmError::Invalid { .. })));
/// ```
pub fn take_last_error() -> Option<Error> {
    LAST.try_with(|last| last.borrow_mut().take()).ok().flatten()
}

/// Keeps `error` for [`take_last_error`].
pub(crate) fn keep(error: Error) {
    // Fails only while the thread ends: nobody can ask for the error then.
    let _ = LAST.try_with(|last| *last.borrow_mut() = Some(error));
}

/// Keeps `error` for [`take_last_error`] and panics with its text, as Burn's op methods do.
#[cold]
#[track_caller]
pub fn raise(error: Error) -> ! {
    let text = error.to_string();
    guard::failed(&error);
    keep(error);
    panic!("{text}")
}

/// The error of the op that panicked so. Any other panic goes on.
pub(crate) fn of_panic(panic: Box<dyn Any + Send>) -> Error {
    match take_last_error() {
        Some(error) if says(&*panic, &error) => error,
        other => {
            other.into_iter().for_each(keep);
            resume_unwind(panic)
        }
    }
}

/// Whether an op panicked with this error.
pub(crate) fn says(panic: &(dyn Any + Send), error: &Error) -> bool {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref().copied()).is_some_and(|text: &str| text.contains(&error.to_string()))
}

/// Unwraps an op's result in a trait method.
pub(crate) trait OrRaise<T> {
    /// Returns the value, or passes the error to [`raise`].
    fn or_raise(self) -> T;
}

impl<T> OrRaise<T> for hip::Result<T> {
    #[track_caller]
    fn or_raise(self) -> T {
        match self {
            Ok(value) => value,
            Err(error) => raise(error),
        }
    }
}

/// `Unsupported`: this backend has no implementation of the op for `dtype`.
pub(crate) fn unsupported<T>(op: &'static str, dtype: DType) -> hip::Result<T> {
    Err(Error::Unsupported { op, dtype: Some(dtype.name()), what: None })
}

/// `Unsupported`: this backend's implementation of the op for `dtype` does not take `what`.
pub(crate) fn unsupported_with<T>(op: &'static str, dtype: DType, what: impl Into<String>) -> hip::Result<T> {
    Err(Error::Unsupported { op, dtype: Some(dtype.name()), what: Some(what.into()) })
}

/// `Invalid`: the input is not what the op expects.
pub(crate) fn invalid<T>(
    op: &'static str,
    expected: impl Into<String>,
    found: impl Into<String>,
) -> hip::Result<T> {
    Err(Error::Invalid { op, expected: expected.into(), found: found.into() })
}

/// Converts `error` into Burn's type, for reads and `sync`, and keeps it for [`take_last_error`].
#[cold]
pub(crate) fn execution(error: Error) -> ExecutionError {
    let reason = error.to_string();
    if matches!(error, Error::Capture { .. }) {
        // As in `raise`, because Burn panics with the error next.
        guard::failed(&error);
    }
    keep(error);
    ExecutionError::WithContext { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_survives_the_panic_once() {
        let caught = std::panic::catch_unwind(|| {
            unsupported::<()>("frobnicate", DType::F64).or_raise();
        });
        let payload = caught.unwrap_err();
        let text = payload.downcast_ref::<String>().unwrap();
        assert_eq!(text, "frobnicate does not support f64");
        let error = take_last_error();
        assert!(
            matches!(error, Some(Error::Unsupported { op: "frobnicate", dtype: Some("f64"), what: None })),
            "{error:?}"
        );
        assert!(take_last_error().is_none());
    }

    #[test]
    fn what_a_dtype_does_not_support_is_beside_the_dtype() {
        let error = unsupported_with::<()>("frobnicate", DType::F16, "strides of 7").unwrap_err();
        assert_eq!(error.to_string(), "frobnicate of f16 does not support strides of 7");
        let Error::Unsupported { dtype, what, .. } = error else { panic!("{error:?}") };
        assert_eq!((dtype, what.as_deref()), (Some(DType::F16.name()), Some("strides of 7")));
        let driver = Error::Unsupported { op: "capture", dtype: None, what: Some("this driver".into()) };
        assert_eq!(driver.to_string(), "capture does not support this driver");
    }
}
