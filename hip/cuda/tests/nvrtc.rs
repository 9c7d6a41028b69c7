//! NVRTC compiles every instantiation of the table for the architectures in `BURN_ROCM_CUDA_ARCHS`
//! (default `sm_90`). Needs no GPU; without NVRTC the test counts as ignored and says so.

mod trials;

use std::ffi::{CStr, CString, c_char};
use std::process::ExitCode;
use std::ptr;

use hip_cuda::{Library, hiprtc_table, missing_symbol};
use hip_kernels::{HEADERS, families};
use hip_sys::HIPRTC_SUCCESS;

fn main() -> ExitCode {
    trials::main(trials::tests![every_kernel_compiles, a_program_that_does_not_compile_has_a_log], &[])
}

/// Loads NVRTC; ends the test as ignored if it is absent.
fn need_nvrtc() {
    let names = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
    // SAFETY: NVIDIA's library, made to be opened so; it stays loaded.
    let Some(library) = names.iter().find_map(|name| unsafe { libloading::Library::new(name) }.ok()) else {
        trials::absent(names.join(", "));
    };
    std::mem::forget(library);
    assert_eq!(missing_symbol(Library::Nvrtc), None);
}

/// Compiles a family's kernels in one program. Returns each kernel's symbol and the code's size, or
/// the log.
fn compile(
    source: &str,
    name: &str,
    expressions: &[String],
    arch: &str,
) -> Result<(Vec<String>, usize), String> {
    let rtc = hiprtc_table();
    let text = |text: &str| CString::new(text).expect("a name without a NUL");
    let (source, name) = (text(source), text(name));
    let names: Vec<_> = HEADERS.iter().map(|(name, _)| text(name)).collect();
    let texts: Vec<_> = HEADERS.iter().map(|(_, header)| text(header)).collect();
    let options = [text(&format!("--offload-arch={arch}")), text("-O3"), text("-std=c++17")];
    let expressions: Vec<_> = expressions.iter().map(|expression| text(expression)).collect();
    let pointers = |list: &[CString]| list.iter().map(|text| text.as_ptr()).collect::<Vec<*const c_char>>();
    let mut program = ptr::null_mut();
    // SAFETY: the table is hipRTC's; every text outlives the program, every count is that of its
    // list.
    unsafe {
        let (texts, names, options) = (pointers(&texts), pointers(&names), pointers(&options));
        let count = HEADERS.len() as i32;
        let status = (rtc.hiprtcCreateProgram)(
            &mut program,
            source.as_ptr(),
            name.as_ptr(),
            count,
            texts.as_ptr(),
            names.as_ptr(),
        );
        assert_eq!(status, HIPRTC_SUCCESS);
        for expression in &expressions {
            assert_eq!((rtc.hiprtcAddNameExpression)(program, expression.as_ptr()), HIPRTC_SUCCESS);
        }
        let status = (rtc.hiprtcCompileProgram)(program, options.len() as i32, options.as_ptr());
        let mut size = 0;
        assert_eq!((rtc.hiprtcGetProgramLogSize)(program, &mut size), HIPRTC_SUCCESS);
        let mut log = vec![0u8; size.max(1)];
        assert_eq!((rtc.hiprtcGetProgramLog)(program, log.as_mut_ptr().cast()), HIPRTC_SUCCESS);
        let log = CStr::from_bytes_until_nul(&log)
            .map_or_else(|_| String::new(), |log| log.to_string_lossy().into());
        if status != HIPRTC_SUCCESS {
            (rtc.hiprtcDestroyProgram)(&mut program);
            return Err(log);
        }
        if !log.is_empty() {
            eprintln!("{log}");
        }
        let mut symbols = Vec::new();
        for expression in &expressions {
            let mut symbol = ptr::null();
            let status = (rtc.hiprtcGetLoweredName)(program, expression.as_ptr(), &mut symbol);
            assert_eq!(status, HIPRTC_SUCCESS, "{expression:?}");
            symbols.push(CStr::from_ptr(symbol).to_string_lossy().into_owned());
        }
        let mut size = 0;
        assert_eq!((rtc.hiprtcGetCodeSize)(program, &mut size), HIPRTC_SUCCESS);
        assert_eq!((rtc.hiprtcDestroyProgram)(&mut program), HIPRTC_SUCCESS);
        Ok((symbols, size))
    }
}

fn every_kernel_compiles() {
    need_nvrtc();
    let archs = std::env::var("BURN_ROCM_CUDA_ARCHS").unwrap_or_else(|_| "sm_90".into());
    let only = std::env::var("BURN_ROCM_CUDA_FAMILIES").unwrap_or_default();
    let wanted: Vec<&str> = only.split(',').filter(|name| !name.is_empty()).collect();
    let families: Vec<_> =
        families().iter().filter(|family| wanted.is_empty() || wanted.contains(&family.name)).collect();
    let mut failed = Vec::new();
    let mut count = 0;
    for arch in archs.split(',') {
        for family in &families {
            let expressions: Vec<_> = family.instantiations().map(|name| name.to_string()).collect();
            // Some hundreds at a time, because a family has thousands.
            for part in expressions.chunks(256) {
                match compile(family.source, &format!("{}.hip", family.name), part, arch) {
                    Ok((symbols, size)) => {
                        assert!(size > 0 && symbols.iter().all(|symbol| !symbol.is_empty()));
                        count += symbols.len();
                    }
                    Err(log) => {
                        let start: String = log.chars().take(3000).collect();
                        failed.push(format!("{arch} {}: {start}", family.name));
                        break;
                    }
                }
            }
        }
    }
    println!("{count} kernels compiled for {archs}");
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

fn a_program_that_does_not_compile_has_a_log() {
    need_nvrtc();
    let log = compile("__global__ void k() { nonsense; }", "k.hip", &["k".into()], "sm_90")
        .expect_err("it is no C++");
    assert!(log.contains("nonsense"), "{log}");
}
