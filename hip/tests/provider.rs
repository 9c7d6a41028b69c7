//! What depends on the environment: the choice of the provider, its libraries, and its cache. Each
//! case runs in a separate process, because a process chooses once.
//!
//! Not on Windows, where `tests/windows` has such cases: these imitate libraries with the host's
//! compiler, and a machine with files of modes and owners.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use hip::{Device, Error, Grid, Program, ProviderKind};

mod processes;
use processes::{Scratch, command, make_library, result, run};

const PROGRAM: Program<'static> = Program {
    name: "add_one.hip",
    source: r#"
#include "prelude.h"
__global__ void add_one(u64 n, u32 *x) {
    for_each(n, [=](u64 i) { x[i] += 1; });
}
"#,
    headers: &[],
    options: &[],
};

/// The body of a child process; not a test by itself.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn child() {
    let result = match std::env::var("HIP_TEST_CASE").as_deref() {
        Ok("device") => Device::get(0).map(|device| format!("{}", device.provider().kind())),
        Ok("info") => hip::provider().map(|_| {
            let (info, _) = hip::survey().remove(0).devices.remove(0);
            format!(
                "{}, {}, {} bytes, warps of {}, HIP {}",
                info.name, info.arch, info.total_memory, info.warp_size, info.runtime_version
            )
        }),
        Ok("twice") => Device::get(0).and_then(|_| Device::get(0)).map(|_| "twice".into()),
        Ok("available") => Ok(format!("{} {}", hip::is_available(), hip::rocm_device_count())),
        Ok("late choice") => Device::get(0).and_then(|device| {
            let other = match device.provider().kind() {
                ProviderKind::Rocm => ProviderKind::Cpu,
                _ => ProviderKind::Rocm,
            };
            hip::select_provider(Some(device.provider().kind()))?;
            hip::select_provider(Some(other)).map(|()| "taken".into())
        }),
        Ok("late auto") => {
            Device::get(0).and_then(|_| hip::select_provider(None)).map(|()| "as before".into())
        }
        Ok("late settings") => hip::select_provider(Some(ProviderKind::Cpu))
            .and_then(|()| hip::provider())
            .and_then(|_| hip::Config::default().provider(ProviderKind::Rocm).install())
            .map(|()| "installed".into()),
        Ok("early choice") => hip::select_provider("cuda".parse().ok())
            .and_then(|()| Device::get(0))
            .map(|_| "a CUDA device".into()),
        Ok("allocate") => Device::get(0).and_then(|device| {
            let first = device.alloc(100 << 20).map(|_| ());
            device.alloc(10 << 20)?;
            first.map(|()| "allocated".into())
        }),
        Ok("deterministic") => Ok(hip::deterministic().to_string()),
        Ok("kernel") => run_kernel(),
        #[cfg(feature = "cpu")]
        Ok("foreign user") => beside_another_user_of_hip(),
        Ok("blocks") => blocks_of_threads(),
        other => panic!("{other:?}"),
    };
    match result {
        Ok(text) => println!("\nRESULT ok {text}"),
        Err(error) => println!("\nRESULT {error:?}"),
    }
}

fn run_kernel() -> hip::Result<String> {
    let device = Device::get(0)?;
    let kernel = device.kernel(&PROGRAM, "add_one")?;
    let buffer = device.upload(&[1, 0, 0, 0, 41, 0, 0, 0])?;
    let launch = device.launch_kernel(&kernel)?.value(2u64).buffer(&buffer, 0);
    // SAFETY: the parameters are the count and a pointer to so many u32.
    unsafe { launch.submit(device.grid(1), 0)? };
    let mut out = [0; 8];
    device.read(&buffer, 0, &mut out)?;
    assert_eq!(out, [2, 0, 0, 0, 42, 0, 0, 0]);
    let stats = hip::code_cache().stats();
    let refusal = hip::code_cache().last_refusal().map_or(String::new(), |error| error.to_string());
    Ok(format!(
        "hits {} compiled {} damaged {} refused {} {refusal}",
        stats.hits, stats.compiled, stats.damaged, stats.refused
    ))
}

/// Two devices, and other code that does not know this crate and makes the wrong device current.
#[cfg(feature = "cpu")]
fn beside_another_user_of_hip() -> hip::Result<String> {
    let devices = [Device::get(0)?, Device::get(1)?];
    let mut out = [0; 4];
    for (at, device) in devices.iter().enumerate() {
        let buffer = device.upload(&[at as u8; 4])?;
        // SAFETY: the function is HIP's.
        assert_eq!(unsafe { (hip_cpu::hip_table().hipSetDevice)(1 - at as i32) }, 0);
        // The kernel must still be loaded onto this device and launched on its stream.
        let kernel = device.kernel(&PROGRAM, "add_one")?;
        let launch = device.launch_kernel(&kernel)?.value(1u64).buffer(&buffer, 0);
        // SAFETY: the parameters are the count and a pointer to so many u32.
        unsafe { launch.submit(device.grid(1), 0)? };
        device.read(&buffer, 0, &mut out)?;
        assert_eq!(out, [at as u8 + 1, at as u8, at as u8, at as u8]);
    }
    Ok("each on its own".into())
}

/// The block sizes that a launch accepts.
fn blocks_of_threads() -> hip::Result<String> {
    let device = Device::get(0)?;
    let buffer = device.upload(&[0; 4])?;
    let kernel = device.kernel(&PROGRAM, "add_one")?;
    let mut said = format!("warps of {}:", device.info().warp_size);
    for threads in [1, 32, 48, 64, 96, 128] {
        let launch = device.launch_kernel(&kernel)?.value(1u64).buffer(&buffer, 0);
        // SAFETY: the parameters are the count and a pointer to so many u32.
        match unsafe { launch.submit(Grid { blocks: 1, threads }, 0) } {
            Ok(()) => said += &format!(" {threads}"),
            Err(Error::Invalid { op: "launch", expected, found }) => {
                assert!(expected.contains("warp size") && found.contains(&threads.to_string()));
            }
            Err(other) => return Err(other),
        }
    }
    Ok(said)
}

#[test]
fn a_provider_that_does_not_exist() {
    let (result, _) = run("device", &[("BURN_ROCM_PROVIDER", "opencl")]);
    assert_eq!(
        result,
        r#"Config { what: "BURN_ROCM_PROVIDER", expected: "one of auto, rocm, cuda, cpu", found: "`opencl`" }"#
    );
}

#[test]
fn the_first_choice_stays() {
    let (result, _) = run("late choice", &[]);
    assert!(
        result.starts_with(r#"Config { what: "provider""#) && result.contains("in use already"),
        "{result}"
    );
    // A provider that was chosen by its name is not what `None` asks for.
    let (result, _) = run("late auto", &[("BURN_ROCM_PROVIDER", "cpu")]);
    assert!(
        result.starts_with(r#"Config { what: "provider", expected: "cpu (in use already"#)
            && result.ends_with(r#"found: "auto" }"#),
        "{result}"
    );
    assert_eq!(run("late auto", &[("BURN_ROCM_PROVIDER", "auto")]).0, "ok as before");
    // The environment asks for another provider. The explicit choice counts, whether or not that
    // provider is available.
    let (result, _) = run("early choice", &[("BURN_ROCM_PROVIDER", "cpu")]);
    let not_here = result.starts_with("NotAvailable")
        && ["cuda", "NVIDIA", "NVRTC"].iter().any(|name| result.contains(name));
    assert!(not_here || result == "ok a CUDA device", "{result}");
}

#[test]
fn the_first_use_of_a_chosen_provider_fixes_the_settings() {
    let (result, _) = run("late settings", &[]);
    assert!(result.starts_with(r#"Config { what: "Config::install""#), "{result}");
}

/// ROCm libraries that load, have every required function, and find no device.
fn libraries_without_a_device(scratch: &Scratch) -> String {
    let make = |file: &str, names| make_library(&scratch.0, file, names, hip_sys::hipErrorNoDevice, &[]);
    make("libamdhip64.so.7", hip_sys::Hip::REQUIRED);
    make("libhiprtc.so.7", hip_sys::Hiprtc::REQUIRED);
    scratch.0.display().to_string()
}

/// HIP 5.7 has one symbol for the properties, with the old layout. Its hipRTC functions are in a
/// library of their own too.
#[test]
fn an_old_hip_is_read_in_its_own_layout() {
    let scratch = Scratch::new("old");
    let names = [hip_sys::Hip::REQUIRED, hip_sys::Hiprtc::REQUIRED].concat();
    let bodies = [
        ("hipGetDeviceCount", "(int *count) { *count = 1; return 0; }"),
        ("hipRuntimeGetVersion", "(int *version) { *version = 50731921; return 0; }"),
        ("hipDriverGetVersion", "(int *version) { *version = 50731921; return 0; }"),
        ("hiprtcVersion", "(int *major, int *minor) { *major = 9; *minor = 0; return 0; }"),
        (
            "hipDeviceGetName",
            "(char *name, int length, int device) { strcpy(name, \"An old GPU\"); return 0; }",
        ),
        ("hipDeviceTotalMem", "(unsigned long *bytes, int device) { *bytes = 1ul << 33; return 0; }"),
        (
            "hipDeviceGetAttribute",
            "(int *value, int attribute, int device) { *value = attribute; return 0; }",
        ),
        // sizeof and offsetof as in HIP 5.7's hipDeviceProp_t, which HIP 7 keeps as
        // hipDeviceProp_tR0000.
        (
            "hipGetDeviceProperties",
            "(char *properties, int device) { memset(properties, 0, 792); \
             strcpy(properties + 396, \"gfx906:sramecc+:xnack-\"); return 0; }",
        ),
    ];
    make_library(&scratch.0, "libamdhip64.so.5", &names, 0, &bodies);
    let root = scratch.0.display().to_string();
    let (result, _) = run("info", &[("BURN_ROCM_PROVIDER", "rocm"), ("ROCM_PATH", &root)]);
    assert_eq!(result, "ok An old GPU, gfx906:sramecc+:xnack-, 8589934592 bytes, warps of 87, HIP 50731921");
}

#[test]
fn libraries_that_load_but_have_no_device() {
    let scratch = Scratch::new("no-device");
    let root = libraries_without_a_device(&scratch);
    let (result, _) = run("device", &[("BURN_ROCM_PROVIDER", "rocm"), ("ROCM_PATH", &root)]);
    assert!(result.contains("HIP is installed but finds no device"), "{result}");
    assert!(result.contains("lib/libamdhip64.so.7 (loaded)"), "{result}");
    let (result, _) = run("available", &[("ROCM_PATH", &root)]);
    assert_eq!(result, "ok false 0");
}

#[test]
fn a_library_that_lacks_a_function_is_named() {
    let scratch = Scratch::new("lacking");
    let root = libraries_without_a_device(&scratch);
    // Another library under HIP's name: it loads but has none of HIP's functions.
    fs::copy(scratch.0.join("lib/libhiprtc.so.7"), scratch.0.join("lib/libamdhip64.so.7")).unwrap();
    let (result, _) = run("device", &[("BURN_ROCM_PROVIDER", "rocm"), ("ROCM_PATH", &root)]);
    assert!(result.contains("HIP lacks the symbol hipInit"), "{result}");
}

#[test]
fn falling_back_to_the_cpu_is_said_once() {
    let scratch = Scratch::new("fallback");
    let root = libraries_without_a_device(&scratch);
    // Without this setting an NVIDIA GPU would be used instead of the CPU.
    let hidden = ("CUDA_VISIBLE_DEVICES", "-1");
    let (result, stderr) = run("twice", &[("BURN_ROCM_PROVIDER", "auto"), ("ROCM_PATH", &root), hidden]);
    assert_eq!(result, "ok twice");
    let lines: Vec<_> = stderr.lines().filter(|line| line.starts_with("burn-rocm:")).collect();
    assert_eq!(lines.len(), 1, "{stderr}");
    assert!(lines[0].contains("using the cpu provider"), "{stderr}");
    assert!(lines[0].contains("rocm: HIP is installed but finds no device"), "{stderr}");
    assert!(lines[0].contains("cuda: "), "{stderr}");
    let (result, stderr) = run("twice", &[("BURN_ROCM_PROVIDER", "cpu")]);
    assert_eq!((result.as_str(), stderr.contains("burn-rocm:")), ("ok twice", false), "asked for: {stderr}");
}

#[test]
fn settings_reach_the_device() {
    let (result, _) = run("allocate", &[("BURN_ROCM_MEMORY_LIMIT", "64M")]);
    assert!(result.starts_with("OutOfMemory { requested: 104857600, free: "), "{result}");
    assert!(result.contains("total: 67108864, held: "), "{result}");
    let (result, _) = run("device", &[("BURN_ROCM_MEMORY_LIMIT", "64 megabytes")]);
    assert!(result.starts_with(r#"Config { what: "BURN_ROCM_MEMORY_LIMIT""#), "{result}");
    assert_eq!(run("deterministic", &[("BURN_ROCM_DETERMINISTIC", "1")]).0, "ok true");
    assert_eq!(run("deterministic", &[("BURN_ROCM_DETERMINISTIC", "")]).0, "ok false");
}

fn cache_files(directory: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|ending| ending == "code")).collect()
}

#[test]
fn a_kernel_is_compiled_once_and_again_when_its_file_is_damaged() {
    let scratch = Scratch::new("cache");
    let cache = scratch.path("cache");
    let kernel = || run("kernel", &[("BURN_ROCM_CACHE_DIR", &cache)]).0;
    assert_eq!(kernel(), "ok hits 0 compiled 1 damaged 0 refused 0 ");
    assert_eq!(fs::metadata(&cache).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(kernel(), "ok hits 1 compiled 0 damaged 0 refused 0 ");
    let files = cache_files(&cache);
    assert_eq!(files.len(), 1);
    let mut bytes = fs::read(&files[0]).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&files[0], &bytes).unwrap();
    assert_eq!(kernel(), "ok hits 0 compiled 1 damaged 1 refused 0 ");
    assert_eq!(kernel(), "ok hits 1 compiled 0 damaged 0 refused 0 ");
    // With the cache off, it is neither read nor written.
    let off = run("kernel", &[("BURN_ROCM_CACHE_DIR", &cache), ("BURN_ROCM_CACHE", "0")]).0;
    assert_eq!(off, "ok hits 0 compiled 1 damaged 0 refused 0 ");
}

#[test]
fn what_others_may_have_written_is_refused() {
    let scratch = Scratch::new("foreign");
    let cache = scratch.path("cache");
    let kernel = || run("kernel", &[("BURN_ROCM_CACHE_DIR", &cache)]).0;
    kernel();
    // Only root can give a file to another user.
    if std::os::unix::fs::chown(&cache_files(&cache)[0], Some(12_345), None).is_ok() {
        let result = kernel();
        assert!(result.starts_with("ok hits 0 compiled 1 damaged 0 refused 1 "), "{result}");
        assert!(
            result.contains("expected a file of user") && result.contains("found one of user 12345"),
            "{result}"
        );
    }
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).unwrap();
    let result = kernel();
    assert!(result.starts_with("ok hits 0 compiled 1 damaged 0 refused 1 "), "{result}");
    assert!(result.contains("mode 0777"), "{result}");
}

#[test]
fn another_compiler_compiles_anew() {
    let scratch = Scratch::new("compiler");
    let (cache, compiler) = (scratch.path("cache"), scratch.path("c++"));
    let write = |text: &str| {
        fs::write(&compiler, format!("#!/bin/sh\n{text}exec c++ \"$@\"\n")).unwrap();
        fs::set_permissions(&compiler, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let kernel = || {
        let variables =
            [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CACHE_DIR", cache.as_str()), ("CXX", &compiler)];
        run("kernel", &variables).0
    };
    write("");
    assert!(kernel().starts_with("ok hits 0 compiled 1 "));
    assert!(kernel().starts_with("ok hits 1 compiled 0 "));
    write("# the next version\n");
    let result = kernel();
    assert!(result.starts_with("ok hits 0 compiled 1 "), "code of the compiler before: {result}");
}

#[test]
#[cfg(feature = "cpu")]
fn another_user_of_hip_may_choose_its_device() {
    let (result, _) = run("foreign user", &[("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CPU_DEVICES", "2")]);
    assert_eq!(result, "ok each on its own");
}

#[test]
#[cfg(feature = "lockstep")]
fn blocks_are_whole_warps() {
    for (wave, taken) in [("32", "32: 32 64 96 128"), ("64", "64: 64 128")] {
        let (result, _) = run("blocks", &[("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CPU_WAVE", wave)]);
        assert_eq!(result, format!("ok warps of {taken}"));
    }
}

#[test]
fn processes_may_race_for_the_cache() {
    let scratch = Scratch::new("race");
    let cache = scratch.path("cache");
    let children: Vec<_> =
        (0..4).map(|_| command("kernel", &[("BURN_ROCM_CACHE_DIR", &cache)]).spawn().unwrap()).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let result = result(&output.stdout);
        assert!(result.starts_with("ok hits ") && result.contains("damaged 0 refused 0"), "{result}");
    }
    assert_eq!(cache_files(&cache).len(), 1);
    assert_eq!(fs::read_dir(Path::new(&cache)).unwrap().count(), 1, "no temporary file is left");
    let after = run("kernel", &[("BURN_ROCM_CACHE_DIR", &cache)]).0;
    assert_eq!(after, "ok hits 1 compiled 0 damaged 0 refused 0 ");
}
