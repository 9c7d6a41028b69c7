//! The memory of an integrated GPU (APU): the carve-out that the firmware reserves for it, and what
//! the kernel lets it use of the host's memory besides (GTT).
//!
//! [043](../../../docs/decisions/043-memory-of-apus.md) says what is known about it, and from where.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::memory::summary::bytes_of;
use crate::settings::ApuMemory;

/// What HIP reports of a device's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reported {
    /// Whether the device shares the host's memory.
    pub(crate) integrated: bool,
    /// Whether `hipMallocManaged` works on it.
    pub(crate) managed: bool,
    /// Domain, bus and device on the PCI bus.
    pub(crate) pci: [u32; 3],
    /// `hipDeviceTotalMem`.
    pub(crate) total: usize,
}

/// Where the memory of an integrated GPU comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApuAllocation {
    /// `hipMalloc` alone.
    Device,
    /// `hipMalloc`, and `hipMallocManaged` for what it has no memory for.
    DeviceThenManaged,
    /// `hipMallocManaged` alone.
    Managed,
}

impl ApuAllocation {
    /// The functions that allocate.
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "hipMalloc",
            Self::DeviceThenManaged => "hipMalloc, then hipMallocManaged",
            Self::Managed => "hipMallocManaged",
        }
    }
}

/// The memory of an integrated GPU, and where the pool takes it from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Apu {
    /// Bytes that the firmware reserves for the GPU; `None` if the kernel does not show them.
    pub carve_out: Option<usize>,
    /// Bytes of the host's memory that the GPU may use besides; `None` if the kernel does not show
    /// them.
    pub gtt: Option<usize>,
    /// Where the pool takes memory from.
    pub allocation: ApuAllocation,
    /// Why.
    pub reason: String,
    /// Whether the GPU's memory is at least its GTT, whatever `hipMemGetInfo` says.
    pub(crate) counts_gtt: bool,
    /// The device's folder of the kernel.
    folder: PathBuf,
    meminfo: PathBuf,
}

/// Since this version, the kernel serves what HIP asks of an APU's memory from GTT, if GTT is larger
/// than the carve-out.
const SERVES_GTT: (u32, u32) = (6, 10);

impl Apu {
    /// The memory of a device whose kernel's files lie below `root`; `None` if the device is not
    /// integrated.
    pub(crate) fn of(reported: Reported, setting: ApuMemory, root: &Path) -> Option<Self> {
        let [domain, bus, device] = reported.pci;
        let folder = root.join(format!("sys/bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0"));
        // HIP before 6.2 says of no GPU that it is integrated.
        if !reported.integrated && !has_metrics_of_an_apu(&folder) {
            return None;
        }
        let carve_out = number(&folder.join("mem_info_vram_total"));
        let gtt = number(&folder.join("mem_info_gtt_total"));
        let kernel = kernel(&root.join("proc/sys/kernel/osrelease"));
        let serves_gtt = kernel.is_some_and(|version| version >= SERVES_GTT);
        let larger = gtt.zip(carve_out).is_some_and(|(gtt, carve_out)| gtt > carve_out);
        let hip_counts_it = gtt.is_some_and(|gtt| reported.total >= gtt);

        use ApuAllocation::{Device, DeviceThenManaged, Managed};
        let sizes = || match gtt.zip(carve_out) {
            Some((gtt, carve_out)) => {
                format!("a carve-out of {} and {} of GTT", bytes_of(carve_out), bytes_of(gtt))
            }
            None => "a carve-out and GTT that the kernel does not show".into(),
        };
        let (allocation, reason) = match setting {
            ApuMemory::Device => (Device, "BURN_ROCM_APU_MEMORY=device".to_owned()),
            ApuMemory::Managed if reported.managed => (Managed, "BURN_ROCM_APU_MEMORY=managed".to_owned()),
            ApuMemory::Managed => {
                (Device, "BURN_ROCM_APU_MEMORY=managed, but HIP reports no managed memory".to_owned())
            }
            ApuMemory::Auto if gtt.is_none() => (Device, "the kernel shows no GTT of this device".to_owned()),
            ApuMemory::Auto if !larger => {
                (Device, format!("GTT is not larger than the carve-out: {}", sizes()))
            }
            ApuMemory::Auto if hip_counts_it => {
                (Device, format!("HIP counts GTT as the device's memory: {}", sizes()))
            }
            ApuMemory::Auto if serves_gtt => {
                (Device, format!("from Linux 6.10 on, hipMalloc takes GTT where it is larger: {}", sizes()))
            }
            ApuMemory::Auto if !reported.managed => {
                (Device, format!("HIP reports no managed memory: {}", sizes()))
            }
            ApuMemory::Auto => {
                (DeviceThenManaged, format!("hipMalloc may have the carve-out alone: {}", sizes()))
            }
        };
        let counts_gtt = larger && (serves_gtt || allocation != Device);
        let meminfo = root.join("proc/meminfo");
        Some(Self { carve_out, gtt, allocation, reason, counts_gtt, folder, meminfo })
    }

    /// Refuses a setting that the device can't follow.
    ///
    /// # Errors
    /// `Config` if managed memory was asked for and HIP has none for the device.
    pub(crate) fn check(&self, setting: ApuMemory) -> Result<()> {
        if setting == ApuMemory::Managed && self.allocation != ApuAllocation::Managed {
            let expected = "auto or device, or a GPU for which HIP reports managed memory";
            return Err(Error::config("BURN_ROCM_APU_MEMORY", expected, "managed"));
        }
        Ok(())
    }

    /// The bytes of memory, where HIP reports `total`.
    pub(crate) fn total(&self, total: usize) -> usize {
        match self.gtt {
            Some(gtt) if self.counts_gtt => total.max(gtt),
            _ => total,
        }
    }

    /// The free bytes, where HIP reports `free` and the pool holds `managed` bytes of managed memory.
    pub(crate) fn free(&self, free: usize, managed: usize) -> usize {
        if self.counts_gtt { free.max(self.left(managed)) } else { free }
    }

    /// The bytes that the GPU may still use of the host's memory. The kernel counts no managed memory
    /// as GTT, and gives a process more than it has, which it later ends. So both are looked at.
    pub(crate) fn left(&self, managed: usize) -> usize {
        let used = number(&self.folder.join("mem_info_gtt_used")).unwrap_or(0);
        let gtt = self.gtt.map_or(usize::MAX, |gtt| gtt.saturating_sub(used).saturating_sub(managed));
        gtt.min(available(&self.meminfo).unwrap_or(usize::MAX))
    }
}

/// Whether the kernel's metrics of a device have a format for APUs. The third byte is the format:
/// `gpu_metrics_v1` is for GPUs with memory of their own, `v2` and `v3` for APUs
/// (`drivers/gpu/drm/amd/include/kgd_pp_interface.h` of Linux).
fn has_metrics_of_an_apu(folder: &Path) -> bool {
    let mut header = [0; 4];
    let read = File::open(folder.join("gpu_metrics")).and_then(|mut file| file.read_exact(&mut header));
    read.is_ok() && matches!(header[2], 2 | 3)
}

/// The number that a file of the kernel has.
fn number(file: &Path) -> Option<usize> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn available(file: &Path) -> Option<usize> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// The first two numbers of the kernel's version.
fn kernel(file: &Path) -> Option<(u32, u32)> {
    let text = fs::read_to_string(file).ok()?;
    let mut parts = text.split(|letter: char| !letter.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// An imitation of the kernel's files for a device at 0000:c5:00.0.
    struct Imitation(PathBuf);

    impl Imitation {
        fn new(name: &str, kernel: &str, carve_out: usize, gtt: usize) -> Self {
            let root = std::env::temp_dir().join(format!("burn-rocm-apu-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            let own = Self(root);
            own.write("proc/sys/kernel/osrelease", kernel);
            own.write("proc/meminfo", "MemTotal: 16384000 kB\nMemAvailable:   8192000 kB\n");
            own.card("mem_info_vram_total", carve_out);
            own.card("mem_info_gtt_total", gtt);
            own.card("mem_info_gtt_used", 100 * MIB);
            own
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder of the test's own");
            fs::write(path, text).expect("a file of the test's own");
        }

        fn card(&self, name: &str, bytes: usize) {
            self.of_device(name, &format!("{bytes}\n"));
        }

        fn of_device(&self, name: &str, text: &str) {
            self.write(&format!("sys/bus/pci/devices/0000:c5:00.0/{name}"), text);
        }

        fn apu(&self, reported: Reported, setting: ApuMemory) -> Apu {
            Apu::of(reported, setting, &self.0).expect("an integrated GPU")
        }
    }

    impl Drop for Imitation {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// What HIP says of an APU whose carve-out it takes for all of its memory.
    const CARVE_OUT: Reported =
        Reported { integrated: true, managed: true, pci: [0, 0xc5, 0], total: 512 * MIB };

    #[test]
    fn an_old_kernel_brings_managed_memory_beyond_the_carve_out() {
        let old = Imitation::new("old", "6.8.0-45-generic\n", 512 * MIB, 7680 * MIB);
        let apu = old.apu(CARVE_OUT, ApuMemory::Auto);
        assert_eq!(apu.allocation, ApuAllocation::DeviceThenManaged, "{}", apu.reason);
        assert!(apu.reason.contains("512.0 MiB") && apu.reason.contains("7.5 GiB"), "{}", apu.reason);
        assert_eq!((apu.carve_out, apu.gtt), (Some(512 * MIB), Some(7680 * MIB)));
        assert_eq!(apu.total(512 * MIB), 7680 * MIB);
        assert_eq!(apu.free(20 * MIB, 80 * MIB), 7500 * MIB);
        // What the host has left is less than what is left of GTT.
        old.write("proc/meminfo", "MemAvailable: 1024 kB\n");
        assert_eq!((apu.left(0), apu.free(20 * MIB, 0)), (MIB, 20 * MIB));
    }

    #[test]
    fn where_hip_malloc_serves_gtt_there_is_no_managed_memory() {
        let new = Imitation::new("new", "6.10.3\n", 512 * MIB, 7680 * MIB);
        let apu = new.apu(CARVE_OUT, ApuMemory::Auto);
        assert_eq!(apu.allocation, ApuAllocation::Device, "{}", apu.reason);
        assert!(apu.reason.contains("6.10"), "{}", apu.reason);
        assert_eq!(apu.total(512 * MIB), 7680 * MIB, "HIP shows the carve-out alone");
        let counted = Reported { total: 8192 * MIB, ..CARVE_OUT };
        let apu = new.apu(counted, ApuMemory::Auto);
        assert!(apu.reason.contains("HIP counts GTT"), "{}", apu.reason);
        assert_eq!(apu.total(8192 * MIB), 8192 * MIB);
    }

    #[test]
    fn what_stays_with_hip_malloc() {
        let large = Imitation::new("large", "6.8.0\n", 4096 * MIB, 2048 * MIB);
        let apu = large.apu(Reported { total: 4096 * MIB, ..CARVE_OUT }, ApuMemory::Auto);
        assert!(apu.reason.contains("not larger"), "{}", apu.reason);
        assert_eq!(apu.total(4096 * MIB), 4096 * MIB);
        assert_eq!(apu.free(MIB, 0), MIB);
        let old = Imitation::new("unmanaged", "5.15.0\n", 512 * MIB, 7680 * MIB);
        let apu = old.apu(Reported { managed: false, ..CARVE_OUT }, ApuMemory::Auto);
        assert!(apu.reason.contains("no managed memory"), "{}", apu.reason);
        assert_eq!(apu.total(512 * MIB), 512 * MIB);
        let elsewhere = Reported { pci: [0, 1, 0], ..CARVE_OUT };
        assert!(old.apu(elsewhere, ApuMemory::Auto).reason.contains("shows no GTT"));
        assert_eq!(Apu::of(Reported { integrated: false, ..CARVE_OUT }, ApuMemory::Auto, &old.0), None);
        for apu in [apu, old.apu(CARVE_OUT, ApuMemory::Device)] {
            assert_eq!(apu.allocation, ApuAllocation::Device);
        }
    }

    #[test]
    fn the_kernel_knows_an_apu_that_an_old_hip_does_not() {
        let old = Imitation::new("metrics", "6.8.0\n", 512 * MIB, 7680 * MIB);
        let unknown = Reported { integrated: false, ..CARVE_OUT };
        let of = |format: &str| {
            old.of_device("gpu_metrics", format);
            Apu::of(unknown, ApuMemory::Auto, &old.0).map(|apu| apu.allocation)
        };
        assert_eq!(of("\x78\0\x01\x03 and numbers"), None, "a GPU with memory of its own");
        assert_eq!(of("\x78\0\x02\x03 and numbers"), Some(ApuAllocation::DeviceThenManaged));
        assert_eq!(of("\x78\0\x03\0 and numbers"), Some(ApuAllocation::DeviceThenManaged));
        assert_eq!(of("\x78\0\x02"), None, "shorter than its header");
    }

    #[test]
    fn the_setting_decides_or_is_refused() {
        let new = Imitation::new("asked", "6.12.0\n", 512 * MIB, 7680 * MIB);
        let apu = new.apu(CARVE_OUT, ApuMemory::Managed);
        assert_eq!(apu.allocation, ApuAllocation::Managed);
        assert!(apu.check(ApuMemory::Managed).is_ok());
        let apu = new.apu(Reported { managed: false, ..CARVE_OUT }, ApuMemory::Managed);
        assert_eq!(apu.allocation, ApuAllocation::Device);
        assert!(matches!(apu.check(ApuMemory::Managed), Err(Error::Config { .. })));
        assert!(apu.check(ApuMemory::Auto).is_ok());
    }
}
