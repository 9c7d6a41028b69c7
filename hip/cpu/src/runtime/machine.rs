//! The machine's memory and processor.

use std::{ffi::c_int, fs, sync::OnceLock};

/// The machine's memory in bytes, or the limit of the control group if that is less.
pub(super) fn total_memory() -> usize {
    static TOTAL: OnceLock<usize> = OnceLock::new();
    *TOTAL.get_or_init(|| {
        let machine = meminfo("MemTotal:").unwrap_or(usize::MAX / 2);
        control_group("memory.max").map_or(machine, |limit| limit.min(machine))
    })
}

/// The available memory in bytes.
pub(super) fn available_memory() -> usize {
    let machine = meminfo("MemAvailable:").unwrap_or(usize::MAX / 2);
    match (control_group("memory.max"), control_group("memory.current")) {
        (Some(limit), Some(used)) => limit.saturating_sub(used).min(machine),
        _ => machine,
    }
}

fn meminfo(field: &str) -> Option<usize> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse::<usize>().ok()?.checked_mul(1024)
}

fn control_group(file: &str) -> Option<usize> {
    fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?.trim().parse().ok()
}

/// The processor.
pub(super) struct Cpu {
    pub(super) name: String,
    pub(super) clock_khz: c_int,
    pub(super) l2_bytes: c_int,
}

/// The processor as Linux reports it, with a generic name and zeros for missing facts.
pub(super) fn cpu() -> &'static Cpu {
    static CPU: OnceLock<Cpu> = OnceLock::new();
    CPU.get_or_init(|| {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = info.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let cache = fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index2/size").unwrap_or_default();
        let kilobytes: c_int = cache.trim().trim_end_matches('K').parse().unwrap_or(0);
        Cpu {
            name: field("model name").unwrap_or_else(|| format!("{} CPU", std::env::consts::ARCH)),
            clock_khz: field("cpu MHz")
                .and_then(|mhz| mhz.parse::<f64>().ok())
                .map_or(0, |mhz| (mhz * 1e3) as c_int),
            l2_bytes: kilobytes.saturating_mul(1024),
        }
    })
}
