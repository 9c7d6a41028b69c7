//! Where the app called an op: the innermost function on the stack that belongs neither to Burn nor
//! to this project nor to Rust's libraries.

use std::backtrace::Backtrace;

use crate::profile::names::{self, Text};

/// The crates between an app's code and a device. Each of Burn's is listed, because apps, too, have
/// names that begin with `burn_`.
const CRATES: [&str; 45] = [
    "alloc",
    "burn",
    "burn_autodiff",
    "burn_backend",
    "burn_backend_extension",
    "burn_candle",
    "burn_collective",
    "burn_communication",
    "burn_core",
    "burn_cpu",
    "burn_cubecl",
    "burn_cubecl_fusion",
    "burn_cuda",
    "burn_dataset",
    "burn_derive",
    "burn_dispatch",
    "burn_einsum",
    "burn_flex",
    "burn_fusion",
    "burn_ir",
    "burn_linalg",
    "burn_ndarray",
    "burn_nn",
    "burn_optim",
    "burn_pack",
    "burn_remote",
    "burn_rl",
    "burn_rocm",
    "burn_rocm_022",
    "burn_rocm_nn",
    "burn_rocm_nn_022",
    "burn_router",
    "burn_signal",
    "burn_std",
    "burn_store",
    "burn_tch",
    "burn_tensor",
    "burn_train",
    "burn_vision",
    "burn_wgpu",
    "core",
    "cubecl",
    "futures_lite",
    "hip",
    "std",
];

/// The calling thread's call site. Takes some 100 us, most of it to look symbols up.
pub(crate) fn here() -> Text {
    names::text(&of(&Backtrace::force_capture().to_string()))
}

/// The call site in a backtrace as `Backtrace` shows it: the file, its line and the function, or
/// the function alone if the program has no line tables. Empty if there is none.
fn of(backtrace: &str) -> String {
    let mut lines = backtrace.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        // A function that was inlined has no number.
        let symbol = match line.split_once(": ") {
            Some((number, symbol)) if number.bytes().all(|byte| byte.is_ascii_digit()) => symbol,
            _ => line,
        };
        if line.starts_with("at ") || !is_of_app(symbol) {
            continue;
        }
        let place = lines.peek().and_then(|line| line.strip_prefix("at ")).map(place);
        return place.map_or_else(|| symbol.to_owned(), |place| format!("{place} {symbol}"));
    }
    String::new()
}

/// Whether a symbol is a Rust function of a crate that is neither CubeCL's nor in [`CRATES`].
fn is_of_app(symbol: &str) -> bool {
    // `<&mut T as Trait>::function` belongs to the crate of `T`.
    let path = symbol.trim_start_matches(['<', '&', '[', '(', '*']);
    let path =
        ["mut ", "dyn ", "const "].iter().fold(path, |path, word| path.strip_prefix(word).unwrap_or(path));
    path.split_once("::").is_some_and(|(first, _)| {
        // `<T as core::convert::Into<U>>::into`, where `T` has no path, belongs to the trait's crate.
        let first = first.rsplit_once(" as ").map_or(first, |(_, of_trait)| of_trait);
        let is_between = CRATES.contains(&first) || first.starts_with("cubecl_");
        !is_between && !first.starts_with("__rust")
    })
}

/// The folder, file and line of `path/to/folder/file.rs:line:column`.
fn place(text: &str) -> String {
    let file = text.rsplit_once(':').map_or(text, |(file, _)| file);
    let mut parts: Vec<&str> = file.rsplit(['/', '\\']).take(2).collect();
    parts.retain(|part| !matches!(*part, "" | "."));
    parts.reverse();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_app_is_the_first_outside_the_backend() {
        let shown = "   0: std::backtrace::Backtrace::create\n   1: hip::trace::begin\n             at \
                     /home/a/hip/src/trace.rs:1:2\n   2: <burn_tensor::Tensor<B,_> as core::ops::Add>::add\n      \
                     alloc::boxed::call\n   3: app::model::Net<B>::forward\n             at \
                     ./src/model.rs:31:9\n   4: app::main\n";
        assert_eq!(of(shown), "src/model.rs:31 app::model::Net<B>::forward");
        let no_lines = "   0: hip::x::y\n   1: <app::Net as burn_core::Module>::visit\n   2: main\n";
        assert_eq!(of(no_lines), "<app::Net as burn_core::Module>::visit");
        assert_eq!(of("   0: hip::x::y\n   1: main\n   2: __libc_start_main\n"), "");
        assert_eq!(of("disabled backtrace"), "");
    }

    #[test]
    fn burn_and_rust_are_not_the_app() {
        for symbol in [
            "burn_linalg::functions::vector_norm::l2_norm",
            "burn_signal::stft",
            "burn_store::safetensors::store::load",
            "burn_collective::local::all_reduce",
            "burn_communication::websocket::serve",
            "cubecl_common::reader::try_read_sync",
            "cubecl_environment::future::base::block_on",
            "futures_lite::future::block_on::{{closure}}",
            "<T as core::convert::Into<U>>::into",
            "<&mut F as core::future::future::Future>::poll",
            "<[T] as core::slice::Join<V>>::join",
            "<(A,B) as burn_core::Module<C>>::visit",
            "<dyn core::ops::FnOnce<()>+Output = ()>::call_once",
            "main",
        ] {
            assert!(!is_of_app(symbol), "{symbol}");
        }
        for symbol in [
            "burn_yolo::main",
            "burn_rocm_llama::serve::run",
            "<T as app::Layer<B>>::forward",
            "<app::Net<B> as core::convert::Into<U>>::into",
            "<(A,B) as app::Layer>::forward",
        ] {
            assert!(is_of_app(symbol), "{symbol}");
        }
    }

    /// Cargo.lock lists the crates of both versions of Burn, optional ones too.
    #[test]
    fn each_crate_of_burn_is_listed() {
        let lines = include_str!("../../../Cargo.lock").lines();
        let names = lines.filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
        let names = names.map(|name| name.replace('-', "_"));
        let burn: Vec<_> =
            names.filter(|name| name.starts_with("burn") && !name.starts_with("burn_rocm_")).collect();
        assert!(burn.len() > 30, "{burn:?}");
        for name in burn {
            assert!(CRATES.contains(&name.as_str()), "{name}");
        }
    }

    #[test]
    fn a_place_is_a_folder_a_file_and_a_line() {
        let places = ["./src/bin/app.rs:7:1", "C:\\a\\src\\lib.rs:70:12", "./app.rs:7:1"].map(place);
        assert_eq!(places, ["bin/app.rs:7", "src/lib.rs:70", "app.rs:7"]);
    }

    #[test]
    fn a_real_backtrace_has_this_function_outside_the_crates() {
        // Every function of this crate is left out, and those of the test harness are not.
        let site = of(&Backtrace::force_capture().to_string());
        assert!(site.contains("test::"), "{site}");
    }
}
