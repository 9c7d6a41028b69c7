//! A program of HIP C++.

/// HIP C++ source of a caller, in addition to the built-in kernel families.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    /// The file name that the compiler's messages show.
    pub name: &'a str,
    /// The source text. It may include the compiler's headers, the built-in ones such as
    /// `prelude.h`, and `headers`.
    pub source: &'a str,
    /// Names and texts of further headers.
    pub headers: &'a [(&'a str, &'a str)],
    /// Options for the compiler, after the usual ones.
    pub options: &'a [&'a str],
}
