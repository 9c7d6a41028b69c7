//! The models built with this project's modules.

mod parts {
    //! The modules of the models.

    use burn::tensor::backend::Backend;
    use burn::tensor::{Int, Tensor};
    use burn_rocm_nn::loss::{CrossEntropyLossConfig, MseLoss, Reduction};
    use burn_rocm_nn::{Act, AddAct, LinearActConfig};

    pub(super) use burn_rocm_nn::transformer::{
        TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
    };
    pub(super) use burn_rocm_nn::{
        BatchNorm, BatchNormConfig, LayerNorm, LayerNormConfig, LinearAct as LinearRelu,
    };

    pub(super) fn norm_relu<B: Backend>(norm: &BatchNorm<B>, x: Tensor<B, 4>) -> Tensor<B, 4> {
        norm.forward_relu(x)
    }

    pub(super) fn join_relu<B: Backend>(x: Tensor<B, 4>, around: Tensor<B, 4>) -> Tensor<B, 4> {
        AddAct::new(Act::Relu).forward(x, around)
    }

    pub(super) fn linear_relu_of<B: Backend>(from: usize, to: usize, device: &B::Device) -> LinearRelu<B> {
        LinearActConfig::new(from, to, Act::Relu).init(device)
    }

    pub(super) fn linear_relu<B: Backend>(linear: &LinearRelu<B>, x: Tensor<B, 2>) -> Tensor<B, 2> {
        linear.forward(x)
    }

    pub(super) fn cross_entropy<B: Backend>(logits: Tensor<B, 2>, labels: Tensor<B, 1, Int>) -> Tensor<B, 1> {
        CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, labels)
    }

    pub(super) fn mean_square<B: Backend>(x: Tensor<B, 3>, target: Tensor<B, 3>) -> Tensor<B, 1> {
        MseLoss::new().forward(x, target, Reduction::Mean)
    }
}

#[path = "bert.rs"]
mod bert;
#[path = "nets.rs"]
mod nets;
#[path = "resnet50.rs"]
mod resnet50;
pub(crate) use bert::Bert;
pub(crate) use nets::{Cnn, Mlp, ResNet18, Transformer};
pub(crate) use resnet50::ResNet50;
