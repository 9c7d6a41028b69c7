//! Layers that are divided among ranks.

use burn_rocm::{RocmError, take_last_error};
use burn_rocm_nn::parallel::{ColumnLinear, RowLinear};

use crate::*;

const IN: usize = 6;
const HIDDEN: usize = 16;
const OUT: usize = 5;

fn numbers(count: usize, first: usize) -> Vec<f64> {
    (first..first + count).map(|i| 0.5 * (1.7 * i as f64).sin()).collect()
}

pub(crate) fn tensor<const D: usize>(shape: [usize; D], first: usize, device: &RocmDevice) -> Tensor<B, D> {
    Tensor::from_data(TensorData::new(numbers(shape.iter().product(), first), shape), device)
}

fn layer(from: usize, to: usize, first: usize, device: &RocmDevice) -> Linear<B> {
    let mut layer = LinearConfig::new(from, to).init::<B>(device);
    layer.weight = Param::from_tensor(tensor([from, to], first, device));
    layer.bias = Some(Param::from_tensor(tensor([to], first + 500, device)));
    layer
}

pub(crate) fn values<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

fn near(what: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= limit(1), "{what}: {found} instead of {expected}");
    }
}

/// A pair of divided layers has the output and the gradients of the whole ones. The ranks' parts of
/// weights and biases have the matching parts of the whole gradients.
#[test]
fn divided_layers_are_the_whole_ones() {
    let Some(count) = devices("tensor::divided_layers_are_the_whole_ones") else { return };
    let ranks = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let first = ColumnLinear::of(layer(IN, HIDDEN, 0, &device), ranks.communicator());
        let second = RowLinear::of(layer(HIDDEN, OUT, 1000, &device), ranks.communicator());
        let x = tensor([3, 4, IN], 2000, &device).require_grad();
        let y = second.forward(activation::tanh(first.forward(x.clone())));
        let loss = (y.clone() * tensor([3, 4, OUT], 3000, &device)).sum();
        ranks.communicator().meet().unwrap();
        let grads = loss.backward();
        ranks.communicator().meet().unwrap();
        let bias =
            |bias: &Option<Param<Tensor<B, 1>>>| values(bias.as_ref().unwrap().val().grad(&grads).unwrap());
        let columns = first.weight.val().grad(&grads).unwrap().transpose();
        let rows = second.weight.val().grad(&grads).unwrap();
        let parts = [values(columns), bias(&first.bias), values(rows)];
        (parts, [values(y), values(x.grad(&grads).unwrap()), bias(&second.bias)])
    });
    let device = RocmDevice::new(0);
    let (first, second) = (layer(IN, HIDDEN, 0, &device), layer(HIDDEN, OUT, 1000, &device));
    let x = tensor([3, 4, IN], 2000, &device).require_grad();
    let y = second.forward(activation::tanh(first.forward(x.clone())));
    let grads = (y.clone() * tensor([3, 4, OUT], 3000, &device)).sum().backward();
    let bias = |layer: &Linear<B>| values(layer.bias.as_ref().unwrap().val().grad(&grads).unwrap());
    let same = [values(y), values(x.grad(&grads).unwrap()), bias(&second)];
    for (_, found) in &ranks {
        for (what, (found, expected)) in ["output", "input", "bias"].into_iter().zip(found.iter().zip(&same))
        {
            near(what, found, expected);
        }
    }
    let columns = values(first.weight.val().grad(&grads).unwrap().transpose());
    let expected = [columns, bias(&first), values(second.weight.val().grad(&grads).unwrap())];
    for (at, expected) in expected.iter().enumerate() {
        let joined: Vec<f64> = ranks.iter().flat_map(|(parts, _)| parts[at].clone()).collect();
        near(["columns", "bias of columns", "rows"][at], &joined, expected);
    }
}

#[test]
fn features_that_the_ranks_do_not_divide() {
    let Some(count) = devices("tensor::features_that_the_ranks_do_not_divide") else { return };
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let odd = || layer(IN + 1, OUT, 0, &device);
        let column = || drop(ColumnLinear::of(odd(), ranks.communicator()));
        let row = || drop(RowLinear::of(odd(), ranks.communicator()));
        for refused in [&column as &dyn Fn(), &row] {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(refused)).expect_err("5 and 7 features");
            let error = take_last_error();
            assert!(matches!(error, Some(RocmError::Invalid { .. })), "{error:?}");
        }
    });
}

/// Sets a module's parameters: each is a series of its own.
struct Fill(usize);

impl burn::module::ModuleMapper<B> for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        self.0 += 100;
        let first = self.0;
        param.map(|value| tensor(value.dims(), first, &value.device()).require_grad())
    }
}

/// An output, the gradient of the input, and those of the parameters.
type Passes = (Vec<f64>, Vec<f64>, Vec<Vec<f64>>);

/// Output, the gradients of the input and of all parameters, in the order of the module.
fn passes<M: Module<B>>(
    ranks: &DataParallel,
    module: &M,
    x: Tensor<B, 3>,
    forward: impl Fn(&M, Tensor<B, 3>) -> Tensor<B, 3>,
) -> Passes {
    struct Read<'a>(&'a <B as AutodiffBackend>::Gradients, Vec<Vec<f64>>);
    impl ModuleVisitor<B> for Read<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.1.push(values(param.val().grad(self.0).unwrap()));
        }
    }
    let x = x.require_grad();
    let y = forward(module, x.clone());
    let loss = (y.clone() * tensor(y.dims(), 3000, &y.device())).sum();
    ranks.communicator().meet().unwrap();
    let grads = loss.backward();
    ranks.communicator().meet().unwrap();
    let mut read = Read(&grads, Vec::new());
    module.visit(&mut read);
    (values(y), values(x.grad(&grads).unwrap()), read.1)
}

/// The elements of all parts, sorted: a parameter's part is compared with the whole as a set.
pub(crate) fn sorted(parts: impl IntoIterator<Item = Vec<f64>>) -> Vec<f64> {
    let mut all = parts.into_iter().flatten().collect::<Vec<_>>();
    all.sort_by(f64::total_cmp);
    all
}

/// The divided blocks have the output and the gradients of the whole ones. `whole` are the parameters
/// that every rank has whole.
fn check_blocks(what: &str, whole: &[usize], found: &[Passes], expected: &Passes) {
    for (output, by_x, by_parameters) in found {
        near(what, output, &expected.0);
        near(what, by_x, &expected.1);
        assert_eq!(by_parameters.len(), expected.2.len(), "{what}");
    }
    for (at, of) in expected.2.iter().enumerate() {
        let parts = found.iter().map(|(_, _, parameters)| parameters[at].clone());
        match whole.contains(&at) {
            true => parts.for_each(|part| near(what, &part, of)),
            false => near(what, &sorted(parts), &sorted([of.clone()])),
        }
    }
}

#[test]
fn a_divided_feed_forward_is_the_whole_one() {
    use burn::nn::activation::ActivationConfig;
    use burn_rocm_nn::parallel::ParallelFeedForward;
    use burn_rocm_nn::transformer::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
    let Some(count) = devices("tensor::a_divided_feed_forward_is_the_whole_one") else { return };
    for activation in [ActivationConfig::Gelu, ActivationConfig::Relu, ActivationConfig::Tanh] {
        let block = |device: &RocmDevice| {
            let config = PositionWiseFeedForwardConfig::new(IN, HIDDEN).with_dropout(0.0);
            let block: PositionWiseFeedForward<B> = config.with_activation(activation.clone()).init(device);
            block.map(&mut Fill(0))
        };
        let x = |device: &RocmDevice| tensor([3, 4, IN], 2000, device);
        let found = on_ranks(count, |ranks| {
            let device = ranks.communicator().device();
            let module = ParallelFeedForward::of(block(&device), ranks.communicator());
            passes(&ranks, &module, x(&device), |module, x| module.forward(x))
        });
        let expected = on_ranks(1, |ranks| {
            let device = ranks.communicator().device();
            passes(&ranks, &block(&device), x(&device), |module, x| module.forward(x))
        });
        // The divided block: inner weight and bias, outer weight, outer bias.
        check_blocks("feed forward", &[3], &found, &expected[0]);
    }
}

#[test]
fn divided_heads_are_the_whole_attention() {
    use burn_rocm_nn::attention::{
        MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
    };
    use burn_rocm_nn::parallel::ParallelAttention;
    let Some(count) = devices("tensor::divided_heads_are_the_whole_attention") else { return };
    // The heads of keys that 8 heads of queries share.
    for kv_heads in [None, Some(4)] {
        for cross in [false, true] {
            let attention = |device: &RocmDevice| {
                let mut config = MultiHeadAttentionConfig::new(16, 8).with_dropout(0.0);
                config.kv_heads = kv_heads;
                let attention: MultiHeadAttention<B> = config.init(device);
                attention.map(&mut Fill(0))
            };
            let input = |x: Tensor<B, 3>| match cross {
                true => MhaInput::new(x.clone(), x.clone().mul_scalar(2.0), x),
                false => {
                    let mask = generate_autoregressive_mask::<B>(3, 5, &x.device());
                    MhaInput::self_attn(x).mask_attn(mask)
                }
            };
            let x = |device: &RocmDevice| tensor([3, 5, 16], 2000, device);
            let found = on_ranks(count, |ranks| {
                let device = ranks.communicator().device();
                let module = ParallelAttention::of(attention(&device), ranks.communicator());
                passes(&ranks, &module, x(&device), |module, x| module.forward(input(x)).context)
            });
            let expected = on_ranks(1, |ranks| {
                let device = ranks.communicator().device();
                passes(&ranks, &attention(&device), x(&device), |module, x| module.forward(input(x)).context)
            });
            // Weights and biases of query, key and value; the output's weight and bias.
            check_blocks("attention", &[7], &found, &expected[0]);
        }
    }
}

#[test]
fn blocks_that_the_ranks_do_not_divide_are_refused() {
    use burn_rocm_nn::attention::{MultiHeadAttention, MultiHeadAttentionConfig};
    use burn_rocm_nn::parallel::{ParallelAttention, ParallelFeedForward};
    use burn_rocm_nn::transformer::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
    let Some(count) = devices("tensor::blocks_that_the_ranks_do_not_divide_are_refused") else { return };
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let refused = |run: &mut dyn FnMut()| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).expect_err("is refused");
            let error = take_last_error().expect("a typed error");
            assert!(matches!(error, RocmError::Invalid { .. }), "{error}");
        };
        refused(&mut || {
            let block: PositionWiseFeedForward<B> = PositionWiseFeedForwardConfig::new(IN, 9).init(&device);
            ParallelFeedForward::of(block, ranks.communicator());
        });
        refused(&mut || {
            let config = MultiHeadAttentionConfig::new(16, 8).with_kv_heads(Some(1));
            let attention: MultiHeadAttention<B> = config.init(&device);
            ParallelAttention::of(attention, ranks.communicator());
        });
    });
}

/// A rank's part of a layer has memory of its own: that of the whole layer is free.
#[test]
fn a_part_does_not_keep_the_whole_layer() {
    let Some(count) = devices("tensor::a_part_does_not_keep_the_whole_layer") else { return };
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let pool = hip::Device::get(device.index).unwrap();
        let allocated = || pool.pool().stats().allocated;
        let before = allocated();
        let whole = || LinearConfig::new(256, 64).with_bias(false).init::<B>(&device);
        let bytes = 256 * 64 * 8 / ranks.size();
        let row = RowLinear::of(whole(), ranks.communicator());
        assert_eq!(values(row.weight.val()).len() * 8, bytes);
        let with_row = allocated() - before;
        assert!(with_row < 2 * bytes, "{with_row} bytes for a part of {bytes}");
        let column = ColumnLinear::of(whole(), ranks.communicator());
        assert_eq!(values(column.weight.val()).len() * 8, bytes);
        let with_column = allocated() - before - with_row;
        assert!(with_column < 2 * bytes, "{with_column} bytes for a part of {bytes}");
    });
}
