//! MIOpen's convolution through its C table, against sums in `f64`.
#![allow(clippy::unwrap_used)]

mod library;

use core::ffi::c_void;
use half::{bf16, f16};
use library::dnn::{Dnn, Tensor, Typed};
use library::{Device, Random, close, wide};
use miopen_sys::*;

/// A convolution; `x`, `w`, `y` are its shapes.
struct Case {
    x: Vec<usize>,
    w: Vec<usize>,
    y: Vec<usize>,
    stride: Vec<usize>,
    pad: Vec<usize>,
    dilation: Vec<usize>,
    groups: usize,
}

impl Case {
    fn new(
        x: &[usize],
        w: &[usize],
        stride: &[usize],
        pad: &[usize],
        dilation: &[usize],
        groups: usize,
    ) -> Option<Case> {
        let mut y = vec![x[0], w[0]];
        for axis in 0..stride.len() {
            let reach = (w[axis + 2] - 1) * dilation[axis] + 1;
            let room = x[axis + 2] + 2 * pad[axis];
            y.push(room.checked_sub(reach)? / stride[axis] + 1);
        }
        let own = |values: &[usize]| values.to_vec();
        Some(Case {
            x: own(x),
            w: own(w),
            y,
            stride: own(stride),
            pad: own(pad),
            dilation: own(dilation),
            groups,
        })
    }

    fn random(random: &mut Random, axes: usize) -> Option<Case> {
        let groups = random.pick(&[1, 1, 1, 2, 3]);
        let (c, k) = (1 + random.below(4), 1 + random.below(19));
        let mut x = vec![1 + random.below(3), c * groups];
        let mut w = vec![k * groups, c];
        let (mut stride, mut pad, mut dilation) = (vec![], vec![], vec![]);
        for _ in 0..axes {
            x.push(1 + random.below(if axes == 3 { 9 } else { 23 }));
            w.push(1 + random.below(4));
            stride.push(random.pick(&[1, 1, 2, 3]));
            pad.push(random.below(4));
            dilation.push(random.pick(&[1, 1, 2, 3]));
        }
        Case::new(&x, &w, &stride, &pad, &dilation, groups)
    }

    /// Calls `visit(x, w, y)` with the places of the factors of every product.
    fn products(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let axes = self.stride.len();
        let flat =
            |dims: &[usize], at: &[usize]| at.iter().zip(dims).fold(0, |flat, (at, dim)| flat * dim + at);
        let count = |dims: &[usize]| dims.iter().product::<usize>();
        let index = |mut flat: usize, dims: &[usize]| {
            let mut at = vec![0; dims.len()];
            for axis in (0..dims.len()).rev() {
                at[axis] = flat % dims[axis];
                flat /= dims[axis];
            }
            at
        };
        let (c, k) = (self.w[1], self.w[0] / self.groups);
        for y in 0..count(&self.y) {
            let out = index(y, &self.y);
            for tap in 0..count(&self.w[2..]) {
                let tap_at = index(tap, &self.w[2..]);
                let pixel: Option<Vec<usize>> = (0..axes)
                    .map(|axis| {
                        let at = out[axis + 2] * self.stride[axis] + tap_at[axis] * self.dilation[axis];
                        at.checked_sub(self.pad[axis]).filter(|&at| at < self.x[axis + 2])
                    })
                    .collect();
                let Some(pixel) = pixel else { continue };
                for channel in 0..c {
                    let mut at = vec![out[0], out[1] / k * c + channel];
                    at.extend(&pixel);
                    visit(flat(&self.x, &at), (out[1] * c + channel) * count(&self.w[2..]) + tap, y);
                }
            }
        }
    }
}

struct Descriptors {
    dnn: Dnn,
    x: Tensor,
    w: Tensor,
    y: Tensor,
    conv: miopenConvolutionDescriptor_t,
}

impl Descriptors {
    fn new(case: &Case, data: miopenDataType_t, mode: miopenConvolutionMode_t) -> Self {
        let dnn = Dnn::new();
        let ints = |values: &[usize]| values.iter().map(|&value| value as i32).collect::<Vec<_>>();
        let (pad, stride, dilation) = (ints(&case.pad), ints(&case.stride), ints(&case.dilation));
        let mut conv = core::ptr::null_mut();
        // SAFETY: out-pointers and arrays of their length.
        unsafe {
            assert_eq!((dnn.table.miopenCreateConvolutionDescriptor)(&mut conv), miopenStatusSuccess);
            let status = (dnn.table.miopenInitConvolutionNdDescriptor)(
                conv,
                pad.len() as i32,
                pad.as_ptr(),
                stride.as_ptr(),
                dilation.as_ptr(),
                mode,
            );
            assert_eq!(status, miopenStatusSuccess);
            let status = (dnn.table.miopenSetConvolutionGroupCount)(conv, case.groups as i32);
            assert_eq!(status, miopenStatusSuccess);
        }
        let (x, w, y) = (dnn.tensor(data, &case.x), dnn.tensor(data, &case.w), dnn.tensor(data, &case.y));
        let (x, y) = if mode == miopenTranspose { (y, x) } else { (x, y) };
        Descriptors { dnn, x, w, y, conv }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: created above, destroyed once.
        unsafe { (self.dnn.table.miopenDestroyConvolutionDescriptor)(self.conv) };
    }
}

/// Runs one direction in immediate mode with exactly the workspace of its solution.
macro_rules! immediate {
    ($d:expr, $count:ident $solution:ident $size:ident $compile:ident $run:ident,
     [$d0:expr, $d1:expr, $d2:expr], [$b0:expr, $b1:expr, $b2:expr]) => {{
        let table = &$d.dnn.table;
        let mut count = 0usize;
        // SAFETY: live descriptors, out-pointers, buffers of the descriptors' sizes.
        unsafe {
            assert_eq!(
                (table.$count)($d.dnn.handle, $d0, $d1, $d.conv, $d2, &mut count),
                miopenStatusSuccess
            );
            assert!(count >= 1);
            let mut solutions = vec![core::mem::zeroed::<miopenConvSolution_t>(); count];
            let status = (table.$solution)(
                $d.dnn.handle,
                $d0,
                $d1,
                $d.conv,
                $d2,
                count,
                &mut count,
                solutions.as_mut_ptr(),
            );
            assert_eq!(status, miopenStatusSuccess);
            for solution in &solutions[..count] {
                let (id, mut size) = (solution.solution_id, 0usize);
                let status = (table.$size)($d.dnn.handle, $d0, $d1, $d.conv, $d2, id, &mut size);
                assert_eq!((status, size), (miopenStatusSuccess, solution.workspace_size));
                assert_eq!((table.$compile)($d.dnn.handle, $d0, $d1, $d.conv, $d2, id), miopenStatusSuccess);
                let space = Device::new(&vec![0xffu8; size]);
                let run = |size: usize, id: u64| {
                    (table.$run)($d.dnn.handle, $d0, $b0, $d1, $b1, $d.conv, $d2, $b2, space.void(), size, id)
                };
                if size > 0 {
                    assert_eq!(run(size - 1, id), miopenStatusBadParm);
                }
                assert_eq!(run(size, u64::MAX), miopenStatusBadParm);
                assert_eq!(run(size, id), miopenStatusSuccess);
            }
        }
    }};
}

fn forward(d: &Descriptors, x: *mut c_void, w: *mut c_void, y: *mut c_void) {
    immediate!(
        d,
        miopenConvolutionForwardGetSolutionCount miopenConvolutionForwardGetSolution
        miopenConvolutionForwardGetSolutionWorkspaceSize miopenConvolutionForwardCompileSolution
        miopenConvolutionForwardImmediate,
        [d.w.get(), d.x.get(), d.y.get()], [w, x, y]
    );
}

fn backward_data(d: &Descriptors, dy: *mut c_void, w: *mut c_void, dx: *mut c_void) {
    immediate!(
        d,
        miopenConvolutionBackwardDataGetSolutionCount miopenConvolutionBackwardDataGetSolution
        miopenConvolutionBackwardDataGetSolutionWorkspaceSize miopenConvolutionBackwardDataCompileSolution
        miopenConvolutionBackwardDataImmediate,
        [d.y.get(), d.w.get(), d.x.get()], [dy, w, dx]
    );
}

fn backward_weights(d: &Descriptors, dy: *mut c_void, x: *mut c_void, dw: *mut c_void) {
    immediate!(
        d,
        miopenConvolutionBackwardWeightsGetSolutionCount miopenConvolutionBackwardWeightsGetSolution
        miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize miopenConvolutionBackwardWeightsCompileSolution
        miopenConvolutionBackwardWeightsImmediate,
        [d.y.get(), d.x.get(), d.w.get()], [dy, x, dw]
    );
}

fn check<T: Typed>(case: &Case, random: &mut Random) {
    let what = format!(
        "x {:?} w {:?} stride {:?} pad {:?} dilation {:?} groups {}",
        case.x, case.w, case.stride, case.pad, case.dilation, case.groups
    );
    let count = |dims: &[usize]| dims.iter().product::<usize>();
    let x = random.values::<T>(count(&case.x));
    let w = random.values::<T>(count(&case.w));
    let dy = random.values::<T>(count(&case.y));
    let (fx, fw, fdy) = (wide(&x), wide(&w), wide(&dy));
    let (mut y, mut dx, mut dw) = (vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; w.len()]);
    case.products(|i, j, k| {
        y[k] += fx[i] * fw[j];
        dx[i] += fdy[k] * fw[j];
        dw[j] += fdy[k] * fx[i];
    });
    let nan = |len: usize| Device::new(&vec![T::of(f64::NAN); len]);
    let (bx, bw, bdy) = (Device::new(&x), Device::new(&w), Device::new(&dy));
    let (by, bdx, bdw) = (nan(y.len()), nan(dx.len()), nan(dw.len()));
    let d = Descriptors::new(case, T::DATA, miopenConvolution);
    forward(&d, bx.void(), bw.void(), by.void());
    close(&format!("forward {what}"), &by.get(), &y, 1e-30);
    backward_data(&d, bdy.void(), bw.void(), bdx.void());
    close(&format!("backward data {what}"), &bdx.get(), &dx, 1e-30);
    backward_weights(&d, bdy.void(), bx.void(), bdw.void());
    close(&format!("backward weights {what}"), &bdw.get(), &dw, 1e-30);
    // The transposed convolution swaps the first two.
    let d = Descriptors::new(case, T::DATA, miopenTranspose);
    let (by, bdx, bdw) = (nan(y.len()), nan(dx.len()), nan(dw.len()));
    forward(&d, bdy.void(), bw.void(), bdx.void());
    close(&format!("transposed forward {what}"), &bdx.get(), &dx, 1e-30);
    backward_data(&d, bx.void(), bw.void(), by.void());
    close(&format!("transposed backward data {what}"), &by.get(), &y, 1e-30);
    backward_weights(&d, bx.void(), bdy.void(), bdw.void());
    close(&format!("transposed backward weights {what}"), &bdw.get(), &dw, 1e-30);
}

#[test]
fn random_shapes_in_two_and_three_dimensions() {
    let mut random = Random::new("convolution");
    let mut checked = 0;
    while checked < 150 {
        let Some(case) = Case::random(&mut random, if checked % 3 == 0 { 3 } else { 2 }) else { continue };
        match checked % 5 {
            0 => check::<f16>(&case, &mut random),
            1 => check::<bf16>(&case, &mut random),
            _ => check::<f32>(&case, &mut random),
        }
        checked += 1;
    }
}

#[test]
fn the_shapes_that_networks_use() {
    let mut random = Random::new("convolution, networks");
    for (x, w, stride, pad) in [
        ([5, 1, 28, 28], [32, 1, 3, 3], 1, 1),
        ([3, 32, 14, 14], [64, 32, 3, 3], 1, 1),
        ([2, 16, 7, 7], [24, 16, 3, 3], 1, 1),
        ([2, 24, 9, 10], [17, 24, 1, 1], 1, 0),
        ([2, 3, 33, 31], [16, 3, 7, 7], 2, 3),
        ([1, 48, 12, 12], [40, 48, 3, 3], 2, 1),
        ([2, 20, 8, 8], [12, 20, 5, 5], 1, 2),
        ([17, 8, 6, 6], [16, 8, 3, 3], 1, 0),
    ] {
        let case = Case::new(&x, &w, &[stride; 2], &[pad; 2], &[1; 2], 1).unwrap();
        check::<f32>(&case, &mut random);
    }
    // Depthwise.
    let case = Case::new(&[2, 40, 12, 12], &[40, 1, 3, 3], &[1; 2], &[1; 2], &[1; 2], 40).unwrap();
    check::<f32>(&case, &mut random);
}

#[test]
fn three_by_three_without_stride() {
    let mut random = Random::new("convolution, 3x3");
    for round in 0..40 {
        let groups = random.pick(&[1, 1, 2]);
        let (c, k) = (8 + random.below(12), 8 + random.below(20));
        let side = |random: &mut Random| 3 + random.below(18);
        let x = [1 + random.below(9), c * groups, side(&mut random), side(&mut random)];
        let pad = [random.below(4), random.below(4)];
        let Some(case) = Case::new(&x, &[k * groups, c, 3, 3], &[1; 2], &pad, &[1; 2], groups) else {
            continue;
        };
        match round % 4 {
            0 => check::<f16>(&case, &mut random),
            1 => check::<bf16>(&case, &mut random),
            _ => check::<f32>(&case, &mut random),
        }
    }
}

#[test]
fn the_same_bits_every_time() {
    let mut random = Random::new("convolution, bits");
    let case = Case::new(&[9, 8, 13, 11], &[24, 8, 3, 3], &[1; 2], &[1; 2], &[1; 2], 1).unwrap();
    let count = |dims: &[usize]| dims.iter().product::<usize>();
    let (x, w, y) = (count(&case.x), count(&case.w), count(&case.y));
    let (bx, bdy) = (Device::new(&random.values::<f32>(x)), Device::new(&random.values::<f32>(y)));
    let d = Descriptors::new(&case, miopenFloat, miopenConvolution);
    let run = || {
        let dw = Device::new(&vec![0f32; w]);
        backward_weights(&d, bdy.void(), bx.void(), dw.void());
        dw.get().iter().map(|value| value.to_bits()).collect::<Vec<_>>()
    };
    let first = run();
    assert!((0..5).all(|_| run() == first));
}

#[test]
fn find_mode() {
    let mut random = Random::new("convolution, find");
    let case = Case::new(&[2, 3, 8, 8], &[4, 3, 3, 3], &[1; 2], &[1; 2], &[1; 2], 1).unwrap();
    let (x, w) = (random.values::<f32>(2 * 3 * 64), random.values::<f32>(4 * 27));
    let mut expected = vec![0.0; 2 * 4 * 64];
    case.products(|i, j, k| expected[k] += f64::from(x[i]) * f64::from(w[j]));
    let d = Descriptors::new(&case, miopenFloat, miopenConvolution);
    let (bx, bw, by) = (Device::new(&x), Device::new(&w), Device::new(&vec![0f32; expected.len()]));
    let (one, zero) = (1.0f32, 0.0f32);
    let float = |value: &f32| core::ptr::from_ref(value).cast::<c_void>();
    let table = &d.dnn.table;
    // SAFETY: live descriptors, out-pointers, buffers of the descriptors' sizes.
    unsafe {
        let mut size = 0usize;
        let status = (table.miopenConvolutionForwardGetWorkSpaceSize)(
            d.dnn.handle,
            d.w.get(),
            d.x.get(),
            d.conv,
            d.y.get(),
            &mut size,
        );
        assert_eq!(status, miopenStatusSuccess);
        let space = Device::new(&vec![0u8; size]);
        let run = |algorithm, alpha| {
            (table.miopenConvolutionForward)(
                d.dnn.handle,
                float(alpha),
                d.x.get(),
                bx.void(),
                d.w.get(),
                bw.void(),
                d.conv,
                algorithm,
                float(&zero),
                d.y.get(),
                by.void(),
                space.void(),
                size,
            )
        };
        assert_eq!(
            run(miopenConvolutionFwdAlgoDirect, &one),
            miopenStatusUnknownError,
            "find must come first"
        );
        let (mut found, mut perf) = (0, core::mem::zeroed::<miopenConvAlgoPerf_t>());
        let status = (table.miopenFindConvolutionForwardAlgorithm)(
            d.dnn.handle,
            d.x.get(),
            bx.void(),
            d.w.get(),
            bw.void(),
            d.conv,
            d.y.get(),
            by.void(),
            1,
            &mut found,
            &mut perf,
            space.void(),
            size,
            false,
        );
        assert_eq!((status, found), (miopenStatusSuccess, 1));
        assert!(perf.memory <= size);
        assert_eq!(run(perf.algorithm.fwd_algo, &zero), miopenStatusNotImplemented);
        assert_eq!(run(perf.algorithm.fwd_algo, &one), miopenStatusSuccess);
        close("found", &by.get(), &expected, 1.0);
    }
}

#[test]
fn refusals() {
    let case = Case::new(&[1, 2, 5, 5], &[3, 2, 3, 3], &[1; 2], &[0; 2], &[1; 2], 1).unwrap();
    let d = Descriptors::new(&case, miopenFloat, miopenConvolution);
    let table = &d.dnn.table;
    let mut count = 0usize;
    let null = core::ptr::null_mut();
    // SAFETY: live descriptors or null; out-pointers.
    unsafe {
        let mut ask = |handle,
                       w: miopenTensorDescriptor_t,
                       x: miopenTensorDescriptor_t,
                       y: miopenTensorDescriptor_t| {
            (table.miopenConvolutionForwardGetSolutionCount)(handle, w, x, d.conv, y, &mut count)
        };
        let handle = d.dnn.handle;
        assert_eq!(ask(handle, d.w.get(), d.x.get(), d.y.get()), miopenStatusSuccess);
        assert_eq!(ask(core::ptr::null_mut(), d.w.get(), d.x.get(), d.y.get()), miopenStatusBadParm);
        assert_eq!(ask(handle, core::ptr::null_mut(), d.x.get(), d.y.get()), miopenStatusBadParm);
        let wrong = [
            d.dnn.tensor(miopenFloat, &[1, 3, 4, 3]), // size
            d.dnn.tensor(miopenFloat, &[2, 3, 3, 3]), // batch
            d.dnn.tensor(miopenFloat, &[1, 4, 3, 3]), // channels
            d.dnn.tensor(miopenHalf, &[1, 3, 3, 3]),  // type
            d.dnn.tensor(miopenFloat, &[1, 3, 3]),    // rank
        ];
        for y in &wrong {
            assert_eq!(ask(handle, d.w.get(), d.x.get(), y.get()), miopenStatusBadParm);
        }
        let doubles =
            [[3, 2, 3, 3], [1, 2, 5, 5], [1, 3, 3, 3]].map(|dims| d.dnn.tensor(miopenDouble, &dims));
        assert_eq!(
            ask(handle, doubles[0].get(), doubles[1].get(), doubles[2].get()),
            miopenStatusNotImplemented
        );

        let mut solution = core::mem::zeroed::<miopenConvSolution_t>();
        let status = (table.miopenConvolutionForwardGetSolution)(
            handle,
            d.w.get(),
            d.x.get(),
            d.conv,
            d.y.get(),
            1,
            &mut count,
            &mut solution,
        );
        assert_eq!(status, miopenStatusSuccess);
        let space = Device::new(&vec![0u8; solution.workspace_size]);
        let (x, w, y) = (Device::new(&[0f32; 50]), Device::new(&[0f32; 54]), Device::new(&[0f32; 27]));
        let short = Device::new(&[0f32; 10]);
        let host = [0f32; 64];
        let run = |x: *mut c_void, y: *mut c_void| {
            (table.miopenConvolutionForwardImmediate)(
                handle,
                d.w.get(),
                w.void(),
                d.x.get(),
                x,
                d.conv,
                d.y.get(),
                y,
                space.void(),
                space.bytes(),
                solution.solution_id,
            )
        };
        assert_eq!(run(x.void(), y.void()), miopenStatusSuccess);
        assert_eq!(run(null, y.void()), miopenStatusBadParm);
        assert_eq!(run(x.void(), null), miopenStatusBadParm);
        assert_eq!(run(short.void(), y.void()), miopenStatusBadParm);
        assert_eq!(run(host.as_ptr().cast_mut().cast(), y.void()), miopenStatusBadParm);

        let one = [1, 1];
        let init = |pad: &[i32; 2], stride: &[i32; 2], dilation: &[i32; 2], axes: i32| {
            (table.miopenInitConvolutionNdDescriptor)(
                d.conv,
                axes,
                pad.as_ptr(),
                stride.as_ptr(),
                dilation.as_ptr(),
                miopenConvolution,
            )
        };
        assert_eq!(init(&[-1, 0], &one, &one, 2), miopenStatusBadParm);
        assert_eq!(init(&[0, 0], &[0, 1], &one, 2), miopenStatusBadParm);
        assert_eq!(init(&[0, 0], &one, &[0, 1], 2), miopenStatusBadParm);
        assert_eq!(init(&[0, 0], &one, &one, 7), miopenStatusNotImplemented);
        assert_eq!((table.miopenSetConvolutionGroupCount)(d.conv, 0), miopenStatusBadParm);
    }
}
