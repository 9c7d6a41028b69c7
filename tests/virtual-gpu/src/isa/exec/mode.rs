//! The MODE register's rules for floating-point results.
//!
//! Bodies are generic over [`Mode`]. The two settings that compilers and libraries use have their
//! own types, so that their rules are constants; all other settings go through [`Dynamic`].

/// Rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    NearestEven,
    Up,
    Down,
    Zero,
}

/// The rules for one width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) round: Round,
    pub(crate) flush_in: bool,
    pub(crate) flush_out: bool,
}

impl Rules {
    const KEEP: Self = Self { round: Round::NearestEven, flush_in: false, flush_out: false };
    const FLUSH: Self = Self { round: Round::NearestEven, flush_in: true, flush_out: true };

    fn new(round: u32, denormal: u32) -> Self {
        let round = [Round::NearestEven, Round::Up, Round::Down, Round::Zero][round as usize & 3];
        Self { round, flush_in: denormal & 1 == 0, flush_out: denormal & 2 == 0 }
    }
}

/// A setting of MODE.
pub(crate) trait Mode: Copy {
    /// The rules for 32-bit floats.
    fn single(self) -> Rules;
    /// The rules for 16-bit and 64-bit floats.
    fn wide(self) -> Rules;
    /// Whether signalling NaNs become quiet in minima and maxima.
    fn ieee(self) -> bool;
}

/// Round to nearest, keep denormals: what HIP's compiler sets.
#[derive(Clone, Copy)]
pub(crate) struct Keep {
    ieee: bool,
}

impl Mode for Keep {
    #[inline(always)]
    fn single(self) -> Rules {
        Rules::KEEP
    }
    #[inline(always)]
    fn wide(self) -> Rules {
        Rules::KEEP
    }
    #[inline(always)]
    fn ieee(self) -> bool {
        self.ieee
    }
}

/// As [`Keep`], but 32-bit denormals are 0. This is the assembler's default, and thus the setting
/// of rocBLAS's assembly kernels.
#[derive(Clone, Copy)]
pub(crate) struct Flush32 {
    ieee: bool,
}

impl Mode for Flush32 {
    #[inline(always)]
    fn single(self) -> Rules {
        Rules::FLUSH
    }
    #[inline(always)]
    fn wide(self) -> Rules {
        Rules::KEEP
    }
    #[inline(always)]
    fn ieee(self) -> bool {
        self.ieee
    }
}

/// Any setting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dynamic {
    single: Rules,
    wide: Rules,
    ieee: bool,
}

impl Mode for Dynamic {
    fn single(self) -> Rules {
        self.single
    }
    fn wide(self) -> Rules {
        self.wide
    }
    fn ieee(self) -> bool {
        self.ieee
    }
}

/// Which type stands for the current setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Keep,
    Flush32,
    Other,
}

/// MODE's floating-point fields, decoded when MODE is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FloatMode {
    pub(crate) class: Class,
    pub(crate) dynamic: Dynamic,
    pub(crate) dx10_clamp: bool,
}

impl FloatMode {
    pub(crate) fn new(mode: u32) -> Self {
        let dynamic = Dynamic {
            single: Rules::new(mode, mode >> 4),
            wide: Rules::new(mode >> 2, mode >> 6),
            ieee: mode >> 9 & 1 != 0,
        };
        let class = match (dynamic.single, dynamic.wide) {
            (Rules::KEEP, Rules::KEEP) => Class::Keep,
            (Rules::FLUSH, Rules::KEEP) => Class::Flush32,
            _ => Class::Other,
        };
        Self { class, dynamic, dx10_clamp: mode >> 8 & 1 != 0 }
    }

    pub(crate) fn keep(&self) -> Keep {
        Keep { ieee: self.dynamic.ieee }
    }

    pub(crate) fn flush32(&self) -> Flush32 {
        Flush32 { ieee: self.dynamic.ieee }
    }

    /// The factor of an output modifier (`mul:2`, `mul:4`, `div:2`). The hardware ignores it in IEEE mode and where
    /// output denormals are kept.
    pub(crate) fn scale(&self, omod: u8, single: bool) -> f32 {
        let rules = if single { self.dynamic.single } else { self.dynamic.wide };
        if self.dynamic.ieee || !rules.flush_out {
            return 1.0;
        }
        [1.0, 2.0, 4.0, 0.5][omod as usize & 3]
    }
}
