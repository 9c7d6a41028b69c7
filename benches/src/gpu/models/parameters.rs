//! The parameters of models, for `several_gpus`, which computes with the bytes of their gradients.

/// ResNet-18's, to four digits.
pub(crate) const RESNET_18: f64 = 11.70e6;
/// The transformer's, to three digits.
pub(crate) const TRANSFORMER: f64 = 28.4e6;
