//! CUPTI's activity API: records of what a GPU did, and of the piece of a profile's work that
//! launched it.
//!
//! CUDA 12 and 13 add fields at the ends of the records, and the declarations of the first fields
//! are the same (`cupti_activity.h` of 12.8, 12.9, 13.0 and 13.5: `CUpti_ActivityKernel9` to
//! `Kernel13`, `CUpti_ActivityMemcpy6` and `Memcpy7`, `CUpti_ActivityMemcpyPtoP4`,
//! `CUpti_ActivityMemset4` and `Memset5`, `CUpti_ActivityExternalCorrelation`). Only these are read.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use burn_rocm::profile::{Correlator, correlate};
use libloading::Library;

use super::join::{Activity, Link, Record};

type Status = c_int;
type Requested = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Completed = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
type GetNext = unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> Status;
type Push = unsafe extern "C" fn(u32, u64) -> Status;
type Pop = unsafe extern "C" fn(u32, *mut u64) -> Status;

const MEMCPY: u32 = 1;
const MEMSET: u32 = 2;
/// Calls of the driver and of the runtime, without which there are no [`CORRELATION`]s.
const DRIVER: u32 = 4;
const RUNTIME: u32 = 5;
const CONCURRENT_KERNEL: u32 = 10;
/// Copies between devices.
const MEMCPY2: u32 = 22;
/// The number that the program gave to a call.
const CORRELATION: u32 = 39;
const KINDS: [u32; 7] = [CORRELATION, DRIVER, RUNTIME, MEMCPY, MEMSET, MEMCPY2, CONCURRENT_KERNEL];

/// `CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0`: marks this program's numbers.
const OURS: u32 = 3;

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

/// The first fields of a copy's or a memset's record.
#[repr(C)]
struct CopyHead {
    head: Head,
    device: u32,
    context: u32,
    stream: u32,
    correlation: u32,
}

/// The first fields of the record of a copy between devices.
#[repr(C)]
struct PeerHead {
    head: Head,
    device: u32,
    context: u32,
    stream: u32,
    source: [u32; 2],
    destination: [u32; 2],
    correlation: u32,
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

/// A call of the driver or runtime, and the number that was on top of its thread's stack.
#[repr(C)]
struct Correlation {
    kind: u32,
    whose: u32,
    number: u64,
    correlation: u32,
    reserved: u32,
}

const _: () = assert!(std::mem::offset_of!(Head, start) == 16 && size_of::<Head>() == 32);
const _: () = assert!(std::mem::offset_of!(CopyHead, correlation) == 44);
const _: () = assert!(std::mem::offset_of!(PeerHead, correlation) == 60);
const _: () = assert!(std::mem::offset_of!(KernelHead, correlation) == 92);
const _: () = assert!(std::mem::offset_of!(KernelHead, name) == 104);
const _: () = assert!(std::mem::offset_of!(Correlation, correlation) == 16 && size_of::<Correlation>() == 24);

/// What CUPTI has handed over so far, and how many buffers could not be read in full.
static RECORDED: Mutex<(Record, u64)> = Mutex::new((Record::EMPTY, 0));

/// CUPTI's stack of the calling thread's numbers.
static STACK: OnceLock<(Push, Pop)> = OnceLock::new();

/// How many numbers CUPTI refused.
static REFUSED: AtomicU64 = AtomicU64::new(0);

fn begins(number: u64) {
    // SAFETY: `open` found the function, whose library stays loaded; it takes any number.
    let status = STACK.get().map(|(push, _)| unsafe { push(OURS, number) });
    refused(status);
}

fn ends() {
    // SAFETY: as above; the last number may go to null.
    let status = STACK.get().map(|(_, pop)| unsafe { pop(OURS, std::ptr::null_mut()) });
    refused(status);
}

fn refused(status: Option<Status>) {
    if status != Some(0) {
        REFUSED.fetch_add(1, Ordering::Relaxed);
    }
}

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
            0 => unsafe { read(record, &mut recorded.0) },
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

/// Adds what a record of CUPTI says.
///
/// # Safety
/// `record` points to a record of CUPTI.
unsafe fn read(record: *const u8, into: &mut Record) {
    // SAFETY: every record begins with its kind. CUPTI aligns records to 8 bytes.
    let kind = unsafe { record.cast::<u32>().read() };
    let (name, correlation) = match kind {
        CORRELATION => {
            // SAFETY: records of this kind are a `Correlation`.
            let Correlation { whose, number, correlation, .. } =
                unsafe { record.cast::<Correlation>().read() };
            if whose == OURS {
                into.links.push(Link { correlation, piece: number });
            }
            return;
        }
        CONCURRENT_KERNEL => {
            // SAFETY: a kernel's record begins with a `KernelHead`.
            let KernelHead { name, correlation, .. } = unsafe { record.cast::<KernelHead>().read() };
            // SAFETY: CUPTI gives null or a text that ends with 0 and lives as long as the process.
            let text = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
            (text.map_or("a kernel".into(), |text| text.to_string_lossy().into_owned()), correlation)
        }
        MEMCPY | MEMSET => {
            // SAFETY: the record of a copy or a memset begins with a `CopyHead`.
            let CopyHead { correlation, .. } = unsafe { record.cast::<CopyHead>().read() };
            (if kind == MEMSET { "memset" } else { "memcpy" }.to_owned(), correlation)
        }
        MEMCPY2 => {
            // SAFETY: that of a copy between devices begins with a `PeerHead`.
            let PeerHead { correlation, .. } = unsafe { record.cast::<PeerHead>().read() };
            ("memcpy between devices".to_owned(), correlation)
        }
        _ => return,
    };
    // SAFETY: the records of these kinds begin with a `Head`.
    let Head { bytes, start, end, .. } = unsafe { record.cast::<Head>().read() };
    let bytes = if kind == CONCURRENT_KERNEL { 0 } else { bytes };
    into.activities.push(Activity { name, bytes, start, end, correlation });
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
        let push: Push = cupti.symbol(c"cuptiActivityPushExternalCorrelationId")?;
        let pop: Pop = cupti.symbol(c"cuptiActivityPopExternalCorrelationId")?;
        // A second library would have the first one's functions; `correlate` refuses it.
        let _ = STACK.set((push, pop));
        correlate(Correlator { begins, ends }).map_err(|error| error.to_string())?;
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
    /// beginning, and which pieces of a profile's work launched it.
    ///
    /// # Errors
    /// The text of the function that failed; if CUPTI has dropped records or refused numbers.
    pub(super) fn during<T>(&self, body: impl FnOnce() -> T) -> Result<(T, Record), String> {
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
        let recorded = &mut *RECORDED.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut record, unread) = std::mem::replace(recorded, (Record::EMPTY, 0));
        let refused = REFUSED.swap(0, Ordering::Relaxed);
        if count + refused as usize > 0 || unread > 0 {
            return Err(format!(
                "CUPTI dropped {count} records and refused {refused} numbers of pieces, and {unread} buffers \
                 were not read in full"
            ));
        }
        record.activities.sort_by_key(|activity| activity.start);
        Ok((result, record))
    }
}
