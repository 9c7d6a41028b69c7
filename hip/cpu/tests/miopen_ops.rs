//! MIOpen's softmax, activations, reductions and plain tensor functions, against references in
//! `f64`.
#![allow(clippy::unwrap_used)]
#![allow(non_upper_case_globals)] // AMD's names.

mod library;

use core::ffi::c_void;
use half::{bf16, f16};
use library::dnn::{Dnn, Typed};
use library::{Device, Random, close, wide};
use miopen_sys::*;

const ONE: f32 = 1.0;
const ZERO: f32 = 0.0;

fn float(value: &f32) -> *const c_void {
    core::ptr::from_ref(value).cast()
}

fn softmax<T: Typed>(random: &mut Random) {
    let dnn = Dnn::new();
    let dims = [1 + random.below(4), 1 + random.below(40), 1 + random.below(3), 1 + random.below(5)];
    let (n, c, pixels) = (dims[0], dims[1], dims[2] * dims[3]);
    let algorithm = random.pick(&[MIOPEN_SOFTMAX_FAST, MIOPEN_SOFTMAX_ACCURATE, MIOPEN_SOFTMAX_LOG]);
    let mode = random.pick(&[MIOPEN_SOFTMAX_MODE_INSTANCE, MIOPEN_SOFTMAX_MODE_CHANNEL]);
    let (alpha, beta) = (random.pick(&[1.0f32, 0.5]), random.pick(&[0.0f32, 2.0]));
    let len = n * c * pixels;
    let (x, old, dy) = (random.values::<T>(len), random.values::<T>(len), random.values::<T>(len));
    let (fx, fdy, fold) = (wide(&x), wide(&dy), wide(&old));
    // The indices of the elements that sum to one.
    let groups: Vec<Vec<usize>> = if mode == MIOPEN_SOFTMAX_MODE_INSTANCE {
        (0..n).map(|image| (image * c * pixels..(image + 1) * c * pixels).collect()).collect()
    } else {
        (0..n * pixels)
            .map(|i| (0..c).map(|channel| (i / pixels * c + channel) * pixels + i % pixels).collect())
            .collect()
    };
    let log = algorithm == MIOPEN_SOFTMAX_LOG;
    let mut y = vec![0.0; len];
    for group in &groups {
        let sum: f64 = group.iter().map(|&i| fx[i].exp()).sum();
        group.iter().for_each(|&i| y[i] = if log { fx[i] - sum.ln() } else { fx[i].exp() / sum });
    }
    let stored: Vec<T> = y.iter().map(|&value| T::of(value)).collect();
    let fy = wide(&stored);
    let mut dx = vec![0.0; len];
    for group in &groups {
        let sum: f64 = group.iter().map(|&i| if log { fdy[i] } else { fdy[i] * fy[i] }).sum();
        group.iter().for_each(|&i| {
            dx[i] = if log { fdy[i] - sum * fy[i].exp() } else { (fdy[i] - sum) * fy[i] };
        });
    }
    let blend = |new: &[f64]| -> Vec<f64> {
        new.iter().zip(&fold).map(|(new, old)| f64::from(alpha) * new + f64::from(beta) * old).collect()
    };
    let desc = dnn.tensor(T::DATA, &dims);
    // If beta is zero, the old values are not read.
    let start = if beta == 0.0 { vec![T::of(f64::NAN); len] } else { old.clone() };
    let (bx, by, bdx) = (Device::new(&x), Device::new(&start), Device::new(&start));
    let (bs, bdy) = (Device::new(&stored), Device::new(&dy));
    // SAFETY: live descriptors, buffers of their sizes.
    unsafe {
        let d = desc.get();
        let status = (dnn.table.miopenSoftmaxForward_V2)(
            dnn.handle,
            float(&alpha),
            d,
            bx.void(),
            float(&beta),
            d,
            by.void(),
            algorithm,
            mode,
        );
        assert_eq!(status, miopenStatusSuccess);
        close("softmax", &by.get(), &blend(&y), 1.0);
        let status = (dnn.table.miopenSoftmaxBackward_V2)(
            dnn.handle,
            float(&alpha),
            d,
            bs.void(),
            d,
            bdy.void(),
            float(&beta),
            d,
            bdx.void(),
            algorithm,
            mode,
        );
        assert_eq!(status, miopenStatusSuccess);
        close("softmax gradient", &bdx.get(), &blend(&dx), 1.0);
    }
}

#[test]
fn softmax_in_every_mode() {
    let mut random = Random::new("softmax");
    for _ in 0..60 {
        softmax::<f32>(&mut random);
        softmax::<f16>(&mut random);
    }
}

#[test]
fn activations() {
    let mut random = Random::new("activations");
    let dnn = Dnn::new();
    let x: Vec<f32> = random.values::<f32>(999).iter().map(|x| x * 3.0).collect();
    let dy = random.values::<f32>(999);
    let (a, b, g) = (0.7, 1.3, 2.0);
    // Mode, function, derivative.
    type Function = fn(f64) -> f64;
    let cases: &[(miopenActivationMode_t, Function, Function)] = &[
        (miopenActivationPASTHRU, |x| x, |_| 1.0),
        (miopenActivationLOGISTIC, |x| 1.0 / (1.0 + (-x).exp()), |x| (-x).exp() / (1.0 + (-x).exp()).powi(2)),
        (miopenActivationTANH, |x| 1.3 * (0.7 * x).tanh(), |x| 1.3 * 0.7 / (0.7 * x).cosh().powi(2)),
        (miopenActivationRELU, |x| x.max(0.0), |x| f64::from(x > 0.0)),
        (miopenActivationSOFTRELU, |x| (1.0 + x.exp()).ln(), |x| 1.0 / (1.0 + (-x).exp())),
        (miopenActivationABS, f64::abs, f64::signum),
        (miopenActivationPOWER, |x| (0.7 + 1.3 * x).powi(2), |x| 2.0 * 1.3 * (0.7 + 1.3 * x)),
        (miopenActivationCLIPPEDRELU, |x| x.clamp(0.0, 0.7), |x| f64::from(x > 0.0 && x <= 0.7)),
        (
            miopenActivationLEAKYRELU,
            |x| if x > 0.0 { x } else { 0.7 * x },
            |x| if x > 0.0 { 1.0 } else { 0.7 },
        ),
        (
            miopenActivationELU,
            |x| if x > 0.0 { x } else { 0.7 * x.exp_m1() },
            |x| if x > 0.0 { 1.0 } else { 0.7 * x.exp() },
        ),
        (miopenActivationCLAMP, |x| x.clamp(0.7, 1.3), |x| f64::from(x > 0.7 && x <= 1.3)),
    ];
    let tensor = dnn.tensor(miopenFloat, &[3, 3, 37, 3]);
    let mut desc = core::ptr::null_mut();
    // SAFETY: live descriptors, buffers of their sizes.
    unsafe {
        let t = &dnn.table;
        assert_eq!((t.miopenCreateActivationDescriptor)(&mut desc), miopenStatusSuccess);
        for (mode, function, derivative) in cases {
            assert_eq!((t.miopenSetActivationDescriptor)(desc, *mode, a, b, g), miopenStatusSuccess);
            let (bx, bdy) = (Device::new(&x), Device::new(&dy));
            let (by, bdx) = (Device::new(&vec![f32::NAN; x.len()]), Device::new(&vec![f32::NAN; x.len()]));
            let d = tensor.get();
            let status = (t.miopenActivationForward)(
                dnn.handle,
                desc,
                float(&ONE),
                d,
                bx.void(),
                float(&ZERO),
                d,
                by.void(),
            );
            assert_eq!(status, miopenStatusSuccess);
            let expected: Vec<f64> = x.iter().map(|&x| function(f64::from(x))).collect();
            close(&format!("{mode:?}"), &by.get(), &expected, 1.0);
            let status = (t.miopenActivationBackward)(
                dnn.handle,
                desc,
                float(&ONE),
                d,
                by.void(),
                d,
                bdy.void(),
                d,
                bx.void(),
                float(&ZERO),
                d,
                bdx.void(),
            );
            assert_eq!(status, miopenStatusSuccess);
            let expected: Vec<f64> =
                x.iter().zip(&dy).map(|(&x, &dy)| derivative(f64::from(x)) * f64::from(dy)).collect();
            close(&format!("{mode:?} gradient"), &bdx.get(), &expected, 1.0);
        }
        assert_eq!((t.miopenDestroyActivationDescriptor)(desc), miopenStatusSuccess);
    }
}

fn reduce<T: Typed>(random: &mut Random) {
    let dnn = Dnn::new();
    let t = &dnn.table;
    let dims: Vec<usize> = (0..4).map(|_| 1 + random.below(6)).collect();
    let kept: Vec<usize> = dims.iter().map(|&dim| if random.below(2) == 0 { 1 } else { dim }).collect();
    let op = miopenReduceTensorOp_t(random.below(8) as i32);
    let picks = [MIOPEN_REDUCE_TENSOR_MIN, MIOPEN_REDUCE_TENSOR_MAX, MIOPEN_REDUCE_TENSOR_AMAX].contains(&op);
    let x = random.values::<T>(dims.iter().product());
    let fx = wide(&x);
    let results: usize = kept.iter().product();
    let mut groups: Vec<Vec<f64>> = vec![vec![]; results];
    for (i, value) in fx.iter().enumerate() {
        let (mut rest, mut at, mut step) = (i, 0, 1);
        for axis in (0..4).rev() {
            let own = rest % dims[axis];
            rest /= dims[axis];
            if kept[axis] > 1 {
                at += own * step;
            }
            step *= kept[axis];
        }
        groups[at].push(*value);
    }
    let (alpha, beta) = (1.5f64, random.pick(&[0.0, 0.5]));
    let old = random.values::<T>(results);
    let fold = wide(&old);
    let mut expected = vec![];
    let mut indices = vec![];
    for (group, old) in groups.iter().zip(&fold) {
        let pick = |beats: &dyn Fn(f64, f64) -> bool, of: &dyn Fn(f64) -> f64| {
            let best = (0..group.len())
                .fold(0, |best, i| if beats(of(group[i]), of(group[best])) { i } else { best });
            (of(group[best]), best as i32)
        };
        let own = |value: f64| value;
        let (value, index) = match op {
            MIOPEN_REDUCE_TENSOR_ADD => (group.iter().sum(), 0),
            MIOPEN_REDUCE_TENSOR_MUL => (group.iter().product(), 0),
            MIOPEN_REDUCE_TENSOR_MIN => pick(&|a, b| a < b, &own),
            MIOPEN_REDUCE_TENSOR_MAX => pick(&|a, b| a > b, &own),
            MIOPEN_REDUCE_TENSOR_AMAX => pick(&|a, b| a > b, &f64::abs),
            MIOPEN_REDUCE_TENSOR_AVG => (group.iter().sum::<f64>() / group.len() as f64, 0),
            MIOPEN_REDUCE_TENSOR_NORM1 => (group.iter().map(|value| value.abs()).sum(), 0),
            _ => (group.iter().map(|value| value * value).sum::<f64>().sqrt(), 0),
        };
        expected.push(alpha * value + if beta == 0.0 { 0.0 } else { beta * old });
        indices.push(index);
    }
    let double = T::DATA == miopenDouble;
    let mut desc = core::ptr::null_mut();
    let (a, c) = (dnn.tensor(T::DATA, &dims), dnn.tensor(T::DATA, &kept));
    let (ba, bc, bi) = (Device::new(&x), Device::new(&old), Device::new(&vec![-1i32; results]));
    let single = (alpha as f32, beta as f32);
    let scalar = |wide: &f64, narrow: &f32| -> *const c_void {
        if double { core::ptr::from_ref(wide).cast() } else { core::ptr::from_ref(narrow).cast() }
    };
    // SAFETY: live descriptors, out-pointers, buffers of the descriptors' sizes.
    unsafe {
        assert_eq!((t.miopenCreateReduceTensorDescriptor)(&mut desc), miopenStatusSuccess);
        let status = (t.miopenSetReduceTensorDescriptor)(
            desc,
            op,
            if double { miopenDouble } else { miopenFloat },
            MIOPEN_NOT_PROPAGATE_NAN,
            MIOPEN_REDUCE_TENSOR_FLATTENED_INDICES,
            MIOPEN_32BIT_INDICES,
        );
        assert_eq!(status, miopenStatusSuccess);
        let mut size = 0usize;
        let status = (t.miopenGetReductionIndicesSize)(dnn.handle, desc, a.get(), c.get(), &mut size);
        assert_eq!((status, size), (miopenStatusSuccess, if picks { 4 * results } else { 0 }));
        let mut space = 0usize;
        let status = (t.miopenGetReductionWorkspaceSize)(dnn.handle, desc, a.get(), c.get(), &mut space);
        assert_eq!(status, miopenStatusSuccess);
        let space = Device::new(&vec![0u8; space]);
        let status = (t.miopenReduceTensor)(
            dnn.handle,
            desc,
            bi.void(),
            size,
            space.void(),
            space.bytes(),
            scalar(&alpha, &single.0),
            a.get(),
            ba.void(),
            scalar(&beta, &single.1),
            c.get(),
            bc.void(),
        );
        assert_eq!(status, miopenStatusSuccess);
        assert_eq!((t.miopenDestroyReduceTensorDescriptor)(desc), miopenStatusSuccess);
    }
    // A sum of n terms is off by up to n + 3 roundings of the sum of their magnitudes, where `close` allows
    // 50 roundings of f32.
    let floor = groups.iter().fold(1.0, |floor: f64, group| {
        let (magnitudes, n) = (group.iter().map(|value| value.abs()).sum::<f64>(), group.len() as f64);
        let sum = alpha * magnitudes * f64::max(1.0, (n + 3.0) / 50.0);
        match op {
            MIOPEN_REDUCE_TENSOR_ADD => floor.max(sum),
            MIOPEN_REDUCE_TENSOR_AVG => floor.max(sum / n),
            _ => floor,
        }
    });
    close(&format!("{op:?}"), &bc.get(), &expected, floor);
    if picks {
        assert_eq!(bi.get(), indices, "{op:?}");
    }
}

#[test]
fn reductions() {
    let mut random = Random::new("reductions");
    for _ in 0..80 {
        reduce::<f32>(&mut random);
        reduce::<f64>(&mut random);
        reduce::<f16>(&mut random);
        reduce::<bf16>(&mut random);
    }
}

/// For bf16 MIOpen 3.5 finds no solver. Its ReLU multiplies, so -inf becomes NaN and negative
/// numbers become -0.
#[test]
fn no_bf16_and_relu_by_multiplication() {
    let dnn = Dnn::new();
    let t = &dnn.table;
    let x = [f32::NEG_INFINITY, -1.0, -0.0, 0.0, 1.0, f32::INFINITY, f32::NAN, 2.0];
    let (bx, by) = (Device::new(&x), Device::new(&[0.0f32; 8]));
    let (single, half) = (dnn.tensor(miopenFloat, &[1, 1, 1, 8]), dnn.tensor(miopenBFloat16, &[1, 1, 1, 8]));
    let (mut relu, mut pool) = (core::ptr::null_mut(), core::ptr::null_mut());
    // SAFETY: live descriptors, out-pointers, buffers of the descriptors' sizes.
    unsafe {
        assert_eq!((t.miopenCreateActivationDescriptor)(&mut relu), miopenStatusSuccess);
        let mode = miopenActivationRELU;
        assert_eq!((t.miopenSetActivationDescriptor)(relu, mode, 1.0, 1.0, 1.0), miopenStatusSuccess);
        let activate = |d: &library::dnn::Tensor| {
            (t.miopenActivationForward)(
                dnn.handle,
                relu,
                float(&ONE),
                d.get(),
                bx.void(),
                float(&ZERO),
                d.get(),
                by.void(),
            )
        };
        assert_eq!(activate(&half), miopenStatusNotImplemented);
        assert_eq!(activate(&single), miopenStatusSuccess);
        let y = by.get();
        assert!(y[0].is_nan() && y[6].is_nan());
        assert_eq!(y[1].to_bits(), (-0.0f32).to_bits());
        assert_eq!(y[2..6], [0.0, 0.0, 1.0, f32::INFINITY]);
        assert_eq!((t.miopenDestroyActivationDescriptor)(relu), miopenStatusSuccess);

        assert_eq!((t.miopenCreatePoolingDescriptor)(&mut pool), miopenStatusSuccess);
        for mode in [miopenPoolingMax, miopenPoolingAverage] {
            let (one, none) = ([1; 2], [0; 2]);
            let set =
                (t.miopenSetNdPoolingDescriptor)(pool, mode, 2, one.as_ptr(), none.as_ptr(), one.as_ptr());
            assert_eq!(set, miopenStatusSuccess);
            let status = (t.miopenPoolingForward)(
                dnn.handle,
                pool,
                float(&ONE),
                half.get(),
                bx.void(),
                float(&ZERO),
                half.get(),
                by.void(),
                false,
                core::ptr::null_mut(),
                0,
            );
            assert_eq!(status, miopenStatusNotImplemented);
        }
        assert_eq!((t.miopenDestroyPoolingDescriptor)(pool), miopenStatusSuccess);

        let status = (t.miopenSoftmaxForward_V2)(
            dnn.handle,
            float(&ONE),
            half.get(),
            bx.void(),
            float(&ZERO),
            half.get(),
            by.void(),
            MIOPEN_SOFTMAX_ACCURATE,
            MIOPEN_SOFTMAX_MODE_INSTANCE,
        );
        assert_eq!(status, miopenStatusNotImplemented);
    }
}

#[test]
fn a_handle_that_was_destroyed_is_refused() {
    let table = hip_cpu::miopen_table();
    let mut handle = core::ptr::null_mut();
    let mut descriptor = core::ptr::null_mut();
    let mut number = 5.0f32;
    let x = Device::new(&[1.0f32; 8]);
    // SAFETY: out-pointers, a live descriptor, a buffer of its size, and handles that the call
    // looks up and never dereferences.
    unsafe {
        assert_eq!((table.miopenCreateWithStream)(&mut handle, core::ptr::null_mut()), miopenStatusSuccess);
        assert_eq!((table.miopenCreateTensorDescriptor)(&mut descriptor), miopenStatusSuccess);
        let dims = [1, 8, 1, 1];
        let set = (table.miopenSetTensorDescriptor)(
            descriptor,
            miopenFloat,
            4,
            dims.as_ptr(),
            [8, 1, 1, 1].as_ptr(),
        );
        assert_eq!(set, miopenStatusSuccess);
        let softmax = |handle| {
            (table.miopenSoftmaxForward_V2)(
                handle,
                float(&ONE),
                descriptor,
                x.void(),
                float(&ZERO),
                descriptor,
                x.void(),
                MIOPEN_SOFTMAX_ACCURATE,
                MIOPEN_SOFTMAX_MODE_INSTANCE,
            )
        };
        assert_eq!(softmax(handle), miopenStatusSuccess);
        assert_eq!((table.miopenDestroy)(handle), miopenStatusSuccess);
        let foreign: miopenHandle_t = (&raw mut number).cast();
        for stale in [handle, core::ptr::null_mut(), foreign] {
            assert_eq!(softmax(stale), miopenStatusBadParm);
            assert_eq!((table.miopenSetStream)(stale, core::ptr::null_mut()), miopenStatusBadParm);
            assert_eq!((table.miopenDestroy)(stale), miopenStatusBadParm);
        }
        (table.miopenDestroyTensorDescriptor)(descriptor);
    }
}
