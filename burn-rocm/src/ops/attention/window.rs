//! Which keys a query sees.

use crate::arg::Arg;
use crate::error::invalid;

/// `before` and `after` of a window without that limit.
const EVERY: [u32; 2] = [1 << 31, (1 << 31) - 1];

/// The keys that a query sees: from `before` keys before its own position to `after` keys behind it.
/// The last query is at the position of the last key. `Window` of `attention_scores.h`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Window {
    before: u32,
    after: u32,
}

impl Window {
    /// With `causal`, the keys at a query's position and before it, of which `window` are seen;
    /// otherwise the keys that are fewer than `window` away.
    ///
    /// # Errors
    /// `Invalid` for a window of 0 keys, and if anything is hidden from sequences of 2^31 or more.
    pub(super) fn new(
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
    pub(super) fn sees_at_most(self, part: usize) -> bool {
        (self.before as usize + self.after as usize) < part
    }

    /// The number of keys at the start that no query sees.
    pub(super) fn unseen(self, queries: usize, keys: usize) -> usize {
        keys.saturating_sub(queries).saturating_sub(self.before as usize)
    }

    pub(super) fn arg(self) -> Arg {
        Arg::U32x2([self.before, self.after])
    }
}
