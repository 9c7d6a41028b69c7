//! Workarounds for defects of AMD's libraries, each with its public issue and when it can go. Facts about chips that no
//! driver reports, such as the types of their matrix units, stand here too.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rocblas_sys::Rocblas;

use crate::device::info::DeviceInfo;
use crate::settings::{F16Alternative, settings};
use crate::{DType, Error, Result};

/// gfx90a's f16 matrix instructions take subnormal values for 0, which gradients often are. rocBLAS and MIOpen have
/// an alternative there that goes by bf16: it keeps the range, with fewer digits.
///
/// rocBLAS: `rocblas_gemm_flags_fp16_alt_impl`; MIOpen: `MIOPEN_CONVOLUTION_ATTRIB_FP16_ALT_IMPL`
/// (<https://rocm.docs.amd.com/projects/MIOpen/en/latest/conceptual/MI200-alt-implementation.html>). A property of
/// that chip: stays.
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

    /// Whether a product of operands of `dtype` is to go by the alternative; `None` where the chip has none.
    pub(crate) fn alternative(self, dtype: DType, gradient: bool) -> Option<bool> {
        (self.flushes && dtype == DType::F16).then_some(match self.which {
            F16Alternative::None => false,
            F16Alternative::Gradients => gradient,
            F16Alternative::All => true,
        })
    }
}

impl DeviceInfo {
    /// The dtypes that the device multiplies in units made for matrices, in their own precision; none where it has
    /// no such units, or is of a generation that is not listed.
    ///
    /// Sources: AMD's "CDNA" and "RDNA" instruction set documents (`V_MFMA_*`, `V_WMMA_*`); NVIDIA's PTX ISA, `mma`.
    /// No attribute of HIP's tells this.
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

    /// Whether the device multiplies matrices of f32 in units made for it, as f32: RDNA and NVIDIA's GPUs multiply f32
    /// like any other.
    pub fn has_f32_matrix_units(&self) -> bool {
        self.matrix_types().contains(&DType::F32)
    }
}

/// The architecture without its features.
pub(crate) fn chip(arch: &str) -> &str {
    arch.split(':').next().unwrap_or(arch)
}

/// Whether MIOpen's statistics and gradients of a batch norm of `batch x channels x spatial` are right.
///
/// It reads and writes up to four elements at once, also where a sample has no multiple of four for each channel:
/// the last are then another channel's. On ROCm 7.2, `dscale` is off by its own size at 3x4x9x9 in f16, `y` by 4e-4
/// at 2x3x65x65 in f32. <https://github.com/ROCm/rocm-libraries/pull/6765> mends the gradient. Nor is the result
/// defined for one element a channel (<https://github.com/ROCm/rocm-libraries/pull/3030>). Can go when the oldest
/// MIOpen that is supported has both.
pub(crate) fn batch_norm_is_right(batch: usize, spatial: usize) -> bool {
    spatial.is_multiple_of(4) && batch * spatial > 1
}

/// Whether the library's norms use the whole device.
///
/// MIOpen shares a channel among blocks. cuDNN, which serves NVIDIA's architectures (`sm_90`), gives a channel to one
/// block: on an H200 the gradient of batch norm over `[4096, 32, 28, 28]` took 4.6 ms, where its bytes need 0.5. Nor
/// has cuDNN a layer norm. Can go when cuDNN shares channels among blocks.
pub(crate) fn norms_fill_the_device(arch: &str) -> bool {
    !arch.starts_with("sm_")
}

/// The dtypes whose norms (batch, layer, RMS, group) MIOpen rounds to nearest.
///
/// It cuts bf16 off: every result is next to or nearer to 0 than the exact one, so that their errors add up over
/// layers. Its kernels round to nearest where `MIOPEN_USE_RNE_BFLOAT16` is defined, which the norms do not define as
/// of ROCm 7.2 (seen over a virtual gfx1030: half of all results). No public issue is known;
/// <https://github.com/ROCm/aiter/issues/5151> shows what it costs a language model. Can go when the oldest MIOpen
/// that is supported rounds.
pub(crate) const NORMS: &[DType] = &[DType::F32, DType::F16];

/// Whether MIOpen's fusion plans are right for a convolution of so many groups of channels.
///
/// The fused direct kernel (`MIOpenConvDirBatchNormActiv.cl`) knows no groups, and its solver takes them all the
/// same: on ROCm 7.2 over a virtual gfx1030 a depthwise convolution comes out as another. A MIOpen of before had no
/// such plan (<https://github.com/ROCm/MIOpen/issues/2067>). Can go when the oldest MIOpen that is supported
/// refuses them or has them right.
pub(crate) fn fusion_is_right(groups: usize) -> bool {
    groups == 1
}

/// rocBLAS ends the process when it has no kernels for the chip, so look before a handle is created.
///
/// <https://github.com/ROCm/rocm-libraries/issues/7026>. Can go when `rocblas_create_handle` returns a status there.
pub(crate) fn rocblas_has_kernels(table: &Rocblas, arch: &str) -> Result<()> {
    let Some(directory) = kernel_directory(table) else { return Ok(()) };
    // rocBLAS prefers a folder named as the chip.
    let own = directory.join(chip(arch));
    let directory = if own.exists() { own } else { directory };
    let names: Vec<String> = match std::fs::read_dir(&directory) {
        Ok(entries) => entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect(),
        Err(_) => Vec::new(),
    };
    if serves(&names, arch) {
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

/// Whether a directory with these files holds kernels for `arch`.
fn serves(names: &[String], arch: &str) -> bool {
    let chip = chip(arch);
    // rocBLAS opens the first of these catalogues that is there, and ends the process where none is.
    let mut catalogues = vec!["TensileLibrary".to_owned()];
    for target in [Some(chip), generic_target(chip)].into_iter().flatten() {
        catalogues.extend([format!("TensileLibrary_lazy_{target}"), format!("TensileLibrary_{target}")]);
    }
    let stem = |name: &str| name.split('.').next().unwrap_or(name).to_owned();
    if names.iter().any(|name| name.starts_with("TensileLibrary")) {
        return names.iter().any(|name| catalogues.contains(&stem(name)));
    }
    // A layout that is not known: left to rocBLAS, unless it is for other chips or holds nothing.
    let named = |name: &String| name.contains("gfx");
    let token = |name: &String| name.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| part == chip);
    !names.is_empty() && (names.iter().any(token) || !names.iter().any(named))
}

/// The target whose code a chip's whole family runs (LLVM's "User Guide for AMDGPU Backend", "Generic Processors"):
/// gfx908 and gfx90a have none.
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

/// Where this rocBLAS looks for its kernels; `None` where that is not known.
fn kernel_directory(table: &Rocblas) -> Option<PathBuf> {
    let library = object_of(table)?;
    let name = library.file_name()?.to_str()?;
    if !name.starts_with("librocblas.so") {
        return None;
    }
    if let Some(path) = std::env::var_os("ROCBLAS_TENSILE_LIBPATH") {
        return Some(path.into());
    }
    let folder = library.parent()?;
    let plain = ["../../Tensile/library", "library", "../rocblas/library", "rocblas/library"];
    // Debian puts the version of the soname in between.
    let version = name.split('.').nth(2).map(|version| format!("rocblas/{version}/library"));
    let mut places = plain.into_iter().map(str::to_owned).chain(version).map(|place| folder.join(place));
    // Where none is there, the last is what rocBLAS says it misses.
    places.clone().find(|path| path.is_dir()).or(places.next_back())
}

/// The file of the library that a table's functions are in.
fn object_of(table: &Rocblas) -> Option<PathBuf> {
    // SAFETY: all zeroes are a value of this struct of pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for; `info` outlives the call.
    let found = unsafe { libc::dladdr(table.rocblas_create_handle as *const libc::c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a NUL-ended text that the loader keeps as long as the library is loaded, and ours are never unloaded.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
}

/// A kernel's name with the element types as C++ spells them, not by the names that `prelude.h` gives them.
///
/// hipRTC 5.7 compiles `k<f32>` and then answers `HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID` when asked for its
/// symbol; it looks for the name in what it demangled, `k<float>`. Seen with Debian's 5.7.1; no public issue is
/// known. Can go with ROCm 5.
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
            // Kernels alone are not found without their catalogue.
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
