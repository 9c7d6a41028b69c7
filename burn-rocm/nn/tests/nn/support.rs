//! The backends, and the comparison of a module with Burn's.

pub(crate) use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::backend::AutodiffBackend;
pub(crate) use burn::tensor::{DType, Tensor, TensorData};
pub(crate) use burn_rocm_tests::{Random, Tolerance};

/// This backend, with either strategy.
pub(crate) type Ours = Autodiff<burn_rocm::Rocm>;
pub(crate) type Balanced = Autodiff<burn_rocm::Rocm, BalancedCheckpointing>;
/// The oracle.
pub(crate) type Oracle = Autodiff<burn_flex::Flex>;

/// A tensor of `dtype` from data.
pub(crate) fn tensor<B: AutodiffBackend, const D: usize>(data: &TensorData, dtype: DType) -> Tensor<B, D> {
    Tensor::from_data(data.clone(), (&Default::default(), dtype))
}

/// Uniform values in -2..2.
pub(crate) fn uniform(random: &Random, shape: &[usize]) -> TensorData {
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| random.uniform(-2.0, 2.0)).collect();
    TensorData::new(values, shape.to_vec())
}

/// The gradients of all parameters of a module, in their order; one that has none fails the test.
pub(crate) fn gradients_of<B: AutodiffBackend>(
    module: &impl Module<B>,
    grads: &B::Gradients,
) -> Vec<TensorData> {
    struct Read<'a, B: AutodiffBackend>(&'a B::Gradients, Vec<TensorData>);
    impl<B: AutodiffBackend> ModuleVisitor<B> for Read<'_, B> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let value = param.val();
            // Running statistics are none.
            if value.is_require_grad() {
                let grad = value.grad(self.0).unwrap_or_else(|| panic!("no gradient of {}", param.id));
                self.1.push(grad.into_data());
            }
        }
    }
    let mut read = Read(grads, Vec::new());
    module.visit(&mut read);
    read.1
}

/// What a body gives on the oracle, against what it gives here with each checkpointing strategy.
///
/// The body sees the backend as `B`, and returns a `Vec<TensorData>`.
macro_rules! against_burn {
    ($what:expr, $tolerance:expr, |$B:ident| theirs $theirs:expr, ours $ours:expr) => {{
        burn_rocm_tests::trace::to_file();
        let theirs: Vec<burn::tensor::TensorData> = {
            type $B = $crate::support::Oracle;
            $theirs
        };
        let ours: Vec<burn::tensor::TensorData> = {
            type $B = $crate::support::Ours;
            $ours
        };
        burn_rocm_tests::assert_close(&$what, &ours, &theirs, $tolerance);
        let ours: Vec<burn::tensor::TensorData> = {
            type $B = $crate::support::Balanced;
            $ours
        };
        burn_rocm_tests::assert_close(&format!("{}, recomputed", $what), &ours, &theirs, $tolerance);
    }};
}
pub(crate) use against_burn;
