//! Shared code of the integration tests: the two backends, random inputs and their views, and
//! comparisons.
//!
//! Every op is run on [`R`] (this backend) and on [`O`] (the oracle, `burn-flex`) from the same
//! data. Every run draws new inputs and prints its seed. `BURN_ROCM_TEST_SEED` repeats a run.

/// The README's programs compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}

/// The Rust blocks of the guide's page on configuration are doc tests too.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/configuration.md")]
mod guide_configuration {}

/// The Rust blocks of the guide's page on porting are doc tests too.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/porting.md")]
mod guide_porting {}

/// The Rust blocks of the guide's page on fused modules are doc tests too.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/fused-modules.md")]
mod guide_fused_modules {}

/// The Rust blocks of the guide's page on mixed precision are doc tests too.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/mixed-precision.md")]
mod guide_mixed_precision {}

/// The Rust blocks of the guide's page on layers of language models are doc tests too.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/language-layers.md")]
mod guide_language_layers {}

/// The Rust blocks of the guide's page on profiling are doc tests too.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/profiling.md")]
mod guide_profiling {}

/// The Rust blocks of the guide's page on memory are doc tests too.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/memory.md")]
mod guide_memory {}

/// The Rust blocks of the guide's page on the doctor are doc tests too.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/doctor.md")]
mod guide_doctor {}

/// The Rust blocks of the guide's page on tuning are doc tests too.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/tuning.md")]
mod guide_tuning {}

/// The Rust blocks of the guide's page on training language models are doc tests too.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/language-training.md")]
mod guide_language_training {}

/// The Rust blocks of the guide's page on other libraries are doc tests too.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/interop.md")]
mod guide_interop {}

mod again;
pub mod alignments;
pub mod attention;
mod compare;
pub mod deform;
mod input;
pub mod limits;
pub mod lockstep;
mod random;
mod said;
pub mod trace;
pub mod training;

pub use again::again;
pub use compare::{Tolerance, assert_close};
pub use input::{Input, View, float, int, mask};
pub use random::Random;
pub use said::{SAID, said_by};

/// The backend under test.
pub type R = burn_rocm::Rocm;
/// The oracle.
pub type O = burn_flex::Flex;

pub use burn_backend::backend::ops::*;
pub use burn_backend::{Backend, DType, Scalar, Shape, Slice, TensorData, TensorMetadata};
pub use burn_std::{BoolDType, BoolStore, FloatDType, IntDType};

/// The float types in which every float op is tested.
pub const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];
/// The integer types in which every integer op is tested.
pub const INTS: [DType; 8] =
    [DType::I64, DType::I32, DType::I16, DType::I8, DType::U64, DType::U32, DType::U16, DType::U8];

/// Shapes of ranks 1 to 6: empty ones, single elements, odd sizes, and sizes around 16-byte vectors
/// and block edges.
pub const SHAPES: &[&[usize]] = &[
    &[0],
    &[1],
    &[3],
    &[4],
    &[15],
    &[16],
    &[17],
    &[255],
    &[257],
    &[2049],
    &[5, 7],
    &[1, 9],
    &[33, 1],
    &[0, 4],
    &[64, 65],
    &[2, 3, 4],
    &[3, 1, 17],
    &[2, 3, 1, 5],
    &[2, 2, 3, 2, 3],
    &[2, 1, 3, 2, 2, 3],
];

/// A float type as Burn's op methods take it.
pub fn float_dtype(dtype: DType) -> FloatDType {
    dtype.into()
}

/// An integer type as Burn's op methods take it.
pub fn int_dtype(dtype: DType) -> IntDType {
    dtype.into()
}

/// Runs one body on both backends and compares the results.
///
/// The body sees the backend as `B` and its device as `device`, and returns a `Vec<TensorData>`.
///
/// ```ignore
/// differential!("float_add", Tolerance::of(dtype), |B, device| {
///     let out = B::float_add(a.float::<B>(&device), b.float::<B>(&device));
///     vec![read_float::<B>(out)]
/// });
/// ```
#[macro_export]
macro_rules! differential {
    ($what:expr, $tolerance:expr, |$B:ident, $device:ident| $body:expr) => {{
        $crate::trace::to_file();
        #[allow(unused_braces)] // rustfmt puts them around a one-line body
        let ours = {
            #[allow(dead_code)]
            type $B = $crate::R;
            let $device = Default::default();
            $body
        };
        #[allow(unused_braces)]
        let theirs = {
            #[allow(dead_code)]
            type $B = $crate::O;
            let $device = Default::default();
            $body
        };
        $crate::assert_close(&$what, &ours, &theirs, $tolerance);
    }};
}

/// Waits for a read and returns its data.
pub fn wait<T>(future: impl Future<Output = Result<T, burn_backend::ExecutionError>>) -> T {
    burn_std::future::block_on(future).expect("the data can be read")
}

/// Reads a float tensor.
pub fn read_float<B: Backend>(tensor: burn_backend::tensor::FloatTensor<B>) -> TensorData {
    wait(B::float_into_data(tensor))
}

/// Whether a backend is the oracle.
fn is_oracle<B: Backend>() -> bool {
    std::any::TypeId::of::<B>() == std::any::TypeId::of::<O>()
}

/// Reads an integer tensor.
pub fn read_int<B: Backend>(tensor: burn_backend::tensor::IntTensor<B>) -> TensorData {
    wait(B::int_into_data(tensor))
}

/// Reads a bool tensor.
pub fn read_bool<B: Backend>(tensor: burn_backend::tensor::BoolTensor<B>) -> TensorData {
    let data = wait(B::bool_into_data(tensor));
    // The oracle labels some bools as bytes and keeps the store in the dtype. This backend reads
    // both one-byte stores as Rust's bools.
    let bytes = matches!(data.dtype, DType::U8 | DType::Bool(BoolStore::U8));
    if is_oracle::<B>() && bytes {
        let TensorData { bytes, shape, .. } = data;
        return TensorData::from_bytes(bytes, shape, DType::Bool(BoolStore::Native));
    }
    data
}

/// Reads an integer tensor as `I64`, for results whose integer type each backend chooses itself.
pub fn read_index<B: Backend>(tensor: burn_backend::tensor::IntTensor<B>) -> TensorData {
    read_int::<B>(B::int_cast(tensor, IntDType::I64))
}
