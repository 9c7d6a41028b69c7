//! Workarounds for defects of AMD's libraries, each with its public issue, if there is one, and the
//! condition under which it can be removed. Facts about chips that no driver reports, such as the
//! types of their matrix units, are here too.

use std::fs::File;
use std::io::{self, Read};
use std::path::{MAIN_SEPARATOR_STR, Path, PathBuf};

use rocblas_sys::Rocblas;

use crate::device::info::DeviceInfo;
use crate::os::loaded::file_of;
use crate::settings::{F16Alternative, settings};
use crate::{DType, Error, Result};

/// gfx90a's f16 matrix instructions flush subnormal values to 0, and gradients are often subnormal.
/// On that chip rocBLAS and MIOpen have an alternative implementation that computes in bf16. It
/// keeps the range but loses precision.
///
/// rocBLAS: `rocblas_gemm_flags_fp16_alt_impl`; MIOpen: `MIOPEN_CONVOLUTION_ATTRIB_FP16_ALT_IMPL`
/// (<https://rocm.docs.amd.com/projects/MIOpen/en/latest/conceptual/MI200-alt-implementation.html>).
/// A property of that chip, so the workaround stays.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Halves {
    flushes: bool,
    which: F16Alternative,
}

impl Halves {
    /// For a device of this architecture.
    pub(crate) fn of(arch: &str) -> Result<Self> {
        Ok(Self { flushes: chip(arch) == "gfx90a", which: settings()?.f16_alternative })
    }

    /// Whether a product of operands of `dtype` uses the alternative; `None` if the chip has none
    /// for the dtype.
    pub(crate) fn alternative(self, dtype: DType, gradient: bool) -> Option<bool> {
        (self.flushes && dtype == DType::F16).then_some(match self.which {
            F16Alternative::None => false,
            F16Alternative::Gradients => gradient,
            F16Alternative::All => true,
        })
    }
}

impl DeviceInfo {
    /// The dtypes that the device's matrix units multiply without rounding the operands. Empty if
    /// it has no matrix units, or if this table lacks its generation.
    ///
    /// Sources: AMD's "CDNA" and "RDNA" instruction set documents (`V_MFMA_*`, `V_WMMA_*`);
    /// NVIDIA's PTX ISA, `mma`. HIP has no attribute for this.
    pub fn matrix_types(&self) -> &'static [DType] {
        use DType::{BF16, F16, F32, F64, I8};
        let chip = chip(&self.arch);
        match chip {
            "gfx908" => &[F32, F16, BF16, I8],
            "gfx90a" | "gfx940" | "gfx941" | "gfx942" | "gfx950" => &[F64, F32, F16, BF16, I8],
            _ if chip.starts_with("gfx11") || chip.starts_with("gfx12") => &[F16, BF16, I8],
            "sm_70" => &[F16],
            "sm_72" | "sm_75" => &[F16, I8],
            "sm_80" | "sm_90" | "sm_100" => &[F64, F16, BF16, I8],
            _ if chip.starts_with("sm_8") || chip.starts_with("sm_1") => &[F16, BF16, I8],
            _ => &[],
        }
    }

    /// Whether the device's matrix units multiply f32 without rounding the operands. Those of RDNA
    /// and of NVIDIA's GPUs do not.
    pub fn has_f32_matrix_units(&self) -> bool {
        self.matrix_types().contains(&DType::F32)
    }

    /// Whether copies to shared memory can run beside a block's other work, and a compute unit has
    /// room for two such blocks of `bytes` of shared memory each. NVIDIA's GPUs have such copies
    /// from sm_80 on; HIP has no attribute for them. Lockstep has them too, for tests. NVIDIA's
    /// driver takes 1 KiB for each block. So a unit has 1 KiB more than the most that one block may
    /// have, and two blocks need twice `bytes` and 2 KiB of it.
    pub fn holds_two_copying_blocks(&self, bytes: u32) -> bool {
        let chip = chip(&self.arch);
        let version = chip.strip_prefix("sm_").and_then(|version| version.parse::<u32>().ok());
        let copies = chip.starts_with("cpu-lockstep") || version.is_some_and(|version| version >= 80);
        copies && self.shared_memory_optin >= 2 * bytes as usize + 1024
    }
}

/// How `hip/kernels/matrix_cores.h` multiplies 16 x 16 tiles of f16 and bf16 on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixCores {
    /// CDNA's `v_mfma`, on waves of 64 lanes.
    Mfma,
    /// `v_wmma` of RDNA 3 and 4, on waves of 32 lanes.
    Wmma,
    /// NVIDIA's `mma`, on warps of 32 lanes.
    Mma,
    /// The CPU device's lockstep mode, by groups of 32 lanes.
    Emulated,
}

impl DeviceInfo {
    /// How kernels on matrix cores multiply operands of `dtype`; `None` if they do not on this
    /// device. `gradient`: whether subnormal values count as in a gradient. On gfx90a the result is
    /// then `None` for f16, unless `BURN_ROCM_F16_ALTERNATIVE` is `none`; without `gradient` only
    /// if it is `all`. Also `None` if [`Config::matrix_cores`](crate::Config::matrix_cores) is off,
    /// or if the kernels are compiled for a family of chips
    /// ([`Config::architecture`](crate::Config::architecture)).
    ///
    /// # Errors
    /// `Config` if a setting is wrong.
    pub fn matrix_cores(&self, dtype: DType, gradient: bool) -> Result<Option<MatrixCores>> {
        let settings = settings()?;
        if !settings.matrix_cores
            || !matches!(dtype, DType::F16 | DType::BF16)
            || self.max_threads_per_block == 1
            || Halves::of(&self.arch)?.alternative(dtype, gradient) == Some(true)
        {
            return Ok(None);
        }
        Ok(match chip(settings.architecture.as_deref().unwrap_or(&self.arch)) {
            "gfx908" | "gfx90a" | "gfx940" | "gfx941" | "gfx942" | "gfx950" => Some(MatrixCores::Mfma),
            "gfx1200" | "gfx1201" => Some(MatrixCores::Wmma),
            chip if chip.starts_with("gfx110") || chip.starts_with("gfx115") => Some(MatrixCores::Wmma),
            chip if chip.starts_with("cpu-lockstep") => Some(MatrixCores::Emulated),
            chip => {
                let version = chip.strip_prefix("sm_").and_then(|version| version.parse::<u32>().ok());
                version.filter(|&version| version >= 80).map(|_| MatrixCores::Mma)
            }
        })
    }
}

/// The architecture without its features: `gfx90a` for `gfx90a:sramecc+:xnack-`.
pub(crate) fn chip(arch: &str) -> &str {
    arch.split(':').next().unwrap_or(arch)
}

/// The architecture for which the kernels of a device are compiled: `asked`, or else the device's.
///
/// # Errors
/// `Config` if the device does not run code for the architecture that was asked for.
pub(crate) fn compile_target(arch: &str, asked: Option<&str>) -> Result<String> {
    let Some(asked) = asked else { return Ok(arch.to_owned()) };
    let own: Vec<&str> = arch.split(':').skip(1).collect();
    let target = chip(asked);
    let family = generic_target(chip(arch));
    if (target == chip(arch) || Some(target) == family)
        && asked.split(':').skip(1).all(|feature| own.contains(&feature))
    {
        return Ok(asked.to_owned());
    }
    let or = family.map(|family| format!(", or {family}")).unwrap_or_default();
    let expected = format!("{arch}, which the device is, or less of it{or}");
    Err(Error::config("BURN_ROCM_ARCH (Config::architecture)", expected, format!("`{asked}`")))
}

/// Whether MIOpen's statistics and gradients are right for a batch norm of
/// `batch x channels x spatial`.
///
/// MIOpen reads and writes up to four elements at once. If `spatial` is not a multiple of four, the
/// last access of a channel reaches into the next channel. On ROCm 7.2, `dscale` is off by its own
/// size at 3x4x9x9 in f16, `y` by 4e-4 at 2x3x65x65 in f32.
/// <https://github.com/ROCm/rocm-libraries/pull/6765> fixes the gradient. With one element per
/// channel the result is undefined (<https://github.com/ROCm/rocm-libraries/pull/3030>). Can go
/// when the oldest supported MIOpen has both fixes.
pub(crate) fn batch_norm_is_right(batch: usize, spatial: usize) -> bool {
    spatial.is_multiple_of(4) && batch * spatial > 1
}

/// Whether the library's batch and layer norms keep the whole device busy.
///
/// MIOpen splits a channel among blocks. cuDNN, which is used on NVIDIA's architectures (`sm_90`),
/// gives each channel to one block: on an H200 it took 4.6 ms for the gradient of batch norm over
/// `[4096, 32, 28, 28]`, whose bytes can be read and written in 0.5 ms. cuDNN also has no layer
/// norm. Can go when cuDNN splits channels among blocks.
pub(crate) fn norms_fill_the_device(arch: &str) -> bool {
    !arch.starts_with("sm_")
}

/// The dtypes in which MIOpen's norms (batch, layer, RMS, group) round to nearest.
///
/// MIOpen truncates bf16 towards 0, so all errors point towards 0 and add up over layers. Its
/// kernels round to nearest if `MIOPEN_USE_RNE_BFLOAT16` is defined; as of ROCm 7.2 the norms do
/// not define it (seen on a virtual gfx1030: half of all results differ). No public issue is known;
/// <https://github.com/ROCm/aiter/issues/5151> shows the effect on a language model. Can go when
/// the oldest supported MIOpen rounds to nearest.
pub(crate) const NORMS: &[DType] = &[DType::F32, DType::F16];

/// Whether MIOpen's fusion plans are right for a convolution with this many groups.
///
/// The fused direct kernel (`MIOpenConvDirBatchNormActiv.cl`) ignores groups, but its solver
/// accepts them: on ROCm 7.2 with a virtual gfx1030 a depthwise convolution gives wrong results.
/// Earlier versions of MIOpen had no such plan (<https://github.com/ROCm/MIOpen/issues/2067>). Can
/// go when the oldest supported MIOpen refuses groups or computes them correctly.
pub(crate) fn fusion_is_right(groups: usize) -> bool {
    groups == 1
}

/// Checks that rocBLAS has kernels for the chip, before a handle is created: rocBLAS ends the
/// process if it has none.
///
/// <https://github.com/ROCm/rocm-libraries/issues/7026>. Can go when `rocblas_create_handle`
/// returns a status instead.
///
/// From ROCm 7.14 on, HIP takes the code that was inside librocblas from an archive for each chip
/// (`.kpack/blas_lib_gfx942.kpack`). The catalogues and their kernels are still files, and rocBLAS
/// still ends the process without them. AMD plans to pack them too
/// (`shared/kpack/docs/multi_arch_packaging_with_kpack.md` in
/// <https://github.com/ROCm/rocm-systems>). So a rocBLAS that does not open catalogues
/// passes this check.
pub(crate) fn rocblas_has_kernels(table: &Rocblas, arch: &str) -> Result<()> {
    let Some(library) = object_of(table) else { return Ok(()) };
    let Some(directory) = kernel_directory(&library) else { return Ok(()) };
    let directory = own_directory(directory, arch);
    let names: Vec<String> = match std::fs::read_dir(&directory) {
        Ok(entries) => entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect(),
        Err(_) => Vec::new(),
    };
    if serves(&names, arch) || !opens_catalogues(&library) {
        return Ok(());
    }
    Err(Error::NotAvailable {
        reason: format!(
            "this rocBLAS has no kernels for {} (ROCBLAS_TENSILE_LIBPATH names another folder)",
            chip(arch)
        ),
        searched: vec![directory.display().to_string()],
    })
}

/// Whether a directory with files of these names holds kernels for `arch`.
fn serves(names: &[String], arch: &str) -> bool {
    let chip = chip(arch);
    // rocBLAS opens the first of these catalogues that exists, and ends the process if none does.
    let mut catalogues = vec!["TensileLibrary".to_owned()];
    for target in [Some(chip), generic_target(chip)].into_iter().flatten() {
        catalogues.extend([format!("TensileLibrary_lazy_{target}"), format!("TensileLibrary_{target}")]);
    }
    let stem = |name: &str| name.split('.').next().unwrap_or(name).to_owned();
    if names.iter().any(|name| name.starts_with("TensileLibrary")) {
        return names.iter().any(|name| catalogues.contains(&stem(name)));
    }
    // The layout is unknown. Leaves it to rocBLAS, unless the folder is empty or its files name
    // only other chips.
    let named = |name: &String| name.contains("gfx");
    let token = |name: &String| name.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| part == chip);
    !names.is_empty() && (names.iter().any(token) || !names.iter().any(named))
}

/// The generic target of a chip's family, whose code the chip runs (LLVM's "User Guide for AMDGPU
/// Backend", "Generic Processors"). gfx908 and gfx90a have none.
fn generic_target(chip: &str) -> Option<&'static str> {
    let of = |prefix| chip.starts_with(prefix);
    match chip {
        "gfx900" | "gfx902" | "gfx904" | "gfx906" | "gfx909" | "gfx90c" => Some("gfx9-generic"),
        _ if of("gfx94") || of("gfx95") => Some("gfx9-4-generic"),
        _ if of("gfx101") => Some("gfx10-1-generic"),
        _ if of("gfx103") => Some("gfx10-3-generic"),
        _ if of("gfx11") => Some("gfx11-generic"),
        _ if of("gfx125") => Some("gfx12-5-generic"),
        _ if of("gfx12") => Some("gfx12-generic"),
        _ => None,
    }
}

/// The folder in which rocBLAS looks for a chip's kernels: a folder of this chip in `all`, or else
/// `all`. From ROCm 7.14 on, chips may have such folders, with or without the state of XNACK in the
/// name (<https://github.com/ROCm/rocm-libraries/pull/5976>).
fn own_directory(all: PathBuf, arch: &str) -> PathBuf {
    let chip = chip(arch);
    let xnack = arch.split(':').find(|part| part.starts_with("xnack")).map(|state| format!("{chip}-{state}"));
    let own = xnack.into_iter().chain([chip.to_owned()]).map(|name| all.join(name));
    own.into_iter().find(|folder| folder.exists()).unwrap_or(all)
}

/// Whether this rocBLAS opens catalogues, which its file shows by containing their name. Also
/// `true` if the file can't be read.
fn opens_catalogues(library: &Path) -> bool {
    let name = b"TensileLibrary_";
    let search = || -> io::Result<bool> {
        let mut file = File::open(library)?;
        let mut bytes = vec![0; 1 << 20];
        // Each part is read in after the end of the previous one, so that a name which spans both
        // is found.
        let mut held = 0;
        loop {
            let read = file.read(&mut bytes[held..])?;
            if read == 0 {
                return Ok(false);
            }
            let end = held + read;
            if bytes[..end].windows(name.len()).any(|window| window == name) {
                return Ok(true);
            }
            held = end.min(name.len() - 1);
            bytes.copy_within(end - held..end, 0);
        }
    };
    search().unwrap_or(true)
}

/// The folder in which this rocBLAS looks for its kernels; `None` if the file is not rocBLAS.
fn kernel_directory(library: &Path) -> Option<PathBuf> {
    let name = library.file_name()?.to_str()?;
    if !name.starts_with("librocblas.so") && !name.eq_ignore_ascii_case("rocblas.dll") {
        return None;
    }
    if let Some(path) = std::env::var_os("ROCBLAS_TENSILE_LIBPATH") {
        return Some(path.into());
    }
    let folder = library.parent()?;
    let plain =
        ["../../Tensile/library", "library", "../rocblas/library", "../Tensile/library", "rocblas/library"];
    // Debian's path contains the version of the soname.
    let version = name.split('.').nth(2).map(|version| format!("rocblas/{version}/library"));
    let at = |place: String| folder.join(place.replace('/', MAIN_SEPARATOR_STR));
    let mut places = plain.into_iter().map(str::to_owned).chain(version).map(at);
    Some(places.find(|path| path.is_dir()).unwrap_or_else(|| folder.join("rocblas").join("library")))
}

/// The library file that a table's functions come from.
fn object_of(table: &Rocblas) -> Option<PathBuf> {
    file_of(table.rocblas_create_handle as *const std::ffi::c_void)
}

/// A kernel's name with `prelude.h`'s names of element types replaced by C++'s: `k<float>` for
/// `k<f32>`.
///
/// hipRTC 5.7 compiles `k<f32>`, but returns `HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID` for its
/// symbol, because it compares the name with the demangled `k<float>`. Seen with Debian's 5.7.1; no
/// public issue is known. Can go with ROCm 5.
pub(crate) fn spelled_out(name: &str) -> String {
    let spell = |word| match word {
        "f32" => "float",
        "f64" => "double",
        "i64" => "long long",
        "i32" => "int",
        "i16" => "short",
        "i8" => "signed char",
        "u64" => "unsigned long long",
        "u32" => "unsigned int",
        "u16" => "unsigned short",
        "u8" => "unsigned char",
        other => other,
    };
    let mut spelled = String::with_capacity(name.len() + 16);
    for word in name.split_inclusive(|c: char| !c.is_alphanumeric() && c != '_') {
        let end = word.trim_end_matches(|c: char| !c.is_alphanumeric() && c != '_').len();
        spelled.push_str(spell(&word[..end]));
        spelled.push_str(&word[end..]);
    }
    spelled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_compiled_for_what_the_device_runs() {
        let full = "gfx90a:sramecc+:xnack-";
        assert_eq!(compile_target(full, None).unwrap(), full);
        for (arch, asked) in [
            (full, "gfx90a"),
            (full, "gfx90a:xnack-"),
            ("gfx1030", "gfx10-3-generic"),
            ("gfx942:sramecc+:xnack-", "gfx9-4-generic:sramecc+"),
            ("sm_90", "sm_90"),
        ] {
            assert_eq!(compile_target(arch, Some(asked)).unwrap(), asked);
        }
        for (arch, asked) in [
            (full, "gfx90a:xnack+"),
            (full, "gfx9-generic"),
            ("gfx1030", "gfx1031"),
            ("gfx1030", "gfx10-1-generic"),
            ("cpu-x86-64-v3", "gfx1030"),
        ] {
            assert!(matches!(compile_target(arch, Some(asked)), Err(Error::Config { .. })), "{asked}");
        }
    }

    #[test]
    fn gradients_in_f16_go_by_the_alternative_on_gfx90a() {
        let halves = |arch, which| Halves { which, ..Halves::of(arch).unwrap() };
        let on = halves("gfx90a:sramecc+:xnack-", F16Alternative::Gradients);
        assert_eq!(on.alternative(DType::F16, true), Some(true));
        assert_eq!(on.alternative(DType::F16, false), Some(false));
        assert_eq!(on.alternative(DType::F32, true), None);
        assert_eq!(on.alternative(DType::BF16, true), None);
        assert_eq!(halves("gfx942", F16Alternative::All).alternative(DType::F16, true), None);
        assert_eq!(halves("gfx90a", F16Alternative::All).alternative(DType::F16, false), Some(true));
        assert_eq!(halves("gfx90a", F16Alternative::None).alternative(DType::F16, true), Some(false));
    }

    #[test]
    fn element_types_are_spelled_out_and_nothing_else() {
        for (name, expected) in [
            ("fft_stage<2, f32>", "fft_stage<2, float>"),
            ("gather<u8, i64>", "gather<unsigned char, long long>"),
            ("binary_contiguous<Add, bf16>", "binary_contiguous<Add, bf16>"),
            ("k_f32<bool8>", "k_f32<bool8>"),
            ("philox_words", "philox_words"),
        ] {
            assert_eq!(spelled_out(name), expected);
        }
    }

    #[test]
    fn a_chips_own_folder_comes_first() {
        let root = std::env::temp_dir().join(format!("hip-own-folder-{}", std::process::id()));
        for folder in ["gfx90a-xnack-", "gfx90a", "gfx942"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        let own = |arch| own_directory(root.clone(), arch).strip_prefix(&root).unwrap().to_owned();
        let found = ["gfx90a:sramecc+:xnack-", "gfx90a:sramecc+:xnack+", "gfx942", "gfx1030"].map(own);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found.map(|path| path.display().to_string()), ["gfx90a-xnack-", "gfx90a", "gfx942", ""]);
    }

    #[test]
    fn kernels_lie_beside_windowss_dll() {
        let root = std::env::temp_dir().join(format!("hip-kernels-beside-{}", std::process::id()));
        let bin = root.join("bin");
        std::fs::create_dir_all(bin.join("rocblas").join("library")).unwrap();
        let found =
            ["rocblas.dll", "ROCBLAS.DLL", "amdhip64_7.dll"].map(|name| kernel_directory(&bin.join(name)));
        std::fs::remove_dir_all(&root).unwrap();
        let beside = Some(bin.join("rocblas").join("library"));
        assert_eq!(found, [beside.clone(), beside, None]);
    }

    #[test]
    fn a_rocblas_that_does_not_name_the_catalogues_does_not_open_them() {
        let file = std::env::temp_dir().join(format!("hip-catalogues-{}", std::process::id()));
        let opens = |before: usize, text: &str| {
            std::fs::write(&file, [&vec![b'x'; before], text.as_bytes(), b"lazy_"].concat()).unwrap();
            opens_catalogues(&file)
        };
        // The name in the middle of a part, at its end, and across two parts.
        let found = [10, (1 << 20) - 15, (1 << 20) - 7].map(|before| opens(before, "TensileLibrary_"));
        let other = opens(10, "TensileLibraryX");
        std::fs::remove_file(&file).unwrap();
        assert_eq!((found, other), ([true; 3], false));
        assert!(opens_catalogues(&file), "a file that can't be read");
    }

    #[test]
    fn kernels_are_found_by_chip() {
        let serves = |names: &[&str], arch| {
            serves(&names.iter().map(|name| name.to_string()).collect::<Vec<_>>(), arch)
        };
        let files = [
            "TensileLibrary_lazy_gfx1030.dat",
            "TensileLibrary_lazy_gfx90a.dat",
            "Kernels.so-000-gfx90a-xnack+.hsaco",
            "Kernels.so-000-gfx908.hsaco",
        ];
        for (arch, expected) in [
            ("gfx1030", true),
            ("gfx90a:sramecc+:xnack-", true),
            ("gfx103", false),
            ("gfx1100", false),
            // rocBLAS does not find kernels without their catalogue.
            ("gfx908", false),
        ] {
            assert_eq!(serves(&files, arch), expected, "{arch}");
        }
        assert!(serves(&["TensileLibrary.dat"], "gfx1100"), "one catalogue for all");
        for (target, chips, others) in [
            ("gfx9-generic", &["gfx900", "gfx906:sramecc+:xnack-"][..], &["gfx908", "gfx90a", "gfx942"][..]),
            ("gfx9-4-generic", &["gfx942", "gfx950"], &["gfx906", "gfx90a"]),
            ("gfx10-1-generic", &["gfx1010", "gfx1013"], &["gfx1030"]),
            ("gfx10-3-generic", &["gfx1030", "gfx1036"], &["gfx1010", "gfx1100"]),
            ("gfx11-generic", &["gfx1100", "gfx1103", "gfx1151"], &["gfx1030", "gfx1201"]),
            ("gfx12-generic", &["gfx1200", "gfx1201"], &["gfx1100", "gfx1250"]),
        ] {
            for file in [format!("TensileLibrary_{target}.dat"), format!("TensileLibrary_lazy_{target}.dat")]
            {
                assert!(chips.iter().all(|chip| serves(&[&file], chip)), "{file} {chips:?}");
                assert!(!others.iter().any(|chip| serves(&[&file], chip)), "{file} {others:?}");
            }
        }
        assert!(serves(&["README"], "gfx1100"), "an unknown layout is left to rocBLAS");
        assert!(serves(&["a_gfx1100.db", "a_gfx1030.db"], "gfx1100"));
        assert!(!serves(&["a_gfx1030.db"], "gfx1100"), "unknown, but for others");
        assert!(!serves(&[], "gfx1030"), "an empty folder, or none");
    }
}
