//! The models built with Burn's own modules.

mod parts {
    //! The modules of the models.

    use burn::nn::loss::CrossEntropyLossConfig;
    use burn::tensor::activation::relu;
    use burn::tensor::{Int, Tensor};

    pub(super) use burn::nn::transformer::{
        TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
    };

    pub(super) fn join_relu(x: Tensor<4>, around: Tensor<4>) -> Tensor<4> {
        relu(x + around)
    }

    pub(super) fn cross_entropy(logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
        CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, labels)
    }

    pub(super) fn mean_square(x: Tensor<3>, target: Tensor<3>) -> Tensor<1> {
        let distance = x - target;
        (distance.clone() * distance).mean()
    }
}

#[path = "nets.rs"]
mod nets;
pub(crate) use nets::{ResNet18, Transformer};
