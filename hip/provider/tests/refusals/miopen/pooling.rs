//! Pooling.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use miopen_sys::*;

use super::{
    BAD, LAST, MISSING, NO_HANDLE, REFUSED, dangling, done, floats, handle, miopen, refused, scalar, strided,
    tensor, unset, wide,
};
use crate::{Rule, Runs, check, looked};

#[derive(Clone, Copy)]
struct Call {
    handle: miopenHandle_t,
    pool: miopenPoolingDescriptor_t,
    scalars: [*const c_void; 2],
    /// Of x, y, dy and dx.
    tensors: [miopenTensorDescriptor_t; 4],
    keeps: bool,
    workspace: usize,
}

fn pool(
    mode: miopenPoolingMode_t,
    window: [c_int; 2],
    index: miopenIndexType_t,
    counts: miopenPoolingWorkspaceIndexMode_t,
) -> miopenPoolingDescriptor_t {
    let (t, mut made, pad, stride) = (miopen(), null_mut(), [1, 0], [2, 1]);
    unsafe {
        done((t.miopenCreatePoolingDescriptor)(&mut made));
        let (window, pad, stride) = (window.as_ptr(), pad.as_ptr(), stride.as_ptr());
        done((t.miopenSetNdPoolingDescriptor)(made, mode, 2, window, pad, stride));
        done((t.miopenSetPoolingIndexType)(made, index));
        done((t.miopenSetPoolingWorkSpaceIndexMode)(made, counts));
    }
    made
}

/// Maxima of windows of 3x4, padded by 1 and 0, in steps of 2 and 1: 7x9 to 4x6.
fn good() -> Call {
    let (x, y) = (floats(&[2, 3, 7, 9]), floats(&[2, 3, 4, 6]));
    let pool = pool(miopenPoolingMax, [3, 4], miopenIndexUint8, miopenPoolingWorkspaceIndexImage);
    let (handle, scalars) = (handle(), [scalar(1), scalar(0)]);
    Call { handle, pool, scalars, tensors: [x, y, y, x], keeps: true, workspace: 144 }
}

#[test]
fn poolings() {
    let t = miopen();
    let forward = |c: &mut Call| unsafe {
        let ([x, y, ..], [alpha, beta], at) = (c.tensors, c.scalars, dangling());
        (t.miopenPoolingForward)(
            c.handle,
            c.pool,
            alpha,
            x,
            at,
            beta,
            y,
            at,
            c.keeps,
            dangling(),
            c.workspace,
        )
    };
    let backward = |c: &mut Call| unsafe {
        let ([x, y, dy, dx], [alpha, beta], at) = (c.tensors, c.scalars, dangling());
        (t.miopenPoolingBackward)(c.handle, c.pool, alpha, y, at, dy, at, x, at, beta, dx, at, dangling())
    };
    let (image, mask) = (miopenPoolingWorkspaceIndexImage, miopenPoolingWorkspaceIndexMask);
    let of = |[x, y]: [miopenTensorDescriptor_t; 2]| [x, y, y, x];
    let both = |x: &[c_int], y: &[c_int]| of([floats(x), floats(y)]);
    let typed = |data| of([tensor(data, &[2, 3, 7, 9]), tensor(data, &[2, 3, 4, 6])]);
    let (halves, brains, doubles) = (typed(miopenHalf), typed(miopenBFloat16), typed(miopenDouble));
    let (volumes, small) = (both(&[2, 3, 7, 9, 1], &[2, 3, 4, 6, 1]), both(&[2, 3, 7, 3], &[2, 3, 4, 1]));
    // 254 and 255 places: 8 bits suffice for the first.
    let (few, many) = (both(&[1, 1, 2, 127], &[1, 1, 1, 124]), both(&[1, 1, 15, 17], &[1, 1, 8, 14]));
    let longer = pool(miopenPoolingMax, [3, 4], miopenIndexUint16, image);
    let long = pool(miopenPoolingMax, [3, 4], miopenIndexUint64, image);
    let window = pool(miopenPoolingMax, [3, 4], miopenIndexUint8, mask);
    let [largest, larger] =
        [[2, 127], [15, 17]].map(|window| pool(miopenPoolingMax, window, miopenIndexUint8, mask));
    let (flat, high) = (both(&[1, 1, 1, 127], &[1, 1, 1, 1]), both(&[1, 1, 13, 17], &[1, 1, 1, 1]));
    let mean = pool(miopenPoolingAverage, [3, 4], miopenIndexUint8, image);
    let rules: &[Rule<'_, Call, miopenStatus_t>] = &[
        ("no handle", &|c| c.handle = null_mut(), NO_HANDLE),
        ("no pooling", &|c| c.pool = null_mut(), BAD),
        ("no alpha", &|c| c.scalars[0] = null(), BAD),
        ("no beta", &|c| c.scalars[1] = null(), BAD),
        ("alpha of 2", &|c| c.scalars[0] = scalar(2), MISSING),
        ("beta of 1", &|c| c.scalars[1] = scalar(1), MISSING),
        ("f16", &|c| c.tensors = halves, Runs),
        ("bf16", &|c| c.tensors = brains, Runs),
        ("f64", &|c| (c.tensors, c.scalars) = (doubles, [wide(1), wide(0)]), MISSING),
        ("another rank", &|c| c.tensors = volumes, BAD),
        ("an input shorter than the window", &|c| c.tensors = small, BAD),
        ("as many places as an index counts", &|c| c.tensors = few, Runs),
        ("more places than an index counts", &|c| c.tensors = many, BAD),
        ("wider indices", &|c| (c.tensors, c.pool, c.workspace) = (many, longer, 500), Runs),
        ("the widest indices", &|c| (c.tensors, c.pool, c.workspace) = (many, long, 5000), Runs),
        ("indices in the window", &|c| (c.tensors, c.pool) = (many, window), Runs),
        ("a window with as many places", &|c| (c.tensors, c.pool) = (flat, largest), Runs),
        ("a window with more places", &|c| (c.tensors, c.pool) = (high, larger), BAD),
        ("averages have no indices", &|c| (c.tensors, c.pool, c.workspace) = (many, mean, 0), Runs),
    ];
    check("miopenPoolingForward", good(), forward, rules);
    check("miopenPoolingBackward", good(), backward, rules);
    check(
        "miopenPoolingForward",
        good(),
        forward,
        &[
            ("room for one index less", &|c| c.workspace = 143, BAD),
            ("without indices", &|c| (c.keeps, c.workspace) = (false, 0), Runs),
            ("without indices any number of places", &|c| (c.keeps, c.tensors) = (false, many), Runs),
        ],
    );
    // With one row more the output has the same shape.
    let taller = floats(&[2, 3, 8, 9]);
    check(
        "miopenPoolingBackward",
        good(),
        backward,
        &[("a gradient of another shape", &|c| c.tensors[3] = taller, BAD)],
    );
    for (function, places, call) in [
        ("miopenPoolingForward", &[0, 1][..], &forward as &dyn Fn(&mut Call) -> miopenStatus_t),
        ("miopenPoolingBackward", &[0, 1, 2, 3], &backward),
    ] {
        for &place in places {
            let dims: [c_int; 4] = if matches!(place, 0 | 3) { [2, 3, 7, 9] } else { [2, 3, 4, 6] };
            let with = |axis: usize, length| {
                let mut dims = dims;
                dims[axis] = length;
                floats(&dims)
            };
            let to = |made: miopenTensorDescriptor_t| move |c: &mut Call| c.tensors[place] = made;
            let [_, b, c, d] = dims;
            let gaps = [b * c * (d + 1), c * (d + 1), d + 1, 1];
            check(
                function,
                good(),
                call,
                &[
                    ("no tensor", &to(null_mut()), BAD),
                    ("a tensor without values", &to(unset()), BAD),
                    ("a tensor that the provider can't serve", &to(refused(&dims)), REFUSED),
                    ("another rank", &to(floats(&[dims[0], b, c, d, 1])), BAD),
                    ("another type", &to(tensor(miopenHalf, &dims)), BAD),
                    ("other samples", &to(with(0, 3)), BAD),
                    ("other channels", &to(with(1, 2)), BAD),
                    ("another height", &to(with(2, dims[2] + 2)), BAD),
                    ("another width", &to(with(3, dims[3] + 1)), BAD),
                    ("gaps", &to(strided(miopenFloat, &dims, Some(&gaps))), MISSING),
                ],
            );
        }
    }
    // Indices are stored for a maximum whose gradient is wanted.
    for (mode, keeps, expected) in [
        (miopenPoolingMax, true, "indices: true"),
        (miopenPoolingMax, false, "indices: false"),
        (miopenPoolingAverage, true, "indices: false"),
    ] {
        let pool = pool(mode, [3, 4], miopenIndexUint8, image);
        done(forward(&mut Call { pool, keeps, ..good() }));
        assert_eq!(LAST.take(), expected);
    }
    looked();
}

#[test]
fn workspaces() {
    let (t, mut bytes) = (miopen(), 0);
    let (pool, y) = (good().pool, good().tensors[1]);
    let size = |pool, y, to| unsafe { (t.miopenPoolingGetWorkSpaceSizeV2)(pool, y, to) };
    for (what, pool, y, to, expected) in [
        ("the good call", pool, y, &raw mut bytes, miopenStatusSuccess),
        ("no pooling", null_mut(), y, &raw mut bytes, miopenStatusBadParm),
        ("no tensor", pool, null_mut(), &raw mut bytes, miopenStatusBadParm),
        ("a tensor without values", pool, unset(), &raw mut bytes, miopenStatusBadParm),
        (
            "a tensor that the provider can't serve",
            pool,
            refused(&[2, 3]),
            &raw mut bytes,
            miopenStatusInvalidValue,
        ),
        ("null", pool, y, null_mut(), miopenStatusBadParm),
    ] {
        assert_eq!(size(pool, y, to), expected, "{what}");
    }
    assert_eq!(bytes, 144);
}
