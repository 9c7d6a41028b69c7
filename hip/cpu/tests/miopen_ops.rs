//! MIOpen's pooling, softmax, activations, reductions and plain tensor functions, against references in `f64`.
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

/// A pooling; two axes.
struct Pool {
    mode: miopenPoolingMode_t,
    index: miopenIndexType_t,
    index_mode: miopenPoolingWorkspaceIndexMode_t,
    x: [usize; 4],
    window: [usize; 2],
    pad: [usize; 2],
    stride: [usize; 2],
}

fn pool<T: Typed>(case: &Pool, random: &mut Random) {
    let dnn = Dnn::new();
    let [n, c, h, w] = case.x;
    let out =
        |axis: usize| (case.x[axis + 2] + 2 * case.pad[axis] - case.window[axis]) / case.stride[axis] + 1;
    let (oh, ow) = (out(0), out(1));
    let x = random.values::<T>(n * c * h * w);
    let dy = random.values::<T>(n * c * oh * ow);
    let (fx, fdy) = (wide(&x), wide(&dy));
    let (mut y, mut dx, mut indices) = (vec![], vec![0.0; x.len()], vec![]);
    for plane in 0..n * c {
        for r in 0..oh {
            for s in 0..ow {
                let mut pixels = vec![]; // (value, place in the image, place in the window)
                for i in 0..case.window[0] {
                    for j in 0..case.window[1] {
                        let row = (r * case.stride[0] + i).checked_sub(case.pad[0]).filter(|&row| row < h);
                        let column =
                            (s * case.stride[1] + j).checked_sub(case.pad[1]).filter(|&column| column < w);
                        if let (Some(row), Some(column)) = (row, column) {
                            let at = row * w + column;
                            pixels.push((fx[plane * h * w + at], at, i * case.window[1] + j));
                        }
                    }
                }
                let gradient = fdy[y.len()];
                if case.mode == miopenPoolingMax {
                    let best =
                        pixels.iter().fold(pixels[0], |best, new| if new.0 > best.0 { *new } else { best });
                    dx[plane * h * w + best.1] += gradient;
                    indices.push(if case.index_mode == miopenPoolingWorkspaceIndexMask {
                        best.2
                    } else {
                        best.1
                    });
                    y.push(best.0);
                } else {
                    let inclusive = case.mode == miopenPoolingAverageInclusive;
                    let count = if inclusive { case.window[0] * case.window[1] } else { pixels.len() } as f64;
                    pixels.iter().for_each(|pixel| dx[plane * h * w + pixel.1] += gradient / count);
                    y.push(pixels.iter().map(|pixel| pixel.0).sum::<f64>() / count);
                }
            }
        }
    }
    let (dx_desc, dy_desc) = (dnn.tensor(T::DATA, &case.x), dnn.tensor(T::DATA, &[n, c, oh, ow]));
    let ints = |values: [usize; 2]| values.map(|value| value as i32);
    let nan = |len: usize| Device::new(&vec![T::of(f64::NAN); len]);
    let (bx, by, bdy, bdx) = (Device::new(&x), nan(y.len()), Device::new(&dy), nan(x.len()));
    let mut desc = core::ptr::null_mut();
    // SAFETY: live descriptors, out-pointers, buffers of the descriptors' sizes.
    unsafe {
        let t = &dnn.table;
        assert_eq!((t.miopenCreatePoolingDescriptor)(&mut desc), miopenStatusSuccess);
        let (window, pad, stride) = (ints(case.window), ints(case.pad), ints(case.stride));
        let status = (t.miopenSet2dPoolingDescriptor)(
            desc, case.mode, window[0], window[1], pad[0], pad[1], stride[0], stride[1],
        );
        assert_eq!(status, miopenStatusSuccess);
        assert_eq!((t.miopenSetPoolingIndexType)(desc, case.index), miopenStatusSuccess);
        assert_eq!((t.miopenSetPoolingWorkSpaceIndexMode)(desc, case.index_mode), miopenStatusSuccess);
        let mut size = 0usize;
        assert_eq!((t.miopenPoolingGetWorkSpaceSizeV2)(desc, dy_desc.get(), &mut size), miopenStatusSuccess);
        let space = Device::new(&vec![0xffu8; size]);
        let forward = |size: usize| {
            (t.miopenPoolingForward)(
                dnn.handle,
                desc,
                float(&ONE),
                dx_desc.get(),
                bx.void(),
                float(&ZERO),
                dy_desc.get(),
                by.void(),
                true,
                space.void(),
                size,
            )
        };
        if size > 0 {
            assert_eq!(forward(size - 1), miopenStatusBadParm);
        }
        assert_eq!(forward(size), miopenStatusSuccess);
        close("pooling", &by.get(), &y, 1e-30);
        if case.mode == miopenPoolingMax {
            let each = size / y.len();
            let bytes = space.get();
            for (i, index) in indices.iter().enumerate() {
                let mut own = [0u8; 8];
                own[..each].copy_from_slice(&bytes[i * each..(i + 1) * each]);
                assert_eq!(u64::from_le_bytes(own), *index as u64, "index {i}");
            }
        }
        let status = (t.miopenPoolingBackward)(
            dnn.handle,
            desc,
            float(&ONE),
            dy_desc.get(),
            by.void(),
            dy_desc.get(),
            bdy.void(),
            dx_desc.get(),
            bx.void(),
            float(&ZERO),
            dx_desc.get(),
            bdx.void(),
            space.void(),
        );
        assert_eq!(status, miopenStatusSuccess);
        close("pooling gradient", &bdx.get(), &dx, 1e-30);
        assert_eq!((t.miopenDestroyPoolingDescriptor)(desc), miopenStatusSuccess);
    }
}

#[test]
fn pooling() {
    let mut random = Random::new("pooling");
    for round in 0..150 {
        let window = [1 + random.below(3), 1 + random.below(3)];
        let case = Pool {
            mode: random.pick(&[
                miopenPoolingMax,
                miopenPoolingMax,
                miopenPoolingAverage,
                miopenPoolingAverageInclusive,
            ]),
            index: random.pick(&[miopenIndexUint16, miopenIndexUint32, miopenIndexUint64]),
            index_mode: random.pick(&[miopenPoolingWorkspaceIndexMask, miopenPoolingWorkspaceIndexImage]),
            x: [1 + random.below(3), 1 + random.below(5), 3 + random.below(15), 3 + random.below(15)],
            window: if round % 4 == 0 { [2, 2] } else { window },
            pad: if round % 4 == 0 { [0, 0] } else { window.map(|window| random.below(window)) },
            stride: if round % 4 == 0 { [2, 2] } else { [1 + random.below(3), 1 + random.below(3)] },
        };
        match round % 2 {
            0 => pool::<f16>(&case, &mut random),
            _ => pool::<f32>(&case, &mut random),
        }
    }
    let small = Pool {
        mode: miopenPoolingMax,
        index: miopenIndexUint8,
        index_mode: miopenPoolingWorkspaceIndexMask,
        x: [2, 3, 8, 8],
        window: [2, 2],
        pad: [0, 0],
        stride: [2, 2],
    };
    pool::<f32>(&small, &mut random);
}

#[test]
fn pooling_refusals() {
    let dnn = Dnn::new();
    let t = &dnn.table;
    let mut desc = core::ptr::null_mut();
    // SAFETY: live descriptors, out-pointers, buffers of the descriptors' sizes.
    unsafe {
        assert_eq!((t.miopenCreatePoolingDescriptor)(&mut desc), miopenStatusSuccess);
        let set = |window, pad, stride| {
            (t.miopenSet2dPoolingDescriptor)(desc, miopenPoolingMax, window, window, pad, pad, stride, stride)
        };
        assert_eq!(set(0, 0, 1), miopenStatusBadParm);
        assert_eq!(set(2, 0, 0), miopenStatusBadParm);
        assert_eq!(set(2, 2, 1), miopenStatusBadParm);
        assert_eq!(set(2, -1, 1), miopenStatusBadParm);
        assert_eq!(set(2, 0, 2), miopenStatusSuccess);
        let image = miopenPoolingWorkspaceIndexImage;
        assert_eq!((t.miopenSetPoolingWorkSpaceIndexMode)(desc, image), miopenStatusSuccess);
        // 32 x 32 pixels can't be counted in a byte.
        let (x, y) = (dnn.tensor(miopenFloat, &[1, 1, 32, 32]), dnn.tensor(miopenFloat, &[1, 1, 16, 16]));
        let (bx, by, space) =
            (Device::new(&[0f32; 1024]), Device::new(&[0f32; 256]), Device::new(&[0u8; 2048]));
        let run = |x: miopenTensorDescriptor_t, alpha: &f32, backward| {
            (t.miopenPoolingForward)(
                dnn.handle,
                desc,
                float(alpha),
                x,
                bx.void(),
                float(&ZERO),
                y.get(),
                by.void(),
                backward,
                space.void(),
                2048,
            )
        };
        assert_eq!(run(x.get(), &ONE, true), miopenStatusBadParm);
        assert_eq!(run(x.get(), &ONE, false), miopenStatusSuccess);
        assert_eq!(run(x.get(), &2.0, false), miopenStatusNotImplemented);
        assert_eq!(run(y.get(), &ONE, false), miopenStatusBadParm);
        assert_eq!((t.miopenDestroyPoolingDescriptor)(desc), miopenStatusSuccess);
        assert_eq!((t.miopenDestroyPoolingDescriptor)(core::ptr::null_mut()), miopenStatusBadParm);
    }
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
    // The elements that sum to one, by their places.
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
    // With beta zero the old values are not read.
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
        assert_eq!(
            (t.miopenSetActivationDescriptor)(desc, miopenActivationMode_t(99), a, b, g),
            miopenStatusBadParm
        );
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
    close(&format!("{op:?}"), &bc.get(), &expected, 1.0);
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

/// What MIOpen 3.5 answers for bf16, for which it finds no solver, and what its ReLU makes of the numbers that a selection
/// would keep.
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
            assert_eq!((t.miopenSet2dPoolingDescriptor)(pool, mode, 1, 1, 0, 0, 1, 1), miopenStatusSuccess);
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
fn descriptors_and_names() {
    let dnn = Dnn::new();
    let t = &dnn.table;
    let c = dnn.tensor(miopenFloat, &[2, 3, 4, 5]);
    // SAFETY: live descriptors, buffers of their sizes, out-pointers.
    unsafe {
        let none = core::ptr::null();
        assert_eq!((t.miopenSetTensorDescriptor)(c.get(), miopenFloat, 4, none, none), miopenStatusBadParm);
        assert_eq!((t.miopenSetTensorDescriptor)(c.get(), miopenFloat, -1, none, none), miopenStatusBadParm);
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        assert_eq!((t.miopenGetVersion)(&mut major, &mut minor, &mut patch), miopenStatusSuccess);
        assert!(major >= 2);
        let text = core::ffi::CStr::from_ptr((t.miopenGetErrorString)(miopenStatusBadParm));
        assert_eq!(text.to_str(), Ok("miopenStatusBadParm"));
    }
}
