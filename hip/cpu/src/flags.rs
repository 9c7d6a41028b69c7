// Compiler flags, read by the build script and by the run-time compiler alike. Understood by g++
// from 9 and clang++ from 10.

/// An instruction set that the kernels are built for.
#[derive(Clone, Copy)]
pub(crate) struct IsaFlags {
    /// Its short name.
    pub(crate) name: &'static str,
    /// What the compiler is told.
    pub(crate) flags: &'static [&'static str],
}

/// For every instruction set. Results must not depend on the instruction set, hence no contraction into fused
/// multiply-adds; nothing reads the floating-point exception flags, which keeps selects vectorisable.
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
    // As -O3 vectorises; the rest of -O3 costs a quarter more time to build and gains nothing here.
    "-O2",
    "-ftree-vectorize",
    "-fvect-cost-model=dynamic",
    "-Wno-unknown-pragmas",
];

/// Blocks of coroutines. Calls of warp-level operations are told apart by their address, and the lanes at the
/// lowest one go first: code may be neither duplicated nor moved (gcc's `-O1` already threads jumps). Stacks end in
/// a page that a large frame must not step over.
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

/// Where the lockstep mode has been tried. `corosensei` switches coroutines on more.
#[allow(dead_code, reason = "the build script's")]
pub(crate) const LOCKSTEP_ARCHITECTURES: &[&str] = &["x86_64", "aarch64"];

/// The instruction sets of an architecture, the least first.
pub(crate) fn isas(arch: &str) -> &'static [IsaFlags] {
    const BASELINE: IsaFlags = IsaFlags { name: "baseline", flags: &[] };
    // For CPUs from before 2013 and bare virtual machines: built at half the cost.
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

/// Whether the CPU that runs this has an instruction set.
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
