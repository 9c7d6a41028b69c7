//! MIOpen's pooling through `hip::Dnn` against plain references, on whatever provider the process
//! has.
#![allow(clippy::unwrap_used)] // A test may.

mod common;

use std::sync::Arc;

use common::{close, device, output, random_tensor, read, tensor, tolerance};
use hip::{DType, Device, Error, PoolDesc, PoolMode, TensorArg};

/// MIOpen's pooling has no bf16.
const FLOATS: [DType; 2] = [DType::F32, DType::F16];

/// A window's size, stride and padding.
type Window<'a> = [&'a [usize]; 3];

fn pool(
    device: &Arc<Device>,
    dtype: DType,
    mode: PoolMode,
    index: DType,
    x_shape: &[usize],
    [window, stride, padding]: Window<'_>,
) {
    let axes = window.len();
    let out = |i: usize| (x_shape[i + 2] + 2 * padding[i] - window[i]) / stride[i] + 1;
    let y_shape: Vec<usize> = x_shape[..2].iter().copied().chain((0..axes).map(out)).collect();
    let desc = PoolDesc {
        dtype,
        x: x_shape.to_vec(),
        y: y_shape.clone(),
        window: window.to_vec(),
        stride: stride.to_vec(),
        padding: padding.to_vec(),
        mode,
        index,
    };
    let count = |shape: &[usize]| shape.iter().product::<usize>();
    let (nx, ny, inputs, outputs) =
        (count(x_shape), count(&y_shape), count(&x_shape[2..]), count(&y_shape[2..]));
    // Each plane has distinct values, so every maximum has one index. The values are exact in bf16
    // up to 256.
    let values: Vec<f64> = (0..nx).map(|i| ((i * 89 + i / inputs) % 251) as f64 - 100.0).collect();
    let x = tensor(device, dtype, &values);
    let dy = random_tensor(device, 2, dtype, ny);
    let (mut want_y, mut want_i, mut want_dx) = (vec![0.0; ny], vec![0.0; ny], vec![0.0; nx]);
    for o in 0..ny {
        let at = |i: usize| o / outputs * inputs + i;
        // The positions in the plane that the window covers, in order, axis by axis.
        let (mut inside, mut counted) = (vec![0], 1);
        for i in 0..axes {
            let size = x_shape[i + 2];
            let start = o / count(&y_shape[i + 3..]) % y_shape[i + 2] * stride[i];
            let reach =
                start.saturating_sub(padding[i])..(start + window[i]).saturating_sub(padding[i]).min(size);
            inside = inside.iter().flat_map(|&p| reach.clone().map(move |j| p * size + j)).collect();
            counted *= (start + window[i]).min(size + 2 * padding[i]) - start;
        }
        if mode == PoolMode::Max {
            let mut best = inside[0];
            for &i in &inside {
                if x.values[at(i)] > x.values[at(best)] {
                    best = i;
                }
            }
            want_y[o] = x.values[at(best)];
            want_i[o] = best as f64;
            want_dx[at(best)] += dy.values[o];
        } else {
            let divisor = match mode {
                PoolMode::AverageInclusive => counted,
                _ => inside.len(),
            } as f64;
            want_y[o] = inside.iter().map(|&i| x.values[at(i)]).sum::<f64>() / divisor;
            for &i in &inside {
                want_dx[at(i)] += dy.values[o] / divisor;
            }
        }
    }
    let name = format!("{desc:?}");
    let dnn = device.dnn().expect("MIOpen");
    let y = output(device, dtype, ny);
    let indices = device.upload(&vec![0xff; ny * index.size()]).unwrap();
    let kept = (mode == PoolMode::Max).then_some(TensorArg::new(&indices));
    dnn.pool_forward(&desc, TensorArg::new(&x.buffer), TensorArg::new(&y), kept).expect(&name);
    close(&name, &read(device, &y, dtype, ny), &want_y, tolerance(dtype));
    if mode == PoolMode::Max {
        assert_eq!(read(device, &indices, index, ny), want_i, "{name}");
        let alone = output(device, dtype, ny);
        dnn.pool_forward(&desc, TensorArg::new(&x.buffer), TensorArg::new(&alone), None).expect(&name);
        close(&name, &read(device, &alone, dtype, ny), &want_y, tolerance(dtype));
    }
    let dx = output(device, dtype, nx);
    dnn.pool_backward(&desc, TensorArg::new(&dy.buffer), TensorArg::new(&dx), kept).expect(&name);
    close(&format!("{name} backward"), &read(device, &dx, dtype, nx), &want_dx, tolerance(dtype));
}

#[test]
fn pooling() {
    let device = device();
    for mode in [PoolMode::Max, PoolMode::AverageInclusive, PoolMode::AverageExclusive] {
        for dtype in FLOATS {
            pool(&device, dtype, mode, DType::I64, &[2, 3, 8, 8], [&[2, 2], &[2, 2], &[0, 0]]);
            pool(&device, dtype, mode, DType::I32, &[2, 3, 11, 9], [&[3, 3], &[2, 2], &[1, 1]]);
        }
        pool(&device, DType::F32, mode, DType::I32, &[1, 2, 13, 15], [&[5, 3], &[3, 1], &[2, 1]]);
        pool(&device, DType::F32, mode, DType::I64, &[2, 1, 1, 12], [&[1, 3], &[1, 2], &[0, 1]]);
        pool(&device, DType::F32, mode, DType::I64, &[2, 5, 7, 7], [&[7, 7], &[1, 1], &[0, 0]]);
        pool(&device, DType::F32, mode, DType::I32, &[1, 2, 9, 10], [&[3, 2], &[1, 1], &[0, 0]]);
    }
}

#[test]
fn pooling_in_3d() {
    let device = device();
    for mode in [PoolMode::Max, PoolMode::AverageInclusive, PoolMode::AverageExclusive] {
        for dtype in FLOATS {
            pool(&device, dtype, mode, DType::I64, &[2, 3, 4, 6, 8], [&[2; 3], &[2; 3], &[0; 3]]);
            pool(&device, dtype, mode, DType::I32, &[1, 2, 5, 7, 6], [&[3; 3], &[2; 3], &[1; 3]]);
        }
        pool(&device, DType::F32, mode, DType::I32, &[2, 1, 6, 5, 9], [&[1, 3, 4], &[2, 1, 3], &[0, 1, 2]]);
        pool(&device, DType::F32, mode, DType::I32, &[1, 3, 7, 1, 5], [&[3, 1, 2], &[1, 1, 1], &[1, 0, 1]]);
        pool(&device, DType::F32, mode, DType::I64, &[2, 5, 4, 3, 2], [&[4, 3, 2], &[1; 3], &[0; 3]]);
    }
}

#[test]
fn pooling_refuses_what_does_not_fit() {
    let device = device();
    let x = output(&device, DType::F32, 64);
    let desc = PoolDesc {
        dtype: DType::F32,
        x: vec![1, 1, 8, 8],
        y: vec![1, 1, 4, 4],
        window: vec![2; 2],
        stride: vec![2; 2],
        padding: vec![0; 2],
        mode: PoolMode::Max,
        index: DType::I64,
    };
    let y = output(&device, DType::F32, 16);
    let (x, y) = (TensorArg::new(&x), TensorArg::new(&y));
    let dnn = device.dnn().unwrap();
    // 4 bytes for each index, where 8 are required.
    assert!(matches!(dnn.pool_forward(&desc, x, y, Some(y)), Err(Error::Invalid { .. })));
    assert!(matches!(dnn.pool_backward(&desc, y, x, None), Err(Error::Invalid { .. })));
    for dtype in [DType::I32, DType::BF16] {
        let other = PoolDesc { dtype, ..desc.clone() };
        assert!(matches!(dnn.pool_forward(&other, x, y, None), Err(Error::Unsupported { .. })));
    }
}
