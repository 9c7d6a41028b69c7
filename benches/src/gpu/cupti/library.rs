//! CUPTI's activity API: the records of what a GPU did and when.
//!
//! CUDA 12 and 13 add fields at the ends of the records, and the declarations of the first fields
//! are the same (`cupti_activity.h` of 12.9 and 13.5: `CUpti_ActivityKernel9` and `Kernel13`,
//! `CUpti_ActivityMemcpy6` and `Memcpy7`, `CUpti_ActivityMemset4` and `Memset5`). Only these are
//! read.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use libloading::Library;

type Status = c_int;
type Requested = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Completed = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
type GetNext = unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> Status;

const MEMCPY: u32 = 1;
const MEMSET: u32 = 2;
const CONCURRENT_KERNEL: u32 = 10;
const KINDS: [u32; 3] = [MEMCPY, MEMSET, CONCURRENT_KERNEL];

/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`: also the buffers that are not full.
const FORCED: u32 = 1;

/// The first fields that the records of copies, memsets and kernels have in common.
#[repr(C)]
struct Head {
    kind: u32,
    /// What kind of copy, a memset's value, a kernel's settings.
    detail: u32,
    /// Of a copy or a memset.
    bytes: u64,
    start: u64,
    end: u64,
}

/// The first fields of a kernel's record.
#[repr(C)]
struct KernelHead {
    head: Head,
    completed: u64,
    device: u32,
    context: u32,
    stream: u32,
    grid: [i32; 3],
    block: [i32; 3],
    memory: [u32; 4],
    correlation: u32,
    grid_id: i64,
    name: *const c_char,
}

const _: () = assert!(std::mem::offset_of!(Head, start) == 16 && size_of::<Head>() == 32);
const _: () = assert!(std::mem::offset_of!(KernelHead, correlation) == 92);
const _: () = assert!(std::mem::offset_of!(KernelHead, name) == 104);

/// What the GPU did.
#[derive(Clone, Debug)]
pub(super) struct Activity {
    /// The kernel's name, `memcpy` or `memset`.
    pub(super) name: String,
    /// Of a copy or a memset; 0 for kernels.
    pub(super) bytes: u64,
    /// Nanoseconds of CUPTI's clock.
    pub(super) start: u64,
    pub(super) end: u64,
}

/// What CUPTI has handed over so far, and how many buffers could not be read in full.
static RECORDED: Mutex<(Vec<Activity>, u64)> = Mutex::new((Vec::new(), 0));

/// CUPTI's function, for the callback, which gets no context of its own.
static NEXT: Mutex<Option<GetNext>> = Mutex::new(None);

const BUFFER: Layout = match Layout::from_size_align(8 << 20, 16) {
    Ok(layout) => layout,
    Err(_) => panic!("a size and a power of two"),
};

unsafe extern "C" fn requested(buffer: *mut *mut u8, size: *mut usize, most: *mut usize) {
    // SAFETY: the layout has a size; CUPTI passes places for its three results. If there is no
    // memory, it gets null, and drops records.
    unsafe {
        *buffer = alloc(BUFFER);
        *size = if (*buffer).is_null() { 0 } else { BUFFER.size() };
        *most = 0;
    }
}

unsafe extern "C" fn completed(_: *mut c_void, _: u32, buffer: *mut u8, _: usize, valid: usize) {
    if buffer.is_null() {
        return;
    }
    let next = *NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    let mut recorded = RECORDED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut record = std::ptr::null_mut();
    while let Some(next) = next.filter(|_| valid > 0) {
        // SAFETY: CUPTI filled `valid` bytes of the buffer, and gets back the record that it gave
        // last.
        match unsafe { next(buffer, valid, &mut record) } {
            // SAFETY: CUPTI gives a pointer to a record of one of the kinds that are on.
            0 => recorded.0.extend(unsafe { activity(record) }),
            // `CUPTI_ERROR_MAX_LIMIT_REACHED`: there are no more.
            12 => break,
            _ => {
                recorded.1 += 1;
                break;
            }
        }
    }
    // SAFETY: `requested` allocated it with this layout, and CUPTI is done with it.
    unsafe { dealloc(buffer, BUFFER) };
}

/// # Safety
/// `record` points to a record of CUPTI.
unsafe fn activity(record: *const u8) -> Option<Activity> {
    // SAFETY: every record begins with its kind, and these three begin with a `Head`. CUPTI aligns
    // records to 8 bytes.
    let kind = unsafe { record.cast::<u32>().read() };
    if !KINDS.contains(&kind) {
        return None;
    }
    // SAFETY: as above.
    let head = unsafe { record.cast::<Head>().read() };
    let (name, bytes) = match kind {
        CONCURRENT_KERNEL => {
            // SAFETY: a kernel's record begins with a `KernelHead`.
            let name = unsafe { record.cast::<KernelHead>().read() }.name;
            // SAFETY: CUPTI gives null or a text that ends with 0 and lives as long as the process.
            let text = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
            (text.map_or("a kernel".into(), |text| text.to_string_lossy().into_owned()), 0)
        }
        MEMSET => ("memset".to_owned(), head.bytes),
        _ => ("memcpy".to_owned(), head.bytes),
    };
    Some(Activity { name, bytes, start: head.start, end: head.end })
}

/// CUPTI, from when it is opened until the process ends.
pub(super) struct Cupti {
    library: Library,
}

impl Cupti {
    /// Opens the library.
    ///
    /// # Errors
    /// The loader's text, or that of the function that failed.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: CUPTI's initialisers have no preconditions.
        let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
        let cupti = Self { library };
        let next: GetNext = cupti.symbol(c"cuptiActivityGetNextRecord")?;
        *NEXT.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
        type Register = unsafe extern "C" fn(Requested, Completed) -> Status;
        let register: Register = cupti.symbol(c"cuptiActivityRegisterCallbacks")?;
        // SAFETY: both functions have the signatures of `cupti_activity.h`.
        cupti.check("cuptiActivityRegisterCallbacks", unsafe { register(requested, completed) })?;
        Ok(cupti)
    }

    fn symbol<T: Copy>(&self, name: &CStr) -> Result<T, String> {
        // SAFETY: each caller names the function's signature as `cupti_activity.h` declares it. The
        // library stays loaded, because `run` keeps it until the process ends.
        let symbol = unsafe { self.library.get::<T>(name.to_bytes_with_nul()) };
        symbol.map(|symbol| *symbol).map_err(|error| error.to_string())
    }

    fn check(&self, call: &str, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        type Describe = unsafe extern "C" fn(Status, *mut *const c_char) -> Status;
        let mut text = std::ptr::null();
        let described = self.symbol::<Describe>(c"cuptiGetResultString").map(|describe| {
            // SAFETY: it writes a pointer to a text that stays.
            unsafe { describe(status, &mut text) }
        });
        let text = match described {
            // SAFETY: as above.
            Ok(0) if !text.is_null() => unsafe { CStr::from_ptr(text) }.to_string_lossy(),
            _ => "no description".into(),
        };
        Err(format!("{call}: {status}, {text}"))
    }

    fn each_kind(&self, call: &CStr) -> Result<(), String> {
        let switch: unsafe extern "C" fn(u32) -> Status = self.symbol(call)?;
        for kind in KINDS {
            // SAFETY: the kinds are CUPTI's.
            self.check(&call.to_string_lossy(), unsafe { switch(kind) })?;
        }
        Ok(())
    }

    /// What the GPU does during `body`, which waits for it before it returns, in the order of its
    /// beginning.
    ///
    /// # Errors
    /// The text of the function that failed; if CUPTI has dropped records.
    pub(super) fn during<T>(&self, body: impl FnOnce() -> T) -> Result<(T, Vec<Activity>), String> {
        self.each_kind(c"cuptiActivityEnable")?;
        let result = body();
        let flush: unsafe extern "C" fn(u32) -> Status = self.symbol(c"cuptiActivityFlushAll")?;
        // SAFETY: no precondition; no callback of CUPTI runs on this thread.
        self.check("cuptiActivityFlushAll", unsafe { flush(FORCED) })?;
        self.each_kind(c"cuptiActivityDisable")?;
        type Dropped = unsafe extern "C" fn(*mut c_void, u32, *mut usize) -> Status;
        let dropped: Dropped = self.symbol(c"cuptiActivityGetNumDroppedRecords")?;
        let mut count = 0;
        // SAFETY: a null context and stream 0 ask for the global queue; it writes one number.
        self.check("cuptiActivityGetNumDroppedRecords", unsafe {
            dropped(std::ptr::null_mut(), 0, &mut count)
        })?;
        let (mut all, unread) = std::mem::take(&mut *RECORDED.lock().unwrap_or_else(PoisonError::into_inner));
        if count > 0 || unread > 0 {
            return Err(format!("CUPTI dropped {count} records, and {unread} buffers were not read in full"));
        }
        all.sort_by_key(|activity| activity.start);
        Ok((result, all))
    }
}
