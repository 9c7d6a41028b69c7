//! Trials over a rocBLAS whose solutions take as long, and write, as a test says.

#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::ffi::c_void;
use std::path::PathBuf;

use hip_sys::{hipError_t, hipEvent_t, hipSuccess};

use super::super::MatrixView;
use super::*;
use crate::DType;
use crate::device::Device;
use crate::provider::Provider;

/// The CPU device's solutions besides the default.
const FASTEST: i32 = 1;
const SECOND: i32 = -12;

/// How the thread's rocBLAS behaves. The thread that asks for a product also makes all its calls.
#[derive(Clone, Copy, Default)]
struct Fake {
    /// Whether it refuses to compute by a number.
    refuses: bool,
    /// The element of the result's memory that [`FASTEST`] writes besides the product.
    spills: Option<isize>,
    /// The solution that computed last.
    last: i32,
}

thread_local! {
    static FAKE: Cell<Fake> = const { Cell::new(Fake { refuses: false, spills: None, last: 0 }) };
}

fn fake(change: impl FnOnce(&mut Fake)) {
    let mut fake = FAKE.get();
    change(&mut fake);
    FAKE.set(fake);
}

/// The time of the last products, whatever the machine does meanwhile.
unsafe extern "C" fn elapsed(milliseconds: *mut f32, _: hipEvent_t, _: hipEvent_t) -> hipError_t {
    let time = match FAKE.get().last {
        DEFAULT => 1.0,
        FASTEST => 0.4,
        _ => 0.5,
    };
    // SAFETY: the caller passes a place for the result.
    unsafe { *milliseconds = time };
    hipSuccess
}

fn real() -> &'static Rocblas {
    crate::provider::provider().and_then(Provider::rocblas).expect("the CPU provider's rocBLAS")
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
unsafe extern "C" fn sgemm(
    handle: rocblas_handle, a_op: rocblas_operation, b_op: rocblas_operation, m: i32, n: i32, k: i32,
    alpha: *const f32, a: *const f32, lda: i32, b: *const f32, ldb: i32, beta: *const f32, c: *mut f32, ldc: i32,
) -> rocblas_status {
    fake(|fake| fake.last = DEFAULT);
    // SAFETY: the caller's arguments.
    unsafe { (real().rocblas_sgemm)(handle, a_op, b_op, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) }
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
unsafe extern "C" fn gemm_ex(
    handle: rocblas_handle, a_op: rocblas_operation, b_op: rocblas_operation, m: i32, n: i32, k: i32,
    alpha: *const c_void, a: *const c_void, a_type: rocblas_datatype, lda: i32,
    b: *const c_void, b_type: rocblas_datatype, ldb: i32, beta: *const c_void,
    c: *const c_void, c_type: rocblas_datatype, ldc: i32, d: *mut c_void, d_type: rocblas_datatype, ldd: i32,
    compute_type: rocblas_datatype, algo: rocblas_gemm_algo, solution: i32, flags: u32,
) -> rocblas_status {
    let Fake { refuses, spills, .. } = FAKE.get();
    if refuses {
        return rocblas_status_invalid_value;
    }
    fake(|fake| fake.last = solution);
    // SAFETY: the caller's arguments.
    let status = unsafe {
        (real().rocblas_gemm_ex)(
            handle, a_op, b_op, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, d, d_type,
            ldd, compute_type, algo, solution, flags,
        )
    };
    if let Some(at) = spills.filter(|_| solution == FASTEST) {
        // SAFETY: no precondition. Then the device has computed, and nobody else uses the memory; the
        // tests name elements that a trial's memory has.
        unsafe {
            (crate::provider::provider().expect("the CPU provider").hip().hipDeviceSynchronize)();
            d.cast::<f32>().offset(at).write(42.0);
        }
    }
    status
}

/// A product on a device of its own, with a store of its own.
struct Rig {
    blas: Blas,
    device: std::sync::Arc<Device>,
    operands: [Buffer; 2],
    out: Buffer,
    folder: PathBuf,
}

const SIZES: [usize; 3] = [5, 7, 6];
/// Elements from one row of the result to the next.
const ROW: usize = SIZES[1] + 3;

impl Rig {
    fn new(name: &str) -> Self {
        FAKE.take();
        let folder = std::env::temp_dir().join(format!("hip-blas-choose-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let store = Box::leak(Box::new(TuningStore::new(Some(folder.clone()))));
        let provider = Provider::altered(|hip| hip.hipEventElapsedTime = elapsed);
        let device = std::sync::Arc::new(Device::new(provider, 0).unwrap());
        let table = Rocblas { rocblas_sgemm: sgemm, rocblas_gemm_ex: gemm_ex, ..*real() };
        device.make_current().unwrap();
        let stream = device.compute.handle();
        let mut blas = Blas::new(Box::leak(Box::new(table)), device.info(), stream, false).unwrap();
        blas.chooser = Some(Chooser::with(store));
        let values = |count: usize, seed: usize| -> Vec<u8> {
            (0..count).flat_map(|i| (((i * 37 + seed) % 29) as f32 / 7.0 - 2.0).to_le_bytes()).collect()
        };
        let [m, n, k] = SIZES;
        let upload = |count, seed| device.upload(&values(count, seed)).unwrap();
        let (operands, out) = ([upload(m * k, 1), upload(k * n, 2)], upload(m * ROW, 3));
        Self { blas, device, operands, out, folder }
    }

    fn store(&self) -> &'static TuningStore {
        self.blas.chooser.as_ref().unwrap().store
    }

    /// Multiplies, and returns the solution that did.
    fn multiply(&self, beta: f64) -> i32 {
        let [m, n, k] = SIZES;
        let view = |buffer, rows, cols, row_stride| MatrixView {
            buffer,
            offset: 0,
            rows,
            cols,
            row_stride,
            col_stride: 1,
            batch_stride: 0,
        };
        let [a, b] = &self.operands;
        let (a, b, c) = (view(a, m, k, k), view(b, k, n, n), view(&self.out, m, n, ROW));
        self.blas.gemm(DType::F32, 1, a, b, c, 1.0, beta, false).unwrap();
        FAKE.get().last
    }

    /// What lies between the rows of the result.
    fn gaps(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.out.len()];
        self.device.read(&self.out, 0, &mut bytes).unwrap();
        bytes.chunks(ROW * 4).flat_map(|row| row[SIZES[1] * 4..].to_vec()).collect()
    }

    /// A file of another store, with this solution for the product.
    fn exported(&self, solution: i32, microseconds: f64) -> PathBuf {
        let other = Rig::new(&format!("exported-{solution}-{microseconds}"));
        assert_eq!([0; 3].map(|_| other.multiply(0.0)), [DEFAULT, DEFAULT, FASTEST]);
        let entry =
            TuningEntry { solution: solution.into(), microseconds, ..other.store().entries().remove(0) };
        other.store().put(&entry).unwrap();
        let file = self.folder.with_extension("exported");
        assert_eq!(other.store().export(&file).unwrap(), 1);
        FAKE.take();
        file
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
        let _ = std::fs::remove_file(self.folder.with_extension("exported"));
    }
}

#[test]
fn the_third_use_takes_the_fastest() {
    let rig = Rig::new("third");
    assert_eq!([0; 4].map(|_| rig.multiply(0.0)), [DEFAULT, DEFAULT, FASTEST, FASTEST]);
    let stats = rig.store().stats();
    assert_eq!((stats.trials, stats.misses, stats.hits, stats.entries), (1, 1, 0, 1));
}

#[test]
fn a_trial_leaves_an_error_to_the_programs_next_read() {
    let rig = Rig::new("waits");
    rig.device.record(Error::invalid("a release", "success", "a failure"));
    assert_eq!([0; 3].map(|_| rig.multiply(0.0)), [DEFAULT, DEFAULT, FASTEST], "the trial has read results");
    let read = || rig.device.read(&rig.out, 0, &mut [0; 4]);
    assert!(read().unwrap_err().to_string().contains("a release"));
    read().unwrap();
}

#[test]
fn a_solution_that_writes_outside_its_matrices_is_not_used() {
    let [m, n, _] = SIZES.map(|size| size as isize);
    let row = ROW as isize;
    for (name, at) in
        [("before", -1), ("between", n), ("far-between", row * 2 - 1), ("behind", (m - 1) * row + n)]
    {
        for beta in [0.0, 0.5] {
            let rig = Rig::new(&format!("outside-{name}-{beta}"));
            let before = rig.gaps();
            fake(|fake| fake.spills = Some(at));
            let by = [0; 4].map(|_| rig.multiply(beta));
            assert_eq!(by, [DEFAULT, DEFAULT, SECOND, SECOND], "{name}, beta {beta}");
            assert_eq!(rig.gaps(), before);
        }
    }
    // Inside them, the value counts.
    let rig = Rig::new("outside-not");
    fake(|fake| fake.spills = Some(0));
    assert_eq!([0; 4].map(|_| rig.multiply(0.0))[2..], [SECOND; 2], "a wrong element");
}

#[test]
fn an_import_reaches_shapes_that_were_used() {
    let rig = Rig::new("import");
    assert_eq!([0; 2].map(|_| rig.multiply(0.0)), [DEFAULT; 2]);
    let second = rig.exported(SECOND, 900.0);
    assert_eq!(rig.store().import(&second).unwrap(), 1);
    assert_eq!([0; 3].map(|_| rig.multiply(0.0)), [SECOND; 3]);
    let stats = rig.store().stats();
    assert_eq!((stats.trials, stats.misses, stats.hits), (0, 1, 1));
    // Also one that was chosen before, if the import is faster.
    let first = rig.exported(FASTEST, 800.0);
    assert_eq!(rig.store().import(&first).unwrap(), 1);
    assert_eq!(rig.multiply(0.0), FASTEST);
    let slower = rig.exported(SECOND, 850.0);
    assert_eq!(rig.store().import(&slower).unwrap(), 0);
    assert_eq!(rig.multiply(0.0), FASTEST);

    // And one that was timed here.
    let rig = Rig::new("import-timed");
    assert_eq!([0; 3].map(|_| rig.multiply(0.0)), [DEFAULT, DEFAULT, FASTEST]);
    let second = rig.exported(SECOND, 1.0);
    assert_eq!(rig.store().import(&second).unwrap(), 1);
    assert_eq!(rig.multiply(0.0), SECOND);
}

#[test]
fn what_is_refused_in_a_capture_works_outside_it() {
    let rig = Rig::new("capture");
    assert_eq!([0; 3].map(|_| rig.multiply(0.0)), [DEFAULT, DEFAULT, FASTEST]);
    rig.device.start_capture().unwrap();
    fake(|fake| fake.refuses = true);
    assert_eq!(rig.multiply(0.0), DEFAULT);
    fake(|fake| fake.refuses = false);
    drop(rig.device.stop_capture().unwrap());
    assert_eq!(rig.multiply(0.0), FASTEST);
    let stats = rig.store().stats();
    assert_eq!((stats.outdated, stats.entries), (0, 1));

    // Outside a capture a refusal is final, and the entry goes.
    fake(|fake| fake.refuses = true);
    assert_eq!(rig.multiply(0.0), DEFAULT);
    fake(|fake| fake.refuses = false);
    assert_eq!(rig.multiply(0.0), DEFAULT);
    let stats = rig.store().stats();
    assert_eq!((stats.outdated, stats.entries), (1, 0));
}
