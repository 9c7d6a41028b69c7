//! Handles, descriptors and statuses.

use std::ffi::c_int;
use std::ptr::{null, null_mut};

use hip_provider::miopen::{Pooling, Tensor};
use miopen_sys::*;

use super::{BAD, MISSING, REFUSED, UNKNOWN, done, handle, miopen};
use crate::{Rule, Runs, asked, check, looked, text};

#[derive(Clone)]
struct Set {
    tensor: miopenTensorDescriptor_t,
    data: miopenDataType_t,
    rank: c_int,
    dims: Vec<c_int>,
    strides: Option<Vec<c_int>>,
}

#[test]
fn tensors() {
    let (t, mut made) = (miopen(), null_mut());
    done(unsafe { (t.miopenCreateTensorDescriptor)(&mut made) });
    let set = |c: &mut Set| unsafe {
        let dims = if c.dims.is_empty() { null() } else { c.dims.as_ptr() };
        let strides = c.strides.as_ref().map_or(null(), |strides| strides.as_ptr());
        (t.miopenSetTensorDescriptor)(c.tensor, c.data, c.rank, dims, strides)
    };
    let good = Set { tensor: made, data: miopenFloat, rank: 2, dims: vec![3, 4], strides: Some(vec![5, 1]) };
    let most = 1 << 30;
    check_set(
        "miopenSetTensorDescriptor",
        good,
        set,
        &[
            ("no descriptor", &|c| c.tensor = null_mut(), BAD),
            ("no axes", &|c| c.rank = 0, BAD),
            ("a negative number of axes", &|c| c.rank = -1, BAD),
            ("12 axes", &|c| (c.rank, c.dims, c.strides) = (12, vec![1; 12], None), Runs),
            ("13 axes", &|c| (c.rank, c.dims, c.strides) = (13, vec![1; 13], None), BAD),
            ("no lengths", &|c| c.dims = Vec::new(), BAD),
            ("a length of 0", &|c| c.dims[1] = 0, BAD),
            ("a length below 0", &|c| c.dims[0] = -1, BAD),
            ("an unknown type", &|c| c.data = miopenDataType_t(UNKNOWN), BAD),
            ("no strides", &|c| c.strides = None, Runs),
            ("a stride of 0", &|c| c.strides = Some(vec![0, 1]), Runs),
            ("a stride below 0", &|c| c.strides = Some(vec![-5, 1]), BAD),
            (
                "as many elements as fit the addresses",
                &|c| (c.rank, c.dims, c.strides) = (2, vec![most, 1 << 29], None),
                Runs,
            ),
            ("more elements", &|c| (c.rank, c.dims, c.strides) = (2, vec![most, most], None), BAD),
            ("elements that overflow", &|c| (c.rank, c.dims, c.strides) = (3, vec![most; 3], None), BAD),
            (
                "strides up to the addresses",
                &|c| (c.dims, c.strides) = (vec![most, 1], Some(vec![most, most])),
                Runs,
            ),
            (
                "strides past the addresses",
                &|c| (c.dims, c.strides) = (vec![most, 1], Some(vec![most + 1, 1])),
                BAD,
            ),
            ("a type that the provider does not take", &|c| c.data = miopenInt64, REFUSED),
        ],
    );
}

#[test]
fn tensors_in_numbers() {
    let packed = Tensor::packed(miopenFloat, vec![2, 3, 4]);
    assert_eq!(
        (packed.strides.as_slice(), packed.count(), packed.span(), packed.bytes()),
        (&[12, 4, 1][..], 24, 24, 96)
    );
    for (data, size) in [
        (miopenInt8, 1),
        (miopenHalf, 2),
        (miopenBFloat16, 2),
        (miopenFloat, 4),
        (miopenInt32, 4),
        (miopenDouble, 8),
        (miopenInt64, 8),
    ] {
        assert_eq!(Tensor { data, ..packed.clone() }.bytes(), 24 * size, "{data:?}");
    }
    let strided = |dims: &[usize], strides: &[usize]| Tensor {
        data: miopenFloat,
        dims: dims.to_vec(),
        strides: strides.to_vec(),
    };
    let gaps = strided(&[2, 3], &[4, 1]);
    assert_eq!((gaps.count(), gaps.span(), gaps.is_packed()), (6, 7, false));
    assert_eq!(gaps.require_packed(), Err(miopenStatusNotImplemented));
    for (tensor, is_packed) in [
        (strided(&[2, 3], &[3, 1]), true),
        (strided(&[1, 3], &[99, 1]), true),
        (strided(&[3, 1], &[1, 99]), true),
        (strided(&[3, 2], &[1, 3]), false),
        (strided(&[2, 3], &[0, 1]), false),
    ] {
        assert_eq!(tensor.is_packed(), is_packed, "{tensor:?}");
        assert_eq!(tensor.require_packed().is_ok(), is_packed);
    }
    for (dims, planes) in [
        (vec![2], Err(miopenStatusBadParm)),
        (vec![2, 3], Ok((2, 3, 1))),
        (vec![2, 3, 4, 5, 6], Ok((2, 3, 120))),
        (vec![1; 6], Err(miopenStatusBadParm)),
    ] {
        assert_eq!(Tensor::packed(miopenFloat, dims).planes(), planes);
    }
    for (mode, index, bytes) in [
        (miopenPoolingMax, miopenIndexUint8, 7),
        (miopenPoolingMax, miopenIndexUint16, 14),
        (miopenPoolingMax, miopenIndexUint32, 28),
        (miopenPoolingMax, miopenIndexUint64, 56),
        (miopenPoolingAverage, miopenIndexUint64, 0),
    ] {
        assert_eq!(Pooling { mode, index, ..Pooling::default() }.workspace(7), bytes);
    }
}

/// Every kind of descriptor is created through an out-pointer and destroyed once.
#[test]
fn null_is_refused() {
    let t = miopen();
    macro_rules! kinds {
        ($($create:ident $destroy:ident;)*) => { $(
            let mut made = null_mut();
            let name = stringify!($create);
            unsafe {
                assert_eq!((t.$create)(null_mut()), miopenStatusBadParm, "{name}");
                assert_eq!((t.$create)(&mut made), miopenStatusSuccess, "{name}");
                assert!(!made.is_null());
                assert_eq!((t.$destroy)(null_mut()), miopenStatusBadParm, "{name}");
                assert_eq!((t.$destroy)(made), miopenStatusSuccess, "{name}");
            }
        )* };
    }
    kinds! {
        miopenCreateTensorDescriptor miopenDestroyTensorDescriptor;
        miopenCreateConvolutionDescriptor miopenDestroyConvolutionDescriptor;
        miopenCreatePoolingDescriptor miopenDestroyPoolingDescriptor;
        miopenCreateActivationDescriptor miopenDestroyActivationDescriptor;
        miopenCreateReduceTensorDescriptor miopenDestroyReduceTensorDescriptor;
        miopenCreateOperatorArgs miopenDestroyOperatorArgs;
    }
    let mut made = null_mut();
    let create = |to: &mut *mut miopenHandle_t| unsafe { (t.miopenCreateWithStream)(*to, null_mut()) };
    check("miopenCreateWithStream", &raw mut made, create, &[("null", &|to| *to = null_mut(), BAD)]);
    assert!(!made.is_null());
}

/// Checks a function that only sets a descriptor's values. A success counts as asking the provider.
#[track_caller]
fn check_set<A: Clone>(
    function: &str,
    good: A,
    call: impl Fn(&mut A) -> miopenStatus_t,
    rules: &[Rule<'_, A, miopenStatus_t>],
) {
    let noted = |arguments: &mut A| {
        let status = call(arguments);
        if status == miopenStatusSuccess {
            asked("a descriptor");
        }
        status
    };
    check(function, good, noted, rules);
}

#[test]
fn convolutions() {
    let (t, mut made) = (miopen(), null_mut());
    done(unsafe { (t.miopenCreateConvolutionDescriptor)(&mut made) });
    #[derive(Clone)]
    struct Init {
        conv: miopenConvolutionDescriptor_t,
        axes: c_int,
        lists: [Vec<c_int>; 3],
        mode: miopenConvolutionMode_t,
    }
    let init = |c: &mut Init| unsafe {
        let [pad, stride, dilation] =
            c.lists.each_ref().map(|list| if list.is_empty() { null() } else { list.as_ptr() });
        (t.miopenInitConvolutionNdDescriptor)(c.conv, c.axes, pad, stride, dilation, c.mode)
    };
    let good =
        Init { conv: made, axes: 2, lists: [vec![0; 3], vec![1; 3], vec![1; 3]], mode: miopenTranspose };
    check_set(
        "miopenInitConvolutionNdDescriptor",
        good,
        init,
        &[
            ("no descriptor", &|c| c.conv = null_mut(), BAD),
            ("an unknown mode", &|c| c.mode = miopenConvolutionMode_t(UNKNOWN), BAD),
            ("1 axis", &|c| c.axes = 1, MISSING),
            ("3 axes", &|c| c.axes = 3, Runs),
            ("4 axes", &|c| c.axes = 4, MISSING),
            ("the mode comes first", &|c| (c.mode, c.axes) = (miopenConvolutionMode_t(UNKNOWN), 4), BAD),
            ("no padding", &|c| c.lists[0] = Vec::new(), BAD),
            ("no strides", &|c| c.lists[1] = Vec::new(), BAD),
            ("no dilations", &|c| c.lists[2] = Vec::new(), BAD),
            ("padding below 0", &|c| c.lists[0][1] = -1, BAD),
            ("a stride of 0", &|c| c.lists[1][1] = 0, BAD),
            ("a dilation of 0", &|c| c.lists[2][1] = 0, BAD),
            ("a dilation of 0 past the axes", &|c| c.lists[2][2] = 0, Runs),
        ],
    );
    type Groups = (miopenConvolutionDescriptor_t, c_int);
    let groups = |(conv, count): &mut Groups| unsafe { (t.miopenSetConvolutionGroupCount)(*conv, *count) };
    check_set(
        "miopenSetConvolutionGroupCount",
        (made, 2),
        groups,
        &[("no descriptor", &|c| c.0 = null_mut(), BAD), ("no groups", &|c| c.1 = 0, BAD)],
    );
    type Attribute = (miopenConvolutionDescriptor_t, miopenConvolutionAttrib_t, c_int);
    let attribute = |(conv, which, value): &mut Attribute| unsafe {
        (t.miopenSetConvolutionAttribute)(*conv, *which, *value)
    };
    let (half, same) = (MIOPEN_CONVOLUTION_ATTRIB_FP16_ALT_IMPL, MIOPEN_CONVOLUTION_ATTRIB_DETERMINISTIC);
    check_set(
        "miopenSetConvolutionAttribute",
        (made, half, -1),
        attribute,
        &[
            ("no descriptor", &|c| c.0 = null_mut(), BAD),
            ("the alternative's value 1", &|c| c.2 = 1, Runs),
            ("the alternative's value 2", &|c| c.2 = 2, BAD),
            ("the alternative's value -2", &|c| c.2 = -2, BAD),
            ("deterministic", &|c| (c.1, c.2) = (same, 1), Runs),
            ("deterministic: 2", &|c| (c.1, c.2) = (same, 2), BAD),
            ("deterministic: -1", &|c| c.1 = same, BAD),
            ("an unknown attribute", &|c| c.1 = miopenConvolutionAttrib_t(UNKNOWN), BAD),
        ],
    );
}

#[test]
fn poolings() {
    let (t, mut made) = (miopen(), null_mut());
    done(unsafe { (t.miopenCreatePoolingDescriptor)(&mut made) });
    #[derive(Clone)]
    struct Set {
        pool: miopenPoolingDescriptor_t,
        mode: miopenPoolingMode_t,
        axes: c_int,
        lists: [Vec<c_int>; 3],
    }
    let set = |c: &mut Set| unsafe {
        let [window, pad, stride] =
            c.lists.each_ref().map(|list| if list.is_empty() { null() } else { list.as_ptr() });
        (t.miopenSetNdPoolingDescriptor)(c.pool, c.mode, c.axes, window, pad, stride)
    };
    let good =
        Set { pool: made, mode: miopenPoolingMax, axes: 2, lists: [vec![3; 4], vec![2; 4], vec![1; 4]] };
    check_set(
        "miopenSetNdPoolingDescriptor",
        good,
        set,
        &[
            ("no descriptor", &|c| c.pool = null_mut(), BAD),
            ("an unknown mode", &|c| c.mode = miopenPoolingMode_t(UNKNOWN), BAD),
            ("1 axis", &|c| c.axes = 1, BAD),
            ("3 axes", &|c| c.axes = 3, Runs),
            ("4 axes", &|c| c.axes = 4, BAD),
            ("no window", &|c| c.lists[0] = Vec::new(), BAD),
            ("no padding", &|c| c.lists[1] = Vec::new(), BAD),
            ("no strides", &|c| c.lists[2] = Vec::new(), BAD),
            ("a window of 0", &|c| (c.lists[0][1], c.lists[1][1]) = (0, 0), BAD),
            ("a stride of 0", &|c| c.lists[2][0] = 0, BAD),
            ("padding below 0", &|c| c.lists[1][0] = -1, BAD),
            ("padding as long as the window", &|c| c.lists[1][1] = 3, BAD),
        ],
    );
    type Index = (miopenPoolingDescriptor_t, miopenIndexType_t);
    let index = |(pool, index): &mut Index| unsafe { (t.miopenSetPoolingIndexType)(*pool, *index) };
    check_set(
        "miopenSetPoolingIndexType",
        (made, miopenIndexUint64),
        index,
        &[
            ("no descriptor", &|c| c.0 = null_mut(), BAD),
            ("an unknown type", &|c| c.1 = miopenIndexType_t(UNKNOWN), BAD),
        ],
    );
    type Mode = (miopenPoolingDescriptor_t, miopenPoolingWorkspaceIndexMode_t);
    let mode = |(pool, mode): &mut Mode| unsafe { (t.miopenSetPoolingWorkSpaceIndexMode)(*pool, *mode) };
    check_set(
        "miopenSetPoolingWorkSpaceIndexMode",
        (made, miopenPoolingWorkspaceIndexImage),
        mode,
        &[
            ("no descriptor", &|c| c.0 = null_mut(), BAD),
            ("an unknown mode", &|c| c.1 = miopenPoolingWorkspaceIndexMode_t(UNKNOWN), BAD),
        ],
    );
}

#[test]
fn activations_and_reductions() {
    let (t, mut activation, mut reduction) = (miopen(), null_mut(), null_mut());
    done(unsafe { (t.miopenCreateActivationDescriptor)(&mut activation) });
    done(unsafe { (t.miopenCreateReduceTensorDescriptor)(&mut reduction) });
    type Set = (miopenActivationDescriptor_t, miopenActivationMode_t);
    let set = |(activation, mode): &mut Set| unsafe {
        (t.miopenSetActivationDescriptor)(*activation, *mode, 1.0, 1.0, 1.0)
    };
    check_set(
        "miopenSetActivationDescriptor",
        (activation, miopenActivationRELU),
        set,
        &[
            ("no descriptor", &|c| c.0 = null_mut(), BAD),
            ("an unknown mode", &|c| c.1 = miopenActivationMode_t(UNKNOWN), BAD),
        ],
    );
    #[derive(Clone, Copy)]
    struct Reduce {
        reduction: miopenReduceTensorDescriptor_t,
        op: miopenReduceTensorOp_t,
        compute: miopenDataType_t,
        nan: miopenNanPropagation_t,
        indices: miopenReduceTensorIndices_t,
        index: miopenIndicesType_t,
    }
    let good = Reduce {
        reduction,
        op: MIOPEN_REDUCE_TENSOR_MAX,
        compute: miopenFloat,
        nan: MIOPEN_PROPAGATE_NAN,
        indices: MIOPEN_REDUCE_TENSOR_FLATTENED_INDICES,
        index: MIOPEN_32BIT_INDICES,
    };
    let set = |c: &mut Reduce| unsafe {
        (t.miopenSetReduceTensorDescriptor)(c.reduction, c.op, c.compute, c.nan, c.indices, c.index)
    };
    check_set(
        "miopenSetReduceTensorDescriptor",
        good,
        set,
        &[
            ("no descriptor", &|c| c.reduction = null_mut(), BAD),
            ("an unknown op", &|c| c.op = miopenReduceTensorOp_t(UNKNOWN), BAD),
            ("an unknown treatment of NaN", &|c| c.nan = miopenNanPropagation_t(UNKNOWN), BAD),
            ("unknown indices", &|c| c.indices = miopenReduceTensorIndices_t(UNKNOWN), BAD),
            ("in f16", &|c| c.compute = miopenHalf, Runs),
            ("in f64", &|c| c.compute = miopenDouble, Runs),
            ("in bf16", &|c| c.compute = miopenBFloat16, BAD),
            ("in i32", &|c| c.compute = miopenInt32, BAD),
            ("indices of 64 bits", &|c| c.index = MIOPEN_64BIT_INDICES, BAD),
        ],
    );
}

#[test]
fn handles_versions_and_statuses() {
    let t = miopen();
    unsafe {
        looked();
        done((t.miopenSetStream)(handle(), null_mut()));
        done((t.miopenDestroy)(handle()));
        assert_eq!(looked(), ["set_stream", "destroy"]);
        let mut numbers = [0; 3];
        let [major, minor, patch] = &mut numbers;
        done((t.miopenGetVersion)(major, null_mut(), patch));
        done((t.miopenGetVersion)(null_mut(), minor, null_mut()));
        assert_eq!(numbers, [3, 5, 1]);
    }
    let name = |status| text(unsafe { (t.miopenGetErrorString)(miopenStatus_t(status)) });
    for status in 0..11 {
        assert_eq!(Some(name(status)), miopenStatus_t(status).name());
    }
    assert_eq!(name(UNKNOWN), "miopenStatusUnknownError");
}
