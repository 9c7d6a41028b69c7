//! Reductions.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use miopen_sys::*;

use super::{
    BAD, NO_HANDLE, REFUSED, dangling, done, floats, handle, miopen, refused, scalar, tensor, unset,
};
use crate::{Rule, Runs, check, looked};

#[derive(Clone, Copy)]
struct Call {
    handle: miopenHandle_t,
    reduction: miopenReduceTensorDescriptor_t,
    indices: usize,
    scalars: [*const c_void; 2],
    a: miopenTensorDescriptor_t,
    c: miopenTensorDescriptor_t,
}

fn reduction(
    op: miopenReduceTensorOp_t,
    indices: miopenReduceTensorIndices_t,
) -> miopenReduceTensorDescriptor_t {
    let (t, mut made) = (miopen(), null_mut());
    unsafe {
        done((t.miopenCreateReduceTensorDescriptor)(&mut made));
        let (nan, bits) = (MIOPEN_PROPAGATE_NAN, MIOPEN_32BIT_INDICES);
        done((t.miopenSetReduceTensorDescriptor)(made, op, miopenFloat, nan, indices, bits));
    }
    made
}

#[test]
fn reductions() {
    let (t, mut size) = (miopen(), 0);
    let good = Call {
        handle: handle(),
        reduction: reduction(MIOPEN_REDUCE_TENSOR_MAX, MIOPEN_REDUCE_TENSOR_FLATTENED_INDICES),
        indices: 24,
        scalars: [scalar(1), scalar(0)],
        a: floats(&[2, 3, 4]),
        c: floats(&[2, 3, 1]),
    };
    let to = &raw mut size;
    let indices =
        |c: &mut Call| unsafe { (t.miopenGetReductionIndicesSize)(c.handle, c.reduction, c.a, c.c, to) };
    let workspace =
        |c: &mut Call| unsafe { (t.miopenGetReductionWorkspaceSize)(c.handle, c.reduction, c.a, c.c, to) };
    let reduce = |c: &mut Call| unsafe {
        let ([alpha, beta], at) = (c.scalars, dangling());
        (t.miopenReduceTensor)(c.handle, c.reduction, at, c.indices, at, 9, alpha, c.a, at, beta, c.c, at)
    };
    // No provider is asked for the bytes of indices.
    let indices = |c: &mut Call| {
        let status = indices(c);
        if status == miopenStatusSuccess {
            crate::asked("indices");
        }
        status
    };
    let made = |dims: &[c_int]| floats(dims);
    let (whole, half, other) = (made(&[2, 3, 4]), tensor(miopenHalf, &[2, 3, 1]), made(&[2, 1, 2]));
    let (rank, longer, none) = (made(&[2, 3]), made(&[2, 4, 1]), unset());
    let (cant, cant_a) = (refused(&[2, 3, 1]), refused(&[2, 3, 4]));
    let rules: &[Rule<'_, Call, miopenStatus_t>] = &[
        ("no handle", &|c| c.handle = null_mut(), NO_HANDLE),
        ("no reduction", &|c| c.reduction = null_mut(), BAD),
        ("no input", &|c| c.a = null_mut(), BAD),
        ("no output", &|c| c.c = null_mut(), BAD),
        ("an input without values", &|c| c.a = none, BAD),
        ("an output without values", &|c| c.c = none, BAD),
        ("an input that the provider can't serve", &|c| c.a = cant_a, REFUSED),
        ("an output that the provider can't serve", &|c| c.c = cant, REFUSED),
        ("no axis reduced", &|c| (c.c, c.indices) = (whole, 96), Runs),
        ("an output of another type", &|c| c.c = half, BAD),
        ("an output of another rank", &|c| c.c = rank, BAD),
        ("an axis that is longer", &|c| c.c = longer, BAD),
        ("an axis of another length", &|c| c.c = other, BAD),
    ];
    check("miopenGetReductionIndicesSize", good, indices, rules);
    check("miopenGetReductionWorkspaceSize", good, workspace, rules);
    check("miopenReduceTensor", good, reduce, rules);
    let picks = |op, indices| reduction(op, indices);
    let sum = picks(MIOPEN_REDUCE_TENSOR_ADD, MIOPEN_REDUCE_TENSOR_FLATTENED_INDICES);
    check(
        "miopenReduceTensor",
        good,
        reduce,
        &[
            ("room for fewer indices", &|c| c.indices = 23, BAD),
            ("a sum has no indices", &|c| (c.reduction, c.indices) = (sum, 0), Runs),
            ("no alpha", &|c| c.scalars[0] = null(), BAD),
            ("no beta", &|c| c.scalars[1] = null(), BAD),
            ("any scalars", &|c| c.scalars = [scalar(2); 2], Runs),
        ],
    );
    for (op, wanted, bytes) in [
        (MIOPEN_REDUCE_TENSOR_MAX, MIOPEN_REDUCE_TENSOR_FLATTENED_INDICES, 24),
        (MIOPEN_REDUCE_TENSOR_MIN, MIOPEN_REDUCE_TENSOR_FLATTENED_INDICES, 24),
        (MIOPEN_REDUCE_TENSOR_AMAX, MIOPEN_REDUCE_TENSOR_FLATTENED_INDICES, 24),
        (MIOPEN_REDUCE_TENSOR_MAX, MIOPEN_REDUCE_TENSOR_NO_INDICES, 0),
        (MIOPEN_REDUCE_TENSOR_ADD, MIOPEN_REDUCE_TENSOR_FLATTENED_INDICES, 0),
    ] {
        done(indices(&mut Call { reduction: picks(op, wanted), ..good }));
        assert_eq!(unsafe { to.read() }, bytes, "{op:?}, {wanted:?}");
    }
    for function in [t.miopenGetReductionIndicesSize, t.miopenGetReductionWorkspaceSize] {
        let status = unsafe { function(good.handle, good.reduction, good.a, good.c, null_mut()) };
        assert_eq!(status, miopenStatusBadParm);
    }
    looked();
}
