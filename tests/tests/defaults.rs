//! Burn keeps default dtypes for each device: what a second backend type gets, and its warning.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::{Mutex, PoisonError};

use burn::tensor::{Int, Tensor, bf16, set_default_dtypes};
use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_tests::*;

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A logger that keeps warnings.
struct Keeper;

impl log::Log for Keeper {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            SAID.lock().unwrap_or_else(PoisonError::into_inner).push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// The warnings about default dtypes since the last call.
fn said() -> Vec<String> {
    let all = std::mem::take(&mut *SAID.lock().unwrap_or_else(PoisonError::into_inner));
    all.into_iter().filter(|line| line.contains("by default")).collect()
}

/// In a separate process, because default dtypes are global, and a process reads the number of CPU
/// devices once.
#[test]
fn a_type_that_finds_other_default_dtypes_than_its_own_says_so_once() {
    const CHILD: &str = "BURN_ROCM_TEST_DEFAULTS_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let this = "a_type_that_finds_other_default_dtypes_than_its_own_says_so_once";
        again(
            &["--exact", this, "--nocapture"],
            &[(CHILD, "1"), ("BURN_ROCM_CPU_DEVICES", "5"), ("BURN_ROCM_PROVIDER", "cpu")],
        );
        return;
    }
    log::set_logger(&Keeper).unwrap();
    log::set_max_level(log::LevelFilter::Warn);

    // The first type sets the defaults to its own, although a tensor of another dtype follows.
    let device = RocmDevice::new(0);
    assert_eq!(Tensor::<Rocm<bf16>, 1>::ones([2], &device).dtype(), DType::BF16);
    assert_eq!(Tensor::<Rocm<bf16>, 1>::ones([2], (&device, DType::F64)).dtype(), DType::F64);
    assert_eq!(said(), [""; 0]);
    // The second type gets the first one's defaults, and warns once.
    assert_eq!(Tensor::<Rocm, 1>::ones([2], &device).dtype(), DType::BF16);
    let warnings = said();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    for part in ["Rocm<f32, i32, u8>", "rocm:0", "bf16", "set_default_dtypes"] {
        assert!(warnings[0].contains(part), "no {part} in: {}", warnings[0]);
    }
    Tensor::<Rocm, 1>::zeros([2], &device);
    std::thread::spawn(|| Tensor::<Rocm, 1>::ones([2], &RocmDevice::new(0))).join().unwrap();
    assert_eq!(said(), [""; 0]);
    // A third type warns because of its integers.
    Tensor::<Rocm<bf16, i64>, 1, Int>::zeros([2], &device);
    assert_eq!(said().len(), 1);

    // With a device for each type, each keeps its own.
    let device = RocmDevice::new(1);
    assert_eq!(Tensor::<Rocm, 1>::ones([2], &device).dtype(), DType::F32);
    assert_eq!(said(), [""; 0]);

    // Data with an explicit dtype does not set defaults.
    let device = RocmDevice::new(2);
    assert_eq!(Tensor::<Rocm, 1>::from_data([1.0f64], (&device, DType::F64)).dtype(), DType::F64);
    assert_eq!(Tensor::<Rocm, 1>::ones([2], &device).dtype(), DType::F32);
    assert_eq!(said(), [""; 0]);

    // Defaults may still be set after a tensor with an explicit dtype.
    let device = RocmDevice::new(4);
    Tensor::<Rocm, 1>::from_data([1.0f64], (&device, DType::F64));
    Tensor::<Rocm, 1>::zeros([2], (&device, DType::F64));
    set_default_dtypes::<Rocm>(&device, DType::F16, DType::I64).unwrap();

    // After `set_default_dtypes`, types that agree don't warn and others do.
    let device = RocmDevice::new(3);
    set_default_dtypes::<Rocm>(&device, DType::F16, DType::I64).unwrap();
    assert_eq!(Tensor::<Rocm<burn_rocm::f16, i64>, 1>::ones([2], &device).dtype(), DType::F16);
    assert_eq!(Tensor::<Rocm<burn_rocm::f16, i64>, 1, Int>::ones([2], &device).dtype(), DType::I64);
    assert_eq!(said(), [""; 0]);
    assert_eq!(Tensor::<Rocm, 1, Int>::ones([2], &device).dtype(), DType::I64);
    assert_eq!(said().len(), 1);
}

/// With strict settings the type refuses to make such tensors, each time.
#[test]
fn strict_settings_refuse_other_default_dtypes() {
    const CHILD: &str = "BURN_ROCM_TEST_STRICT_DEFAULTS_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let environment = [(CHILD, "1"), ("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_STRICT", "1")];
        again(&["--exact", "strict_settings_refuse_other_default_dtypes", "--nocapture"], &environment);
        return;
    }
    let device = RocmDevice::new(0);
    assert_eq!(Tensor::<Rocm<bf16>, 1>::ones([2], &device).dtype(), DType::BF16);
    for _ in 0..2 {
        let made = std::panic::catch_unwind(|| Tensor::<Rocm, 1>::ones([2], &device).dtype());
        assert!(made.is_err());
        let error = burn_rocm::take_last_error();
        assert!(matches!(error, Some(burn_rocm::RocmError::Config { .. })), "{error:?}");
    }
}
