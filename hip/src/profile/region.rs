//! Named regions of the program.

use std::marker::PhantomData;

use crate::profile::names::{self, Text};
use crate::profile::session;
use crate::ranges;
use crate::watch::{PROFILE, RANGES, now, watched};

/// A region of the calling thread that ends when this is dropped; see [`region`].
#[must_use = "the region ends where this is dropped"]
pub struct Region {
    /// The path of regions before, and when it began.
    profiled: Option<(Text, u64)>,
    in_range: bool,
    /// It ends on the thread that entered it.
    thread: PhantomData<*const ()>,
}

/// Enters a region: until the result is dropped, profiles count the thread's work under this name,
/// behind the names of the regions that the thread is in already. The profile must run when the
/// region is entered. Other threads that this one starts are not in it.
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
    let profiled = (watched & PROFILE != 0).then(|| (names::enter(name), now()));
    let in_range = watched & RANGES != 0 && ranges::push(name);
    Region { profiled, in_range, thread: PhantomData }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.in_range {
            ranges::pop();
        }
        if let Some((before, since)) = self.profiled {
            session::region_ended(names::leave(before), since);
        }
    }
}
