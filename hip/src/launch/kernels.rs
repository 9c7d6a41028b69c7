//! The kernels that are loaded onto a device.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use hip_kernels::KernelName;
use hip_sys::{
    hipError_t, hipErrorInvalidImage, hipErrorInvalidKernelFile, hipErrorInvalidSource,
    hipErrorNoBinaryForGpu, hipErrorNotFound,
};

use foldhash::fast::FixedState;

use crate::compile::cache::{CodeObject, code_cache};
use crate::compile::program::Program;
use crate::compile::rtc::{self, c_text};
use crate::compile::toolchain::Toolchain;
use crate::device::context::Context;
use crate::device::event::Event;
use crate::device::stream::Stream;
use crate::error::{Error, Result};
use crate::launch::kernel::{Kernel, Retired, RetiredModule};
use crate::once::Once;
use crate::provider::library;
use crate::settings::allow_fallback;
use crate::spans;

/// Groups of retired modules, oldest first, each with an event after its last launches.
type Passing = VecDeque<(Vec<RetiredModule>, Event)>;

/// The kernels that are loaded onto one device.
pub(crate) struct Kernels {
    context: Arc<Context>,
    architecture: String,
    toolchain: Once<Toolchain>,
    by_name: RwLock<HashMap<KernelName, Arc<Kernel>, FixedState>>,
    loaded: Mutex<Loaded>,
    retired: Arc<Retired>,
    passing: Mutex<Passing>,
    /// The stream on which kernels are launched.
    compute: Arc<Stream>,
    clock: AtomicU64,
    limit: AtomicUsize,
}

#[derive(Default)]
struct Loaded {
    kernels: HashMap<u128, Arc<Kernel>>,
    bytes: usize,
    /// One lock for each kernel that is being compiled, so that two threads do not compile the same
    /// one.
    compiling: HashMap<u128, Arc<Mutex<()>>>,
}

/// Whether loading failed because of the code object. After a lack of memory or the failure of an
/// earlier kernel, the code object may be good, and newly compiled code would fail to load as well.
fn refuses_the_code(error: &Error) -> bool {
    /// `hipErrorSharedObjectInitFailed`: AMD's loader gives no other reason.
    const NOT_LOADED: hipError_t = 303;
    const STATUSES: [hipError_t; 6] = [
        hipErrorInvalidImage,
        hipErrorNoBinaryForGpu,
        hipErrorInvalidKernelFile,
        hipErrorInvalidSource,
        NOT_LOADED,
        hipErrorNotFound,
    ];
    match error {
        Error::Device { code, .. } => STATUSES.iter().any(|&status| status as i32 == *code),
        // The symbol holds a NUL.
        Error::Config { .. } => true,
        _ => false,
    }
}

impl Kernels {
    pub(crate) fn new(
        context: &Arc<Context>,
        compute: &Arc<Stream>,
        architecture: String,
        limit: usize,
    ) -> Self {
        Self {
            context: context.clone(),
            architecture,
            toolchain: Once::default(),
            by_name: RwLock::default(),
            loaded: Mutex::default(),
            retired: Arc::default(),
            passing: Mutex::default(),
            compute: compute.clone(),
            clock: AtomicU64::new(1),
            limit: AtomicUsize::new(limit),
        }
    }

    /// A built-in kernel, which is compiled at its first use.
    #[inline]
    pub(crate) fn built_in(&self, name: KernelName) -> Result<Arc<Kernel>> {
        let known = self.by_name.read().unwrap_or_else(PoisonError::into_inner).get(&name).cloned();
        match known {
            Some(kernel) => {
                self.touch(&kernel);
                Ok(kernel)
            }
            None => self.new_built_in(name),
        }
    }

    #[cold]
    fn new_built_in(&self, name: KernelName) -> Result<Arc<Kernel>> {
        let family = hip_kernels::family_of(name.template());
        if !family.contains(&name) {
            return Err(Error::Compilation {
                kernel: name.to_string(),
                options: Vec::new(),
                log: "the table of kernels does not list it".into(),
            });
        }
        let file = rtc::file_of(family);
        if self.context.provider.is_dry() {
            let kernel = Arc::new(self.without_code(&name.to_string()));
            self.by_name.write().unwrap_or_else(PoisonError::into_inner).insert(name, kernel.clone());
            return Ok(kernel);
        }
        let kernel =
            self.load(&rtc::program_of(family, &file), rtc::source_hash(family), &name.to_string())?;
        // `by_name` holds only kernels that `loaded` counts. Another thread may have unloaded this
        // one meanwhile.
        let loaded = self.loaded();
        if loaded.kernels.values().any(|other| Arc::ptr_eq(other, &kernel)) {
            let mut by_name = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
            by_name.insert(name, kernel.clone());
        }
        drop(loaded);
        Ok(kernel)
    }

    /// A kernel of any program.
    pub(crate) fn of_program(&self, program: &Program, expression: &str) -> Result<Arc<Kernel>> {
        if self.context.provider.is_dry() {
            return Ok(Arc::new(self.without_code(expression)));
        }
        self.load(program, rtc::hash_source(program), expression)
    }

    fn load(&self, program: &Program, source: u128, expression: &str) -> Result<Arc<Kernel>> {
        let architecture = rtc::architecture_option(&self.architecture);
        let options = rtc::options(&architecture, program);
        let provider = self.context.provider;
        let toolchain =
            self.toolchain.get(|| rtc::toolchain(provider.hiprtc(), provider.kind(), provider.versions()))?;
        let key = rtc::key(toolchain, source, expression, &options);
        let turn = {
            let mut loaded = self.loaded();
            if let Some(kernel) = loaded.kernels.get(&key) {
                self.touch(kernel);
                return Ok(kernel.clone());
            }
            loaded.compiling.entry(key).or_default().clone()
        };
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = self.loaded().kernels.get(&key) {
            return Ok(kernel.clone());
        }
        let kernel = self.read_or_compile(key, program, expression, &options);
        let mut loaded = self.loaded();
        loaded.compiling.remove(&key);
        let kernel = Arc::new(kernel?);
        self.touch(&kernel);
        loaded.bytes += kernel.code.as_ref().map_or(0, |code| code.len());
        loaded.kernels.insert(key, kernel.clone());
        if loaded.bytes > self.limit.load(Ordering::Relaxed) {
            self.unload_oldest(&mut loaded);
        }
        drop(loaded);
        // Loading may retire kernels, so this is the place to unload those that the device no
        // longer runs.
        self.unload_passed();
        Ok(kernel)
    }

    fn read_or_compile(
        &self,
        key: u128,
        program: &Program,
        expression: &str,
        options: &[&str],
    ) -> Result<Kernel> {
        let cache = code_cache();
        let compiler = self.context.provider.hiprtc();
        if program.names_files() {
            // The files may have changed since a code object of this key was stored.
            let start = Instant::now();
            let object = rtc::compile(compiler, program, &[expression], options)?.only();
            let time = start.elapsed();
            log::debug!("compiled {expression} in {time:.1?}; its options name files, so it is not stored");
            spans::compiled(expression, time);
            cache.count_compilation(time);
            return self.instantiate(expression, object);
        }
        let found = match cache.find(key) {
            Ok(found) => found,
            Err(refusal) => {
                allow_fallback(refusal)?;
                None
            }
        };
        if let Some(object) = found {
            match self.instantiate(expression, object) {
                Ok(kernel) => return Ok(kernel),
                // The file is intact, but the driver refuses the code, so the kernel is compiled
                // again.
                Err(why) if refuses_the_code(&why) => cache.discard(key, &why.to_string()),
                Err(other) => return Err(other),
            }
        }
        let object = rtc::compile_into_cache(compiler, key, program, expression, options)?;
        self.instantiate(expression, object)
    }

    fn instantiate(&self, name: &str, object: CodeObject) -> Result<Kernel> {
        let context = &self.context;
        let symbol = c_text("kernel symbol", &object.symbol)?;
        context.bind()?;
        let mut kernel = self.without_code(name);
        // Loading a module may call the compiler's library.
        let _held = library::compiling();
        // SAFETY: the functions are HIP's; the code object comes from hipRTC (or a file with its
        // checksum) and stays in `kernel`, which owns the module from the moment it exists.
        unsafe {
            let code = object.code.as_ptr().cast();
            let status = (context.hip().hipModuleLoadData)(&mut kernel.module, code);
            context.check("hipModuleLoadData", status)?;
            kernel.code = Some(object.code);
            let status =
                (context.hip().hipModuleGetFunction)(&mut kernel.function, kernel.module, symbol.as_ptr());
            context.check("hipModuleGetFunction", status)?;
        }
        Ok(kernel)
    }

    /// A kernel that is not compiled. On a dry device it stays so, because nothing launches it.
    fn without_code(&self, name: &str) -> Kernel {
        Kernel {
            context: self.context.clone(),
            retired: self.retired.clone(),
            function: std::ptr::null_mut(),
            module: std::ptr::null_mut(),
            code: None,
            last_use: AtomicU64::new(0),
            name: name.into(),
            text: OnceLock::new(),
        }
    }

    /// Forgets every kernel. A kernel that is running is unloaded once the stream is past it.
    pub(crate) fn clear(&self) {
        let mut loaded = self.loaded();
        loaded.kernels.clear();
        loaded.bytes = 0;
        // `loaded` stays locked, so that no thread adds a name in between.
        self.by_name.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The number of loaded kernels, and the bytes of their code.
    pub(crate) fn size(&self) -> (usize, usize) {
        let loaded = self.loaded();
        (loaded.kernels.len(), loaded.bytes)
    }

    /// Sets the bytes of code above which the least recently used kernels are unloaded.
    pub(crate) fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    fn unload_oldest(&self, loaded: &mut Loaded) {
        let mut uses: Vec<u64> =
            loaded.kernels.values().map(|kernel| kernel.last_use.load(Ordering::Relaxed)).collect();
        uses.sort_unstable();
        let oldest = uses[uses.len() / 4];
        let keep = |kernel: &Arc<Kernel>| kernel.last_use.load(Ordering::Relaxed) > oldest;
        loaded.kernels.retain(|_, kernel| keep(kernel));
        loaded.bytes =
            loaded.kernels.values().map(|kernel| kernel.code.as_ref().map_or(0, |code| code.len())).sum();
        self.by_name.write().unwrap_or_else(PoisonError::into_inner).retain(|_, kernel| keep(kernel));
    }

    fn touch(&self, kernel: &Kernel) {
        kernel.last_use.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The number of modules that are retired but still loaded.
    pub(crate) fn retired(&self) -> usize {
        let passing: usize = self.passing().iter().map(|(modules, _)| modules.len()).sum();
        passing + self.retired.list().len()
    }

    /// Unloads the modules that the device no longer runs, and records an event after the newly
    /// retired ones. Does not wait.
    fn unload_passed(&self) {
        let mut over = Vec::new();
        let mut passing = self.passing();
        let new = std::mem::take(&mut *self.retired.list());
        if !new.is_empty() {
            // Recording the event must not launch the deferred steps. Their list keeps its own
            // kernel alive, and may be locked by the caller, which needs this kernel.
            match self.compute.mark_queued() {
                Ok(event) => passing.push_back((new, event)),
                Err(error) => {
                    log::debug!("no event behind {} retired modules: {error}", new.len());
                    self.retired.list().extend(new);
                }
            }
        }
        while passing.front().is_some_and(|(_, event)| event.query().unwrap_or(false)) {
            over.extend(passing.pop_front().map(|(modules, _)| modules).unwrap_or_default());
        }
        drop(passing);
        self.unload(over);
    }

    /// Unloads the modules that were retired before `wait`, which waits for the compute stream. If
    /// `wait` fails, the device's state is unknown and the modules stay loaded.
    pub(crate) fn unload_behind(&self, wait: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut retired = std::mem::take(&mut *self.retired.list());
        retired.extend(std::mem::take(&mut *self.passing()).into_iter().flat_map(|(modules, _)| modules));
        match wait() {
            Ok(()) => {
                self.unload(retired);
                Ok(())
            }
            Err(error) => {
                self.retired.list().extend(retired);
                Err(error)
            }
        }
    }

    /// Unloads modules that the stream is past.
    fn unload(&self, modules: Vec<RetiredModule>) {
        for retired in modules {
            // SAFETY: the function is HIP's. Nobody else has the handle, and the stream is past its
            // last launch: `unload_passed` has queried an event after it, `unload_behind` has
            // waited.
            let status = unsafe { (self.context.hip().hipModuleUnload)(retired.module) };
            self.context.record_status("hipModuleUnload", status);
        }
    }

    fn passing(&self) -> MutexGuard<'_, Passing> {
        self.passing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn loaded(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// They compile a program at run time, and on Windows there may be no C++ compiler.
#[cfg(all(test, feature = "cpu", unix))]
mod tests;
