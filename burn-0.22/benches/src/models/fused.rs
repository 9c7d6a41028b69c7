//! The models built with burn-rocm-nn's modules.

mod parts {
    //! The modules of the models.

    use burn::tensor::{Int, Tensor};
    use burn_rocm_nn::loss::{CrossEntropyLossConfig, MseLoss, Reduction};
    use burn_rocm_nn::{Act, AddAct};

    pub(super) use burn_rocm_nn::transformer::{
        TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
    };

    pub(super) fn join_relu(x: Tensor<4>, around: Tensor<4>) -> Tensor<4> {
        AddAct::new(Act::Relu).forward(x, around)
    }

    pub(super) fn cross_entropy(logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
        CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, labels)
    }

    pub(super) fn mean_square(x: Tensor<3>, target: Tensor<3>) -> Tensor<1> {
        MseLoss::new().forward(x, target, Reduction::Mean)
    }
}

#[path = "nets.rs"]
mod nets;
pub(crate) use nets::{ResNet18, Transformer};
