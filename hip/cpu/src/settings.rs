//! The CPU device's settings, read from the environment once.

use crate::abi::{MOST_SHARED_BYTES, SHARED_BYTES};
use hip_provider::Problem;
use std::{
    env,
    ffi::OsString,
    str::FromStr,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

#[cfg_attr(not(lockstep), allow(dead_code))]
pub(crate) struct Settings {
    pub(crate) devices: usize,
    pub(crate) threads: usize,
    pub(crate) isa: Option<String>,
    pub(crate) poison: bool,
    /// Whether streams run their work as late as they may.
    pub(crate) late: bool,
    /// The wave size of lockstep mode; `None` in native mode.
    pub(crate) wave: Option<u32>,
    pub(crate) seed: u64,
    /// The most bytes of shared memory that a launch may ask for.
    pub(crate) shared: u32,
    /// The architecture name that the device reports.
    pub(crate) arch: Option<String>,
    /// The failures to simulate, each for every call or for the call with this number.
    pub(crate) fail: Vec<(Failure, Option<u64>)>,
}

/// A failure of AMD's libraries that a test can simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// `rocblas_create_handle`, as if there were no memory for its workspace.
    RocblasHandle,
    /// Every rocBLAS computation, as if rocBLAS had no kernels for the chip, except that the
    /// process is not ended.
    RocblasProducts,
    /// `miopenCreateWithStream`.
    MiopenHandle,
    /// Every call with a MIOpen handle, as if its kernels did not compile.
    MiopenKernels,
    /// `hipEventRecord`, as if there were no memory for it.
    EventRecord,
    /// `hipHostMalloc`, as if the host could pin no more memory.
    HostMalloc,
    /// `hipModuleLaunchKernel`, as if there were no memory for it.
    Launch,
    /// `hipStreamBeginCapture`, as if there were no memory for it.
    BeginCapture,
    /// `hipStreamEndCapture`, as if an earlier call had invalidated the capture. The stream stays in it.
    EndCapture,
    /// `hipGraphInstantiateWithFlags`, as if the device had no memory for the graph.
    GraphInstantiate,
    /// `ncclCommInitRank`, as if a system call had failed.
    CommInitRank,
    /// `ncclAllReduce`, as if its computation had panicked.
    AllReduce,
    /// `rocblas_set_workspace`.
    RocblasWorkspace,
    /// `hipblasLtCreate`, as if there were no memory for it.
    HipblasltHandle,
    /// `hipblasLtMatmulAlgoGetHeuristic`, as if no kernel computed the problem.
    HipblasltHeuristic,
    /// `hipblasLtMatmul`, as if a kernel could not be launched.
    HipblasltProducts,
}

impl Failure {
    const ALL: [(&str, Self); 16] = [
        ("rocblas_create_handle", Self::RocblasHandle),
        ("rocblas_products", Self::RocblasProducts),
        ("miopenCreateWithStream", Self::MiopenHandle),
        ("miopen_kernels", Self::MiopenKernels),
        ("hipEventRecord", Self::EventRecord),
        ("hipHostMalloc", Self::HostMalloc),
        ("hipModuleLaunchKernel", Self::Launch),
        ("hipStreamBeginCapture", Self::BeginCapture),
        ("hipStreamEndCapture", Self::EndCapture),
        ("hipGraphInstantiateWithFlags", Self::GraphInstantiate),
        ("ncclCommInitRank", Self::CommInitRank),
        ("ncclAllReduce", Self::AllReduce),
        ("rocblas_set_workspace", Self::RocblasWorkspace),
        ("hipblasLtCreate", Self::HipblasltHandle),
        ("hipblasLtMatmulAlgoGetHeuristic", Self::HipblasltHeuristic),
        ("hipblasLtMatmul", Self::HipblasltProducts),
    ];

    /// Counts a call, and says whether `BURN_ROCM_CPU_FAIL` makes it fail.
    pub(crate) fn is_asked(self) -> bool {
        static CALLS: [AtomicU64; Failure::ALL.len()] = [const { AtomicU64::new(0) }; Failure::ALL.len()];
        let Some((_, which)) =
            settings().ok().and_then(|settings| settings.fail.iter().find(|(failure, _)| *failure == self))
        else {
            return false;
        };
        let call = CALLS[self as usize].fetch_add(1, Ordering::Relaxed) + 1;
        which.is_none_or(|which| which == call)
    }
}

/// Checks the environment's settings. If one is invalid, every HIP call fails with
/// `hipErrorNotInitialized`.
pub fn check_settings() -> Result<(), Problem> {
    settings().map(|_| ()).map_err(Clone::clone)
}

pub(crate) fn settings() -> Result<&'static Settings, &'static Problem> {
    static SETTINGS: OnceLock<Result<Settings, Problem>> = OnceLock::new();
    SETTINGS.get_or_init(|| read(|name| env::var_os(name).map(text))).as_ref()
}

/// A variable's text. Bytes that are not UTF-8 become the replacement character, so each setting
/// refuses them like any other invalid value.
fn text(value: OsString) -> String {
    value.into_string().unwrap_or_else(|value| value.to_string_lossy().into_owned())
}

fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Settings, Problem> {
    fn number<T: FromStr + PartialOrd>(
        text: Option<String>,
        what: &str,
        expected: &str,
        valid: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, Problem> {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
        let problem = || Problem { what: what.into(), expected: expected.into(), found: format!("{text:?}") };
        let value = text.trim().parse().map_err(|_| problem())?;
        if valid(&value) { Ok(Some(value)) } else { Err(problem()) }
    }
    let get = |name: &'static str| (variable(name), name);

    let (text, name) = get("BURN_ROCM_CPU_DEVICES");
    let devices = number(text, name, "a number of devices, 0 to 64", |&n: &usize| n <= 64)?.unwrap_or(1);
    let (text, name) = get("BURN_ROCM_CPU_THREADS");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = number(text, name, "a number of cores, at least 1", |&n: &usize| n >= 1)?.unwrap_or(cores);
    let (text, name) = get("BURN_ROCM_CPU_SEED");
    let seed = number(text, name, "a whole number", |_: &u64| true)?.unwrap_or(0);
    let (text, name) = get("BURN_ROCM_CPU_POISON");
    let poison = number(text, name, "0 or 1", |&n: &u8| n <= 1)?.unwrap_or(0) == 1;
    let (text, name) = get("BURN_ROCM_CPU_LATE");
    let late = number(text, name, "0 or 1", |&n: &u8| n <= 1)?.unwrap_or(0) == 1;
    let (text, name) = get("BURN_ROCM_CPU_WAVE");
    let wave = number(text, name, "32 or 64", |&n: &u32| n == 32 || n == 64)?;
    if let Some(wave) = wave
        && !cfg!(lockstep)
    {
        return Err(Problem {
            what: name.into(),
            expected:
                "unset: this build lacks the lockstep mode (feature `lockstep` of hip-cpu, x86-64 or AArch64)"
                    .into(),
            found: wave.to_string(),
        });
    }
    let (text, name) = get("BURN_ROCM_CPU_SHARED");
    let bytes = SHARED_BYTES..=MOST_SHARED_BYTES;
    let expected = format!("a number of bytes, {SHARED_BYTES} to {MOST_SHARED_BYTES}");
    let shared = number(text, name, &expected, |n| bytes.contains(n))?.unwrap_or(SHARED_BYTES);
    let (text, name) = get("BURN_ROCM_CPU_ISA");
    let isa = text.filter(|text| !text.is_empty());
    if let Some(isa) = &isa {
        let known = crate::flags::isas(env::consts::ARCH);
        if !known.iter().any(|known| known.name == isa) {
            let names: Vec<_> = known.iter().map(|known| known.name).collect();
            return Err(Problem { what: name.into(), expected: names.join(", "), found: format!("{isa:?}") });
        }
    }
    if wave.is_none() && crate::isa::usable(isa.as_deref()).is_none() {
        let names = crate::isa::ISAS.iter().map(|isa| isa.name);
        let built: Vec<_> = names.filter(|name| *name != "lockstep").collect();
        return Err(Problem {
            what: if isa.is_some() { name } else { "the CPU's instruction set" }.into(),
            expected: format!(
                "an instruction set that the kernels were built for ({}): build on this machine, or with the feature \
                 `portable` for every CPU",
                built.join(", ")
            ),
            found: isa.unwrap_or_else(|| "a CPU that lacks it".into()),
        });
    }
    let (text, _) = get("BURN_ROCM_CPU_ARCH");
    let arch = text.filter(|text| !text.is_empty());
    let (text, name) = get("BURN_ROCM_CPU_FAIL");
    let fail = text.iter().flat_map(|text| text.split(',')).filter(|text| !text.is_empty());
    let fail = fail.map(|text| {
        let (failure, call) = text.split_once(':').map_or((text, None), |(what, call)| (what, Some(call)));
        let known = Failure::ALL.iter().find(|(name, _)| *name == failure);
        let call = call.map(str::parse::<u64>).transpose().ok();
        known.zip(call).map(|((_, failure), call)| (*failure, call)).ok_or_else(|| Problem {
            what: name.into(),
            expected: format!(
                "{}, each with :N for the N-th call alone",
                Failure::ALL.map(|(name, _)| name).join(", ")
            ),
            found: format!("{text:?}"),
        })
    });
    let fail = fail.collect::<Result<_, _>>()?;
    Ok(Settings {
        arch,
        fail,
        devices,
        threads: threads.min(1024),
        isa,
        poison: poison || wave.is_some(),
        late,
        wave,
        seed,
        shared,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_refusals() {
        let settings = read(|_| None).ok().unwrap();
        assert_eq!((settings.devices, settings.wave, settings.seed), (1, None, 0));
        assert_eq!(settings.shared, 65536);
        for (name, value) in [
            ("BURN_ROCM_CPU_DEVICES", "many"),
            ("BURN_ROCM_CPU_DEVICES", "-1"),
            ("BURN_ROCM_CPU_THREADS", "0"),
            ("BURN_ROCM_CPU_WAVE", "48"),
            ("BURN_ROCM_CPU_SHARED", "1024"),
            ("BURN_ROCM_CPU_ISA", "v9"),
            ("BURN_ROCM_CPU_POISON", "2"),
            ("BURN_ROCM_CPU_LATE", "yes"),
            ("BURN_ROCM_CPU_FAIL", "everything"),
            ("BURN_ROCM_CPU_FAIL", "hipHostMalloc:first"),
        ] {
            let problem = read(|asked| (asked == name).then(|| value.into())).err().unwrap();
            assert_eq!(problem.what, name);
            assert!(problem.found.contains(value), "{problem}");
        }
        let settings =
            read(|asked| (asked == "BURN_ROCM_CPU_FAIL").then(|| "miopen_kernels,hipHostMalloc:3".into()));
        let expected = vec![(Failure::MiopenKernels, None), (Failure::HostMalloc, Some(3))];
        assert_eq!(settings.ok().unwrap().fail, expected);
    }
}
