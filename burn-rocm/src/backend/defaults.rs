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
                "Rocm<{}, {}, {}> makes {float}, {int} and {bool} tensors on {device} by default: Burn keeps default dtypes by \
                 device, and another type or set_default_dtypes came first (see burn_rocm::Rocm)",
                F::dtype().name(),
                I::dtype().name(),
                B::dtype().name(),
            );
        }
    }
}
