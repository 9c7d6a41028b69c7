//! The settings of a process. An app may build and install them as a value; otherwise they are read
//! from the environment once.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::provider::kind::ProviderKind;

/// Which implementation computes an op that both a library and a kernel of this project can
/// compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The library if it supports the dtype and options, else the kernel.
    Auto,
    /// Only the library. An op that it does not support is an error.
    Library,
    /// Only the kernel.
    Own,
}

/// How the backend chooses MIOpen's algorithm for a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindMode {
    /// The first two calls with a shape use MIOpen's database. The third times the candidates and
    /// keeps the fastest, unless [`Config::deterministic`] is set.
    Auto,
    /// From MIOpen's database.
    Immediate,
    /// By timing the candidates at a shape's first use.
    Find,
}

/// Which f16 products and convolutions use the libraries' alternative implementation on gfx90a.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum F16Alternative {
    /// None. Subnormal operands count as 0.
    None,
    /// Those that compute gradients.
    Gradients,
    /// All.
    All,
}

/// `STEPS` of `chain.hip`: the most element-wise ops of one launch. Burn's Adam has 13 for each
/// parameter.
pub(crate) const STEPS: usize = 16;

/// The default of [`launch_reach`]: kernels count elements and offsets in 32 bits.
const LAUNCH_REACH: usize = i32::MAX as usize;

/// One row of the settings' table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// The environment variable.
    pub variable: &'static str,
    /// The name of the method of [`Config`].
    pub method: &'static str,
    /// The values that the variable may have.
    pub values: &'static str,
    /// The value if nobody sets the variable.
    pub default: &'static str,
    /// What the setting decides.
    pub meaning: &'static str,
}

/// Makes [`Config`], [`SETTINGS`] and their documentation from one table.
macro_rules! settings {
    ($(
        $field:ident($argument:ty): $type:ty = $default:expr, $variable:literal, $read:expr;
        $values:literal, $shown:literal, $meaning:literal;
    )*) => {
        /// The settings of a process.
        ///
        /// Each setting has a method and an environment variable. A process that does not call
        /// [`install`](Self::install) takes its settings from the environment, as
        /// [`Config::from_env`] does.
        ///
        /// ```standalone_crate
        /// # use hip as burn_rocm;
        /// use burn_rocm::Config;
        ///
        /// Config::from_env()?.deterministic(true).memory_limit(4 << 30).install()?;
        /// # Ok::<(), burn_rocm::Error>(())
        /// ```
        ///
        /// In the environment, a number of bytes may have a suffix: in `512K`, `256M` and `6G` the
        /// units are powers of 1024. An empty variable counts as not set.
        ///
        #[doc = concat!(
            "| method | variable | values | default | meaning |\n|---|---|---|---|---|\n",
            $("| [`", stringify!($field), "`](Self::", stringify!($field), ") | `", $variable, "` | ", $values, " | ",
            $shown, " | ", $meaning, " |\n"),*
        )]
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Config {
            $(pub(crate) $field: $type,)*
            /// Memory limits of individual devices, by the device's index.
            memory_limits: BTreeMap<usize, Option<usize>>,
            /// `BURN_ROCM_LAUNCH_REACH`, for tests.
            launch_reach: usize,
        }

        /// The table of settings, in the order of docs/guide/configuration.md.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            variable: $variable,
            method: stringify!($field),
            values: $values,
            default: $shown,
            meaning: $meaning,
        }),*];

        impl Config {
            $(
                #[doc = concat!("Sets ", $meaning, ".\n")]
                #[doc = concat!("Values: ", $values, ". Default: ", $shown, ". Variable: `", $variable, "`.")]
                #[must_use]
                pub fn $field(mut self, value: $argument) -> Self {
                    self.$field = value.into();
                    self
                }
            )*

            /// The defaults, overridden by the variables that `variable` finds.
            fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
                let set = |name: &str| variable(name).filter(|value| !value.is_empty());
                let mut config = Self {
                    $($field: $default,)*
                    memory_limits: BTreeMap::new(),
                    launch_reach: LAUNCH_REACH,
                };
                config.cache_dir = user_cache(cfg!(windows), set);
                $(if let Some(value) = set($variable) {
                    let read: fn(&str, &OsStr) -> Result<$type> = $read;
                    config.$field = read($variable, &value)?;
                })*
                if let Some(value) = set("BURN_ROCM_LAUNCH_REACH") {
                    config.launch_reach = bytes("BURN_ROCM_LAUNCH_REACH", &value)?.clamp(2, LAUNCH_REACH);
                }
                Ok(config)
            }
        }
    };
}

settings! {
    provider(impl Into<Option<ProviderKind>>): Option<ProviderKind> = None, "BURN_ROCM_PROVIDER", |name, value|
        choice(name, value, &[
            ("auto", None),
            ("rocm", Some(ProviderKind::Rocm)),
            ("cuda", Some(ProviderKind::Cuda)),
            ("cpu", Some(ProviderKind::Cpu)),
        ]);
        "`auto`, `rocm`, `cuda`, `cpu`", "`auto`",
        "which provider runs the ops. `auto` (`None` in `Config`) tries `rocm`, `cuda` and `cpu` in this order and \
        uses the first that has a device; `rocm` forbids any fallback";
    deterministic(bool): bool = false, "BURN_ROCM_DETERMINISTIC", flag;
        "`0`, `1`", "`0`",
        "whether the same seed gives the same bits, by deterministic library algorithms and without float atomics";
    conv(Route): Route = Route::Auto, "BURN_ROCM_CONV", |name, value| route(name, value, "miopen");
        "`auto`, `miopen`, `own`", "`auto`",
        "which code computes convolutions. `auto`: MIOpen if it supports the dtype and the options, else kernels of \
        this project; `miopen`: only MIOpen; `own`: only the kernels";
    conv_find(FindMode): FindMode = FindMode::Auto, "BURN_ROCM_CONV_FIND", |name, value|
        choice(name, value, &[
            ("auto", FindMode::Auto),
            ("immediate", FindMode::Immediate),
            ("find", FindMode::Find),
        ]);
        "`auto`, `immediate`, `find`", "`auto`",
        "how MIOpen's convolution algorithm is chosen. `immediate`: from its database. `find`: by timing the \
        candidates at a shape's first use. `auto`: the first two calls with a shape use the database, the third \
        times the candidates and keeps the fastest (never with `deterministic`)";
    matmul(Route): Route = Route::Auto, "BURN_ROCM_MATMUL", |name, value| route(name, value, "rocblas");
        "`auto`, `rocblas`, `own`", "`auto`",
        "which code multiplies float matrices. `auto`: rocBLAS, or a kernel of this project if rocBLAS fails or has no \
        kernels for the GPU; `rocblas`: only rocBLAS; `own`: only the kernel";
    norm(Route): Route = Route::Auto, "BURN_ROCM_NORM", |name, value| route(name, value, "miopen");
        "`auto`, `miopen`, `own`", "`auto`",
        "which code computes `layer_norm`, and `burn-rocm-nn`'s batch, layer, RMS and group norm. `auto`: for f32 \
        and f16, MIOpen if its result is right for the shape, followed by a kernel that recomputes rows whose mean is \
        more than 4 standard deviations from 0. This project's kernels compute the rest, and everything on NVIDIA \
        GPUs. `miopen`: only MIOpen, and anything that it can't do is an error. `own`: only the kernels";
    f16_alternative(F16Alternative): F16Alternative = F16Alternative::Gradients, "BURN_ROCM_F16_ALTERNATIVE",
        |name, value| choice(name, value, &[
            ("gradients", F16Alternative::Gradients),
            ("all", F16Alternative::All),
            ("none", F16Alternative::None),
        ]);
        "`gradients`, `all`, `none`", "`gradients`",
        "which f16 products and convolutions use the libraries' alternative implementation, on gfx90a (MI200) only";
    // On an H200, f32 `[16, 12, 512, 64]` (192 MiB of scores) took 0.96 ms forward and 1.04 ms
    // backward with the scores in memory, and 1.38 and 3.52 ms without. At a sequence length of
    // 2048 it took 2.0 and 3.1 ms with them, and 4.8 and 12.8 ms without.
    attention_scores(usize): usize = 256 << 20, "BURN_ROCM_ATTENTION_SCORES", bytes;
        "bytes", "`256M`",
        "how many bytes of scores one attention of `burn-rocm-nn` keeps for its gradient. If it has more, \
        tiled kernels recompute them, as kernels on matrix cores always do";
    chain(impl Into<Option<usize>>): Option<usize> = None, "BURN_ROCM_CHAIN", chain;
        "`auto`, `0` to `16`", "`auto`",
        "how many small element-wise ops share one launch at most. `auto` is 16 on GPUs and 0 on the CPU device. \
        Results have the same bits with any value";
    memory_limit(impl Into<Option<usize>>): Option<usize> = None, "BURN_ROCM_MEMORY_LIMIT", |name, value|
        bytes(name, value).map(Some);
        "bytes", "no limit",
        "how many bytes each device's memory pool may hold";
    cache(bool): bool = true, "BURN_ROCM_CACHE", flag;
        "`0`, `1`", "`1`",
        "whether compiled kernels are kept on disk";
    cache_dir(PathBuf): Option<PathBuf> = None, "BURN_ROCM_CACHE_DIR",
        |_, value| Ok(Some(PathBuf::from(value)));
        "a folder", "`burn-rocm` in `XDG_CACHE_HOME`, else in `~/.cache`; on Windows in `%LOCALAPPDATA%`",
        "where compiled kernels are kept";
    // About 10,000 kernels of 50 KB.
    cache_limit(usize): usize = 512 << 20, "BURN_ROCM_CACHE_LIMIT", bytes;
        "bytes", "`512M`",
        "how many bytes of compiled kernels are kept. The least recently used files are deleted first";
    collective_timeout(Duration): Duration = Duration::from_secs(600), "BURN_ROCM_COLLECTIVE_TIMEOUT", seconds;
        "seconds above 0", "`600`",
        "how long ranks wait for each other: to join a group, for a collective's end, for a message of a rendezvous. \
        After that the group is aborted, and its ranks return an error";
    collective_check(bool): bool = false, "BURN_ROCM_COLLECTIVE_CHECK", flag;
        "`0`, `1`", "`0`",
        "whether ranks of different processes compare their calls before each collective, which then waits for \
        the host. Ranks of one process and ranks on CPU devices always compare them";
    trace(bool): bool = false, "BURN_ROCM_TRACE", flag;
        "`0`, `1`", "`0`",
        "whether the library call or kernel that computed each op is logged, under the target `burn_rocm::trace`";
    cuda_tf32(bool): bool = false, "BURN_ROCM_CUDA_TF32", flag;
        "`0`, `1`", "`0`",
        "whether the CUDA provider lets f32 products and convolutions round their operands to TF32";
}

static IN_USE: OnceLock<Config> = OnceLock::new();

/// The process's settings. The first call that finds no invalid variable fixes them.
pub(crate) fn settings() -> Result<&'static Config> {
    match IN_USE.get() {
        Some(config) => Ok(config),
        None => {
            let config = Config::from_env()?;
            Ok(IN_USE.get_or_init(|| config))
        }
    }
}

impl Default for Config {
    /// The default of every setting. Only the user's cache folder depends on the environment.
    fn default() -> Self {
        let folders = ["XDG_CACHE_HOME", "HOME", "LOCALAPPDATA"];
        Self::read(|name| folders.contains(&name).then(|| std::env::var_os(name)).flatten())
            .expect("no setting is read, so none is wrong")
    }
}

impl Config {
    /// The environment's settings, with defaults for variables that are not set.
    ///
    /// # Errors
    /// `Config` for an invalid value, with the variable's name, its allowed values and its value.
    pub fn from_env() -> Result<Self> {
        Self::read(|name| std::env::var_os(name))
    }

    /// Sets how many bytes the memory pool of one device may hold; `None` means no limit. It
    /// overrides [`memory_limit`](Self::memory_limit) for this device, whichever method is called
    /// first.
    #[must_use]
    pub fn device_memory_limit(mut self, device: usize, bytes: impl Into<Option<usize>>) -> Self {
        self.memory_limits.insert(device, bytes.into());
        self
    }

    /// Makes these the settings of the process, in place of the environment's. Call it before the
    /// first use of a device, the provider, the trace or the code cache, because that use fixes the
    /// settings.
    ///
    /// # Errors
    /// `Config` for an invalid value, or if the settings are fixed already.
    pub fn install(self) -> Result<()> {
        if let Some(count) = self.chain.filter(|&count| count > STEPS) {
            return Err(no_chain("Config::chain", count.to_string()));
        }
        IN_USE.set(self).map_err(|_| {
            let expected = "a call before the first use of a device, once in a process";
            Error::config("Config::install", expected, "settings that are in use already")
        })
    }

    /// Bytes that the pool of a device may hold; `None` is no limit.
    pub(crate) fn memory_limit_of(&self, device: usize) -> Option<usize> {
        self.memory_limits.get(&device).copied().unwrap_or(self.memory_limit)
    }

    /// The folder for code objects; `None` if they are not kept on disk.
    pub(crate) fn cache_directory(&self) -> Option<PathBuf> {
        self.cache_dir.clone().filter(|_| self.cache)
    }
}

/// Whether the same seed must give the same bits ([`Config::deterministic`]).
pub fn deterministic() -> bool {
    settings().is_ok_and(|settings| settings.deterministic)
}

/// How long ranks wait for each other ([`Config::collective_timeout`]).
///
/// # Errors
/// `Config` for an invalid setting.
pub fn collective_timeout() -> Result<Duration> {
    settings().map(|settings| settings.collective_timeout)
}

/// Which implementation convolves ([`Config::conv`]).
///
/// # Errors
/// `Config` for a variable with an invalid value.
pub fn conv_route() -> Result<Route> {
    settings().map(|settings| settings.conv)
}

/// Which implementation multiplies matrices of floats ([`Config::matmul`]).
///
/// # Errors
/// `Config` for a variable with an invalid value.
pub fn matmul_route() -> Result<Route> {
    settings().map(|settings| settings.matmul)
}

/// The most elements, and the largest element offset, of one launch of a strided kernel: 2^31 - 1,
/// or less if tests set `BURN_ROCM_LAUNCH_REACH`.
pub fn launch_reach() -> usize {
    settings().map_or(LAUNCH_REACH, |settings| settings.launch_reach)
}

/// The most bytes of scores that one attention may keep in memory for its gradient
/// ([`Config::attention_scores`]).
///
/// # Errors
/// `Config` for a variable with an invalid value.
pub fn attention_scores() -> Result<usize> {
    settings().map(|settings| settings.attention_scores)
}

/// This project's folder in the user's cache folder.
fn user_cache(windows: bool, set: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| set(name).map(PathBuf::from);
    let caches = if windows {
        // Not the roaming folder, which Windows copies to other machines.
        path("LOCALAPPDATA").filter(|path| path.is_absolute())
    } else {
        // The XDG specification says to ignore relative paths.
        let caches = path("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        caches.or_else(|| path("HOME").map(|home| home.join(".cache")))
    };
    caches.map(|caches| caches.join("burn-rocm"))
}

/// A value as an error shows it. Bytes that are not UTF-8 become the replacement character, which
/// every setting refuses.
fn found(value: &OsStr) -> String {
    format!("`{}`", value.to_string_lossy())
}

fn choice<T: Copy>(name: &str, value: &OsStr, choices: &[(&str, T)]) -> Result<T> {
    match choices.iter().find(|(text, _)| value == *text) {
        Some(&(_, chosen)) => Ok(chosen),
        None => {
            let names: Vec<_> = choices.iter().map(|&(text, _)| text).collect();
            Err(Error::config(name, format!("one of {}", names.join(", ")), found(value)))
        }
    }
}

fn route(name: &str, value: &OsStr, library: &str) -> Result<Route> {
    choice(name, value, &[("auto", Route::Auto), (library, Route::Library), ("own", Route::Own)])
}

fn flag(name: &str, value: &OsStr) -> Result<bool> {
    let words = [("0", false), ("1", true), ("off", false), ("on", true), ("false", false), ("true", true)];
    choice(name, value, &words)
}

fn no_chain(name: &str, found: String) -> Error {
    Error::config(name, format!("auto, or ops from 0 to {STEPS}"), found)
}

fn chain(name: &str, value: &OsStr) -> Result<Option<usize>> {
    if value == "auto" {
        return Ok(None);
    }
    match value.to_str().and_then(|count| count.parse().ok()) {
        Some(count) if count <= STEPS => Ok(Some(count)),
        _ => Err(no_chain(name, found(value))),
    }
}

fn bytes(name: &str, value: &OsStr) -> Result<usize> {
    let text = value.to_string_lossy();
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (&*text, 0),
    };
    let count = digits.parse::<usize>().ok().and_then(|count| count.checked_mul(1 << shift));
    count.ok_or_else(|| Error::config(name, "bytes, such as 1073741824, 1024M or 1G", found(value)))
}

/// A time. A day is more than any job waits for a rank, and can't overflow a clock.
fn seconds(name: &str, value: &OsStr) -> Result<Duration> {
    let number = value.to_str().and_then(|text| text.parse::<f64>().ok());
    let valid = number.filter(|number| *number > 0.0 && *number <= 86_400.0);
    valid
        .map(Duration::from_secs_f64)
        .ok_or_else(|| Error::config(name, "seconds above 0, at most 86400", found(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of the user, and this project's cache folder in it.
    const USER: (&str, &str) =
        if cfg!(windows) { ("LOCALAPPDATA", r"C:\Users\a\Local") } else { ("HOME", "/home/a") };

    fn cache_of_user() -> Option<PathBuf> {
        let user = PathBuf::from(USER.1);
        Some(if cfg!(windows) { user } else { user.join(".cache") }.join("burn-rocm"))
    }

    fn with(pairs: &[(&str, &str)]) -> Result<Config> {
        Config::read(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn nothing_set_is_auto_without_limits() {
        let settings = with(&[USER]).unwrap();
        assert_eq!(settings.provider, None);
        assert!(!settings.deterministic);
        assert_eq!(settings.norm, Route::Auto);
        assert_eq!(settings.memory_limit, None);
        assert_eq!(settings.attention_scores, 256 << 20);
        assert_eq!(settings.chain, None);
        assert_eq!(settings.cache_directory(), cache_of_user());
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
            ("BURN_ROCM_CUDA_TF32", "yes"),
            ("BURN_ROCM_COLLECTIVE_TIMEOUT", "0"),
            ("BURN_ROCM_COLLECTIVE_TIMEOUT", "nan"),
            ("BURN_ROCM_COLLECTIVE_TIMEOUT", "86401"),
            ("BURN_ROCM_COLLECTIVE_TIMEOUT", "10m"),
            ("BURN_ROCM_COLLECTIVE_CHECK", "all"),
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
        #[cfg(unix)]
        let broken = || -> OsString { std::os::unix::ffi::OsStringExt::from_vec(b"cp\xff".to_vec()) };
        // Half of a pair of surrogates.
        #[cfg(windows)]
        let broken = || -> OsString { std::os::windows::ffi::OsStringExt::from_wide(&[99, 112, 0xd800]) };
        for name in ["BURN_ROCM_PROVIDER", "BURN_ROCM_CACHE", "BURN_ROCM_MEMORY_LIMIT", "BURN_ROCM_CHAIN"] {
            match Config::read(|asked| (asked == name).then(broken)) {
                Err(Error::Config { what, found, .. }) => {
                    assert_eq!((what.as_str(), found.as_str()), (name, "`cp\u{fffd}`"));
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        let settings = Config::read(|asked| (asked == "BURN_ROCM_CACHE_DIR").then(broken)).unwrap();
        assert_eq!(settings.cache_directory(), Some(broken().into()));
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
            USER,
        ])
        .unwrap();
        assert_eq!(settings.memory_limit, Some(3 << 30));
        assert_eq!(settings.cache_limit, 16 << 20);
        assert_eq!(settings.attention_scores, 64 << 10);
        assert_eq!(settings.norm, Route::Library);
        assert_eq!(settings.cache_directory(), cache_of_user());
        let settings = with(&[("BURN_ROCM_CACHE_DIR", "/own"), USER]).unwrap();
        assert_eq!(settings.cache_directory(), Some("/own".into()));
        let off = with(&[("BURN_ROCM_CACHE", "0"), USER]).unwrap();
        assert_eq!(off.cache_directory(), None);
    }

    #[test]
    fn each_system_has_its_cache_folder() {
        let cache = |windows, pairs: &[(&str, &str)]| {
            user_cache(windows, |name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
        };
        let local = if cfg!(windows) { r"C:\local" } else { "/local" };
        let (unix, windows) = (("HOME", "/home/a"), ("LOCALAPPDATA", local));
        assert_eq!(cache(false, &[unix, windows]), Some("/home/a/.cache/burn-rocm".into()));
        assert_eq!(cache(true, &[unix, windows]), Some(PathBuf::from(local).join("burn-rocm")));
        assert_eq!(cache(true, &[unix]), None);
        assert_eq!(cache(true, &[("LOCALAPPDATA", "relative")]), None);
        assert_eq!(cache(false, &[("XDG_CACHE_HOME", "relative")]), None);
        if cfg!(unix) {
            let xdg = ("XDG_CACHE_HOME", "/var/xdg");
            assert_eq!(cache(false, &[unix, xdg]), Some("/var/xdg/burn-rocm".into()));
        }
    }

    #[test]
    fn a_device_may_have_a_limit_of_its_own() {
        let config = Config::default().device_memory_limit(1, 5).device_memory_limit(2, None).memory_limit(7);
        assert_eq!([0, 1, 2].map(|device| config.memory_limit_of(device)), [Some(7), Some(5), None]);
    }

    #[test]
    fn an_installed_value_is_checked() {
        let error = Config::default().chain(17).install().unwrap_err();
        assert_eq!(error, Error::config("Config::chain", "auto, or ops from 0 to 16", "17"));
    }
}
