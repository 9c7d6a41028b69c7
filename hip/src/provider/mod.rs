//! Providers (implementations of AMD's C API), and the choice of the one that this process uses.

mod dry;
pub(crate) mod installation;
pub(crate) mod inventory;
pub(crate) mod kind;
pub(crate) mod library;
pub(crate) mod names;
#[cfg(feature = "cuda")]
pub(crate) mod nvidia;
pub(crate) mod pe;
pub(crate) mod places;
#[cfg(test)]
pub(crate) mod tree;

use std::ffi::c_int;
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use hip_sys::{Hip, Hiprtc, hipErrorInvalidDevice, hipErrorNoDevice, hipSuccess};
use hipblaslt_sys::Hipblaslt;
use miopen_sys::Miopen;
use rccl_sys::Rccl;
use rocblas_sys::Rocblas;

use self::kind::ProviderKind;
use self::library::{Loaded, fill};
use crate::doctor::{self, Finding, Severity};
use crate::error::{Error, Result, check, check_rtc, device_error};
use crate::settings::{allow_fallback, settings};

#[cfg(feature = "cpu")]
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

impl ProviderKind {
    /// What the provider's hipRTC adds to every program, unless hipRTC's version covers it.
    pub(crate) fn compiles_with(self) -> impl Iterator<Item = &'static str> {
        let cpu = (self == Self::Cpu).then_some(cpu::HIPRTC_ADDITIONS);
        (self == Self::Cuda).then(cuda::hiprtc_additions).into_iter().flatten().chain(cpu)
    }
}

/// A provider that is loaded and has a device.
pub struct Provider {
    kind: ProviderKind,
    /// The provider that dry devices stand for; `None` unless this is the one of dry devices.
    real: Option<&'static Provider>,
    hip: Hip,
    hiprtc: Hiprtc,
    devices: usize,
    versions: Versions,
    libraries: Vec<(&'static str, String)>,
    rocblas: OnceLock<Result<Rocblas>>,
    hipblaslt: OnceLock<Result<Hipblaslt>>,
    miopen: OnceLock<Result<Miopen>>,
    rccl: OnceLock<Result<Rccl>>,
}

/// The versions of a provider's parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// `hipRuntimeGetVersion`: major * 10,000,000 + minor * 100,000 + patch.
    pub runtime: i32,
    /// `hipDriverGetVersion`, in the same form.
    pub driver: i32,
    /// Major and minor version of hipRTC.
    pub hiprtc: (i32, i32),
}

impl Provider {
    /// The kind of this provider.
    pub fn kind(&self) -> ProviderKind {
        self.kind
    }

    /// How many devices the provider has; never 0.
    pub fn device_count(&self) -> usize {
        self.devices
    }

    /// Checks that a device has this index.
    ///
    /// # Errors
    /// `Config` for an index past the last device.
    pub fn check_index(&self, index: usize) -> Result<()> {
        if index < self.devices {
            return Ok(());
        }
        let expected = format!("an index below {} (the {} provider's devices)", self.devices, self.kind);
        Err(Error::config("device index", expected, index.to_string()))
    }

    /// The versions of its runtime, driver and hipRTC.
    pub fn versions(&self) -> Versions {
        self.versions
    }

    /// The libraries that were loaded when the provider started: title, and path or file name.
    pub fn libraries(&self) -> &[(&'static str, String)] {
        &self.libraries
    }

    pub(crate) fn hip(&self) -> &Hip {
        &self.hip
    }

    pub(crate) fn hiprtc(&self) -> &Hiprtc {
        &self.hiprtc
    }

    /// rocBLAS, loaded at the first call.
    pub(crate) fn rocblas(&self) -> Result<&Rocblas> {
        self.rocblas
            .get_or_init(|| match self.dried(Provider::rocblas, dry::rocblas) {
                Some(dry) => dry,
                None => match self.kind {
                    ProviderKind::Rocm => {
                        let library = installation::open(names::ROCBLAS)?;
                        log::debug!("rocBLAS: {}", library.path.display());
                        fill!(Rocblas, &library, "rocBLAS")
                    }
                    ProviderKind::Cuda => cuda::rocblas(),
                    ProviderKind::Cpu => cpu::rocblas(),
                },
            })
            .as_ref()
            .map_err(Error::clone)
    }

    /// hipBLASLt, loaded at the first call.
    pub(crate) fn hipblaslt(&self) -> Result<&Hipblaslt> {
        self.hipblaslt
            .get_or_init(|| match self.kind {
                // hipBLASLt's heuristic needs a handle, which allocates memory of the device.
                _ if self.is_dry() => {
                    Err(Error::Dry { op: "hipBLASLt", reason: "its handle allocates memory".into() })
                }
                ProviderKind::Rocm if self.versions.runtime < HIPBLASLT_FROM => Err(Error::NotAvailable {
                    reason:
                        "hipBLASLt of ROCm 5 has another interface: ROCm 6.0 is the first whose hipBLASLt \
                             this crate calls"
                            .into(),
                    searched: Vec::new(),
                }),
                ProviderKind::Rocm => {
                    let library = installation::open(names::HIPBLASLT)?;
                    log::debug!("hipBLASLt: {}", library.path.display());
                    fill!(Hipblaslt, &library, "hipBLASLt")
                }
                ProviderKind::Cuda => cuda::hipblaslt(),
                ProviderKind::Cpu => cpu::hipblaslt(),
            })
            .as_ref()
            .map_err(Error::clone)
    }

    /// MIOpen, loaded at the first call.
    pub(crate) fn miopen(&self) -> Result<&Miopen> {
        self.miopen
            .get_or_init(|| match self.dried(Provider::miopen, dry::miopen) {
                Some(dry) => dry,
                None => match self.kind {
                    ProviderKind::Rocm => {
                        let library = installation::open(names::MIOPEN)?;
                        log::debug!("MIOpen: {}", library.path.display());
                        fill!(Miopen, &library, "MIOpen")
                    }
                    ProviderKind::Cuda => cuda::miopen(),
                    ProviderKind::Cpu => cpu::miopen(),
                },
            })
            .as_ref()
            .map_err(Error::clone)
    }

    /// RCCL, loaded at the first call.
    pub(crate) fn rccl(&self) -> Result<&Rccl> {
        self.rccl
            .get_or_init(|| match self.kind {
                _ if self.is_dry() => {
                    Err(Error::Dry { op: "a collective", reason: "other ranks would wait for it".into() })
                }
                ProviderKind::Rocm => rccl_of_rocm(names::RCCL),
                ProviderKind::Cuda => cuda::rccl().map_err(|missing| advise(missing, NCCL_FROM)),
                ProviderKind::Cpu => cpu::rccl(),
            })
            .as_ref()
            .map_err(Error::clone)
    }

    fn start(
        kind: ProviderKind,
        hip: Hip,
        hiprtc: Hiprtc,
        libraries: Vec<(&'static str, String)>,
    ) -> Result<Self> {
        let mut count: c_int = 0;
        // SAFETY: the tables' functions are HIP's and hipRTC's; each writes through a valid
        // pointer.
        unsafe {
            let status = (hip.hipInit)(0);
            let status = if status == hipSuccess { (hip.hipGetDeviceCount)(&mut count) } else { status };
            // HIP 5.7 returns "invalid device" if there is no device.
            if ![hipSuccess, hipErrorNoDevice, hipErrorInvalidDevice].contains(&status) {
                return Err(device_error(&hip, "hipInit", status));
            }
        }
        if count <= 0 {
            return Err(no_device(kind, &libraries));
        }
        let mut versions = Versions { runtime: 0, driver: 0, hiprtc: (0, 0) };
        // SAFETY: as above.
        unsafe {
            check(&hip, "hipRuntimeGetVersion", (hip.hipRuntimeGetVersion)(&mut versions.runtime))?;
            check(&hip, "hipDriverGetVersion", (hip.hipDriverGetVersion)(&mut versions.driver))?;
            let (major, minor) = (&mut versions.hiprtc.0, &mut versions.hiprtc.1);
            check_rtc(&hiprtc, "hiprtcVersion", (hiprtc.hiprtcVersion)(major, minor))?;
        }
        Ok(Self {
            kind,
            real: None,
            hip,
            hiprtc,
            devices: count as usize,
            versions,
            libraries,
            rocblas: OnceLock::new(),
            hipblaslt: OnceLock::new(),
            miopen: OnceLock::new(),
            rccl: OnceLock::new(),
        })
    }
}

#[cfg(all(test, feature = "cpu"))]
impl Provider {
    /// The CPU provider with some functions replaced, to imitate another driver in tests.
    pub(crate) fn altered(change: impl FnOnce(&mut Hip)) -> &'static Self {
        let (mut hip, hiprtc) = cpu::hip().expect("the CPU provider");
        change(&mut hip);
        let provider = Self::start(ProviderKind::Cpu, hip, hiprtc, Vec::new());
        Box::leak(Box::new(provider.expect("it has a device")))
    }

    /// As [`altered`](Self::altered), with functions of RCCL replaced too.
    pub(crate) fn altered_rccl(
        change: impl FnOnce(&mut Hip),
        change_rccl: impl FnOnce(&mut Rccl),
    ) -> &'static Self {
        let provider = Self::altered(change);
        let mut rccl = cpu::rccl().expect("the CPU provider's");
        change_rccl(&mut rccl);
        assert!(provider.rccl.set(Ok(rccl)).is_ok(), "nobody has asked for it");
        provider
    }

    /// The CPU provider without RCCL, with the error of the provider `rocm` on such a machine.
    pub(crate) fn without_rccl() -> &'static Self {
        let provider = Self::altered(|_| ());
        let absent = names::Library { stem: "librccl-that-nobody-has", ..names::RCCL };
        assert!(provider.rccl.set(rccl_of_rocm(absent)).is_ok(), "nobody has asked for it");
        provider
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider")
            .field("kind", &self.kind)
            .field("devices", &self.devices)
            .field("versions", &self.versions)
            .field("libraries", &self.libraries)
            .finish_non_exhaustive()
    }
}

/// The first version of HIP whose hipBLASLt has the interface of `hipblaslt-sys`.
const HIPBLASLT_FROM: i32 = 6 * 10_000_000;

/// Where RCCL comes from.
const RCCL_FROM: &str = if cfg!(windows) {
    "AMD has no RCCL for Windows"
} else {
    "install the package `rccl` of AMD, or `librccl1` of Debian"
};

/// Where NCCL comes from.
const NCCL_FROM: &str = if cfg!(windows) {
    "NVIDIA has no NCCL for Windows"
} else {
    "install the package `libnccl2`, or `nvidia-nccl-cu13` from PyPI"
};

/// RCCL of the installation in use.
fn rccl_of_rocm(library: names::Library) -> Result<Rccl> {
    let library = installation::open(library).map_err(|missing| advise(missing, RCCL_FROM))?;
    log::debug!("RCCL: {}", library.path.display());
    fill!(Rccl, &library, "RCCL")
}

/// Adds to the error of a missing RCCL or NCCL where it comes from.
fn advise(missing: Error, from: &str) -> Error {
    match missing {
        Error::NotAvailable { reason, searched } => {
            let reason = format!("{reason}. Several devices need it, one does not: {from}");
            Error::NotAvailable { reason, searched }
        }
        other => other,
    }
}

/// Where a user reads on.
const ADVICE: &str = "`doctor()` and the example `device-info` say what mends it";

fn no_device(kind: ProviderKind, libraries: &[(&'static str, String)]) -> Error {
    let reason = match (kind, doctor::no_device()) {
        (ProviderKind::Rocm, Some(Finding { severity: Severity::Problem, what, .. })) => {
            format!("HIP is installed but finds no device: {what}. {ADVICE}")
        }
        (ProviderKind::Rocm, Some(other)) => {
            format!("HIP is installed but finds no device: {}", other.what)
        }
        (ProviderKind::Rocm, None) if cfg!(windows) => {
            "HIP is installed but finds no device: for an AMD GPU, update AMD Software \
             (https://www.amd.com/en/support)"
                .into()
        }
        (ProviderKind::Rocm, None) => "HIP is installed but finds no device".into(),
        _ => format!("{kind} has no device"),
    };
    Error::NotAvailable {
        reason,
        searched: libraries.iter().map(|(_, path)| format!("{path} (loaded)")).collect(),
    }
}

#[cfg_attr(all(feature = "cpu", feature = "cuda"), allow(dead_code))]
fn not_built(kind: ProviderKind) -> Error {
    Error::NotAvailable {
        reason: format!("the {kind} provider is not built into this program"),
        searched: Vec::new(),
    }
}

/// A provider, loaded and started at most once in a process.
pub(crate) fn candidate(kind: ProviderKind) -> Result<&'static Provider> {
    static CANDIDATES: [OnceLock<Result<Provider>>; 3] = [const { OnceLock::new() }; 3];
    CANDIDATES[kind as usize]
        .get_or_init(|| match kind {
            ProviderKind::Rocm => load_rocm(),
            ProviderKind::Cuda => {
                let (hip, hiprtc, libraries) = cuda::hip()?;
                Provider::start(kind, hip, hiprtc, libraries)
            }
            ProviderKind::Cpu => {
                let (hip, hiprtc) = cpu::hip()?;
                Provider::start(kind, hip, hiprtc, Vec::new())
            }
        })
        .as_ref()
        .map_err(Error::clone)
}

fn load_rocm() -> Result<Provider> {
    let hip_library = installation::open(names::HIP)?;
    let hip = fill!(Hip, &hip_library, "HIP")?;
    // Before ROCm 7, libamdhip64 also has hipRTC's functions.
    let (rtc_library, hiprtc): (Option<Loaded>, _) = match installation::open(names::HIPRTC) {
        Ok(library) => {
            let table = fill!(Hiprtc, &library, "hipRTC")?;
            (Some(library), table)
        }
        Err(missing) => (None, fill!(Hiprtc, &hip_library, "HIP").map_err(|_| missing)?),
    };
    let mut libraries = vec![(names::HIP.title, hip_library.shown())];
    libraries.extend(rtc_library.map(|library| (names::HIPRTC.title, library.shown())));
    Provider::start(ProviderKind::Rocm, hip, hiprtc, libraries)
}

/// The path of the C++ compiler that the CPU provider's hipRTC runs; `None` if there is no
/// compiler.
pub(crate) fn host_compiler() -> Option<std::path::PathBuf> {
    cpu::host_compiler()
}

/// The result of `hipRuntimeGetVersion`, called without looking for devices; 0 if HIP is not
/// installed or returns no version.
pub(crate) fn hip_version() -> i32 {
    let hip = installation::open(names::HIP).and_then(|library| fill!(Hip, &library, "HIP"));
    let mut version = 0;
    if let Ok(hip) = hip {
        // SAFETY: the function is HIP's; it writes one int.
        let status = unsafe { (hip.hipRuntimeGetVersion)(&mut version) };
        log::debug!("hipRuntimeGetVersion: {version}, status {status}");
    }
    version
}

/// AMD's hipRTC and the file that it was loaded from. Does not look for devices.
pub(crate) fn load_hiprtc() -> Result<(Hiprtc, String)> {
    match installation::open(names::HIPRTC) {
        Ok(library) => Ok((fill!(Hiprtc, &library, "hipRTC")?, library.shown())),
        Err(missing) => {
            let library = installation::open(names::HIP).map_err(|_| missing.clone())?;
            Ok((fill!(Hiprtc, &library, "HIP").map_err(|_| missing)?, library.shown()))
        }
    }
}

#[derive(Default)]
struct Chosen {
    provider: Option<&'static Provider>,
    passed_over: Vec<(ProviderKind, Error)>,
    /// What the program asked for, or what the settings said once the provider is in use. The inner
    /// `None` is the first provider that has a device.
    asked: Option<Option<ProviderKind>>,
}

static CHOSEN: Mutex<Chosen> = Mutex::new(Chosen { provider: None, passed_over: Vec::new(), asked: None });

/// The provider of this process. The first call chooses it: the one given to [`select_provider`],
/// else the one that [`Config::provider`](crate::Config::provider) names. All later calls return
/// the same one.
///
/// # Errors
/// `Config` if the environment has an invalid value; `NotAvailable` if the wanted provider is not
/// usable.
///
/// ```
/// let provider = hip::provider()?;
/// println!("{:?} has {} devices", provider.kind(), provider.device_count());
/// # Ok::<(), hip::Error>(())
/// ```
pub fn provider() -> Result<&'static Provider> {
    static FAST: OnceLock<&'static Provider> = OnceLock::new();
    if let Some(&provider) = FAST.get() {
        return Ok(provider);
    }
    let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(provider) = chosen.provider {
        return Ok(provider);
    }
    // Read even if the program has chosen: the first use of the provider fixes the settings.
    let settings = settings()?;
    let asked = chosen.asked.unwrap_or(settings.provider);
    let (provider, passed_over) = choose(asked)?;
    announce(provider, &passed_over)?;
    *chosen = Chosen { provider: Some(provider), passed_over, asked: Some(asked) };
    Ok(FAST.get_or_init(|| provider))
}

/// Chooses the provider; `None` stands for the first one that has a device. The choice overrides
/// [`Config::provider`](crate::Config::provider). Call it before the first use of a device or the
/// provider.
///
/// # Errors
/// `Config` if another provider is in use already. For `None`, this is any provider that was chosen
/// by its name.
///
/// ```
/// hip::select_provider(Some(hip::ProviderKind::Cpu))?;
/// assert_eq!(hip::provider()?.kind(), hip::ProviderKind::Cpu);
/// assert!(hip::select_provider(None).is_err());
/// # Ok::<(), hip::Error>(())
/// ```
pub fn select_provider(kind: Option<ProviderKind>) -> Result<()> {
    let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    match chosen.provider {
        None => {
            chosen.asked = Some(kind);
            Ok(())
        }
        Some(used) if kind == Some(used.kind) || chosen.asked == Some(kind) => Ok(()),
        Some(used) => Err(Error::config(
            "provider",
            format!("{} (in use already: choose before the first use)", used.kind),
            kind.map_or("auto", ProviderKind::name),
        )),
    }
}

/// The providers that were tried before the chosen one, each with the reason why it is not usable.
pub fn passed_over() -> Vec<(ProviderKind, Error)> {
    CHOSEN.lock().unwrap_or_else(PoisonError::into_inner).passed_over.clone()
}

#[allow(clippy::type_complexity)]
fn choose(asked: Option<ProviderKind>) -> Result<(&'static Provider, Vec<(ProviderKind, Error)>)> {
    if let Some(kind) = asked {
        return Ok((candidate(kind)?, Vec::new()));
    }
    let mut passed_over = Vec::new();
    for kind in ProviderKind::ALL {
        match candidate(kind) {
            Ok(provider) => return Ok((provider, passed_over)),
            Err(why) => passed_over.push((kind, why)),
        }
    }
    let reasons: Vec<_> = passed_over.iter().map(|(kind, why)| format!("{kind}: {}", reason(why))).collect();
    let searched = passed_over.into_iter().flat_map(|(_, why)| match why {
        Error::NotAvailable { searched, .. } => searched,
        _ => Vec::new(),
    });
    Err(Error::NotAvailable {
        reason: format!("no provider has a device ({}). {ADVICE}", reasons.join("; ")),
        searched: searched.collect(),
    })
}

/// An error's text without the list of places that were searched.
pub(crate) fn reason(error: &Error) -> String {
    match error {
        Error::NotAvailable { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}

/// Logs which provider is used, and which are not and why.
///
/// # Errors
/// `NotAvailable` if it is the CPU device in place of a GPU and
/// [`Config::strict`](crate::Config::strict) forbids that.
fn announce(provider: &Provider, passed_over: &[(ProviderKind, Error)]) -> Result<()> {
    let why: Vec<_> = passed_over.iter().map(|(kind, why)| format!("{kind}: {}", reason(why))).collect();
    let line = if why.is_empty() {
        format!("burn-rocm: using the {} provider, {} device(s)", provider.kind, provider.devices)
    } else {
        format!("burn-rocm: using the {} provider (passed over {})", provider.kind, why.join("; "))
    };
    let fell_back = provider.kind == ProviderKind::Cpu && !passed_over.is_empty();
    if fell_back {
        let reason = format!("no GPU, only the CPU device ({})", why.join("; "));
        allow_fallback(Error::NotAvailable { reason, searched: Vec::new() })?;
        log::warn!("{line}");
        // Prints the message if there is no logger (the maximum level is then `Off`), because
        // without it a user could mistake the CPU device for a slow GPU.
        if log::max_level() == log::LevelFilter::Off {
            eprintln!("{line}");
        }
    } else {
        log::info!("{line}");
    }
    Ok(())
}

/// Whether HIP can use an AMD GPU, whichever provider is chosen.
pub fn is_available() -> bool {
    rocm_device_count() > 0
}

/// How many AMD GPUs HIP can use, whichever provider is chosen; 0 if HIP is not installed.
pub fn rocm_device_count() -> usize {
    candidate(ProviderKind::Rocm).map_or(0, Provider::device_count)
}

/// Takes the CUDA provider's place if the feature `cuda` is off.
#[cfg(not(feature = "cuda"))]
mod cuda {
    use super::{Hip, Hipblaslt, Hiprtc, Miopen, ProviderKind, Rccl, Result, Rocblas, not_built};

    #[allow(clippy::type_complexity)]
    pub(super) fn hip() -> Result<(Hip, Hiprtc, Vec<(&'static str, String)>)> {
        Err(not_built(ProviderKind::Cuda))
    }

    pub(super) fn hiprtc_additions() -> std::iter::Empty<&'static str> {
        std::iter::empty()
    }

    pub(super) fn rocblas() -> Result<Rocblas> {
        Err(not_built(ProviderKind::Cuda))
    }

    pub(super) fn miopen() -> Result<Miopen> {
        Err(not_built(ProviderKind::Cuda))
    }

    pub(super) fn hipblaslt() -> Result<Hipblaslt> {
        Err(not_built(ProviderKind::Cuda))
    }

    pub(super) fn rccl() -> Result<Rccl> {
        Err(not_built(ProviderKind::Cuda))
    }
}

/// Takes the CPU provider's place if the feature `cpu` is off.
#[cfg(not(feature = "cpu"))]
mod cpu {
    use super::{Hip, Hipblaslt, Hiprtc, Miopen, ProviderKind, Rccl, Result, Rocblas, not_built};

    pub(super) const HIPRTC_ADDITIONS: &str = "";

    pub(super) fn hip() -> Result<(Hip, Hiprtc)> {
        Err(not_built(ProviderKind::Cpu))
    }

    pub(super) fn host_compiler() -> Option<std::path::PathBuf> {
        None
    }

    pub(super) fn rocblas() -> Result<Rocblas> {
        Err(not_built(ProviderKind::Cpu))
    }

    pub(super) fn miopen() -> Result<Miopen> {
        Err(not_built(ProviderKind::Cpu))
    }

    pub(super) fn hipblaslt() -> Result<Hipblaslt> {
        Err(not_built(ProviderKind::Cpu))
    }

    pub(super) fn rccl() -> Result<Rccl> {
        Err(not_built(ProviderKind::Cpu))
    }
}
