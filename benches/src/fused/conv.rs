//! A convolution and ReLU, forward and backward, and inference with a batch norm between them.

use burn::module::{AutodiffModule, Param};
use burn::nn::conv::Conv2dConfig;
use burn::nn::{BatchNormConfig, PaddingConfig2d};
use burn::tensor::DType;
use burn::tensor::activation::relu;
use burn_rocm_nn::{Act, ConvAct, ConvActConfig};

use super::{B, Case, held, uniform};

fn case(shape: [usize; 4], channels_out: usize, size: usize) -> Case {
    let name = format!("convolution {size} x {size} to {channels_out} channels and ReLU of {shape:?} f32");
    Case::new(format!("{name}, forward and backward"), move |device| {
        let (channels, kernel) = ([shape[1], channels_out], [size; 2]);
        let same = PaddingConfig2d::Same;
        let theirs = Conv2dConfig::new(channels, kernel).with_padding(same.clone()).init::<B>(device);
        let ours = ConvActConfig::new(channels, kernel, Act::Relu).with_padding(same).init::<B>(device);
        let [a, b] = [(); 2].map(|()| Param::from_tensor(uniform(shape, DType::F32, device)));
        let composed = move || {
            let out = relu(theirs.forward(a.val()));
            (out.backward(), out)
        };
        let fused = move || {
            let out = ours.forward(b.val());
            (out.backward(), out)
        };
        [held(device, composed), held(device, fused)]
    })
}

/// Inference of a convolution, a batch norm and ReLU, folded into one layer.
fn folded(shape: [usize; 4], channels_out: usize) -> Case {
    let name = format!("convolution 3 x 3 to {channels_out} channels, batch norm and ReLU of {shape:?} f32");
    Case::new(format!("{name}, inference"), move |device| {
        let same = PaddingConfig2d::Same;
        let conv = Conv2dConfig::new([shape[1], channels_out], [3; 2]).with_padding(same).init::<B>(device);
        let norm = BatchNormConfig::new(channels_out).init::<B>(device);
        let (conv, norm) = (conv.valid(), norm.valid());
        let of = [norm.gamma.val(), norm.beta.val(), norm.running_mean.value(), norm.running_var.value()];
        let ours = ConvAct::folded(conv.clone(), of, norm.epsilon, Act::Relu);
        let x = uniform(shape, DType::F32, device).inner();
        let y = x.clone();
        [
            held(device, move || relu(norm.forward(conv.forward(x.clone())))),
            held(device, move || ours.forward(y.clone())),
        ]
    })
}

pub(super) fn cases(images: usize) -> Vec<Case> {
    vec![
        case([images, 64, 56, 56], 64, 3),
        case([images, 256, 14, 14], 256, 1),
        folded([images, 64, 56, 56], 64),
    ]
}
