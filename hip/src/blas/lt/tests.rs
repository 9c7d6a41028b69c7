//! Trials over a hipBLASLt that writes, and takes as long, as a test says.

#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::ffi::c_void;

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

#[test]
fn an_algorithm_that_writes_outside_its_result_is_not_used() {
    let provider = Provider::altered(|hip| hip.hipEventElapsedTime = elapsed);
    let device = std::sync::Arc::new(Device::new(provider, 0).unwrap());
    device.make_current().unwrap();
    let table = Box::leak(Box::new(Hipblaslt { hipblasLtMatmul: matmul, ..*real() }));
    let lt = BlasLt {
        handle: Mutex::new(Handle::new(table, device.compute.handle()).unwrap()),
        device: device.info().index,
        halves: Halves::of(&device.info().arch).unwrap(),
        names: ["device".into(), "library".into()],
        chooser: None,
    };
    let [m, n, k] = SIZES;
    let upload = |count: usize| {
        let values = (0..count).flat_map(|i| ((i * 37 % 29) as f32 / 7.0 - 2.0).to_le_bytes());
        device.upload(&values.collect::<Vec<u8>>()).unwrap()
    };
    let [a, b, out, bias] = [m * k, k * n, m * n, n].map(upload);
    let view = |buffer, rows, cols| MatrixView {
        buffer,
        offset: 0,
        rows,
        cols,
        row_stride: cols,
        col_stride: 1,
        batch_stride: 0,
    };
    let product = LtProduct {
        dtype: DType::F32,
        a: view(&a, m, k),
        b: view(&b, k, n),
        onto: None,
        out: view(&out, m, n),
        epilogue: Epilogue::Forward {
            bias: Some(VectorView { buffer: &bias, offset: 0 }),
            activation: None,
            before: None,
        },
        gradient: false,
    };
    let before = |buffer: &Buffer| {
        let mut bytes = vec![0; buffer.len()];
        device.read(buffer, 0, &mut bytes).unwrap();
        bytes
    };
    let results = before(&out);
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
        assert_eq!(before(&out), results, "a trial has written to the result");
    }
}

/// Products of fp8 of any number of shapes are computed, and take no place from other shapes.
#[test]
fn shapes_of_fp8_never_run_out() {
    let provider = crate::provider::provider().unwrap();
    let device = std::sync::Arc::new(Device::new(provider, 0).unwrap());
    device.make_current().unwrap();
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
