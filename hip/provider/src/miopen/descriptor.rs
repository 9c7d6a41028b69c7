//! Descriptors: the caller's values, and a provider's own part.

use super::{Outcome, give, status, take};
use core::ops::Deref;
use miopen_sys::*;

/// A provider's part of a descriptor with values `V`, such as a descriptor of cuDNN's.
pub trait Own<V>: Sized {
    /// The part of a descriptor that is not set yet.
    fn new() -> Outcome<Self>;

    /// Takes over the descriptor's new values. Refuses values that the provider does not support.
    fn set(&mut self, values: &V) -> Outcome;

    /// Refuses a call with values that [`Own::set`] accepted but the provider does not support.
    fn check(&self) -> Outcome {
        Ok(())
    }
}

/// For a provider that adds nothing to the descriptor.
impl<V> Own<V> for () {
    fn new() -> Outcome {
        Ok(())
    }

    fn set(&mut self, _: &V) -> Outcome {
        Ok(())
    }
}

/// The object behind a descriptor's pointer.
pub struct Described<V, O> {
    values: V,
    /// The provider's part.
    pub own: O,
}

impl<V, O> Deref for Described<V, O> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.values
    }
}

impl<V, O: Own<V>> Described<V, O> {
    pub(super) fn set(&mut self, values: V) -> Outcome {
        self.own.set(&values)?;
        self.values = values;
        Ok(())
    }

    /// Sets the values after `change`.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut V)) -> Outcome
    where
        V: Clone,
    {
        let mut values = self.values.clone();
        change(&mut values);
        self.set(values)
    }
}

/// Creates a descriptor with MIOpen's defaults.
///
/// # Safety
/// A non-null `to` is valid for a write.
pub(super) unsafe extern "C" fn create<V: Default, O: Own<V>, P>(to: *mut *mut P) -> miopenStatus_t {
    status(|| {
        let values = V::default();
        let mut own = O::new()?;
        own.set(&values)?;
        // SAFETY: the caller's out-pointer.
        unsafe { give(to, Described { values, own }) }
    })
}

/// Destroys a descriptor that [`create`] made.
///
/// # Safety
/// A non-null `descriptor` came from [`create`] for `V` and `O` and is not used again.
pub(super) unsafe extern "C" fn destroy<V, O, P>(descriptor: *mut P) -> miopenStatus_t {
    // SAFETY: the caller's descriptor.
    status(|| unsafe { take::<Described<V, O>, _>(descriptor) })
}
