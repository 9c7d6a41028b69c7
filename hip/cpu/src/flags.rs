// Compiler flags for the build script and the run-time compiler. g++ 9 and clang++ 10, and later
// versions, accept them.

/// An instruction set that the kernels are built for.
#[derive(Clone, Copy)]
pub(crate) struct IsaFlags {
    /// Its short name.
    pub(crate) name: &'static str,
    /// The compiler's flags.
    pub(crate) flags: &'static [&'static str],
}

/// Flags for every instruction set. Results must not depend on the instruction set, so the compiler
/// may not contract products and sums to fused multiply-adds. It may ignore floating-point
/// exceptions, so that it can vectorise selects.
pub(crate) const COMMON: &[&str] = &[
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-fno-threadsafe-statics",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    // With the flags below, -O2 vectorises as -O3 does. The rest of -O3 would add a quarter to the
    // build time and gain nothing here.
    "-O2",
    "-ftree-vectorize",
    "-fvect-cost-model=dynamic",
    "-Wno-unknown-pragmas",
];

/// A flag for gcc on Windows, where the stack is aligned to 16 bytes only. gcc aligns the frames of
/// functions with wider vectors itself, but only without unwind tables, which [`COMMON`] turns off
/// (<https://gcc.gnu.org/bugzilla/show_bug.cgi?id=54412>). With this flag, the assembler also
/// replaces moves that fault at other addresses. GNU as has it from 2.38 on; clang needs none.
pub(crate) const UNALIGNED_MOVES: &str = "-Wa,-muse-unaligned-vector-move";

/// The flags of an instruction set's kernels.
pub(crate) fn of(isa: &IsaFlags) -> impl Iterator<Item = &'static str> {
    COMMON.iter().chain(isa.flags).copied()
}

/// Further flags of the kernels, only for compilers that know them.
pub(crate) fn if_known(windows: bool) -> &'static [&'static str] {
    if windows { &[UNALIGNED_MOVES] } else { &[] }
}

/// Flags for lockstep. The scheduler identifies calls of warp-level operations by their address,
/// and lanes at the lowest address go first. So the compiler may neither duplicate nor move code,
/// as gcc's `-O1` would by jump threading. A guard page ends each stack, and a large frame must not
/// step over it.
pub(crate) const LOCKSTEP: IsaFlags = IsaFlags {
    name: "lockstep",
    flags: &[
        "-DHIP_CPU_LOCKSTEP=1",
        "-Og",
        "-fno-tree-vectorize",
        "-fno-thread-jumps",
        "-fno-reorder-blocks",
        "-fno-crossjumping",
        "-fno-tree-ch",
        "-fno-strict-aliasing",
        "-fstack-clash-protection",
        "-fno-optimize-sibling-calls",
    ],
};

/// The architectures on which lockstep was tested. `corosensei` supports more.
#[allow(dead_code, reason = "the build script's")]
pub(crate) const LOCKSTEP_ARCHITECTURES: &[&str] = &["x86_64", "aarch64"];

/// The instruction sets of an architecture, oldest first.
pub(crate) fn isas(arch: &str) -> &'static [IsaFlags] {
    const BASELINE: IsaFlags = IsaFlags { name: "baseline", flags: &[] };
    // For CPUs from before 2013 and minimal virtual machines. `-O1` halves the build time.
    const OLD: IsaFlags = IsaFlags { name: "baseline", flags: &["-O1"] };
    const V3: IsaFlags = IsaFlags {
        name: "v3",
        flags: &["-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt", "-mmovbe", "-mpopcnt"],
    };
    const V4: IsaFlags = IsaFlags {
        name: "v4",
        flags: &[
            "-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt", "-mmovbe", "-mpopcnt", "-mavx512f", "-mavx512bw",
            "-mavx512cd", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512",
        ],
    };
    match arch {
        "x86_64" => &[OLD, V3, V4],
        _ => &[BASELINE],
    }
}

/// Whether this machine's CPU has an instruction set.
#[cfg(target_arch = "x86_64")]
pub(crate) fn cpu_has(isa: &str) -> bool {
    let v3 = || {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("movbe")
            && is_x86_feature_detected!("popcnt")
    };
    let v4 = || {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512cd")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
    };
    match isa {
        "baseline" => true,
        "v3" => v3(),
        "v4" => v3() && v4(),
        _ => false,
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn cpu_has(isa: &str) -> bool {
    isa == "baseline"
}
