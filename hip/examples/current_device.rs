//! Times HIP's query for the thread's current device, which every launch makes if there are several
//! devices, beside a launch.

use std::hint::black_box;
use std::time::Instant;

use hip::{DType, Device, Functor, ProviderKind, Template};

const CALLS: u32 = 200_000;

/// Nanoseconds a call, the least of five rounds.
fn nanoseconds(mut call: impl FnMut()) -> f64 {
    let round = |_| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| call());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    (0..5).map(round).fold(f64::MAX, f64::min)
}

fn main() -> hip::Result<()> {
    let device = Device::get(0)?;
    let table = match device.provider().kind() {
        #[cfg(feature = "cpu")]
        ProviderKind::Cpu => hip_cpu::hip_table(),
        #[cfg(feature = "cuda")]
        ProviderKind::Cuda => hip_cuda::hip_table(),
        other => {
            println!("{other}: not measured");
            return Ok(());
        }
    };
    let mut current = 0;
    // SAFETY: the functions are HIP's; the first writes one int.
    let get = nanoseconds(|| unsafe {
        black_box((table.hipGetDevice)(&mut current));
    });
    // SAFETY: as above.
    let set = nanoseconds(|| unsafe {
        black_box((table.hipSetDevice)(0));
    });
    println!("{}: hipGetDevice {get:.1} ns, hipSetDevice {set:.1} ns", device.info().name);
    let x = device.upload(&[0; 16])?;
    let add = Template::binary_contiguous.functor(Functor::Add).ty(DType::F32);
    let mut failed = Ok(());
    let launch = nanoseconds(|| {
        let launch = device.launch(add).map(|launch| {
            let launch = launch.value(4u64).buffer(&x, 0).buffer(&x, 0).buffer(&x, 0);
            // SAFETY: the parameters are the count and three pointers to so many f32.
            unsafe { launch.submit(device.grid(4), 0) }
        });
        if let Err(error) = launch.and_then(|launched| launched) {
            failed = Err(error);
        }
    });
    failed?;
    device.sync()?;
    println!("a launch with {} device(s): {launch:.1} ns", Device::count()?);
    Ok(())
}
