//! A pointer that parallel tasks share.

/// A pointer that parallel tasks share. Each task writes its own part.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T>(pub(crate) *mut T);
// SAFETY: the tasks that share it write disjoint parts, as each use says.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}
impl<T> Shared<T> {
    /// The pointer. This is a method, so that closures capture the whole wrapper.
    pub(crate) fn get(&self) -> *mut T {
        self.0
    }
}
