//! Which keys a query sees.

use crate::arg::Arg;
use crate::error::invalid;

/// `before` and `after` of a window without that limit.
const EVERY: [u32; 2] = [1 << 31, (1 << 31) - 1];

/// The keys that a query sees: from `before` keys before its own position to `after` keys behind it.
/// The last query is at the position of the last key. `Window` of `attention_scores.h`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Window {
    before: u32,
    after: u32,
}

impl Window {
    /// With `causal`, the keys at a query's position and before it, of which `window` are seen;
    /// otherwise the keys that are fewer than `window` away.
    ///
    /// # Errors
    /// `Invalid` for a window of 0 keys, and if anything is hidden from sequences of 2^31 or more.
    pub(crate) fn new(
        op: &'static str,
        causal: bool,
        window: Option<usize>,
        [queries, keys]: [usize; 2],
    ) -> hip::Result<Self> {
        if window == Some(0) {
            return invalid(op, "a window of at least 1 key", "0");
        }
        if (causal || window.is_some()) && queries.max(keys) > i32::MAX as usize {
            let expected = format!("sequences of at most {} with causality or a window", i32::MAX);
            return invalid(op, expected, format!("{queries} queries and {keys} keys"));
        }
        let [before, after] = EVERY;
        // A window that reaches beyond either end of the sequence is no limit.
        let within = |length: usize, every: u32| match window {
            Some(window) if window < length => (window - 1) as u32,
            _ => every,
        };
        Ok(Self { before: within(keys, before), after: if causal { 0 } else { within(queries, after) } })
    }

    /// Whether any key may be hidden.
    pub(super) fn hides(self) -> bool {
        [self.before, self.after] != EVERY
    }

    /// Whether a query sees at most `part` of the keys.
    pub(super) fn sees_at_most(self, part: usize, [queries, keys]: [usize; 2]) -> bool {
        // The last query is at the last key. So it has `keys - 1` keys before it, and the first query
        // has at most `queries - 1` behind it.
        let before = (self.before as usize).min(keys.saturating_sub(1));
        let after = (self.after as usize).min(queries.saturating_sub(1));
        before + after < part
    }

    /// The number of keys at the start that no query sees.
    pub(crate) fn unseen(self, queries: usize, keys: usize) -> usize {
        // Sequences without a limit may be longer than the limit that stands for none.
        let limited = self.before != EVERY[0];
        if limited { keys.saturating_sub(queries).saturating_sub(self.before as usize) } else { 0 }
    }

    pub(super) fn arg(self) -> Arg {
        Arg::U32x2([self.before, self.after])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a query sees a key, by the definition.
    fn sees(
        causal: bool,
        window: Option<usize>,
        [query, queries]: [usize; 2],
        [key, keys]: [usize; 2],
    ) -> bool {
        let distance = (query + keys) as i64 - (key + queries) as i64;
        window.is_none_or(|window| distance.unsigned_abs() < window as u64) && (!causal || distance >= 0)
    }

    /// Every short sequence, every window and every part: the most keys that a query sees, and the keys
    /// at the start that no query sees.
    #[test]
    fn what_queries_see() {
        let lengths = (1..9).flat_map(|queries| (1..9).map(move |keys| [queries, keys]));
        for ([queries, keys], causal) in lengths.flat_map(|sizes| [false, true].map(|causal| (sizes, causal)))
        {
            for window in (1..11).map(Some).chain([None]) {
                let seen = |query, key| sees(causal, window, [query, queries], [key, keys]);
                let count = |query| (0..keys).filter(|&key| seen(query, key)).count();
                let most = (0..queries).map(count).max().unwrap();
                let first = (0..keys).position(|key| (0..queries).any(|query| seen(query, key)));
                let found = Window::new("", causal, window, [queries, keys]).unwrap();
                let what = format!("{queries} {keys} {causal} {window:?}");
                for part in 0..keys {
                    assert_eq!(found.sees_at_most(part, [queries, keys]), most <= part, "{what} {part}");
                }
                assert_eq!(found.unseen(queries, keys), first.unwrap(), "{what}");
                assert!(found.hides() || (0..queries).all(|query| count(query) == keys), "{what}");
            }
        }
    }

    /// Without causality and a window, no key of a sequence of any length is cut off.
    #[test]
    fn sequences_of_more_than_32_bits() {
        let keys = 1 << 34;
        let every = Window::new("", false, None, [1, keys]).unwrap();
        assert!(!every.hides() && every.unseen(1, keys) == 0);
        assert!(Window::new("", true, None, [1, keys]).is_err());
        assert!(Window::new("", false, Some(5), [1, keys]).is_err());
    }
}
