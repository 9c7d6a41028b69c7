//! Attention: Burn's module and this project's, forward and backward. The program `attention_paths`
//! times the two paths of this project's attention.

use burn::nn::attention as stock;
use burn::nn::transformer as stock_transformer;
use burn::tensor::DType;
use burn_rocm_nn::{attention, transformer};

use super::{B, Case, HALVES, converted, step, uniform};

/// Batch, sequence, features and heads: those of the benches' transformer on a GPU, smaller ones on
/// the CPU device.
fn sizes(is_gpu: bool) -> [usize; 4] {
    if is_gpu { [16, 512, 768, 12] } else { [2, 128, 96, 4] }
}

pub(super) fn cases(is_gpu: bool) -> Vec<Case> {
    let [batch, sequence, features, heads] = sizes(is_gpu);
    let shape = [batch, sequence, features];
    let mut all = Vec::new();
    for (dropout, dtype) in
        [(0.0, DType::F32), (0.1, DType::F32)].into_iter().chain(HALVES.map(|dtype| (0.0, dtype)))
    {
        let name = format!(
            "multi-head attention {shape:?}, {heads} heads, dropout {dropout}, {}, forward and backward",
            dtype.name()
        );
        all.push(Case::new(name, move |device| {
            let x = uniform(shape, dtype, device);
            let theirs =
                stock::MultiHeadAttentionConfig::new(features, heads).with_dropout(dropout).init::<B>(device);
            let ours = attention::MultiHeadAttentionConfig::new(features, heads)
                .with_dropout(dropout)
                .init::<B>(device);
            let (theirs, ours) = (converted(theirs, dtype), converted(ours, dtype));
            [
                step(x.clone(), move |x| theirs.forward(stock::MhaInput::self_attn(x)).context.sum()),
                step(x, move |x| ours.forward(attention::MhaInput::self_attn(x)).context.sum()),
            ]
        }));
    }
    let name =
        format!("transformer encoder layer {shape:?}, {heads} heads, norm first, f32, forward and backward");
    all.push(Case::new(name, move |device| {
        let x = uniform(shape, DType::F32, device);
        let theirs = stock_transformer::TransformerEncoderConfig::new(features, 4 * features, heads, 1)
            .with_dropout(0.0)
            .with_norm_first(true)
            .init::<B>(device);
        let ours = transformer::TransformerEncoderConfig::new(features, 4 * features, heads, 1)
            .with_dropout(0.0)
            .with_norm_first(true)
            .init::<B>(device);
        let input = stock_transformer::TransformerEncoderInput::new;
        [
            step(x.clone(), move |x| theirs.forward(input(x)).sum()),
            step(x, move |x| ours.forward(transformer::TransformerEncoderInput::new(x)).sum()),
        ]
    }));
    all
}
