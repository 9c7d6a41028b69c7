//! Quantised checkpoints of Hugging Face folders: GPTQ, AWQ, compressed-tensors and fp8.

use std::path::Path;

use burn_rocm::RocmError;
use burn_rocm::fused::WeightParts;
use burn_rocm_nn::language::quant::{Awq, CompressedTensors, Gptq, GptqZeros, RawTensor};
use serde_json::{Map, Value};

use super::fp8::Fp8;
use crate::error::{Error, Result};

/// How the linear layers of a checkpoint are quantised (`quantization_config`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// As integers, which stay so on the device.
    Integers(Scheme),
    /// As fp8, which becomes floats.
    Fp8(Fp8),
}

/// How linear layers are quantised as integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    Gptq { bits: u32, group: Option<usize>, zeros: GptqZeros },
    Awq { group: Option<usize> },
    Compressed { bits: u32, group: Option<usize> },
}

/// The methods, for errors.
const SUPPORTED: &str = "GPTQ of 4 and 8 bits, AWQ (gemm) of 4, compressed-tensors with integer weights of 4 \
                         and 8 bits and float activations, and weights of fp8";

/// The method in `config.json`'s contents, if there is one.
pub(super) fn method(path: &Path, config: &Map<String, Value>) -> Result<Option<Method>> {
    // A model with images has the text model's settings inside.
    let inner = config.get("text_config").and_then(|inner| inner.get("quantization_config"));
    let Some(settings) = config.get("quantization_config").or(inner).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let refused = |what: String| Error::Unsupported {
        path: path.to_owned(),
        what: format!("{what} is"),
        supported: SUPPORTED.to_owned(),
    };
    let text = |of: &Value, name: &str| of.get(name).and_then(Value::as_str).map(str::to_lowercase);
    let number = |of: &Value, name: &str| match of.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_i64() {
            Some(-1) => Ok(None),
            Some(number) if number > 0 => Ok(Some(number as usize)),
            _ => Err(Error::Field {
                path: path.to_owned(),
                field: format!("quantization_config.{name}"),
                expected: "a whole number above 0, or -1".to_owned(),
                found: value.to_string(),
            }),
        },
    };
    let bits = |of: &Value, name: &str| match number(of, name)? {
        Some(bits @ (4 | 8)) => Ok(bits as u32),
        Some(other) => Err(refused(format!("a quantised checkpoint of {other} bits"))),
        None => Err(refused(format!("a quantised checkpoint without `{name}`"))),
    };
    let block = |of: &Value, name: &str| {
        let size = |size: &Value| size.as_u64().filter(|&size| size > 0).map(|size| size as usize);
        match of.get(name).filter(|value| !value.is_null()) {
            None => Ok(None),
            Some(value) => {
                match value.as_array().map(|sizes| sizes.iter().map(size).collect::<Vec<_>>()).as_deref() {
                    Some(&[Some(rows), Some(columns)]) => Ok(Some([rows, columns])),
                    _ => Err(Error::Field {
                        path: path.to_owned(),
                        field: format!("quantization_config.{name}"),
                        expected: "two whole numbers above 0".to_owned(),
                        found: value.to_string(),
                    }),
                }
            }
        }
    };
    match text(settings, "quant_method").as_deref() {
        Some("fp8") => Ok(Some(Method::Fp8(Fp8 { block: block(settings, "weight_block_size")? }))),
        Some("gptq") => {
            let zeros = match text(settings, "checkpoint_format").as_deref() {
                Some("gptq") | None => GptqZeros::LessOne,
                Some("gptq_v2") => GptqZeros::Plain,
                Some(other) => return Err(refused(format!("GPTQ's format `{other}`"))),
            };
            let (bits, group) = (bits(settings, "bits")?, number(settings, "group_size")?);
            Ok(Some(Method::Integers(Scheme::Gptq { bits, group, zeros })))
        }
        Some("awq") => match (bits(settings, "bits")?, text(settings, "version").as_deref()) {
            (4, Some("gemm") | None) => {
                Ok(Some(Method::Integers(Scheme::Awq { group: number(settings, "group_size")? })))
            }
            (bits, version) => {
                Err(refused(format!("AWQ of {bits} bits, version `{}`,", version.unwrap_or("gemm"))))
            }
        },
        Some("compressed-tensors") => {
            let format = text(settings, "format").unwrap_or_default();
            if !matches!(format.as_str(), "pack-quantized" | "int-quantized" | "float-quantized") {
                return Err(refused(format!("compressed-tensors' format `{format}`")));
            }
            let groups = settings.get("config_groups").and_then(Value::as_object);
            let mut groups = groups.into_iter().flat_map(Map::values);
            let (Some(first), None) = (groups.next(), groups.next()) else {
                return Err(refused("a checkpoint with several groups of layers".to_owned()));
            };
            let weights = first.get("weights").unwrap_or(&Value::Null);
            if format == "float-quantized" {
                let bits = number(weights, "num_bits")?.unwrap_or(8);
                if text(weights, "type").is_some_and(|kind| kind != "float") || bits != 8 {
                    return Err(refused("a float-quantized checkpoint without fp8".to_owned()));
                }
                let block = match text(weights, "strategy").as_deref() {
                    Some("block") => block(weights, "block_structure")?,
                    Some("channel" | "tensor") | None => None,
                    Some(other) => return Err(refused(format!("fp8 with scales by `{other}`"))),
                };
                return Ok(Some(Method::Fp8(Fp8 { block })));
            }
            if first.get("input_activations").is_some_and(|value| !value.is_null()) {
                return Err(refused("a checkpoint with quantised activations".to_owned()));
            }
            if text(weights, "type").is_some_and(|kind| kind != "int") {
                return Err(refused("a checkpoint with float weights of few bits".to_owned()));
            }
            let (bits, group) = (bits(weights, "num_bits")?, number(weights, "group_size")?);
            Ok(Some(Method::Integers(Scheme::Compressed { bits, group })))
        }
        Some(other) => Err(refused(format!("a checkpoint quantised by `{other}`"))),
        None => Err(refused("a quantised checkpoint without `quant_method`".to_owned())),
    }
}

impl Scheme {
    /// The bytes that a layer's matrix takes on the device, with scales of 16 bits and zeros.
    pub(super) fn device_bytes(self, [outs, inputs]: [usize; 2]) -> usize {
        let (bits, group) = match self {
            Self::Gptq { bits, group, .. } | Self::Compressed { bits, group } => (bits, group),
            Self::Awq { group } => (4, group),
        };
        let groups = group.map_or(1, |group| inputs.div_ceil(group));
        outs * (inputs.next_multiple_of(32) * bits as usize / 8 + 3 * groups)
    }

    /// The last part of the name of a layer's codes.
    pub(super) fn codes(self) -> &'static [&'static str] {
        match self {
            Self::Gptq { .. } | Self::Awq { .. } => &["qweight"],
            Self::Compressed { .. } => &["weight_packed", "weight"],
        }
    }

    /// The last parts of the names of a layer's tensors.
    pub(super) fn tensors(self) -> &'static [&'static str] {
        match self {
            Self::Gptq { .. } => &["qweight", "qzeros", "scales", "g_idx"],
            Self::Awq { .. } => &["qweight", "qzeros", "scales"],
            // The shape is the settings'.
            Self::Compressed { .. } => &[
                "weight_packed",
                "weight",
                "weight_scale",
                "weight_zero_point",
                "weight_g_idx",
                "weight_shape",
            ],
        }
    }

    /// The weight of a layer of this shape from its tensors. `tensor` finds a tensor by the last
    /// part of its name.
    pub(super) fn parts<'a>(
        self,
        [outs, inputs]: [usize; 2],
        tensor: impl Fn(&'static str) -> Option<RawTensor<'a>>,
    ) -> std::result::Result<WeightParts, RocmError> {
        let needed = |name: &'static str| {
            tensor(name).ok_or_else(|| RocmError::Invalid {
                op: "quantised weights",
                expected: format!("a tensor `{name}`"),
                found: "nothing".to_owned(),
            })
        };
        let parts = match self {
            Self::Gptq { bits, group, zeros } => Gptq {
                bits,
                group,
                zeros,
                qweight: needed("qweight")?,
                qzeros: needed("qzeros")?,
                scales: needed("scales")?,
                g_idx: tensor("g_idx"),
            }
            .parts()?,
            Self::Awq { group } => {
                let (qweight, qzeros, scales) = (needed("qweight")?, needed("qzeros")?, needed("scales")?);
                Awq { group, qweight, qzeros, scales }.parts()?
            }
            Self::Compressed { bits, group } => CompressedTensors {
                bits,
                group,
                shape: [outs, inputs],
                weight: tensor("weight_packed").map_or_else(|| needed("weight"), Ok)?,
                scale: needed("weight_scale")?,
                zero_point: tensor("weight_zero_point"),
                g_idx: tensor("weight_g_idx"),
            }
            .parts()?,
        };
        match parts.shape() == [outs, inputs] {
            true => Ok(parts),
            false => Err(RocmError::Invalid {
                op: "quantised weights",
                expected: format!("codes of {:?}", [outs, inputs]),
                found: format!("{:?}", parts.shape()),
            }),
        }
    }
}
