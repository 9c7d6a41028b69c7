//! The architectures for which kernels are compiled, and the limits of their registers and LDS.
//!
//! Source of every number: LLVM 22, `llvm/lib/Target/AMDGPU/Utils/AMDGPUBaseInfo.cpp`
//! (`getVGPRAllocGranule`, `getTotalNumVGPRs`, `getMaxWavesPerEU`, `getNumWavesPerEUWithNumVGPRs`),
//! compared with the `Occupancy` that `llc-22` prints for kernels of 24 to 97 registers. LDS sizes
//! are from the "Processors" table of LLVM's AMDGPU guide.

use crate::notes::Notes;

/// Threads of a block in most of this backend's launches.
const BLOCK: u32 = 256;

/// The register files and LDS of one generation.
#[derive(Debug)]
pub(crate) struct Generation {
    /// The most waves of a SIMD.
    pub(crate) waves: u32,
    /// The number of waves that a memory-bound kernel must allow.
    pub(crate) enough: u32,
    /// Vector registers for each lane, which a SIMD's waves share.
    vgprs: u32,
    /// Registers are allocated in groups of this size.
    granule: u32,
    /// Whether scalar registers limit the waves too.
    scalars_count: bool,
    /// Bytes of LDS of the unit that shares it: a CU or a WGP.
    lds: u32,
    /// The SIMDs of that unit.
    simds: u32,
}

/// GCN has half of CDNA 2's registers. With ten waves, kernels could use at most 24 registers,
/// including those for 64-bit addresses. Hardly any kernel that takes 16 bytes per thread fits into
/// 24. So the rule asks for the four waves that 64 registers allow (with 64 registers, CDNA 2 has
/// all its waves). These keep 16 KB in flight in a CU, whose share of the bandwidth, at some 600 ns
/// of latency, is 4.5 KB (gfx900), 10 KB (gfx906) or 6 KB (gfx908).
const GCN: Generation =
    Generation { waves: 10, enough: 4, vgprs: 256, granule: 4, scalars_count: true, lds: 64 << 10, simds: 4 };
const CDNA2: Generation =
    Generation { waves: 8, enough: 8, vgprs: 512, granule: 8, scalars_count: true, lds: 64 << 10, simds: 4 };
const CDNA4: Generation = Generation { lds: 160 << 10, ..CDNA2 };
const RDNA1: Generation = Generation {
    waves: 20,
    enough: 20,
    vgprs: 1024,
    granule: 8,
    scalars_count: false,
    lds: 128 << 10,
    simds: 4,
};
const RDNA2: Generation = Generation { waves: 16, enough: 16, granule: 16, ..RDNA1 };
/// RDNA 3 and 4 with the larger register file.
const RDNA3: Generation = Generation { vgprs: 1536, granule: 24, ..RDNA2 };

/// An architecture for which kernels are compiled.
#[derive(Debug)]
pub(crate) struct Architecture {
    /// `gfx1030` and so on.
    pub(crate) name: &'static str,
    /// Whether every CI run compiles all kernels for it.
    pub(crate) always: bool,
    /// Its registers and LDS.
    pub(crate) generation: &'static Generation,
}

const fn of(name: &'static str, generation: &'static Generation) -> Architecture {
    Architecture { name, always: false, generation }
}
const fn always(name: &'static str, generation: &'static Generation) -> Architecture {
    Architecture { name, always: true, generation }
}

/// All architectures.
pub(crate) const ARCHITECTURES: &[Architecture] = &[
    of("gfx900", &GCN),
    of("gfx906", &GCN),
    of("gfx908", &GCN),
    always("gfx90a", &CDNA2),
    always("gfx942", &CDNA2),
    of("gfx950", &CDNA4),
    of("gfx1010", &RDNA1),
    always("gfx1030", &RDNA2),
    of("gfx1031", &RDNA2),
    of("gfx1032", &RDNA2),
    of("gfx1100", &RDNA3),
    of("gfx1101", &RDNA3),
    of("gfx1102", &RDNA2), // the smaller register file
    of("gfx1151", &RDNA3),
    of("gfx1200", &RDNA3),
    of("gfx1201", &RDNA3),
];

impl Generation {
    /// The waves of a kernel that fit on a SIMD.
    pub(crate) fn waves_of(&self, kernel: &Notes) -> u32 {
        // If the two kinds of registers share a file, the notes count both as vector registers.
        let registers = kernel.vgprs.max(kernel.agprs).max(1).next_multiple_of(self.granule);
        let mut waves = (self.vgprs / registers).min(self.waves);
        if self.scalars_count {
            // `getNumWavesPerEUWithNumSGPRs` of GFX9: 800 registers in groups of 16, including VCC
            // and similar ones.
            waves = waves.min(match kernel.sgprs {
                0..=80 => 10,
                81..=88 => 9,
                89..=100 => 8,
                _ => 7,
            });
        }
        if let Some(blocks) = self.lds.checked_div(kernel.lds) {
            waves = waves.min(blocks * BLOCK.div_ceil(kernel.wave) / self.simds);
        }
        waves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(vgprs: u32, sgprs: u32, lds: u32, wave: u32) -> Notes {
        let symbol = String::new();
        let (agprs, vgpr_spills, sgpr_spills, scratch, dynamic_stack) = (0, 0, 0, 0, false);
        Notes { symbol, vgprs, agprs, sgprs, vgpr_spills, sgpr_spills, scratch, lds, wave, dynamic_stack }
    }

    /// The occupancy that `llc-22 -mcpu=...` prints.
    #[test]
    fn registers_limit_the_waves_as_llvm_says() {
        for (name, vgprs, waves) in [
            ("gfx900", 24, 10),
            ("gfx900", 25, 9),
            ("gfx906", 33, 7),
            ("gfx908", 65, 3),
            ("gfx90a", 64, 8),
            ("gfx942", 65, 7),
            ("gfx950", 97, 4),
            ("gfx1010", 49, 18),
            ("gfx1010", 65, 14),
            ("gfx1030", 64, 16),
            ("gfx1031", 65, 12),
            ("gfx1032", 81, 10),
            ("gfx1100", 96, 16),
            ("gfx1101", 97, 12),
            ("gfx1102", 65, 12),
            ("gfx1151", 96, 16),
            ("gfx1201", 97, 12),
        ] {
            let architecture = ARCHITECTURES.iter().find(|one| one.name == name).expect(name);
            let found = architecture.generation.waves_of(&kernel(vgprs, 16, 0, 32));
            assert_eq!(found, waves, "{name}, {vgprs} registers");
        }
    }

    #[test]
    fn scalars_and_lds_limit_them_too() {
        assert_eq!(GCN.waves_of(&kernel(8, 81, 0, 64)), 9);
        assert_eq!(CDNA2.waves_of(&kernel(8, 101, 0, 64)), 7);
        assert_eq!(RDNA2.waves_of(&kernel(8, 106, 0, 32)), 16);
        // Eight blocks of four waves fill a CU of CDNA: 8 KB each.
        assert_eq!(CDNA2.waves_of(&kernel(8, 16, 8 << 10, 64)), 8);
        assert_eq!(CDNA2.waves_of(&kernel(8, 16, (8 << 10) + 4, 64)), 7);
        assert_eq!(CDNA4.waves_of(&kernel(8, 16, 20 << 10, 64)), 8);
        // Eight blocks of eight waves fill a WGP of RDNA 2.
        assert_eq!(RDNA2.waves_of(&kernel(8, 16, 16 << 10, 32)), 16);
        assert_eq!(RDNA2.waves_of(&kernel(8, 16, 33 << 10, 32)), 6);
    }
}
