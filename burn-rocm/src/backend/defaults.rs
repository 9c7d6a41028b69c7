//! Burn's default dtypes of a device, and the warning for a backend type whose own dtypes differ
//! from them.

use std::any::TypeId;
use std::sync::{Mutex, PoisonError};

use burn_backend::get_device_settings;
use burn_std::{BoolDType, DType};

use super::{BoolElement, FloatElement, IntElement, Rocm};
use crate::device::RocmDevice;

/// The backend types and devices that were checked.
static SEEN: Mutex<Vec<(TypeId, usize)>> = Mutex::new(Vec::new());
/// The devices whose default dtypes Burn has set, by itself or by `set_default_dtypes`.
static SET: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Burn asks whether a device has a bool dtype as it sets the device's defaults, and hardly else. It has no function
/// that tells whether they are set: `get_device_settings` sets them.
pub(super) fn are_set(device: &RocmDevice) {
    let mut set = SET.lock().unwrap_or_else(PoisonError::into_inner);
    if !set.contains(&device.index) {
        set.push(device.index);
    }
}

impl<F: FloatElement, I: IntElement, B: BoolElement> Rocm<F, I, B> {
    /// Every method that makes a tensor calls this. It warns once for each type and device if
    /// Burn's default dtypes there are not the type's own.
    pub(super) fn makes(dtype: impl Into<DType>, device: &RocmDevice) {
        // The common case is cheap: a tensor of one of the type's own dtypes shows no other
        // defaults.
        let bool: DType = BoolDType::from(B::dtype()).into();
        let own = [F::dtype(), I::dtype(), bool];
        if !own.contains(&dtype.into()) {
            Self::look(own, device);
        }
    }

    #[cold]
    fn look(own: [DType; 3], device: &RocmDevice) {
        if !SET.lock().unwrap_or_else(PoisonError::into_inner).contains(&device.index) {
            return; // the dtype was given by the caller
        }
        let this = (TypeId::of::<Self>(), device.index);
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.contains(&this) {
            return;
        }
        seen.push(this);
        drop(seen);
        let settings = get_device_settings::<Self>(device);
        let found: [DType; 3] =
            [settings.float_dtype.into(), settings.int_dtype.into(), settings.bool_dtype.into()];
        if found != own {
            let [float, int, bool] = found.map(|dtype| dtype.name());
            log::warn!(
                "Rocm<{}, {}, {}> makes {float}, {int} and {bool} tensors by default on {device}: Burn keeps one \
                 set of default dtypes for each device, and another backend type or set_default_dtypes set \
                 it first (see burn_rocm::Rocm)",
                F::dtype().name(),
                I::dtype().name(),
                B::dtype().name(),
            );
        }
    }
}
