//! hipBLASLt's arguments, and trials over a hipBLASLt that writes, and takes as long, as a test says.

#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use hip_sys::{hipError_t, hipEvent_t, hipStream_t, hipSuccess};
use hipblaslt_sys::*;

use super::*;
use crate::provider::Provider;

thread_local! {
    /// The element of the result's memory that hipBLASLt writes besides the product.
    static SPILL: Cell<Option<isize>> = const { Cell::new(None) };
    /// Whether hipBLASLt computed last.
    static BY_LT: Cell<bool> = const { Cell::new(false) };
}

/// hipBLASLt takes half the time, whatever the machine does meanwhile.
unsafe extern "C" fn elapsed(milliseconds: *mut f32, _: hipEvent_t, _: hipEvent_t) -> hipError_t {
    // SAFETY: the caller passes a place for the result.
    unsafe { *milliseconds = if BY_LT.get() { 0.5 } else { 1.0 } };
    hipSuccess
}

fn real() -> &'static Hipblaslt {
    crate::provider::provider().and_then(Provider::hipblaslt).expect("the CPU provider's hipBLASLt")
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, non_snake_case, reason = "AMD's signature")]
unsafe extern "C" fn matmul(
    handle: hipblasLtHandle_t, desc: hipblasLtMatmulDesc_t, alpha: *const c_void, A: *const c_void,
    a: hipblasLtMatrixLayout_t, B: *const c_void, b: hipblasLtMatrixLayout_t, beta: *const c_void,
    C: *const c_void, c: hipblasLtMatrixLayout_t, D: *mut c_void, d: hipblasLtMatrixLayout_t,
    algo: *const hipblasLtMatmulAlgo_t, workspace: *mut c_void, bytes: usize, stream: hipStream_t,
) -> hipblasStatus_t {
    BY_LT.set(true);
    // SAFETY: the caller's arguments.
    let status = unsafe {
        (real().hipblasLtMatmul)(handle, desc, alpha, A, a, B, b, beta, C, c, D, d, algo, workspace, bytes, stream)
    };
    if let Some(at) = SPILL.get() {
        // SAFETY: no precondition. Then the device has computed, and nobody else uses the memory; the
        // test names elements that a trial's memory has.
        unsafe {
            (crate::provider::provider().expect("the CPU provider").hip().hipDeviceSynchronize)();
            D.cast::<f32>().offset(at).write(42.0);
        }
    }
    status
}

/// Rows, columns and terms.
const SIZES: [usize; 3] = [4, 8, 6];

fn device() -> Arc<Device> {
    let device = Device::new(Provider::altered(|hip| hip.hipEventElapsedTime = elapsed), 0).unwrap();
    device.make_current().unwrap();
    Arc::new(device)
}

/// hipBLASLt with these functions, which chooses nothing.
fn lt_of(device: &Device, table: &'static Hipblaslt) -> BlasLt {
    BlasLt {
        handle: Mutex::new(Handle::new(table, device.compute.handle()).unwrap()),
        device: device.info().index,
        halves: Halves::of(&device.info().arch).unwrap(),
        names: ["device".into(), "library".into()],
        chooser: None,
    }
}

/// Left operand, right operand, result and bias.
fn buffers(device: &Arc<Device>) -> [Buffer; 4] {
    let [m, n, k] = SIZES;
    [m * k, k * n, m * n, n].map(|count| {
        let values = (0..count).flat_map(|i| ((i * 37 % 29) as f32 / 7.0 - 2.0).to_le_bytes());
        device.upload(&values.collect::<Vec<u8>>()).unwrap()
    })
}

fn view(buffer: &Buffer, rows: usize, cols: usize) -> MatrixView<'_> {
    MatrixView { buffer, offset: 0, rows, cols, row_stride: cols, col_stride: 1, batch_stride: 0 }
}

/// The product with the bias.
fn product([a, b, out, bias]: &[Buffer; 4]) -> LtProduct<'_> {
    let [m, n, k] = SIZES;
    let bias = Some(VectorView { buffer: bias, offset: 0 });
    LtProduct {
        dtype: DType::F32,
        a: view(a, m, k),
        b: view(b, k, n),
        onto: None,
        out: view(out, m, n),
        epilogue: Epilogue::Forward { bias, activation: None, before: None },
        gradient: false,
    }
}

#[test]
fn an_algorithm_that_writes_outside_its_result_is_not_used() {
    let device = device();
    let lt = lt_of(&device, Box::leak(Box::new(Hipblaslt { hipblasLtMatmul: matmul, ..*real() })));
    let buffers = buffers(&device);
    let product = product(&buffers);
    let before = |buffer: &Buffer| {
        let mut bytes = vec![0; buffer.len()];
        device.read(buffer, 0, &mut bytes).unwrap();
        bytes
    };
    let [_, _, out, _] = &buffers;
    let results = before(out);
    let [m, n, _] = SIZES;
    let all = (m * n) as isize;
    for (spill, is_used) in [(None, true), (Some(0), false), (Some(-1), false), (Some(all), false)] {
        SPILL.set(spill);
        let (problem, _) = lt.resolve(&product).unwrap().unwrap();
        let mut today = || {
            BY_LT.set(false);
            Ok(())
        };
        let (choice, _) = lt.fastest(&product, &problem, &mut today).unwrap().unwrap();
        assert_eq!(choice != TODAY, is_used, "{spill:?}");
        assert_eq!(before(out), results, "a trial has written to the result");
    }
}

#[test]
fn a_vector_past_all_memory_is_refused() {
    let device = device();
    let (lt, buffers) = (lt_of(&device, real()), buffers(&device));
    // In bytes it would wrap to 0.
    let bias = Some(VectorView { buffer: &buffers[3], offset: usize::MAX / 4 + 1 });
    let epilogue = Epilogue::Forward { bias, activation: None, before: None };
    let refused = lt.resolve(&LtProduct { epilogue, ..product(&buffers) });
    assert!(matches!(refused, Err(Error::Invalid { .. })));
}

#[test]
fn what_an_epilogue_stores_overlaps_nothing() {
    let device = device();
    let (lt, buffers) = (lt_of(&device, real()), buffers(&device));
    let takes = |epilogue| lt.resolve(&LtProduct { epilogue, ..product(&buffers) }).is_ok();
    // Only the bias is no operand here.
    let sums = buffers.each_ref().map(|buffer| takes(Epilogue::ColumnSums(VectorView { buffer, offset: 0 })));
    assert_eq!(sums, [false, false, false, true]);
    let [m, n, _] = SIZES;
    let before = Some(view(&buffers[1], m, n));
    assert!(!takes(Epilogue::Forward { bias: None, activation: Some(LtActivation::GeluTanh), before }));
}

unsafe extern "C" fn no_version(_: hipblasLtHandle_t, _: *mut c_int) -> hipblasStatus_t {
    HIPBLAS_STATUS_INTERNAL_ERROR
}

/// Each product tries again to make the handle.
#[test]
fn a_handle_that_fails_keeps_no_workspace() {
    let device = device();
    let table = Box::leak(Box::new(Hipblaslt { hipblasLtGetVersion: no_version, ..*real() }));
    let before = device.pool.stats().allocated;
    let failed = BlasLt::new(&device, table);
    assert!(matches!(failed, Err(Error::HipblasLt { call: "hipblasLtGetVersion", .. })));
    assert_eq!(device.pool.stats().allocated, before);
}

/// Products of fp8 of any number of shapes are computed, and take no place from other shapes.
#[test]
fn shapes_of_fp8_never_run_out() {
    let device = device();
    let handle = Handle::new(real(), device.compute.handle()).unwrap();
    let scale = device.upload(&1f32.to_le_bytes()).unwrap();
    let scales = [scale.as_ptr().cast_const(); 2];
    let plain = |rows: i32| LtProblem {
        dtype: DType::F32,
        fp8: None,
        transposed: [false; 2],
        sizes: [16, rows, 16],
        ld: [16; 4],
        adds: false,
        epilogue: HIPBLASLT_EPILOGUE_BIAS,
    };
    handle.algorithms(&plain(1), NO_SCALES).unwrap();
    for rows in 1..=(1 << 12) + 3 {
        let problem = LtProblem::fp8(DType::BF16, [Fp8::E4M3; 2], [rows, 16, 16]).unwrap();
        handle.algorithms(&problem, scales).unwrap_or_else(|why| panic!("{rows} rows: {why}"));
    }
    handle.algorithms(&plain(2), NO_SCALES).unwrap();
    let failed = LtProblem::fp8(DType::BF16, [Fp8::E4M3; 2], [5, 16, 16]).unwrap();
    handle.refuse(&failed, "it failed".into());
    assert_eq!(handle.algorithms(&failed, scales), Err("it failed".into()));
    assert!(handle.algorithms(&plain(1), NO_SCALES).is_ok());
}
