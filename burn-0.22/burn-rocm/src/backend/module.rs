//! Ops of whole layers.

use burn_backend::ops::{
    AttentionModuleOptions, BatchNormTrain, BatchNormTrainBackward, ConvOptions, ConvTransposeOptions,
    DeformConv2dBackward, DeformConvOptions, InterpolateMode, InterpolateOptions, MaxPool1dBackward,
    MaxPool1dWithIndices, MaxPool2dBackward, MaxPool2dWithIndices, ModuleOps, UnfoldOptions,
};
use burn_rocm_macros::traced;
use burn_std::IntDType;

use super::Rocm;
use super::asymmetric::{padded, x_backward};
use super::options::{deformed, plain, transposed};
use crate::error::OrRaise;
use crate::ops::attention::inference;
use crate::ops::conv::{self, deform, direct};
use crate::ops::interpolate::Mode;
use crate::ops::loss::ctc;
use crate::ops::norm::batch;
use crate::ops::norm::layer::layer_norm;
use crate::ops::pool::{self, Window, pool1d};
use crate::ops::{embedding, interpolate, linear};
use crate::tensor::RocmTensor;

/// Burn's interpolation mode as the kernels' [`Mode`].
pub(super) fn mode(mode: InterpolateMode) -> Mode {
    match mode {
        InterpolateMode::Nearest => Mode::Nearest,
        InterpolateMode::NearestExact => Mode::NearestExact,
        InterpolateMode::Bilinear => Mode::Bilinear,
        InterpolateMode::Bicubic => Mode::Bicubic,
        InterpolateMode::Lanczos3 => Mode::Lanczos3,
    }
}

#[traced]
impl ModuleOps<Self> for Rocm {
    fn batch_norm(
        x: RocmTensor,
        gamma: RocmTensor,
        beta: RocmTensor,
        mean: RocmTensor,
        variance: RocmTensor,
        epsilon: f64,
    ) -> RocmTensor {
        batch::batch_norm_infer(x, gamma, beta, [mean, variance], epsilon).or_raise()
    }

    fn batch_norm_train(
        x: RocmTensor,
        gamma: RocmTensor,
        beta: RocmTensor,
        epsilon: f64,
    ) -> BatchNormTrain<Self> {
        let (output, [mean, variance]) = batch::batch_norm_statistics(x, gamma, beta, epsilon).or_raise();
        BatchNormTrain::new(output, mean, variance)
    }

    fn batch_norm_train_backward(
        x: RocmTensor,
        gamma: RocmTensor,
        mean: RocmTensor,
        variance: RocmTensor,
        epsilon: f64,
        output_grad: RocmTensor,
    ) -> BatchNormTrainBackward<Self> {
        let statistics = batch::statistics_for_backward(&x, [mean, variance], epsilon).or_raise();
        let [dx, dgamma, dbeta] =
            batch::batch_norm_backward(x, gamma, statistics, output_grad, epsilon).or_raise();
        BatchNormTrainBackward::new(dx, dgamma, dbeta)
    }

    fn embedding(weights: RocmTensor, indices: RocmTensor) -> RocmTensor {
        embedding::embedding(weights, indices).or_raise()
    }

    fn embedding_backward(weights: RocmTensor, output_grad: RocmTensor, indices: RocmTensor) -> RocmTensor {
        embedding::embedding_backward(weights, output_grad, indices).or_raise()
    }

    fn linear(x: RocmTensor, weight: RocmTensor, bias: Option<RocmTensor>) -> RocmTensor {
        linear::linear(x, weight, bias).or_raise()
    }

    fn linear_x_backward(weight: RocmTensor, output_grad: RocmTensor) -> RocmTensor {
        linear::x_backward(weight, output_grad).or_raise()
    }

    fn linear_weight_backward(x: RocmTensor, output_grad: RocmTensor) -> RocmTensor {
        linear::weight_backward(x, output_grad).or_raise()
    }

    fn linear_bias_backward(output_grad: RocmTensor) -> RocmTensor {
        linear::bias_backward(output_grad).or_raise()
    }

    fn conv1d(
        x: RocmTensor,
        weight: RocmTensor,
        bias: Option<RocmTensor>,
        options: ConvOptions<1>,
    ) -> RocmTensor {
        let (x, options) = padded(x, options);
        conv::forward("conv1d", x, weight, bias, &plain(options.padding_begin(), options)).or_raise()
    }

    fn conv1d_x_backward(
        x: RocmTensor,
        weight: RocmTensor,
        output_grad: RocmTensor,
        options: ConvOptions<1>,
    ) -> RocmTensor {
        x_backward("conv1d_x_backward", x.dims(), weight, output_grad, options).or_raise()
    }

    fn conv1d_weight_backward(
        x: RocmTensor,
        weight: RocmTensor,
        output_grad: RocmTensor,
        options: ConvOptions<1>,
    ) -> RocmTensor {
        let (x, options) = padded(x, options);
        conv::weight_backward(
            "conv1d_weight_backward",
            x,
            weight.dims(),
            output_grad,
            &plain(options.padding_begin(), options),
        )
        .or_raise()
    }

    fn conv1d_bias_backward(_x: RocmTensor, _bias: RocmTensor, output_grad: RocmTensor) -> RocmTensor {
        conv::bias_backward("conv1d_bias_backward", output_grad).or_raise()
    }

    fn conv_transpose1d(
        x: RocmTensor,
        weight: RocmTensor,
        bias: Option<RocmTensor>,
        options: ConvTransposeOptions<1>,
    ) -> RocmTensor {
        conv::transposed("conv_transpose1d", x, weight, bias, &transposed(options)).or_raise()
    }

    fn conv_transpose1d_x_backward(
        weight: RocmTensor,
        output_grad: RocmTensor,
        options: ConvTransposeOptions<1>,
    ) -> RocmTensor {
        conv::transposed_x_backward("conv_transpose1d_x_backward", weight, output_grad, &transposed(options))
            .or_raise()
    }

    fn conv_transpose1d_weight_backward(
        x: RocmTensor,
        weight: RocmTensor,
        output_grad: RocmTensor,
        options: ConvTransposeOptions<1>,
    ) -> RocmTensor {
        conv::transposed_weight_backward(
            "conv_transpose1d_weight_backward",
            x,
            weight.dims(),
            output_grad,
            &transposed(options),
        )
        .or_raise()
    }

    fn conv_transpose1d_bias_backward(
        _x: RocmTensor,
        _bias: RocmTensor,
        output_grad: RocmTensor,
    ) -> RocmTensor {
        conv::bias_backward("conv_transpose1d_bias_backward", output_grad).or_raise()
    }

    fn conv2d(
        x: RocmTensor,
        weight: RocmTensor,
        bias: Option<RocmTensor>,
        options: ConvOptions<2>,
    ) -> RocmTensor {
        let (x, options) = padded(x, options);
        conv::forward("conv2d", x, weight, bias, &plain(options.padding_begin(), options)).or_raise()
    }

    fn conv2d_x_backward(
        x: RocmTensor,
        weight: RocmTensor,
        output_grad: RocmTensor,
        options: ConvOptions<2>,
    ) -> RocmTensor {
        x_backward("conv2d_x_backward", x.dims(), weight, output_grad, options).or_raise()
    }

    fn conv2d_weight_backward(
        x: RocmTensor,
        weight: RocmTensor,
        output_grad: RocmTensor,
        options: ConvOptions<2>,
    ) -> RocmTensor {
        let (x, options) = padded(x, options);
        conv::weight_backward(
            "conv2d_weight_backward",
            x,
            weight.dims(),
            output_grad,
            &plain(options.padding_begin(), options),
        )
        .or_raise()
    }

    fn conv2d_bias_backward(_x: RocmTensor, _bias: RocmTensor, output_grad: RocmTensor) -> RocmTensor {
        conv::bias_backward("conv2d_bias_backward", output_grad).or_raise()
    }

    fn conv_transpose2d(
        x: RocmTensor,
        weight: RocmTensor,
        bias: Option<RocmTensor>,
        options: ConvTransposeOptions<2>,
    ) -> RocmTensor {
        conv::transposed("conv_transpose2d", x, weight, bias, &transposed(options)).or_raise()
    }

    fn conv_transpose2d_x_backward(
        weight: RocmTensor,
        output_grad: RocmTensor,
        options: ConvTransposeOptions<2>,
    ) -> RocmTensor {
        conv::transposed_x_backward("conv_transpose2d_x_backward", weight, output_grad, &transposed(options))
            .or_raise()
    }

    fn conv_transpose2d_weight_backward(
        x: RocmTensor,
        weight: RocmTensor,
        output_grad: RocmTensor,
        options: ConvTransposeOptions<2>,
    ) -> RocmTensor {
        conv::transposed_weight_backward(
            "conv_transpose2d_weight_backward",
            x,
            weight.dims(),
            output_grad,
            &transposed(options),
        )
        .or_raise()
    }

    fn conv_transpose2d_bias_backward(
        _x: RocmTensor,
        _bias: RocmTensor,
        output_grad: RocmTensor,
    ) -> RocmTensor {
        conv::bias_backward("conv_transpose2d_bias_backward", output_grad).or_raise()
    }

    fn conv3d(
        x: RocmTensor,
        weight: RocmTensor,
        bias: Option<RocmTensor>,
        options: ConvOptions<3>,
    ) -> RocmTensor {
        let (x, options) = padded(x, options);
        conv::forward("conv3d", x, weight, bias, &plain(options.padding_begin(), options)).or_raise()
    }

    fn conv3d_x_backward(
        x: RocmTensor,
        weight: RocmTensor,
        output_grad: RocmTensor,
        options: ConvOptions<3>,
    ) -> RocmTensor {
        x_backward("conv3d_x_backward", x.dims(), weight, output_grad, options).or_raise()
    }

    fn conv3d_weight_backward(
        x: RocmTensor,
        weight: RocmTensor,
        output_grad: RocmTensor,
        options: ConvOptions<3>,
    ) -> RocmTensor {
        let (x, options) = padded(x, options);
        conv::weight_backward(
            "conv3d_weight_backward",
            x,
            weight.dims(),
            output_grad,
            &plain(options.padding_begin(), options),
        )
        .or_raise()
    }

    fn conv3d_bias_backward(_x: RocmTensor, _bias: RocmTensor, output_grad: RocmTensor) -> RocmTensor {
        conv::bias_backward("conv3d_bias_backward", output_grad).or_raise()
    }

    fn conv_transpose3d(
        x: RocmTensor,
        weight: RocmTensor,
        bias: Option<RocmTensor>,
        options: ConvTransposeOptions<3>,
    ) -> RocmTensor {
        conv::transposed("conv_transpose3d", x, weight, bias, &transposed(options)).or_raise()
    }

    fn conv_transpose3d_x_backward(
        weight: RocmTensor,
        output_grad: RocmTensor,
        options: ConvTransposeOptions<3>,
    ) -> RocmTensor {
        conv::transposed_x_backward("conv_transpose3d_x_backward", weight, output_grad, &transposed(options))
            .or_raise()
    }

    fn conv_transpose3d_weight_backward(
        x: RocmTensor,
        weight: RocmTensor,
        output_grad: RocmTensor,
        options: ConvTransposeOptions<3>,
    ) -> RocmTensor {
        conv::transposed_weight_backward(
            "conv_transpose3d_weight_backward",
            x,
            weight.dims(),
            output_grad,
            &transposed(options),
        )
        .or_raise()
    }

    fn conv_transpose3d_bias_backward(
        _x: RocmTensor,
        _bias: RocmTensor,
        output_grad: RocmTensor,
    ) -> RocmTensor {
        conv::bias_backward("conv_transpose3d_bias_backward", output_grad).or_raise()
    }

    fn deform_conv2d(
        x: RocmTensor,
        offset: RocmTensor,
        weight: RocmTensor,
        mask: Option<RocmTensor>,
        bias: Option<RocmTensor>,
        options: DeformConvOptions<2>,
    ) -> RocmTensor {
        let operands = deform::Operands { x, offset, weight, mask, bias };
        deform::forward("deform_conv2d", operands, &deformed(options)).or_raise()
    }

    fn deform_conv2d_backward(
        x: RocmTensor,
        offset: RocmTensor,
        weight: RocmTensor,
        mask: Option<RocmTensor>,
        bias: Option<RocmTensor>,
        output_grad: RocmTensor,
        options: DeformConvOptions<2>,
    ) -> DeformConv2dBackward<Self> {
        let operands = deform::Operands { x, offset, weight, mask, bias };
        let options = deformed(options);
        let grads = deform::backward("deform_conv2d_backward", operands, output_grad, &options).or_raise();
        DeformConv2dBackward::new(grads.x, grads.offset, grads.weight, grads.mask, grads.bias)
    }

    fn unfold4d(x: RocmTensor, kernel_size: [usize; 2], options: UnfoldOptions) -> RocmTensor {
        let UnfoldOptions { stride, padding, dilation } = options;
        let options = plain(padding, ConvOptions::new(stride, padding, dilation, 1));
        direct::unfold4d(x, kernel_size, &options).or_raise()
    }

    fn avg_pool1d(
        x: RocmTensor,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        count_include_pad: bool,
        ceil_mode: bool,
    ) -> RocmTensor {
        let window = Window::line(kernel_size, stride, padding, 1, ceil_mode);
        pool1d::average("avg_pool1d", x, window, count_include_pad).or_raise()
    }

    fn avg_pool1d_backward(
        x: RocmTensor,
        grad: RocmTensor,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        count_include_pad: bool,
        ceil_mode: bool,
    ) -> RocmTensor {
        let window = Window::line(kernel_size, stride, padding, 1, ceil_mode);
        pool1d::average_backward("avg_pool1d_backward", x, grad, window, count_include_pad).or_raise()
    }

    fn avg_pool2d(
        x: RocmTensor,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        count_include_pad: bool,
        ceil_mode: bool,
    ) -> RocmTensor {
        let window = Window { size: kernel_size, stride, padding, dilation: [1, 1], ceil: ceil_mode };
        pool::average("avg_pool2d", x, window, count_include_pad).or_raise()
    }

    fn avg_pool2d_backward(
        x: RocmTensor,
        grad: RocmTensor,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        count_include_pad: bool,
        ceil_mode: bool,
    ) -> RocmTensor {
        let window = Window { size: kernel_size, stride, padding, dilation: [1, 1], ceil: ceil_mode };
        pool::average_backward("avg_pool2d_backward", &x, grad, window, count_include_pad).or_raise()
    }

    fn adaptive_avg_pool2d(x: RocmTensor, output_size: [usize; 2]) -> RocmTensor {
        pool::adaptive("adaptive_avg_pool2d", x, output_size).or_raise()
    }

    fn adaptive_avg_pool2d_backward(x: RocmTensor, grad: RocmTensor) -> RocmTensor {
        pool::adaptive_backward("adaptive_avg_pool2d_backward", x, grad).or_raise()
    }

    fn adaptive_avg_pool3d(x: RocmTensor, output_size: [usize; 3]) -> RocmTensor {
        pool::adaptive3d("adaptive_avg_pool3d", x, output_size).or_raise()
    }

    fn adaptive_avg_pool3d_backward(x: RocmTensor, grad: RocmTensor) -> RocmTensor {
        pool::adaptive3d_backward("adaptive_avg_pool3d_backward", x, grad).or_raise()
    }

    fn adaptive_avg_pool1d(x: RocmTensor, output_size: usize) -> RocmTensor {
        pool1d::adaptive("adaptive_avg_pool1d", x, output_size).or_raise()
    }

    fn adaptive_avg_pool1d_backward(x: RocmTensor, grad: RocmTensor) -> RocmTensor {
        pool1d::adaptive_backward("adaptive_avg_pool1d_backward", x, grad).or_raise()
    }

    fn max_pool1d(
        x: RocmTensor,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        dilation: usize,
        ceil_mode: bool,
    ) -> RocmTensor {
        let window = Window::line(kernel_size, stride, padding, dilation, ceil_mode);
        pool1d::max("max_pool1d", x, window).or_raise()
    }

    fn max_pool1d_with_indices(
        x: RocmTensor,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        dilation: usize,
        ceil_mode: bool,
        indices_dtype: IntDType,
    ) -> MaxPool1dWithIndices<Self> {
        let window = Window::line(kernel_size, stride, padding, dilation, ceil_mode);
        let (out, indices) =
            pool1d::max_with_indices("max_pool1d_with_indices", x, window, indices_dtype.into()).or_raise();
        MaxPool1dWithIndices::new(out, indices)
    }

    fn max_pool1d_with_indices_backward(
        x: RocmTensor,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        dilation: usize,
        ceil_mode: bool,
        output_grad: RocmTensor,
        indices: RocmTensor,
    ) -> MaxPool1dBackward<Self> {
        let window = Window::line(kernel_size, stride, padding, dilation, ceil_mode);
        let grad = pool1d::max_backward("max_pool1d_with_indices_backward", x, window, output_grad, indices);
        MaxPool1dBackward::new(grad.or_raise())
    }

    fn max_pool2d(
        x: RocmTensor,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
    ) -> RocmTensor {
        let window = Window { size: kernel_size, stride, padding, dilation, ceil: ceil_mode };
        pool::max("max_pool2d", x, window).or_raise()
    }

    fn max_pool2d_with_indices(
        x: RocmTensor,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
        indices_dtype: IntDType,
    ) -> MaxPool2dWithIndices<Self> {
        let window = Window { size: kernel_size, stride, padding, dilation, ceil: ceil_mode };
        let (out, indices) =
            pool::max_with_indices("max_pool2d_with_indices", x, window, indices_dtype.into()).or_raise();
        MaxPool2dWithIndices::new(out, indices)
    }

    fn max_pool2d_with_indices_backward(
        x: RocmTensor,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
        output_grad: RocmTensor,
        indices: RocmTensor,
    ) -> MaxPool2dBackward<Self> {
        let window = Window { size: kernel_size, stride, padding, dilation, ceil: ceil_mode };
        let grad = pool::max_backward("max_pool2d_with_indices_backward", &x, window, output_grad, indices);
        MaxPool2dBackward::new(grad.or_raise())
    }

    fn interpolate(x: RocmTensor, output_size: [usize; 2], options: InterpolateOptions) -> RocmTensor {
        interpolate::interpolate(x, output_size, mode(options.mode), options.align_corners).or_raise()
    }

    fn interpolate_backward(
        x: RocmTensor,
        grad: RocmTensor,
        output_size: [usize; 2],
        options: InterpolateOptions,
    ) -> RocmTensor {
        interpolate::interpolate_backward(x, grad, output_size, mode(options.mode), options.align_corners)
            .or_raise()
    }

    fn attention(
        query: RocmTensor,
        key: RocmTensor,
        value: RocmTensor,
        mask: Option<RocmTensor>,
        attn_bias: Option<RocmTensor>,
        options: AttentionModuleOptions,
    ) -> RocmTensor {
        inference::attention_inference(query, key, value, mask, attn_bias, &options.into()).or_raise()
    }

    fn layer_norm(
        tensor: RocmTensor,
        gamma: RocmTensor,
        beta: Option<RocmTensor>,
        epsilon: f64,
    ) -> RocmTensor {
        layer_norm(tensor, gamma, beta, epsilon).or_raise()
    }

    fn ctc_loss(
        log_probs: RocmTensor,
        targets: RocmTensor,
        input_lengths: RocmTensor,
        target_lengths: RocmTensor,
        blank: usize,
    ) -> RocmTensor {
        let sequences = ctc::Sequences { log_probs, targets, input_lengths, target_lengths, blank };
        ctc::loss("ctc_loss", sequences).or_raise()
    }

    fn has_ctc_loss_backward() -> bool {
        true
    }

    fn ctc_loss_backward(
        log_probs: RocmTensor,
        targets: RocmTensor,
        input_lengths: RocmTensor,
        target_lengths: RocmTensor,
        grad_loss: RocmTensor,
        blank: usize,
    ) -> RocmTensor {
        let sequences = ctc::Sequences { log_probs, targets, input_lengths, target_lengths, blank };
        ctc::backward("ctc_loss_backward", sequences, grad_loss).or_raise()
    }
}
