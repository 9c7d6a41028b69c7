//! Tensors in memory that other libraries share: raw pointers and DLPack, both ways.
//!
//! These tests have their own program, which defers element-wise ops on every device, and run one
//! at a time, because a sync reports the errors of the whole device.
#![allow(missing_docs, clippy::unwrap_used)]

mod managed;
mod streams;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Once};

use burn_backend::tensor::FloatTensor;
use burn_rocm::graph::{self, Graph};
use burn_rocm::interop::*;
use burn_rocm::{
    Config, RocmDevice, RocmError, RocmTensor, memory_snapshot, memory_summary, read_with_fault,
};
use burn_rocm_tests::*;
use hip::MemorySpace;
use serial_test::serial;

fn device() -> RocmDevice {
    static CHAINS: Once = Once::new();
    CHAINS.call_once(|| Config::from_env().unwrap().chain(8).install().expect("no device is in use yet"));
    RocmDevice::default()
}

fn open() -> Arc<hip::Device> {
    device();
    hip::Device::get(0).unwrap()
}

/// Memory that the backend did not allocate for a tensor.
#[derive(Clone)]
enum Outside {
    /// The host's: the CPU device can access it. The words are atomic because kernels write them.
    Host(Arc<Vec<AtomicU64>>),
    /// A GPU's.
    Gpu(Arc<hip::Buffer>),
}

impl Outside {
    fn new(bytes: &[u8]) -> Self {
        let device = open();
        match device.info().memory {
            MemorySpace::Host => {
                let word = |eight: &[u8]| {
                    let mut word = [0; 8];
                    word[..eight.len()].copy_from_slice(eight);
                    AtomicU64::new(u64::from_ne_bytes(word))
                };
                Self::Host(Arc::new(bytes.chunks(8).map(word).collect()))
            }
            _ => Self::Gpu(Arc::new(device.upload(bytes).unwrap())),
        }
    }

    fn address(&self) -> usize {
        match self {
            Self::Host(words) => words.as_ptr().addr(),
            Self::Gpu(buffer) => buffer.address(),
        }
    }

    fn bytes(&self, length: usize) -> Vec<u8> {
        open().sync().unwrap();
        match self {
            Self::Host(words) => {
                let all = words.iter().flat_map(|word| word.load(Ordering::SeqCst).to_ne_bytes());
                all.take(length).collect()
            }
            Self::Gpu(buffer) => {
                let mut bytes = vec![0; length];
                open().read(buffer, 0, &mut bytes).unwrap();
                bytes
            }
        }
    }

    /// A tensor over it, from this byte on. Counts the calls of its keeper.
    fn tensor(
        &self,
        offset: usize,
        shape: &[usize],
        strides: Option<&[isize]>,
        dtype: DType,
        calls: &Arc<AtomicUsize>,
    ) -> Result<RocmTensor, RocmError> {
        let (own, calls) = (self.clone(), calls.clone());
        let keeper = move || {
            calls.fetch_add(1, Ordering::SeqCst);
            drop(own);
        };
        let pointer = (self.address() + offset) as *mut c_void;
        // SAFETY: the keeper holds the memory, which the tests' strides do not leave. Only the
        // tests write it, on one thread with the ops.
        unsafe { from_raw(&device(), pointer, shape, strides, dtype, keeper) }
    }
}

fn calls() -> Arc<AtomicUsize> {
    Arc::default()
}

fn count(calls: &AtomicUsize) -> usize {
    calls.load(Ordering::SeqCst)
}

fn floats(values: &[f32]) -> Outside {
    Outside::new(&values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<_>>())
}

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32 * 0.25 - 3.0).collect()
}

fn ours(values: &[f32], shape: &[usize]) -> RocmTensor {
    R::float_from_data(TensorData::new(values.to_vec(), Shape::from(shape.to_vec())), &device())
}

fn read(tensor: &RocmTensor) -> Vec<f32> {
    read_with_fault(tensor.clone()).unwrap().0.to_vec().unwrap()
}

/// Out and in again.
fn round_trip(tensor: RocmTensor, versioned: bool) -> RocmTensor {
    // SAFETY: each managed tensor goes to one consumer, this backend, whose ops run on one stream.
    unsafe {
        match versioned {
            true => from_dlpack_versioned(&device(), to_dlpack_versioned(tensor, Ready::Unordered).unwrap()),
            false => from_dlpack(&device(), to_dlpack(tensor, Ready::Unordered).unwrap()),
        }
    }
    .unwrap()
}

#[test]
#[serial]
fn every_dtype_and_view_goes_out_and_in() {
    let (random, device) = (Random::new(), device());
    let shapes: [&[usize]; 6] = [&[], &[1], &[7], &[0, 3], &[5, 6], &[2, 3, 1, 4]];
    for (shape, versioned) in shapes.into_iter().flat_map(|shape| [(shape, false), (shape, true)]) {
        for view in View::ALL {
            if shape.is_empty() && view != View::Contiguous {
                continue;
            }
            let what = |dtype| format!("{dtype:?} {shape:?} {view:?}, versioned: {versioned}");
            for dtype in FLOATS {
                let input = float(&random, shape, dtype, view, -9.0, 9.0);
                let (out, again) = (input.float::<R>(&device), input.float::<R>(&device));
                let back = round_trip(out, versioned);
                assert_eq!((back.dims(), back.dtype()), (shape, dtype), "{}", what(dtype));
                let expected = [read_float::<R>(again.clone())];
                assert_close(&what(dtype), &[read_float::<R>(back.clone())], &expected, Tolerance::EXACT);
                let expected = [read_float::<R>(R::float_add(again.clone(), again))];
                let sum = R::float_add(back.clone(), back);
                assert_close(&what(dtype), &[read_float::<R>(sum)], &expected, Tolerance::EXACT);
            }
            for dtype in INTS {
                let input = int(&random, shape, dtype, view, 0, 100);
                let back = round_trip(input.int::<R>(&device), versioned);
                assert_eq!((back.dims(), back.dtype()), (shape, dtype), "{}", what(dtype));
                let expected = [read_int::<R>(input.int::<R>(&device))];
                assert_close(&what(dtype), &[read_int::<R>(back)], &expected, Tolerance::EXACT);
            }
            let input = mask(&random, shape, view);
            let back = round_trip(input.bool::<R>(&device), versioned);
            let expected = [read_bool::<R>(input.bool::<R>(&device))];
            assert_close(&what(DType::U8), &[read_bool::<R>(back)], &expected, Tolerance::EXACT);
        }
    }
}

#[test]
#[serial]
fn an_export_is_the_view_itself() {
    let base = ours(&numbers(24), &[4, 6]);
    // SAFETY: the pointers are only compared, and released by the deleter.
    unsafe {
        let place = |tensor: &RocmTensor| as_raw(tensor, Ready::OnHost).unwrap().pointer.addr();
        let start = place(&base);
        let view = R::float_swap_dims(R::float_slice(base.clone(), &[Slice::new(1, Some(3), 1)]), 0, 1);
        assert_eq!(place(&view), start + 4 * 6);
        let raw = as_raw(&view, Ready::OnHost).unwrap();
        assert_eq!((raw.shape, raw.strides, raw.dtype), (&[6, 2][..], &[1, 6][..], DType::F32));
        assert_eq!(raw.device, device());

        let managed = to_dlpack_versioned(view, Ready::OnHost).unwrap();
        let found = &(*managed).dl_tensor;
        let numbers = |at: *const i64| std::slice::from_raw_parts(at, found.ndim as usize).to_vec();
        assert_eq!((found.data.addr() + found.byte_offset as usize, found.ndim), (start + 4 * 6, 2));
        assert_eq!((numbers(found.shape), numbers(found.strides)), (vec![6, 2], vec![1, 6]));
        assert_eq!(found.dtype, DLDataType { code: kDLFloat, bits: 32, lanes: 1 });
        assert_eq!(found.device, dlpack_device(&device()).unwrap());
        assert_eq!(((*managed).version, (*managed).flags), (DLPACK_VERSION, 0));
        (*managed).deleter.unwrap()(managed);

        // Libraries refuse negative strides, so a flipped view is copied.
        let managed = to_dlpack_versioned(R::float_flip(base, &[1]), Ready::OnHost).unwrap();
        assert_eq!((*managed).flags, DLPACK_FLAG_BITMASK_IS_COPIED);
        assert_eq!(*(*managed).dl_tensor.strides.add(1), 1);
        (*managed).deleter.unwrap()(managed);
    }
}

#[test]
#[serial]
fn dlpacks_device_is_the_memorys() {
    let expected = match open().info().memory {
        MemorySpace::Host => (kDLCPU, 0),
        MemorySpace::Cuda => (kDLCUDA, 0),
        MemorySpace::Rocm => (kDLROCM, 0),
    };
    let found = dlpack_device(&device()).unwrap();
    assert_eq!((found.device_type, found.device_id), expected);
}

/// One op of each kind of access, on this backend or the oracle.
fn results<B: Backend>(x: FloatTensor<B>) -> Vec<TensorData> {
    let dims = x.shape().to_vec();
    let swapped = B::float_swap_dims(x.clone(), 0, 1);
    [
        B::float_mul_scalar(B::float_add(x.clone(), x.clone()), Scalar::Float(0.5)),
        B::float_sub(x.clone(), B::float_slice(x.clone(), &[Slice::new(0, Some(1), 1)])),
        B::float_matmul(x.clone(), swapped.clone()),
        B::float_matmul(swapped.clone(), x.clone()),
        B::float_sum_dim(x.clone(), 1),
        B::float_sum_dim(x.clone(), 0),
        softmax::<B>(x.clone()),
        B::float_cat(vec![x.clone(), x.clone()], 0),
        B::float_reshape(swapped.clone(), Shape::from(vec![dims[0] * dims[1]])),
        B::float_flip(x.clone(), &[1]),
        B::float_exp(swapped),
    ]
    .map(read_float::<B>)
    .into()
}

fn softmax<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let exp = B::float_exp(x);
    B::float_div(exp.clone(), B::float_sum_dim(exp, 1))
}

/// Every alignment that an element can have, with ops of every kind.
#[test]
#[serial]
fn ops_of_an_import_are_the_oracles() {
    let random = Random::new();
    for (rows, columns) in [(3, 5), (16, 64), (33, 70)] {
        for skipped in [0, 1, 2, 3, 5, 63, 64] {
            let values: Vec<f32> =
                (0..skipped + rows * columns).map(|_| random.uniform(-2.0, 2.0) as f32).collect();
            let (memory, calls) = (floats(&values), calls());
            let x = memory.tensor(4 * skipped, &[rows, columns], None, DType::F32, &calls).unwrap();
            let data = TensorData::new(values[skipped..].to_vec(), Shape::from(vec![rows, columns]));
            let expected = results::<O>(O::float_from_data(data, &Default::default()));
            let what = format!("{rows} x {columns} after {skipped} elements");
            assert_close(&what, &results::<R>(x), &expected, Tolerance::of(DType::F32).times(64.0));
            open().sync().unwrap();
            assert_eq!(count(&calls), 1, "{what}");
        }
    }
}

#[test]
#[serial]
fn strides_of_every_kind_are_read() {
    let values = numbers(40);
    let memory = floats(&values);
    // First element, sizes, strides.
    let cases: [(usize, &[usize], &[isize]); 7] = [
        (0, &[4, 10], &[10, 1]),
        (0, &[10, 4], &[1, 10]),
        (39, &[4, 10], &[-10, -1]),
        (5, &[3, 4], &[0, 2]),
        (3, &[6, 3], &[1, 1]),
        (12, &[2, 1, 3], &[-5, isize::MAX, 3]),
        (7, &[], &[]),
    ];
    for (first, shape, strides) in cases {
        let calls = calls();
        let x = memory.tensor(4 * first, shape, Some(strides), DType::F32, &calls).unwrap();
        let n: usize = shape.iter().product();
        let expected: Vec<f32> = (0..n)
            .map(|flat| {
                let (mut rest, mut at) = (flat, first as isize);
                for (&dim, &by) in shape.iter().zip(strides).rev() {
                    at += if dim > 1 { (rest % dim) as isize * by } else { 0 };
                    rest /= dim;
                }
                values[at as usize]
            })
            .collect();
        assert_eq!(read(&x), expected, "{shape:?} {strides:?}");
        assert_eq!(read(&R::float_neg(R::float_neg(x))), expected, "{shape:?} {strides:?}");
        open().sync().unwrap();
        assert_eq!(count(&calls), 1);
    }
}

#[test]
#[serial]
fn ops_do_not_write_the_memory() {
    let values = numbers(64);
    let (memory, calls) = (floats(&values), calls());
    let import = || memory.tensor(0, &[8, 8], None, DType::F32, &calls).unwrap();
    // Each op is the only owner of its tensor.
    let results = [
        R::float_add_scalar(import(), Scalar::Float(1.0)),
        R::float_neg(import()),
        R::float_mul(import(), ours(&numbers(64), &[8, 8])),
        R::float_slice_assign(import(), &[Slice::new(0, Some(2), 1)], ours(&[7.0; 16], &[2, 8])),
        R::float_mask_fill(
            import(),
            R::float_greater_elem(import(), Scalar::Float(0.0), BoolDType::Native),
            Scalar::Float(9.0),
        ),
        R::relu(import()),
        R::float_scatter_add(
            0,
            import(),
            R::int_zeros(Shape::from(vec![1, 8]), &device(), IntDType::I32),
            ours(&[1.0; 8], &[1, 8]),
        ),
    ];
    results.into_iter().for_each(|result| drop(read(&result)));
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    assert_eq!(memory.bytes(256), bytes);
    assert_eq!(count(&calls), 8, "every import");

    // It is written if the app asks for it.
    let x = import();
    graph::write(&x, ours(&[5.0; 64], &[8, 8])).unwrap();
    assert_eq!(memory.bytes(256), 5f32.to_ne_bytes().repeat(64));
    assert_eq!(read(&x), [5.0; 64]);
}

#[test]
#[serial]
fn the_keeper_is_called_once_after_the_last_view() {
    let (memory, calls) = (floats(&numbers(6)), calls());
    let x = memory.tensor(0, &[2, 3], None, DType::F32, &calls).unwrap();
    let view = R::float_swap_dims(x.clone(), 0, 1);
    let computed = R::float_add(x.clone(), x.clone());
    drop(x);
    open().sync().unwrap();
    assert_eq!(count(&calls), 0, "a view is left");
    let other = std::thread::spawn(move || drop(view));
    other.join().unwrap();
    open().sync().unwrap();
    assert_eq!(count(&calls), 1);
    assert_eq!(read(&computed), numbers(6).iter().map(|x| x + x).collect::<Vec<_>>());
    drop(computed);
    open().sync().unwrap();
    assert_eq!(count(&calls), 1);
    // No element is used, so the tensor does not keep the memory.
    let empty = memory.tensor(0, &[0, 3], None, DType::F32, &calls).unwrap();
    open().sync().unwrap();
    assert_eq!((empty.dims(), count(&calls)), (&[0, 3][..], 2));
}

#[test]
#[serial]
fn imported_memory_is_a_line_of_its_own() {
    let (memory, calls) = (floats(&numbers(1000)), calls());
    let before = memory_summary(&device()).unwrap();
    let x = memory.tensor(0, &[1000], None, DType::F32, &calls).unwrap();
    let view = R::float_swap_dims(R::float_reshape(x.clone(), Shape::new([10, 100])), 0, 1);
    let during = memory_summary(&device()).unwrap();
    assert_eq!(during.allocated.bytes, before.allocated.bytes, "the pool gave nothing");
    assert_eq!(during.reserved, before.reserved);
    assert_eq!(during.imported.blocks(), before.imported.blocks() + 1);
    let bytes = during.imported.bytes - before.imported.bytes;
    // The buffer may begin up to 255 bytes before the tensor.
    assert!((4000..4256).contains(&bytes), "{bytes} bytes");
    assert!(during.to_string().contains("| imported from other libraries"), "{during}");
    let json = memory_snapshot(&device()).unwrap().to_json();
    assert!(json.contains(&format!(r#""imported":{},"#, during.imported.bytes)), "{json}");
    drop((x, view));
    let after = memory_summary(&device()).unwrap();
    assert_eq!(
        (after.imported.bytes, after.imported.blocks()),
        (before.imported.bytes, before.imported.blocks())
    );
    assert!(after.imported.peak >= during.imported.bytes);
    open().sync().unwrap();
    assert_eq!(count(&calls), 1);
}

/// Waits until the memory is handed over, and notes what the host sees then.
#[test]
#[serial]
fn deferred_work_is_done_before_the_keeper() {
    let values = numbers(1000);
    let (memory, target) = (floats(&values), floats(&[0.0; 1000]));
    let calls = calls();
    let x = memory.tensor(0, &[1000], None, DType::F32, &calls).unwrap();
    let y = target.tensor(0, &[1000], None, DType::F32, &calls).unwrap();
    graph::write(&y, R::float_mul_scalar(R::float_add_scalar(x, Scalar::Float(1.0)), Scalar::Float(2.0)))
        .unwrap();
    drop(y);
    open().sync().unwrap();
    assert_eq!(count(&calls), 2);
    let expected: Vec<u8> = values.iter().flat_map(|x| ((x + 1.0) * 2.0).to_ne_bytes()).collect();
    assert_eq!(target.bytes(4000), expected);
}

#[test]
#[serial]
fn a_panic_in_a_keeper_is_an_error_of_the_next_sync() {
    let memory = floats(&numbers(4));
    let own = memory.clone();
    let keeper = move || {
        drop(own);
        panic!("in a keeper");
    };
    // SAFETY: the keeper holds the memory until it panics, which is after its last use.
    let x = unsafe { from_raw(&device(), memory.address() as *mut c_void, &[4], None, DType::F32, keeper) };
    drop(x.unwrap());
    let error = open().sync().unwrap_err();
    assert!(matches!(&error, RocmError::Invalid { found, .. } if found == "a panic"), "{error}");
    open().sync().unwrap();
    assert_eq!(read(&R::float_neg(ours(&[1.0], &[1]))), [-1.0]);
}

#[test]
#[serial]
fn an_export_outlives_its_tensor() {
    let values = numbers(1 << 12);
    let x = R::float_mul_scalar(ours(&values, &[1 << 12]), Scalar::Float(2.0));
    // SAFETY: the deleter is called once; the memory is read while it is held.
    let managed = unsafe { to_dlpack_versioned(x, Ready::OnHost).unwrap() };
    // These would get the memory if it were free.
    let others: Vec<_> = (0..8).map(|_| R::float_neg(ours(&values, &[1 << 12]))).collect();
    open().sync().unwrap();
    let used = device().memory_stats().unwrap().allocated;
    struct Sent(*mut DLManagedTensorVersioned);
    // SAFETY: DLPack's deleter may be called from any thread.
    unsafe impl Send for Sent {}
    impl Sent {
        fn delete(self) {
            // SAFETY: the export's, called once.
            unsafe { (*self.0).deleter.unwrap()(self.0) };
        }
    }
    let sent = Sent(managed);
    // SAFETY: the export keeps the memory until the keeper calls its deleter.
    let back = unsafe {
        let found = &(*managed).dl_tensor;
        from_raw(&device(), found.data, &[1 << 12], None, DType::F32, move || {
            std::thread::spawn(move || sent.delete()).join().unwrap();
        })
    };
    assert_eq!(read(&back.unwrap()), values.iter().map(|x| x * 2.0).collect::<Vec<_>>());
    open().sync().unwrap();
    assert_eq!(device().memory_stats().unwrap().allocated, used - (4 << 12), "the deleter freed it");
    drop(others);
}

/// The deleter runs while a graph is captured, where it must not wait.
#[test]
#[serial]
fn a_deleter_within_a_capture_waits_for_its_end() {
    let x = ours(&numbers(256), &[256]);
    // SAFETY: the deleter is called once.
    let managed = unsafe { to_dlpack(x, Ready::OnHost).unwrap() };
    let used = device().memory_stats().unwrap().allocated;
    let mut released = false;
    let (graph, y) = Graph::capture_after(&device(), 0, || {
        if !std::mem::replace(&mut released, true) {
            // SAFETY: the export's, called once.
            unsafe { (*managed).deleter.unwrap()(managed) };
        }
        assert!(device().memory_stats().unwrap().allocated >= used);
        R::float_ones(Shape::from(vec![4]), &device(), FloatDType::F32)
    })
    .unwrap();
    graph.replay().unwrap();
    assert_eq!(read(&y), [1.0; 4]);
    drop((graph, y));
    open().sync().unwrap();
    assert!(device().memory_stats().unwrap().allocated <= used - 1024);
}

#[test]
#[serial]
fn a_graph_keeps_the_memory_that_it_reads() {
    let (memory, calls) = (floats(&[1.0, 2.0, 3.0, 4.0]), calls());
    let x = memory.tensor(0, &[4], None, DType::F32, &calls).unwrap();
    let (graph, y) =
        Graph::capture(&device(), || R::float_mul_scalar(x.clone(), Scalar::Float(10.0))).unwrap();
    assert!(graph::is_of_graph(&x));
    // SAFETY: nothing is exported.
    let within = Graph::capture_after(&device(), 0, || unsafe {
        assert!(matches!(as_raw(&x, Ready::OnHost), Err(RocmError::Capture { .. })));
        assert!(matches!(backend_stream(&device()), Err(RocmError::Capture { .. })));
    });
    assert!(within.is_err(), "the graph would lack what was refused");
    drop(x);
    open().sync().unwrap();
    assert_eq!(count(&calls), 0);
    graph.replay().unwrap();
    assert_eq!(read(&y), [10.0, 20.0, 30.0, 40.0]);
    drop((graph, y));
    open().sync().unwrap();
    assert_eq!(count(&calls), 1);
}

/// For each way to get a tensor out.
#[test]
#[serial]
fn faults_are_reported_when_a_tensor_leaves() {
    for way in [Ready::OnHost, Ready::OnStream(backend_stream(&device()).unwrap()), Ready::Unordered] {
        let index = R::int_from_data(TensorData::from([7i32]), &device());
        let bad = R::float_select(ours(&numbers(6), &[2, 3]), 0, index);
        let computed = R::float_add_scalar(bad, Scalar::Float(1.0));
        // SAFETY: the stream is the backend's; nothing is exported.
        let found = unsafe {
            [
                as_raw(&computed, way).map(|_| ()),
                to_dlpack(computed.clone(), way).map(|_| ()),
                to_dlpack_versioned(computed.clone(), way).map(|_| ()),
            ]
        };
        for result in found {
            let Err(RocmError::Invalid { op, .. }) = result else { panic!("{result:?}") };
            assert_eq!(op, "float_select", "{way:?}");
        }
        assert!(read_with_fault(computed).unwrap().1.is_some(), "reads report it too");
        open().sync().expect("it was reported");
    }
}

/// Nobody waits for a tensor without faults, unless that is asked for.
#[test]
#[serial]
fn only_the_host_waits_and_only_if_asked() {
    let waits = |ready: Ready| {
        let x = R::float_exp(ours(&numbers(8), &[8]));
        open().sync().unwrap();
        let before = open().counters().waits;
        // SAFETY: the stream is the backend's, and the pointer is not used.
        unsafe { as_raw(&x, ready).unwrap() };
        open().counters().waits - before
    };
    let own = backend_stream(&device()).unwrap();
    assert_eq!([Ready::OnHost, Ready::OnStream(own), Ready::Unordered].map(waits), [1, 0, 0]);
}

#[test]
#[serial]
fn raw_parts_that_do_not_fit_are_refused() {
    let (memory, calls) = (floats(&numbers(8)), calls());
    type Case<'a> = (&'a [usize], Option<&'a [isize]>, usize);
    let cases: [Case<'_>; 3] = [(&[2], Some(&[1, 1]), 0), (&[2], None, 1), (&[usize::MAX, 2], None, 0)];
    for (shape, strides, offset) in cases {
        let found = memory.tensor(offset, shape, strides, DType::F32, &calls);
        assert!(matches!(found, Err(RocmError::Invalid { op: "interop::from_raw", .. })), "{found:?}");
    }
    // SAFETY: null is refused.
    let found = unsafe { from_raw(&device(), null_mut(), &[2], None, DType::F32, || ()) };
    assert!(matches!(found, Err(RocmError::Invalid { .. })), "{found:?}");
    assert_eq!(count(&calls), 0, "the keeper was not called");
    let bools = memory.tensor(0, &[2], None, DType::Bool(BoolStore::U32), &calls).unwrap();
    // SAFETY: nothing is exported.
    let found = unsafe { to_dlpack(bools, Ready::OnHost) };
    assert!(matches!(found, Err(RocmError::Unsupported { .. })), "{found:?}");
}
