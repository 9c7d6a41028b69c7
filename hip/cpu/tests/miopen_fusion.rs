//! MIOpen's fusion plans through its C table: a plan that runs with a workspace and without. What
//! plans refuse is tested in hip-provider.
#![allow(clippy::unwrap_used)]
#![allow(non_upper_case_globals)] // AMD's names.

mod library;

use core::ffi::c_void;
use core::ptr::{self, null_mut};
use library::dnn::Dnn;
use library::{Device, close};
use miopen_sys::*;

const ONE: f32 = 1.0;
const ZERO: f32 = 0.0;

fn float(value: &f32) -> *const c_void {
    ptr::from_ref(value).cast()
}

#[test]
fn plans() {
    let dnn = Dnn::new();
    let t = &dnn.table;
    let tensor = |data, dims: &[usize]| dnn.tensor(data, dims);
    // A 1 x 1 window that doubles two channels and adds them.
    let (x, w) = (tensor(miopenFloat, &[1, 2, 2, 2]), tensor(miopenFloat, &[1, 2, 1, 1]));
    let (bias, y) = (tensor(miopenFloat, &[1, 1, 1, 1]), tensor(miopenFloat, &[1, 1, 2, 2]));
    let bx = Device::new(&[1f32, -2.0, 3.0, -4.0, 10.0, -20.0, 0.0, 1.0]);
    let (bw, bb, by) = (Device::new(&[2f32, 2.0]), Device::new(&[-1f32]), Device::new(&[f32::NAN; 4]));
    let (one, none) = ([1; 2], [0; 2]);
    let (mut conv, mut plan, mut args) = (null_mut(), null_mut(), null_mut());
    // SAFETY: live objects, out-pointers, buffers of the descriptors' sizes.
    unsafe {
        assert_eq!((t.miopenCreateConvolutionDescriptor)(&mut conv), miopenStatusSuccess);
        let set = t.miopenInitConvolutionNdDescriptor;
        let status = set(conv, 2, none.as_ptr(), one.as_ptr(), one.as_ptr(), miopenConvolution);
        assert_eq!(status, miopenStatusSuccess);
        assert_eq!((t.miopenCreateFusionPlan)(&mut plan, miopenVerticalFusion, x.get()), miopenStatusSuccess);
        let (mut multiply, mut add, mut last) = (null_mut(), null_mut(), null_mut());
        assert_eq!((t.miopenCreateOpConvForward)(plan, &mut multiply, conv, w.get()), miopenStatusSuccess);
        assert_eq!((t.miopenCreateOpBiasForward)(plan, &mut add, bias.get()), miopenStatusSuccess);
        let activation = t.miopenCreateOpActivationForward;
        assert_eq!(activation(plan, &mut last, miopenActivationLEAKYRELU), miopenStatusSuccess);

        let run =
            |args, x, y| (t.miopenExecuteFusionPlan)(dnn.handle, plan, x, bx.void(), y, by.void(), args);
        assert_eq!((t.miopenCreateOperatorArgs)(&mut args), miopenStatusSuccess);
        assert_eq!((t.miopenCompileFusionPlan)(dnn.handle, plan), miopenStatusSuccess);
        assert_eq!(run(args, x.get(), y.get()), miopenStatusBadParm, "no arguments");
        let (one, zero) = (float(&ONE), float(&ZERO));
        let leaky = |op| (t.miopenSetOpArgsActivForward)(args, op, one, zero, 0.5, 0.0, 0.0);
        assert_eq!(leaky(last), miopenStatusSuccess);
        assert_eq!((t.miopenSetOpArgsBiasForward)(args, add, one, zero, bb.void()), miopenStatusSuccess);
        assert_eq!((t.miopenSetOpArgsConvForward)(args, multiply, one, zero, bw.void()), miopenStatusSuccess);

        let mut size = usize::MAX;
        let algorithm = miopenConvolutionFwdAlgoDirect;
        let status = (t.miopenFusionPlanGetWorkSpaceSize)(dnn.handle, plan, &mut size, algorithm);
        assert_eq!(status, miopenStatusSuccess);
        let space = Device::new(&vec![0u8; size.max(1)]);
        // Without a workspace, the call succeeds only if none is needed.
        let expected = if size == 0 { miopenStatusSuccess } else { miopenStatusBadParm };
        assert_eq!(run(args, x.get(), y.get()), expected);
        let with_space = t.miopenExecuteFusionPlan_v2.unwrap();
        let (from, to) = (bx.void(), by.void());
        let status = with_space(dnn.handle, plan, x.get(), from, y.get(), to, args, space.void(), size);
        assert_eq!(status, miopenStatusSuccess);
        close("a plan", &by.get(), &[21.0, -22.5, 5.0, -3.5], 1e-30);
        assert_eq!((t.miopenDestroyOperatorArgs)(args), miopenStatusSuccess);
        assert_eq!((t.miopenDestroyFusionPlan)(plan), miopenStatusSuccess);
        assert_eq!((t.miopenDestroyConvolutionDescriptor)(conv), miopenStatusSuccess);
    }
}
