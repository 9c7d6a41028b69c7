//! The names that `Precision::keep` compares. Both versions of Burn compile this file.

use std::cell::Cell;

thread_local! {
    /// The own name of a layer of this crate, while the layer is visited under the name of Burn's
    /// layer.
    static LAYER: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Visits the fields of a layer that visitors see under the name of Burn's layer. During the visit,
/// [`names`] also returns the layer's own name.
pub(crate) fn visit_layer<T>(name: &'static str, visit: impl FnOnce() -> T) -> T {
    struct Reset(Option<&'static str>);
    impl Drop for Reset {
        fn drop(&mut self) {
            LAYER.set(self.0);
        }
    }
    let _reset = Reset(LAYER.replace(Some(name)));
    visit()
}

/// The names by which `Precision::keep` matches a module.
pub(super) fn names(container: &str) -> impl Iterator<Item = &str> {
    container.rsplit(':').next().into_iter().chain(LAYER.get())
}
