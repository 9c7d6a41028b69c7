//! What RCCL answers on a machine without a GPU: `rccl [FILE]`, by default `librccl.so.1`. Fills the
//! table of `rccl-sys` and calls what needs no device. Making a rank must be an error that the
//! library returns; a crash or a hang is neither. `tests/rocm/loader.sh` runs it.

use std::ffi::{CStr, c_void};
use std::process::ExitCode;
use std::ptr::NonNull;

use rccl_sys::{Rccl, ncclResult_t, ncclSuccess, ncclUniqueId};

fn main() -> ExitCode {
    let file = std::env::args().nth(1).unwrap_or_else(|| "librccl.so.1".into());
    // SAFETY: RCCL's initialisers may run on any thread.
    let library = match unsafe { libloading::Library::new(&file) } {
        // Never unloaded: RCCL's threads may outlast `main`. RCCL 2.13 then crashed in 3 of 20 runs.
        Ok(library) => std::mem::ManuallyDrop::new(library),
        Err(error) => {
            println!("{file}: {error}");
            return ExitCode::from(2);
        }
    };
    let symbol = |name: &CStr| {
        // SAFETY: the address is only read as one.
        let found = unsafe { library.get::<*mut c_void>(name.to_bytes_with_nul()) };
        found.ok().and_then(|address| NonNull::new(*address))
    };
    // SAFETY: `tests/rocm/bindings.sh` compares the signatures with RCCL's header, and the library
    // is never unloaded.
    let table = match unsafe { Rccl::load(symbol) } {
        Ok(table) => table,
        Err(missing) => {
            println!("{file} lacks {}", missing.to_string_lossy());
            return ExitCode::FAILURE;
        }
    };
    let mut version = 0;
    // SAFETY: the function is RCCL's and writes one integer.
    let status = unsafe { (table.ncclGetVersion)(&mut version) };
    println!("ncclGetVersion: {}, {version}", said(&table, status));
    let answered = status == ncclSuccess;

    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: the function is RCCL's and writes one id.
    let status = unsafe { (table.ncclGetUniqueId)(&mut id) };
    println!("ncclGetUniqueId: {}", said(&table, status));

    let mut refused = true;
    for ranks in [1, 2] {
        let mut rank = std::ptr::null_mut();
        // SAFETY: the function is RCCL's and writes one handle.
        let status = unsafe { (table.ncclCommInitRank)(&mut rank, ranks, id, 0) };
        println!("ncclCommInitRank of {ranks}: {}", said(&table, status));
        refused &= status != ncclSuccess && rank.is_null();
    }
    if answered && refused { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A status's name, its meaning, and what the library last said.
fn said(table: &Rccl, status: ncclResult_t) -> String {
    let text = |pointer: *const std::ffi::c_char| {
        if pointer.is_null() {
            return String::new();
        }
        // SAFETY: RCCL returns static texts that end with a 0.
        unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
    };
    // SAFETY: the function is RCCL's and takes any value.
    let meaning = text(unsafe { (table.ncclGetErrorString)(status) });
    let name = status.name().unwrap_or("a status that the header lacks");
    match table.ncclGetLastError {
        Some(last) if status != ncclSuccess => {
            // SAFETY: the function is RCCL's and takes null for "any communicator".
            let said = text(unsafe { last(std::ptr::null_mut()) });
            format!("{name}, {meaning}: {}", said.trim())
        }
        _ => name.to_owned(),
    }
}
