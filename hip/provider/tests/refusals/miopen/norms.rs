//! Batch norm and the norms of rows.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use miopen_sys::*;

use super::{
    BAD, LAST, MISSING, NO_HANDLE, REFUSED, UNKNOWN, dangling, done, floats, handle, miopen, refused, scalar,
    strided, tensor, unset, wide,
};
use crate::{Rule, Runs, check, looked};

#[derive(Clone, Copy)]
struct Batch {
    handle: miopenHandle_t,
    mode: miopenBatchNormMode_t,
    /// Alpha and beta of the data, alpha and beta of the parameters.
    scalars: [*const c_void; 4],
    /// Of x, y (or dy) and dx.
    tensors: [miopenTensorDescriptor_t; 3],
    parameters: miopenTensorDescriptor_t,
    saved: [*const c_void; 2],
}

#[test]
fn batch_norms() {
    let t = miopen();
    let good = Batch {
        handle: handle(),
        mode: miopenBNSpatial,
        scalars: [scalar(1), scalar(0), scalar(1), scalar(0)],
        tensors: [floats(&[2, 3, 4, 5]); 3],
        parameters: floats(&[1, 3, 1, 1]),
        saved: [dangling(), dangling()],
    };
    let at = dangling::<c_void>();
    let training = |c: &mut Batch| unsafe {
        let ([x, y, _], [alpha, beta, ..]) = (c.tensors, c.scalars.map(<*const c_void>::cast_mut));
        (t.miopenBatchNormalizationForwardTraining)(
            c.handle,
            c.mode,
            alpha,
            beta,
            x,
            at,
            y,
            at,
            c.parameters,
            at,
            at,
            0.1,
            at,
            at,
            1e-5,
            at,
            at,
        )
    };
    let inference = |c: &mut Batch| unsafe {
        let ([x, y, _], [alpha, beta, ..]) = (c.tensors, c.scalars.map(<*const c_void>::cast_mut));
        (t.miopenBatchNormalizationForwardInference)(
            c.handle,
            c.mode,
            alpha,
            beta,
            x,
            at,
            y,
            at,
            c.parameters,
            at,
            at,
            at,
            at,
            1e-5,
        )
    };
    let backward = |c: &mut Batch| unsafe {
        let ([x, dy, dx], [alpha, beta, alpha_of, beta_of], [mean, inverse]) =
            (c.tensors, c.scalars, c.saved);
        (t.miopenBatchNormalizationBackward)(
            c.handle,
            c.mode,
            alpha,
            beta,
            alpha_of,
            beta_of,
            x,
            at,
            dy,
            at,
            dx,
            at,
            c.parameters,
            at,
            at,
            at,
            1e-5,
            mean,
            inverse,
        )
    };
    let all = |made: miopenTensorDescriptor_t| [made; 3];
    let (three, five, six) =
        (all(floats(&[2, 3, 4])), all(floats(&[2, 3, 4, 5, 1])), all(floats(&[2, 3, 4, 5, 1, 1])));
    let doubles = all(tensor(miopenDouble, &[2, 3, 4, 5]));
    let (per_place, five_parameters) = (floats(&[1, 3, 4, 5]), floats(&[1, 3, 1, 1, 1]));
    let (half, none, cant) = (tensor(miopenHalf, &[1, 3, 1, 1]), unset(), refused(&[1, 3, 1, 1]));
    let (channels, samples) = (floats(&[1, 4, 1, 1]), floats(&[2, 3, 1, 1]));
    let (three_parameters, six_parameters) = (floats(&[1, 3, 1]), floats(&[1, 3, 1, 1, 1, 1]));
    let rules: &[Rule<'_, Batch, miopenStatus_t>] = &[
        ("no handle", &|c| c.handle = null_mut(), NO_HANDLE),
        ("an unknown mode", &|c| c.mode = miopenBatchNormMode_t(UNKNOWN), BAD),
        (
            "an unknown mode, parameters of each place",
            &|c| (c.mode, c.parameters) = (miopenBatchNormMode_t(UNKNOWN), per_place),
            BAD,
        ),
        ("no scalars", &|c| c.scalars = [null(); 4], Runs),
        ("alpha of 2", &|c| c.scalars[0] = scalar(2), BAD),
        ("beta of 1", &|c| c.scalars[1] = scalar(1), BAD),
        (
            "scalars of f64",
            &|c| (c.tensors, c.scalars) = (doubles, [wide(1), wide(0), wide(1), wide(0)]),
            Runs,
        ),
        (
            "alpha of 2 in f64",
            &|c| (c.tensors, c.scalars) = (doubles, [wide(2), wide(0), wide(1), wide(0)]),
            BAD,
        ),
        ("one axis", &|c| (c.tensors, c.parameters) = (three, three_parameters), BAD),
        ("three axes", &|c| (c.tensors, c.parameters) = (five, five_parameters), Runs),
        ("four axes", &|c| (c.tensors, c.parameters) = (six, six_parameters), BAD),
        ("no parameters", &|c| c.parameters = null_mut(), BAD),
        ("parameters without values", &|c| c.parameters = none, BAD),
        ("parameters that the provider can't serve", &|c| c.parameters = cant, REFUSED),
        ("parameters of f16", &|c| c.parameters = half, BAD),
        ("parameters of other channels", &|c| c.parameters = channels, BAD),
        ("parameters of each sample", &|c| c.parameters = samples, BAD),
        ("parameters of each place", &|c| c.parameters = per_place, BAD),
        ("statistics of each place", &|c| (c.mode, c.parameters) = (miopenBNPerActivation, per_place), Runs),
        ("statistics of each place, parameters of channels", &|c| c.mode = miopenBNPerActivation, BAD),
    ];
    type Function<'a> = &'a dyn Fn(&mut Batch) -> miopenStatus_t;
    let directions: [(&str, Function<'_>, usize); 3] = [
        ("miopenBatchNormalizationForwardTraining", &training, 2),
        ("miopenBatchNormalizationForwardInference", &inference, 2),
        ("miopenBatchNormalizationBackward", &backward, 3),
    ];
    for (function, call, tensors) in directions {
        check(function, good, call, rules);
        for place in 0..tensors {
            let to = |made: miopenTensorDescriptor_t| move |c: &mut Batch| c.tensors[place] = made;
            check(
                function,
                good,
                call,
                &[
                    ("no tensor", &to(null_mut()), BAD),
                    ("a tensor without values", &to(unset()), BAD),
                    ("a tensor that the provider can't serve", &to(refused(&[2, 3, 4, 5])), REFUSED),
                    ("another shape", &to(floats(&[3, 3, 4, 5])), BAD),
                    ("another type", &to(tensor(miopenHalf, &[2, 3, 4, 5])), BAD),
                ],
            );
        }
    }
    check(
        "miopenBatchNormalizationBackward",
        good,
        backward,
        &[
            ("alpha of 2 for the parameters", &|c| c.scalars[2] = scalar(2), BAD),
            ("beta of 1 for the parameters", &|c| c.scalars[3] = scalar(1), BAD),
            ("no saved statistics", &|c| c.saved = [null(); 2], Runs),
            ("no saved mean", &|c| c.saved[0] = null(), BAD),
            ("no saved inverse", &|c| c.saved[1] = null(), BAD),
        ],
    );
}

#[derive(Clone, Copy)]
struct Row {
    handle: miopenHandle_t,
    mode: miopenNormMode_t,
    axis: i32,
    groups: u64,
    x: miopenTensorDescriptor_t,
    y: miopenTensorDescriptor_t,
    dx: miopenTensorDescriptor_t,
    mean: miopenTensorDescriptor_t,
    rstd: miopenTensorDescriptor_t,
    weight: miopenTensorDescriptor_t,
    bias: miopenTensorDescriptor_t,
    at_rstd: *mut c_void,
    /// Where the gradients with respect to weight and bias go.
    to: [*mut c_void; 2],
}

/// Replaces a tensor of a call.
type Put = fn(&mut Row, miopenTensorDescriptor_t);
const Y: Put = |c, made| c.y = made;
const DX: Put = |c, made| c.dx = made;
const MEAN: Put = |c, made| c.mean = made;
const RSTD: Put = |c, made| c.rstd = made;
const WEIGHT: Put = |c, made| c.weight = made;
const BIAS: Put = |c, made| c.bias = made;

type Tensors<'a> = &'a [(&'a str, Put)];

/// Rules for tensors that need `dims.iter().product()` values, in any shape unless `shaped`.
#[track_caller]
fn check_tensors(
    function: &str,
    good: Row,
    call: &dyn Fn(&mut Row) -> miopenStatus_t,
    tensors: Tensors<'_>,
    dims: &[c_int],
    shaped: bool,
) {
    let count: c_int = dims.iter().product();
    let gaps: Vec<c_int> = dims.iter().map(|_| 2 * count).collect();
    for (name, put) in tensors {
        let what = format!("{function}: {name}");
        let to = |made: miopenTensorDescriptor_t| move |c: &mut Row| put(c, made);
        check(
            &what,
            good,
            call,
            &[
                ("no tensor", &to(null_mut()), BAD),
                ("a tensor without values", &to(unset()), BAD),
                ("a tensor that the provider can't serve", &to(refused(dims)), REFUSED),
                ("one value more", &to(floats(&[count + 1])), BAD),
                ("another shape", &to(floats(&[count, 1, 1])), if shaped { BAD } else { Runs }),
                ("another type", &to(tensor(miopenHalf, dims)), BAD),
                ("gaps", &to(strided(miopenFloat, dims, Some(&gaps))), MISSING),
            ],
        );
    }
}

/// 6 rows of 20 values, or 4 groups of 30 with 6 channels.
fn good() -> Row {
    let x = floats(&[2, 3, 4, 5]);
    Row {
        handle: handle(),
        mode: MIOPEN_WEIGHT_BIAS,
        axis: 2,
        groups: 3,
        x,
        y: x,
        dx: x,
        mean: floats(&[6]),
        rstd: floats(&[2, 3]),
        weight: floats(&[20]),
        bias: floats(&[4, 5]),
        at_rstd: dangling(),
        to: [dangling(); 2],
    }
}

/// The rules of `x` and the mode.
#[track_caller]
fn check_input(function: &str, good: Row, call: &dyn Fn(&mut Row) -> miopenStatus_t) {
    let gaps = strided(miopenFloat, &[2, 3, 4, 5], Some(&[99, 25, 6, 1]));
    let (none, cant, half) = (unset(), refused(&[2, 3, 4, 5]), tensor(miopenHalf, &[2, 3, 4, 5]));
    check(
        function,
        good,
        call,
        &[
            ("no handle", &|c| c.handle = null_mut(), NO_HANDLE),
            (
                "an unknown mode",
                &|c| c.mode = miopenNormMode_t(UNKNOWN),
                if good.mode == MIOPEN_WEIGHT_BIAS_T5 { MISSING } else { BAD },
            ),
            ("no input", &|c| c.x = null_mut(), BAD),
            ("an input without values", &|c| c.x = none, BAD),
            ("an input that the provider can't serve", &|c| c.x = cant, REFUSED),
            ("an input with gaps", &|c| c.x = gaps, MISSING),
            ("an input of another type", &|c| c.x = half, BAD),
        ],
    );
}

#[test]
fn layer_and_group_norms() {
    let t = miopen();
    let (layer, group) = (t.miopenLayerNormForward.unwrap(), t.miopenGroupNormForward.unwrap());
    let at = dangling::<c_void>();
    let layer = |c: &mut Row| unsafe {
        layer(
            c.handle, c.mode, c.x, at, c.weight, at, c.bias, at, 1e-5, c.axis, c.y, at, c.mean, at, c.rstd,
            at,
        )
    };
    let group = |c: &mut Row| unsafe {
        group(
            c.handle, c.mode, c.x, at, c.weight, at, c.bias, at, c.groups, 1e-5, c.y, at, c.mean, at, c.rstd,
            at,
        )
    };
    let of_groups = Row { weight: floats(&[3]), bias: floats(&[3]), ..good() };
    for (function, good, call) in [
        ("miopenLayerNormForward", good(), &layer as &dyn Fn(&mut Row) -> miopenStatus_t),
        ("miopenGroupNormForward", of_groups, &group),
    ] {
        check_input(function, good, call);
        check_tensors(function, good, call, &[("y", Y)], &[2, 3, 4, 5], true);
        check_tensors(function, good, call, &[("mean", MEAN), ("rstd", RSTD)], &[6], false);
        let count = if function == "miopenGroupNormForward" { 3 } else { 20 };
        check_tensors(function, good, call, &[("weight", WEIGHT), ("bias", BIAS)], &[count], false);
        let t5 = if function == "miopenGroupNormForward" { "a group" } else { "a layer" };
        check(
            function,
            good,
            call,
            &[
                (t5, &|c| c.mode = MIOPEN_WEIGHT_BIAS_T5, BAD),
                (
                    "without weight and bias",
                    &|c| {
                        (c.mode, c.weight, c.bias) = (MIOPEN_ELEMENTWISE_AFFINE, null_mut(), null_mut());
                    },
                    Runs,
                ),
            ],
        );
    }
    let (whole, one) = (floats(&[2, 3, 4, 5]), floats(&[1]));
    check(
        "miopenLayerNormForward",
        good(),
        layer,
        &[
            ("an axis below 0", &|c| c.axis = -1, BAD),
            (
                "an axis past the last, with parameters that would fit",
                &|c| {
                    (c.axis, c.mean, c.rstd, c.weight, c.bias) = (4, whole, whole, one, one);
                },
                BAD,
            ),
            ("an axis past the last", &|c| c.axis = 4, BAD),
            (
                "the first axis",
                &|c| {
                    (c.axis, c.mean, c.rstd, c.weight, c.bias) = (0, one, one, whole, whole);
                },
                Runs,
            ),
        ],
    );
    let (flat, deep, thin) = (floats(&[6]), floats(&[2, 3, 4, 5, 1, 1]), floats(&[2, 3]));
    let (two, four) = (floats(&[2]), floats(&[4]));
    check(
        "miopenGroupNormForward",
        of_groups,
        group,
        &[
            ("no groups", &|c| c.groups = 0, BAD),
            (
                "groups that share channels",
                &|c| {
                    (c.groups, c.mean, c.rstd, c.weight, c.bias) = (2, four, four, two, two);
                },
                BAD,
            ),
            ("more groups than channels", &|c| c.groups = 6, BAD),
            ("one group", &|c| (c.groups, c.mean, c.rstd) = (1, two, two), Runs),
            ("one axis", &|c| (c.x, c.y) = (flat, flat), BAD),
            ("two axes", &|c| (c.x, c.y) = (thin, thin), Runs),
            ("six axes", &|c| (c.x, c.y) = (deep, deep), BAD),
        ],
    );
    done(layer(&mut good()));
    assert_eq!(LAST.take(), "6 rows of 20, 1 groups, a weight for 1, parameters: true");
    done(group(&mut { of_groups }));
    assert_eq!(LAST.take(), "6 rows of 20, 3 groups, a weight for 20, parameters: true");
    done(group(&mut Row { mode: MIOPEN_ELEMENTWISE_AFFINE, ..of_groups }));
    assert_eq!(LAST.take(), "6 rows of 20, 3 groups, a weight for 20, parameters: false");
    looked();
}

#[test]
fn t5_norms() {
    let t5 = miopen().miopenT5LayerNormForward.unwrap();
    let at = dangling::<c_void>();
    let call = |c: &mut Row| unsafe {
        t5(c.handle, c.mode, c.x, at, c.weight, at, 1e-5, c.y, at, c.rstd, c.at_rstd)
    };
    let rstd = floats(&[2, 3, 4]);
    let good = Row { mode: MIOPEN_WEIGHT_BIAS_T5, weight: floats(&[5]), rstd, ..good() };
    let function = "miopenT5LayerNormForward";
    check_input(function, good, &call);
    check_tensors(function, good, &call, &[("y", Y)], &[2, 3, 4, 5], true);
    check_tensors(function, good, &call, &[("weight", WEIGHT)], &[5], false);
    check_tensors(function, good, &call, &[("rstd", RSTD)], &[24], false);
    check(
        function,
        good,
        call,
        &[
            ("another mode", &|c| c.mode = MIOPEN_WEIGHT_BIAS, MISSING),
            ("rstd is not wanted", &|c| (c.rstd, c.at_rstd) = (null_mut(), null_mut()), Runs),
        ],
    );
    for (at_rstd, wanted) in [(dangling(), true), (null_mut(), false)] {
        done(call(&mut Row { at_rstd, ..good }));
        assert_eq!(LAST.take(), format!("24 rows of 5, 1 groups, a weight for 1, rstd: {wanted}"));
    }
    looked();
}

#[test]
fn gradients_of_layer_norms() {
    let t = miopen();
    let (backward, size) =
        (t.miopenLayerNormBackward.unwrap(), t.miopenGetLayerNormBackwardWorkspaceSize.unwrap());
    let at = dangling::<c_void>();
    let backward = |c: &mut Row| unsafe {
        let [dw, db] = c.to;
        backward(
            c.handle, c.mode, at, 0, c.y, at, c.x, at, c.weight, at, c.mean, at, c.rstd, at, c.axis, c.dx,
            at, c.weight, dw, c.bias, db,
        )
    };
    let mut bytes = 9;
    let to = &raw mut bytes;
    let size_to = |c: &mut Row, to| unsafe {
        size(c.handle, c.mode, c.y, c.x, c.weight, c.mean, c.rstd, c.axis, c.dx, c.weight, c.bias, to)
    };
    // No provider is asked for the bytes.
    let size = |c: &mut Row| {
        let status = size_to(c, to);
        if status == miopenStatusSuccess {
            crate::asked("bytes");
        }
        status
    };
    for (function, call) in [
        ("miopenLayerNormBackward", &backward as &dyn Fn(&mut Row) -> miopenStatus_t),
        ("miopenGetLayerNormBackwardWorkspaceSize", &size),
    ] {
        check_input(function, good(), call);
        check_tensors(function, good(), call, &[("dy", Y), ("dx", DX)], &[2, 3, 4, 5], true);
        check_tensors(function, good(), call, &[("mean", MEAN), ("rstd", RSTD)], &[6], false);
        check(
            function,
            good(),
            call,
            &[
                ("the mode of T5", &|c| c.mode = MIOPEN_WEIGHT_BIAS_T5, BAD),
                ("an axis below 0", &|c| c.axis = -1, BAD),
                ("an axis past the last", &|c| c.axis = 4, BAD),
            ],
        );
    }
    check_tensors(
        "miopenLayerNormBackward",
        good(),
        &backward,
        &[("weight", WEIGHT), ("bias", BIAS)],
        &[20],
        false,
    );
    check(
        "miopenLayerNormBackward",
        good(),
        backward,
        &[
            (
                "no weight, no gradients of it",
                &|c| {
                    (c.mode, c.weight, c.bias, c.to) =
                        (MIOPEN_ELEMENTWISE_AFFINE, null_mut(), null_mut(), [null_mut(); 2]);
                },
                Runs,
            ),
            (
                "a gradient of the bias alone without its tensor",
                &|c| (c.to[0], c.bias) = (null_mut(), null_mut()),
                BAD,
            ),
            (
                "a gradient of the weight alone without its tensor",
                &|c| (c.to[1], c.bias) = (null_mut(), null_mut()),
                BAD,
            ),
        ],
    );
    for (mode, gradients, expected) in [
        (MIOPEN_WEIGHT_BIAS, dangling(), "weight: true, parameters: true"),
        (MIOPEN_WEIGHT_BIAS, null_mut(), "weight: true, parameters: false"),
        (MIOPEN_ELEMENTWISE_AFFINE, dangling(), "weight: false, parameters: true"),
    ] {
        done(backward(&mut Row { mode, to: [gradients; 2], ..good() }));
        assert_eq!(LAST.take(), format!("6 rows of 20, 1 groups, a weight for 1, {expected}"));
    }
    done(size(&mut good()));
    assert_eq!((unsafe { to.read() }, size_to(&mut good(), null_mut())), (0, miopenStatusBadParm));
    looked();
}
