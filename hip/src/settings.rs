//! The settings of a process. An app may build and install them as a value; otherwise they are read
//! from the environment once.

mod preset;
mod read;
mod values;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::provider::kind::ProviderKind;
pub use preset::Preset;
use read::*;
pub use values::*;

/// `STEPS` of `chain.h`: the most element-wise ops of one launch. Burn's Adam has 13 for each
/// parameter.
pub(crate) const STEPS: usize = 16;

/// The default of [`Config::chain_bytes`].
const CHAIN_BYTES: usize = 256 << 20;

/// The default of [`Config::loaded_limit`]: about 5,000 kernels of 50 KB.
const MOST_LOADED: usize = 256 << 20;

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
                // First, so that each variable overrides the preset.
                if let Some(value) = set(preset::VARIABLE) {
                    config = config.preset(Preset::read(&value)?);
                }
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
            ("normal", FindMode::Normal),
            ("fast", FindMode::Fast),
            ("hybrid", FindMode::Hybrid),
            ("dynamic_hybrid", FindMode::DynamicHybrid),
            ("exhaustive", FindMode::Exhaustive),
            ("retune", FindMode::Retune),
        ]);
        "`auto`, `immediate`, `find`, `normal`, `fast`, `hybrid`, `dynamic_hybrid`, `exhaustive`, `retune`", "`auto`",
        "how MIOpen's convolution algorithm is chosen. `immediate`: from its database. With it, `channels_last` = \
        `auto` acts as `off`. `find`: by timing the candidates at a shape's first use. `auto`: the first two calls \
        with a shape use the database, the third times the candidates and keeps the fastest (never with \
        `deterministic`). The others are as `find`, in one of MIOpen's find modes; `exhaustive` also searches the \
        parameters of kernels, which takes minutes for each shape, and `retune` does so again";
    conv_fresh(impl Into<Option<usize>>): Option<usize> = None, "BURN_ROCM_CONV_FRESH", fresh;
        "`auto`, a number", "`auto`",
        "how many uses of a convolution's shape this project's kernels compute before MIOpen does, because MIOpen \
        compiles kernels for each shape. `auto`: 0, but 3 for a new size of input once the same weights have had eight \
        others";
    channels_last(impl Into<Option<ChannelsLast>>): Option<ChannelsLast> = None, "BURN_ROCM_CHANNELS_LAST",
        |name, value| choice(name, value, &[
            ("off", ChannelsLast::Off), ("auto", ChannelsLast::Auto), ("on", ChannelsLast::On)]).map(Some);
        "`off`, `auto`, `on`", "`auto` on GPUs, `off` on the CPU device",
        "in which order the channels of 2-D convolutions in f16 and bf16 lie in memory. `on`: innermost (NHWC), where \
        MIOpen computes the convolution and supports this order, and input and output have a multiple of 8 channels \
        (or the input is an image of up to 4). Their results, and what batch norm, pooling and element-wise ops \
        compute from them, stay in this order. `auto`: the same for the layers that are faster in this order, copies \
        included. The third use times both orders, and the tuning store keeps the times; in deterministic mode, and \
        with `conv_find` `immediate`, `auto` is the same as `off`. `off`: outside the pixels (NCHW), which f32 and f64 \
        always have. On an H200, `on` takes a replayed bf16 step of ResNet-18 from 8.04 to 4.88 ms. In f32, NHWC took \
        twice the time";
    matmul(Route): Route = Route::Auto, "BURN_ROCM_MATMUL", |name, value| route(name, value, "rocblas");
        "`auto`, `rocblas`, `own`", "`auto`",
        "which code multiplies float matrices. `auto`: rocBLAS, or a kernel of this project if rocBLAS fails or has no \
        kernels for the GPU; `rocblas`: only rocBLAS; `own`: only the kernel";
    gemm_find(GemmFind): GemmFind = GemmFind::Off, "BURN_ROCM_GEMM_FIND", |name, value|
        choice(name, value, &[("off", GemmFind::Off), ("auto", GemmFind::Auto)]);
        "`off`, `auto`", "`off`",
        "how rocBLAS's solution for a matrix product is chosen. `off`: by rocBLAS. `auto`: the third product of a \
        shape times rocBLAS's solutions, and the fastest serves from then on, also in later processes. Its bits may \
        differ from the default's. Never with `deterministic`, nor in a group of several \
        ranks";
    hipblaslt(HipblasLt): HipblasLt = HipblasLt::Off, "BURN_ROCM_HIPBLASLT", |name, value|
        choice(name, value, &[("off", HipblasLt::Off), ("auto", HipblasLt::Auto), ("on", HipblasLt::On)]);
        "`off`, `auto`, `on`", "`off`",
        "whether hipBLASLt computes what follows a product in f32, f16 and bf16 together with the product: a bias, a \
        sum, ReLU, GELU by tanh, and gradients of these. `on`: wherever its heuristic returns an algorithm, by the \
        first one. `auto`: the third use of a shape times its algorithms and the way without it, and the fastest \
        serves from then on, also in later processes. Results then round once less, and its ReLU may give 0 for a NaN. \
        Never with `deterministic`, and `auto` never in a group of several ranks. Products of fp8 do not depend on it";
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
    matrix_cores(bool): bool = true, "BURN_ROCM_MATRIX_CORES", flag;
        "`0`, `1`", "`1`",
        "whether this project's kernels use matrix cores, which attention in f16 and bf16 does. `0`: attention takes \
        its paths for devices without them. rocBLAS and MIOpen choose for themselves";
    chain(impl Into<Option<usize>>): Option<usize> = None, "BURN_ROCM_CHAIN", chain;
        "`auto`, `0` to `16`", "`auto`",
        "how many element-wise ops share one launch at most. `auto` is 16 on GPUs and 0 on the CPU device. \
        Results have the same bits with any value";
    chain_bytes(usize): usize = CHAIN_BYTES, "BURN_ROCM_CHAIN_BYTES", bytes;
        "bytes", "`256M`",
        "the largest result of an op that shares a launch. Results have the same bits with any value";
    memory_limit(impl Into<Option<usize>>): Option<usize> = None, "BURN_ROCM_MEMORY_LIMIT", |name, value|
        bytes(name, value).map(Some);
        "bytes", "no limit",
        "how many bytes each device's memory pool may hold";
    memory_percent(impl Into<Option<u8>>): Option<u8> = None, "BURN_ROCM_MEMORY_PERCENT", percent;
        "`1` to `100`", "no limit",
        "how many percent of its device's memory each memory pool may hold. The smaller of the two limits counts";
    memory_pool(bool): bool = true, "BURN_ROCM_MEMORY_POOL", flag;
        "`0`, `1`", "`1`",
        "whether the memory pool keeps freed memory and cuts it into blocks. `0`: each block is memory of its own from \
        `hipMalloc`, freed before the next allocation. This is slow, but memory checkers then see each block's bounds";
    memory_split(impl Into<Option<usize>>): Option<usize> = None, "BURN_ROCM_MEMORY_SPLIT", split;
        "bytes, at least `1M`", "no limit",
        "the largest piece of freed memory that the pool cuts into blocks. A larger request gets memory of its own, \
        which only requests of at least 8/9 of its size use again";
    apu_memory(ApuMemory): ApuMemory = ApuMemory::Auto, "BURN_ROCM_APU_MEMORY", |name, value|
        choice(name, value, &[
            ("auto", ApuMemory::Auto),
            ("device", ApuMemory::Device),
            ("managed", ApuMemory::Managed),
        ]);
        "`auto`, `device`, `managed`", "`auto`",
        "where the memory of an integrated GPU (APU) comes from. `device`: from `hipMalloc`. `managed`: from \
        `hipMallocManaged`, which can hang a GPU that others share. `auto`: from `hipMalloc`, and on kernels where it \
        may have the GPU's carve-out alone, from `hipMallocManaged` beyond that. Other GPUs ignore it";
    workspace_limit(impl Into<Option<usize>>): Option<usize> = None, "BURN_ROCM_WORKSPACE_LIMIT", |name, value|
        bytes(name, value).map(Some);
        "bytes", "no limit",
        "how many bytes of workspace one call of MIOpen may use, rocBLAS's handle keeps, and the patches of a \
        convolution by this project's kernels take. Algorithms that need more are passed over, down to kernels of this \
        project that need none";
    cache(bool): bool = true, "BURN_ROCM_CACHE", flag;
        "`0`, `1`", "`1`",
        "whether compiled kernels, and results of timing, are kept on disk";
    tuning(bool): bool = true, "BURN_ROCM_TUNING", flag;
        "`0`, `1`", "`1`",
        "whether results of timing MIOpen's and rocBLAS's algorithms are kept on disk, in the folder `tuning` of the \
        cache's folder, and used by later processes. Never with `deterministic`";
    kernel_find(bool): bool = false, "BURN_ROCM_KERNEL_FIND", flag;
        "`0`, `1`", "`0`",
        "whether this project's kernels are chosen by trial, where an op has several ways that give the same result \
        but for the order of sums: reductions, and attention in f32. They are timed at the third use of a class of \
        shapes, for which the host waits. What is fastest is kept as `tuning` says. Never with `deterministic`, \
        nor in a group of several ranks";
    cache_dir(PathBuf): Option<PathBuf> = None, "BURN_ROCM_CACHE_DIR",
        |_, value| Ok(Some(PathBuf::from(value)));
        "a folder", "`burn-rocm` in `XDG_CACHE_HOME`, else in `~/.cache`; on Windows in `%LOCALAPPDATA%`",
        "where compiled kernels, and results of timing, are kept";
    // About 10,000 kernels of 50 KB.
    cache_limit(usize): usize = 512 << 20, "BURN_ROCM_CACHE_LIMIT", bytes;
        "bytes", "`512M`",
        "how many bytes of compiled kernels are kept. The least recently used files are deleted first";
    loaded_limit(usize): usize = MOST_LOADED, "BURN_ROCM_LOADED_LIMIT", bytes;
        "bytes", "`256M`",
        "how many bytes of compiled kernels stay loaded in each device's memory. Above that, the least recently used \
        kernels are unloaded, and loaded again at their next use";
    architecture(impl Into<Option<String>>): Option<String> = None, "BURN_ROCM_ARCH", architecture;
        "LLVM's name of an architecture", "the device's own",
        "the architecture for which this project's kernels are compiled: the device's own with fewer features \
        (`gfx90a` for `gfx90a:sramecc+:xnack-`), or its family's (`gfx10-3-generic` for gfx1030). If the device can't \
        run such code, its first use is an error";
    strict(bool): bool = false, "BURN_ROCM_STRICT", flag;
        "`0`, `1`", "`0`",
        "whether a fallback that is otherwise logged as a warning is an error";
    collective_timeout(Duration): Duration = Duration::from_secs(600), "BURN_ROCM_COLLECTIVE_TIMEOUT", seconds;
        "seconds, 0.001 to 86400", "`600`",
        "how long ranks wait for each other: to join a group, for a collective's end, for a message of a rendezvous. \
        After that the group is aborted, and its ranks return an error";
    collective_check(bool): bool = false, "BURN_ROCM_COLLECTIVE_CHECK", flag;
        "`0`, `1`", "`0`",
        "whether ranks of different processes compare their calls before each collective, which then waits for \
        the host. Ranks of one process and ranks on CPU devices always compare them";
    trace(bool): bool = false, "BURN_ROCM_TRACE", flag;
        "`0`, `1`", "`0`",
        "whether the library call or kernel that computed each op is logged, under the target `burn_rocm::trace`";
    profile(impl Into<ProfileOutput>): ProfileOutput = ProfileOutput::None, "BURN_ROCM_PROFILE", profile;
        "`table`, a path that ends in `.json`", "no profile",
        "where the profile of the whole process goes when the process exits: as a table to stderr, or as a file that \
        Perfetto opens";
    profile_call_sites(bool): bool = false, "BURN_ROCM_PROFILE_CALL_SITES", flag;
        "`0`, `1`", "`0`",
        "whether profiles tell apart where the app called each op. It takes the host some 100 us for each op";
    summary(bool): bool = false, "BURN_ROCM_SUMMARY", flag;
        "`0`, `1`", "`0`",
        "whether the process writes to stderr at its exit what computed each op, which ops shared launches, and what \
        fell back and why";
    ranges(bool): bool = false, "BURN_ROCM_RANGES", flag;
        "`0`, `1`", "`0`",
        "whether ops and regions are ranges that AMD's rocprofv3 (by roctx) and NVIDIA's Nsight Systems (by NVTX) show";
    check_finite(CheckFinite): CheckFinite = CheckFinite::Off, "BURN_ROCM_CHECK_FINITE", |name, value|
        choice(name, value, &[("off", CheckFinite::Off), ("nan", CheckFinite::Nan), ("all", CheckFinite::All)]);
        "`off`, `nan`, `all`", "`off`",
        "for debugging: whether each op's float results are checked for NaN (`nan`), or for NaN and infinities \
        (`all`). A read of a tensor that is computed from such a result fails, and names the first op that gave one. \
        Each float result costs one extra launch";
    sync_each_op(bool): bool = false, "BURN_ROCM_SYNC_EACH_OP", flag;
        "`0`, `1`", "`0`",
        "for debugging: whether each op waits for the device, so that the device's error is logged with the op that \
        caused it. While a thread captures a graph, no op waits";
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

/// The settings that apply by now. Unlike [`settings`], this does not fix them.
pub(crate) fn settings_by_now() -> Result<Config> {
    IN_USE.get().cloned().map_or_else(Config::from_env, Ok)
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
    /// first. [`memory_percent`](Self::memory_percent) counts too.
    #[must_use]
    pub fn device_memory_limit(mut self, device: usize, bytes: impl Into<Option<usize>>) -> Self {
        self.memory_limits.insert(device, bytes.into());
        self
    }

    /// Makes these the settings of the process, in place of the environment's. Call it before the
    /// first use of a device, the provider, the trace, a profile, a summary, the code cache, the tuning
    /// store, a `Rendezvous` or `memory_track_ops`, because that use fixes the settings.
    ///
    /// # Errors
    /// `Config` for an invalid value, or if the settings are fixed already.
    pub fn install(self) -> Result<()> {
        if let Some(count) = self.chain.filter(|&count| count > STEPS) {
            return Err(no_chain("Config::chain", count.to_string()));
        }
        if let ProfileOutput::Trace(path) = &self.profile
            && !is_json(path)
        {
            return Err(no_profile("Config::profile", path.as_os_str()));
        }
        if let Some(share) = self.memory_percent.filter(|share| !PERCENT.contains(share)) {
            return Err(no_percent("Config::memory_percent", share.to_string()));
        }
        if let Some(bytes) = self.memory_split.filter(|&bytes| bytes < LEAST_SPLIT) {
            return Err(no_split("Config::memory_split", bytes.to_string()));
        }
        if let Some(text) = self.architecture.as_deref().filter(|text| !is_architecture(text)) {
            return Err(no_architecture("Config::architecture", format!("`{text}`")));
        }
        if !WAITS.contains(&self.collective_timeout) {
            let found = format!("{:?}", self.collective_timeout);
            return Err(Error::config("Config::collective_timeout", "1 ms to 1 day", found));
        }
        IN_USE.set(self).map_err(|_| {
            let expected = "a call before the first use of a device, once in a process";
            Error::config("Config::install", expected, "settings that are in use already")
        })
    }

    /// Bytes that the pool of a device may hold, which has `total` bytes; `None` is no limit.
    pub(crate) fn memory_limit_of(&self, device: usize, total: usize) -> Option<usize> {
        let bytes = self.memory_limits.get(&device).copied().unwrap_or(self.memory_limit);
        // In 128 bits the product can't overflow. The quotient is at most `total`.
        let share = self.memory_percent.map(|percent| (total as u128 * u128::from(percent) / 100) as usize);
        [bytes, share].into_iter().flatten().min()
    }

    /// The folder for code objects; `None` if they are not kept on disk.
    pub(crate) fn cache_directory(&self) -> Option<PathBuf> {
        self.cache_dir.clone().filter(|_| self.cache)
    }
}

/// Whether an on/off variable that is not a setting, such as a test's, is on. `1`, `on` and `true` mean
/// on; `0`, `off`, `false`, an empty value and an unset variable mean off.
///
/// # Errors
/// `Config` for another value.
pub fn switch(variable: &str, value: Option<OsString>) -> Result<bool> {
    value.filter(|value| !value.is_empty()).map_or(Ok(false), |value| flag(variable, &value))
}

/// Whether the same seed must give the same bits ([`Config::deterministic`]).
pub fn deterministic() -> bool {
    settings().is_ok_and(|settings| settings.deterministic)
}

/// Whether the settings ask for hipBLASLt ([`Config::hipblaslt`]). False in deterministic mode,
/// because its algorithms may add by atomics.
pub fn hipblaslt_asked() -> bool {
    settings().is_ok_and(|settings| settings.hipblaslt != HipblasLt::Off && !settings.deterministic)
}

/// Whether hipBLASLt is chosen by timing, also for products that nothing follows
/// ([`Config::hipblaslt`]).
pub fn hipblaslt_timed() -> bool {
    hipblaslt_asked() && settings().is_ok_and(|settings| settings.hipblaslt == HipblasLt::Auto)
}

/// `Ok` if this fallback is allowed, which the caller then logs as a warning. Not called in the
/// arguments of `log::warn!`, which are not evaluated where warnings are off.
///
/// # Errors
/// `error`, if [`Config::strict`] forbids the fallback.
pub fn allow_fallback(error: Error) -> Result<Error> {
    match settings().is_ok_and(|settings| settings.strict) {
        true => Err(error),
        false => Ok(error),
    }
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

/// The most bytes of one workspace ([`Config::workspace_limit`]); `usize::MAX` is no limit.
pub fn workspace_limit() -> usize {
    settings().ok().and_then(|settings| settings.workspace_limit).unwrap_or(usize::MAX)
}

/// The most bytes of scores that one attention may keep in memory for its gradient
/// ([`Config::attention_scores`]).
///
/// # Errors
/// `Config` for a variable with an invalid value.
pub fn attention_scores() -> Result<usize> {
    settings().map(|settings| settings.attention_scores)
}

#[cfg(test)]
mod tests;
