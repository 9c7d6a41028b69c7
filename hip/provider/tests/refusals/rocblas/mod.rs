//! rocBLAS's functions.

mod products;
mod vectors;

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use hip_provider::rocblas::{Geam, Gemm, Gemv, Handle, Mixed, Outcome, Real, Types, table};
use hip_sys::hipStream_t;
use rocblas_sys::*;

use crate::{Fails, Runs, Then, asked, check, dangling, looked, text};

impl crate::Status for rocblas_status {
    const SUCCESS: Self = rocblas_status_success;
}

const HANDLE: Then<rocblas_status> = Fails(rocblas_status_invalid_handle);
const POINTER: Then<rocblas_status> = Fails(rocblas_status_invalid_pointer);
const SIZE: Then<rocblas_status> = Fails(rocblas_status_invalid_size);
const VALUE: Then<rocblas_status> = Fails(rocblas_status_invalid_value);
const MISSING: Then<rocblas_status> = Fails(rocblas_status_not_implemented);

const NONE: rocblas_operation = rocblas_operation_none;
const TRANSPOSE: rocblas_operation = rocblas_operation_transpose;

thread_local! {
    /// The runtime's allocations: address and bytes.
    static LIVE: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
    static SCALARS_ON_HOST: Cell<bool> = const { Cell::new(true) };
    /// What the last product that ran reads: `a` and `b`, or `c`; and its types.
    static READ: Cell<(bool, bool, Option<Types>)> = const { Cell::new((false, false, None)) };
}

/// Device memory of exactly `bytes` bytes. Nobody accesses it.
fn memory(bytes: usize) -> *mut c_void {
    LIVE.with_borrow_mut(|live| {
        let start =
            live.last().map_or(0x10_0000, |(start, bytes)| (start + bytes).next_multiple_of(256) + 256);
        live.push((start, bytes));
        std::ptr::without_provenance_mut(start)
    })
}

fn note(what: &'static str) -> Outcome {
    asked(what);
    Ok(())
}

struct Imitation;

impl Handle for Imitation {
    fn version() -> &'static CStr {
        c"5.2.0"
    }
    fn create() -> Outcome<Self> {
        asked("create");
        Ok(Imitation)
    }
    fn destroy(self) -> Outcome {
        note("destroy")
    }
    fn ready(&mut self) -> Outcome {
        Ok(())
    }
    fn stream(&self) -> hipStream_t {
        asked("stream");
        dangling()
    }
    fn set_stream(&mut self, _: hipStream_t) -> Outcome {
        note("set_stream")
    }
    fn scalars_on_host(&self) -> bool {
        SCALARS_ON_HOST.get()
    }
    fn set_scalars_on_host(&mut self, on_host: bool) -> Outcome {
        note(if on_host { "host" } else { "device" })
    }
    fn allow_atomics(&mut self, allowed: bool) -> Outcome {
        note(if allowed { "allowed" } else { "forbidden" })
    }
    fn set_workspace(&mut self, at: *mut c_void, bytes: usize) -> Outcome {
        assert_eq!(at.is_null(), bytes == 0);
        note(if at.is_null() { "own workspace" } else { "workspace" })
    }
    fn compute(&mut self, body: impl FnOnce(&mut Self) -> Outcome) -> Outcome {
        body(self)
    }
    fn is_device_memory(pointer: *const c_void, bytes: usize) -> bool {
        assert!(!pointer.is_null(), "null is refused before the runtime is asked");
        let at = pointer.addr();
        let holds =
            |&(start, all): &(usize, usize)| at >= start && at - start <= all && bytes <= all - (at - start);
        LIVE.with_borrow(|live| live.iter().any(holds))
    }
}

impl Mixed for Imitation {
    unsafe fn gemm_ex(&mut self, call: &Gemm, types: Types) -> Outcome {
        assert!(!call.alpha.is_null());
        READ.set((call.reads, call.keeps, Some(types)));
        note("gemm_ex")
    }
}

impl<T> Real<T> for Imitation {
    unsafe fn gemm(&mut self, call: &Gemm) -> Outcome {
        assert!(!call.alpha.is_null());
        READ.set((call.reads, call.keeps, None));
        note("gemm")
    }
    unsafe fn gemv(&mut self, call: &Gemv<T>) -> Outcome {
        READ.set((call.reads, true, None));
        note("gemv")
    }
    unsafe fn geam(&mut self, call: &Geam<T>) -> Outcome {
        READ.set((call.reads[0], call.reads[1], None));
        note("geam")
    }
}

fn blas() -> (Rocblas, rocblas_handle) {
    let (t, mut handle) = (table::<Imitation>(), null_mut());
    assert_eq!(unsafe { (t.rocblas_create_handle)(&mut handle) }, rocblas_status_success);
    (t, handle)
}

static SINGLES: [f32; 3] = [0.0, 1.0, 2.0];
static DOUBLES: [f64; 3] = [0.0, 1.0, 2.0];
/// A scalar of the host: 0, 1 or 2.
fn single(value: usize) -> *const c_void {
    (&raw const SINGLES[value]).cast()
}

fn double(value: usize) -> *const f64 {
    &raw const DOUBLES[value]
}

#[test]
fn handles() {
    let (t, handle) = blas();
    let stream = |handle: &mut rocblas_handle| unsafe { (t.rocblas_set_stream)(*handle, null_mut()) };
    check("rocblas_set_stream", handle, stream, &[("null", &|at| *at = null_mut(), HANDLE)]);
    let mut to = null_mut();
    type Stream = (rocblas_handle, *mut hipStream_t);
    let stream = |(handle, to): &mut Stream| unsafe { (t.rocblas_get_stream)(*handle, *to) };
    check(
        "rocblas_get_stream",
        (handle, &raw mut to),
        stream,
        &[("no handle", &|call| call.0 = null_mut(), HANDLE), ("null", &|call| call.1 = null_mut(), POINTER)],
    );
    type Mode = (rocblas_handle, rocblas_pointer_mode);
    let mode = |(handle, mode): &mut Mode| unsafe { (t.rocblas_set_pointer_mode)(*handle, *mode) };
    check(
        "rocblas_set_pointer_mode",
        (handle, rocblas_pointer_mode_host),
        mode,
        &[
            ("no handle", &|call| call.0 = null_mut(), HANDLE),
            ("the device's", &|call| call.1 = rocblas_pointer_mode_device, Runs),
            ("an unknown mode", &|call| call.1 = rocblas_pointer_mode(2), VALUE),
        ],
    );
    type Atomics = (rocblas_handle, rocblas_atomics_mode);
    let atomics = |(handle, mode): &mut Atomics| unsafe { (t.rocblas_set_atomics_mode)(*handle, *mode) };
    check(
        "rocblas_set_atomics_mode",
        (handle, rocblas_atomics_allowed),
        atomics,
        &[
            ("no handle", &|call| call.0 = null_mut(), HANDLE),
            ("an unknown mode", &|call| call.1 = rocblas_atomics_mode(2), VALUE),
        ],
    );
    unsafe {
        looked();
        (t.rocblas_set_pointer_mode)(handle, rocblas_pointer_mode_device);
        (t.rocblas_set_pointer_mode)(handle, rocblas_pointer_mode_host);
        (t.rocblas_set_atomics_mode)(handle, rocblas_atomics_not_allowed);
        (t.rocblas_set_atomics_mode)(handle, rocblas_atomics_allowed);
        // Without an address or without bytes the library has its own workspace.
        (t.rocblas_set_workspace)(handle, null_mut(), 64);
        (t.rocblas_set_workspace)(handle, dangling(), 0);
        (t.rocblas_set_workspace)(handle, dangling(), 64);
        assert_eq!((t.rocblas_set_workspace)(null_mut(), dangling(), 64), rocblas_status_invalid_handle);
    }
    let expected = ["device", "host", "forbidden", "allowed", "own workspace", "own workspace", "workspace"];
    assert_eq!(looked(), expected);
    unsafe {
        assert_eq!((t.rocblas_create_handle)(null_mut()), rocblas_status_invalid_handle);
        assert_eq!((t.rocblas_destroy_handle)(null_mut()), rocblas_status_invalid_handle);
        assert_eq!(looked().len(), 0);
        assert_eq!((t.rocblas_destroy_handle)(handle), rocblas_status_success);
    }
    assert_eq!(looked(), ["destroy"]);
}

#[test]
fn versions_and_statuses() {
    let t = table::<Imitation>();
    let (mut len, mut room) = (0, [1; 8]);
    unsafe {
        assert_eq!((t.rocblas_get_version_string_size)(null_mut()), rocblas_status_invalid_pointer);
        assert_eq!((t.rocblas_get_version_string_size)(&mut len), rocblas_status_success);
        assert_eq!(len, 6);
        let at = room.as_mut_ptr();
        assert_eq!((t.rocblas_get_version_string)(null_mut(), 8), rocblas_status_invalid_pointer);
        assert_eq!((t.rocblas_get_version_string)(at, 5), rocblas_status_invalid_size);
        assert_eq!(room, [1; 8]);
        assert_eq!((t.rocblas_get_version_string)(at, 6), rocblas_status_success);
        assert_eq!((text(at), room[6..] == [1, 1]), ("5.2.0", true));
    }
    let name = |status| text(unsafe { (t.rocblas_status_to_string)(rocblas_status(status)) });
    for status in 0..16 {
        assert_eq!(Some(name(status)), rocblas_status(status).name());
    }
    assert_eq!(name(16), "<undefined rocblas_status value>");
}
