//! Names of ops, kernels, regions and shapes as numbers, so that a piece of work is small and is
//! compared fast.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use foldhash::fast::FixedState;

/// A name. `Text(0)` is the empty one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Text(u32);

impl Text {
    pub(crate) const EMPTY: Self = Self(0);
}

/// The most names, and the most lists of shapes. A program whose shapes never repeat would fill
/// memory otherwise. What exceeds the limit shares one name.
const MOST: usize = 1 << 16;

/// The shared name of those beyond [`MOST`].
const OTHERS: &str = "others";

struct Names {
    texts: Vec<Arc<str>>,
    by_text: HashMap<Arc<str>, u32, FixedState>,
    /// For each list of shapes, for each tensor its rank and its sizes.
    shapes: Vec<Arc<[usize]>>,
    by_shapes: HashMap<Arc<[usize]>, u32, FixedState>,
}

static NAMES: LazyLock<Mutex<Names>> = LazyLock::new(|| {
    let mut names = Names {
        texts: Vec::new(),
        by_text: HashMap::default(),
        shapes: vec![Arc::default()],
        by_shapes: HashMap::default(),
    };
    names.text("");
    Mutex::new(names)
});

fn all() -> MutexGuard<'static, Names> {
    // Every statement that changes the lists leaves them whole.
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Names {
    fn text(&mut self, text: &str) -> Text {
        if let Some(&known) = self.by_text.get(text) {
            return Text(known);
        }
        let text: Arc<str> = if self.texts.len() < MOST { text.into() } else { OTHERS.into() };
        let next = self.texts.len() as u32;
        let number = *self.by_text.entry(text.clone()).or_insert(next);
        if number == next {
            self.texts.push(text);
        }
        Text(number)
    }
}

/// The number of a name.
pub(crate) fn text(text: &str) -> Text {
    if text.is_empty() { Text::EMPTY } else { all().text(text) }
}

thread_local! {
    /// The numbers of names that the program's code has, by address and length, as far as no other
    /// has the same place.
    static FIXED: [Cell<(usize, usize, Text)>; FIXED_PLACES] =
        const { [const { Cell::new((0, 0, Text::EMPTY)) }; FIXED_PLACES] };
}

/// More than a training step has ops of different names.
const FIXED_PLACES: usize = 256;

/// As [`text`], without a lock for a name that the thread has asked for lately.
pub(crate) fn fixed(name: &'static str) -> Text {
    let (address, len) = (name.as_ptr() as usize, name.len());
    // Fibonacci hashing: the highest bits of the product depend on all bits of the address.
    let place = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    FIXED.with(|fixed| {
        let found = &fixed[place as usize % FIXED_PLACES];
        match found.get() {
            (a, l, number) if (a, l) == (address, len) => number,
            _ => {
                let number = text(name);
                found.set((address, len, number));
                number
            }
        }
    })
}

/// The name with this number.
pub(crate) fn string(text: Text) -> Arc<str> {
    all().texts[text.0 as usize].clone()
}

/// The name of a launch that computes these ops: each once, in the order of their first.
pub(crate) fn joined(ops: impl Iterator<Item = Text>) -> Text {
    let mut once: Vec<Text> = Vec::new();
    for op in ops {
        if !once.contains(&op) {
            once.push(op);
        }
    }
    match once[..] {
        [] => Text::EMPTY,
        [one] => one,
        _ => {
            let mut names = all();
            let joined = once.iter().map(|op| &*names.texts[op.0 as usize]).collect::<Vec<_>>().join(" + ");
            names.text(&joined)
        }
    }
}

/// The number of a list of shapes; 0 for no shapes, and for those beyond the limit.
pub(crate) fn shapes(shapes: &[usize]) -> u32 {
    if shapes.is_empty() {
        return 0;
    }
    let mut names = all();
    if let Some(&known) = names.by_shapes.get(shapes) {
        return known;
    }
    if names.shapes.len() >= MOST {
        return 0;
    }
    let (shapes, number) = (Arc::<[usize]>::from(shapes), names.shapes.len() as u32);
    names.by_shapes.insert(shapes.clone(), number);
    names.shapes.push(shapes);
    number
}

/// The shapes with this number, as text: `[2, 3] [3, 4]`.
pub(crate) fn shapes_string(number: u32) -> String {
    let shapes = all().shapes[number as usize].clone();
    shown(&shapes)
}

/// A list of shapes, for each tensor its rank and its sizes, as text.
pub(crate) fn shown(shapes: &[usize]) -> String {
    let (mut rest, mut text) = (shapes, String::new());
    while let Some((&rank, tail)) = rest.split_first() {
        let (dims, tail) = tail.split_at(rank.min(tail.len()));
        let space = if text.is_empty() { "" } else { " " };
        // Writing to a string can't fail.
        let _ = write!(text, "{space}{dims:?}");
        rest = tail;
    }
    text
}

/// The regions that a thread has entered and not left.
struct Entered {
    /// How many the thread has entered so far, which numbers them.
    begun: u64,
    /// Numbers and paths, outermost first.
    regions: Vec<(u64, Text)>,
}

thread_local! {
    static ENTERED: RefCell<Entered> = const { RefCell::new(Entered { begun: 0, regions: Vec::new() }) };
    /// The path of the regions that the thread is in. A plain `Cell` without a destructor, because
    /// work may still be enqueued while the thread ends.
    static REGION: Cell<Text> = const { Cell::new(Text::EMPTY) };
}

/// The path of the regions that the calling thread is in, such as `train/forward`.
pub(crate) fn region() -> Text {
    REGION.get()
}

/// Enters a region inside the current one. Returns its path, and a number for [`leave`]; `None` if
/// the thread is ending.
pub(crate) fn enter(name: &str) -> Option<(u64, Text)> {
    let mut names = all();
    let inside = match REGION.get() {
        Text::EMPTY => names.text(name),
        outer => {
            let path = format!("{}/{name}", names.texts[outer.0 as usize]);
            names.text(&path)
        }
    };
    drop(names);
    // It fails only while the thread ends.
    let entered = ENTERED.try_with(|entered| {
        let Entered { begun, regions } = &mut *entered.borrow_mut();
        *begun += 1;
        regions.push((*begun, inside));
        *begun
    });
    let number = entered.ok()?;
    REGION.set(inside);
    Some((number, inside))
}

/// Leaves a region. The thread is then in the one that it entered last, of those that it has not
/// left.
pub(crate) fn leave(number: u64) {
    let _ = ENTERED.try_with(|entered| {
        let regions = &mut entered.borrow_mut().regions;
        regions.retain(|&(other, _)| other != number);
        REGION.set(regions.last().map_or(Text::EMPTY, |&(_, path)| path));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_number() {
        let [a, b] = ["names::a", "names::b"].map(text);
        assert_eq!((text("names::a"), text("")), (a, Text::EMPTY));
        assert_ne!(a, b);
        assert_eq!(&*string(b), "names::b");
        assert_eq!(&*string(joined([a, b, a].into_iter())), "names::a + names::b");
        assert_eq!(joined([a, a].into_iter()), a);
        for name in ["names::a", "", "names::b", "names::a"] {
            assert_eq!(fixed(name), text(name));
        }
        assert_eq!(fixed(&"names::a"[..7]), text("names::"), "the same address with another length");
    }

    #[test]
    fn regions_are_paths_and_end_in_any_order() {
        let (outer, _) = enter("names::outer").unwrap();
        let (inner, path) = enter("inner").unwrap();
        assert_eq!((region(), &*string(path)), (path, "names::outer/inner"));
        leave(outer);
        assert_eq!(region(), path);
        leave(inner);
        assert_eq!(region(), Text::EMPTY);
        let (again, path) = enter("names::again").unwrap();
        assert_eq!(&*string(path), "names::again");
        leave(again);
    }

    #[test]
    fn shapes_are_shown_as_lists() {
        let number = shapes(&[2, 3, 4, 0, 1, 7]);
        assert_eq!(shapes(&[2, 3, 4, 0, 1, 7]), number);
        assert_eq!(shapes_string(number), "[3, 4] [] [7]");
        assert_eq!((shapes(&[]), shapes_string(0)), (0, String::new()));
    }
}
