//! The same convolution many times, which is launched as a graph from the second call on: with
//! other numbers in its buffers, after other work, and after its descriptors were set to something
//! else.

use std::ptr::{null, null_mut};

use hip_cuda::{Library, miopen_table};
use hip_sys::*;
use miopen_sys::*;

use crate::norms::values;
use crate::{Memory, gpu, ok};

/// Images of one channel, and a window of 3 x 3 without padding.
struct Shape {
    images: usize,
    side: usize,
    outputs: usize,
}

impl Shape {
    fn reach(&self) -> usize {
        self.side - 2
    }

    fn expected(&self, x: &[f32], w: &[f32]) -> Vec<f64> {
        let (side, reach) = (self.side, self.reach());
        let mut y = Vec::new();
        for image in 0..self.images {
            for output in 0..self.outputs {
                for at in 0..reach * reach {
                    let sum = |tap: usize| {
                        let pixel = (at / reach + tap / 3) * side + at % reach + tap % 3;
                        f64::from(x[image * side * side + pixel]) * f64::from(w[output * 9 + tap])
                    };
                    y.push((0..9).map(sum).sum());
                }
            }
        }
        y
    }
}

fn copy(hip: &Hip, to: &Memory, values: &[f32], stream: hipStream_t) {
    let (bytes, from) = (size_of_val(values), values.as_ptr().cast());
    // SAFETY: the buffer has as many bytes; the wait keeps the source alive.
    unsafe {
        ok((hip.hipMemcpyAsync)(to.address, from, bytes, hipMemcpyHostToDevice, stream));
        ok((hip.hipStreamSynchronize)(stream));
    }
}

pub(crate) fn repeated_calls_follow_what_they_are_given() {
    let hip = gpu(&[Library::Cudnn]);
    let table = miopen_table();
    let (mut stream, mut handle, mut conv) = (null_mut(), null_mut(), null_mut());
    let mut tensors = [null_mut(); 3];
    // SAFETY: the tables' functions and out-pointers; lists of their lengths.
    unsafe {
        ok((hip.hipStreamCreateWithFlags)(&mut stream, hipStreamNonBlocking));
        assert_eq!((table.miopenCreateWithStream)(&mut handle, stream), miopenStatusSuccess);
        assert_eq!((table.miopenCreateConvolutionDescriptor)(&mut conv), miopenStatusSuccess);
        let (none, one) = ([0; 2], [1; 2]);
        let set = (table.miopenInitConvolutionNdDescriptor)(
            conv,
            2,
            none.as_ptr(),
            one.as_ptr(),
            one.as_ptr(),
            miopenConvolution,
        );
        assert_eq!(set, miopenStatusSuccess);
        for tensor in &mut tensors {
            assert_eq!((table.miopenCreateTensorDescriptor)(tensor), miopenStatusSuccess);
        }
    }
    let [x_desc, w_desc, y_desc] = tensors;
    let large = Shape { images: 4, side: 12, outputs: 8 };
    let small = Shape { images: 2, side: 7, outputs: 3 };
    let [x, w, y] = [4 * 12 * 12, 8 * 9, 4 * 8 * 10 * 10].map(|count| Memory::new(&hip, count * 4));
    let mut seed = 0;
    // The shapes in turn. The descriptors and buffers are the same objects with other contents.
    for shape in [&large, &small, &large] {
        let (reach, side) = (shape.reach() as i32, shape.side as i32);
        let (images, outputs) = (shape.images as i32, shape.outputs as i32);
        let all = [
            (x_desc, [images, 1, side, side]),
            (w_desc, [outputs, 1, 3, 3]),
            (y_desc, [images, outputs, reach, reach]),
        ];
        for (tensor, dims) in all {
            // SAFETY: live descriptors and arrays of four.
            let set =
                unsafe { (table.miopenSetTensorDescriptor)(tensor, miopenFloat, 4, dims.as_ptr(), null()) };
            assert_eq!(set, miopenStatusSuccess);
        }
        let mut solutions = [miopenConvSolution_t {
            time: 0.0,
            workspace_size: 0,
            solution_id: 0,
            algorithm: miopenConvolutionAlgoGEMM,
        }; 8];
        let mut count = 0;
        // SAFETY: live descriptors, room for as many solutions as said.
        let asked = unsafe {
            (table.miopenConvolutionForwardGetSolution)(
                handle,
                w_desc,
                x_desc,
                conv,
                y_desc,
                solutions.len(),
                &mut count,
                solutions.as_mut_ptr(),
            )
        };
        assert_eq!(asked, miopenStatusSuccess);
        for solution in &solutions[..count] {
            let space = Memory::new(&hip, solution.workspace_size.max(1));
            for call in 0..5 {
                seed += 1;
                let pixels = values::<f32>(seed, shape.images * shape.side * shape.side, 0.0);
                let window = values::<f32>(seed + 1000, shape.outputs * 9, 0.0);
                copy(&hip, &x, &pixels, stream);
                copy(&hip, &w, &window, stream);
                // SAFETY: live descriptors, and buffers of at least their sizes.
                let run = unsafe {
                    (table.miopenConvolutionForwardImmediate)(
                        handle,
                        w_desc,
                        w.address,
                        x_desc,
                        x.address,
                        conv,
                        y_desc,
                        y.address,
                        space.address,
                        solution.workspace_size,
                        solution.solution_id,
                    )
                };
                assert_eq!(run, miopenStatusSuccess);
                let (found, expected) = (y.read::<f32>(), shape.expected(&pixels, &window));
                for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let error = (f64::from(*found) - expected).abs();
                    // NaN is not a match. Winograd's transforms lose a few digits.
                    let id = solution.solution_id;
                    assert!(error <= 1e-4, "solution {id}, call {call}, at {at}: {found} for {expected}");
                }
            }
        }
    }
    // SAFETY: what was made above, used by nobody any more.
    unsafe {
        for tensor in tensors {
            assert_eq!((table.miopenDestroyTensorDescriptor)(tensor), miopenStatusSuccess);
        }
        assert_eq!((table.miopenDestroyConvolutionDescriptor)(conv), miopenStatusSuccess);
        assert_eq!((table.miopenDestroy)(handle), miopenStatusSuccess);
        ok((hip.hipStreamDestroy)(stream));
    }
}
