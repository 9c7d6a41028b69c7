//! Types that the C functions share.

use std::ffi::{CStr, c_char, c_void};

use super::Status;

/// A caller's `void*` for the value of an attribute. The API says for each attribute which type it points to; the
/// caller guarantees that.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Value(*mut c_void);

impl Value {
    /// A pointer to the value, for callers in Rust.
    pub fn new<T>(place: &mut T) -> Self {
        Self(std::ptr::from_mut(place).cast())
    }

    /// Writes the attribute's value.
    pub(super) fn put<T>(self, value: T) -> Status {
        if self.0.is_null() {
            return Status::INVALID_ARGUMENT;
        }
        // SAFETY: the caller guarantees that the pointer is valid for the attribute's type, which `T` is. It need not
        // be aligned.
        unsafe { self.0.cast::<T>().write_unaligned(value) };
        Status::SUCCESS
    }

    /// Writes `length` bytes: the text, then zeros.
    pub(super) fn put_text(self, text: &str, length: usize) -> Status {
        if self.0.is_null() {
            return Status::INVALID_ARGUMENT;
        }
        let kept = text.len().min(length);
        // SAFETY: the caller guarantees `length` bytes, which the API fixes for the attribute or a second attribute
        // tells.
        unsafe {
            self.0.cast::<u8>().write_bytes(0, length);
            self.0.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), kept);
        }
        Status::SUCCESS
    }
}

/// A caller's array, whose length is another argument.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Array<T>(*const T);

impl<T> Array<T> {
    /// No elements.
    pub const EMPTY: Self = Self(std::ptr::null());

    /// The array of a slice, for callers in Rust.
    pub fn new(slice: &[T]) -> Self {
        Self(slice.as_ptr())
    }

    /// Its elements.
    pub(super) fn get<'a>(self, count: usize) -> &'a [T] {
        if self.0.is_null() || count == 0 {
            return &[];
        }
        // SAFETY: the caller guarantees `count` elements, until its call returns. No function keeps the slice.
        unsafe { std::slice::from_raw_parts(self.0, count) }
    }
}

/// A caller's C string.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    /// No string.
    pub const NONE: Self = Self(std::ptr::null());

    /// A string, for callers in Rust.
    pub fn new(text: &CStr) -> Self {
        Self(text.as_ptr())
    }

    /// A copy of it; none if the pointer is null.
    pub(super) fn get(self) -> Option<String> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the caller guarantees a C string, until its call returns.
        Some(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}
