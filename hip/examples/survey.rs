//! Prints what each provider finds on this machine, without Burn.
//!
//! ```text
//! cargo run -p hip --example survey
//! ```
//!
//! With `--functions` it prints the functions that this crate needs of each of AMD's libraries,
//! from which tests make imitations. With `--cache` it prints whether the cache of compiled kernels
//! is usable. With `--rocblas gfx1100` it prints whether rocBLAS has kernels for this architecture.
//! With `--loaded FILE` it loads this library before it searches, as an app may have done.

use std::ffi::CStr;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("--functions") => functions(),
        Some("--cache") => {
            let cache = hip::code_cache();
            // Looks at the folder.
            cache.clear();
            let why = cache.last_refusal().map_or("usable".to_owned(), |why| why.to_string());
            println!("{}: {why}", cache.directory().map_or("none".into(), |path| path.display().to_string()));
        }
        Some("--rocblas") => {
            let architecture = std::env::args().nth(2).unwrap_or_default();
            let said =
                hip::rocblas_serves(&architecture).map_or_else(|why| why.to_string(), |()| "served".into());
            println!("{architecture}: {said}");
        }
        Some("--loaded") => {
            let file = std::env::args_os().nth(2).unwrap_or_default();
            // SAFETY: whoever names the library wants its initialisers to run.
            let library = unsafe { libloading::Library::new(&file) };
            // It stays loaded until the process ends.
            std::mem::forget(library.expect("the library that --loaded names loads"));
            survey();
        }
        _ => survey(),
    }
}

fn survey() {
    for report in hip::survey() {
        print!("{report}");
    }
    for found in hip::doctor() {
        print!("{found}");
    }
}

fn functions() {
    let libraries: [(&str, &[&CStr]); 4] = [
        ("hip", hip_sys::Hip::REQUIRED),
        ("hiprtc", hip_sys::Hiprtc::REQUIRED),
        ("rocblas", rocblas_sys::Rocblas::REQUIRED),
        ("miopen", miopen_sys::Miopen::REQUIRED),
    ];
    for (library, names) in libraries {
        for name in names {
            println!("{library} {}", name.to_string_lossy());
        }
    }
}
