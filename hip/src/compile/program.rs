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
    /// Options for the compiler, after the usual ones. If one of them names files or folders on disk
    /// (`-I`, `-include` and such), each process compiles the kernels anew, because the cache on disk
    /// can't know whether the files have changed.
    pub options: &'a [&'a str],
}

impl Program<'_> {
    /// Whether an option names headers on disk, whose contents no key of the cache covers.
    pub(crate) fn names_files(&self) -> bool {
        // clang's options: -I, -include, -isystem, -iquote, -idirafter, -imacros, --include-directory
        // and so on. NVRTC's: --include-path, --pre-include. The file may be the next word.
        const STARTS: [&str; 4] = ["-I", "-i", "--include", "--pre-include"];
        self.options.iter().any(|option| STARTS.iter().any(|start| option.starts_with(start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_name_files_are_known() {
        let names = |options: &[&str]| Program { name: "", source: "", headers: &[], options }.names_files();
        for option in ["-Ifolder", "-I", "-include", "-isystem", "-iquotefolder", "--include-path=folder"] {
            assert!(names(&["-DA=1", option, "folder"]), "{option}");
        }
        assert!(!names(&[]) && !names(&["-DI=1", "-O3", "-std=c++17", "--offload-arch=gfx1030"]));
    }
}
