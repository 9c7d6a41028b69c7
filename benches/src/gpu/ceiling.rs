//! The device's ceilings: the bandwidth of a copy, and products of the library when called
//! directly.

use std::sync::Arc;
use std::time::Instant;

use hip::{DType, Device, MatrixView};

use super::sizes::{rotations, scanned};
use crate::Options;
use crate::median::median;

/// Measured ceilings.
pub(crate) struct Ceiling {
    /// Bytes per second, read and written together.
    pub(crate) copy: f64,
    /// The same for a copy that is as long as the cumulative sum. Its start and end take a larger
    /// share of its time.
    pub(crate) short_copy: f64,
    /// The seconds of the library for each of the cases' square products.
    pub(crate) gemm: Vec<(String, f64)>,
}

impl Ceiling {
    /// Measures the copies. The products are measured in turns with the cases whose ceilings they
    /// are ([`direct`]).
    pub(crate) fn measure(device: &Arc<Device>, options: &Options) -> hip::Result<Self> {
        let bytes = (1usize << 30) / options.shrink;
        let (from, to) = (device.alloc(bytes)?, device.alloc(bytes)?);
        device.fill_bytes(&from, 0, 1, bytes)?;
        let rate = |bytes: usize| -> hip::Result<f64> {
            let seconds = time(device, options, || device.copy(&from, 0, &to, 0, bytes))?;
            Ok(2.0 * bytes as f64 / seconds)
        };
        Ok(Self { copy: rate(bytes)?, short_copy: rate(4 * scanned(options))?, gemm: Vec::new() })
    }
}

/// A case's product by the library, called directly. It rotates through as many operands as the
/// case does, and they are random too: a GPU's power draw, and with it its clock, depends on the
/// operands' bits.
pub(crate) fn direct(device: &Arc<Device>, dtype: DType, n: usize) -> hip::Result<Box<dyn FnMut()>> {
    let bytes = n * n * dtype.size();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    let mut operand = || -> hip::Result<hip::Buffer> {
        let numbers = (0..n * n).map(|_| random());
        device.upload(&match dtype {
            DType::BF16 => numbers.flat_map(|x| half::bf16::from_f32(x).to_ne_bytes()).collect::<Vec<u8>>(),
            DType::F16 => numbers.flat_map(|x| half::f16::from_f32(x).to_ne_bytes()).collect(),
            _ => numbers.flat_map(f32::to_ne_bytes).collect(),
        })
    };
    let pairs =
        (0..rotations(2 * bytes)).map(|_| Ok([operand()?, operand()?])).collect::<hip::Result<Vec<_>>>()?;
    let (device, mut next) = (device.clone(), 0);
    Ok(Box::new(move || {
        next = (next + 1) % pairs.len();
        let call = || -> hip::Result<()> {
            let out = device.alloc(bytes)?;
            let [a, b] = [square(&pairs[next][0], n), square(&pairs[next][1], n)];
            device.blas()?.gemm(dtype, 1, a, b, square(&out, n), 1.0, 0.0, false)
        };
        call().expect("the library multiplies");
    }))
}

/// A buffer as a square matrix, row-major.
fn square(buffer: &hip::Buffer, n: usize) -> MatrixView<'_> {
    MatrixView { buffer, offset: 0, rows: n, cols: n, row_stride: n, col_stride: 1, batch_stride: 0 }
}

/// The median seconds of one call, by events.
fn time(device: &Arc<Device>, options: &Options, call: impl Fn() -> hip::Result<()>) -> hip::Result<f64> {
    call()?;
    device.sync()?;
    let start = Instant::now();
    call()?;
    device.sync()?;
    let calls = (0.02 / start.elapsed().as_secs_f64().max(1e-7)).ceil().clamp(1.0, 1000.0) as usize;
    let (before, after) = (device.timing_event()?, device.timing_event()?);
    let mut times = Vec::new();
    for _ in 0..options.iterations.max(1) {
        device.compute_stream().record(&before)?;
        for _ in 0..calls {
            call()?;
        }
        device.compute_stream().record(&after)?;
        after.synchronize()?;
        times.push(f64::from(after.elapsed_since(&before)?) / 1e3 / calls as f64);
    }
    Ok(median(times).expect("a round"))
}
