//! Descriptors: what the caller set, and what a provider keeps beside it.

use super::{Outcome, give, status, take};
use core::ops::Deref;
use miopen_sys::*;

/// What a provider keeps beside a descriptor of `V`, for example the descriptor of the library below.
pub trait Own<V>: Sized {
    /// For a descriptor that was not set yet.
    fn new() -> Outcome<Self>;

    /// Takes over what the descriptor is set to; refuses what can't be served.
    fn set(&mut self, values: &V) -> Outcome;

    /// Refuses calls with what can't be served, where [`Own::set`] took it.
    fn check(&self) -> Outcome {
        Ok(())
    }
}

/// Nothing.
impl<V> Own<V> for () {
    fn new() -> Outcome {
        Ok(())
    }

    fn set(&mut self, _: &V) -> Outcome {
        Ok(())
    }
}

/// What a descriptor's pointer points to.
pub struct Described<V, O> {
    values: V,
    /// The provider's.
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

    /// Sets the values with one of them changed.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut V)) -> Outcome
    where
        V: Clone,
    {
        let mut values = self.values.clone();
        change(&mut values);
        self.set(values)
    }
}

/// Makes a descriptor with MIOpen's defaults.
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

/// Destroys what [`create`] made.
///
/// # Safety
/// A non-null `descriptor` came from [`create`] for `V` and `O` and is not used again.
pub(super) unsafe extern "C" fn destroy<V, O, P>(descriptor: *mut P) -> miopenStatus_t {
    // SAFETY: the caller's descriptor.
    status(|| unsafe { take::<Described<V, O>, _>(descriptor) })
}
