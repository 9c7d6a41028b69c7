//! A convolution and ReLU, forward and backward.

use burn::module::Param;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2dConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Distribution, Tensor};
use burn_rocm_nn::{Act, ConvActConfig};

use super::{B, Body, Case};

fn case(shape: [usize; 4], channels_out: usize, size: usize) -> Case {
    let name = format!("convolution {size} x {size} to {channels_out} channels and ReLU of {shape:?} f32");
    Case::new(format!("{name}, forward and backward"), move |device| {
        let (channels, kernel) = ([shape[1], channels_out], [size; 2]);
        let same = PaddingConfig2d::Same;
        let theirs = Conv2dConfig::new(channels, kernel).with_padding(same.clone()).init::<B>(device);
        let ours = ConvActConfig::new(channels, kernel, Act::Relu).with_padding(same).init::<B>(device);
        let x = || Tensor::<B, 4>::random(shape, Distribution::Uniform(-1.0, 1.0), device);
        let [a, b] = [x(), x()].map(Param::from_tensor);
        [
            Box::new(move || drop(relu(theirs.forward(a.val())).backward())) as Body,
            Box::new(move || drop(ours.forward(b.val()).backward())),
        ]
    })
}

pub(super) fn cases(images: usize) -> Vec<Case> {
    vec![case([images, 64, 56, 56], 64, 3), case([images, 256, 14, 14], 256, 1)]
}
