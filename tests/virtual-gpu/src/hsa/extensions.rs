//! The loader extension (`hsa_ven_amd_loader.h`), as its table of functions.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use super::agents::{Agent, unknown};
use super::api::Value;
use super::code_objects::{EXECUTABLES, Reader, add_reader};
use super::log::trace;
use super::runtime::{lock, runtime};
use super::{AgentHandle, ExecutableHandle, LoadedHandle, ReaderHandle, Status};

/// `HSA_EXTENSION_AMD_LOADER`, and the version of its table.
const LOADER: u16 = 0x201;
const VERSION: (u16, u16) = (1, 3);

type ForExecutable = extern "C" fn(ExecutableHandle, *mut c_void) -> Status;
type ForLoaded = extern "C" fn(ExecutableHandle, LoadedHandle, *mut c_void) -> Status;

/// `hsa_ven_amd_loader_1_03_pfn_t`.
#[repr(C)]
struct Loader {
    query_host_address: extern "C" fn(*const c_void, Option<&mut MaybeUninit<*const c_void>>) -> Status,
    query_segment_descriptors: extern "C" fn(*mut c_void, Option<&mut MaybeUninit<usize>>) -> Status,
    query_executable: extern "C" fn(*const c_void, Option<&mut MaybeUninit<ExecutableHandle>>) -> Status,
    iterate_loaded: extern "C" fn(ExecutableHandle, Option<ForLoaded>, *mut c_void) -> Status,
    loaded_info: extern "C" fn(LoadedHandle, u32, Value) -> Status,
    reader_from_file: extern "C" fn(i32, usize, usize, Option<&mut MaybeUninit<ReaderHandle>>) -> Status,
    iterate_executables: extern "C" fn(Option<ForExecutable>, *mut c_void) -> Status,
}

static TABLE: Loader = Loader {
    query_host_address,
    query_segment_descriptors,
    query_executable,
    iterate_loaded,
    loaded_info,
    reader_from_file,
    iterate_executables,
};

/// Fills in as much of an extension's table as the caller has room for.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_system_get_major_extension_table(
    extension: u16,
    major: u16,
    length: usize,
    table: *mut c_void,
) -> Status {
    trace!("hsa_system_get_major_extension_table {extension:#x} {major} {length}");
    if table.is_null() {
        return Status::INVALID_ARGUMENT;
    }
    if extension != LOADER || major != VERSION.0 {
        return Status::ERROR;
    }
    let length = length.min(size_of::<Loader>());
    // SAFETY: the caller guarantees `length` bytes; the table has as many.
    unsafe { std::ptr::copy_nonoverlapping(std::ptr::from_ref(&TABLE).cast::<u8>(), table.cast(), length) };
    Status::SUCCESS
}

/// Whether an extension exists in a version.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_system_extension_supported(
    extension: u16,
    major: u16,
    minor: u16,
    found: Option<&mut MaybeUninit<bool>>,
) -> Status {
    let Some(found) = found else { return Status::INVALID_ARGUMENT };
    found.write(extension == LOADER && major == VERSION.0 && minor <= VERSION.1);
    Status::SUCCESS
}

/// Whether an agent has an extension.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_agent_extension_supported(
    extension: u16,
    agent: AgentHandle,
    major: u16,
    minor: u16,
    found: Option<&mut MaybeUninit<bool>>,
) -> Status {
    match agent.get() {
        Some(_) => hsa_system_extension_supported(extension, major, minor, found),
        None => Status::INVALID_AGENT,
    }
}

/// The host's address of device memory: the same.
extern "C" fn query_host_address(
    address: *const c_void,
    host: Option<&mut MaybeUninit<*const c_void>>,
) -> Status {
    let at = address as u64;
    let known = runtime()
        .allocations()
        .range(..=at)
        .next_back()
        .is_some_and(|(_, found)| at < found.start + found.size as u64);
    match host {
        Some(host) if known => {
            host.write(address);
            Status::SUCCESS
        }
        _ => Status::INVALID_ARGUMENT,
    }
}

/// Descriptors of segments. Returns none, because only debuggers need them.
extern "C" fn query_segment_descriptors(
    _descriptors: *mut c_void,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    let Some(count) = count else { return Status::INVALID_ARGUMENT };
    count.write(0);
    Status::SUCCESS
}

extern "C" fn query_executable(
    address: *const c_void,
    executable: Option<&mut MaybeUninit<ExecutableHandle>>,
) -> Status {
    let at = address as u64;
    let executables = lock(&EXECUTABLES);
    let holds = |loaded: &super::code_objects::Loaded| (loaded.base..loaded.base + loaded.size).contains(&at);
    let found = executables.iter().find(|(_, executable)| executable.loaded.iter().any(holds));
    match (found, executable) {
        (Some((&handle, _)), Some(executable)) => {
            executable.write(ExecutableHandle { handle });
            Status::SUCCESS
        }
        _ => Status::INVALID_ARGUMENT,
    }
}

extern "C" fn iterate_loaded(
    executable: ExecutableHandle,
    callback: Option<ForLoaded>,
    data: *mut c_void,
) -> Status {
    let Some(callback) = callback else { return Status::INVALID_ARGUMENT };
    let Some(count) = lock(&EXECUTABLES).get(&executable.handle).map(|found| found.loaded.len()) else {
        return Status::INVALID_EXECUTABLE;
    };
    for place in 1..=count as u64 {
        let status = callback(executable, LoadedHandle { handle: executable.handle << 16 | place }, data);
        if status != Status::SUCCESS {
            return status;
        }
    }
    Status::SUCCESS
}

/// `hsa_ven_amd_loader_loaded_code_object_info_t`.
extern "C" fn loaded_info(loaded: LoadedHandle, attribute: u32, value: Value) -> Status {
    let (handle, place) = (loaded.handle >> 16, (loaded.handle & 0xffff) as usize);
    let executables = lock(&EXECUTABLES);
    let found = executables.get(&handle).and_then(|executable| executable.loaded.get(place.checked_sub(1)?));
    let Some(found) = found else { return Status::INVALID_ARGUMENT };
    match attribute {
        // EXECUTABLE, KIND: agent, AGENT
        1 => value.put(ExecutableHandle { handle }),
        2 => value.put(2u32),
        3 => value.put(AgentHandle::of(Agent::Gpu(found.gpu))),
        // LOAD_DELTA, LOAD_BASE, LOAD_SIZE
        8 | 9 => value.put(found.base),
        10 => value.put(found.size),
        _ => unknown("loaded code object", attribute),
    }
}

/// Reads a part of an open file.
extern "C" fn reader_from_file(
    file: i32,
    offset: usize,
    size: usize,
    reader: Option<&mut MaybeUninit<ReaderHandle>>,
) -> Status {
    use std::os::fd::BorrowedFd;
    use std::os::unix::fs::FileExt;
    trace!("reader of file {file} at {offset}, {size} bytes");
    let Some(reader) = reader.filter(|_| size > 0 && file >= 0) else { return Status::INVALID_ARGUMENT };
    // SAFETY: the caller guarantees an open descriptor during the call.
    let Ok(file) = (unsafe { BorrowedFd::borrow_raw(file) }).try_clone_to_owned() else {
        return Status::INVALID_FILE;
    };
    let file = std::fs::File::from(file);
    let fits = file
        .metadata()
        .is_ok_and(|about| offset.checked_add(size).is_some_and(|end| end as u64 <= about.len()));
    if !fits {
        return Status::INVALID_FILE;
    }
    let mut bytes = vec![0; size];
    if file.read_exact_at(&mut bytes, offset as u64).is_err() {
        return Status::INVALID_FILE;
    }
    reader.write(add_reader(Reader::Owned(bytes)));
    Status::SUCCESS
}

extern "C" fn iterate_executables(callback: Option<ForExecutable>, data: *mut c_void) -> Status {
    let Some(callback) = callback else { return Status::INVALID_ARGUMENT };
    let handles: Vec<u64> = lock(&EXECUTABLES).keys().copied().collect();
    for handle in handles {
        let status = callback(ExecutableHandle { handle }, data);
        if status != Status::SUCCESS {
            return status;
        }
    }
    Status::SUCCESS
}
