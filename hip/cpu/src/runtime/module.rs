//! Modules: loaded code objects, and the kernels in them.

use super::{
    Handles,
    device::{Device, current},
    late,
};
use crate::{
    abi::Kernel,
    code_object::{Code, Refused},
    compiler::Program,
    kernels::built_in,
};
use hip_provider::runtime::Status;
use hip_sys::*;
use std::{
    collections::HashMap,
    ffi::{CStr, c_void},
    sync::{Arc, Mutex, PoisonError},
};

struct Module {
    device: &'static Device,
    kernels: HashMap<String, Kernel>,
    /// The handles of kernels that callers asked for, by name.
    functions: Mutex<HashMap<String, usize>>,
    library: Option<Arc<Program>>,
}

/// A kernel on a device.
pub(super) struct Function {
    pub(super) device: &'static Device,
    pub(super) kernel: Kernel,
    /// Keeps the kernel's code loaded, even if another thread unloads the module during a launch.
    _library: Option<Arc<Program>>,
}

static MODULES: Handles<Module> = Handles::new(0xa3);
static FUNCTIONS: Handles<Function> = Handles::new(0xa4);

/// The kernel behind a handle.
pub(super) fn function(function: hipFunction_t) -> Option<Arc<Function>> {
    FUNCTIONS.get(function as usize)
}

fn read(code: Code, device: &'static Device) -> Result<Module, hipError_t> {
    let (kernels, library) = match code {
        Code::BuiltIn { family, names } => {
            let kernels = names
                .into_iter()
                .map(|name| built_in(&family, &name).map(|kernel| (name, kernel)))
                .collect::<Option<HashMap<_, _>>>();
            (kernels.ok_or(hipErrorNoBinaryForGpu)?, None)
        }
        Code::Shared(bytes) => {
            let library = Program::load(&bytes).map_err(|error| {
                log::error!("hip-cpu: a compiled program can't be loaded: {error}");
                hipErrorInvalidImage
            })?;
            let table = library.table().ok_or(hipErrorInvalidImage)?;
            // SAFETY: `hip_cpu_table.h` generated the table, and the owner of a kernel also owns
            // the library.
            let kernels = unsafe { table.kernels() };
            (
                kernels.into_iter().map(|kernel| (kernel.name.to_owned(), kernel)).collect(),
                Some(Arc::new(library)),
            )
        }
    };
    Ok(Module { device, kernels, functions: Mutex::default(), library })
}

/// Loads a code object for the calling thread's device.
///
/// # Safety
/// `image` is a code object.
pub(super) unsafe fn load(image: *const c_void) -> Status<hipModule_t> {
    let device = current()?;
    // SAFETY: the caller's code object.
    let code = unsafe { Code::read(image) }.map_err(|refused| match refused {
        Refused::Damaged => hipErrorInvalidImage,
        Refused::Foreign => hipErrorNoBinaryForGpu,
    })?;
    Ok(MODULES.insert(Arc::new(read(code, device)?)) as hipModule_t)
}

/// Unloads a module. The handles of its kernels become invalid.
pub(super) fn unload(module: hipModule_t) -> Status {
    let module = MODULES.remove(module as usize).ok_or(hipErrorInvalidHandle)?;
    let _order = module.device.lock();
    if late::is_on() {
        late::run_all();
    }
    for handle in module.functions.lock().unwrap_or_else(PoisonError::into_inner).values() {
        FUNCTIONS.remove(*handle);
    }
    Ok(())
}

/// The handle of a module's kernel.
pub(super) fn find(module: hipModule_t, name: &CStr) -> Status<hipFunction_t> {
    let name = name.to_str().map_err(|_| hipErrorNotFound)?;
    let module = MODULES.get(module as usize).ok_or(hipErrorInvalidHandle)?;
    let kernel = *module.kernels.get(name).ok_or(hipErrorNotFound)?;
    let mut functions = module.functions.lock().unwrap_or_else(PoisonError::into_inner);
    let handle = *functions.entry(name.to_owned()).or_insert_with(|| {
        FUNCTIONS.insert(Arc::new(Function {
            device: module.device,
            kernel,
            _library: module.library.clone(),
        }))
    });
    Ok(handle as hipFunction_t)
}
