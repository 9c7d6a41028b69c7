//! The control of the check: a launch outside the profile's work, between two of the profile's. The
//! check must show exactly this one as unnamed. Otherwise CUPTI's links can't be trusted here.

use std::ffi::c_int;

use burn_rocm::{RocmDevice, profile};
use libloading::Library;

use super::join::{Activity, Why, join, pieces};
use super::library::Cupti;

/// Bytes of the profile's memsets, and of the other one.
const NAMED: usize = 1 << 20;
const UNNAMED: usize = 3 << 20;

/// Runs the three launches, and returns a text that says what the check shows.
///
/// # Errors
/// An error text if the check shows anything else, or a call fails.
pub(super) fn run(cupti: &Cupti, device: &RocmDevice) -> Result<String, String> {
    let gpu = hip::Device::get(device.index).map_err(|error| error.to_string())?;
    let buffer = gpu.alloc(NAMED).map_err(|error| error.to_string())?;
    let memory = Memory::new()?;
    let fill = || gpu.fill_bytes(&buffer, 0, 7, NAMED).map_err(|error| error.to_string());
    fill()?;
    gpu.sync().map_err(|error| error.to_string())?;
    let ((result, profile), record) = cupti.during(|| {
        profile(|| {
            fill()?;
            memory.fill()?;
            fill()
        })
    })?;
    result?;
    let pieces = pieces(&profile)?;
    let joined = join(&record, &pieces)?;
    let has = |activity: &Activity, bytes: usize| activity.bytes == bytes as u64;
    let count = |bytes| record.activities.iter().filter(|activity| has(activity, bytes)).count();
    let lacks: Vec<_> = joined.lacks.iter().map(|((name, why), sum)| (*name, *why, sum.calls)).collect();
    let expected = [("memset", Why::Outside, 1)];
    if lacks != expected || joined.named.calls != 2 || [count(NAMED), count(UNNAMED)] != [2, 1] {
        return Err(format!(
            "two memsets of the profile and one outside of it should be recorded, and only that one have no \
             name; {} have one, and these have none: {lacks:?}\n{record:?}\n{pieces:?}",
            joined.named.calls
        ));
    }
    Ok("Control: of three memsets, only the one outside the profile's work has no name.".into())
}

type Status = c_int;

/// Memory that CUDA's driver allocated, outside this project's knowledge.
struct Memory {
    driver: Library,
    address: u64,
}

impl Memory {
    /// Allocates in the context of the calling thread.
    fn new() -> Result<Self, String> {
        // SAFETY: the driver's initialisers have no preconditions.
        let driver = unsafe { Library::new("libcuda.so.1") }.map_err(|error| error.to_string())?;
        let mut memory = Self { driver, address: 0 };
        type Alloc = unsafe extern "C" fn(*mut u64, usize) -> Status;
        // SAFETY: the signature is that of `cuda.h`; it writes one address.
        let status = unsafe {
            let alloc = memory.driver.get::<Alloc>(b"cuMemAlloc_v2\0").map_err(|error| error.to_string())?;
            alloc(&mut memory.address, UNNAMED)
        };
        check("cuMemAlloc", status)?;
        Ok(memory)
    }

    /// Fills the memory, and waits for that.
    fn fill(&self) -> Result<(), String> {
        type Fill = unsafe extern "C" fn(u64, u8, usize) -> Status;
        // SAFETY: the signature is that of `cuda.h`; the memory has as many bytes.
        let status = unsafe {
            let fill = self.driver.get::<Fill>(b"cuMemsetD8_v2\0").map_err(|error| error.to_string())?;
            fill(self.address, 7, UNNAMED)
        };
        check("cuMemsetD8", status)?;
        type Wait = unsafe extern "C" fn() -> Status;
        // SAFETY: the signature is that of `cuda.h`, without a precondition.
        let status = unsafe {
            let wait = self.driver.get::<Wait>(b"cuCtxSynchronize\0").map_err(|error| error.to_string())?;
            wait()
        };
        check("cuCtxSynchronize", status)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        type Free = unsafe extern "C" fn(u64) -> Status;
        // SAFETY: the signature is that of `cuda.h`. `fill` has waited for its memset, and nobody
        // uses the memory afterwards. A failure leaks it.
        unsafe {
            if let Ok(free) = self.driver.get::<Free>(b"cuMemFree_v2\0") {
                free(self.address);
            }
        }
    }
}

fn check(call: &str, status: Status) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{call}: CUresult {status}")) }
}
