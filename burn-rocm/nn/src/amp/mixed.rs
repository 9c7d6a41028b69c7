//! What a mixed step needs besides model, optimizer and loss. Both versions of Burn compile this
//! file.

use burn::tensor::FloatDType;

use super::{GradScaler, GradScalerConfig, Precision};

/// Takes training steps in mixed precision: [`step`](Self::step) converts a copy of the module, runs
/// it forward and backward, and updates the f32 original. f16 scales the loss; bf16 has f32's range
/// and does not.
///
/// It joins [`Precision`] and [`GradScaler`]. Use these alone where a program changes
/// gradients before the optimizer's step, for example to add those of several batches or devices.
#[derive(Clone, Debug)]
pub struct Mixed {
    pub(super) precision: Precision,
    pub(super) scaler: Option<GradScaler>,
}

impl Mixed {
    /// Steps in bf16, without a scaler.
    pub fn bf16() -> Self {
        Self::new(Precision::new(FloatDType::BF16))
    }

    /// Steps in f16, with a scaler of default settings.
    pub fn f16() -> Self {
        Self::new(Precision::new(FloatDType::F16))
    }

    /// Steps in this precision; in f16 with a scaler of default settings.
    pub fn new(precision: Precision) -> Self {
        let scaler = (precision.dtype == FloatDType::F16).then(|| GradScalerConfig::new().init());
        Self { precision, scaler }
    }

    /// Also leaves modules of this type in f32, as [`Precision::keep`] does.
    pub fn keep(mut self, module: &str) -> Self {
        self.precision = self.precision.keep(module);
        self
    }

    /// Scales the loss by this scaler, which may have other settings or come from a record.
    pub fn with_scaler(mut self, scaler: GradScaler) -> Self {
        self.scaler = Some(scaler);
        self
    }

    /// The scaler, if there is one: its factor, how many steps it skipped, and its record.
    pub fn scaler(&self) -> Option<&GradScaler> {
        self.scaler.as_ref()
    }
}
