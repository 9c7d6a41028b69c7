//! Times what the host does for a launch: a kernel alone, a chain of 1000 additions of 32x32 with
//! memory for each result, and a product by rocBLAS.
//!
//! `launches [ROUNDS]`, by default 25. The least time is that of an idle machine. For an
//! instruction count run it under `valgrind --tool=callgrind` on the CPU device, with few rounds.

use std::sync::Arc;
use std::time::Instant;

use hip::{Buffer, DType, Device, Functor, MatrixView, Template};

const CALLS: usize = 1000;
const SIDE: usize = 32;

/// Launches `y = a + b` over 32x32 f32.
fn add(device: &Device, a: &Buffer, b: &Buffer, y: &Buffer) -> hip::Result<()> {
    let kernel = Template::binary_contiguous.functor(Functor::Add).ty(DType::F32);
    let count = SIDE * SIDE;
    let launch = device.launch(kernel)?.value(count as u64).buffer(a, 0).buffer(b, 0).output(y, 0);
    // SAFETY: the parameters are the count and three pointers to so many f32.
    unsafe { launch.submit(device.grid_bytes(count * 4), 0) }
}

fn measure(
    name: &str,
    device: &Device,
    rounds: usize,
    body: impl Fn() -> hip::Result<()>,
) -> hip::Result<()> {
    body()?;
    device.sync()?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        body()?;
        times.push(start.elapsed().as_secs_f64() * 1e9 / CALLS as f64);
        device.sync()?;
    }
    times.sort_by(f64::total_cmp);
    println!("{name:32} median {:8.1} ns a call, least {:8.1} ns", times[times.len() / 2], times[0]);
    Ok(())
}

fn main() -> hip::Result<()> {
    let rounds = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(25).max(1);
    let device = Device::get(0)?;
    println!("{}", device.info().name);
    let tensor = || -> hip::Result<Arc<Buffer>> {
        Ok(Arc::new(device.upload(bytemuck::cast_slice(&[1f32; SIDE * SIDE]))?))
    };
    let (a, b, y) = (tensor()?, tensor()?, tensor()?);
    measure("a launch", &device, rounds, || (0..CALLS).try_for_each(|_| add(&device, &a, &b, &y)))?;
    measure("a chain of additions", &device, rounds, || {
        let mut x = a.clone();
        for _ in 0..CALLS {
            let next = device.alloc(SIDE * SIDE * 4)?;
            add(&device, &x, &b, &next)?;
            x = Arc::new(next);
        }
        Ok(())
    })?;
    let blas = device.blas()?;
    let matrix = |buffer| MatrixView {
        buffer,
        offset: 0,
        rows: SIDE,
        cols: SIDE,
        row_stride: SIDE,
        col_stride: 1,
        batch_stride: 0,
    };
    measure("a product", &device, rounds, || {
        (0..CALLS)
            .try_for_each(|_| blas.gemm(DType::F32, 1, matrix(&a), matrix(&b), matrix(&y), 1.0, 0.0, false))
    })
}
