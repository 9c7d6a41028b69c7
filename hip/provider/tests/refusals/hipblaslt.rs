//! hipBLASLt's functions.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr::{null, null_mut};

use hip_provider::hipblaslt::{Algorithm, Call, Handle, Outcome, Problem, table};
use hipblaslt_sys::*;

use crate::{Fails, Runs, Then, asked, check, dangling};

impl crate::Status for hipblasStatus_t {
    const SUCCESS: Self = HIPBLAS_STATUS_SUCCESS;
}

const VALUE: Then<hipblasStatus_t> = Fails(HIPBLAS_STATUS_INVALID_VALUE);
const MISSING: Then<hipblasStatus_t> = Fails(HIPBLAS_STATUS_NOT_SUPPORTED);
const HANDLE: Then<hipblasStatus_t> = Fails(HIPBLAS_STATUS_NOT_INITIALIZED);

thread_local! {
    static LIVE: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
    static LAST: Cell<Option<Problem>> = const { Cell::new(None) };
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

struct Imitation;

impl Handle for Imitation {
    fn version() -> i32 {
        100_202
    }
    fn create() -> Outcome<Self> {
        asked("create");
        Ok(Self)
    }
    fn algorithms(&mut self, problem: &Problem, workspace: usize, most: usize) -> Outcome<Vec<Algorithm>> {
        asked("algorithms");
        LAST.set(Some(*problem));
        let all = [Algorithm { number: 7, workspace: 64 }, Algorithm { number: 8, workspace: 0 }];
        Ok(all.into_iter().filter(|one| one.workspace <= workspace).take(most).collect())
    }
    unsafe fn multiply(&mut self, call: &Call) -> Outcome {
        asked("multiply");
        LAST.set(Some(call.problem));
        assert!([7, 8].contains(&call.algorithm));
        Ok(())
    }
    fn is_device_memory(pointer: *const c_void, bytes: usize) -> bool {
        let at = pointer.addr();
        let holds =
            |&(start, all): &(usize, usize)| at >= start && at - start <= all && bytes <= all - (at - start);
        LIVE.with_borrow(|live| live.iter().any(holds))
    }
}

fn ok(status: hipblasStatus_t) {
    assert_eq!(status, HIPBLAS_STATUS_SUCCESS);
}

/// A layout's arguments.
#[derive(Clone, Copy)]
struct Layout(hipDataType, u64, u64, i64);

/// The arguments of a product, with its descriptors'.
#[derive(Clone)]
struct Arguments {
    no_handle: bool,
    transposes: [hipblasOperation_t; 2],
    epilogue: hipblasLtEpilogue_t,
    bias: *mut c_void,
    bias_type: hipDataType,
    /// Of A and B.
    scales: [*mut c_void; 2],
    aux: *mut c_void,
    aux_ld: i64,
    /// A, B, C, D.
    layouts: [Layout; 4],
    null_layout: Option<usize>,
    matrices: [*mut c_void; 4],
    alpha: bool,
    beta: f32,
    algo: Option<hipblasLtMatmulAlgo_t>,
    workspace: (*mut c_void, usize),
    /// Bytes of the heuristic's preference, and the number of results.
    preference: u64,
    most: i32,
}

/// A product of 5 x 7 terms of 3, with gaps between columns, in bf16: A is transposed.
fn good() -> Arguments {
    let (a, b, c, d) =
        (memory(2 * (4 * 4 + 3)), memory(2 * (6 * 3 + 3)), memory(2 * (6 * 5 + 5)), memory(2 * 35));
    Arguments {
        no_handle: false,
        transposes: [HIPBLAS_OP_T, HIPBLAS_OP_N],
        epilogue: HIPBLASLT_EPILOGUE_GELU_AUX_BIAS,
        bias: memory(2 * 5),
        bias_type: HIP_R_16BF,
        scales: [null_mut(); 2],
        aux: memory(2 * (6 * 6 + 5)),
        aux_ld: 6,
        layouts: [
            Layout(HIP_R_16BF, 3, 5, 4),
            Layout(HIP_R_16BF, 3, 7, 3),
            Layout(HIP_R_16BF, 5, 7, 5),
            Layout(HIP_R_16BF, 5, 7, 5),
        ],
        null_layout: None,
        matrices: [a, b, c, d],
        alpha: true,
        beta: 1.0,
        algo: None,
        workspace: (memory(64), 64),
        preference: 64,
        most: 4,
    }
}

/// The same product of fp8, with a scale for each operand and nothing after it.
fn good_fp8() -> Arguments {
    let mut good = good();
    good.layouts[0] = Layout(HIP_R_8F_E4M3, 3, 5, 4);
    good.layouts[1] = Layout(HIP_R_8F_E5M2, 3, 7, 3);
    (good.matrices[0], good.matrices[1]) = (memory(4 * 4 + 3), memory(6 * 3 + 3));
    let scales = [memory(4), memory(4)];
    Arguments { epilogue: HIPBLASLT_EPILOGUE_DEFAULT, scales, ..good }
}

/// Makes the descriptors, runs `call`, and destroys them.
fn with(
    arguments: &Arguments,
    call: impl FnOnce(
        &Hipblaslt,
        hipblasLtHandle_t,
        hipblasLtMatmulDesc_t,
        [hipblasLtMatrixLayout_t; 4],
        hipblasLtMatmulPreference_t,
    ) -> hipblasStatus_t,
) -> hipblasStatus_t {
    let t = table::<Imitation>();
    let (mut handle, mut desc, mut preference) = (null_mut(), null_mut(), null_mut());
    let mut layouts = [null_mut(); 4];
    unsafe {
        ok((t.hipblasLtCreate)(&mut handle));
        crate::looked();
        ok((t.hipblasLtMatmulDescCreate)(&mut desc, HIPBLAS_COMPUTE_32F, HIP_R_32F));
        for (layout, Layout(ty, rows, cols, ld)) in layouts.iter_mut().zip(arguments.layouts) {
            ok((t.hipblasLtMatrixLayoutCreate)(layout, ty, rows, cols, ld));
        }
        ok((t.hipblasLtMatmulPreferenceCreate)(&mut preference));
        let set = |attribute, value: *const c_void, bytes| {
            ok((t.hipblasLtMatmulDescSetAttribute)(desc, attribute, value, bytes));
        };
        let Arguments { transposes, epilogue, bias, bias_type, aux, aux_ld, .. } = arguments;
        set(HIPBLASLT_MATMUL_DESC_TRANSA, (&raw const transposes[0]).cast(), 4);
        set(HIPBLASLT_MATMUL_DESC_TRANSB, (&raw const transposes[1]).cast(), 4);
        set(HIPBLASLT_MATMUL_DESC_EPILOGUE, (&raw const *epilogue).cast(), 4);
        set(HIPBLASLT_MATMUL_DESC_BIAS_POINTER, (&raw const *bias).cast(), 8);
        set(HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, (&raw const *bias_type).cast(), 4);
        set(HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER, (&raw const arguments.scales[0]).cast(), 8);
        set(HIPBLASLT_MATMUL_DESC_B_SCALE_POINTER, (&raw const arguments.scales[1]).cast(), 8);
        set(HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, (&raw const *aux).cast(), 8);
        set(HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (&raw const *aux_ld).cast(), 8);
        let bytes = &raw const arguments.preference;
        let attribute = HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        ok((t.hipblasLtMatmulPreferenceSetAttribute)(preference, attribute, bytes.cast(), 8));
        let mut used = layouts;
        if let Some(at) = arguments.null_layout {
            used[at] = null_mut();
        }
        let given = if arguments.no_handle { null_mut() } else { handle };
        let status = call(&t, given, desc, used, preference);
        layouts.iter().for_each(|layout| ok((t.hipblasLtMatrixLayoutDestroy)(*layout)));
        ok((t.hipblasLtMatmulPreferenceDestroy)(preference));
        ok((t.hipblasLtMatmulDescDestroy)(desc));
        ok((t.hipblasLtDestroy)(handle));
        status
    }
}

fn matmul(arguments: &mut Arguments) -> hipblasStatus_t {
    let scalar = 1f32;
    with(arguments, |t, handle, desc, [la, lb, lc, ld], _| {
        let [a, b, c, d] = arguments.matrices;
        let alpha = if arguments.alpha { (&raw const scalar).cast() } else { null() };
        let algo = arguments.algo.as_ref().map_or(null(), |algo| &raw const *algo);
        let (workspace, bytes) = arguments.workspace;
        let beta = (&raw const arguments.beta).cast();
        unsafe {
            (t.hipblasLtMatmul)(
                handle,
                desc,
                alpha,
                a,
                la,
                b,
                lb,
                beta,
                c,
                lc,
                d,
                ld,
                algo,
                workspace,
                bytes,
                null_mut(),
            )
        }
    })
}

fn heuristic(arguments: &Arguments) -> (hipblasStatus_t, Vec<hipblasLtMatmulHeuristicResult_t>) {
    let empty = hipblasLtMatmulHeuristicResult_t {
        algo: hipblasLtMatmulAlgo_t { data: [0; 16], max_workspace_bytes: 0 },
        workspaceSize: 0,
        state: HIPBLAS_STATUS_NOT_SUPPORTED,
        wavesCount: 0.0,
        reserved: [0; 4],
    };
    let (mut results, mut count) = (vec![empty; 4], 0);
    let status = with(arguments, |t, handle, desc, [la, lb, lc, ld], preference| unsafe {
        let (results, most) = (results.as_mut_ptr(), arguments.most);
        (t.hipblasLtMatmulAlgoGetHeuristic)(
            handle, desc, la, lb, lc, ld, preference, most, results, &mut count,
        )
    });
    results.truncate(count as usize);
    (status, results)
}

/// The heuristic's first algorithm for the good product.
fn first() -> hipblasLtMatmulAlgo_t {
    heuristic(&good()).1[0].algo
}

/// The rules of descriptors, which hold for the heuristic and for products.
type Change = (&'static str, fn(&mut Arguments), Then<hipblasStatus_t>);
const DESCRIPTORS: &[Change] = &[
    ("there is a handle", |a| a.no_handle = true, HANDLE),
    ("A is not null", |a| a.null_layout = Some(0), VALUE),
    ("D is not null", |a| a.null_layout = Some(3), VALUE),
    ("A has D's rows", |a| a.layouts[0].2 = 6, VALUE),
    ("A has B's terms", |a| a.layouts[0].1 = 2, VALUE),
    ("B has D's columns", |a| a.layouts[1].2 = 8, VALUE),
    ("C has D's size", |a| a.layouts[2].1 = 4, VALUE),
    ("a transpose counts", |a| a.transposes[0] = HIPBLAS_OP_N, VALUE),
    ("columns do not overlap", |a| a.layouts[3].3 = 4, VALUE),
    ("no matrix is empty", |a| (a.layouts[2].2, a.layouts[3].2, a.layouts[1].2) = (0, 0, 0), VALUE),
    ("matrices have one type", |a| a.layouts[1].0 = HIP_R_16F, MISSING),
    ("both operands are of fp8, or none is", |a| a.layouts[0].0 = HIP_R_8F_E4M3, MISSING),
    ("only operands of fp8 have a scale", |a| a.scales[1] = memory(4), VALUE),
    ("the bias has their type", |a| a.bias_type = HIP_R_32F, MISSING),
    ("columns of what GELU reads do not overlap", |a| a.aux_ld = 4, VALUE),
    ("without it, that does not matter", |a| (a.aux_ld, a.epilogue) = (4, HIPBLASLT_EPILOGUE_BIAS), Runs),
];

#[test]
fn heuristics() {
    let rules: Vec<crate::Rule<'_, Arguments, _>> =
        DESCRIPTORS.iter().map(|(rule, change, then)| (*rule, change as &dyn Fn(&mut _), *then)).collect();
    check("hipblasLtMatmulAlgoGetHeuristic", good(), |a| heuristic(a).0, &rules);
    let none = |a: &mut Arguments| a.most = 0;
    check("hipblasLtMatmulAlgoGetHeuristic", good(), |a| heuristic(a).0, &[("wants one", &none, VALUE)]);
    // As many as there is room for, and none that needs more workspace.
    let found = heuristic(&good()).1;
    let workspaces: Vec<_> = found.iter().map(|result| result.workspaceSize).collect();
    assert_eq!(workspaces, [64, 0]);
    assert_eq!(heuristic(&Arguments { preference: 63, ..good() }).1.len(), 1);
    assert_eq!(heuristic(&Arguments { most: 1, ..good() }).1.len(), 1);
    let problem = LAST.get().unwrap();
    assert_eq!((problem.m, problem.n, problem.k, problem.transposed), (5, 7, 3, [true, false]));
}

#[test]
fn products() {
    let rules: Vec<crate::Rule<'_, Arguments, _>> =
        DESCRIPTORS.iter().map(|(rule, change, then)| (*rule, change as &dyn Fn(&mut _), *then)).collect();
    let good = Arguments { algo: Some(first()), ..good() };
    check("hipblasLtMatmul", good.clone(), matmul, &rules);
    check(
        "hipblasLtMatmul",
        good,
        matmul,
        &[
            ("there is an alpha", &|a| a.alpha = false, VALUE),
            ("A is there", &|a| a.matrices[0] = null_mut(), VALUE),
            ("A is device memory", &|a| a.matrices[0] = dangling(), VALUE),
            ("A is there to its end", &|a| a.layouts[0].3 = 5, VALUE),
            ("B is there to its end", &|a| a.layouts[1].3 = 4, VALUE),
            ("C is there to its end", &|a| a.layouts[2].3 = 7, VALUE),
            ("C is not read if beta is 0", &|a| (a.matrices[2], a.beta) = (null_mut(), 0.0), Runs),
            ("C may be D", &|a| a.matrices[2] = a.matrices[3], Runs),
            ("D is there to its end", &|a| a.layouts[3].3 = 6, VALUE),
            ("the bias is there", &|a| a.bias = null_mut(), VALUE),
            ("the bias is long enough", &|a| a.bias = memory(2 * 4), VALUE),
            ("the sums of B are as long as D is wide", &|a| a.epilogue = HIPBLASLT_EPILOGUE_BGRADB, VALUE),
            ("those of A as D is high", &|a| a.epilogue = HIPBLASLT_EPILOGUE_BGRADA, Runs),
            ("what GELU reads is there", &|a| a.aux = null_mut(), VALUE),
            ("to its end", &|a| a.aux_ld = 7, VALUE),
            ("the workspace is large enough", &|a| a.workspace.1 = 63, VALUE),
            ("the workspace is device memory", &|a| a.workspace.0 = dangling(), VALUE),
            ("an algorithm of another library", &|a| a.algo.as_mut().unwrap().data = [1; 16], VALUE),
            ("without one the library chooses", &|a| a.algo = None, Runs),
        ],
    );
}

#[test]
fn products_of_fp8() {
    let good = Arguments { algo: Some(first()), ..good_fp8() };
    check(
        "hipblasLtMatmul of fp8",
        good,
        matmul,
        &[
            ("both operands are of fp8", &|a| a.layouts[1].0 = HIP_R_16BF, MISSING),
            (
                "the result is not",
                &|a| (a.layouts[2].0, a.layouts[3].0) = (HIP_R_8F_E4M3, HIP_R_8F_E4M3),
                MISSING,
            ),
            ("C has D's type", &|a| a.layouts[2].0 = HIP_R_16F, MISSING),
            ("the types may be alike", &|a| a.layouts[1].0 = HIP_R_8F_E4M3, Runs),
            ("they may be FNUZ", &|a| a.layouts[0].0 = HIP_R_8F_E5M2_FNUZ, Runs),
            ("A is there to its end", &|a| a.layouts[0].3 = 5, VALUE),
            ("B is there to its end", &|a| a.layouts[1].3 = 4, VALUE),
            ("A's scale is device memory", &|a| a.scales[0] = dangling(), VALUE),
            ("B's scale is there to its end", &|a| a.scales[1] = memory(3), VALUE),
            ("without scales they are 1", &|a| a.scales = [null_mut(); 2], Runs),
        ],
    );
    let problem = LAST.get().unwrap();
    assert_eq!((problem.ty, problem.is_fp8()), (HIP_R_16BF, true));
}

#[test]
fn objects_and_attributes() {
    let t = table::<Imitation>();
    let value = 0u64;
    let value: *const c_void = (&raw const value).cast();
    unsafe {
        for status in [
            (t.hipblasLtCreate)(null_mut()),
            (t.hipblasLtDestroy)(null_mut()),
            (t.hipblasLtMatrixLayoutDestroy)(null_mut()),
            (t.hipblasLtMatmulDescDestroy)(null_mut()),
            (t.hipblasLtMatmulPreferenceDestroy)(null_mut()),
            (t.hipblasLtMatmulDescSetAttribute)(null_mut(), HIPBLASLT_MATMUL_DESC_TRANSA, value, 4),
        ] {
            assert_eq!(status, HIPBLAS_STATUS_INVALID_VALUE);
        }
        let (mut layout, mut desc) = (null_mut(), null_mut());
        let unknown = (t.hipblasLtMatrixLayoutCreate)(&mut layout, hipDataType(1), 1, 1, 1);
        assert_eq!((unknown, layout.is_null()), (HIPBLAS_STATUS_NOT_SUPPORTED, true));
        let create = t.hipblasLtMatmulDescCreate;
        let wide = create(&mut desc, HIPBLAS_COMPUTE_32F, HIP_R_16F);
        assert_eq!((wide, desc.is_null()), (HIPBLAS_STATUS_NOT_SUPPORTED, true));
        ok(create(&mut desc, HIPBLAS_COMPUTE_32F, HIP_R_32F));
        let set =
            |attribute, value, bytes| (t.hipblasLtMatmulDescSetAttribute)(desc, attribute, value, bytes);
        assert_eq!(set(HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, value, 4), HIPBLAS_STATUS_INVALID_VALUE);
        assert_eq!(set(HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, null(), 8), HIPBLAS_STATUS_INVALID_VALUE);
        // 0 is neither an operation nor an epilogue, and 99 no attribute.
        assert_eq!(set(HIPBLASLT_MATMUL_DESC_TRANSB, value, 4), HIPBLAS_STATUS_NOT_SUPPORTED);
        assert_eq!(set(HIPBLASLT_MATMUL_DESC_EPILOGUE, value, 4), HIPBLAS_STATUS_NOT_SUPPORTED);
        let other = hipblasLtMatmulDescAttributes_t(99);
        assert_eq!(set(other, value, 4), HIPBLAS_STATUS_NOT_SUPPORTED);
        ok((t.hipblasLtMatmulDescDestroy)(desc));
        let (mut handle, mut version) = (null_mut(), 0);
        ok((t.hipblasLtCreate)(&mut handle));
        ok((t.hipblasLtGetVersion)(handle, &mut version));
        assert_eq!(version, 100_202);
        assert_eq!((t.hipblasLtGetVersion)(handle, null_mut()), HIPBLAS_STATUS_INVALID_VALUE);
        ok((t.hipblasLtDestroy)(handle));
    }
}
