//! hipBLASLt's C functions.

use super::problem::{Desc, Layout, Problem, bytes_of};
use super::{Algorithm, Call, Handle, Outcome};
use crate::require;
use core::ffi::{c_int, c_void};
use hip_sys::hipStream_t;
use hipblaslt_sys::*;

/// hipBLASLt's function table for a provider.
pub fn table<H: Handle>() -> Hipblaslt {
    Hipblaslt {
        hipblasLtGetVersion: version::<H>,
        hipblasLtCreate: create::<H>,
        hipblasLtDestroy: destroy::<H>,
        hipblasLtMatrixLayoutCreate: layout_create,
        hipblasLtMatrixLayoutDestroy: layout_destroy,
        hipblasLtMatmulDescCreate: desc_create,
        hipblasLtMatmulDescDestroy: desc_destroy,
        hipblasLtMatmulDescSetAttribute: desc_set,
        hipblasLtMatmulPreferenceCreate: preference_create,
        hipblasLtMatmulPreferenceDestroy: preference_destroy,
        hipblasLtMatmulPreferenceSetAttribute: preference_set,
        hipblasLtMatmulAlgoGetHeuristic: heuristic::<H>,
        hipblasLtMatmul: matmul::<H>,
    }
}

/// What a `hipblasLtMatmulPreference_t` points to.
struct Preference {
    workspace: u64,
}

/// Marks an algorithm of this project, behind its number.
const MARK: [u8; 8] = *b"burnrocm";

fn encoded(algorithm: Algorithm) -> hipblasLtMatmulAlgo_t {
    let mut data = [0; 16];
    data[..8].copy_from_slice(&algorithm.number.to_le_bytes());
    data[8..].copy_from_slice(&MARK);
    hipblasLtMatmulAlgo_t { data, max_workspace_bytes: algorithm.workspace }
}

fn decoded(algo: &hipblasLtMatmulAlgo_t) -> Outcome<Algorithm> {
    let (number, mark) = algo.data.split_at(8);
    require(mark == MARK, HIPBLAS_STATUS_INVALID_VALUE)?;
    let number = number.try_into().map_err(|_| HIPBLAS_STATUS_INTERNAL_ERROR)?;
    Ok(Algorithm { number: u64::from_le_bytes(number), workspace: algo.max_workspace_bytes })
}

fn status(body: impl FnOnce() -> Outcome) -> hipblasStatus_t {
    crate::boundary(HIPBLAS_STATUS_SUCCESS, HIPBLAS_STATUS_INTERNAL_ERROR, body)
}

/// The object behind a pointer that a `create` function returned.
///
/// # Safety
/// A pointer that is not null came from that function, is not destroyed, and one thread at a time
/// uses it.
unsafe fn object<'a, T, P>(pointer: *mut P) -> Outcome<&'a mut T> {
    // SAFETY: the caller's.
    unsafe { pointer.cast::<T>().as_mut() }.ok_or(HIPBLAS_STATUS_INVALID_VALUE)
}

/// Moves an object behind a new pointer.
///
/// # Safety
/// `place` is null or has room for a pointer.
unsafe fn put<T, P>(place: *mut *mut P, value: impl FnOnce() -> Outcome<T>) -> hipblasStatus_t {
    status(|| {
        require(!place.is_null(), HIPBLAS_STATUS_INVALID_VALUE)?;
        let value = Box::new(value()?);
        // SAFETY: the caller's place.
        unsafe { place.write(Box::into_raw(value).cast()) };
        Ok(())
    })
}

/// Destroys what [`put`] made.
///
/// # Safety
/// A pointer that is not null came from `put::<T, P>`, and nobody uses it any more.
unsafe fn drop_at<T, P>(pointer: *mut P) -> hipblasStatus_t {
    status(|| {
        require(!pointer.is_null(), HIPBLAS_STATUS_INVALID_VALUE)?;
        // SAFETY: the caller's.
        drop(unsafe { Box::from_raw(pointer.cast::<T>()) });
        Ok(())
    })
}

/// Reads an attribute's value.
///
/// # Safety
/// `from` is null or has `bytes` bytes.
unsafe fn read<T: Copy>(from: *const c_void, bytes: usize) -> Outcome<T> {
    require(!from.is_null() && bytes == size_of::<T>(), HIPBLAS_STATUS_INVALID_VALUE)?;
    // SAFETY: the caller's, of the size that was checked.
    Ok(unsafe { from.cast::<T>().read_unaligned() })
}

fn is_type(ty: hipDataType) -> Outcome {
    require(ty.name().is_some(), HIPBLAS_STATUS_NOT_SUPPORTED)
}

unsafe extern "C" fn version<H: Handle>(handle: hipblasLtHandle_t, version: *mut c_int) -> hipblasStatus_t {
    status(|| {
        require(!handle.is_null(), HIPBLAS_STATUS_NOT_INITIALIZED)?;
        require(!version.is_null(), HIPBLAS_STATUS_INVALID_VALUE)?;
        // SAFETY: the caller's place.
        unsafe { version.write(H::version()) };
        Ok(())
    })
}

unsafe extern "C" fn create<H: Handle>(handle: *mut hipblasLtHandle_t) -> hipblasStatus_t {
    // SAFETY: the caller's place.
    unsafe { put(handle, H::create) }
}

unsafe extern "C" fn destroy<H: Handle>(handle: hipblasLtHandle_t) -> hipblasStatus_t {
    // SAFETY: the caller's handle, which `create` made.
    unsafe { drop_at::<H, _>(handle) }
}

unsafe extern "C" fn layout_create(
    layout: *mut hipblasLtMatrixLayout_t,
    ty: hipDataType,
    rows: u64,
    cols: u64,
    ld: i64,
) -> hipblasStatus_t {
    let made = || is_type(ty).map(|()| Layout { ty, rows, cols, ld });
    // SAFETY: the caller's place.
    unsafe { put(layout, made) }
}

unsafe extern "C" fn layout_destroy(layout: hipblasLtMatrixLayout_t) -> hipblasStatus_t {
    // SAFETY: the caller's layout, which `layout_create` made.
    unsafe { drop_at::<Layout, _>(layout) }
}

unsafe extern "C" fn desc_create(
    desc: *mut hipblasLtMatmulDesc_t,
    compute: hipblasComputeType_t,
    scale: hipDataType,
) -> hipblasStatus_t {
    let made = || {
        let known = compute == HIPBLAS_COMPUTE_32F && scale == HIP_R_32F;
        require(known, HIPBLAS_STATUS_NOT_SUPPORTED).map(|()| Desc::new())
    };
    // SAFETY: the caller's place.
    unsafe { put(desc, made) }
}

unsafe extern "C" fn desc_destroy(desc: hipblasLtMatmulDesc_t) -> hipblasStatus_t {
    // SAFETY: the caller's descriptor, which `desc_create` made.
    unsafe { drop_at::<Desc, _>(desc) }
}

unsafe extern "C" fn desc_set(
    desc: hipblasLtMatmulDesc_t,
    attribute: hipblasLtMatmulDescAttributes_t,
    value: *const c_void,
    bytes: usize,
) -> hipblasStatus_t {
    // SAFETY: the caller's descriptor and value.
    status(|| unsafe {
        let desc: &mut Desc = object(desc)?;
        match attribute {
            HIPBLASLT_MATMUL_DESC_TRANSA | HIPBLASLT_MATMUL_DESC_TRANSB => {
                let operation: hipblasOperation_t = read(value, bytes)?;
                require(operation.name().is_some(), HIPBLAS_STATUS_NOT_SUPPORTED)?;
                desc.transposes[usize::from(attribute == HIPBLASLT_MATMUL_DESC_TRANSB)] = operation;
            }
            HIPBLASLT_MATMUL_DESC_EPILOGUE => {
                let epilogue: hipblasLtEpilogue_t = read(value, bytes)?;
                require(epilogue.name().is_some(), HIPBLAS_STATUS_NOT_SUPPORTED)?;
                desc.epilogue = epilogue;
            }
            HIPBLASLT_MATMUL_DESC_BIAS_POINTER => desc.bias = read(value, bytes)?,
            HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE => {
                let ty = read(value, bytes)?;
                is_type(ty)?;
                desc.bias_type = Some(ty);
            }
            HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER => desc.scales[0] = read(value, bytes)?,
            HIPBLASLT_MATMUL_DESC_B_SCALE_POINTER => desc.scales[1] = read(value, bytes)?,
            HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER => desc.aux = read(value, bytes)?,
            HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD => desc.aux_ld = read(value, bytes)?,
            _ => return Err(HIPBLAS_STATUS_NOT_SUPPORTED),
        }
        Ok(())
    })
}

unsafe extern "C" fn preference_create(preference: *mut hipblasLtMatmulPreference_t) -> hipblasStatus_t {
    // SAFETY: the caller's place.
    unsafe { put(preference, || Ok(Preference { workspace: 0 })) }
}

unsafe extern "C" fn preference_destroy(preference: hipblasLtMatmulPreference_t) -> hipblasStatus_t {
    // SAFETY: the caller's preference, which `preference_create` made.
    unsafe { drop_at::<Preference, _>(preference) }
}

unsafe extern "C" fn preference_set(
    preference: hipblasLtMatmulPreference_t,
    attribute: hipblasLtMatmulPreferenceAttributes_t,
    value: *const c_void,
    bytes: usize,
) -> hipblasStatus_t {
    // SAFETY: the caller's preference and value.
    status(|| unsafe {
        let preference: &mut Preference = object(preference)?;
        require(attribute == HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, HIPBLAS_STATUS_NOT_SUPPORTED)?;
        preference.workspace = read(value, bytes)?;
        Ok(())
    })
}

/// The problem of a call's descriptors.
///
/// # Safety
/// The caller's descriptors, as [`object`] wants them.
unsafe fn problem(desc: &Desc, layouts: [hipblasLtMatrixLayout_t; 4]) -> Outcome<Problem> {
    let mut found = [None; 4];
    for (place, layout) in found.iter_mut().zip(layouts) {
        // SAFETY: the caller's.
        *place = Some(*unsafe { object::<Layout, _>(layout) }?);
    }
    let [Some(a), Some(b), Some(c), Some(d)] = &found else { return Err(HIPBLAS_STATUS_INTERNAL_ERROR) };
    Problem::new(desc, [a, b, c, d])
}

#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
unsafe extern "C" fn heuristic<H: Handle>(
    handle: hipblasLtHandle_t,
    desc: hipblasLtMatmulDesc_t,
    a: hipblasLtMatrixLayout_t,
    b: hipblasLtMatrixLayout_t,
    c: hipblasLtMatrixLayout_t,
    d: hipblasLtMatrixLayout_t,
    preference: hipblasLtMatmulPreference_t,
    most: c_int,
    results: *mut hipblasLtMatmulHeuristicResult_t,
    count: *mut c_int,
) -> hipblasStatus_t {
    // SAFETY: the caller's objects; `results` has room for `most` elements, and `count` for one.
    status(|| unsafe {
        let handle: &mut H = object(handle).map_err(|_| HIPBLAS_STATUS_NOT_INITIALIZED)?;
        let (desc, preference): (&mut Desc, &mut Preference) = (object(desc)?, object(preference)?);
        require(!results.is_null() && !count.is_null() && most > 0, HIPBLAS_STATUS_INVALID_VALUE)?;
        count.write(0);
        let problem = problem(desc, [a, b, c, d])?;
        let workspace = usize::try_from(preference.workspace).unwrap_or(usize::MAX);
        let found = handle.algorithms(&problem, workspace, most as usize)?;
        require(!found.is_empty(), HIPBLAS_STATUS_NOT_SUPPORTED)?;
        for (at, algorithm) in found.iter().take(most as usize).enumerate() {
            results.add(at).write(hipblasLtMatmulHeuristicResult_t {
                algo: encoded(*algorithm),
                workspaceSize: algorithm.workspace,
                state: HIPBLAS_STATUS_SUCCESS,
                wavesCount: 1.0,
                reserved: [0; 4],
            });
        }
        count.write(found.len().min(most as usize) as c_int);
        Ok(())
    })
}

#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
unsafe extern "C" fn matmul<H: Handle>(
    handle: hipblasLtHandle_t,
    desc: hipblasLtMatmulDesc_t,
    alpha: *const c_void,
    a: *const c_void,
    a_layout: hipblasLtMatrixLayout_t,
    b: *const c_void,
    b_layout: hipblasLtMatrixLayout_t,
    beta: *const c_void,
    c: *const c_void,
    c_layout: hipblasLtMatrixLayout_t,
    d: *mut c_void,
    d_layout: hipblasLtMatrixLayout_t,
    algo: *const hipblasLtMatmulAlgo_t,
    workspace: *mut c_void,
    workspace_bytes: usize,
    stream: hipStream_t,
) -> hipblasStatus_t {
    // SAFETY: the caller's objects and scalars; its buffers are checked.
    status(|| unsafe {
        let handle: &mut H = object(handle).map_err(|_| HIPBLAS_STATUS_NOT_INITIALIZED)?;
        let desc: &mut Desc = object(desc)?;
        let problem = problem(desc, [a_layout, b_layout, c_layout, d_layout])?;
        require(!alpha.is_null() && !beta.is_null(), HIPBLAS_STATUS_INVALID_VALUE)?;
        let (alpha, beta) = (alpha.cast::<f32>().read_unaligned(), beta.cast::<f32>().read_unaligned());
        let algorithm = match algo.as_ref() {
            Some(algo) => decoded(algo)?,
            // As documented, the library chooses then.
            None => *handle
                .algorithms(&problem, workspace_bytes, 1)?
                .first()
                .ok_or(HIPBLAS_STATUS_NOT_SUPPORTED)?,
        };
        let call = Call {
            problem,
            alpha,
            a,
            b,
            scales: desc.scales,
            beta,
            c,
            d,
            bias: if problem.epilogue.has_bias() { desc.bias } else { core::ptr::null_mut() },
            aux: if problem.epilogue.has_aux() { desc.aux } else { core::ptr::null_mut() },
            algorithm: algorithm.number,
            workspace: (workspace, workspace_bytes),
            stream,
        };
        check_memory::<H>(&call, algorithm)?;
        handle.multiply(&call)
    })
}

/// Refuses buffers that are null or not inside one of the runtime's allocations.
fn check_memory<H: Handle>(call: &Call, algorithm: Algorithm) -> Outcome {
    let Call { problem, a, b, scales, beta, c, d, bias, aux, workspace, .. } = call;
    let (ty, [a_type, b_type]) = (problem.ty, problem.operands);
    let [lda, ldb, ldc, ldd] = problem.ld;
    let result = (problem.m, problem.n);
    let matrices = [
        (*a, bytes_of(a_type, problem.stored_a(), lda)),
        (*b, bytes_of(b_type, problem.stored_b(), ldb)),
        (if *beta == 0.0 { d.cast_const() } else { *c }, bytes_of(ty, result, ldc)),
        (d.cast_const(), bytes_of(ty, result, ldd)),
        (bias.cast_const(), Some(problem.bias_len() * problem.size())),
        (aux.cast_const(), bytes_of(ty, result, problem.aux_ld)),
        (workspace.0.cast_const(), Some(algorithm.workspace)),
        (scales[0], Some(size_of::<f32>())),
        (scales[1], Some(size_of::<f32>())),
    ];
    let used = [
        true,
        true,
        *beta != 0.0,
        true,
        problem.epilogue.has_bias(),
        problem.epilogue.has_aux(),
        algorithm.workspace > 0,
        !scales[0].is_null(),
        !scales[1].is_null(),
    ];
    require(algorithm.workspace <= workspace.1, HIPBLAS_STATUS_INVALID_VALUE)?;
    for ((pointer, bytes), _) in matrices.iter().zip(used).filter(|(_, used)| *used) {
        let bytes = bytes.ok_or(HIPBLAS_STATUS_INVALID_VALUE)?;
        let valid = !pointer.is_null() && H::is_device_memory(*pointer, bytes);
        require(valid, HIPBLAS_STATUS_INVALID_VALUE)?;
    }
    Ok(())
}
