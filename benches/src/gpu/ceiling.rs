//! What the device reaches at most: copying memory, and products by the library called directly.

use std::sync::Arc;
use std::time::Instant;

use hip::{DType, Device, MatrixView};

use crate::Options;

/// Measured ceilings.
pub(crate) struct Ceiling {
    /// Bytes a second, read and written together.
    pub(crate) copy: f64,
    /// Seconds that the library takes for the square products of the cases.
    pub(crate) gemm: Vec<(String, f64)>,
}

/// The dtypes and sizes of the products.
pub(crate) fn products(options: &Options) -> [(&'static str, DType, usize); 3] {
    let n = |n: usize| n / options.shrink.min(64);
    [("f32", DType::F32, n(4096)), ("bf16", DType::BF16, n(8192)), ("f16", DType::F16, n(8192))]
}

impl Ceiling {
    /// Measures them, or the products only where they are asked for.
    pub(crate) fn measure(device: &Arc<Device>, options: &Options) -> hip::Result<Self> {
        let bytes = (1usize << 30) / options.shrink;
        let (from, to) = (device.alloc(bytes)?, device.alloc(bytes)?);
        device.fill_bytes(&from, 0, 1, bytes)?;
        let seconds = time(device, options, || device.copy(&from, 0, &to, 0, bytes))?;
        drop((from, to));
        let mut gemm = Vec::new();
        if options.all || options.matmul {
            for (name, dtype, n) in products(options) {
                let bytes = n * n * dtype.size();
                let [a, b, c] = [device.alloc(bytes)?, device.alloc(bytes)?, device.alloc(bytes)?];
                let numbers: Vec<f32> =
                    (0..n * n).map(|i| ((i * 7919) % 1021) as f32 / 512.0 - 1.0).collect();
                let upload = |numbers: &[f32]| -> Vec<u8> {
                    match dtype {
                        DType::BF16 => {
                            numbers.iter().flat_map(|&x| half::bf16::from_f32(x).to_ne_bytes()).collect()
                        }
                        DType::F16 => {
                            numbers.iter().flat_map(|&x| half::f16::from_f32(x).to_ne_bytes()).collect()
                        }
                        _ => numbers.iter().flat_map(|x| x.to_ne_bytes()).collect(),
                    }
                };
                let data = device.upload(&upload(&numbers))?;
                device.copy(&data, 0, &a, 0, bytes)?;
                device.copy(&data, 0, &b, 0, bytes)?;
                let view = |buffer| MatrixView {
                    buffer,
                    offset: 0,
                    rows: n,
                    cols: n,
                    row_stride: n,
                    col_stride: 1,
                    batch_stride: 0,
                };
                let blas = device.blas()?;
                let seconds = time(device, options, || {
                    blas.gemm(dtype, 1, view(&a), view(&b), view(&c), 1.0, 0.0, false)
                })?;
                gemm.push((format!("matmul {n} {name}"), seconds));
            }
        }
        Ok(Self { copy: 2.0 * bytes as f64 / seconds, gemm })
    }
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
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
