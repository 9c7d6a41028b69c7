//! Values that are made at their first use, by code that may fail.

use std::any::Any;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::{Error, Result};

/// Like `OnceLock`, but for code that may fail. `NotAvailable` is kept: a missing library stays
/// missing. After any other error the next call tries again.
pub(crate) struct Once<T> {
    value: OnceLock<Result<T>>,
    making: Mutex<()>,
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self { value: OnceLock::new(), making: Mutex::new(()) }
    }
}

impl<T> Once<T> {
    /// The value. One thread at a time calls `make`, and none calls it again after it succeeded or
    /// returned `NotAvailable`.
    #[inline]
    pub(crate) fn get(&self, make: impl FnOnce() -> Result<T>) -> Result<&T> {
        if let Some(value) = self.value.get() {
            return value.as_ref().map_err(Error::clone);
        }
        let _one_at_a_time = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = self.value.get() {
            return value.as_ref().map_err(Error::clone);
        }
        match make() {
            Err(error) if !matches!(error, Error::NotAvailable { .. }) => Err(error),
            value => self.value.get_or_init(|| value).as_ref().map_err(Error::clone),
        }
    }

    /// The value, if it has been made.
    #[inline]
    pub(crate) fn made(&self) -> Option<&T> {
        self.value.get()?.as_ref().ok()
    }
}

/// Like [`Once`], but for a value of any type. A device keeps its `Blas` and `Dnn` in such values,
/// because its module can't name these types: their modules import it.
#[derive(Default)]
pub(crate) struct OnceAny(Once<Box<dyn Any + Send + Sync>>);

impl OnceAny {
    /// The value. Every call must name the same type.
    #[inline]
    pub(crate) fn get<T: Any + Send + Sync>(&self, make: impl FnOnce() -> Result<T>) -> Result<&T> {
        match self.0.get(|| Ok(Box::new(make()?)))?.downcast_ref() {
            Some(value) => Ok(value),
            None => unreachable!("one function makes the value"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Once;
    use crate::error::Error;

    #[test]
    fn what_is_not_there_is_not_looked_for_again() {
        let once = Once::<i32>::default();
        let missing = || Error::NotAvailable { reason: "none".into(), searched: Vec::new() };
        assert_eq!(once.get(|| Err(missing())), Err(missing()));
        assert_eq!(once.get(|| Ok(1)), Err(missing()));
    }

    #[test]
    fn a_failure_is_not_kept() {
        let once = Once::default();
        assert!(once.get(|| Err(Error::invalid("t", "a", "b"))).is_err());
        assert_eq!(*once.get(|| Ok(1)).unwrap(), 1);
        assert_eq!(*once.get(|| panic!("made twice")).unwrap(), 1);
    }
}
