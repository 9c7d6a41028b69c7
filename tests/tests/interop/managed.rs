//! Managed tensors of DLPack that another library made, well and badly.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_rocm::RocmError;
use burn_rocm::graph;
use burn_rocm::interop::*;
use serial_test::serial;

use crate::{Outside, device, open, ours, read};

/// A managed tensor of the test's own, over memory with 64 bytes of zeros.
#[derive(Clone)]
struct Foreign {
    device: DLDevice,
    dtype: DLDataType,
    shape: Option<Vec<i64>>,
    ndim: i32,
    strides: Option<Vec<i64>>,
    is_null: bool,
    byte_offset: u64,
    major: u32,
}

/// What a deleter of these counts.
static DELETED: AtomicUsize = AtomicUsize::new(0);

struct Own {
    shape: Option<Vec<i64>>,
    strides: Option<Vec<i64>>,
    _memory: Outside,
}

unsafe extern "C" fn delete_versioned(managed: *mut DLManagedTensorVersioned) {
    DELETED.fetch_add(1, Ordering::SeqCst);
    // SAFETY: both boxes are those of `Foreign`, and nobody calls this twice.
    unsafe {
        drop(Box::from_raw((*managed).manager_ctx.cast::<Own>()));
        drop(Box::from_raw(managed));
    }
}

unsafe extern "C" fn delete(managed: *mut DLManagedTensor) {
    DELETED.fetch_add(1, Ordering::SeqCst);
    // SAFETY: both boxes are those of `Foreign`, and nobody calls this twice.
    unsafe {
        drop(Box::from_raw((*managed).manager_ctx.cast::<Own>()));
        drop(Box::from_raw(managed));
    }
}

impl Foreign {
    fn good() -> Self {
        Self {
            device: dlpack_device(&device()).unwrap(),
            dtype: DLDataType { code: kDLFloat, bits: 32, lanes: 1 },
            shape: Some(vec![2, 3]),
            ndim: 2,
            strides: Some(vec![3, 1]),
            is_null: false,
            byte_offset: 8,
            major: 1,
        }
    }

    fn parts(&self) -> (DLTensor, *mut c_void) {
        let memory = Outside::new(&[0; 64]);
        let data = if self.is_null { null_mut() } else { memory.address() as *mut c_void };
        let mut own =
            Box::new(Own { shape: self.shape.clone(), strides: self.strides.clone(), _memory: memory });
        let at = |numbers: &mut Option<Vec<i64>>| numbers.as_mut().map_or(null_mut(), |n| n.as_mut_ptr());
        let (shape, strides) = (at(&mut own.shape), at(&mut own.strides));
        let Self { device, ndim, dtype, byte_offset, .. } = *self;
        (DLTensor { data, device, ndim, dtype, shape, strides, byte_offset }, Box::into_raw(own).cast())
    }

    fn versioned(&self) -> *mut DLManagedTensorVersioned {
        let (dl_tensor, manager_ctx) = self.parts();
        let version = DLPackVersion { major: self.major, minor: 3 };
        let (deleter, flags) = (Some(delete_versioned as _), DLPACK_FLAG_BITMASK_READ_ONLY);
        Box::into_raw(Box::new(DLManagedTensorVersioned { version, manager_ctx, deleter, flags, dl_tensor }))
    }

    fn legacy(&self) -> *mut DLManagedTensor {
        let (dl_tensor, manager_ctx) = self.parts();
        Box::into_raw(Box::new(DLManagedTensor { dl_tensor, manager_ctx, deleter: Some(delete as _) }))
    }
}

#[test]
#[serial]
fn managed_tensors_that_do_not_fit_stay_with_the_caller() {
    let good = Foreign::good();
    let change = |change: &dyn Fn(&mut Foreign)| {
        let mut changed = good.clone();
        change(&mut changed);
        changed
    };
    let refused: &[(&str, &str, Foreign)] = &[
        ("another kind of memory", "device type 7", change(&|f| f.device.device_type = 7)),
        ("another device", "id 1", change(&|f| f.device.device_id = 1)),
        ("complex", "code: 5", change(&|f| f.dtype.code = 5)),
        ("bools of 32 bits", "bits: 32", change(&|f| f.dtype.code = kDLBool)),
        ("f8", "bits: 8", change(&|f| f.dtype.bits = 8)),
        ("vectors", "lanes: 4", change(&|f| f.dtype.lanes = 4)),
        ("negative rank", "-1 dims", change(&|f| f.ndim = -1)),
        ("no shape", "0x0", change(&|f| f.shape = None)),
        ("a negative size", "[2, -3]", change(&|f| f.shape = Some(vec![2, -3]))),
        ("null", "0x0", change(&|f| f.is_null = true)),
        ("a misaligned element", "", change(&|f| f.byte_offset = 2)),
        ("an offset that overflows", "bytes", change(&|f| f.byte_offset = u64::MAX)),
        ("too many elements", "", change(&|f| f.shape = Some(vec![i64::MAX, 3]))),
        ("strides that overflow", "", change(&|f| f.strides = Some(vec![i64::MAX, 1]))),
        ("strides below 0", "", change(&|f| f.strides = Some(vec![i64::MIN, 1]))),
    ];
    // SAFETY: every field that an import may look at is valid in a managed tensor that it takes.
    unsafe {
        for (what, text, foreign) in refused {
            let before = DELETED.load(Ordering::SeqCst);
            let (versioned, legacy) = (foreign.versioned(), foreign.legacy());
            for found in [from_dlpack_versioned(&device(), versioned), from_dlpack(&device(), legacy)] {
                let Err(RocmError::Invalid { expected, found, .. }) = found else {
                    panic!("{what}: {found:?}")
                };
                assert!(found.contains(text), "{what}: expected {expected}, found {found}");
            }
            assert_eq!(DELETED.load(Ordering::SeqCst), before, "{what}");
            delete_versioned(versioned);
            delete(legacy);
        }
        let newer = change(&|f| f.major = 2).versioned();
        let found = from_dlpack_versioned(&device(), newer);
        assert!(matches!(&found, Err(RocmError::Invalid { found, .. }) if found == "2.3"), "{found:?}");
        delete_versioned(newer);
        assert!(from_dlpack_versioned(&device(), null_mut()).is_err());
        assert!(from_dlpack(&device(), null_mut()).is_err());

        let accepted: &[(&str, Foreign, &[usize])] = &[
            ("the good one", good.clone(), &[2, 3]),
            ("no strides", change(&|f| f.strides = None), &[2, 3]),
            ("no dims", change(&|f| (f.shape, f.strides, f.ndim) = (None, None, 0)), &[]),
            ("no elements", change(&|f| (f.shape, f.is_null) = (Some(vec![0, 3]), true)), &[0, 3]),
        ];
        for (what, foreign, shape) in accepted {
            let before = DELETED.load(Ordering::SeqCst);
            let read_only = from_dlpack_versioned(&device(), foreign.versioned()).expect(what);
            let tensor = from_dlpack(&device(), foreign.legacy()).expect(what);
            for x in [&read_only, &tensor] {
                assert_eq!((x.dims(), read(x)), (*shape, vec![0.0; shape.iter().product()]), "{what}");
            }
            if !shape.contains(&0) {
                let value = ours(&vec![1.0; shape.iter().product()], shape);
                assert!(graph::write(&read_only, value.clone()).is_err(), "{what}");
                graph::write(&tensor, value).expect(what);
                // The flag goes on; a struct without flags gets a copy.
                let managed = to_dlpack_versioned(read_only.clone(), Ready::OnHost).unwrap();
                assert_eq!((*managed).flags, DLPACK_FLAG_BITMASK_READ_ONLY);
                (*managed).deleter.unwrap()(managed);
                let managed = to_dlpack(read_only.clone(), Ready::OnHost).unwrap();
                let place = as_raw(&read_only, Ready::OnHost).unwrap().pointer;
                assert_ne!((*managed).dl_tensor.data, place);
                (*managed).deleter.unwrap()(managed);
            }
            drop((read_only, tensor));
            open().sync().unwrap();
            assert_eq!(DELETED.load(Ordering::SeqCst), before + 2, "{what}");
        }
    }
}
