//! This provider's kernels for what NVIDIA's libraries lack. A kernel is compiled at its first use
//! and kept until the process ends.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys as cuda;
use hip_sys::{HIPRTC_SUCCESS, hipErrorUnknown, hipStream_t};

use crate::runtime::{Status, ensure, from_cuda};

const SOURCE: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("../device/own.cu"), "\0").as_bytes()) {
        Ok(source) => source,
        Err(_) => panic!("the source has no NUL"),
    };

const THREADS: u32 = 256;

/// A loaded kernel.
#[derive(Clone, Copy)]
struct Function(cuda::CUfunction);

// SAFETY: any thread may use a function handle, and this crate never unloads the modules.
unsafe impl Send for Function {}

/// Launches a kernel of `own.cu` over `items` items, with at most one thread each. `name` is its
/// C++ name.
///
/// # Safety
/// The arguments match the kernel's parameters. Every access that the kernel makes with them is
/// inside memory that lives until the stream has passed the launch.
pub(crate) unsafe fn launch(
    name: &'static str,
    items: u64,
    stream: hipStream_t,
    arguments: &mut [*mut c_void],
) -> Status {
    if items == 0 {
        return Ok(());
    }
    let function = function(name)?;
    let blocks = items.div_ceil(u64::from(THREADS)).min(1 << 16) as u32;
    // SAFETY: the caller's, and a kernel of a loaded module.
    from_cuda(unsafe {
        let (stream, arguments) = (stream.cast(), arguments.as_mut_ptr());
        cuda::cuLaunchKernel(function.0, blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments, ptr::null_mut())
    })
}

fn function(name: &'static str) -> Status<Function> {
    static KNOWN: Mutex<Option<HashMap<(c_int, &'static str), Function>>> = Mutex::new(None);
    let device = ensure()?;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    if let Some(function) = known.get(&(device, name)) {
        return Ok(*function);
    }
    let (code, symbol) = compile(name, device)?;
    let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: NVRTC's code object; the driver copies it. The module stays loaded.
    unsafe {
        from_cuda(cuda::cuModuleLoadData(&mut module, code.as_ptr().cast()))?;
        from_cuda(cuda::cuModuleGetFunction(&mut function, module, symbol.as_ptr()))?;
    }
    known.insert((device, name), Function(function));
    Ok(Function(function))
}

fn compile(name: &str, device: c_int) -> Status<(Vec<u8>, CString)> {
    use cuda::CUdevice_attribute_enum as Attribute;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the function is the driver's, the pointers valid; a device's handle is its index.
    unsafe {
        let which = Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        from_cuda(cuda::cuDeviceGetAttribute(&mut major, which, device))?;
        let which = Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
        from_cuda(cuda::cuDeviceGetAttribute(&mut minor, which, device))?;
    }
    compile_for(name, &format!("sm_{major}{minor}")).map_err(|log| {
        log::error!("hip-cuda: {name} does not compile: {log}");
        hipErrorUnknown
    })
}

/// The code and the symbol of a kernel, or the compiler's log.
fn compile_for(name: &str, architecture: &str) -> Result<(Vec<u8>, CString), String> {
    let rtc = crate::hiprtc_table();
    let text = |text: &str| CString::new(text).map_err(|error| error.to_string());
    let expression = text(name)?;
    let options = [text(&format!("--offload-arch={architecture}"))?, text("-std=c++17")?];
    let list: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    let mut program = ptr::null_mut();
    // SAFETY: the table is hipRTC's. Texts and out-pointers outlive the calls, and buffers have the
    // sizes that hipRTC returned.
    unsafe {
        let none = ptr::null();
        let status =
            (rtc.hiprtcCreateProgram)(&mut program, SOURCE.as_ptr(), c"own.cu".as_ptr(), 0, none, none);
        if status != HIPRTC_SUCCESS {
            return Err(format!("hiprtcCreateProgram: {status}"));
        }
        let mut status = (rtc.hiprtcAddNameExpression)(program, expression.as_ptr());
        if status == HIPRTC_SUCCESS {
            status = (rtc.hiprtcCompileProgram)(program, list.len() as c_int, list.as_ptr());
        }
        let (mut symbol, mut size) = (none.cast::<c_char>(), 0);
        if status == HIPRTC_SUCCESS {
            status = (rtc.hiprtcGetLoweredName)(program, expression.as_ptr(), &mut symbol);
        }
        if status == HIPRTC_SUCCESS {
            status = (rtc.hiprtcGetCodeSize)(program, &mut size);
        }
        let mut code = vec![0u8; size];
        if status == HIPRTC_SUCCESS {
            status = (rtc.hiprtcGetCode)(program, code.as_mut_ptr().cast());
        }
        let result = if status == HIPRTC_SUCCESS {
            Ok((code, CStr::from_ptr(symbol).to_owned()))
        } else {
            let mut size = 0;
            (rtc.hiprtcGetProgramLogSize)(program, &mut size);
            let mut log = vec![0u8; size + 1];
            (rtc.hiprtcGetProgramLog)(program, log.as_mut_ptr().cast());
            let log =
                CStr::from_bytes_until_nul(&log).map_or(String::new(), |log| log.to_string_lossy().into());
            Err(format!("{status}: {log}"))
        };
        (rtc.hiprtcDestroyProgram)(&mut program);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_compile() {
        // SAFETY: the function only looks for the library.
        if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
            println!("skipped: no NVRTC");
            return;
        }
        let of_pools = |t: &str| {
            ["u8", "u16", "u32", "u64"]
                .map(|i| i.replace("u8", "unsigned char"))
                .into_iter()
                .flat_map(|i| [format!("2, {t}, {i}"), format!("3, {t}, {i}")])
                .flat_map(|types| [format!("max_forward<{types}>"), format!("max_backward<{types}>")])
                .collect::<Vec<_>>()
        };
        let mut names = [of_pools("float"), of_pools("f16")].concat();
        for t in ["float", "f16", "bf16"] {
            for centred in [true, false] {
                names.push(format!("norm_forward<{t}, {centred}>"));
                let shapes = ["32, 2", "32, 8", "256, 4", "256, 8"];
                names.extend(shapes.map(|shape| format!("row_norm<{t}, {centred}, {shape}>")));
            }
            names.extend([format!("norm_backward<{t}>"), format!("norm_parameters<{t}>")]);
        }
        for t in ["float", "f16"] {
            names.extend([format!("activation_forward<{t}>"), format!("activation_backward<{t}>")]);
        }
        names.push("gemm_i8".into());
        for name in names {
            compile_for(&name, "sm_90").unwrap_or_else(|log| panic!("{name}: {log}"));
        }
    }
}
