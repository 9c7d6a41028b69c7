//! From a launch's work to seconds on a chip.
//!
//! The time is that of the busiest resource, as if the others worked meanwhile, and the launch.
//! Each resource does a share of its peak; [`Shares`] has them, fitted from published figures.

use super::chips::{Chip, MatrixType};

/// What can limit a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// Device memory.
    Memory,
    /// The last cache behind L2.
    Cache,
    /// L2, by the lines that the units' first caches miss, and by a launch's bytes if it holds
    /// them.
    L2,
    /// The units' paths to their first cache, by the lines that instructions ask for.
    Requests,
    /// Vector instructions.
    Vector,
    /// Scalar instructions.
    Scalar,
    /// The local data share.
    Lds,
    /// Matrix instructions.
    Matrix,
    /// The start of a kernel.
    Launch,
}

impl Resource {
    pub(crate) const ALL: [Self; 9] = [
        Self::Memory,
        Self::Cache,
        Self::L2,
        Self::Requests,
        Self::Vector,
        Self::Scalar,
        Self::Lds,
        Self::Matrix,
        Self::Launch,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cache => "cache",
            Self::L2 => "L2",
            Self::Requests => "requests",
            Self::Vector => "vector",
            Self::Scalar => "scalar",
            Self::Lds => "LDS",
            Self::Matrix => "matrix",
            Self::Launch => "launch",
        }
    }
}

/// Where a launch's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In device memory, whatever their number.
    Memory,
    /// In the first shared cache that holds them, because the launch before touched them.
    Cached,
}

/// Lanes of workgroups, for occupancy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Geometry {
    /// Workgroups.
    pub(crate) groups: f64,
    /// Lanes of a workgroup.
    pub(crate) lanes: f64,
    /// Vector registers of a lane.
    pub(crate) registers: f64,
    /// LDS of a workgroup, bytes.
    pub(crate) lds: f64,
}

/// What a launch does. Lanes count with the inactive ones of their wave, because a wave takes as
/// long without them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// Bytes that must come from or go to memory.
    pub(crate) memory: f64,
    pub(crate) place: Place,
    /// Lines of 64 bytes that vector instructions ask for.
    pub(crate) lines: f64,
    /// Bytes of those that no unit's first cache holds.
    pub(crate) missed: f64,
    /// Lanes of vector instructions that take one cycle.
    pub(crate) vector: f64,
    /// Lanes of those that take four: products of 32-bit integers, transcendentals.
    pub(crate) slow: f64,
    /// Lanes of those on 64-bit floats.
    pub(crate) f64: f64,
    /// Scalar instructions of waves of 32 lanes.
    pub(crate) scalar: f64,
    /// Bytes that lanes read and write in LDS.
    pub(crate) lds: f64,
    /// Cycles that bank conflicts add.
    pub(crate) conflicts: f64,
    /// FLOPs of matrix instructions.
    pub(crate) matrix: Option<(MatrixType, f64)>,
    /// `None`: enough lanes for every unit.
    pub(crate) geometry: Option<Geometry>,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            memory: 0.0,
            place: Place::Cached,
            lines: 0.0,
            missed: 0.0,
            vector: 0.0,
            slow: 0.0,
            f64: 0.0,
            scalar: 0.0,
            lds: 0.0,
            conflicts: 0.0,
            matrix: None,
            geometry: None,
        }
    }
}

/// The share of its peak that each resource does, in the order of [`Resource::ALL`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shares(pub(crate) [f64; Resource::ALL.len()]);

impl Shares {
    /// Every resource at its peak.
    pub(crate) const PEAK: Self = Self([1.0; Resource::ALL.len()]);

    pub(crate) fn of(&self, resource: Resource) -> f64 {
        self.0[resource as usize]
    }
}

/// A launch's time on a chip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) seconds: f64,
    /// What limits it.
    pub(crate) bound: Resource,
}

/// How much of the chip a launch can keep busy.
struct Occupancy {
    /// Share of the units that have a workgroup.
    units: f64,
    /// Share of the SIMDs that have a wave.
    simds: f64,
    /// Share of device memory's bandwidth that the resident lanes can ask for.
    memory: f64,
}

impl Occupancy {
    fn of(geometry: Option<Geometry>, chip: &Chip) -> Self {
        let Some(Geometry { groups, lanes, registers, lds }) = geometry else {
            return Self { units: 1.0, simds: 1.0, memory: 1.0 };
        };
        let (simds, wave) = chip.simds();
        let waves_a_group = (lanes / wave).ceil().max(1.0);
        let allocated = ((registers / chip.granule).ceil() * chip.granule).max(chip.granule);
        let by_registers = (chip.registers / allocated).floor().max(1.0);
        let waves_a_unit = simds * chip.waves.min(by_registers);
        let by_waves = (waves_a_unit / waves_a_group).floor().max(1.0);
        let by_lds = if lds > 0.0 { (Chip::LDS_SIZE / lds).floor().max(1.0) } else { f64::INFINITY };
        let resident = groups.min(chip.units * by_waves.min(by_lds)) * lanes;
        Self {
            units: (groups / chip.units).min(1.0),
            simds: (groups * waves_a_group / (chip.units * simds)).min(1.0),
            memory: (resident / (chip.units * chip.lanes_for_memory)).min(1.0),
        }
    }
}

/// Seconds that each resource works, in the order of [`Resource::ALL`].
fn times(work: &Work, chip: &Chip, shares: &Shares) -> [f64; Resource::ALL.len()] {
    let busy = Occupancy::of(work.geometry, chip);
    let cycles = chip.units * chip.clock;
    let holds = |cache: Option<(f64, f64)>| {
        cache.filter(|&(size, _)| work.place == Place::Cached && work.memory <= size)
    };
    let in_l2 = holds(chip.l2).is_some();
    let in_cache = holds(chip.last_cache).filter(|_| !in_l2);
    let from_l2 = if in_l2 { work.memory } else { 0.0 };
    let vector = work.vector + 4.0 * work.slow + chip.f64_cycles * work.f64;
    Resource::ALL.map(|resource| {
        let seconds = match resource {
            Resource::Memory if in_l2 || in_cache.is_some() => 0.0,
            Resource::Memory => work.memory / (chip.memory * busy.memory),
            Resource::Cache => in_cache.map_or(0.0, |(_, rate)| work.memory / (rate * busy.memory)),
            Resource::L2 => chip.l2.map_or(0.0, |(_, rate)| from_l2.max(work.missed) / rate),
            Resource::Requests => work.lines / (cycles * busy.units),
            Resource::Vector => vector / (Chip::LANES * cycles * busy.simds),
            // One a cycle on each of RDNA's two SIMDs; one a cycle a unit on CDNA, where a wave has
            // twice the lanes.
            Resource::Scalar => work.scalar / (2.0 * cycles * busy.units),
            Resource::Lds => (work.lds / Chip::LDS + work.conflicts) / (cycles * busy.units),
            Resource::Matrix => work.matrix.map_or(0.0, |(of, flops)| flops / (chip.matrix(of) * busy.units)),
            Resource::Launch => chip.launch,
        };
        seconds / shares.of(resource)
    })
}

/// The time of a launch.
pub(crate) fn estimate(work: &Work, chip: &Chip, shares: &Shares) -> Estimate {
    let times = times(work, chip, shares);
    let longest = |of: &[Resource]| {
        let time = |&resource: &Resource| (resource, times[resource as usize]);
        of.iter()
            .map(time)
            .fold((Resource::Launch, 0.0), |longest, next| if next.1 > longest.1 { next } else { longest })
    };
    let (_, work) = longest(&Resource::ALL[..Resource::Launch as usize]);
    Estimate { seconds: work + times[Resource::Launch as usize], bound: longest(&Resource::ALL).0 }
}

#[cfg(test)]
mod tests {
    use super::super::chips::CHIPS;
    use super::*;

    fn close(got: f64, want: f64) {
        assert!((got / want - 1.0).abs() < 1e-12, "{got} instead of {want}");
    }

    #[test]
    fn a_copy_takes_its_bytes_over_the_bandwidth() {
        let work = Work { memory: 2.56e9, place: Place::Memory, ..Work::default() };
        let mut shares = Shares::PEAK;
        shares.0[Resource::Memory as usize] = 0.8;
        let got = estimate(&work, &CHIPS[3], &shares);
        assert_eq!(got.bound, Resource::Memory);
        close(got.seconds, 2.56e9 / (0.512e12 * 0.8) + 3.3e-6);
    }

    #[test]
    fn bytes_that_the_last_cache_holds_come_from_there() {
        let work = Work { memory: 64e6, ..Work::default() };
        let got = estimate(&work, &CHIPS[3], &Shares::PEAK);
        assert_eq!(got.bound, Resource::Cache);
        close(got.seconds, 64e6 / 1.92e12 + 3.3e-6);
        // RX 7900 XTX's cache has no published bandwidth.
        assert_eq!(estimate(&work, &CHIPS[2], &Shares::PEAK).bound, Resource::Memory);
        let small = Work { memory: 2.5e6, ..Work::default() };
        let got = estimate(&small, &CHIPS[3], &Shares::PEAK);
        assert_eq!(got.bound, Resource::Launch);
        close(got.seconds, 2.5e6 / 4.6e12 + 3.3e-6);
        let large = Work { memory: 640e6, ..Work::default() };
        assert_eq!(estimate(&large, &CHIPS[3], &Shares::PEAK).bound, Resource::Memory);
    }

    #[test]
    fn slow_classes_take_four_cycles_and_f64_what_the_chip_says() {
        let cycles = 80.0 * 2.25e9 * 64.0;
        let work = Work { vector: 1e12, slow: 1e12, f64: 1e12, ..Work::default() };
        let got = estimate(&work, &CHIPS[3], &Shares::PEAK);
        assert_eq!(got.bound, Resource::Vector);
        close(got.seconds, 21e12 / cycles + 3.3e-6);
        let got = estimate(&work, &CHIPS[0], &Shares::PEAK);
        close(got.seconds, 6e12 / (304.0 * 2.1e9 * 64.0) + 2.1e-6);
    }

    #[test]
    fn conflicts_lengthen_the_time_of_lds() {
        let work = Work { lds: 128e9, conflicts: 3e9, ..Work::default() };
        let got = estimate(&work, &CHIPS[3], &Shares::PEAK);
        assert_eq!(got.bound, Resource::Lds);
        close(got.seconds, 4e9 / (80.0 * 2.25e9) + 3.3e-6);
    }

    #[test]
    fn few_workgroups_use_few_units() {
        let geometry = Geometry { groups: 8.0, lanes: 256.0, registers: 32.0, lds: 0.0 };
        let all = Work { lds: 128e9, ..Work::default() };
        let few = Work { geometry: Some(geometry), ..all };
        let [all, few] = [all, few].map(|work| estimate(&work, &CHIPS[3], &Shares::PEAK).seconds - 3.3e-6);
        close(few / all, 10.0);
    }

    #[test]
    fn registers_and_lds_limit_the_lanes_that_wait_for_memory() {
        let geometry = Geometry { groups: 1e6, lanes: 256.0, registers: 64.0, lds: 0.0 };
        let share = |geometry| Occupancy::of(Some(geometry), &CHIPS[1]).memory;
        // 512 / 64 registers: 8 waves of 64 on 4 SIMDs are 2048 lanes.
        close(share(geometry), 1.0);
        // 512 / 512: one wave on each SIMD, 256 lanes of the 512 that memory needs.
        close(share(Geometry { registers: 512.0, ..geometry }), 0.5);
        // One workgroup of 256 lanes on a unit.
        close(share(Geometry { lds: 65536.0, ..geometry }), 0.5);
    }
}
