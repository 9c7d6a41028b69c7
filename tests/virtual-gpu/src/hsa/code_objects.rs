//! Code object readers, executables and their symbols (HSA 1.2, section 2.10).

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, PoisonError};

use super::agents::{Agent, unknown};
use super::allocation::{Allocation, Backing, Grain, Pool};
use super::api::{Text, Value};
use super::elf::{CodeObject, ElfError, Segment, Symbol};
use super::log::{self, trace};
use super::pools::retire;
use super::runtime::{Kernel, lock, runtime};
use super::{AgentHandle, ExecutableHandle, LoadedHandle, ReaderHandle, Status, SymbolHandle};
use crate::dispatch::KernelDescriptor;
use crate::memory::{Pages, Range};

/// A code object's bytes.
pub(super) enum Reader {
    /// The caller's memory, valid until the reader is destroyed.
    Memory {
        address: usize,
        size: usize,
    },
    Owned(Vec<u8>),
}

impl Reader {
    fn bytes(&self) -> &[u8] {
        match self {
            // SAFETY: the caller guarantees that the memory is valid until it destroys the reader
            // (`hsa_code_object_reader_create_from_memory`), and that it uses the reader only before.
            Self::Memory { address, size } => unsafe {
                std::slice::from_raw_parts(*address as *const u8, *size)
            },
            Self::Owned(bytes) => bytes,
        }
    }
}

/// A code object in a GPU's memory.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) gpu: usize,
    /// None once the executable is destroyed.
    pages: Option<Pages>,
    pub(super) base: u64,
    pub(super) size: u64,
    segments: Vec<Segment>,
}

/// A symbol of an executable.
#[derive(Debug)]
struct LoadedSymbol {
    symbol: Symbol,
    address: u64,
    gpu: usize,
    descriptor: Option<KernelDescriptor>,
}

#[derive(Debug, Default)]
pub(super) struct Executable {
    frozen: bool,
    /// Variables that the application defines, by GPU and name.
    definitions: HashMap<(usize, String), u64>,
    pub(super) loaded: Vec<Loaded>,
    symbols: Vec<LoadedSymbol>,
    /// Indices into `symbols`, by GPU and name.
    names: HashMap<(usize, String), usize>,
}

static READERS: Mutex<BTreeMap<u64, Arc<Reader>>> = Mutex::new(BTreeMap::new());
pub(super) static EXECUTABLES: Mutex<BTreeMap<u64, Executable>> = Mutex::new(BTreeMap::new());

/// Registers a reader.
pub(super) fn add_reader(reader: Reader) -> ReaderHandle {
    let mut readers = lock(&READERS);
    let handle = readers.last_key_value().map_or(1, |(last, _)| last + 1);
    readers.insert(handle, Arc::new(reader));
    ReaderHandle { handle }
}

/// Makes a reader of a code object in memory.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_code_object_reader_create_from_memory(
    pointer: *const c_void,
    size: usize,
    reader: Option<&mut MaybeUninit<ReaderHandle>>,
) -> Status {
    trace!("hsa_code_object_reader_create_from_memory {pointer:?} {size}");
    let Some(reader) = reader.filter(|_| !pointer.is_null() && size > 0) else {
        return Status::INVALID_ARGUMENT;
    };
    reader.write(add_reader(Reader::Memory { address: pointer as usize, size }));
    Status::SUCCESS
}

/// Destroys a reader.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_code_object_reader_destroy(reader: ReaderHandle) -> Status {
    match lock(&READERS).remove(&reader.handle) {
        Some(_) => Status::SUCCESS,
        None => Status::INVALID_CODE_OBJECT_READER,
    }
}

/// Makes an empty executable.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_executable_create_alt(
    _profile: u32,
    _rounding: u32,
    _options: Text,
    executable: Option<&mut MaybeUninit<ExecutableHandle>>,
) -> Status {
    let Some(executable) = executable else { return Status::INVALID_ARGUMENT };
    let mut executables = lock(&EXECUTABLES);
    let handle = executables.last_key_value().map_or(1, |(last, _)| last + 1);
    executables.insert(handle, Executable::default());
    trace!("hsa_executable_create_alt -> {handle}");
    executable.write(ExecutableHandle { handle });
    Status::SUCCESS
}

/// Destroys an executable with what it has loaded.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_executable_destroy(executable: ExecutableHandle) -> Status {
    trace!("hsa_executable_destroy {}", executable.handle);
    let Some(executable) = lock(&EXECUTABLES).remove(&executable.handle) else {
        return Status::INVALID_EXECUTABLE;
    };
    for symbol in executable.symbols.iter().filter(|symbol| symbol.descriptor.is_some()) {
        runtime().kernels.write().unwrap_or_else(PoisonError::into_inner).remove(&symbol.address);
    }
    for loaded in executable.loaded {
        loaded.unload();
    }
    Status::SUCCESS
}

/// Freezes an executable, which can't be changed afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_executable_freeze(executable: ExecutableHandle, _options: Text) -> Status {
    match lock(&EXECUTABLES).get_mut(&executable.handle) {
        None => Status::INVALID_EXECUTABLE,
        Some(executable) if executable.frozen => Status::FROZEN_EXECUTABLE,
        Some(executable) => {
            executable.frozen = true;
            Status::SUCCESS
        }
    }
}

/// Defines a variable that code objects refer to, before they are loaded.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_executable_agent_global_variable_define(
    executable: ExecutableHandle,
    agent: AgentHandle,
    name: Text,
    address: *mut c_void,
) -> Status {
    let Some(name) = name.get() else { return Status::INVALID_ARGUMENT };
    trace!("hsa_executable_agent_global_variable_define {name} {address:?}");
    let Some(Agent::Gpu(gpu)) = agent.get() else { return Status::INVALID_AGENT };
    let mut executables = lock(&EXECUTABLES);
    let Some(executable) = executables.get_mut(&executable.handle) else { return Status::INVALID_EXECUTABLE };
    if executable.frozen {
        return Status::FROZEN_EXECUTABLE;
    }
    match executable.definitions.insert((gpu, name), address as u64) {
        None => Status::SUCCESS,
        Some(_) => Status::VARIABLE_ALREADY_DEFINED,
    }
}

/// Loads a code object into a GPU's memory.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_executable_load_agent_code_object(
    executable: ExecutableHandle,
    agent: AgentHandle,
    reader: ReaderHandle,
    _options: Text,
    loaded: Option<&mut MaybeUninit<LoadedHandle>>,
) -> Status {
    let Some(Agent::Gpu(gpu)) = agent.get() else { return Status::INVALID_AGENT };
    let Some(reader) = lock(&READERS).get(&reader.handle).cloned() else {
        return Status::INVALID_CODE_OBJECT_READER;
    };
    let mut executables = lock(&EXECUTABLES);
    let Some(found) = executables.get_mut(&executable.handle) else { return Status::INVALID_EXECUTABLE };
    if found.frozen {
        return Status::FROZEN_EXECUTABLE;
    }
    if let Err(error) = found.load(reader.bytes(), gpu) {
        log::say(format_args!("a code object of {} bytes can't be loaded: {error}", reader.bytes().len()));
        return match error {
            LoadError::Memory(_) => Status::OUT_OF_RESOURCES,
            LoadError::Elf(ElfError::Machine(_)) => Status::INCOMPATIBLE_ARGUMENTS,
            LoadError::Elf(ElfError::Undefined(_)) => Status::VARIABLE_UNDEFINED,
            LoadError::Elf(_) => Status::INVALID_CODE_OBJECT,
        };
    }
    if let Some(loaded) = loaded {
        loaded.write(LoadedHandle { handle: executable.handle << 16 | found.loaded.len() as u64 });
    }
    Status::SUCCESS
}

#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error("{0}")]
    Memory(#[from] std::io::Error),
    #[error("{0}")]
    Elf(#[from] ElfError),
}

impl Executable {
    fn load(&mut self, bytes: &[u8], gpu: usize) -> Result<(), LoadError> {
        let object = CodeObject::parse(bytes)?;
        let size =
            usize::try_from(object.size).map_err(|_| ElfError::Range("the code object is too large"))?;
        let pages = Pages::new(size)?;
        let base = pages.start();
        // SAFETY: the pages were just made, have `size` bytes of zeros, and nobody else knows them.
        let image = unsafe { std::slice::from_raw_parts_mut(pages.as_ptr(), size) };
        object.load(image, base, |name| self.definitions.get(&(gpu, name.to_owned())).copied())?;
        trace!(
            "loaded {} bytes at {base:#x}: {} symbols, {:?}",
            bytes.len(),
            object.symbols.len(),
            object.segments
        );
        for symbol in object.symbols {
            let descriptor = symbol.kernel.then(|| {
                let mut bytes = [0; KernelDescriptor::SIZE];
                bytes.copy_from_slice(&image[symbol.address as usize..][..KernelDescriptor::SIZE]);
                KernelDescriptor::parse(&bytes)
            });
            let address = base + symbol.address;
            if descriptor.is_some() {
                let name = symbol.name.trim_end_matches(".kd").to_owned();
                let mut kernels = runtime().kernels.write().unwrap_or_else(PoisonError::into_inner);
                kernels.insert(address, Kernel { name, gpu });
            }
            self.names.insert((gpu, symbol.name.clone()), self.symbols.len());
            self.symbols.push(LoadedSymbol { symbol, address, gpu, descriptor });
        }
        for segment in &object.segments {
            let start = base + segment.address;
            let end = start + segment.size;
            // Code is read-only, so that a stray write to it faults. HIP writes constants, but
            // these are data.
            runtime().gpus[gpu].memory.insert(Range {
                start,
                end,
                writable: !segment.executable || segment.writable,
                host: false,
            });
            if segment.executable {
                runtime().code.add(start, segment.size);
            }
        }
        let pool = Pool::Device(gpu, Grain::Coarse);
        let (backing, access) = (Backing::Code, 1 << gpu);
        let known = Allocation { start: base, size, pool, backing, access };
        runtime().allocations().insert(base, known);
        let (size, segments) = (object.size, object.segments);
        self.loaded.push(Loaded { gpu, pages: Some(pages), base, size, segments });
        Ok(())
    }
}

impl Loaded {
    fn unload(mut self) {
        runtime().allocations().remove(&self.base);
        for segment in &self.segments {
            runtime().gpus[self.gpu].memory.remove(self.base + segment.address);
            if segment.executable {
                runtime().code.remove(self.base + segment.address);
            }
        }
        if let Some(pages) = self.pages.take() {
            retire(pages);
        }
    }
}

/// A symbol's handle: its executable, and its index there.
fn symbol_handle(executable: u64, place: usize) -> SymbolHandle {
    SymbolHandle { handle: executable << 32 | (place as u64 + 1) }
}

/// Finds a symbol by its name: of a GPU, or the only one of that name.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_executable_get_symbol_by_name(
    executable: ExecutableHandle,
    name: Text,
    agent: Option<&AgentHandle>,
    symbol: Option<&mut MaybeUninit<SymbolHandle>>,
) -> Status {
    let (Some(name), Some(symbol)) = (name.get(), symbol) else {
        return Status::INVALID_ARGUMENT;
    };
    let executables = lock(&EXECUTABLES);
    let Some(found) = executables.get(&executable.handle) else { return Status::INVALID_EXECUTABLE };
    let place = match agent.and_then(|agent| agent.get()) {
        Some(Agent::Gpu(gpu)) => found.names.get(&(gpu, name.clone())).copied(),
        _ => found.symbols.iter().position(|symbol| symbol.symbol.name == name),
    };
    match place {
        Some(place) => {
            symbol.write(symbol_handle(executable.handle, place));
            Status::SUCCESS
        }
        None => {
            trace!("hsa_executable_get_symbol_by_name {name}: none");
            Status::INVALID_SYMBOL_NAME
        }
    }
}

/// Calls a function for each symbol.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_executable_iterate_symbols(
    executable: ExecutableHandle,
    callback: Option<extern "C" fn(ExecutableHandle, SymbolHandle, *mut c_void) -> Status>,
    data: *mut c_void,
) -> Status {
    let Some(callback) = callback else { return Status::INVALID_ARGUMENT };
    // The lock must not be held during the callback, because the callback queries the symbols.
    let Some(count) = lock(&EXECUTABLES).get(&executable.handle).map(|found| found.symbols.len()) else {
        return Status::INVALID_EXECUTABLE;
    };
    for place in 0..count {
        let status = callback(executable, symbol_handle(executable.handle, place), data);
        if status != Status::SUCCESS {
            return status;
        }
    }
    Status::SUCCESS
}

/// An attribute of a symbol (`hsa_executable_symbol_info_t`).
#[unsafe(no_mangle)]
pub extern "C" fn hsa_executable_symbol_get_info(
    handle: SymbolHandle,
    attribute: u32,
    value: Value,
) -> Status {
    let executables = lock(&EXECUTABLES);
    let found = executables.get(&(handle.handle >> 32)).and_then(|executable| {
        executable.symbols.get(((handle.handle & u64::from(u32::MAX)) as usize).checked_sub(1)?)
    });
    let Some(LoadedSymbol { symbol, address, gpu, descriptor }) = found else {
        return Status::INVALID_EXECUTABLE_SYMBOL;
    };
    match (attribute, descriptor) {
        // TYPE: variable or kernel
        (0, _) => value.put(u32::from(descriptor.is_some())),
        (1, _) => value.put(symbol.name.len() as u32),
        (2, _) => value.put_text(&symbol.name, symbol.name.len()),
        // LINKAGE: program; VARIABLE_ALLOCATION: agent; VARIABLE_SEGMENT: global
        (5, _) => value.put(1u32),
        (6 | 7, None) => value.put(0u32),
        // VARIABLE_ALIGNMENT, VARIABLE_SIZE, VARIABLE_IS_CONST
        (8, None) => value.put(16u32),
        (9, None) => value.put(symbol.size as u32),
        (10, _) => value.put(false),
        // IS_DEFINITION, AGENT
        (17, _) => value.put(true),
        (20, _) => value.put(AgentHandle::of(Agent::Gpu(*gpu))),
        // VARIABLE_ADDRESS, KERNEL_OBJECT
        (21, None) | (22, Some(_)) => value.put(*address),
        // KERNEL_KERNARG_SEGMENT_SIZE and _ALIGNMENT, KERNEL_GROUP_SEGMENT_SIZE, KERNEL_PRIVATE_SEGMENT_SIZE
        (11, Some(descriptor)) => value.put(descriptor.kernarg_size),
        (12, Some(_)) => value.put(16u32),
        (13, Some(descriptor)) => value.put(descriptor.group_size),
        (14, Some(descriptor)) => value.put(descriptor.private_size),
        // KERNEL_DYNAMIC_CALLSTACK, KERNEL_CALL_CONVENTION
        (15, Some(descriptor)) => value.put(descriptor.dynamic_stack()),
        (18, Some(_)) => value.put(0u32),
        _ => unknown("symbol", attribute),
    }
}
