//! NVRTC compiles every instantiation of the table for the architectures in `BURN_ROCM_CUDA_ARCHS`
//! (default `sm_90`), with the families of `BURN_ROCM_CUDA_FAMILIES` (default: all). Needs no GPU;
//! without NVRTC the test counts as ignored and says so. With `BURN_ROCM_CUDA_REPORT` it writes a row
//! for each kernel into that file: registers, spilled bytes, shared memory. `tests/cuda/kernels.sh`
//! downloads NVRTC.

mod trials;

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Write as _;
use std::process::ExitCode;
use std::ptr;

use hip_cuda::{Library, hiprtc_table, missing_symbol};
use hip_kernels::{HEADERS, families};
use hip_sys::HIPRTC_SUCCESS;

fn main() -> ExitCode {
    trials::main(
        trials::tests![
            every_kernel_compiles,
            a_program_that_does_not_compile_has_a_log,
            a_kernel_that_spills_is_found,
            the_log_is_read
        ],
        &[],
    )
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

/// The kernels that may spill registers, by the start of their names, and the bytes that a thread may
/// then store; [`OF_F64`] for those of f64. All others may not. The limits leave room for other
/// versions of NVRTC.
const SPILLS: &[(&str, u32)] = &[
    ("attention_f32<", 128),
    ("attention_f32_backward<f32, 2>", 128),
    ("attention_f32_kept", 64),
    ("attention_matrix", 768),
    ("batch_norm", 64),
    ("chain_columns", 64),
    ("chain_rows", 64),
    ("channel_sums", 64),
    ("conv_forward", 64),
    ("copy_narrow<u8", 64),
    ("copy_transposed", 96),
    ("decode_attention_matrix<bf16, bf16, 128>", 32),
    ("decode_attention_matrix<bf16, bf16, 256>", 96),
    ("decode_attention_matrix<f16, f16, 128>", 32),
    ("decode_attention_matrix<f16, f16, 256>", 96),
    ("decode_rotary_attention<bf16, bf16, 256", 96),
    ("decode_rotary_attention<bf16, f32, 256", 96),
    ("decode_rotary_attention<f16, f16, 256", 96),
    ("decode_rotary_attention<f16, f32, 256", 96),
    ("few_codes<Int4", 64),
    ("group_norm_rows<", 64),
    ("layer_norm_rows<bf16", 160),
    ("layer_norm_rows<f16", 160),
    ("max_pool2d_last_backward", 64),
    ("qweight_product<Int8, f32, 16>", 64),
    ("reduce_columns", 64),
    ("scan_tiles", 320),
];
const OF_F64: u32 = 192;

/// What the assembler says of a kernel.
#[derive(Debug, Default, PartialEq, Eq)]
struct Use {
    registers: u32,
    /// Bytes that a thread spills: those that it stores.
    spilled: u32,
    /// Bytes of shared memory that the source declares.
    shared: u32,
}

/// What a program's log says of its kernels, by their symbols.
fn uses_in(log: &str) -> HashMap<&str, Use> {
    let number_before = |line: &str, what: &str| -> u32 {
        let words = line.split(what).next().filter(|before| before.len() < line.len());
        words.and_then(|before| before.split_whitespace().last()?.parse().ok()).unwrap_or(0)
    };
    let (mut uses, mut symbol) = (HashMap::<&str, Use>::new(), "");
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            symbol = rest.split('\'').next().unwrap_or_default();
        } else if line.contains("bytes spill stores") {
            uses.entry(symbol).or_default().spilled += number_before(line, " bytes spill stores");
        } else if line.contains(" registers") && line.contains("Used ") {
            let own = uses.entry(symbol).or_default();
            own.registers = number_before(line, " registers");
            own.shared = number_before(line, " bytes smem");
        }
    }
    uses
}

/// Compiles a family's kernels in one program. Returns each kernel's symbol, the code's size and the
/// log, or the log alone.
fn compile(
    source: &str,
    name: &str,
    expressions: &[String],
    arch: &str,
) -> Result<(Vec<String>, usize, String), String> {
    let rtc = hiprtc_table();
    let text = |text: &str| CString::new(text).expect("a name without a NUL");
    let (source, name) = (text(source), text(name));
    let names: Vec<_> = HEADERS.iter().map(|(name, _)| text(name)).collect();
    let texts: Vec<_> = HEADERS.iter().map(|(_, header)| text(header)).collect();
    // The last option changes the log only.
    let options =
        [&format!("--offload-arch={arch}"), "-O3", "-std=c++17", "--ptxas-options=--verbose"].map(text);
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
        let is_told = |line: &&str| !line.starts_with("ptxas") && !line.trim().is_empty();
        log.lines().filter(is_told).for_each(|line| eprintln!("{line}"));
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
        Ok((symbols, size, log))
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
    let mut report = String::from("architecture\tkernel\tregisters\tspilled bytes\tshared bytes\n");
    for arch in archs.split(',') {
        for family in &families {
            let expressions: Vec<_> = family.instantiations().map(|name| name.to_string()).collect();
            // Some hundreds at a time, because a family has thousands.
            for part in expressions.chunks(256) {
                match compile(family.source, &format!("{}.hip", family.name), part, arch) {
                    Ok((symbols, size, log)) => {
                        assert!(size > 0 && symbols.iter().all(|symbol| !symbol.is_empty()));
                        count += symbols.len();
                        let uses = uses_in(&log);
                        for (name, symbol) in part.iter().zip(&symbols) {
                            let Some(Use { registers, spilled, shared }) = uses.get(symbol.as_str()) else {
                                failed.push(format!("{arch} {name}: not in the log"));
                                continue;
                            };
                            let _ = writeln!(report, "{arch}\t{name}\t{registers}\t{spilled}\t{shared}");
                            let limit = SPILLS.iter().find(|(start, _)| name.starts_with(start));
                            let of_f64 = if name.contains("f64") { OF_F64 } else { 0 };
                            let limit = limit.map_or(0, |&(_, bytes)| bytes).max(of_f64);
                            if *spilled > limit {
                                failed.push(format!(
                                    "{arch} {name} spills {spilled} bytes, expected at most {limit}"
                                ));
                            }
                        }
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
    if let Some(path) = std::env::var_os("BURN_ROCM_CUDA_REPORT").filter(|path| !path.is_empty()) {
        std::fs::write(&path, report).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

fn a_program_that_does_not_compile_has_a_log() {
    need_nvrtc();
    let log = compile("__global__ void k() { nonsense; }", "k.hip", &["k".into()], "sm_90")
        .expect_err("it is no C++");
    assert!(log.contains("nonsense"), "{log}");
}

/// 96 values of a thread that live at once, within the 64 registers of a kernel without launch bounds.
fn a_kernel_that_spills_is_found() {
    need_nvrtc();
    let source = "__global__ void k(const float *x, float *out) {
        float v[96];
        #pragma unroll
        for (int i = 0; i < 96; ++i) v[i] = x[(threadIdx.x + i) % 96];
        for (int round = 0; round < 3; ++round) {
            #pragma unroll
            for (int i = 0; i < 96; ++i) v[i] = v[i] * v[(i + 1) % 96] + v[(i + 7) % 96];
        }
        float sum = 0;
        #pragma unroll
        for (int i = 0; i < 96; ++i) sum += v[i];
        out[threadIdx.x] = sum;
    }";
    let (symbols, _, log) = compile(source, "k.hip", &["k".into()], "sm_90").expect("it compiles");
    let uses = uses_in(&log);
    let Use { registers, spilled, .. } = uses[symbols[0].as_str()];
    assert!(registers <= 64 && spilled > 0, "{log}");
}

fn the_log_is_read() {
    let log = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1aPf' for 'sm_90'
ptxas info    : Function properties for _Z1aPf
ptxas         .     32 bytes stack frame, 40 bytes spill stores, 56 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 32 bytes cumulative stack size, 33156 bytes smem
ptxas info    : Compiling entry function '_Z1bPf' for 'sm_90'
ptxas info    : Function properties for _Z1bPf
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
";
    let uses = uses_in(log);
    assert_eq!(uses["_Z1aPf"], Use { registers: 255, spilled: 40, shared: 33156 });
    assert_eq!(uses["_Z1bPf"], Use { registers: 12, spilled: 0, shared: 0 });
    assert_eq!(uses.len(), 2);
}
