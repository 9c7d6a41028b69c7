//! Which path runs. On every autodiff backend of this project it is the fused one. Memory-bound ops
//! run again if the strategy does not keep them.

use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::nn::LinearLayout;
use burn::tensor::backend::AutodiffBackend;
use burn_rocm::Rocm;
use burn_rocm_nn as ours;
use burn_rocm_nn::{Act, Silu};
use burn_rocm_tests::trace::during;

use crate::support::*;

/// Runs SiLU forward and backward. Returns what is wrong with the trace, if anything.
fn not_fused<B: AutodiffBackend>() -> Option<String> {
    let x = Tensor::<B, 1>::from_data([0.5, -1.0], &Default::default()).require_grad();
    let (grad, lines) = during(|| {
        let out = Silu::new().forward(x.clone());
        x.grad(&out.backward()).is_some()
    });
    let has = |op: &str| lines.iter().any(|line| line.starts_with(op));
    let fused = grad && has("nn_silu ") && has("nn_silu_backward ");
    (!fused).then(|| format!("{}: {lines:?}", std::any::type_name::<B>()))
}

/// Each float, int and bool type, with both strategies. (A test of `fuse.rs` shows that all 192
/// backends have a route.)
#[test]
fn every_element_type_and_strategy_is_fused() {
    // The first backend type that uses a device sets the dtypes of its parameters for the process.
    // So the type that the other tests expect comes first.
    let mut wrong = Vec::from_iter(not_fused::<Ours>());
    macro_rules! both {
        ($rocm:ty) => {
            wrong.extend(not_fused::<Autodiff<$rocm>>());
            wrong.extend(not_fused::<Autodiff<$rocm, BalancedCheckpointing>>());
        };
    }
    macro_rules! all {
        ([$($float:ty)*] [$($int:ty)*] [$($bool:ty)*]) => {
            $(both!(Rocm<$float, i64, u32>);)*
            $(both!(Rocm<f32, $int, u8>);)*
            $(both!(Rocm<f32, i32, $bool>);)*
        };
    }
    burn_rocm::element_types!(all);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Each memory-bound op, between two others whose gradients read their inputs. It runs once if it
/// is kept, else twice.
#[test]
fn memory_bound_ops_are_computed_again() {
    let data = uniform(&Random::new(), &[3, 4, 8]);
    macro_rules! runs {
        ($B:ident, $op:literal, |$x:ident| $out:expr) => {{
            let leaf = tensor::<$B, 3>(&data, DType::F32).require_grad();
            let $x = leaf.clone().exp();
            let (grads, lines) = during(|| $out.exp().sum().backward());
            assert!(leaf.grad(&grads).is_some());
            // Computed by a kernel or by MIOpen.
            lines.iter().filter(|line| line.starts_with(concat!($op, " f32: "))).count()
        }};
    }
    macro_rules! twice {
        ($op:literal, |$B:ident, $x:ident| $out:expr) => {{
            let kept = {
                type $B = Ours;
                runs!($B, $op, |$x| $out)
            };
            let again = {
                type $B = Balanced;
                runs!($B, $op, |$x| $out)
            };
            assert!(kept > 0, concat!($op, " was launched"));
            assert_eq!(again, 2 * kept, concat!("launches of ", $op, " where its output is not kept"));
        }};
        ($op:literal, once, |$B:ident, $x:ident| $out:expr) => {{
            type $B = Balanced;
            let runs = runs!($B, $op, |$x| $out);
            assert_eq!(runs, 1, concat!($op, " keeps its output, or what its gradient reads"));
        }};
    }
    let device = Default::default();
    twice!("nn_layer_norm", |B, x| ours::LayerNormConfig::new(8).init::<B>(&device).forward(x));
    twice!("nn_rms_norm", |B, x| ours::RmsNormConfig::new(8).init::<B>(&device).forward(x));
    twice!("nn_group_norm", |B, x| ours::GroupNormConfig::new(2, 4).init::<B>(&device).forward(x));
    twice!("nn_silu", |B, x| Silu::new().forward(x));
    twice!("nn_add_act", |B, x| ours::AddAct::new(Act::Silu).forward(x.clone(), x));
    twice!("nn_mul_add", |B, x| ours::MulAdd::new().forward(x.clone(), x.clone(), x));
    twice!("nn_bias_act", |B, x| {
        let config = ours::LinearActConfig::new(8, 8, Act::Gelu).with_layout(LinearLayout::Row);
        config.init::<B>(&device).forward(x)
    });
    twice!("nn_gated", |B, x| ours::SwiGluConfig::new(8, 8).init::<B>(&device).forward(x));
    twice!("nn_add_act", once, |B, x| ours::AddAct::new(Act::Relu).forward(x.clone(), x));
    twice!("nn_softmax", once, |B, x| ours::activation::softmax(x, 2));
}
