//! The ops: one file or folder for each family, with its gradients. They use tensors, layouts and
//! the crate `hip`. From Burn they use only shapes, dtypes and scalars. An op checks its inputs,
//! then launches. Only reads (`transfer`) and `argwhere` wait for the device.

pub(crate) mod activation;
pub mod amp;
pub(crate) mod argwhere;
pub(crate) mod attention;
pub(crate) mod binary;
pub(crate) mod cast;
pub(crate) mod cat;
pub(crate) mod channels_last;
pub(crate) mod clock;
pub(crate) mod collective;
pub(crate) mod compare;
pub(crate) mod conv;
pub(crate) mod copy;
pub(crate) mod create;
pub(crate) mod embedding;
pub(crate) mod fft;
pub(crate) mod hypot;
pub(crate) mod index;
pub(crate) mod index_nd;
pub(crate) mod interpolate;
pub(crate) mod launch;
pub(crate) mod linear;
pub(crate) mod linear_act;
pub(crate) mod loss;
pub(crate) mod lt;
pub(crate) mod mask;
pub(crate) mod matmul;
mod miopen;
pub(crate) mod multi_tensor;
pub(crate) mod norm;
pub mod optim;
pub(crate) mod pack;
pub(crate) mod pad;
pub(crate) mod pool;
pub(crate) mod quantized;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod scan;
pub(crate) mod slice_assign;
pub(crate) mod softmax;
pub(crate) mod sort;
pub(crate) mod support;
pub(crate) mod transfer;
pub(crate) mod unary;
pub(crate) mod view;
