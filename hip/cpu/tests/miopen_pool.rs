//! MIOpen's pooling, against a reference in `f64`.
#![allow(clippy::unwrap_used)]
#![allow(non_upper_case_globals)] // AMD's names.

mod library;

use core::ffi::c_void;
use half::f16;
use library::dnn::{Dnn, Typed};
use library::{Device, Random, close, wide};
use miopen_sys::*;

const ONE: f32 = 1.0;
const ZERO: f32 = 0.0;

fn float(value: &f32) -> *const c_void {
    core::ptr::from_ref(value).cast()
}

/// A pooling over two or three axes.
struct Pool {
    mode: miopenPoolingMode_t,
    index: miopenIndexType_t,
    index_mode: miopenPoolingWorkspaceIndexMode_t,
    x: Vec<usize>,
    window: Vec<usize>,
    pad: Vec<usize>,
    stride: Vec<usize>,
}

impl Pool {
    /// The positions that a window at output `at` covers along an axis, in the input and in the
    /// window.
    fn covered(&self, axis: usize, at: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
        let (size, pad, first) = (self.x[axis + 2], self.pad[axis], at * self.stride[axis]);
        (0..self.window[axis])
            .filter_map(move |i| (first + i).checked_sub(pad).filter(|&place| place < size).map(|at| (at, i)))
    }
}

fn pool<T: Typed>(case: &Pool, random: &mut Random) {
    let dnn = Dnn::new();
    let axes = case.window.len();
    let count = |shape: &[usize]| shape.iter().product::<usize>();
    let out =
        |axis: usize| (case.x[axis + 2] + 2 * case.pad[axis] - case.window[axis]) / case.stride[axis] + 1;
    let outs: Vec<usize> = case.x[..2].iter().copied().chain((0..axes).map(out)).collect();
    let (inputs, outputs) = (count(&case.x[2..]), count(&outs[2..]));
    let x = random.values::<T>(count(&case.x));
    let dy = random.values::<T>(count(&outs));
    let (fx, fdy) = (wide(&x), wide(&dy));
    let (mut y, mut dx, mut indices) = (vec![], vec![0.0; x.len()], vec![]);
    for (o, gradient) in fdy.iter().enumerate() {
        let plane = o / outputs * inputs;
        let mut pixels = vec![(0, 0)]; // (place in the image, place in the window), axis by axis
        for axis in 0..axes {
            let here = case.covered(axis, o / count(&outs[axis + 3..]) % outs[axis + 2]);
            let next = |(at, inner)| {
                let (size, window) = (case.x[axis + 2], case.window[axis]);
                here.clone().map(move |(place, i)| (at * size + place, inner * window + i))
            };
            pixels = pixels.into_iter().flat_map(next).collect();
        }
        if case.mode == miopenPoolingMax {
            let value = |pixel: (usize, usize)| fx[plane + pixel.0];
            let best =
                pixels.iter().fold(pixels[0], |best, &new| if value(new) > value(best) { new } else { best });
            dx[plane + best.0] += gradient;
            let masked = case.index_mode == miopenPoolingWorkspaceIndexMask;
            indices.push(if masked { best.1 } else { best.0 });
            y.push(value(best));
        } else {
            let inclusive = case.mode == miopenPoolingAverageInclusive;
            let divisor = if inclusive { count(&case.window) } else { pixels.len() } as f64;
            pixels.iter().for_each(|pixel| dx[plane + pixel.0] += gradient / divisor);
            y.push(pixels.iter().map(|pixel| fx[plane + pixel.0]).sum::<f64>() / divisor);
        }
    }
    let (dx_desc, dy_desc) = (dnn.tensor(T::DATA, &case.x), dnn.tensor(T::DATA, &outs));
    let ints = |values: &[usize]| values.iter().map(|&value| value as i32).collect::<Vec<_>>();
    let nan = |len: usize| Device::new(&vec![T::of(f64::NAN); len]);
    let (bx, by, bdy, bdx) = (Device::new(&x), nan(y.len()), Device::new(&dy), nan(x.len()));
    let mut desc = core::ptr::null_mut();
    // SAFETY: live descriptors, out-pointers, buffers of the descriptors' sizes.
    unsafe {
        let t = &dnn.table;
        assert_eq!((t.miopenCreatePoolingDescriptor)(&mut desc), miopenStatusSuccess);
        let (window, pad, stride) = (ints(&case.window), ints(&case.pad), ints(&case.stride));
        let (window, pad, stride) = (window.as_ptr(), pad.as_ptr(), stride.as_ptr());
        let status = (t.miopenSetNdPoolingDescriptor)(desc, case.mode, axes as i32, window, pad, stride);
        assert_eq!(status, miopenStatusSuccess);
        assert_eq!((t.miopenSetPoolingIndexType)(desc, case.index), miopenStatusSuccess);
        assert_eq!((t.miopenSetPoolingWorkSpaceIndexMode)(desc, case.index_mode), miopenStatusSuccess);
        let mut size = 0usize;
        assert_eq!((t.miopenPoolingGetWorkSpaceSizeV2)(desc, dy_desc.get(), &mut size), miopenStatusSuccess);
        let space = Device::new(&vec![0xffu8; size]);
        let status = (t.miopenPoolingForward)(
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
        );
        assert_eq!(status, miopenStatusSuccess);
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
    for round in 0..200 {
        // Windows of two by two without padding have a separate loop.
        let (axes, halves) = (if round % 3 == 0 { 3 } else { 2 }, round % 4 == 0);
        let mut draw = |n: usize| (0..axes).map(|_| random.below(n)).collect::<Vec<_>>();
        let window = draw(3).iter().map(|w| w + 1).collect::<Vec<_>>();
        let pad = draw(60).iter().zip(&window).map(|(pad, window)| pad % window).collect();
        let stride = draw(3).iter().map(|s| s + 1).collect();
        let sizes = draw(if axes == 3 { 7 } else { 15 }).into_iter().map(|size| 3 + size);
        let case = Pool {
            x: [1 + round % 2, 1 + round % 5].into_iter().chain(sizes).collect(),
            mode: random.pick(&[
                miopenPoolingMax,
                miopenPoolingMax,
                miopenPoolingAverage,
                miopenPoolingAverageInclusive,
            ]),
            index: random.pick(&[miopenIndexUint16, miopenIndexUint32, miopenIndexUint64]),
            index_mode: random.pick(&[miopenPoolingWorkspaceIndexMask, miopenPoolingWorkspaceIndexImage]),
            window: if halves { vec![2; axes] } else { window },
            pad: if halves { vec![0; axes] } else { pad },
            stride: if halves { vec![2; axes] } else { stride },
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
        x: vec![2, 3, 8, 8],
        window: vec![2; 2],
        pad: vec![0; 2],
        stride: vec![2; 2],
    };
    pool::<f32>(&small, &mut random);
}

/// Strides of axes of length 1 do not matter. The same tensors have them set to different values.
#[test]
fn a_gradients_tensors_may_differ_in_strides_that_do_not_matter() {
    let dnn = Dnn::new();
    let t = &dnn.table;
    let [x, dx] = [(); 2].map(|()| dnn.tensor(miopenFloat, &[1, 3, 4, 4]));
    let [y, dy] = [(); 2].map(|()| dnn.tensor(miopenFloat, &[1, 3, 2, 2]));
    let (values, results) = (Device::new(&[0f32; 48]), Device::new(&[4f32; 12]));
    let gradient = Device::new(&[f32::NAN; 48]);
    let (dims, strides) = ([1, 3, 4, 4], [7, 16, 4, 1]);
    let two = [2, 2];
    let mut desc = core::ptr::null_mut();
    // SAFETY: live descriptors, out-pointers, buffers of the descriptors' sizes.
    unsafe {
        let set = (t.miopenSetTensorDescriptor)(x.get(), miopenFloat, 4, dims.as_ptr(), strides.as_ptr());
        assert_eq!(set, miopenStatusSuccess);
        assert_eq!((t.miopenCreatePoolingDescriptor)(&mut desc), miopenStatusSuccess);
        let (window, pad) = (two.as_ptr(), [0, 0].as_ptr());
        let set = (t.miopenSetNdPoolingDescriptor)(desc, miopenPoolingAverage, 2, window, pad, window);
        assert_eq!(set, miopenStatusSuccess);
        let status = (t.miopenPoolingBackward)(
            dnn.handle,
            desc,
            float(&ONE),
            y.get(),
            results.void(),
            dy.get(),
            results.void(),
            x.get(),
            values.void(),
            float(&ZERO),
            dx.get(),
            gradient.void(),
            core::ptr::null_mut(),
        );
        assert_eq!(status, miopenStatusSuccess);
        assert_eq!((t.miopenDestroyPoolingDescriptor)(desc), miopenStatusSuccess);
    }
    assert_eq!(gradient.get(), [1.0; 48]);
}

/// Indices that are too narrow: hip-provider's check, whose tests hold the rules.
#[test]
fn narrow_indices_are_refused() {
    let dnn = Dnn::new();
    let t = &dnn.table;
    let mut desc = core::ptr::null_mut();
    // SAFETY: live descriptors, out-pointers, buffers of the descriptors' sizes.
    unsafe {
        assert_eq!((t.miopenCreatePoolingDescriptor)(&mut desc), miopenStatusSuccess);
        let (two, none) = ([2; 2], [0; 2]);
        let (two, none) = (two.as_ptr(), none.as_ptr());
        let set = (t.miopenSetNdPoolingDescriptor)(desc, miopenPoolingMax, 2, two, none, two);
        assert_eq!(set, miopenStatusSuccess);
        let image = miopenPoolingWorkspaceIndexImage;
        assert_eq!((t.miopenSetPoolingWorkSpaceIndexMode)(desc, image), miopenStatusSuccess);
        // 32 x 32 pixels need more than a byte to count.
        let (x, y) = (dnn.tensor(miopenFloat, &[1, 1, 32, 32]), dnn.tensor(miopenFloat, &[1, 1, 16, 16]));
        let (bx, by, space) =
            (Device::new(&[0f32; 1024]), Device::new(&[0f32; 256]), Device::new(&[0u8; 2048]));
        let run = |backward| {
            (t.miopenPoolingForward)(
                dnn.handle,
                desc,
                float(&ONE),
                x.get(),
                bx.void(),
                float(&ZERO),
                y.get(),
                by.void(),
                backward,
                space.void(),
                2048,
            )
        };
        assert_eq!(run(true), miopenStatusBadParm);
        assert_eq!(run(false), miopenStatusSuccess);
        assert_eq!((t.miopenDestroyPoolingDescriptor)(desc), miopenStatusSuccess);
    }
}
