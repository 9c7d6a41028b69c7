//! A report on AMD's libraries of this machine, which needs no device: their paths, versions and
//! functions.

use std::ffi::{CStr, c_char};

use hip_sys::{HIPRTC_SUCCESS, Hip, Hiprtc, hipSuccess};
use hipblaslt_sys::Hipblaslt;
use miopen_sys::{Miopen, miopenStatusSuccess};
use rccl_sys::{Rccl, ncclSuccess};
use rocblas_sys::{Rocblas, rocblas_status_success};

use crate::error::Result;
use crate::provider::installation::open;
use crate::provider::library::{Loaded, fill};
use crate::provider::names::{HIP, HIPBLASLT, HIPRTC, Library, MIOPEN, RCCL, ROCBLAS};
use crate::provider::pe::Dll;

/// The state of one of AMD's libraries.
#[derive(Debug, Clone)]
pub struct LibraryReport {
    /// HIP, hipRTC, rocBLAS, hipBLASLt, MIOpen or RCCL.
    pub title: &'static str,
    /// The path or file name that it was loaded from, or why it can't be loaded.
    pub path: Result<String>,
    /// The version that the library returns; `None` if it can't be called.
    pub version: Option<String>,
    /// On Windows, the version of the DLL's file, such as `6.4.50101.0`.
    pub file_version: Option<String>,
    /// Functions that this crate needs and the library lacks. If there are any, the library can't
    /// be used.
    pub missing: Vec<&'static str>,
    /// Functions that this crate can do without. The flag says whether the library has it.
    pub optional: Vec<(&'static str, bool)>,
}

/// Reports on HIP, hipRTC, rocBLAS, hipBLASLt, MIOpen and RCCL.
pub(crate) fn inventory() -> Vec<LibraryReport> {
    let hip = report(HIP, open(HIP), Hip::REQUIRED, Hip::OPTIONAL, |library| {
        let table = fill!(Hip, library, "HIP").ok()?;
        let mut number = 0;
        // SAFETY: the function is HIP's and writes one integer.
        let status = unsafe { (table.hipRuntimeGetVersion)(&mut number) };
        (status == hipSuccess).then(|| version(number))
    });
    // Before ROCm 7, libamdhip64 may be the only library with hipRTC's functions.
    let rtc_in = open(HIPRTC).or_else(|missing| match open(HIP) {
        Ok(hip) if hip.symbol(c"hiprtcVersion").is_some() => Ok(hip),
        _ => Err(missing),
    });
    let hiprtc = report(HIPRTC, rtc_in, Hiprtc::REQUIRED, Hiprtc::OPTIONAL, |library| {
        let table = fill!(Hiprtc, library, "hipRTC").ok()?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the function is hipRTC's and writes two integers.
        let status = unsafe { (table.hiprtcVersion)(&mut major, &mut minor) };
        (status == HIPRTC_SUCCESS).then(|| format!("{major}.{minor}"))
    });
    let found = open(ROCBLAS);
    let rocblas = report(ROCBLAS, found, Rocblas::REQUIRED, Rocblas::OPTIONAL, |library| {
        let table = fill!(Rocblas, library, "rocBLAS").ok()?;
        let mut len = 0;
        // SAFETY: the functions are rocBLAS's. They need no handle, and write no more than the
        // given length.
        unsafe {
            let known = (table.rocblas_get_version_string_size)(&mut len) == rocblas_status_success;
            let mut text: Vec<c_char> = vec![0; len + 1];
            let read =
                known && (table.rocblas_get_version_string)(text.as_mut_ptr(), len) == rocblas_status_success;
            // The buffer has one 0 more than rocBLAS writes, which ends the text.
            read.then(|| CStr::from_ptr(text.as_ptr()).to_string_lossy().trim_end_matches('.').to_owned())
        }
    });
    // hipBLASLt tells its version only through a handle, which needs a device.
    let hipblaslt = report(HIPBLASLT, open(HIPBLASLT), Hipblaslt::REQUIRED, Hipblaslt::OPTIONAL, |_| None);
    let found = open(MIOPEN);
    let miopen = report(MIOPEN, found, Miopen::REQUIRED, Miopen::OPTIONAL, |library| {
        let table = fill!(Miopen, library, "MIOpen").ok()?;
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        // SAFETY: the function is MIOpen's and writes three integers.
        let status = unsafe { (table.miopenGetVersion)(&mut major, &mut minor, &mut patch) };
        (status == miopenStatusSuccess).then(|| format!("{major}.{minor}.{patch}"))
    });
    let rccl = report(RCCL, open(RCCL), Rccl::REQUIRED, Rccl::OPTIONAL, |library| {
        let table = fill!(Rccl, library, "RCCL").ok()?;
        let mut number = 0;
        // SAFETY: the function is RCCL's and writes one integer.
        let status = unsafe { (table.ncclGetVersion)(&mut number) };
        // From 2.9 on the number is major * 10,000 + minor * 100 + patch.
        (status == ncclSuccess)
            .then(|| format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100))
    });
    vec![hip, hiprtc, rocblas, hipblaslt, miopen, rccl]
}

fn report(
    library: Library,
    loaded: Result<Loaded>,
    required: &'static [&'static CStr],
    optional: &'static [&'static CStr],
    version: impl FnOnce(&Loaded) -> Option<String>,
) -> LibraryReport {
    let mut report = LibraryReport {
        title: library.title,
        path: Ok(String::new()),
        version: None,
        file_version: None,
        missing: Vec::new(),
        optional: Vec::new(),
    };
    match loaded {
        Ok(library) => {
            let has = |name: &CStr| library.symbol(name).is_some();
            let text = |name: &'static CStr| name.to_str().unwrap_or("?");
            report.missing = required.iter().filter(|name| !has(name)).map(|name| text(name)).collect();
            report.optional = optional.iter().map(|name| (text(name), has(name))).collect();
            report.version = version(&library);
            report.file_version = Dll::read(&library.path).and_then(|dll| dll.version);
            report.path = Ok(library.shown());
        }
        Err(error) => report.path = Err(error),
    }
    report
}

/// HIP's version number as text: `70253211` as `7.2.53211`.
pub(crate) fn version(number: i32) -> String {
    format!("{}.{}.{}", number / 10_000_000, number / 100_000 % 100, number % 100_000)
}

impl std::fmt::Display for LibraryReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: ", self.title)?;
        let path = match &self.path {
            Ok(path) => path,
            Err(error) => return f.write_str(&crate::provider::reason(error)),
        };
        match &self.version {
            Some(version) => write!(f, "{version}, {path}")?,
            None => write!(f, "{path}")?,
        }
        if let Some(version) = &self.file_version {
            write!(f, " (file version {version})")?;
        }
        let list = |f: &mut std::fmt::Formatter<'_>, what, names: &[&str]| match names {
            [] => Ok(()),
            names => write!(f, "; {what} {}", names.join(", ")),
        };
        list(f, "can't be used without", &self.missing)?;
        let absent: Vec<_> = self.optional.iter().filter(|(_, has)| !has).map(|(name, _)| *name).collect();
        list(f, "lacks, and can do without,", &absent)
    }
}
