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
    /// A type of fp8. A reduction needs NCCL 2.24 or RCCL 2.24 and a type that the library has for
    /// the chip: FNUZ's on gfx942; OCP's on gfx950, gfx1200 and gfx1201, and on NVIDIA's GPUs from
    /// compute capability 9.0 on. On AMD's other chips RCCL's versions differ in what a code means, so
    /// they reduce neither. Moves need none of this.
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

/// Why a chip lacks this type: its library would read the codes as those of the other family, or
/// refuses them. On some other chips RCCL computes with a class of its own (`rccl_float8.h`), which is
/// FNUZ. Its versions differ in which chips those are.
fn lacks(fp8: Fp8, arch: &str) -> Option<&'static str> {
    let chip = chip(arch);
    let of_nvidia = chip.strip_prefix("sm_").and_then(|version| version.parse::<u32>().ok());
    match (fp8, chip) {
        (Fp8::E4M3 | Fp8::E5M2, "gfx942") => Some("this chip, which has FNUZ's types of fp8"),
        (Fp8::E4M3Fnuz | Fp8::E5M2Fnuz, "gfx942") => None,
        (Fp8::E4M3Fnuz | Fp8::E5M2Fnuz, _) => Some("chips other than gfx942"),
        (_, "gfx950" | "gfx1200" | "gfx1201") => None,
        _ if chip.starts_with("gfx") => {
            Some("this chip, on which RCCL's versions differ in what a code means")
        }
        _ if of_nvidia.is_some_and(|version| version < 90) => Some("a compute capability below 9.0"),
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

    /// RCCL has one name for both families, so each chip takes at most one of them.
    #[test]
    fn a_chip_has_one_family_of_fp8() {
        for (arch, has) in [
            ("gfx942:sramecc+:xnack-", [false, true]),
            ("gfx950:sramecc+:xnack-", [true, false]),
            ("gfx1201", [true, false]),
            ("gfx90a:sramecc+:xnack-", [false, false]),
            ("gfx1100", [false, false]),
            ("sm_80", [false, false]),
            ("sm_90", [true, false]),
            ("sm_120", [true, false]),
        ] {
            for (ocp, of_fnuz) in [(Fp8::E4M3, Fp8::E4M3Fnuz), (Fp8::E5M2, Fp8::E5M2Fnuz)] {
                assert_eq!(Element::from(ocp).datatype(), Element::from(of_fnuz).datatype());
                assert_eq!([ocp, of_fnuz].map(|fp8| lacks(fp8, arch).is_none()), has, "{arch}");
            }
        }
    }
}
