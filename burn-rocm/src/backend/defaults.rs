//! Burn's default dtypes of a device, and the warning for a backend type whose element types differ
//! from them.

use std::any::TypeId;
use std::sync::{Mutex, PoisonError};

use burn_backend::{get_device_settings, set_default_dtypes};
use burn_std::{BoolDType, DType};
use hip::Error as RocmError;

use super::{BoolElement, FloatElement, IntElement, Rocm};
use crate::device::RocmDevice;
use crate::error::raise;

/// The pairs of backend type and device that were checked.
static SEEN: Mutex<Vec<(TypeId, usize)>> = Mutex::new(Vec::new());
/// The devices whose default dtypes Burn has set, by itself or by `set_default_dtypes`.
static SET: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Records that Burn has set the device's default dtypes. Burn offers no way to ask:
/// `get_device_settings` itself sets them. But Burn asks whether a device supports a bool dtype
/// when it sets the defaults, and hardly ever otherwise, so that question calls this function.
pub(super) fn are_set(device: &RocmDevice) {
    let mut set = SET.lock().unwrap_or_else(PoisonError::into_inner);
    if !set.contains(&device.index) {
        set.push(device.index);
    }
}

impl<F: FloatElement, I: IntElement, B: BoolElement> Rocm<F, I, B> {
    /// Every method that makes a tensor calls this. It warns once for each backend type and device
    /// if Burn's default dtypes of the device differ from the type's own.
    pub(super) fn makes(dtype: impl Into<DType>, device: &RocmDevice) {
        // The common case is cheap: a tensor of one of the type's own dtypes does not show that the
        // defaults differ.
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
            let which = format!(
                "default dtypes of Rocm<{}, {}, {}>",
                F::dtype().name(),
                I::dtype().name(),
                B::dtype().name()
            );
            let expected = "the type's own: Burn keeps one set of default dtypes for each device, and another backend \
                            type or set_default_dtypes set it first (see burn_rocm::Rocm)";
            let found = format!("{float}, {int} and {bool} tensors by default on {device}");
            let error = RocmError::Config { what: which, expected: expected.into(), found };
            match hip::allow_fallback(error) {
                Ok(error) => log::warn!("{error}"),
                Err(error) => {
                    // Every such tensor is refused, not only the first.
                    SEEN.lock().unwrap_or_else(PoisonError::into_inner).retain(|seen| *seen != this);
                    raise(error)
                }
            }
        }
    }
}

/// Gives a device the default dtypes of another one, if Burn has set these.
pub(crate) fn inherit_defaults(from: &RocmDevice, to: &RocmDevice) {
    if !SET.lock().unwrap_or_else(PoisonError::into_inner).contains(&from.index) {
        return;
    }
    let settings = get_device_settings::<Rocm>(from);
    let (float, int) = (settings.float_dtype, settings.int_dtype);
    // Burn takes the bool dtype from the backend type. It refuses only what is set already.
    let _ = match settings.bool_dtype {
        BoolDType::Native => set_default_dtypes::<Rocm<f32, i32, bool>>(to, float, int),
        BoolDType::U8 => set_default_dtypes::<Rocm<f32, i32, u8>>(to, float, int),
        BoolDType::U32 => set_default_dtypes::<Rocm<f32, i32, u32>>(to, float, int),
    };
}
