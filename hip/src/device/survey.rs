//! A report on each provider of this machine, for the example `device-info`.

use std::fmt;

use rocblas_sys::Rocblas;

use crate::device::Device;
use crate::device::info::DeviceInfo;
use crate::doctor::windows_driver;
use crate::error::{Error, Result};
use crate::provider::installation;
use crate::provider::inventory::{LibraryReport, inventory, version};
use crate::provider::kind::ProviderKind;
use crate::provider::library::fill;
use crate::provider::names;
use crate::provider::{Provider, Versions, candidate};
use crate::workarounds;

/// The state of one provider.
#[derive(Debug, Clone)]
pub struct ProviderReport {
    /// Which provider.
    pub kind: ProviderKind,
    /// Why it can't be used; `None` if it can.
    pub error: Option<Error>,
    /// The versions of its runtime, driver and hipRTC; `None` if it can't be used.
    pub versions: Option<Versions>,
    /// The installation of ROCm that all of AMD's libraries come from: its folders, and how it was
    /// found. `None` if no installation is usable, and for other providers.
    pub installation: Option<String>,
    /// On Windows, the HIP of AMD's driver and the driver's version; `None` if there is no driver,
    /// and for other providers.
    pub driver: Option<String>,
    /// AMD's libraries; empty for other providers.
    pub libraries: Vec<LibraryReport>,
    /// Its devices, each with its free bytes if the driver reports them.
    pub devices: Vec<(DeviceInfo, Option<usize>)>,
    /// Devices that can't be asked for their properties, each with the reason.
    /// [`doctor()`](crate::doctor()) finds other causes of a failure.
    pub hints: Vec<String>,
}

/// Reports on every provider, whichever is chosen.
///
/// ```
/// for report in hip::survey() {
///     match report.error {
///         None => println!("{:?} has {} devices", report.kind, report.devices.len()),
///         Some(why) => println!("{:?} can't be used: {why}", report.kind),
///     }
/// }
/// ```
pub fn survey() -> Vec<ProviderReport> {
    ProviderKind::ALL.into_iter().map(report).collect()
}

fn report(kind: ProviderKind) -> ProviderReport {
    let mut report = ProviderReport {
        kind,
        error: None,
        versions: None,
        installation: None,
        driver: None,
        libraries: Vec::new(),
        devices: Vec::new(),
        hints: Vec::new(),
    };
    match candidate(kind) {
        Ok(provider) => report.look_at(provider),
        Err(error) => report.error = Some(error),
    }
    if kind == ProviderKind::Rocm {
        report.installation = installation::in_use();
        report.libraries = inventory();
        report.driver = windows_driver();
    }
    report
}

/// Checks that this machine's rocBLAS has kernels for an architecture, such as `gfx1030` or
/// `gfx90a:sramecc+:xnack-`. It needs no device. [`crate::Device::blas`] does the same check,
/// because rocBLAS without kernels ends the process.
///
/// # Errors
/// `NotAvailable` if rocBLAS is not installed, or its folder has no kernels for the architecture.
pub fn rocblas_serves(architecture: &str) -> Result<()> {
    let library = installation::open(names::ROCBLAS)?;
    let table = fill!(Rocblas, &library, "rocBLAS")?;
    workarounds::rocblas_has_kernels(&table, architecture)
}

impl ProviderReport {
    fn look_at(&mut self, provider: &'static Provider) {
        self.versions = Some(provider.versions());
        for index in 0..provider.device_count() {
            match DeviceInfo::query(provider, index) {
                Ok(info) => {
                    let context = crate::device::context::Context::new(provider, index, index);
                    let free = crate::memory::driver::free_and_total(&context).ok().map(|(free, _)| free);
                    // The kernel does not count the managed memory that this process has of it.
                    let managed = Device::opened()
                        .iter()
                        .find(|device| device.info().index == index && device.provider().kind() == self.kind)
                        .map_or(0, |device| device.pool.managed());
                    let free = free.map(|free| info.apu.as_ref().map_or(free, |apu| apu.free(free, managed)));
                    self.devices.push((info, free));
                }
                Err(error) => self.hints.push(format!("device {index}: {error}")),
            }
        }
    }
}

impl fmt::Display for ProviderReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            None => writeln!(f, "{}: {} device(s)", self.kind, self.devices.len())?,
            Some(Error::NotAvailable { reason, searched }) => {
                writeln!(f, "{}: not usable: {reason}", self.kind)?;
                for place in searched {
                    writeln!(f, "    looked for {place}")?;
                }
            }
            Some(error) => writeln!(f, "{}: not usable: {error}", self.kind)?,
        }
        if let Some(versions) = self.versions {
            let (major, minor) = versions.hiprtc;
            writeln!(
                f,
                "  HIP runtime {}, driver {}, hipRTC {major}.{minor}",
                version(versions.runtime),
                version(versions.driver)
            )?;
        }
        if let Some(installation) = &self.installation {
            writeln!(f, "  ROCm in use: {installation}")?;
        }
        if let Some(driver) = &self.driver {
            writeln!(f, "  AMD's driver: {driver}")?;
        }
        for library in &self.libraries {
            writeln!(f, "  {library}")?;
        }
        for (device, free) in &self.devices {
            writeln!(f, "  device {}: {} ({})", device.index, device.name, device.arch)?;
            let free = free.map_or(String::new(), |free| format!(", {} free", gigabytes(free)));
            writeln!(f, "    memory {}{free}", gigabytes(device.usable_memory()))?;
            if let Some(apu) = &device.apu {
                writeln!(f, "    shared with the host, by {}: {}", apu.allocation.name(), apu.reason)?;
            }
            writeln!(
                f,
                "    {} compute units, warps of {}, blocks of up to {} threads with {} KiB of shared memory",
                device.compute_units,
                device.warp_size,
                device.max_threads_per_block,
                device.shared_memory_per_block >> 10
            )?;
        }
        for hint in &self.hints {
            writeln!(f, "  note: {hint}")?;
        }
        Ok(())
    }
}

fn gigabytes(bytes: usize) -> String {
    format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64)
}
