//! Names of kernel instantiations.

use crate::DType;
use crate::table::{Family, Functor, Param, Rule, Template};
use core::fmt;
use core::hash::{Hash, Hasher};

/// One template argument of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arg {
    /// An element type.
    Type(DType),
    /// A functor.
    Functor(Functor),
    /// An integer.
    Int(i32),
}

impl fmt::Display for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type(dtype) => dtype.fmt(f),
            Self::Functor(functor) => functor.fmt(f),
            Self::Int(value) => value.fmt(f),
        }
    }
}

/// The most template arguments that a kernel may have.
pub const MAX_ARGS: usize = 4;

/// A kernel instantiation: a template and its arguments. It needs no allocation, because it is the
/// key of a look-up on the hot path.
///
/// ```
/// use hip_kernels::{DType, Functor, Template};
/// let name = Template::binary_contiguous.functor(Functor::Add).ty(DType::F32);
/// assert_eq!(name.to_string(), "binary_contiguous<Add, f32>");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelName {
    template: Template,
    args: [Option<Arg>; MAX_ARGS],
}

impl Template {
    /// The name without arguments. They can be added, unless the template has none.
    pub const fn name(self) -> KernelName {
        KernelName { template: self, args: [None; MAX_ARGS] }
    }

    /// The name with an element type as its first argument.
    #[inline]
    pub const fn ty(self, dtype: DType) -> KernelName {
        self.name().ty(dtype)
    }

    /// The name with a functor as its first argument.
    #[inline]
    pub const fn functor(self, functor: Functor) -> KernelName {
        self.name().functor(functor)
    }

    /// The name with an integer as its first argument.
    #[inline]
    pub const fn int(self, value: i32) -> KernelName {
        self.name().int(value)
    }
}

impl KernelName {
    /// Adds an element type.
    #[inline]
    pub const fn ty(self, dtype: DType) -> Self {
        self.arg(Arg::Type(dtype))
    }

    /// Adds a functor.
    #[inline]
    pub const fn functor(self, functor: Functor) -> Self {
        self.arg(Arg::Functor(functor))
    }

    /// Adds an integer.
    #[inline]
    pub const fn int(self, value: i32) -> Self {
        self.arg(Arg::Int(value))
    }

    /// Adds an argument.
    ///
    /// # Panics
    /// If the name already has [`MAX_ARGS`] arguments. No kernel has more.
    #[inline]
    pub const fn arg(mut self, arg: Arg) -> Self {
        let mut at = 0;
        while at < MAX_ARGS {
            if self.args[at].is_none() {
                self.args[at] = Some(arg);
                return self;
            }
            at += 1;
        }
        panic!("a kernel has at most MAX_ARGS template arguments")
    }

    /// The template.
    pub const fn template(&self) -> Template {
        self.template
    }

    /// The template's arguments, in order.
    #[inline]
    pub fn args(&self) -> impl Iterator<Item = Arg> + '_ {
        self.args.iter().copied().flatten()
    }
}

/// Hashes one word per argument, at half the cost of the derived implementation: every launch looks
/// a name up.
impl Hash for KernelName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.template as usize);
        for arg in self.args() {
            state.write_usize(match arg {
                Arg::Type(dtype) => dtype as usize,
                Arg::Functor(functor) => functor as usize,
                Arg::Int(value) => value as usize,
            });
        }
    }
}

/// The C++ name expression for hipRTC.
impl fmt::Display for KernelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.template.fmt(f)?;
        for (i, arg) in self.args().enumerate() {
            write!(f, "{}{arg}", if i == 0 { "<" } else { ", " })?;
        }
        if self.args[0].is_some() { f.write_str(">") } else { Ok(()) }
    }
}

impl Param {
    fn len(&self) -> usize {
        match self {
            Self::Types(x) => x.len(),
            Self::Pairs(x) => x.len(),
            Self::Functors(x) => x.len(),
            Self::Ints(x) => x.len(),
        }
    }

    /// The name with the value at `index` as its next argument.
    fn add(&self, name: KernelName, index: usize) -> KernelName {
        match self {
            Self::Types(x) => name.ty(x[index]),
            Self::Pairs(x) => name.ty(x[index][0]).ty(x[index][1]),
            Self::Functors(x) => name.functor(x[index]),
            Self::Ints(x) => name.int(x[index]),
        }
    }
}

impl Rule {
    /// All instantiations.
    pub fn instantiations(&self) -> impl Iterator<Item = KernelName> + '_ {
        let count = self.params.iter().map(Param::len).product::<usize>();
        (0..count).map(|mut index| {
            self.params.iter().fold(self.template.name(), |name, param| {
                let at = index % param.len();
                index /= param.len();
                param.add(name, at)
            })
        })
    }

    fn contains(&self, name: &KernelName) -> bool {
        self.template == name.template() && self.instantiations().any(|one| one == *name)
    }
}

impl Family {
    /// All instantiations of the family, each once.
    pub fn instantiations(&self) -> impl Iterator<Item = KernelName> + '_ {
        self.rules.iter().flat_map(Rule::instantiations)
    }

    /// Whether the family lists this instantiation.
    pub fn contains(&self, name: &KernelName) -> bool {
        self.rules.iter().any(|rule| rule.contains(name))
    }
}
