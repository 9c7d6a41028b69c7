//! The environment variables, read once, each with a typed error for a value that makes no sense.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::error::{Error, Result};
use crate::provider::kind::{ProviderKind, parse_choice};

/// What the environment asks for.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// `BURN_ROCM_PROVIDER`; `None` is `auto`.
    pub(crate) provider: Option<ProviderKind>,
    /// `BURN_ROCM_DETERMINISTIC`.
    pub(crate) deterministic: bool,
    /// `BURN_ROCM_TRACE`.
    pub(crate) trace: bool,
    /// `BURN_ROCM_NORM`.
    pub(crate) norm: Route,
    /// `BURN_ROCM_ATTENTION_SCORES`: bytes of one attention's scores.
    pub(crate) attention_scores: usize,
    /// `BURN_ROCM_MEMORY_LIMIT`: bytes that the pool of a device may hold.
    pub(crate) memory_limit: Option<usize>,
    /// Where code objects are kept on disk; `None` where there is no place, or `BURN_ROCM_CACHE=0`.
    pub(crate) cache_dir: Option<PathBuf>,
    /// `BURN_ROCM_CACHE_LIMIT`: bytes on disk.
    pub(crate) cache_limit: u64,
    /// `BURN_ROCM_CONV`.
    pub(crate) conv: Route,
    /// `BURN_ROCM_CONV_FIND`.
    pub(crate) conv_find: FindMode,
    /// `BURN_ROCM_MATMUL`.
    pub(crate) matmul: Route,
    /// `BURN_ROCM_F16_ALTERNATIVE`.
    pub(crate) f16_alternative: F16Alternative,
    /// `BURN_ROCM_LAUNCH_REACH`.
    pub(crate) launch_reach: usize,
    /// `BURN_ROCM_CHAIN`: element-wise ops that are put off and launched together at most; `None` is the device's
    /// own choice.
    pub(crate) chain: Option<usize>,
}

/// Who serves an op that both a library and a kernel of this crate's know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The library wherever it takes the dtype and options, the kernel elsewhere.
    Auto,
    /// The library alone: what it does not take is an error.
    Library,
    /// The kernel alone.
    Own,
}

/// How a convolution's solution is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FindMode {
    /// By MIOpen's database, and by timing where a shape comes again and again.
    Auto,
    /// By MIOpen's database.
    Immediate,
    /// By timing.
    Find,
}

/// Which f16 products and convolutions use the libraries' alternative implementation on gfx90a.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum F16Alternative {
    None,
    Gradients,
    All,
}

/// Bytes of code objects on disk unless told otherwise: some 10,000 kernels of 50 KB.
const CACHE_LIMIT: u64 = 512 << 20;

/// Bytes of an attention's scores that may be kept in memory for its gradient unless told otherwise. On an H200,
/// f32 `[16, 12, 512, 64]` (192 MiB of scores) took 0.96 ms forward and 1.04 backward with them in memory, 1.38 and
/// 3.52 without; at a sequence of 2048 2.0 and 3.1, 4.8 and 12.8.
const ATTENTION_SCORES: usize = 256 << 20;

/// Steps of one chain: `STEPS` of `chain.hip`. Burn's Adam has 13 for each parameter.
pub(crate) const STEPS: usize = 16;

/// Kernels have element counts and offsets in 32 bits.
const LAUNCH_REACH: usize = i32::MAX as usize;

/// The process's settings.
pub(crate) fn settings() -> Result<&'static Settings> {
    static SETTINGS: OnceLock<Result<Settings>> = OnceLock::new();
    SETTINGS.get_or_init(|| read(|name| std::env::var_os(name))).as_ref().map_err(Error::clone)
}

/// Whether `BURN_ROCM_DETERMINISTIC=1` is set: the same seed gives the same bits.
pub fn deterministic() -> bool {
    static VALUE: OnceLock<bool> = OnceLock::new();
    *VALUE.get_or_init(|| settings().is_ok_and(|settings| settings.deterministic))
}

/// `BURN_ROCM_CONV`: who convolves.
///
/// # Errors
/// `Config` for a variable that makes no sense.
pub fn conv_route() -> Result<Route> {
    settings().map(|settings| settings.conv)
}

/// `BURN_ROCM_MATMUL`: who multiplies matrices of floats.
///
/// # Errors
/// `Config` for a variable that makes no sense.
pub fn matmul_route() -> Result<Route> {
    settings().map(|settings| settings.matmul)
}

/// The most elements, and the widest offset, of one launch of a strided kernel: 2^31 - 1, or less where
/// `BURN_ROCM_LAUNCH_REACH` says so.
pub fn launch_reach() -> usize {
    static VALUE: OnceLock<usize> = OnceLock::new();
    *VALUE.get_or_init(|| settings().map_or(LAUNCH_REACH, |settings| settings.launch_reach))
}

/// `BURN_ROCM_ATTENTION_SCORES`: the bytes of one attention's scores up to which they may be kept in memory for the
/// gradient; 256 MiB.
///
/// # Errors
/// `Config` for a variable that makes no sense.
pub fn attention_scores() -> Result<usize> {
    settings().map(|settings| settings.attention_scores)
}

fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Settings> {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // Bytes that are not UTF-8 become the replacement character, which every setting below refuses.
    let set = |name: &str| {
        variable(name).filter(|value| !value.is_empty()).map(|value| value.to_string_lossy().into_owned())
    };
    let provider = match set("BURN_ROCM_PROVIDER") {
        None => None,
        Some(name) => parse_choice(&name)?,
    };
    let cache_dir = if flag("BURN_ROCM_CACHE", set("BURN_ROCM_CACHE"), true)? {
        path("BURN_ROCM_CACHE_DIR")
            // The XDG specification has relative paths ignored.
            .or_else(|| path("XDG_CACHE_HOME").filter(|path| path.is_absolute()).map(under))
            .or_else(|| path("HOME").map(|home| under(home.join(".cache"))))
    } else {
        None
    };
    Ok(Settings {
        provider,
        deterministic: flag("BURN_ROCM_DETERMINISTIC", set("BURN_ROCM_DETERMINISTIC"), false)?,
        trace: flag("BURN_ROCM_TRACE", set("BURN_ROCM_TRACE"), false)?,
        norm: route("BURN_ROCM_NORM", "one of auto, miopen, own", "miopen", set("BURN_ROCM_NORM"))?,
        attention_scores: bytes("BURN_ROCM_ATTENTION_SCORES", set("BURN_ROCM_ATTENTION_SCORES"))?
            .map_or(ATTENTION_SCORES, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
        memory_limit: bytes("BURN_ROCM_MEMORY_LIMIT", set("BURN_ROCM_MEMORY_LIMIT"))?
            .map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
        cache_dir,
        cache_limit: bytes("BURN_ROCM_CACHE_LIMIT", set("BURN_ROCM_CACHE_LIMIT"))?.unwrap_or(CACHE_LIMIT),
        conv: route("BURN_ROCM_CONV", "auto, miopen or own", "miopen", set("BURN_ROCM_CONV"))?,
        conv_find: match set("BURN_ROCM_CONV_FIND").as_deref() {
            None | Some("auto") => FindMode::Auto,
            Some("immediate") => FindMode::Immediate,
            Some("find") => FindMode::Find,
            Some(other) => {
                return Err(Error::config(
                    "BURN_ROCM_CONV_FIND",
                    "auto, immediate or find",
                    format!("`{other}`"),
                ));
            }
        },
        matmul: route("BURN_ROCM_MATMUL", "auto, rocblas or own", "rocblas", set("BURN_ROCM_MATMUL"))?,
        f16_alternative: match set("BURN_ROCM_F16_ALTERNATIVE").as_deref() {
            None | Some("gradients") => F16Alternative::Gradients,
            Some("all") => F16Alternative::All,
            Some("none") => F16Alternative::None,
            Some(other) => {
                let choices = "gradients, all or none";
                return Err(Error::config("BURN_ROCM_F16_ALTERNATIVE", choices, format!("`{other}`")));
            }
        },
        chain: chain(set("BURN_ROCM_CHAIN"))?,
        launch_reach: bytes("BURN_ROCM_LAUNCH_REACH", set("BURN_ROCM_LAUNCH_REACH"))?
            .map_or(LAUNCH_REACH, |reach| (reach as usize).clamp(2, LAUNCH_REACH)),
    })
}

fn under(caches: PathBuf) -> PathBuf {
    caches.join("burn-rocm")
}

fn route(name: &str, choices: &str, library: &str, value: Option<String>) -> Result<Route> {
    match value.as_deref() {
        None | Some("auto") => Ok(Route::Auto),
        Some("own") => Ok(Route::Own),
        Some(other) if other == library => Ok(Route::Library),
        Some(other) => Err(Error::config(name, choices, format!("`{other}`"))),
    }
}

fn flag(name: &str, value: Option<String>, default: bool) -> Result<bool> {
    match value.as_deref() {
        None => Ok(default),
        Some("1" | "true" | "on") => Ok(true),
        Some("0" | "false" | "off") => Ok(false),
        Some(other) => Err(Error::config(name, "0 or 1", format!("`{other}`"))),
    }
}

fn chain(value: Option<String>) -> Result<Option<usize>> {
    match value.as_deref() {
        None | Some("auto") => Ok(None),
        Some(count) => match count.parse() {
            Ok(count) if count <= STEPS => Ok(Some(count)),
            _ => Err(Error::config(
                "BURN_ROCM_CHAIN",
                format!("auto, or ops from 0 to {STEPS}"),
                format!("`{count}`"),
            )),
        },
    }
}

fn bytes(name: &str, value: Option<String>) -> Result<Option<u64>> {
    let Some(value) = value else { return Ok(None) };
    let (digits, shift) = match value.char_indices().last() {
        Some((at, 'k' | 'K')) => (&value[..at], 10),
        Some((at, 'm' | 'M')) => (&value[..at], 20),
        Some((at, 'g' | 'G')) => (&value[..at], 30),
        _ => (value.as_str(), 0),
    };
    match digits.parse::<u64>().ok().and_then(|count| count.checked_mul(1 << shift)) {
        Some(count) => Ok(Some(count)),
        None => Err(Error::config(name, "bytes, such as 1073741824, 1024M or 1G", format!("`{value}`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<Settings> {
        read(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn nothing_set_is_auto_without_limits() {
        let settings = with(&[("HOME", "/home/someone")]).unwrap();
        assert_eq!(settings.provider, None);
        assert!(!settings.deterministic);
        assert_eq!(settings.norm, Route::Auto);
        assert_eq!(settings.memory_limit, None);
        assert_eq!(settings.attention_scores, 256 << 20);
        assert_eq!(settings.chain, None);
        assert_eq!(settings.cache_dir, Some("/home/someone/.cache/burn-rocm".into()));
    }

    #[test]
    fn an_unknown_provider_names_what_there_is() {
        let error = with(&[("BURN_ROCM_PROVIDER", "opencl")]).unwrap_err();
        assert_eq!(error, Error::config("BURN_ROCM_PROVIDER", "one of auto, rocm, cuda, cpu", "`opencl`"),);
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        for (name, value) in [
            ("BURN_ROCM_DETERMINISTIC", "yes please"),
            ("BURN_ROCM_MEMORY_LIMIT", "lots"),
            ("BURN_ROCM_MEMORY_LIMIT", "99999999999G"),
            ("BURN_ROCM_CACHE_LIMIT", "-1"),
            ("BURN_ROCM_ATTENTION_SCORES", "none"),
            ("BURN_ROCM_CACHE", "maybe"),
            ("BURN_ROCM_CONV", "rocblas"),
            ("BURN_ROCM_MATMUL", "miopen"),
            ("BURN_ROCM_F16_ALTERNATIVE", "1"),
            ("BURN_ROCM_CONV_FIND", "fast"),
            ("BURN_ROCM_NORM", "layer"),
            ("BURN_ROCM_CHAIN", "17"),
            ("BURN_ROCM_CHAIN", "on"),
        ] {
            match with(&[(name, value)]).unwrap_err() {
                Error::Config { what, found, .. } => {
                    assert_eq!((what.as_str(), found), (name, format!("`{value}`")));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn values_that_are_not_utf8_are_refused_and_paths_may_be_so() {
        use std::os::unix::ffi::OsStringExt;
        let broken = || OsString::from_vec(b"cp\xff".to_vec());
        for name in ["BURN_ROCM_PROVIDER", "BURN_ROCM_CACHE", "BURN_ROCM_MEMORY_LIMIT", "BURN_ROCM_CHAIN"] {
            match read(|asked| (asked == name).then(broken)) {
                Err(Error::Config { what, found, .. }) => {
                    assert_eq!((what.as_str(), found.as_str()), (name, "`cp\u{fffd}`"));
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        let settings = read(|asked| (asked == "BURN_ROCM_CACHE_DIR").then(broken)).unwrap();
        assert_eq!(settings.cache_dir, Some(broken().into()));
    }

    #[test]
    fn who_convolves_and_how() {
        let settings = with(&[]).unwrap();
        assert_eq!((settings.conv, settings.conv_find), (Route::Auto, FindMode::Auto));
        let settings = with(&[("BURN_ROCM_CONV", "own"), ("BURN_ROCM_CONV_FIND", "find")]).unwrap();
        assert_eq!((settings.conv, settings.conv_find), (Route::Own, FindMode::Find));
        assert_eq!(with(&[("BURN_ROCM_CONV", "miopen")]).unwrap().conv, Route::Library);
    }

    #[test]
    fn who_multiplies_and_by_which_implementation() {
        let settings = with(&[]).unwrap();
        assert_eq!((settings.matmul, settings.f16_alternative), (Route::Auto, F16Alternative::Gradients));
        assert_eq!(with(&[("BURN_ROCM_MATMUL", "own")]).unwrap().matmul, Route::Own);
        assert_eq!(with(&[("BURN_ROCM_MATMUL", "rocblas")]).unwrap().matmul, Route::Library);
        let all = with(&[("BURN_ROCM_F16_ALTERNATIVE", "all")]).unwrap();
        assert_eq!(all.f16_alternative, F16Alternative::All);
    }

    #[test]
    fn limits_take_suffixes_and_the_cache_has_its_order() {
        let settings = with(&[
            ("BURN_ROCM_MEMORY_LIMIT", "3G"),
            ("BURN_ROCM_CACHE_LIMIT", "16m"),
            ("BURN_ROCM_ATTENTION_SCORES", "64k"),
            ("BURN_ROCM_NORM", "miopen"),
            ("XDG_CACHE_HOME", "/var/xdg"),
            ("HOME", "/home/someone"),
        ])
        .unwrap();
        assert_eq!(settings.memory_limit, Some(3 << 30));
        assert_eq!(settings.cache_limit, 16 << 20);
        assert_eq!(settings.attention_scores, 64 << 10);
        assert_eq!(settings.norm, Route::Library);
        assert_eq!(settings.cache_dir, Some("/var/xdg/burn-rocm".into()));
        let settings = with(&[("BURN_ROCM_CACHE_DIR", "/own"), ("XDG_CACHE_HOME", "/var/xdg")]).unwrap();
        assert_eq!(settings.cache_dir, Some("/own".into()));
        let settings = with(&[("XDG_CACHE_HOME", "relative")]).unwrap();
        assert_eq!(settings.cache_dir, None);
        assert_eq!(with(&[("BURN_ROCM_CACHE", "0"), ("HOME", "/h")]).unwrap().cache_dir, None);
    }
}
