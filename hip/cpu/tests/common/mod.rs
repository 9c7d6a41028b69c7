//! A thin caller of the CPU device's C API.
#![allow(
    dead_code,
    missing_docs,
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used
)]
#![allow(unreachable_pub, reason = "shared by several tests")]

use hip_sys::*;
use std::{
    ffi::{CStr, CString, c_void},
    ptr::{null, null_mut},
    sync::LazyLock,
};

pub static HIP: LazyLock<Hip> = LazyLock::new(hip_cpu::hip_table);
pub static RTC: LazyLock<Hiprtc> = LazyLock::new(hip_cpu::hiprtc_table);

/// Calls a table's function in its own unsafe block. The tests own the arguments.
#[macro_export]
macro_rules! call {
    ($table:expr, $function:ident $(, $argument:expr)* $(,)?) => {
        unsafe { ($table.$function)($($argument),*) }
    };
}

/// As `call!`, for calls that must succeed.
#[macro_export]
macro_rules! ok {
    ($table:expr, $function:ident $(, $argument:expr)* $(,)?) => {
        assert_eq!($crate::call!($table, $function $(, $argument)*), 0, stringify!($function))
    };
}

pub struct Memory(pub *mut c_void, pub usize);

impl Memory {
    pub fn new(bytes: usize) -> Self {
        let mut pointer = null_mut();
        ok!(HIP, hipMalloc, &mut pointer, bytes);
        Self(pointer, bytes)
    }

    pub fn of<T: Copy>(values: &[T]) -> Self {
        let memory = Self::new(size_of_val(values));
        ok!(
            HIP,
            hipMemcpyAsync,
            memory.0,
            values.as_ptr().cast(),
            memory.1,
            hipMemcpyHostToDevice,
            null_mut()
        );
        memory
    }

    pub fn try_read<T: Copy + Default>(&self) -> Result<Vec<T>, hipError_t> {
        let mut values = vec![T::default(); self.1 / size_of::<T>()];
        let status = call!(
            HIP,
            hipMemcpyAsync,
            values.as_mut_ptr().cast(),
            self.0,
            self.1,
            hipMemcpyDeviceToHost,
            null_mut()
        );
        if status == hipSuccess { Ok(values) } else { Err(status) }
    }

    pub fn read<T: Copy + Default>(&self) -> Vec<T> {
        self.try_read().unwrap_or_else(|status| panic!("status {status}: {:?}", hip_cpu::last_fault()))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        call!(HIP, hipFree, self.0);
    }
}

/// Compiles a program. `Err` has the log.
pub fn compile(
    source: &str,
    headers: &[(&str, &str)],
    names: &[&str],
    options: &[&str],
) -> Result<Vec<u8>, String> {
    let c = |text: &str| CString::new(text).unwrap();
    let source = c(source);
    let texts: Vec<_> = headers.iter().map(|(_, text)| c(text)).collect();
    let files: Vec<_> = headers.iter().map(|(name, _)| c(name)).collect();
    let options: Vec<_> = options.iter().map(|option| c(option)).collect();
    let pointers = |list: &[CString]| list.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
    let (texts_p, files_p, options_p) = (pointers(&texts), pointers(&files), pointers(&options));
    let mut program = null_mut();
    ok!(
        RTC,
        hiprtcCreateProgram,
        &mut program,
        source.as_ptr(),
        c"test.hip".as_ptr(),
        headers.len() as i32,
        texts_p.as_ptr(),
        files_p.as_ptr()
    );
    for name in names {
        ok!(RTC, hiprtcAddNameExpression, program, c(name).as_ptr());
    }
    let status = call!(RTC, hiprtcCompileProgram, program, options.len() as i32, options_p.as_ptr());
    let mut size = 0;
    ok!(RTC, hiprtcGetProgramLogSize, program, &mut size);
    let mut log = vec![0u8; size];
    ok!(RTC, hiprtcGetProgramLog, program, log.as_mut_ptr().cast());
    let log = CStr::from_bytes_with_nul(&log).unwrap().to_str().unwrap().to_owned();
    let result = if status == HIPRTC_SUCCESS {
        for name in names {
            let mut lowered = null();
            ok!(RTC, hiprtcGetLoweredName, program, c(name).as_ptr(), &mut lowered);
            assert_eq!(unsafe { CStr::from_ptr(lowered) }.to_str().unwrap(), *name);
        }
        ok!(RTC, hiprtcGetCodeSize, program, &mut size);
        let mut code = vec![0u8; size];
        ok!(RTC, hiprtcGetCode, program, code.as_mut_ptr().cast());
        Ok(code)
    } else {
        assert_eq!(status, HIPRTC_ERROR_COMPILATION);
        Err(log)
    };
    ok!(RTC, hiprtcDestroyProgram, &mut program);
    result
}

pub fn load(code: &[u8]) -> Result<hipModule_t, hipError_t> {
    let mut module = null_mut();
    let status = call!(HIP, hipModuleLoadData, &mut module, code.as_ptr().cast());
    if status == hipSuccess { Ok(module) } else { Err(status) }
}

pub fn function(module: hipModule_t, name: &str) -> Result<hipFunction_t, hipError_t> {
    let mut function = null_mut();
    let name = CString::new(name).unwrap();
    let status = call!(HIP, hipModuleGetFunction, &mut function, module, name.as_ptr());
    if status == hipSuccess { Ok(function) } else { Err(status) }
}

/// Compiles a program that may include this workspace's prelude, and finds one kernel.
pub fn kernel(source: &str, name: &str) -> hipFunction_t {
    let code = compile(source, hip_kernels::HEADERS, &[name], &[]).unwrap_or_else(|log| panic!("{log}"));
    function(load(&code).unwrap(), name).unwrap()
}

pub fn launch(
    function: hipFunction_t,
    blocks: u32,
    threads: u32,
    arguments: &mut [*mut c_void],
) -> hipError_t {
    launch_with(function, blocks, threads, 0, arguments)
}

/// As `launch`, with dynamic shared memory.
pub fn launch_with(
    function: hipFunction_t,
    blocks: u32,
    threads: u32,
    shared_bytes: u32,
    arguments: &mut [*mut c_void],
) -> hipError_t {
    call!(
        HIP,
        hipModuleLaunchKernel,
        function,
        blocks,
        1,
        1,
        threads,
        1,
        1,
        shared_bytes,
        null_mut(),
        arguments.as_mut_ptr(),
        null_mut()
    )
}

/// A kernel's argument.
pub fn arg<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}
