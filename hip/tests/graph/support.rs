//! The kernels, tensors and checks of these tests.

use std::sync::Arc;

use hip::trace::counting;
use hip::{Buffer, DType, Device, Graph, MatrixView, Program};

pub(crate) const PROGRAM: Program<'static> = Program {
    name: "graph.hip",
    source: r#"
#include "prelude.h"
__global__ void add(u64 n, u32 by, const u32 *x, u32 *y) {
    for_each(n, [=](u64 i) { y[i] = x[i] + by; });
}
__global__ void below_100(u64 n, u64 *flag, const u32 *x, u32 *y) {
    for_each(n, [=](u64 i) { y[i] = x[i]; if (x[i] >= 100) *flag = 1; });
}
"#,
    headers: &[],
    options: &[],
};

/// Words of the tensors below: large enough that none shares the pool's small segments.
pub(crate) const N: usize = 400_000;

pub(crate) fn words(device: &Arc<Device>, value: u32, count: usize) -> Buffer {
    device.upload(bytemuck::cast_slice(&vec![value; count])).unwrap()
}

/// Launches `y = x + by`.
pub(crate) fn try_add(device: &Device, by: u32, x: &Buffer, y: &Buffer) -> hip::Result<()> {
    let kernel = device.kernel(&PROGRAM, "add")?;
    let count = y.len() / 4;
    let launch = device.launch_kernel(&kernel)?.value(count as u64).value(by).buffer(x, 0).output(y, 0);
    // SAFETY: the parameters are a u64, a u32 and two pointers to that many u32.
    unsafe { launch.submit(device.grid(count), 0) }
}

#[track_caller]
pub(crate) fn add(device: &Device, by: u32, x: &Buffer, y: &Buffer) {
    try_add(device, by, x, y).unwrap();
}

/// The one value of all words.
#[track_caller]
pub(crate) fn value(buffer: &Buffer) -> u32 {
    let mut bytes = vec![0; buffer.len()];
    buffer.device().read(buffer, 0, &mut bytes).unwrap();
    let all: &[[u8; 4]] = bytemuck::cast_slice(&bytes);
    assert!(all.iter().all(|word| *word == all[0]));
    u32::from_le_bytes(all[0])
}

/// Writes over all that a buffer of the pool could be given now: other tensors of many sizes.
pub(crate) fn junk(device: &Arc<Device>) -> Vec<Buffer> {
    let sizes = (0..60).map(|i| 300 << (i % 15)).chain([4 * N; 12]);
    sizes
        .map(|bytes| {
            let buffer = device.alloc(bytes).unwrap();
            device.fill_bytes(&buffer, 0, 0xee, bytes).unwrap();
            buffer
        })
        .collect()
}

pub(crate) fn is_junk(buffers: &[Buffer]) -> bool {
    buffers.iter().all(|buffer| {
        let mut bytes = vec![0; buffer.len()];
        buffer.device().read(buffer, 0, &mut bytes).unwrap();
        bytes.iter().all(|byte| *byte == 0xee)
    })
}

pub(crate) fn capture<T>(device: &Arc<Device>, body: impl FnOnce() -> T) -> (Graph, T) {
    device.start_capture().unwrap();
    let result = body();
    (device.stop_capture().unwrap(), result)
}

/// That nothing is left of a capture.
#[track_caller]
pub(crate) fn is_usable(device: &Arc<Device>) {
    let (x, y) = (words(device, 3, N), device.alloc(4 * N).unwrap());
    let (_, counts) = counting(|| add(device, 4, &x, &y));
    assert_eq!((counts.kernels, value(&y)), (1, 7));
    device.sync().unwrap();
}

pub(crate) fn matrix(buffer: &Buffer, rows: usize, cols: usize) -> MatrixView<'_> {
    MatrixView { buffer, offset: 0, rows, cols, row_stride: cols, col_stride: 1, batch_stride: rows * cols }
}

/// A product by rocBLAS, on the calling thread's own memory.
pub(crate) fn product_is_right(device: &Arc<Device>) {
    let floats = |value: f32| device.upload(bytemuck::cast_slice(&[value; 64])).unwrap();
    let (a, b, c) = (floats(2.0), floats(3.0), floats(0.0));
    let blas = device.blas().unwrap();
    let [a, b, out] = [&a, &b, &c].map(|buffer| matrix(buffer, 8, 8));
    blas.gemm(DType::F32, 1, a, b, out, 1.0, 0.0, false).unwrap();
    let mut got = [0f32; 64];
    device.read(&c, 0, bytemuck::cast_slice_mut(&mut got)).unwrap();
    assert_eq!(got, [48.0; 64]);
}
