//! What AMD publishes about the chips. `docs/decisions/033-a-cost-model.md` names the sources.

/// How a chip's units issue and keep waves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Waves of 64 lanes on four SIMDs of 16 lanes a unit.
    Cdna,
    /// Waves of 32 lanes on two SIMDs of 32 lanes a unit.
    Rdna,
}

/// Elements of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum MatrixType {
    /// f16 or bf16.
    Half,
    F32,
    F64,
}

/// A GPU, or for MI250X one of its two dies, which HIP shows as a device. MI210 is that die with
/// 104 of its 110 units; it is here because the shares of most resources of CDNA were published for
/// it.
#[derive(Debug)]
pub(crate) struct Chip {
    pub(crate) name: &'static str,
    pub(crate) family: Family,
    /// Compute units.
    pub(crate) units: f64,
    /// Peak engine clock, Hz.
    pub(crate) clock: f64,
    /// Peak bandwidth of device memory, bytes a second.
    pub(crate) memory: f64,
    /// Bytes of the last cache behind L2, and its bandwidth, bytes a second. `None` where there is
    /// none, or no source gives its bandwidth; such a cache counts as device memory.
    pub(crate) last_cache: Option<(f64, f64)>,
    /// Bytes of L2, and its bandwidth, bytes a second, where a source gives that and all units
    /// share it.
    pub(crate) l2: Option<(f64, f64)>,
    /// Vector registers of a SIMD that a lane can have, over all waves.
    pub(crate) registers: f64,
    /// Registers that are allocated together.
    pub(crate) granule: f64,
    /// Most waves on a SIMD.
    pub(crate) waves: f64,
    /// Cycles of an instruction on 64-bit floats, where one on 32-bit floats takes 1.
    pub(crate) f64_cycles: f64,
    /// Lanes a unit that must be resident until device memory is busy.
    pub(crate) lanes_for_memory: f64,
    /// Seconds from one kernel to the next on a stream.
    pub(crate) launch: f64,
    /// FLOPs a unit does in a cycle with matrix instructions, or with packed vector ones where it
    /// has none: 16-bit, 32-bit and 64-bit floats.
    matrix: [f64; 3],
}

impl Chip {
    /// Lanes that a unit executes in a cycle; the same on all of them.
    pub(crate) const LANES: f64 = 64.0;
    /// Bytes of LDS that a unit reads or writes in a cycle; the same on all of them.
    pub(crate) const LDS: f64 = 128.0;
    /// Bytes of LDS a unit.
    pub(crate) const LDS_SIZE: f64 = 65536.0;

    /// FLOPs a second of matrix products of this type.
    pub(crate) fn matrix(&self, of: MatrixType) -> f64 {
        self.matrix[of as usize] * self.units * self.clock
    }

    /// SIMDs of a unit, and lanes of a wave.
    pub(crate) fn simds(&self) -> (f64, f64) {
        match self.family {
            Family::Cdna => (4.0, 64.0),
            Family::Rdna => (2.0, 32.0),
        }
    }
}

const MI250X: Chip = Chip {
    name: "MI250X",
    family: Family::Cdna,
    units: 110.0,
    clock: 1.7e9,
    memory: 1.6384e12,
    last_cache: None,
    // Measured on MI210, which is the same die with 104 units.
    l2: Some((8.0 * MIB, 5.1e12)),
    registers: 512.0,
    granule: 8.0,
    waves: 8.0,
    f64_cycles: 1.0,
    // Measured on MI210: 48 K to 56 K lanes.
    lanes_for_memory: 512.0,
    // Measured on MI210: 64 KiB at 31 GB/s.
    launch: 2.1e-6,
    matrix: [1024.0, 256.0, 256.0],
};

/// The chips that the model estimates.
pub(crate) const CHIPS: [Chip; 5] = [
    Chip {
        name: "MI300X",
        family: Family::Cdna,
        units: 304.0,
        clock: 2.1e9,
        memory: 5.3e12,
        // The peak. What is reached of it was not found for this chip; the share of RX 6900 XT's
        // stands in.
        last_cache: Some((256.0 * MIB, 17e12)),
        // Measured with bytes that all units read. Each of the eight dies has its own, so none
        // holds a launch's bytes.
        l2: Some((0.0, 27.5e12)),
        registers: 512.0,
        granule: 8.0,
        waves: 8.0,
        f64_cycles: 1.0,
        // Measured: 311 K lanes read at three quarters of the bandwidth.
        lanes_for_memory: 1024.0,
        // Not published for this chip: as on MI210.
        launch: 2.1e-6,
        matrix: [2048.0, 256.0, 256.0],
    },
    MI250X,
    Chip {
        name: "RX 7900 XTX",
        family: Family::Rdna,
        units: 96.0,
        clock: 2.5e9,
        memory: 0.96e12,
        last_cache: None,
        l2: None,
        registers: 1536.0,
        granule: 24.0,
        waves: 16.0,
        f64_cycles: 16.0,
        // Not published for this chip: as on RX 6900 XT.
        lanes_for_memory: 80.0,
        launch: 3.3e-6,
        matrix: [512.0, 128.0, 8.0],
    },
    Chip {
        name: "RX 6900 XT",
        family: Family::Rdna,
        units: 80.0,
        clock: 2.25e9,
        memory: 0.512e12,
        // Measured: 1.92 TB/s.
        last_cache: Some((128.0 * MIB, 1.92e12)),
        // Measured: 4.6 TB/s.
        l2: Some((4.0 * MIB, 4.6e12)),
        registers: 1024.0,
        granule: 16.0,
        waves: 16.0,
        f64_cycles: 16.0,
        // Measured: 6400 lanes.
        lanes_for_memory: 80.0,
        // Measured: 64 KiB at 20 GB/s.
        launch: 3.3e-6,
        matrix: [256.0, 128.0, 8.0],
    },
    Chip { name: "MI210", units: 104.0, ..MI250X },
];

const MIB: f64 = 1048576.0;
