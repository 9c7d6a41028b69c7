//! Named regions of the program.

use std::marker::PhantomData;

use crate::profile::names::{self, Text};
use crate::profile::session;
use crate::ranges;
use crate::spans::{self, Span};
use crate::watch::{PROFILE, RANGES, now, watched};

/// A region of the calling thread that ends when this is dropped; see [`region`].
#[must_use = "the region ends where this is dropped"]
pub struct Region {
    /// Its number, its path, and when it began.
    profiled: Option<((u64, Text), u64)>,
    in_range: bool,
    _span: Span,
    /// It ends on the thread that entered it.
    thread: PhantomData<*const ()>,
}

/// Enters a region: until the result is dropped, profiles count the thread's work under this name,
/// behind the names of the regions that the thread is in already. The profile must run when the
/// region is entered. Other threads that this one starts are not in it. Regions may end in any
/// order: the thread is in the one that it entered last, of those that have not ended.
///
/// ```
/// let step = || {
///     let _step = hip::region("step");
///     {
///         let _forward = hip::region("forward");
///         // work that counts under `step/forward`
///     }
/// };
/// let ((), profile) = hip::profile(step);
/// let paths: Vec<_> = profile.regions().iter().map(|region| &*region.path).collect();
/// assert_eq!(paths, ["step", "step/forward"]);
/// ```
pub fn region(name: &str) -> Region {
    let watched = watched();
    let entered = if watched & PROFILE != 0 { names::enter(name) } else { None };
    let profiled = entered.map(|entered| (entered, now()));
    let in_range = watched & RANGES != 0 && ranges::push(name);
    Region { profiled, in_range, _span: spans::region(name), thread: PhantomData }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.in_range {
            ranges::pop();
        }
        if let Some(((number, path), since)) = self.profiled {
            names::leave(number);
            session::region_ended(path, since);
        }
    }
}
