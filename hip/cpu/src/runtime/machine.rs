//! The machine's memory and processor.

#[cfg(not(windows))]
use super::control_group::limits;
use std::{ffi::c_int, sync::OnceLock};

/// Windows has no control groups.
#[cfg(windows)]
fn limits() -> Vec<(usize, usize)> {
    Vec::new()
}

/// The machine's memory in bytes, or the least limit of the process's control groups if that is less.
pub(super) fn total_memory() -> usize {
    static TOTAL: OnceLock<usize> = OnceLock::new();
    *TOTAL.get_or_init(|| {
        let machine = system::memory().map_or(usize::MAX / 2, |(total, _)| total);
        limits().into_iter().map(|(limit, _)| limit).fold(machine, usize::min)
    })
}

/// The available memory in bytes: the machine's, or what the process's control groups leave if that
/// is less.
pub(super) fn available_memory() -> usize {
    let machine = system::memory().map_or(usize::MAX / 2, |(_, available)| available);
    limits().into_iter().map(|(limit, used)| limit.saturating_sub(used)).fold(machine, usize::min)
}

/// The processor.
pub(super) struct Cpu {
    pub(super) name: String,
    pub(super) clock_khz: c_int,
    pub(super) l2_bytes: c_int,
}

/// The processor as the system reports it, with a generic name and zeros for missing facts.
pub(super) fn cpu() -> &'static Cpu {
    static CPU: OnceLock<Cpu> = OnceLock::new();
    CPU.get_or_init(system::cpu)
}

fn generic_name() -> String {
    format!("{} CPU", std::env::consts::ARCH)
}

/// Linux's files. Other systems with none of them have the same as a machine without facts.
#[cfg(not(windows))]
mod system {
    use super::{Cpu, c_int, generic_name};
    use std::fs;

    /// The total and the available memory.
    pub(super) fn memory() -> Option<(usize, usize)> {
        let info = fs::read_to_string("/proc/meminfo").ok()?;
        let field = |name: &str| {
            let line = info.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse::<usize>().ok()?.checked_mul(1024)
        };
        // Kernels before 3.14, and WSL 1, do not say what is available.
        let total = field("MemTotal:")?;
        Some((total, field("MemAvailable:").unwrap_or(total)))
    }

    pub(super) fn cpu() -> Cpu {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = info.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let cache = fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index2/size").unwrap_or_default();
        let kilobytes: c_int = cache.trim().trim_end_matches('K').parse().unwrap_or(0);
        Cpu {
            name: field("model name").unwrap_or_else(generic_name),
            clock_khz: field("cpu MHz")
                .and_then(|mhz| mhz.parse::<f64>().ok())
                .map_or(0, |mhz| (mhz * 1e3) as c_int),
            l2_bytes: kilobytes.saturating_mul(1024),
        }
    }
}

#[cfg(windows)]
mod system {
    use super::{Cpu, generic_name};

    /// `MEMORYSTATUSEX`.
    #[repr(C)]
    #[derive(Default)]
    struct Status {
        size: u32,
        load: u32,
        total: u64,
        available: u64,
        total_page_file: u64,
        available_page_file: u64,
        total_virtual: u64,
        available_virtual: u64,
        available_extended: u64,
    }

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn GlobalMemoryStatusEx(status: *mut Status) -> i32;
    }

    /// The total and the available memory.
    pub(super) fn memory() -> Option<(usize, usize)> {
        let mut status = Status { size: size_of::<Status>() as u32, ..Status::default() };
        // SAFETY: the function writes the struct, whose size it is told.
        let known = unsafe { GlobalMemoryStatusEx(&mut status) };
        (known != 0).then_some((status.total as usize, status.available as usize))
    }

    /// The processor's own name. Clock and cache are not asked for.
    pub(super) fn cpu() -> Cpu {
        Cpu { name: brand().unwrap_or_else(generic_name), clock_khz: 0, l2_bytes: 0 }
    }

    #[cfg(target_arch = "x86_64")]
    fn brand() -> Option<String> {
        use std::arch::x86_64::__cpuid;
        const FIRST: u32 = 0x8000_0002;
        let last = __cpuid(0x8000_0000).eax;
        if last < FIRST + 2 {
            return None;
        }
        let words = (FIRST..FIRST + 3).map(__cpuid).flat_map(|part| [part.eax, part.ebx, part.ecx, part.edx]);
        let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).take_while(|&byte| byte != 0).collect();
        Some(String::from_utf8_lossy(&bytes).trim().to_owned()).filter(|name| !name.is_empty())
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn brand() -> Option<String> {
        None
    }
}
