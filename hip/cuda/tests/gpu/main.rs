//! The C tables on an NVIDIA GPU: graphs, registers, convolutions, norms, refusals and f32's
//! arithmetic. Without a GPU each test counts as ignored and says what is absent.
#![allow(clippy::unwrap_used, reason = "tests")]

mod convolution;
mod graph;
mod memory;
mod norms;
mod precision;
mod refusals;
mod registers;
#[path = "../trials/mod.rs"]
mod trials;

use std::ffi::{CStr, CString, c_int, c_void};
use std::path::Path;
use std::process::ExitCode;
use std::ptr::{null, null_mut};

use hip_cuda::{Library, hip_table, hiprtc_table, missing_symbol};
use hip_sys::*;

/// Opens a library from CUDA's folders or the loader's path, and never closes it.
fn open(names: &[&str]) -> bool {
    let roots = ["CUDA_PATH", "CUDA_HOME"].into_iter().filter_map(std::env::var_os);
    let folders: Vec<_> = roots
        .map(|root| Path::new(&root).join("lib64"))
        .chain([Path::new("/usr/local/cuda/lib64").into()])
        .collect();
    names.iter().any(|name| {
        let places = folders.iter().map(|folder| folder.join(name)).chain([Path::new(name).into()]);
        places.into_iter().any(|place| {
            // SAFETY: NVIDIA's library, made to be opened so; it stays loaded.
            unsafe { libloading::Library::new(place) }.map(std::mem::forget).is_ok()
        })
    })
}

fn main() -> ExitCode {
    trials::main(
        trials::tests![
            convolution::repeated_calls_follow_what_they_are_given,
            graph::what_was_captured_runs_at_each_launch,
            graph::a_capture_that_fails_gives_no_graph,
            graph::kernels_overlap_where_their_modules_say_so,
            memory::a_free_of_null_makes_the_threads_context,
            memory::memory_that_others_allocated_is_copied,
            norms::rows_of_every_length_and_type,
            norms::a_large_mean_costs_no_digits,
            norms::types_that_it_has_not_are_refused,
            precision::f32_is_rounded_to_tf32_where_that_is_asked_for,
            refusals::convolutions_that_neither_takes_are_not_implemented,
            refusals::pooling_of_other_types_and_layouts_is_not_implemented,
            refusals::strides_past_32_bits_are_not_implemented,
            refusals::products_of_other_types_are_not_implemented,
            registers::blocks_of_1024_threads_start,
        ],
        trials::tests![precision::products],
    )
}

/// HIP on the first GPU, with the libraries `more`; ends the test as ignored if something is
/// absent.
fn gpu(more: &[Library]) -> Hip {
    for library in [&[Library::Driver, Library::Nvrtc], more].concat() {
        let names = match library {
            Library::Driver => &["libcuda.so.1"][..],
            Library::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12"],
            Library::Cublas => {
                // cuBLAS needs it, and does not always search its own folder.
                open(&["libcublasLt.so.13", "libcublasLt.so.12"]);
                &["libcublas.so.13", "libcublas.so.12"]
            }
            Library::CublasLt => &["libcublasLt.so.13", "libcublasLt.so.12"],
            Library::Cudnn => &["libcudnn.so.9"],
        };
        if !open(names) {
            trials::absent(names.join(", "));
        }
        assert_eq!(missing_symbol(library), None);
    }
    let hip = hip_table();
    let mut count = 0;
    // SAFETY: the functions are HIP's; the pointer is valid.
    let found =
        unsafe { (hip.hipInit)(0) == hipSuccess && (hip.hipGetDeviceCount)(&mut count) == hipSuccess };
    if !found || count == 0 {
        trials::absent("GPU");
    }
    hip
}

/// Asserts that a HIP call succeeded.
#[track_caller]
fn ok(status: hipError_t) {
    assert_eq!(status, hipSuccess);
}

/// Device memory, freed when dropped.
struct Memory {
    hip: Hip,
    address: *mut c_void,
    bytes: usize,
}

impl Memory {
    fn new(hip: &Hip, bytes: usize) -> Self {
        let mut address = null_mut();
        // SAFETY: the function is HIP's; the pointer is valid.
        ok(unsafe { (hip.hipMalloc)(&mut address, bytes) });
        Self { hip: *hip, address, bytes }
    }

    fn of<T: Copy>(hip: &Hip, values: &[T]) -> Self {
        let memory = Self::new(hip, size_of_val(values));
        // SAFETY: both ranges have as many bytes; the wait keeps the source alive.
        unsafe {
            let (to, from) = (memory.address, values.as_ptr().cast());
            ok((hip.hipMemcpyAsync)(to, from, memory.bytes, hipMemcpyHostToDevice, null_mut()));
            ok((hip.hipDeviceSynchronize)());
        }
        memory
    }

    /// The contents after all work of the device.
    fn read<T: Copy + Default>(&self) -> Vec<T> {
        let mut values = vec![T::default(); self.bytes / size_of::<T>()];
        // SAFETY: both ranges have as many bytes; the wait keeps the destination alive.
        unsafe {
            ok((self.hip.hipDeviceSynchronize)());
            let to = values.as_mut_ptr().cast();
            ok((self.hip.hipMemcpyAsync)(to, self.address, self.bytes, hipMemcpyDeviceToHost, null_mut()));
            ok((self.hip.hipDeviceSynchronize)());
        }
        values
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the function is HIP's; the address is hipMalloc's.
        ok(unsafe { (self.hip.hipFree)(self.address) });
    }
}

/// The first GPU's architecture, such as `sm_90`.
fn architecture(hip: &Hip) -> String {
    let mut properties = hipDeviceProp_tR0600 { before: [0; 1160], gcnArchName: [0; 256], after: [0; 56] };
    // SAFETY: the table's function; the pointer is to what the header says.
    ok(unsafe { hip.hipGetDevicePropertiesR0600.unwrap()(&mut properties, 0) });
    // SAFETY: HIP ends the name with NUL.
    unsafe { CStr::from_ptr(properties.gcnArchName.as_ptr()) }.to_str().unwrap().to_owned()
}

/// The only kernel of a program, compiled for the first GPU. Its module stays loaded.
fn kernel(hip: &Hip, source: &CStr, name: &CStr) -> hipFunction_t {
    let rtc = hiprtc_table();
    let options = [format!("--offload-arch={}", architecture(hip)), "-O3".into()];
    let options = options.map(|text| CString::new(text).unwrap());
    let options: Vec<_> = options.iter().map(|text| text.as_ptr()).collect();
    let (mut program, mut module, mut function) = (null_mut(), null_mut(), null_mut());
    // SAFETY: the tables' functions; every pointer is to what the headers say, and lives through
    // its call.
    unsafe {
        let created =
            (rtc.hiprtcCreateProgram)(&mut program, source.as_ptr(), c"k.hip".as_ptr(), 0, null(), null());
        assert_eq!(created, HIPRTC_SUCCESS);
        assert_eq!((rtc.hiprtcAddNameExpression)(program, name.as_ptr()), HIPRTC_SUCCESS);
        assert_eq!(
            (rtc.hiprtcCompileProgram)(program, options.len() as c_int, options.as_ptr()),
            HIPRTC_SUCCESS
        );
        let (mut symbol, mut size) = (null(), 0);
        assert_eq!((rtc.hiprtcGetLoweredName)(program, name.as_ptr(), &mut symbol), HIPRTC_SUCCESS);
        assert_eq!((rtc.hiprtcGetCodeSize)(program, &mut size), HIPRTC_SUCCESS);
        let mut code = vec![0u8; size];
        assert_eq!((rtc.hiprtcGetCode)(program, code.as_mut_ptr().cast()), HIPRTC_SUCCESS);
        ok((hip.hipModuleLoadData)(&mut module, code.as_ptr().cast()));
        ok((hip.hipModuleGetFunction)(&mut function, module, symbol));
        assert_eq!((rtc.hiprtcDestroyProgram)(&mut program), HIPRTC_SUCCESS);
    }
    function
}

/// Launches a kernel of `parameters`, each by a pointer to it.
///
/// # Safety
/// They are the kernel's.
unsafe fn launch(
    hip: &Hip,
    function: hipFunction_t,
    [blocks, threads]: [u32; 2],
    stream: hipStream_t,
    parameters: &mut [*mut c_void],
) -> hipError_t {
    // SAFETY: the caller's.
    unsafe {
        let parameters = parameters.as_mut_ptr();
        (hip.hipModuleLaunchKernel)(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, null_mut())
    }
}
