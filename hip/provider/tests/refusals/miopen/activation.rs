//! Activations and softmax.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use miopen_sys::*;

use super::{
    BAD, MISSING, NO_HANDLE, REFUSED, UNKNOWN, dangling, done, floats, handle, miopen, refused, scalar,
    tensor, unset, wide,
};
use crate::{Rule, Runs, check};

#[derive(Clone, Copy)]
struct Call {
    handle: miopenHandle_t,
    activation: miopenActivationDescriptor_t,
    algorithm: miopenSoftmaxAlgorithm_t,
    mode: miopenSoftmaxMode_t,
    scalars: [*const c_void; 2],
    /// Of x, y, dy and dx.
    tensors: [miopenTensorDescriptor_t; 4],
}

fn good() -> Call {
    let (t, mut activation) = (miopen(), null_mut());
    done(unsafe { (t.miopenCreateActivationDescriptor)(&mut activation) });
    Call {
        handle: handle(),
        activation,
        algorithm: MIOPEN_SOFTMAX_LOG,
        mode: MIOPEN_SOFTMAX_MODE_CHANNEL,
        scalars: [scalar(1), scalar(0)],
        tensors: [floats(&[2, 3, 4]); 4],
    }
}

/// The rules for tensor `index`, which must be like the others.
#[track_caller]
fn check_alike(function: &str, call: impl Fn(&mut Call) -> miopenStatus_t, indices: &[usize]) {
    for &index in indices {
        let to = |made: miopenTensorDescriptor_t| move |c: &mut Call| c.tensors[index] = made;
        check(
            function,
            good(),
            &call,
            &[
                ("no tensor", &to(null_mut()), BAD),
                ("a tensor without values", &to(unset()), BAD),
                ("a tensor that the provider can't serve", &to(refused(&[2, 3, 4])), REFUSED),
                ("another length", &to(floats(&[2, 3, 5])), BAD),
                ("another rank", &to(floats(&[2, 3, 4, 1])), BAD),
                ("another type", &to(tensor(miopenHalf, &[2, 3, 4])), BAD),
            ],
        );
    }
}

#[test]
fn activations() {
    let t = miopen();
    let forward = |c: &mut Call| unsafe {
        let [x, y, ..] = c.tensors;
        let (alpha, beta) = (c.scalars[0], c.scalars[1]);
        (t.miopenActivationForward)(c.handle, c.activation, alpha, x, dangling(), beta, y, dangling())
    };
    let backward = |c: &mut Call| unsafe {
        let [x, y, dy, dx] = c.tensors;
        let (alpha, beta, at) = (c.scalars[0], c.scalars[1], dangling());
        (t.miopenActivationBackward)(c.handle, c.activation, alpha, y, at, dy, at, x, at, beta, dx, at)
    };
    let doubles = [tensor(miopenDouble, &[2, 3, 4]); 4];
    let rules: &[Rule<'_, Call, miopenStatus_t>] = &[
        ("no handle", &|c| c.handle = null_mut(), NO_HANDLE),
        ("no activation", &|c| c.activation = null_mut(), BAD),
        ("no alpha", &|c| c.scalars[0] = null(), BAD),
        ("no beta", &|c| c.scalars[1] = null(), BAD),
        ("alpha of 2", &|c| c.scalars[0] = scalar(2), MISSING),
        ("beta of 1", &|c| c.scalars[1] = scalar(1), MISSING),
        ("scalars of f64", &|c| (c.tensors, c.scalars) = (doubles, [wide(1), wide(0)]), Runs),
        ("alpha of 2 in f64", &|c| (c.tensors, c.scalars) = (doubles, [wide(2), wide(0)]), MISSING),
    ];
    check("miopenActivationForward", good(), forward, rules);
    check("miopenActivationBackward", good(), backward, rules);
    check_alike("miopenActivationForward", forward, &[0, 1]);
    check_alike("miopenActivationBackward", backward, &[0, 1, 2, 3]);
}

#[test]
fn softmax() {
    let t = miopen();
    let forward = |c: &mut Call| unsafe {
        let [x, y, ..] = c.tensors;
        let (alpha, beta, at) = (c.scalars[0], c.scalars[1], dangling());
        (t.miopenSoftmaxForward_V2)(c.handle, alpha, x, at, beta, y, at, c.algorithm, c.mode)
    };
    let backward = |c: &mut Call| unsafe {
        let [_, y, dy, dx] = c.tensors;
        let (alpha, beta, at) = (c.scalars[0], c.scalars[1], dangling());
        (t.miopenSoftmaxBackward_V2)(c.handle, alpha, y, at, dy, at, beta, dx, at, c.algorithm, c.mode)
    };
    let rules: &[Rule<'_, Call, miopenStatus_t>] = &[
        ("no handle", &|c| c.handle = null_mut(), NO_HANDLE),
        ("no alpha", &|c| c.scalars[0] = null(), BAD),
        ("no beta", &|c| c.scalars[1] = null(), BAD),
        ("any alpha and beta", &|c| c.scalars = [scalar(2); 2], Runs),
        ("an unknown algorithm", &|c| c.algorithm = miopenSoftmaxAlgorithm_t(UNKNOWN), BAD),
        ("an unknown mode", &|c| c.mode = miopenSoftmaxMode_t(UNKNOWN), BAD),
    ];
    check("miopenSoftmaxForward_V2", good(), forward, rules);
    check("miopenSoftmaxBackward_V2", good(), backward, rules);
    check_alike("miopenSoftmaxForward_V2", forward, &[0, 1]);
    check_alike("miopenSoftmaxBackward_V2", backward, &[1, 2, 3]);
}
