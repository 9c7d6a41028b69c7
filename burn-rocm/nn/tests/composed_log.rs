//! A module that composes Burn's ops says so once, with the reason.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::{Mutex, PoisonError};

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_flex::Flex;
use burn_rocm::Rocm;
use burn_rocm_nn::MulAdd;

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A logger that keeps what this crate says.
struct Keeper;

impl log::Log for Keeper {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("burn_rocm_nn")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            SAID.lock().unwrap_or_else(PoisonError::into_inner).push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// What a product of these widths and a sum say.
fn said<B: Backend>(widths: [usize; 2]) -> Vec<String> {
    let [a, b] = widths.map(|width| Tensor::<B, 2>::ones([2, width], &Default::default()));
    MulAdd::new().forward(a, b.clone(), b);
    std::mem::take(&mut *SAID.lock().unwrap_or_else(PoisonError::into_inner))
}

#[test]
fn a_module_says_once_why_it_composes() {
    log::set_logger(&Keeper).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    assert_eq!(said::<Rocm>([3, 3]), [""; 0]);
    let [line] = said::<Rocm>([1, 3]).try_into().unwrap();
    assert!(line.contains("MulAdd") && line.contains("differ in shape"), "{line}");
    assert_eq!(said::<Rocm>([1, 3]), [""; 0]);
    let [line] = said::<Flex>([3, 3]).try_into().unwrap();
    assert!(line.contains("MulAdd") && line.contains("not burn-rocm's backend"), "{line}");
    assert_eq!(said::<Flex>([3, 3]), [""; 0]);
}
