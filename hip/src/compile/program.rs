//! A program of HIP C++.

/// HIP C++ source that is not one of the built-in families.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    /// The file name that the compiler's messages show.
    pub name: &'a str,
    /// The text. Beside what the compiler brings it may include the built-in headers (`prelude.h`) and `headers`.
    pub source: &'a str,
    /// Names and texts of further headers.
    pub headers: &'a [(&'a str, &'a str)],
    /// Options for the compiler, behind the usual ones.
    pub options: &'a [&'a str],
}
