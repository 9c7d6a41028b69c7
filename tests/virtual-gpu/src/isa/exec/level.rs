//! Instruction set levels of the host: each body is compiled once per level.

use std::fmt;
use std::sync::OnceLock;

use crate::isa::inst::{Instruction, Opcode};
use crate::isa::state::{Machine, Step};

/// A compiled body.
///
/// # Safety
/// The host must have the level that the handler was compiled for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handler(pub(crate) unsafe fn(&mut Machine<'_>, &Inst) -> Step);

/// A decoded instruction.
pub(crate) type Inst = Instruction<Handler, Exec>;

/// An opcode with its semantics.
pub(crate) type Op = Opcode<Exec>;

/// The semantics of an instruction. `run` is `#[inline(always)]`, so that it takes on the level of its caller.
pub(crate) trait Body {
    fn run(m: &mut Machine<'_>, i: &Inst) -> Step;
}

/// A body at each level.
#[derive(Clone, Copy)]
pub(crate) struct Exec {
    portable: Handler,
    #[cfg(target_arch = "x86_64")]
    avx2: Handler,
    #[cfg(target_arch = "x86_64")]
    avx512: Handler,
}

impl fmt::Debug for Exec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exec")
    }
}

unsafe fn portable<B: Body>(m: &mut Machine<'_>, i: &Inst) -> Step {
    B::run(m, i)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt,f16c")]
unsafe fn avx2<B: Body>(m: &mut Machine<'_>, i: &Inst) -> Step {
    B::run(m, i)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn avx512<B: Body>(m: &mut Machine<'_>, i: &Inst) -> Step {
    B::run(m, i)
}

impl Exec {
    /// A body over lanes, compiled at every level.
    pub(crate) const fn lanes<B: Body>() -> Self {
        Self {
            portable: Handler(portable::<B>),
            #[cfg(target_arch = "x86_64")]
            avx2: Handler(avx2::<B>),
            #[cfg(target_arch = "x86_64")]
            avx512: Handler(avx512::<B>),
        }
    }

    /// A body that gains nothing from wide vectors.
    pub(crate) const fn scalar<B: Body>() -> Self {
        Self {
            portable: Handler(portable::<B>),
            #[cfg(target_arch = "x86_64")]
            avx2: Handler(portable::<B>),
            #[cfg(target_arch = "x86_64")]
            avx512: Handler(portable::<B>),
        }
    }

    /// The handler for this host.
    pub(crate) fn pick(&self) -> Handler {
        match Level::host() {
            Level::Portable => self.portable,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => self.avx2,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => self.avx512,
        }
    }
}

/// What the host can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The highest level of this host that is not above `VIRTUAL_GPU_LEVEL`.
    pub(crate) fn host() -> Self {
        static LEVEL: OnceLock<Level> = OnceLock::new();
        *LEVEL.get_or_init(|| {
            let wish = std::env::var("VIRTUAL_GPU_LEVEL").unwrap_or_default();
            Self::detect(&wish)
        })
    }

    /// As `VIRTUAL_GPU_LEVEL` spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn detect(wish: &str) -> Self {
        macro_rules! has {
            ($($feature:tt)*) => { $(std::arch::is_x86_feature_detected!($feature))&&* };
        }
        if wish == "portable" || !has!("avx2" "fma" "bmi1" "bmi2" "lzcnt" "popcnt" "f16c") {
            Self::Portable
        } else if wish == "avx2" || !has!("avx512f" "avx512bw" "avx512dq" "avx512vl") {
            Self::Avx2
        } else {
            Self::Avx512
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn detect(_: &str) -> Self {
        Self::Portable
    }
}
