//! Low-rank adapters of frozen layers (LoRA): training, merging, and files of the Python library
//! PEFT.
//!
//! A model has [`LoraLayer`]s where it would have linear layers. [`Lora::adapt`] makes one with a
//! new adapter, or without one if the layer's name is no target; [`Peft::adapt`] makes one with the
//! adapter of a file. Only the adapters' parameters require gradients, so an optimizer has states
//! for them alone.
//!
//! ```
//! # use burn::nn::LinearConfig;
//! # use burn::tensor::{Device, Tensor};
//! # use burn_rocm_nn_022 as burn_rocm_nn;
//! use burn_rocm_nn::language::lora::{LoraConfig, LoraLinear, Peft, Targets};
//! use burn_rocm_nn::optim::{AdamWConfig, GradientsParams};
//!
//! let device = Device::rocm(0).autodiff();
//! let lora = LoraConfig::new(4, Targets::names(["q_proj"])).build()?;
//! let linear = LinearConfig::new(16, 8).init(&device);
//! let layer: LoraLinear = lora.adapt("layers.0.q_proj", linear);
//!
//! let loss = layer.forward(Tensor::<2>::ones([2, 16], &device)).powi_scalar(2).mean();
//! let grads = GradientsParams::from_grads(loss.backward(), &layer);
//! let layer = AdamWConfig::new().init().step(1e-3, layer, grads);
//!
//! // For PEFT, and for use without the adapter.
//! let peft = Peft::new(lora, layer.pair()?)?;
//! let merged = layer.merged()?;
//! # assert_eq!(peft.layers().count(), 1);
//! # assert_eq!(merged.weight.dims(), [16, 8]);
//! # Ok::<(), burn_rocm_nn::language::lora::LoraError>(())
//! ```

#[path = "../../../../../burn-rocm/nn/src/language/lora/config.rs"]
mod config;
#[path = "../../../../../burn-rocm/nn/src/language/lora/error.rs"]
mod error;
mod layer;
#[path = "../../../../../burn-rocm/nn/src/language/lora/peft.rs"]
mod peft;

pub use config::{AdapterConfig, Lora, LoraConfig, Targets};
pub use error::LoraError;
pub use layer::{Adapter, FrozenLinear, LoraLayer, LoraLinear};
pub use peft::{Peft, PeftMatrix, PeftPair};
