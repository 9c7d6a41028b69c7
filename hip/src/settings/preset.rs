//! Presets: values of several settings under one name.

use std::ffi::OsStr;

use super::read::choice;
use super::{ChannelsLast, Config, FindMode, Route};
use crate::error::Result;

/// The variable that names a preset.
pub(super) const VARIABLE: &str = "BURN_ROCM_PRESET";

/// A named set of settings. The guide's page on configuration lists what each sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// The same bits in each run, and the least that depends on a library's version or on a shape's
    /// history. Slower.
    Conservative,
    /// The default of every setting.
    Balanced,
    /// What is usually faster, at the price of memory, of a longer first use of each shape, and of
    /// bits that may differ between runs.
    Aggressive,
}

impl Preset {
    /// Reads its name.
    pub(super) fn read(value: &OsStr) -> Result<Self> {
        let names = [
            ("conservative", Self::Conservative),
            ("balanced", Self::Balanced),
            ("aggressive", Self::Aggressive),
        ];
        choice(VARIABLE, value, &names)
    }
}

impl Config {
    /// Sets the settings of a preset and leaves the others as they are.
    #[must_use]
    pub fn preset(self, preset: Preset) -> Self {
        match preset {
            Preset::Conservative => self
                .deterministic(true)
                .conv_find(FindMode::Immediate)
                .norm(Route::Own)
                .chain(0)
                .matrix_cores(false)
                .collective_check(true),
            Preset::Balanced => self,
            Preset::Aggressive => {
                self.conv_find(FindMode::Find).channels_last(ChannelsLast::On).attention_scores(1 << 30)
            }
        }
    }

    /// The defaults with [`Preset::Conservative`].
    pub fn conservative() -> Self {
        Self::default().preset(Preset::Conservative)
    }

    /// The defaults: [`Preset::Balanced`].
    pub fn balanced() -> Self {
        Self::default().preset(Preset::Balanced)
    }

    /// The defaults with [`Preset::Aggressive`].
    pub fn aggressive() -> Self {
        Self::default().preset(Preset::Aggressive)
    }
}
