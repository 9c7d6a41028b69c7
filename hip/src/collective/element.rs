//! The types of a collective's elements.

use std::ffi::c_int;
use std::fmt;

use hip_kernels::DType;
use rccl_sys::*;

use crate::blas::Fp8;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::workarounds::chip;

/// The type of a collective's elements: a dtype of tensors or a type of fp8, whose codes a tensor
/// holds as `u8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// A dtype.
    DType(DType),
    /// A type of fp8. A reduction needs NCCL 2.24 or RCCL 2.24 and a type that the chip has: FNUZ
    /// on gfx940, gfx941 and gfx942, OCP's elsewhere. NCCL also needs compute capability 9.0. Moves
    /// need none of this.
    Fp8(Fp8),
}

impl From<DType> for Element {
    fn from(dtype: DType) -> Self {
        Self::DType(dtype)
    }
}

impl From<Fp8> for Element {
    fn from(fp8: Fp8) -> Self {
        Self::Fp8(fp8)
    }
}

/// The first version of the library with fp8 (NCCL's release notes of 2.24.3). RCCL 2.27.7 of ROCm 7.2
/// has it, and RCCL 2.13.4 of ROCm 5.7 has not.
const FP8_FROM: c_int = 22_400;

impl Element {
    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            Self::DType(dtype) => dtype.size(),
            Self::Fp8(_) => 1,
        }
    }

    /// The type's name in errors.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::DType(dtype) => dtype.cpp(),
            Self::Fp8(Fp8::E4M3) => "e4m3",
            Self::Fp8(Fp8::E5M2) => "e5m2",
            Self::Fp8(Fp8::E4M3Fnuz) => "e4m3fnuz",
            Self::Fp8(Fp8::E5M2Fnuz) => "e5m2fnuz",
        }
    }

    /// RCCL's name of the type; `None` if it lacks the type. RCCL has one name for OCP's types and
    /// FNUZ's: the chip decides which it means.
    pub(super) fn datatype(self) -> Option<ncclDataType_t> {
        Some(match self {
            Self::DType(dtype) => match dtype {
                DType::F64 => ncclFloat64,
                DType::F32 => ncclFloat32,
                DType::F16 => ncclFloat16,
                DType::BF16 => ncclBfloat16,
                DType::I64 => ncclInt64,
                DType::I32 => ncclInt32,
                DType::I8 => ncclInt8,
                DType::U64 => ncclUint64,
                DType::U32 => ncclUint32,
                DType::U8 => ncclUint8,
                DType::I16 | DType::U16 | DType::Bool => return None,
            },
            Self::Fp8(Fp8::E4M3 | Fp8::E4M3Fnuz) => ncclFloat8e4m3,
            Self::Fp8(Fp8::E5M2 | Fp8::E5M2Fnuz) => ncclFloat8e5m2,
        })
    }

    /// Checks that a device's library reduces the type.
    pub(super) fn can_be_reduced(self, op: &'static str, device: &Device) -> Result<()> {
        let Self::Fp8(fp8) = self else {
            let missing = || Error::Unsupported { op, dtype: Some(self.name()), what: None };
            return self.datatype().map(drop).ok_or_else(missing);
        };
        let refused = |what: String| Error::Unsupported { op, dtype: Some(self.name()), what: Some(what) };
        if let Some(why) = lacks(fp8, &device.info().arch) {
            return Err(refused(why.into()));
        }
        let mut version = 0;
        // SAFETY: the function is RCCL's; it writes one number.
        let status = unsafe { (device.provider().rccl()?.ncclGetVersion)(&mut version) };
        if status != ncclSuccess || version < FP8_FROM {
            return Err(refused(format!("a library of version {version}: it has fp8 from {FP8_FROM} on")));
        }
        Ok(())
    }
}

/// Why a chip lacks this type: its library would read the codes as those of the other family.
fn lacks(fp8: Fp8, arch: &str) -> Option<&'static str> {
    let has_fnuz = matches!(chip(arch), "gfx940" | "gfx941" | "gfx942");
    match (fp8, has_fnuz) {
        (Fp8::E4M3 | Fp8::E5M2, true) => Some("this chip, which has FNUZ's types of fp8"),
        (Fp8::E4M3Fnuz | Fp8::E5M2Fnuz, false) => Some("chips other than gfx940, gfx941 and gfx942"),
        _ => None,
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RCCL has one name for both families, so each chip takes only one of them.
    #[test]
    fn a_chip_has_one_family_of_fp8() {
        for (arch, fnuz) in
            [("gfx942:sramecc+:xnack-", true), ("gfx940", true), ("gfx950", false), ("sm_90", false)]
        {
            for (ocp, of_fnuz) in [(Fp8::E4M3, Fp8::E4M3Fnuz), (Fp8::E5M2, Fp8::E5M2Fnuz)] {
                assert_eq!(Element::from(ocp).datatype(), Element::from(of_fnuz).datatype());
                assert_eq!(
                    [lacks(ocp, arch), lacks(of_fnuz, arch)].map(|why| why.is_none()),
                    [!fnuz, fnuz],
                    "{arch}"
                );
            }
        }
    }
}
