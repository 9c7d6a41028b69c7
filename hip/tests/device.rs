//! Memory, transfers, kernels and errors on a real device of whatever provider the machine has.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use hip::{Buffer, DType, Device, Error, Functor, Program, Template};

const SCALE: Program<'static> = Program {
    name: "scale.hip",
    source: r#"
#include "prelude.h"
template <class T> __global__ void scale(u64 n, T factor, T *x) {
    for_each(n, [=](u64 i) { x[i] = x[i] * factor; });
}
__global__ void raise_flag(u32 code, u32 *flag) {
    for_each(1, [=](u64) { *flag = code; });
}
__global__ void spin(u64 rounds, u64 *x) {
    for_each(1, [=](u64) {
        u64 value = x[0];
        for (u64 i = 0; i < rounds; ++i) value = value * 6364136223846793005ull + 1442695040888963407ull;
        x[0] = value;
    });
}
"#,
    headers: &[],
    options: &[],
};

/// The first device of the process's provider.
fn device() -> Arc<Device> {
    Device::get(0).expect("a provider with a device")
}

fn bytes(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed) as u8).collect()
}

fn read(buffer: &Buffer) -> Vec<u8> {
    let mut out = vec![0; buffer.len()];
    buffer.device().read(buffer, 0, &mut out).expect("read");
    out
}

fn floats(buffer: &Buffer) -> Vec<f32> {
    read(buffer).chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect()
}

#[test]
fn the_device_says_what_it_is() {
    let info = device().info().clone();
    assert!(!info.name.is_empty() && !info.arch.is_empty(), "{info:?}");
    assert!(info.total_memory > 0 && info.compute_units > 0 && info.warp_size > 0, "{info:?}");
    let (free, total) = device().memory_info().unwrap();
    assert!(free <= total && total > 0);
    assert!(Arc::ptr_eq(&device(), &device()));
}

#[test]
fn a_device_index_past_the_end_says_how_many_there_are() {
    let count = Device::count().unwrap();
    match Device::get(count + 7).map(|_| ()) {
        Err(Error::Config { what, expected, found }) => {
            assert_eq!(what, "device index");
            assert!(expected.starts_with(&format!("an index below {count}")), "{expected}");
            assert_eq!(found, (count + 7).to_string());
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(read(&device().upload(&[5]).unwrap()), [5], "the next op works");
}

#[test]
fn bytes_come_back_at_every_size() {
    let device = device();
    for size in [0, 1, 3, 255, 256, 65_535, 65_536, 65_537, 1 << 20, (4 << 20) - 1, (8 << 20) + 5, 13 << 20] {
        let data = bytes(size, 1);
        let buffer = device.upload(&data).unwrap();
        assert_eq!(buffer.len(), size);
        assert!(read(&buffer) == data, "{size} bytes");
        if size > 10 {
            let mut part = vec![0; size / 2];
            device.read(&buffer, 5, &mut part).unwrap();
            assert!(part == data[5..5 + size / 2]);
        }
    }
}

#[test]
fn many_small_uploads_share_pages_and_stay_apart() {
    let device = device();
    let buffers: Vec<_> = (0..300).map(|i| (i, device.upload(&bytes(20_000 + i, i)).unwrap())).collect();
    for (i, buffer) in &buffers {
        assert!(read(buffer) == bytes(20_000 + i, *i), "upload {i}");
    }
}

#[test]
fn an_upload_may_be_larger_than_all_pinned_memory() {
    let data = bytes(100 << 20, 2);
    let buffer = device().upload(&data).unwrap();
    assert!(read(&buffer) == data);
}

#[test]
fn memory_of_an_upload_is_not_overwritten_while_it_is_read() {
    let device = device();
    let spin = device.kernel(&SCALE, "spin").unwrap();
    let busy = device.upload(&[0; 8]).unwrap();
    for round in 0..12 {
        let data = bytes(300_000, round);
        let upload = device.upload(&data).unwrap();
        let launch = device.launch_kernel(&spin).unwrap().value(20_000u64).buffer(&busy, 0);
        // SAFETY: the parameters are a u64 and a pointer to one u64.
        unsafe { launch.submit(device.grid(1), 0).unwrap() };
        let copy = device.alloc(data.len()).unwrap();
        device.copy(&upload, 0, &copy, 0, data.len()).unwrap();
        // Freed before the copy has run, so the next upload gets the same memory.
        drop(upload);
        let next = device.upload(&bytes(300_000, round + 100)).unwrap();
        assert!(read(&copy) == data, "round {round}");
        assert!(read(&next) == bytes(300_000, round + 100));
    }
}

#[test]
fn copies_and_fills() {
    let device = device();
    let data = bytes(1000, 3);
    let source = device.upload(&data).unwrap();
    let target = device.alloc(1000).unwrap();
    device.fill_bytes(&target, 0, 0xab, 1000).unwrap();
    device.copy(&source, 100, &target, 7, 500).unwrap();
    device.copy(&target, 0, &target, 900, 100).unwrap();
    let mut expected = vec![0xab; 1000];
    expected[7..507].copy_from_slice(&data[100..600]);
    expected.copy_within(0..100, 900);
    assert_eq!(read(&target), expected);
}

#[test]
fn ranges_are_checked() {
    let device = device();
    let buffer = device.upload(&[1; 100]).unwrap();
    let other = device.alloc(10).unwrap();
    let mut out = [0; 101];
    let errors = [
        device.read(&buffer, 0, &mut out),
        device.read(&buffer, 101, &mut out[..0]),
        device.read(&buffer, usize::MAX, &mut out[..2]),
        device.fill_bytes(&buffer, 50, 0, 51),
        device.copy(&buffer, 0, &other, 0, 11),
        device.copy(&buffer, 95, &other, 0, 6),
        device.copy(&buffer, 0, &buffer, 5, 10),
        device.copy_from_device(&buffer, 99, 2).map(|_| ()),
    ];
    for error in errors {
        assert!(matches!(error, Err(Error::Invalid { .. })), "{error:?}");
    }
    assert_eq!(read(&buffer), [1; 100]);
}

#[test]
fn a_program_of_the_callers_own_runs() {
    let device = device();
    let kernel = device.kernel(&SCALE, "scale<f32>").unwrap();
    let data: Vec<f32> = (0..10_001).map(|i| i as f32).collect();
    let buffer = device.upload(bytemuck::cast_slice(&data)).unwrap();
    let launch =
        device.launch_kernel(&kernel).unwrap().value(data.len() as u64).value(2.5f32).buffer(&buffer, 0);
    // SAFETY: the parameters are a u64, an f32 and a pointer to so many f32.
    unsafe { launch.submit(device.grid(data.len()), 0).unwrap() };
    assert!(floats(&buffer).iter().enumerate().all(|(i, &x)| x == i as f32 * 2.5));
    assert!(Arc::ptr_eq(&kernel, &device.kernel(&SCALE, "scale<f32>").unwrap()), "compiled once");
    drop(kernel);
    device.forget_kernels();
    device.sync().unwrap();
    assert!(device.kernel(&SCALE, "scale<f32>").is_ok());
}

#[test]
fn built_in_kernels_run() {
    let device = device();
    let name = Template::binary_contiguous.functor(Functor::Add).ty(DType::F32);
    for n in [0usize, 1, 3, 4, 5, 1000, 100_003] {
        let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let x = device.upload(bytemuck::cast_slice(&a)).unwrap();
        let y = device.upload(bytemuck::cast_slice(&a)).unwrap();
        let out = device.alloc(n * 4).unwrap();
        let launch = device.launch(name).unwrap().value(n as u64).buffer(&x, 0).buffer(&y, 0).buffer(&out, 0);
        // SAFETY: the parameters are the count and three pointers to so many f32.
        unsafe { launch.submit(device.grid(n), 0).unwrap() };
        assert!(floats(&out).iter().enumerate().all(|(i, &x)| x == 2.0 * i as f32), "{n}");
    }
}

#[test]
fn a_kernel_that_does_not_compile_gives_the_compilers_log() {
    let device = device();
    let program =
        Program { source: "template <class T> __global__ void broken(T *x) { x = nonsense; }", ..SCALE };
    match device.kernel(&program, "broken<float>").map(|_| ()) {
        Err(Error::Compilation { kernel, options, log }) => {
            assert_eq!(kernel, "broken<float>");
            assert!(options.iter().any(|option| option.starts_with("--offload-arch=")), "{options:?}");
            assert!(log.contains("nonsense"), "{log}");
        }
        other => panic!("{other:?}"),
    }
    let missing = device.kernel(&SCALE, "no_such_kernel<float>").map(|_| ());
    assert!(matches!(missing, Err(Error::Compilation { .. })), "{missing:?}");
    let unlisted = device.launch(Template::binary_contiguous.name()).map(|_| ());
    assert!(
        matches!(&unlisted, Err(Error::Compilation { log, .. }) if log.contains("table")),
        "{unlisted:?}"
    );
    assert!(device.kernel(&SCALE, "scale<f64>").is_ok(), "the next one compiles");
}

/// The key of a code object on disk does not cover a header that an option names.
#[test]
fn a_header_on_disk_that_changes_is_read_again() {
    let device = device();
    let folder = std::env::temp_dir().join(format!("hip-headers-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let option = format!("-I{}", folder.display());
    let options = [option.as_str()];
    let source = "#include \"value.h\"\nextern \"C\" __global__ void write_value(int *p) { *p = VALUE; }";
    let program = Program { name: "value.hip", source, headers: &[], options: &options };
    for value in [1, 2] {
        std::fs::write(folder.join("value.h"), format!("#define VALUE {value}\n")).unwrap();
        device.forget_kernels();
        let kernel = device.kernel(&program, "write_value").unwrap();
        let buffer = device.upload(&[0; 4]).unwrap();
        let launch = device.launch_kernel(&kernel).unwrap().buffer(&buffer, 0);
        // SAFETY: the parameter is a pointer to one int.
        unsafe { launch.submit(device.grid(1), 0).unwrap() };
        assert_eq!(read(&buffer), i32::to_le_bytes(value));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn launches_check_their_arguments() {
    let device = device();
    let kernel = device.kernel(&SCALE, "scale<f32>").unwrap();
    let buffer = device.upload(&[0; 16]).unwrap();
    let grid = device.grid(1);
    for offset in [17, usize::MAX] {
        let past_the_end = device.launch_kernel(&kernel).unwrap().buffer(&buffer, offset);
        // SAFETY: refused before anything is launched.
        assert!(matches!(unsafe { past_the_end.submit(grid, 0) }, Err(Error::Invalid { .. })), "{offset}");
    }
    let too_many = (0..=hip::MAX_ARGUMENTS)
        .fold(device.launch_kernel(&kernel).unwrap(), |launch, i| launch.value(i as u32));
    // SAFETY: refused before anything is launched.
    assert!(matches!(unsafe { too_many.submit(grid, 0) }, Err(Error::Invalid { .. })));
    let full = (0..hip::MAX_ARGUMENT_BYTES / 512)
        .fold(device.launch_kernel(&kernel).unwrap(), |launch, _| launch.value([0u64; 64]));
    let too_large = full.value(0u8);
    // SAFETY: refused before anything is launched.
    assert!(matches!(unsafe { too_large.submit(grid, 0) }, Err(Error::Invalid { .. })));
    assert_eq!(read(&buffer), [0; 16]);
}

/// A kernel that adds a number of this type.
#[cfg(unix)]
fn float(launch: hip::Launch<'_>, dtype: DType, value: f64) -> hip::Launch<'_> {
    if dtype == DType::F64 { launch.value(value) } else { launch.value(value as f32) }
}

/// Threads whose stacks are examined afterwards. Windows lets a program place no stack.
#[cfg(unix)]
mod measured {
    use std::ffi::c_void;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    /// A page of a stack, filled with [`UNUSED`].
    #[derive(Clone)]
    #[repr(align(4096))]
    struct Page([u8; 4096]);

    /// The value of the bytes of a stack that nobody has written.
    const UNUSED: u8 = 0xa5;

    /// Runs `body` on a thread of its own. Returns its result, and the bytes of stack down to the
    /// lowest that was written. A guard page would not stop a frame that steps over it.
    pub(crate) fn on_measured_stack<T: Send>(body: impl FnOnce() -> T + Send) -> (T, usize) {
        type Work<'a> = Box<dyn FnOnce() + Send + 'a>;

        extern "C" fn run(work: *mut c_void) -> *mut c_void {
            // SAFETY: the pointer is from `Box::into_raw` below, and only this thread takes it.
            let work = unsafe { Box::from_raw(work.cast::<Work<'_>>()) };
            work();
            std::ptr::null_mut()
        }

        let mut stack = vec![Page([UNUSED; 4096]); 1024];
        let mut result = None;
        let work: Work<'_> = Box::new(|| result = Some(catch_unwind(AssertUnwindSafe(body))));
        let work = Box::into_raw(Box::new(work));
        // SAFETY: the attributes are initialised before they are used. The stack and the variables that
        // `work` refers to are this function's, which waits for the thread.
        unsafe {
            let mut attributes = std::mem::zeroed();
            let mut thread = std::mem::zeroed();
            assert_eq!(libc::pthread_attr_init(&mut attributes), 0);
            let size = size_of_val(&*stack);
            assert_eq!(libc::pthread_attr_setstack(&mut attributes, stack.as_mut_ptr().cast(), size), 0);
            assert_eq!(libc::pthread_create(&mut thread, &attributes, run, work.cast()), 0);
            assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
            libc::pthread_attr_destroy(&mut attributes);
        }
        let untouched = stack.iter().flat_map(|page| &page.0).take_while(|&&byte| byte == UNUSED).count();
        let result = result.expect("the thread has run").unwrap_or_else(|panic| resume_unwind(panic));
        (result, size_of_val(&*stack) - untouched)
    }
}

/// Applications may create threads with small stacks.
#[cfg(unix)]
#[test]
fn attention_takes_little_of_its_callers_stack() {
    const STACK: usize = 256 << 10;
    let device = device();
    let (queries, keys, width) = (3usize, 2usize, 4usize);
    for dtype in [DType::F64, DType::F32] {
        let element = dtype.size();
        let kernel = Template::attention.ty(dtype).int(0);
        // Equal keys have equal weights: the result is the mean of the values, whose rows are 1 and
        // 3.
        let values = match dtype {
            DType::F64 => bytemuck::cast_slice(&[1f64, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 3.0]).to_vec(),
            _ => bytemuck::cast_slice(&[1f32, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 3.0]).to_vec(),
        };
        let (mean, stack) = measured::on_measured_stack(|| {
            let q = device.upload(&vec![0; queries * width * element]).unwrap();
            let k = device.upload(&vec![0; keys * width * element]).unwrap();
            let v = device.upload(&values).unwrap();
            let out = device.alloc(queries * width * element).unwrap();
            let rows = [0i64, 0, width as i64, 1];
            let shape = [1i64, 1, queries as i64, keys as i64, width as i64, width as i64, 1];
            let all_keys = [1u32 << 31, (1 << 31) - 1];
            let launch = device.launch(kernel).unwrap().value(shape);
            let launch = launch.value(rows).value(rows).value(rows).value([0i64; 4]).value([0i64; 4]);
            let launch = launch.buffer(&q, 0).buffer(&k, 0).buffer(&v, 0);
            let launch = launch.value(0u64).value(0u64).value(0u64);
            let launch = float(float(launch, dtype, 1.0), dtype, 0.0).value(all_keys).value(1u32);
            let launch =
                float(launch, dtype, 0.0).value(0u32).value(0u64).value(0u64).value(0u32).value(0u32);
            let launch = float(launch, dtype, 1.0).buffer(&out, 0).value(0u64);
            // SAFETY: the parameters of `attention`, without mask, bias, offsets and sums.
            unsafe { launch.submit(device.grid_rows(1, usize::MAX), 0).unwrap() };
            read(&out)
        });
        let found: Vec<f64> = match dtype {
            DType::F64 => mean.chunks_exact(8).map(|x| f64::from_le_bytes(x.try_into().unwrap())).collect(),
            _ => mean.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap()).into()).collect(),
        };
        assert_eq!(found, [2.0; 12], "{dtype:?}");
        assert!(stack <= STACK, "{dtype:?}: {stack} bytes of the caller's stack");
    }
}

#[test]
fn more_memory_than_there_is_harms_nobody() {
    let device = device();
    let kept = device.upload(&bytes(1 << 20, 9)).unwrap();
    let (_, total) = device.memory_info().unwrap();
    for asked in [total + 1, total * 4, usize::MAX / 2, usize::MAX] {
        match device.alloc(asked).map(|_| ()) {
            Err(Error::OutOfMemory { requested, free, total: all, .. }) => {
                assert_eq!(requested, asked);
                assert!(free <= all && all > 0, "{free} of {all}");
            }
            other => panic!("{asked} bytes: {other:?}"),
        }
    }
    assert!(read(&kept) == bytes(1 << 20, 9));
    assert!(device.alloc(1 << 20).is_ok());
}

#[test]
fn threads_share_a_device() {
    let device = device();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let device = &device;
            scope.spawn(move || {
                let kernel = device.kernel(&SCALE, "scale<f32>").unwrap();
                for round in 1..30usize {
                    let n = 1 + (round * 7919 * (thread + 1)) % 60_000;
                    let data: Vec<f32> = (0..n).map(|i| (i + thread) as f32).collect();
                    let buffer = device.upload(bytemuck::cast_slice(&data)).unwrap();
                    let launch = device.launch_kernel(&kernel).unwrap();
                    let launch = launch.value(n as u64).value(round as f32).buffer(&buffer, 0);
                    // SAFETY: the parameters are a u64, an f32 and a pointer to so many f32.
                    unsafe { launch.submit(device.grid(n), 0).unwrap() };
                    let expected = |i: usize| (i + thread) as f32 * round as f32;
                    assert!(floats(&buffer).iter().enumerate().all(|(i, &x)| x == expected(i)));
                }
            });
        }
    });
    device.memory_cleanup().unwrap();
}

#[test]
fn two_devices_copy_between_each_other() {
    const DEVICES: &str = "BURN_ROCM_CPU_DEVICES";
    let Ok(second) = Device::get(1) else {
        // In a process that asks for two, the CPU provider has two devices.
        assert!(std::env::var_os(DEVICES).is_none(), "one device only");
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "two_devices_copy_between_each_other"])
            .envs([(DEVICES, "2"), ("BURN_ROCM_PROVIDER", "cpu")])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(text.contains("1 passed"), "{text}\n{}", String::from_utf8_lossy(&child.stderr));
        return;
    };
    let first = device();
    for size in [0, 10, 100_000, 5 << 20] {
        let data = bytes(size, 4);
        let here = first.upload(&data).unwrap();
        let there = second.copy_from_device(&here, 0, size).unwrap();
        drop(here);
        assert!(Arc::ptr_eq(there.device(), &second));
        let noise = first.upload(&vec![0xff; size]).unwrap();
        assert!(read(&there) == data);
        let back = first.copy_from_device(&there, size / 2, size - size / 2).unwrap();
        assert!(read(&back) == data[size / 2..]);
        drop(noise);
    }
    let here = first.upload(&[1; 10]).unwrap();
    let mut out = [0; 10];
    assert!(matches!(second.read(&here, 0, &mut out), Err(Error::Invalid { .. })));
    let kernel = second.kernel(&SCALE, "scale<f32>").unwrap();
    assert!(first.launch_kernel(&kernel).is_err());
    let launch = second.launch_kernel(&kernel).unwrap().value(1u64).value(1f32).buffer(&here, 0);
    // SAFETY: refused before anything is launched.
    let refused = unsafe { launch.submit(second.grid(1), 0) };
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
}

#[test]
fn events_measure_time() {
    let device = device();
    let (start, end) = (device.timing_event().unwrap(), device.timing_event().unwrap());
    device.compute_stream().record(&start).unwrap();
    device.fill_bytes(&device.alloc(1 << 20).unwrap(), 0, 1, 1 << 20).unwrap();
    device.compute_stream().record(&end).unwrap();
    end.synchronize().unwrap();
    assert!(end.query().unwrap());
    assert!(end.elapsed_since(&start).unwrap() >= 0.0);
}

#[test]
fn a_late_read_has_the_bytes_of_its_beginning() {
    let device = Device::get(0).expect("a provider with a device");
    let buffer = device.upload(&[7; 100]).expect("a buffer");
    let read = device.begin_read(&buffer, 10, 3).expect("a read");
    device.write(&buffer, 0, &[9; 100]).expect("a write");
    let later = device.begin_read(&buffer, 97, 3).expect("a read");
    drop(device.begin_read(&buffer, 0, 100).expect("a read that nobody waits for"));
    drop(buffer);
    assert_eq!(later.wait().expect("bytes").0, [9; 3]);
    assert_eq!(read.wait().expect("bytes").0, [7; 3]);
}

#[test]
fn a_late_read_is_small_and_inside_the_buffer() {
    const MOST: usize = 64 << 10;
    let device = Device::get(0).expect("a provider with a device");
    let buffer = device.upload(&vec![1; MOST + 1]).expect("a buffer");
    for (offset, bytes, text) in [(0, MOST + 1, "at most 65536 bytes"), (2, MOST, "a range inside")] {
        let error = device.begin_read(&buffer, offset, bytes).expect_err("refused").to_string();
        assert!(error.contains(text), "{error}");
    }
    let read = |offset, bytes| device.begin_read(&buffer, offset, bytes).expect("a read").wait();
    assert_eq!(read(1, MOST).expect("bytes").0, vec![1; MOST]);
    assert!(read(5, 0).expect("no bytes").0.is_empty());
}
