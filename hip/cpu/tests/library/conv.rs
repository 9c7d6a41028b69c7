//! Convolutions through MIOpen's table: shapes, descriptors, calls in immediate mode.

use super::dnn::{Dnn, Tensor};
use super::{Device, Random};
use core::ffi::c_void;
use miopen_sys::*;

/// A convolution. `x`, `w` and `y` are the shapes of its tensors.
pub struct Case {
    pub x: Vec<usize>,
    pub w: Vec<usize>,
    pub y: Vec<usize>,
    pub stride: Vec<usize>,
    pub pad: Vec<usize>,
    pub dilation: Vec<usize>,
    pub groups: usize,
}

impl Case {
    pub fn new(
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

    pub fn random(random: &mut Random, axes: usize) -> Option<Case> {
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

    /// Calls `visit(x, w, y)` with the indices of the factors of every product.
    pub fn products(&self, mut visit: impl FnMut(usize, usize, usize)) {
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

pub struct Descriptors {
    pub dnn: Dnn,
    pub x: Tensor,
    pub w: Tensor,
    pub y: Tensor,
    pub conv: miopenConvolutionDescriptor_t,
}

impl Descriptors {
    pub fn new(case: &Case, data: miopenDataType_t, mode: miopenConvolutionMode_t) -> Self {
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

pub fn forward(d: &Descriptors, x: *mut c_void, w: *mut c_void, y: *mut c_void) {
    immediate!(
        d,
        miopenConvolutionForwardGetSolutionCount miopenConvolutionForwardGetSolution
        miopenConvolutionForwardGetSolutionWorkspaceSize miopenConvolutionForwardCompileSolution
        miopenConvolutionForwardImmediate,
        [d.w.get(), d.x.get(), d.y.get()], [w, x, y]
    );
}

pub fn backward_data(d: &Descriptors, dy: *mut c_void, w: *mut c_void, dx: *mut c_void) {
    immediate!(
        d,
        miopenConvolutionBackwardDataGetSolutionCount miopenConvolutionBackwardDataGetSolution
        miopenConvolutionBackwardDataGetSolutionWorkspaceSize miopenConvolutionBackwardDataCompileSolution
        miopenConvolutionBackwardDataImmediate,
        [d.y.get(), d.w.get(), d.x.get()], [dy, w, dx]
    );
}

pub fn backward_weights(d: &Descriptors, dy: *mut c_void, x: *mut c_void, dw: *mut c_void) {
    immediate!(
        d,
        miopenConvolutionBackwardWeightsGetSolutionCount miopenConvolutionBackwardWeightsGetSolution
        miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize miopenConvolutionBackwardWeightsCompileSolution
        miopenConvolutionBackwardWeightsImmediate,
        [d.y.get(), d.x.get(), d.w.get()], [dy, x, dw]
    );
}
