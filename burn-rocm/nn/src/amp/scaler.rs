//! The factor of the loss, and how it changes. Both versions of Burn compile this file.

use std::sync::OnceLock;

use burn::config::Config;
use burn_rocm::fused::amp::{Growth, Scale};
use burn_rocm::{RocmDevice, graph, raise};

use super::GradScalerRecord;
use crate::fuse::refuse;

/// Configuration of [`GradScaler`].
#[derive(Config, Debug)]
pub struct GradScalerConfig {
    /// The first factor of the loss. The default is the largest power of two in f16, because the
    /// gradient of a loss in f16 is the factor itself: 65536 would be infinite there, and the first
    /// step would be skipped.
    #[config(default = 32768.0)]
    pub initial_scale: f64,
    /// Multiplies the scale after [`growth_interval`](Self::growth_interval) steps in a row with
    /// finite gradients.
    #[config(default = 2.0)]
    pub growth_factor: f64,
    /// Multiplies the scale when a step is skipped.
    #[config(default = 0.5)]
    pub backoff_factor: f64,
    /// How many steps in a row must have finite gradients before the scale grows.
    #[config(default = 2000)]
    pub growth_interval: usize,
}

impl GradScalerConfig {
    /// The scaler.
    ///
    /// # Panics
    /// For an initial scale that is not positive and finite in f32, a growth factor below 1, or a
    /// back-off factor that is not between 0 and 1.
    pub fn init(&self) -> GradScaler {
        let scale = self.initial_scale as f32;
        const OP: &str = "GradScalerConfig";
        let Self { initial_scale, growth_factor, backoff_factor, .. } = *self;
        if !is_scale(scale) {
            refuse(OP, "an initial scale that is positive and finite in f32", initial_scale.to_string());
        }
        if growth_factor.is_nan() || growth_factor < 1.0 {
            refuse(OP, "a growth factor of at least 1", growth_factor.to_string());
        }
        if backoff_factor.is_nan() || backoff_factor <= 0.0 || backoff_factor >= 1.0 {
            refuse(OP, "a back-off factor between 0 and 1", backoff_factor.to_string());
        }
        GradScaler { config: self.clone(), scale, finite: 0, skipped: 0, on_device: OnceLock::new() }
    }
}

/// Whether this is a valid scale: positive and finite.
fn is_scale(scale: f32) -> bool {
    scale > 0.0 && scale.is_finite()
}

/// Scales the loss, so that small gradients are not lost in f16, and divides the gradients by the
/// scale before the optimizer's step. It skips a step whose gradients overflowed, and lowers the
/// scale.
///
/// Once a step has been captured in a graph, the scale is in device memory, and the device skips
/// the graph's steps. [`factor`](Self::factor), [`skipped`](Self::skipped) and
/// [`to_record`](Self::to_record) then wait for the device, and fail in a capture.
#[derive(Clone, Debug)]
pub struct GradScaler {
    config: GradScalerConfig,
    pub(super) scale: f32,
    /// Steps with finite gradients since the scale changed.
    finite: usize,
    skipped: usize,
    /// The scale and the counts instead of those above.
    on_device: OnceLock<Scale>,
}

impl GradScaler {
    /// The factor of the loss.
    pub fn factor(&self) -> f32 {
        self.to_record().scale
    }

    /// The number of steps skipped so far.
    pub fn skipped(&self) -> usize {
        self.to_record().skipped
    }

    /// The state to save, so that a resumed run continues with the same scale.
    pub fn to_record(&self) -> GradScalerRecord {
        let (scale, finite, skipped) = match self.on_device.get() {
            Some(scale) => scale.read().unwrap_or_else(|error| raise(error)),
            None => (self.scale, self.finite, self.skipped),
        };
        GradScalerRecord { scale, finite, skipped }
    }

    /// The scaler in the state of the record. Keeps this scaler's settings.
    ///
    /// # Panics
    /// For a scale that is not positive and finite.
    pub fn load_record(self, record: GradScalerRecord) -> Self {
        let GradScalerRecord { scale, finite, skipped } = record;
        if !is_scale(scale) {
            refuse("GradScaler::load_record", "a scale that is positive and finite", scale.to_string());
        }
        Self { scale, finite, skipped, on_device: OnceLock::new(), ..self }
    }

    /// The scale in device memory, if a step was captured.
    pub(super) fn on_device(&self) -> Option<&Scale> {
        self.on_device.get()
    }

    /// The scale in device memory, which a capture moves there.
    pub(super) fn on_device_of(&self, device: impl FnOnce() -> RocmDevice) -> Option<&Scale> {
        if !graph::is_capturing() {
            return self.on_device();
        }
        let new = || Scale::new(&device(), self.scale, self.finite, self.skipped);
        Some(self.on_device.get_or_init(|| new().unwrap_or_else(|error| raise(error))))
    }

    /// How the scale follows overflows.
    pub(super) fn growth(&self) -> Growth {
        let GradScalerConfig { growth_factor, backoff_factor, growth_interval, .. } = self.config;
        Growth { growth: growth_factor, backoff: backoff_factor, interval: growth_interval }
    }

    /// Counts a step, which was taken if all gradients were finite.
    pub(crate) fn update(&mut self, is_finite: bool) {
        let GradScalerConfig { growth_factor, backoff_factor, growth_interval, .. } = self.config;
        if !is_finite {
            self.scale = (f64::from(self.scale) * backoff_factor).max(f32::MIN_POSITIVE.into()) as f32;
            self.finite = 0;
            self.skipped += 1;
            return;
        }
        self.finite += 1;
        if self.finite >= growth_interval {
            let grown = (f64::from(self.scale) * growth_factor) as f32;
            self.scale = if grown.is_finite() { grown } else { self.scale };
            self.finite = 0;
        }
    }
}
