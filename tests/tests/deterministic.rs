//! What `BURN_ROCM_DETERMINISTIC=1` guarantees for several updates of one element: the same bits in
//! every run, and the order of the updates.
#![allow(missing_docs, clippy::unwrap_used)]

use burn_backend::tensor::IndexingUpdateOp;
use burn_rocm_tests::*;

/// In a separate process, because a process reads the setting once.
#[test]
fn updates_that_meet() {
    const SETTING: &str = "BURN_ROCM_DETERMINISTIC";
    if std::env::var(SETTING).as_deref() != Ok("1") {
        let this = ["--exact", "updates_that_meet", "--nocapture"];
        again(&this, &[(SETTING, "1")]);
        // With blocks of many threads, which would add by atomics.
        again(&this, &[(SETTING, "1"), ("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CPU_WAVE", "32")]);
        return;
    }
    let random = Random::new();
    for (slices, width, count) in [(7, 1, 5000), (40, 3, 1000), (3, 130, 200)] {
        for update in [IndexingUpdateOp::Assign, IndexingUpdateOp::Add, IndexingUpdateOp::Mul] {
            for dtype in [DType::F32, DType::F64, DType::F16] {
                let a = float(&random, &[slices, width], dtype, View::Contiguous, 0.9, 1.1);
                let v = float(&random, &[count, width], dtype, View::Contiguous, 0.99, 1.01);
                let places = int(&random, &[count, 1], DType::I32, View::Contiguous, 0, slices as i64);
                let run = || {
                    let device = Default::default();
                    let (a, v) = (a.float::<R>(&device), v.float::<R>(&device));
                    read_float::<R>(R::float_scatter_nd(a, places.int::<R>(&device), v, update))
                };
                let first = run();
                for _ in 0..3 {
                    assert_eq!(run(), first, "{update:?} {dtype:?}");
                }
                // The last of several assignments stays, as if one thread made them all.
                if matches!(update, IndexingUpdateOp::Assign) {
                    differential!(format!("assign {dtype:?}"), Tolerance::EXACT, |B, device| {
                        let (a, v) = (a.float::<B>(&device), v.float::<B>(&device));
                        vec![read_float::<B>(B::float_scatter_nd(a, places.int::<B>(&device), v, update))]
                    });
                }
            }
        }
    }
    // Also sums along an axis.
    for dtype in FLOATS {
        let a = float(&random, &[5, 4], dtype, View::Contiguous, -1.0, 1.0);
        let v = float(&random, &[3000, 4], dtype, View::Contiguous, -1.0, 1.0);
        let places = int(&random, &[3000], DType::I64, View::Contiguous, 0, 5);
        let run = || {
            let device = Default::default();
            let (a, v) = (a.float::<R>(&device), v.float::<R>(&device));
            read_float::<R>(R::float_select_add(a, 0, places.int::<R>(&device), v))
        };
        let first = run();
        for _ in 0..3 {
            assert_eq!(run(), first, "{dtype:?}");
        }
        additions!(format!("select_add {dtype:?}"), dtype, |B, device, [a = &a, v = &v]| {
            B::float_select_add(a, 0, places.int::<B>(&device), v)
        });
    }
}
