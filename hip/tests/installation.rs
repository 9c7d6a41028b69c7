//! Which installation of ROCm a process uses: imitations of AMD's layouts with libraries that load
//! and have AMD's functions. Each case runs in a separate process, because a process chooses once.
//! `hip/src/provider/places.rs` says where the layouts are documented, and tests those below
//! `/opt` and `/usr`.
//!
//! `tests/windows` has the layouts of Windows.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

mod processes;
use processes::{Scratch, make_library, make_linked_library, run};

/// The body of a child process; not a test by itself.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn child() {
    match std::env::var("HIP_TEST_CASE").as_deref() {
        Ok("survey") => {
            let report =
                hip::survey().into_iter().find(|report| report.kind == hip::ProviderKind::Rocm).unwrap();
            println!("\nRESULT {}", report.to_string().replace('\n', "\\n"));
        }
        Ok("rocblas") => println!("\nRESULT {:?}", hip::rocblas_serves("gfx1030")),
        other => panic!("{other:?}"),
    }
}

/// The sonames of ROCm 7 to 10: HIP, hipRTC, rocBLAS, MIOpen.
const SONAMES: [&str; 4] = ["libamdhip64.so.7", "libhiprtc.so.7", "librocblas.so.5", "libMIOpen.so.1"];

/// A function with the name of the catalogues, which rocBLAS contains.
const CATALOGUES: (&str, &str) = ("catalogues", "() { return (int)(long)\"/TensileLibrary_lazy_\"; }");

/// Libraries with all functions, without a device; HIP's version is `version`.
struct Libraries(Scratch);

impl Libraries {
    fn make(name: &str, version: u32) -> Self {
        let scratch = Scratch::new(name);
        let hip = format!("(int *version) {{ *version = {version}; return 0; }}");
        make_library(
            &scratch.0,
            SONAMES[0],
            hip_sys::Hip::REQUIRED,
            hip_sys::hipErrorNoDevice,
            &[("hipRuntimeGetVersion", &hip)],
        );
        make_library(&scratch.0, SONAMES[1], hip_sys::Hiprtc::REQUIRED, 0, &[]);
        make_library(&scratch.0, SONAMES[2], rocblas_sys::Rocblas::REQUIRED, 0, &[CATALOGUES]);
        make_library(&scratch.0, SONAMES[3], miopen_sys::Miopen::REQUIRED, 0, &[]);
        Self(scratch)
    }

    /// Copies some of them into a folder, under these names.
    fn copy(&self, folder: &str, names: [&str; 4]) {
        let folder = self.0.0.join(folder);
        fs::create_dir_all(&folder).unwrap();
        for (soname, name) in SONAMES.into_iter().zip(names).filter(|(_, name)| !name.is_empty()) {
            fs::copy(self.0.0.join("lib").join(soname), folder.join(name)).unwrap();
        }
    }

    /// Makes an empty file and its folders.
    fn file(&self, path: &str) {
        let path = self.0.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    fn run(&self, case: &str, variables: &[(&str, &str)]) -> String {
        let mut all: Vec<(&str, String)> =
            ["ROCM_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"].map(|name| (name, String::new())).into();
        all.extend(variables.iter().map(|(name, below)| (*name, self.0.path(below))));
        let all: Vec<_> = all.iter().map(|(name, value)| (*name, value.as_str())).collect();
        // Paths below the folder, to be readable.
        run(case, &all).0.replace(&format!("{}/", self.0.0.display()), "")
    }
}

/// Asserts that a report contains all of these texts.
fn says(report: &str, expected: &[&str]) {
    for text in expected {
        assert!(report.contains(text), "`{text}` is missing: {}", report.replace("\\n", "\n"));
    }
}

#[test]
fn rocm_10_has_a_folder_for_each_version() {
    let libraries = Libraries::make("core", 71_400_000);
    for version in ["7.14", "9.9", "10.0"] {
        libraries.copy(&format!("rocm/core-{version}/lib"), SONAMES);
    }
    let root = ("ROCM_PATH", "rocm");
    let all = [
        "ROCm in use: rocm/core-10.0/lib (ROCM_PATH)",
        "HIP: 7.14.0, rocm/core-10.0/lib/libamdhip64.so.7",
        "hipRTC: 0.0, rocm/core-10.0/lib/libhiprtc.so.7",
        "rocBLAS: , rocm/core-10.0/lib/librocblas.so.5",
        "MIOpen: 0.0.0, rocm/core-10.0/lib/libMIOpen.so.1",
    ];
    says(&libraries.run("survey", &[root]), &all);

    // rocBLAS's catalogues: the flat folder has another chip's only, then the chip has its own.
    let kernels = "rocm/core-10.0/lib/rocblas/library";
    libraries.file(&format!("{kernels}/TensileLibrary_lazy_gfx1100.dat"));
    says(
        &libraries.run("rocblas", &[root]),
        &["no kernels for gfx1030", &format!("searched: [\"{kernels}\"]")],
    );
    libraries.file(&format!("{kernels}/gfx1030/TensileLibrary_lazy_gfx1030.dat"));
    assert_eq!(libraries.run("rocblas", &[root]), "Ok(())");

    // The link that AMD's packages make, and an administrator changes, counts more than a version.
    std::os::unix::fs::symlink("core-7.14/lib", libraries.0.0.join("rocm/lib")).unwrap();
    says(
        &libraries.run("survey", &[root]),
        &["ROCm in use: rocm/lib (ROCM_PATH)", ", rocm/lib/librocblas.so.5"],
    );
}

#[test]
fn wheels_of_the_active_environment() {
    let libraries = Libraries::make("wheels", 71_400_000);
    let [hip, hiprtc, rocblas, miopen] = SONAMES;
    for (environment, python) in [("venv", "python3.9"), ("venv", "python3.13"), ("conda", "python3.12")] {
        let site = format!("{environment}/lib/{python}/site-packages");
        libraries.copy(&format!("{site}/_rocm_sdk_core/lib"), [hip, hiprtc, "", ""]);
        libraries.copy(&format!("{site}/_rocm_sdk_libraries/lib"), ["", "", rocblas, miopen]);
    }
    let site = "venv/lib/python3.13/site-packages";
    let device = format!("{site}/_rocm_sdk_libraries/lib/rocblas/library/TensileLibrary_lazy_gfx1030.dat");
    libraries.file(&device);
    let environment = ("VIRTUAL_ENV", "venv");
    let conda = ("CONDA_PREFIX", "conda");
    let report = libraries.run("survey", &[environment, conda]);
    let folders = format!("{site}/_rocm_sdk_core/lib and {site}/_rocm_sdk_libraries/lib");
    says(
        &report,
        &[
            &format!("ROCm in use: {folders} (VIRTUAL_ENV)"),
            &format!("HIP: 7.14.0, {site}/_rocm_sdk_core/lib/{hip}"),
            &format!("{site}/_rocm_sdk_core/lib/{hiprtc}"),
            &format!("{site}/_rocm_sdk_libraries/lib/{rocblas}"),
            &format!("{site}/_rocm_sdk_libraries/lib/{miopen}"),
        ],
    );
    assert_eq!(libraries.run("rocblas", &[environment]), "Ok(())");
    let report = libraries.run("survey", &[conda]);
    says(&report, &["ROCm in use: conda/lib/python3.12/", "(CONDA_PREFIX)"]);
    // The other environment lacks the device files.
    says(&libraries.run("rocblas", &[conda]), &["no kernels for gfx1030", "conda/lib/python3.12/"]);
}

#[test]
fn sonames_that_nobody_listed() {
    let libraries = Libraries::make("newer", 110_000_000);
    libraries.copy("new/lib", SONAMES);
    let newer = ["libamdhip64.so.8", "libhiprtc.so.10", "librocblas.so.6", "libMIOpen.so.2"];
    libraries.copy("new/lib", newer);
    let report = libraries.run("survey", &[("ROCM_PATH", "new")]);
    says(&report, &newer.map(|name| format!("new/lib/{name}")).each_ref().map(String::as_str));
    says(&report, &["HIP: 11.0.0"]);
    libraries.file("new/lib/rocblas/library/TensileLibrary_lazy_gfx1030.dat");
    assert_eq!(libraries.run("rocblas", &[("ROCM_PATH", "new")]), "Ok(())");
}

#[test]
fn what_the_installation_lacks_is_not_taken_from_another() {
    let libraries = Libraries::make("lacking", 70_200_000);
    let [hip, hiprtc, rocblas, miopen] = SONAMES;
    libraries.copy("part/lib", [hip, hiprtc, "", ""]);
    libraries.copy("venv/lib/python3.13/site-packages/_rocm_sdk_core/lib", SONAMES);
    libraries.copy("searched", ["", "", rocblas, miopen]);
    let variables = [("ROCM_PATH", "part"), ("VIRTUAL_ENV", "venv"), ("LD_LIBRARY_PATH", "searched")];
    let report = libraries.run("survey", &variables);
    says(
        &report,
        &[
            "ROCm in use: part/lib (ROCM_PATH)",
            "HIP: 7.2.0, part/lib/libamdhip64.so.7",
            "rocBLAS: the ROCm in use has no rocBLAS: part/lib (ROCM_PATH)",
            "MIOpen: the ROCm in use has no MIOpen: part/lib (ROCM_PATH)",
        ],
    );
    let rocblas = libraries.run("rocblas", &variables);
    says(&rocblas, &["searched: [\"part/lib/librocblas.so*\", \"part/lib64/librocblas.so*\"]"]);
}

#[test]
fn a_library_that_calls_another_hip_is_refused() {
    let libraries = Libraries::make("mixed", 70_200_000);
    let root = libraries.0.0.clone();
    make_library(&root.join("old"), "libamdhip64.so.6", hip_sys::Hip::REQUIRED, 0, &[]);
    libraries.copy("mixed/lib", SONAMES);
    libraries.file("mixed/lib/rocblas/library/TensileLibrary.dat");
    // rocBLAS of the same folder, linked with this HIP.
    let link = |folder: &str, hip: &str| {
        let folder = root.join(folder).join("lib").display().to_string();
        let arguments =
            [format!("-L{folder}"), format!("-Wl,--no-as-needed,-rpath,{folder}"), format!("-l:{hip}")];
        let names = rocblas_sys::Rocblas::REQUIRED;
        make_linked_library(&root.join("mixed"), SONAMES[2], names, 0, &[CATALOGUES], &arguments);
    };
    link("old", "libamdhip64.so.6");
    let variables = [("ROCM_PATH", "mixed")];
    let refused = [
        "rocBLAS calls another HIP than the one in use",
        "mixed/lib/libamdhip64.so.7 (loaded, in use)",
        "mixed/lib/librocblas.so.5 (calls old/lib/libamdhip64.so.6)",
    ];
    says(&libraries.run("rocblas", &variables), &refused);
    link("mixed", SONAMES[0]);
    assert_eq!(libraries.run("rocblas", &variables), "Ok(())");
}

#[test]
fn an_explicit_folder_comes_first_and_need_not_be_complete() {
    let libraries = Libraries::make("explicit", 70_200_000);
    libraries.copy("own/lib64", SONAMES);
    libraries.copy("venv/lib/python3.13/site-packages/_rocm_sdk_core/lib", SONAMES);
    let environment = ("VIRTUAL_ENV", "venv");
    let report = libraries.run("survey", &[("ROCM_PATH", "own"), environment]);
    says(&report, &["ROCm in use: own/lib64 (ROCM_PATH)", ", own/lib64/libMIOpen.so.1"]);
    // Without a HIP it is passed over; so is a HIP of ROCm 7 without hipRTC.
    fs::remove_file(libraries.0.0.join("own/lib64/libhiprtc.so.7")).unwrap();
    let passed_over = "ROCm in use: venv/lib/python3.13/site-packages/_rocm_sdk_core/lib (VIRTUAL_ENV)";
    says(&libraries.run("survey", &[("ROCM_PATH", "own"), environment]), &[passed_over]);
    says(&libraries.run("survey", &[("ROCM_PATH", "nothing"), environment]), &[passed_over]);
    // And one that does not load.
    libraries.copy("own/lib64", SONAMES);
    libraries.file("own/lib64/libamdhip64.so.7");
    says(&libraries.run("survey", &[("ROCM_PATH", "own"), environment]), &[passed_over]);
}

#[test]
fn packed_kernels_do_not_stand_for_catalogues_that_rocblas_opens() {
    let libraries = Libraries::make("packed", 71_400_000);
    let [hip, hiprtc, rocblas, miopen] = SONAMES;
    let wheel = "venv/lib/python3.13/site-packages/_rocm_sdk_libraries";
    libraries.copy("rocm/core-10.0/lib", SONAMES);
    libraries.copy(&wheel.replace("libraries", "core/lib"), [hip, hiprtc, "", ""]);
    libraries.copy(&format!("{wheel}/lib"), ["", "", rocblas, miopen]);
    for (variable, folder) in [(("ROCM_PATH", "rocm"), "rocm/core-10.0"), (("VIRTUAL_ENV", "venv"), wheel)] {
        libraries.file(&format!("{folder}/.kpack/blas_lib_gfx1030.kpack"));
        let kernels = format!("{folder}/lib/rocblas/library");
        says(&libraries.run("rocblas", &[variable]), &["no kernels for gfx1030", &kernels]);
        // A rocBLAS that has no name of a catalogue has its kernels elsewhere.
        let prefix: PathBuf = Path::new(&libraries.0.path(folder)).into();
        make_library(&prefix, rocblas, rocblas_sys::Rocblas::REQUIRED, 0, &[]);
        assert_eq!(libraries.run("rocblas", &[variable]), "Ok(())");
    }
}

#[test]
fn hiprtc_has_hips_number() {
    let libraries = Libraries::make("numbers", 60_400_000);
    libraries.copy("rocm/lib", ["libamdhip64.so.6", "libhiprtc.so.6", "", ""]);
    libraries.copy("rocm/lib", ["", "libhiprtc.so.7", "", ""]);
    says(&libraries.run("survey", &[("ROCM_PATH", "rocm")]), &["rocm/lib/libhiprtc.so.6"]);
}
