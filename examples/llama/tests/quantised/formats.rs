//! The logits of further formats: compressed-tensors as its programs write them, and Burn's own schemes.

use std::collections::BTreeMap;

use burn::tensor::quantization::{QuantLevel, QuantParam, QuantScheme, QuantStore, QuantValue};
use burn::tensor::{DType, Tensor, TensorData, TensorPrimitive};
use burn_rocm::fused::WeightParts;
use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_llama::Result;
use burn_rocm_llama::config::Config;
use burn_rocm_llama::model::{Model, Quantise};
use burn_rocm_llama::weights::{Elements, Folder, Source, Weight};
use serde_json::{Value, json};

use crate::codes::*;

/// 8 bits, signed bytes, zeros and an order of the inputs, in each combination that a program writes.
#[test]
fn compressed_tensors_have_the_logits_of_their_floats() {
    for (name, bits, group, [signed, zeros, order]) in [
        ("packed-8", 8, 32, [false, false, false]),
        ("packed-8-zeros-order", 8, 64, [false, true, true]),
        ("packed-4-zeros", 4, 32, [false, true, false]),
        ("packed-4-order", 4, 64, [false, false, true]),
        ("signed-8", 8, 64, [true, false, false]),
        ("signed-8-zeros", 8, 32, [true, true, false]),
        ("signed-4-zeros", 4, 64, [true, true, false]),
    ] {
        let (mut codes, mut plain) = (plain_tensors(), plain_tensors());
        for (layer, shape) in tensors().1 {
            let drawn = Codes::of(&layer, shape, bits, group, order, !zeros);
            plain.insert(format!("{layer}.weight"), floats(&drawn.floats(), &shape));
            let stored = if signed { drawn.signed(zeros) } else { drawn.compressed(zeros, order) };
            codes.extend(stored.into_iter().map(|(last, stored)| (format!("{layer}.{last}"), stored)));
        }
        let folder = |kind: &str| format!("compressed-{name}-{kind}");
        let settings = settings(bits, group, [signed, zeros, order]);
        let codes = write(&folder("codes"), &codes, Some(settings));
        let plain = write(&folder("floats"), &plain, None);
        let [of_codes, of_floats] =
            [codes, plain].map(|folder| load(&folder, Quantise::default()).expect(name));
        compare(name, &logits(&of_codes), &logits(&of_floats));
    }
}

fn settings(bits: u32, group: usize, [signed, zeros, order]: [bool; 3]) -> Value {
    json!({
        "quant_method": "compressed-tensors",
        "format": if signed { "int-quantized" } else { "pack-quantized" },
        "config_groups": {"group_0": {
            "targets": ["Linear"], "input_activations": null,
            "weights": {
                "num_bits": bits, "type": "int", "symmetric": !zeros, "strategy": "group", "group_size": group,
                "actorder": if order { Some("group") } else { None }
            }
        }}
    })
}

/// A folder whose layers' matrices Burn quantises.
struct Burns {
    folder: Folder,
    scheme: QuantScheme,
    /// Whether the matrices are given as floats again.
    floats: bool,
}

impl Source for Burns {
    fn read(&self, weight: &Weight) -> Result<Elements<'_>> {
        let elements = self.folder.read(weight)?;
        let (Elements::Bytes(bytes, dtype), &[outs, inputs], Some(_)) =
            (&elements, &weight.shape[..], weight.layer)
        else {
            return Ok(elements);
        };
        let data = TensorData::from_bytes_vec(bytes.to_vec(), [outs, inputs], *dtype);
        let device = RocmDevice::default();
        let quantised =
            Tensor::<Rocm, 2>::from_data(data, (&device, DType::F32)).quantize_dynamic(&self.scheme);
        if self.floats {
            let data = quantised.dequantize().into_data();
            return Ok(Elements::F32(data.iter::<f32>().collect()));
        }
        match quantised.into_primitive() {
            TensorPrimitive::QFloat(codes) => {
                Ok(Elements::Quantised(Box::new(WeightParts::of_burn(&codes)?)))
            }
            TensorPrimitive::Float(_) => panic!("a quantised tensor"),
        }
    }

    fn check(&self, weights: &[Weight]) -> Result<()> {
        self.folder.check(weights)
    }

    fn dtype(&self) -> DType {
        DType::F32
    }
}

#[test]
fn burns_schemes_have_the_logits_of_their_floats() {
    let mut all: BTreeMap<String, Stored> = plain_tensors();
    for (name, shape) in tensors().1 {
        let size = (shape[1] as f32).powf(-0.5);
        let numbers: Vec<f32> = numbers(&name, shape[0] * shape[1]).iter().map(|x| x * size).collect();
        all.insert(format!("{name}.weight"), floats(&numbers, &shape));
    }
    let folder = write("burn", &all, None);
    let config = Config::read(&folder).expect("the settings");
    for (value, level, store) in [
        (QuantValue::Q8S, QuantLevel::Tensor, QuantStore::Native),
        (QuantValue::Q8F, QuantLevel::block([32]), QuantStore::PackedU32(0)),
        (QuantValue::Q4S, QuantLevel::block([64]), QuantStore::PackedU32(0)),
        (QuantValue::Q4F, QuantLevel::block([32]), QuantStore::PackedU32(0)),
    ] {
        let scheme = QuantScheme { value, level, param: QuantParam::F32, store, ..Default::default() };
        let of = |floats: bool| {
            let folder = Folder::open(&folder, &config).expect("the weights");
            let source = Burns { folder, scheme, floats };
            let device = RocmDevice::default();
            logits(&Model::load(config.clone(), &source, &device, DType::F32, |_| ()).expect("a model"))
        };
        compare(&format!("{value:?} {level:?}"), &of(false), &of(true));
    }
}
