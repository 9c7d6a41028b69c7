//! Names of kernel instantiations.

use crate::DType;
use core::fmt;

/// One template argument of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Arg {
    /// An element type.
    Type(DType),
    /// A functor: a struct of the kernel's source.
    Name(&'static str),
    /// An integer.
    Int(i32),
}

impl fmt::Display for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type(dtype) => f.write_str(dtype.cpp()),
            Self::Name(name) => f.write_str(name),
            Self::Int(value) => write!(f, "{value}"),
        }
    }
}

/// The template arguments that a kernel may have.
pub const MAX_ARGS: usize = 4;

/// A kernel instantiation: a template and its arguments. Made without allocating, so that it can be the key of a
/// look-up on the hot path.
///
/// ```
/// use hip_kernels::{DType, KernelName};
/// let name = KernelName::new("binary_contiguous").name("Add").ty(DType::F32);
/// assert_eq!(name.to_string(), "binary_contiguous<Add, f32>");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KernelName {
    template: &'static str,
    args: [Option<Arg>; MAX_ARGS],
}

impl KernelName {
    /// A kernel template, its arguments still to come.
    pub const fn new(template: &'static str) -> Self {
        Self { template, args: [None; MAX_ARGS] }
    }

    /// Adds an element type.
    pub const fn ty(self, dtype: DType) -> Self {
        self.arg(Arg::Type(dtype))
    }

    /// Adds a functor.
    pub const fn name(self, functor: &'static str) -> Self {
        self.arg(Arg::Name(functor))
    }

    /// Adds an integer.
    pub const fn int(self, value: i32) -> Self {
        self.arg(Arg::Int(value))
    }

    /// Adds an argument.
    ///
    /// # Panics
    /// Past [`MAX_ARGS`] arguments: no kernel has more.
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

    /// The template's name.
    pub const fn template(&self) -> &'static str {
        self.template
    }

    /// The template's arguments, in order.
    pub fn args(&self) -> impl Iterator<Item = Arg> + '_ {
        self.args.iter().copied().flatten()
    }

    /// The C++ name expression, as hipRTC takes it.
    pub fn expression(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for KernelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.template)?;
        for (i, arg) in self.args().enumerate() {
            write!(f, "{}{arg}", if i == 0 { "<" } else { ", " })?;
        }
        if self.args[0].is_some() { f.write_str(">") } else { Ok(()) }
    }
}
