//! Layer norm and T5 layer norm on this provider's own kernels, compared with sums in `f64`: rows
//! that a warp keeps in registers, rows that a block keeps, and rows that neither keeps.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use half::{bf16, f16};
use hip_cuda::{Library, miopen_table};
use hip_sys::Hip;
use miopen_sys::*;

use crate::{Memory, gpu};

/// An element type: MIOpen's name, and a bound on the relative error of a result.
pub(crate) trait Number: Copy + Default {
    const DATA: miopenDataType_t;
    const ERROR: f64;
    fn of(value: f64) -> Self;
    fn wide(self) -> f64;
}
macro_rules! number {
    ($($type:ty, $data:expr, $error:expr, $of:expr;)*) => { $(impl Number for $type {
        const DATA: miopenDataType_t = $data;
        const ERROR: f64 = $error;
        fn of(value: f64) -> Self { $of(value) }
        fn wide(self) -> f64 { f64::from(self) }
    })* };
}
number! {
    f32, miopenFloat, 1e-5, |value| value as f32;
    f16, miopenHalf, 2e-3, f16::from_f64;
    bf16, miopenBFloat16, 1.6e-2, bf16::from_f64;
}

struct Dnn {
    table: Miopen,
    handle: miopenHandle_t,
    hip: Hip,
}

impl Dnn {
    fn new() -> Self {
        let hip = gpu(&[Library::Cudnn]);
        let (table, mut handle) = (miopen_table(), null_mut());
        // SAFETY: the table's function and an out-pointer.
        let status = unsafe { (table.miopenCreateWithStream)(&mut handle, null_mut()) };
        assert_eq!(status, miopenStatusSuccess);
        Self { table, handle, hip }
    }

    /// A descriptor, which the test never destroys.
    fn tensor(&self, data: miopenDataType_t, dims: &[usize]) -> miopenTensorDescriptor_t {
        let dims: Vec<i32> = dims.iter().map(|&dim| dim as i32).collect();
        let mut made = null_mut();
        // SAFETY: the table's functions, an out-pointer, and arrays of their length.
        unsafe {
            assert_eq!((self.table.miopenCreateTensorDescriptor)(&mut made), miopenStatusSuccess);
            let (rank, dims) = (dims.len() as i32, dims.as_ptr());
            let status = (self.table.miopenSetTensorDescriptor)(made, data, rank, dims, null());
            assert_eq!(status, miopenStatusSuccess);
        }
        made
    }
}

/// Values in -1..1 around `offset`, rounded to the type.
pub(crate) fn values<T: Number>(seed: u64, count: usize, offset: f64) -> Vec<T> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..count).map(|_| T::of(next() + offset)).collect()
}

#[track_caller]
fn close<T: Number>(what: &str, found: &Memory, expected: &[f64], factor: f64) {
    let found: Vec<T> = found.read();
    let scale = expected.iter().fold(1.0f64, |scale, value| scale.max(value.abs()));
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found.wide() - expected).abs() / scale;
        // NaN is not a match.
        assert!(error <= factor * T::ERROR, "{what}: at {at} found {} expected {expected}", found.wide());
    }
}

fn wide<T: Number>(values: &[T]) -> Vec<f64> {
    values.iter().map(|value| value.wide()).collect()
}

/// Rows of `len` values around `offset`.
fn layer_norm<T: Number>(dnn: &Dnn, rows: usize, len: usize, offset: f64, with_parameters: bool) {
    let what =
        format!("{} bytes, {rows} x {len} around {offset}, parameters {with_parameters}", size_of::<T>());
    let (table, handle, hip) = (&dnn.table, dnn.handle, &dnn.hip);
    let mode = if with_parameters { MIOPEN_WEIGHT_BIAS } else { MIOPEN_ELEMENTWISE_AFFINE };
    let epsilon = 1e-3f32;
    let (x, dy) = (values::<T>(1, rows * len, offset), values::<T>(2, rows * len, 0.0));
    let (weight, bias) = (values::<T>(3, len, 0.0), values::<T>(4, len, 0.0));
    let (fx, fdy, mut fw, mut fb) = (wide(&x), wide(&dy), wide(&weight), wide(&bias));
    if !with_parameters {
        fw.fill(1.0);
        fb.fill(0.0);
    }
    let (mut y, mut dx) = (vec![0.0; rows * len], vec![0.0; rows * len]);
    let (mut means, mut rstds, mut dw, mut db) = (vec![], vec![], vec![0.0; len], vec![0.0; len]);
    for row in 0..rows {
        let own = row * len..(row + 1) * len;
        let mean = fx[own.clone()].iter().sum::<f64>() / len as f64;
        let variance = fx[own.clone()].iter().map(|x| (x - mean).powi(2)).sum::<f64>() / len as f64;
        let rstd = 1.0 / (variance + f64::from(epsilon)).sqrt();
        // The gradient uses the statistics as they were stored, rounded.
        let (centre, scale) = (T::of(mean).wide(), T::of(rstd).wide());
        let normal = |i: usize| (fx[i] - centre) * scale;
        let sum = own.clone().map(|i| fdy[i] * fw[i % len]).sum::<f64>() / len as f64;
        let moment = own.clone().map(|i| fdy[i] * fw[i % len] * normal(i)).sum::<f64>() / len as f64;
        for i in own {
            y[i] = (fx[i] - mean) * rstd * fw[i % len] + fb[i % len];
            dx[i] = scale * (fdy[i] * fw[i % len] - sum - normal(i) * moment);
            dw[i % len] += fdy[i] * normal(i);
            db[i % len] += fdy[i];
        }
        means.push(mean);
        rstds.push(rstd);
    }
    let [d, p, s] = [&[rows, len, 1][..], &[len, 1], &[rows]].map(|dims| dnn.tensor(T::DATA, dims));
    let nan = |count: usize| Memory::of(hip, &vec![T::of(f64::NAN); count]);
    let [bx, bdy, bw, bb] = [&x, &dy, &weight, &bias].map(|values| Memory::of(hip, values));
    let [by, bdx, bw2, bb2, bm, br] = [rows * len, rows * len, len, len, rows, rows].map(nan);
    let forward = |axis: i32, y: *mut c_void, mean: *mut c_void| {
        let call = table.miopenLayerNormForward.unwrap();
        let [x, weight, bias, rstd] = [&bx, &bw, &bb, &br].map(|memory| memory.address);
        // SAFETY: live descriptors; the buffers, or pointers that are refused.
        unsafe { call(handle, mode, d, x, p, weight, p, bias, epsilon, axis, d, y, s, mean, s, rstd) }
    };
    assert_eq!(forward(1, by.address, bm.address), miopenStatusSuccess, "{what}");
    // If the mean is not a multiple of the type's step, rounding it would change a 16-bit y by as
    // much. The kernel computed y from the exact mean.
    close::<T>(&format!("{what}: y"), &by, &y, 4.0 * (1.0 + offset / 100.0));
    close::<T>(&format!("{what}: mean"), &bm, &means, 1.0);
    close::<T>(&format!("{what}: 1/deviation"), &br, &rstds, 4.0 * (1.0 + offset / 100.0));
    for refused in [
        forward(3, by.address, bm.address),
        forward(-1, by.address, bm.address),
        forward(1, null_mut(), bm.address),
        forward(1, by.address, null_mut()),
    ] {
        assert_eq!(refused, miopenStatusBadParm, "{what}");
    }
    let mut bytes = usize::MAX;
    let size = table.miopenGetLayerNormBackwardWorkspaceSize.unwrap();
    // SAFETY: live descriptors, an out-pointer.
    let status = unsafe { size(handle, mode, d, d, p, s, s, 1, d, p, p, &mut bytes) };
    assert_eq!((status, bytes), (miopenStatusSuccess, 0));
    // The statistics rounded once, not those that the kernel stored. If the mean is large, an error
    // in their last place would change `dx`.
    let [rounded_mean, rounded_rstd] = [&means, &rstds]
        .map(|all| Memory::of(hip, &all.iter().map(|&value| T::of(value)).collect::<Vec<_>>()));
    let backward = |dw: *mut c_void, db: *mut c_void| {
        let call = table.miopenLayerNormBackward.unwrap();
        let [dy, x, weight, mean, rstd, dx] =
            [&bdy, &bx, &bw, &rounded_mean, &rounded_rstd, &bdx].map(|memory| memory.address);
        // SAFETY: as above.
        unsafe {
            let none = null_mut();
            call(handle, mode, none, 0, d, dy, d, x, p, weight, s, mean, s, rstd, 1, d, dx, p, dw, p, db)
        }
    };
    assert_eq!(backward(null_mut(), null_mut()), miopenStatusSuccess, "{what}");
    close::<T>(&format!("{what}: dx"), &bdx, &dx, 4.0);
    assert_eq!(backward(bw2.address, null_mut()), miopenStatusBadParm, "both or neither");
    assert_eq!(backward(bw2.address, bb2.address), miopenStatusSuccess, "{what}");
    close::<T>(&format!("{what}: dw"), &bw2, &dw, 4.0);
    close::<T>(&format!("{what}: db"), &bb2, &db, 4.0);
}

fn t5_norm<T: Number>(dnn: &Dnn, rows: usize, len: usize) {
    let what = format!("T5, {} bytes, {rows} x {len}", size_of::<T>());
    let (x, weight) = (values::<T>(5, rows * len, 0.5), values::<T>(6, len, 0.0));
    let (fx, fw) = (wide(&x), wide(&weight));
    let epsilon = 0.25f32;
    let of_row =
        |row: &[f64]| 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / len as f64 + f64::from(epsilon)).sqrt();
    let rstds: Vec<f64> = fx.chunks(len).map(of_row).collect();
    let y: Vec<f64> = (0..rows * len).map(|i| fx[i] * rstds[i / len] * fw[i % len]).collect();
    let [d, p, s] = [&[rows, 1, len][..], &[len], &[rows]].map(|dims| dnn.tensor(T::DATA, dims));
    let [bx, bw] = [&x, &weight].map(|values| Memory::of(&dnn.hip, values));
    let [by, br] = [rows * len, rows].map(|count| Memory::of(&dnn.hip, &vec![T::of(f64::NAN); count]));
    let forward = |mode: miopenNormMode_t, rstd: *mut c_void| {
        let call = dnn.table.miopenT5LayerNormForward.unwrap();
        let [x, weight, y] = [&bx, &bw, &by].map(|memory| memory.address);
        // SAFETY: live descriptors; the buffers, or null, which is left out.
        unsafe { call(dnn.handle, mode, d, x, p, weight, epsilon, d, y, s, rstd) }
    };
    assert_eq!(forward(MIOPEN_WEIGHT_BIAS, br.address), miopenStatusNotImplemented);
    for rstd in [null_mut(), br.address] {
        assert_eq!(forward(MIOPEN_WEIGHT_BIAS_T5, rstd), miopenStatusSuccess, "{what}");
        close::<T>(&what, &by, &y, 4.0);
    }
    close::<T>(&format!("{what}: 1/rms"), &br, &rstds, 4.0);
}

/// Lengths that are multiples of 16-byte pieces and lengths that are not, in each range of the
/// kernels for elements of 4 and of 2 bytes.
const SHAPES: [(usize, usize); 11] = [
    (1, 1),
    (5, 33),
    (9, 64),
    (300, 96),
    (7, 1000),
    (70_000, 8),
    (3, 2048),
    (2, 4096),
    (2, 8192),
    (2, 16384),
    (2, 20_000),
];

fn every_shape<T: Number>(dnn: &Dnn) {
    for (rows, len) in SHAPES {
        // A row of length 1 normalises to the bias alone, so its gradient consists of rounding
        // errors.
        if len > 1 {
            layer_norm::<T>(dnn, rows, len, 0.0, true);
            layer_norm::<T>(dnn, rows, len, 0.0, false);
        }
        t5_norm::<T>(dnn, rows, len);
    }
}

pub(crate) fn rows_of_every_length_and_type() {
    let dnn = Dnn::new();
    every_shape::<f32>(&dnn);
    every_shape::<f16>(&dnn);
    every_shape::<bf16>(&dnn);
}

pub(crate) fn a_large_mean_costs_no_digits() {
    let dnn = Dnn::new();
    for (rows, len) in [(4, 100), (3, 512), (3, 4096), (2, 16384), (2, 10_001)] {
        layer_norm::<f32>(&dnn, rows, len, 1000.0, true);
    }
}

pub(crate) fn types_that_it_has_not_are_refused() {
    let dnn = Dnn::new();
    let [d, p, s] = [&[4, 8][..], &[8], &[4]].map(|dims| dnn.tensor(miopenDouble, dims));
    let memory = Memory::new(&dnn.hip, 4 * 8 * 8);
    let at = memory.address;
    // SAFETY: live descriptors, a buffer as large as the largest.
    unsafe {
        let layer = dnn.table.miopenLayerNormForward.unwrap();
        let status = layer(dnn.handle, MIOPEN_WEIGHT_BIAS, d, at, p, at, p, at, 1e-5, 1, d, at, s, at, s, at);
        assert_eq!(status, miopenStatusNotImplemented);
        let t5 = dnn.table.miopenT5LayerNormForward.unwrap();
        let status = t5(dnn.handle, MIOPEN_WEIGHT_BIAS_T5, d, at, p, at, 1e-5, d, at, s, at);
        assert_eq!(status, miopenStatusNotImplemented);
    }
}
