//! Burn's options of convolutions as those of [`conv`]. Both versions of Burn compile this file.

use burn_backend::ops::{ConvOptions, ConvTransposeOptions, DeformConvOptions};

use crate::ops::conv::{self, deform};

/// Burn's options of a convolution as those of [`conv`], with the padding before and after each axis.
/// The versions of Burn give the padding in different types.
pub(super) fn plain<const N: usize>(padding: [usize; N], options: ConvOptions<N>) -> conv::options::Options {
    conv::options::Options {
        stride: options.stride.to_vec(),
        padding: padding.to_vec(),
        dilation: options.dilation.to_vec(),
        groups: options.groups,
        transposed: false,
        padding_out: vec![0; N],
    }
}

/// Burn's options of a transposed convolution as those of [`conv`].
pub(super) fn transposed<const N: usize>(options: ConvTransposeOptions<N>) -> conv::options::Options {
    conv::options::Options {
        stride: options.stride.to_vec(),
        padding: options.padding.to_vec(),
        dilation: options.dilation.to_vec(),
        groups: options.groups,
        transposed: true,
        padding_out: options.padding_out.to_vec(),
    }
}

/// Burn's options of a deformable convolution as those of [`deform`].
pub(super) fn deformed(options: DeformConvOptions<2>) -> deform::Options {
    deform::Options {
        stride: options.stride,
        padding: options.padding,
        dilation: options.dilation,
        weight_groups: options.weight_groups,
        offset_groups: options.offset_groups,
    }
}
