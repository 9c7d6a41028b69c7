//! Devices: memory, copies, launches and waits on one GPU.

pub(crate) mod apu;
pub(crate) mod capture;
pub(crate) mod collectives;
pub(crate) mod context;
pub(crate) mod dry;
pub(crate) mod event;
pub(crate) mod info;
pub(crate) mod library;
pub(crate) mod pass;
pub(crate) mod recording;
pub(crate) mod report;
pub(crate) mod stream;
pub(crate) mod survey;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use hip_kernels::KernelName;

use crate::compile::program::Program;
use crate::defaults::{Defaults, Family};
use crate::device::capture::Captures;
use crate::device::collectives::Collectives;
use crate::device::context::{Context, Counters, EventKind};
use crate::device::event::Event;
use crate::device::info::DeviceInfo;
use crate::device::stream::{Priority, Stream};
use crate::error::{Error, Result};
use crate::kernel_find::choices::KernelChoices;
use crate::launch::grid::Grid;
use crate::launch::kernel::Kernel;
use crate::launch::kernels::Kernels;
use crate::memory::driver::{Driver, TransferFences};
use crate::memory::fault::Faults;
use crate::memory::pinned::Staging;
use crate::memory::pool::{MemoryPool, Options, PoolBlock, Purpose};
use crate::memory::release::Releases;
use crate::once::OnceAny;
use crate::profile::{output, session};
use crate::provider::{Provider, provider};
use crate::ranges;
use crate::settings::{Route, settings};
use crate::summary::output as summary_output;
use crate::watch::profiled;
use crate::workarounds;

/// The most blocks of a launch. HIP accepts fewer than 2^32 threads; the kernels loop over the
/// items that are left.
const MOST_BLOCKS: usize = (1 << 22) - 1;

static DEVICES: OnceLock<Box<[OnceLock<Arc<Device>>]>> = OnceLock::new();

/// One GPU of the chosen provider. Shared as `Arc<Device>`; all threads enqueue on its one compute
/// stream.
pub struct Device {
    // These three are declared first, so that they are dropped before the stream that their handles
    // are bound to.
    pub(crate) blas: OnceAny,
    pub(crate) blas_lt: OnceAny,
    pub(crate) dnn: OnceAny,
    info: DeviceInfo,
    defaults: Defaults,
    pub(crate) kernel_choices: KernelChoices,
    pub(crate) context: Arc<Context>,
    pub(crate) compute: Arc<Stream>,
    pub(crate) copies: Arc<Stream>,
    pub(crate) captures: Captures,
    /// Shared by reads that take several copies. A launch of a graph has it alone.
    replays: RwLock<()>,
    pub(crate) pool: MemoryPool,
    pub(crate) staging: Staging,
    pub(crate) fences: TransferFences,
    pub(crate) releases: Releases,
    kernels: Kernels,
    pub(crate) faults: Arc<Faults>,
    /// The most deferred steps of one launch; 0 if no op is deferred.
    pub(crate) chain_limit: usize,
    /// The largest result of a deferred step, in bytes.
    pub(crate) chain_bytes: usize,
    pub(crate) peers: Mutex<Vec<usize>>,
    pub(crate) collectives: Collectives,
    /// Whether it has been in a group of several ranks.
    pub(crate) replica: AtomicBool,
}

impl Device {
    /// How many devices the chosen provider has.
    pub fn count() -> Result<usize> {
        Ok(provider()?.device_count())
    }

    /// A device by its index. Every call with one index returns the same `Device`.
    ///
    /// # Errors
    /// `Config` for an index past the last device; `NotAvailable` if no provider has a device.
    pub fn get(index: usize) -> Result<Arc<Self>> {
        static CREATION: Mutex<()> = Mutex::new(());
        if dry::is_dry(index) {
            return dry::get(index);
        }
        let provider = provider()?;
        provider.check_index(index)?;
        let count = provider.device_count();
        let slot = &DEVICES.get_or_init(|| (0..count).map(|_| OnceLock::new()).collect())[index];
        if let Some(device) = slot.get() {
            return Ok(device.clone());
        }
        let _one_at_a_time = CREATION.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = slot.get() {
            return Ok(device.clone());
        }
        let device = Arc::new(Self::new(provider, index)?);
        Ok(slot.get_or_init(|| device).clone())
    }

    /// The devices that this process has used.
    pub(crate) fn opened() -> Vec<Arc<Self>> {
        DEVICES.get().into_iter().flatten().filter_map(|slot| slot.get().cloned()).collect()
    }

    pub(crate) fn new(provider: &'static Provider, index: usize) -> Result<Self> {
        Self::of(provider, index, index)
    }

    /// The device that HIP knows as `ordinal`, with another index for users.
    fn of(provider: &'static Provider, index: usize, ordinal: usize) -> Result<Self> {
        let info = DeviceInfo { index, ..DeviceInfo::query(provider, ordinal)? };
        if settings()?.ranges {
            ranges::check()?;
        }
        let context = Arc::new(Context::new(provider, index, ordinal));
        let compute = Arc::new(Stream::new(&context, "compute")?);
        let copies = Arc::new(Stream::new(&context, "copies")?);
        output::write_at_exit();
        summary_output::write_at_exit();
        if let Some(apu) = &info.apu {
            apu.check(settings()?.apu_memory)?;
        }
        let driver = Driver::new(&context, &compute, &copies, info.apu.clone());
        let target = workarounds::compile_target(&info.arch, settings()?.architecture.as_deref())?;
        let kernels = Kernels::new(&context, &compute, target, settings()?.loaded_limit);
        let defaults = Defaults::of(Family::of(&info));
        Ok(Self {
            defaults,
            kernel_choices: KernelChoices::default(),
            blas: OnceAny::default(),
            blas_lt: OnceAny::default(),
            dnn: OnceAny::default(),
            pool: MemoryPool::new(
                Box::new(driver),
                Options {
                    limit: settings()?.memory_limit_of(ordinal, info.usable_memory()),
                    pooled: settings()?.memory_pool,
                    split: settings()?.memory_split.unwrap_or(usize::MAX),
                },
            ),
            staging: Staging::new(&context),
            fences: TransferFences::default(),
            releases: Releases::new(&context, &compute),
            faults: Faults::new(&context, &compute)?,
            chain_limit: settings()?.chain.unwrap_or(defaults.chain_steps),
            chain_bytes: settings()?.chain_bytes,
            peers: Mutex::new(Vec::new()),
            collectives: Collectives::default(),
            replica: AtomicBool::new(false),
            captures: Captures::default(),
            replays: RwLock::default(),
            kernels,
            copies,
            compute,
            context,
            info,
        })
    }

    /// The device's properties.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The choices that only cost or save time, for this device's architecture.
    pub fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    /// The device's provider.
    pub fn provider(&self) -> &'static Provider {
        self.context.provider
    }

    /// Free and total bytes, as the driver reports them. Memory that the pool caches is not free. On
    /// an integrated GPU, what the kernel lets it use of the host's memory counts
    /// ([`Config::apu_memory`](crate::Config::apu_memory)).
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        self.pool.free_and_total()
    }

    /// Which implementation computes batch, layer, RMS and group norms
    /// ([`Config::norm`](crate::Config::norm)). For `auto` it is [`Route::Own`] if the library
    /// would leave most of the device idle.
    ///
    /// # Errors
    /// `Config` for a variable with an invalid value.
    pub fn norm_route(&self) -> Result<Route> {
        Ok(match settings()?.norm {
            Route::Auto if !self.norms_fill_it() => Route::Own,
            route => route,
        })
    }

    /// The bytes that new tensors can take: those that are free on the device or in the pool, up to the
    /// pool's limit. Free memory of the pool may be in pieces.
    ///
    /// # Errors
    /// `Device` if HIP fails.
    pub fn available_memory(&self) -> Result<usize> {
        let (free, _) = self.memory_info()?;
        let stats = self.pool.stats();
        let available = free.saturating_add(stats.reserved - stats.allocated);
        let limit = self.pool.limit().map(|limit| limit.saturating_sub(stats.allocated));
        Ok(limit.map_or(available, |limit| limit.min(available)))
    }

    /// Whether the library's norms keep this device busy. If not, `auto` does not choose them.
    pub fn norms_fill_it(&self) -> bool {
        workarounds::norms_fill_the_device(&self.info.arch)
    }

    /// The device's memory pool.
    pub fn pool(&self) -> &MemoryPool {
        &self.pool
    }

    /// Gives cached device memory, cached pinned memory and the modules of unused kernels back to
    /// the driver, after waiting for the device if needed.
    pub fn memory_cleanup(&self) -> Result<()> {
        self.releases.poll(self.captures.any());
        self.pool.clear()?;
        self.staging.clear();
        if self.kernels.retired() > 0 {
            self.kernels.unload_behind(|| self.compute.synchronize())?;
        }
        Ok(())
    }

    /// The device's counters so far.
    pub fn counters(&self) -> Counters {
        let cells = &self.context.counters;
        let of = |cell: &std::sync::atomic::AtomicU64| cell.load(Ordering::Relaxed);
        Counters {
            device_to_host: of(&cells.device_to_host),
            host_to_device: of(&cells.host_to_device),
            waits: of(&cells.waits),
            launches: of(&cells.launches),
            graphs: of(&cells.graphs),
        }
    }

    /// The stream on which all ops run.
    pub fn compute_stream(&self) -> &Stream {
        &self.compute
    }

    /// The stream that this thread's ops are enqueued on: the compute stream, or the captured one if
    /// this thread captures a graph.
    #[inline]
    pub(crate) fn stream(&self) -> &Arc<Stream> {
        self.captures.here().unwrap_or(&self.compute)
    }

    /// Whether the calling thread is capturing this device's work. `false` inside
    /// [`uncaptured`](crate::uncaptured).
    pub fn is_capturing(&self) -> bool {
        self.captures.here().is_some()
    }

    /// For work that can't be captured. The capture then gives no graph, because the graph would
    /// lack the refused work.
    ///
    /// # Errors
    /// `Capture` if this thread is capturing a graph.
    pub fn refuse_captured(&self, op: &'static str, reason: &str) -> Result<()> {
        let Some(stream) = self.captures.here() else { return Ok(()) };
        let error = Error::Capture { op, reason: reason.into() };
        stream.spoil(error.clone());
        Err(error)
    }

    /// Waits for reads that replays must not interrupt. None begins while the result lives.
    ///
    /// A lock prefers those that want it alone, so reads in a loop don't keep replays out for ever.
    pub(crate) fn begin_replay(&self) -> RwLockWriteGuard<'_, ()> {
        self.replays.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// No graph is launched on the device while the result lives. A thread has one at a time: if a
    /// replay waits for the first, the second would wait for the replay.
    pub(crate) fn keep_replays_out(&self) -> RwLockReadGuard<'_, ()> {
        self.replays.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Launches the deferred element-wise ops without waiting for them.
    ///
    /// # Errors
    /// The error of a launch, or an error that was kept for the next read or sync.
    pub fn flush(&self) -> Result<()> {
        self.stream().catch_up();
        self.context.take_error()
    }

    /// A stream for an app's own work. `name` is its name in profiles.
    ///
    /// # Errors
    /// `Device` if HIP fails.
    pub fn new_stream(&self, name: &str, priority: Priority) -> Result<Stream> {
        Stream::of_priority(&self.context, name, priority)
    }

    /// An event that measures time, for [`Stream::record`].
    pub fn timing_event(&self) -> Result<Event> {
        Event::new(&self.context, EventKind::Timing)
    }

    /// Launches all deferred ops and makes the device current for this thread. Call it before AMD's
    /// libraries, which use the current device and enqueue on its streams themselves.
    pub(crate) fn make_current(&self) -> Result<()> {
        self.stream().catch_up();
        self.context.bind()
    }

    /// A block of the pool. If the pool has too little, this frees cached pinned host memory and
    /// tries again, because some devices share the host's memory.
    pub(crate) fn allocate(&self, bytes: usize, purpose: Purpose) -> Result<PoolBlock> {
        let purpose = if self.captures.here().is_some() { Purpose::Captured } else { purpose };
        let block = match self.pool.allocate(bytes, purpose) {
            Err(Error::OutOfMemory { .. }) if self.staging.clear() > 0 => {
                self.pool.made_up_for(1);
                self.pool.allocate(bytes, purpose)
            }
            result => result,
        };
        self.sample_memory();
        block
    }

    /// Notes the pool's bytes in the profiles in progress.
    #[inline]
    pub(crate) fn sample_memory(&self) {
        if profiled() && !self.is_dry() {
            let stats = self.pool.stats();
            session::memory(self.context.index, stats.allocated, stats.reserved);
        }
    }

    /// Takes back a buffer's block.
    pub(crate) fn give_back(&self, block: PoolBlock) {
        let fence = match block.fenced() {
            // The compute stream runs in order, so the block's next user runs after its previous
            // one.
            false => 0,
            true => self.fences.behind(&self.compute, &self.context),
        };
        self.pool.free(block, fence);
        self.sample_memory();
    }

    /// Waits for all work enqueued so far. Reports errors that `Drop` recorded and faults that no
    /// read has reported, including those of dropped results. Each is reported once. Reads of
    /// faulty results still fail afterwards.
    ///
    /// # Errors
    ///
    /// The above; `Capture` if this thread captures a graph.
    pub fn sync(&self) -> Result<()> {
        self.refuse_captured("sync", "captured work has not run yet")?;
        let launched = self.faults.launched();
        self.kernels.unload_behind(|| {
            self.compute.synchronize()?;
            self.copies.synchronize()
        })?;
        self.faults.pass(launched);
        self.releases.poll(self.captures.any());
        self.context.take_error()?;
        self.faults.report().map_or(Ok(()), Err)
    }

    /// The number of fault words in use: those of launches that may still find a fault, and those
    /// that the faults of a buffer refer to.
    pub fn fault_words(&self) -> usize {
        self.faults.words()
    }

    /// Keeps an error for the next read or sync, if the caller can't return it. Only the first one
    /// is kept.
    pub fn record(&self, error: Error) {
        self.context.record(error);
    }

    pub(crate) fn built_in(&self, name: KernelName) -> Result<Arc<Kernel>> {
        self.kernels.built_in(name)
    }

    /// Loads an instantiation of a program, from the cache or compiled. `expression` is its C++
    /// name, such as `scale<float>`.
    ///
    /// # Errors
    /// `Compilation` with the compiler's log.
    pub fn kernel(&self, program: &Program<'_>, expression: &str) -> Result<Arc<Kernel>> {
        self.kernels.of_program(program, expression)
    }

    /// The number of kernels loaded onto the device, and the bytes of their code.
    pub fn loaded_kernels(&self) -> (usize, usize) {
        self.kernels.size()
    }

    /// The number of unused kernels whose modules are still loaded, because the device may be
    /// running them.
    pub fn retired_kernels(&self) -> usize {
        self.kernels.retired()
    }

    /// Sets how many bytes of code may be loaded, in place of
    /// [`Config::loaded_limit`](crate::Config::loaded_limit). Above that, the least recently used
    /// kernels are unloaded.
    pub fn set_loaded_kernels_limit(&self, bytes: usize) {
        self.kernels.set_limit(bytes);
    }

    /// Forgets every loaded kernel. The next use of each reads it from disk or compiles it again.
    pub fn forget_kernels(&self) {
        self.kernels.clear();
    }

    /// The grid for an element-wise kernel over `items` items.
    pub fn grid(&self, items: usize) -> Grid {
        self.blocks_of(self.defaults.block_items, items)
    }

    /// The grid for an element-wise kernel over contiguous memory. `bytes` is the size of its
    /// largest operand, of which each thread accesses 16 bytes.
    pub fn grid_bytes(&self, bytes: usize) -> Grid {
        match self.block_threads() {
            // On the CPU device a block is a loop on one core, and a longer loop vectorises better.
            1 => self.grid(bytes / 4),
            threads => self.blocks_of(self.defaults.access_bytes * threads as usize, bytes),
        }
    }

    /// The grid for a kernel that computes each row of `row_len` items in one block.
    pub fn grid_rows(&self, rows: usize, row_len: usize) -> Grid {
        let widest = self.block_threads();
        let wanted = row_len.clamp(1, widest as usize).next_power_of_two() as u32;
        let threads = wanted.max(self.info.warp_size).min(widest);
        Grid { blocks: rows.clamp(1, self.most_blocks(threads)) as u32, threads }
    }

    /// The grid for a kernel that computes each row of `row_len` elements in one block with 16-byte
    /// reads: 6 to 12 elements (`row_items`) for each thread, up to the largest block. With small
    /// blocks, more rows are in flight. On an H200, masked softmax of rows of 512 f32 reached 2.8 TB/s, against
    /// 0.8 with one element for each thread; layer norm of rows of 768 reached 3.6 TB/s with 64
    /// threads and 2.5 with 128.
    pub fn grid_kept_rows(&self, rows: usize, row_len: usize) -> Grid {
        self.grid_rows(rows, row_len.div_ceil(self.defaults.row_items))
    }

    /// The most warps that are resident on the device at once.
    pub fn resident_warps(&self) -> usize {
        let per_unit = self.info.max_threads_per_compute_unit / self.info.warp_size;
        self.info.compute_units as usize * per_unit.max(1) as usize
    }

    fn blocks_of(&self, items_per_block: usize, items: usize) -> Grid {
        let threads = self.block_threads();
        Grid { blocks: items.div_ceil(items_per_block).clamp(1, self.most_blocks(threads)) as u32, threads }
    }

    /// Threads of a block of an element-wise kernel.
    pub fn block_threads(&self) -> u32 {
        (self.defaults.block_threads as u32).min(self.info.max_threads_per_block)
    }

    /// The most blocks of a launch. On a GPU this limits only very large launches, because many
    /// blocks that start as others end keep memory busier than a few resident blocks that loop
    /// (H200, 2^28 f32: exp reached 4.27 TB/s with many blocks and 3.93 with resident ones, softmax
    /// of rows of 4096 reached 3.99 and 3.60, its gradient 3.94 and 2.74). If a block has one
    /// thread, it is the number of blocks that run at once.
    fn most_blocks(&self, threads: u32) -> usize {
        if threads > 1 {
            return MOST_BLOCKS;
        }
        self.info.compute_units as usize * self.info.max_threads_per_compute_unit.max(1) as usize
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("info", &self.info).finish_non_exhaustive()
    }
}
