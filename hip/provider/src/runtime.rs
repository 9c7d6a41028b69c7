//! The HIP runtime: statuses and their texts, the allocation map, what there is of devices, copies, checks of launches.

mod copies;
mod devices;
mod memory;
mod status;

pub use copies::*;
pub use devices::*;
pub use memory::{Allocations, Place};
pub use status::{Status, api, hipGetErrorName, hipGetErrorString, hipGetLastError, is_named, put};

use core::ffi::{c_char, c_uint};
use hip_sys::*;

/// All flags of an event in `hip_runtime_api.h`: blocking, no timing, interprocess, and the three about fences.
pub const EVENT_FLAGS: c_uint = 1 | 2 | 4 | 0x2000_0000 | 0x4000_0000 | 0x8000_0000;

/// Copies what fits of a text, and ends it with a NUL; `out` is not empty.
pub fn copy_text(out: &mut [c_char], text: &str) {
    let fits = text.len().min(out.len() - 1);
    for (out, byte) in out.iter_mut().zip(&text.as_bytes()[..fits]) {
        *out = *byte as c_char;
    }
    out[fits] = 0;
}

/// AMD's checks of a launch's grid and block, in AMD's order; `most` is that of the grid's second and third side.
#[inline]
pub fn check_launch(grid: [u32; 3], block: [u32; 3], most: u32) -> Status {
    if grid[0] > i32::MAX as u32 || grid[1] > most || grid[2] > most {
        return Err(hipErrorInvalidValue);
    }
    if u64::from(grid[0]) * u64::from(block[0]) > u64::from(u32::MAX) {
        return Err(hipErrorInvalidConfiguration);
    }
    if grid.contains(&0) {
        return Err(hipErrorInvalidValue);
    }
    if block.contains(&0) {
        return Err(hipErrorInvalidConfiguration);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_are_checked_in_amds_order() {
        let check = |grid, block| check_launch(grid, block, 65535);
        assert_eq!(check([1, 1, 1], [256, 1, 1]), Ok(()));
        assert_eq!(check([0, 1, 1], [256, 1, 1]), Err(hipErrorInvalidValue));
        assert_eq!(check([1, 1, 1], [0, 1, 1]), Err(hipErrorInvalidConfiguration));
        assert_eq!(check([1 << 24, 1, 1], [1024, 1, 1]), Err(hipErrorInvalidConfiguration));
        assert_eq!(check([1, 70000, 1], [1, 1, 1]), Err(hipErrorInvalidValue));
    }
}
