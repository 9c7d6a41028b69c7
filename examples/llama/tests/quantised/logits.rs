//! The logits of codes, the memory that they take, and checkpoints that are refused.

use std::collections::BTreeMap;

use burn::tensor::{DType, TensorData};
use burn_rocm::RocmDevice;
use burn_rocm_llama::config::Config;
use burn_rocm_llama::model::{Quantise, weight_bytes};
use burn_rocm_llama::weights::{Folder, Source};
use burn_rocm_nn::language::quant::{QuantWeight, RoundTo, round_to_nearest};
use serde_json::{Value, json};

use crate::adapters::compare_folders;
use crate::codes::*;

#[test]
fn logits_of_codes_are_those_of_their_floats() {
    for (name, codes, floats) in checkpoints("logits") {
        let of_codes = load(&codes, Quantise::default()).expect(name);
        let of_floats = load(&floats, Quantise::default()).expect(name);
        compare(name, &logits(&of_codes), &logits(&of_floats));
    }
}

#[test]
fn rounded_weights_are_as_good_as_their_floats() {
    let linear = tensors().1;
    let mut original = plain_tensors();
    for (name, shape) in &linear {
        let size = (shape[1] as f32).powf(-0.5);
        let numbers: Vec<f32> = numbers(name, shape[0] * shape[1]).iter().map(|x| x * size).collect();
        original.insert(format!("{name}.weight"), floats(&numbers, shape));
    }
    let folder = write("original", &original, None);
    let own = logits(&load(&folder, Quantise::default()).expect("a model"));
    for (to, output) in [(RoundTo::Int4, None), (RoundTo::Int8, None), (RoundTo::Int8, Some(RoundTo::Int8))] {
        let mut rounded = plain_tensors();
        for (name, stored) in &original {
            let layers = name.contains("_proj");
            let round = if layers { Some(to) } else { output.filter(|_| stored.shape.len() == 2) };
            let numbers: Vec<f32> =
                stored.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            let numbers = match round {
                Some(to) => {
                    let shape = [stored.shape[0], stored.shape[1]];
                    let parts = round_to_nearest(&numbers, shape, to).expect("finite numbers");
                    let weight = QuantWeight::upload(&parts, &RocmDevice::default()).expect("memory");
                    let data: TensorData =
                        burn_rocm::fused::read_all(vec![weight.dequantize(DType::F32).expect("floats")])
                            .expect("a read")
                            .remove(0);
                    data.to_vec::<f32>().expect("f32")
                }
                None => numbers,
            };
            rounded.insert(name.clone(), floats(&numbers, &stored.shape));
        }
        let name = format!("{to:?}-{}", if output.is_some() { "all" } else { "layers" });
        let floats = write(&name, &rounded, None);
        let of_floats = load(&floats, Quantise::default()).expect("a model");
        let quantise = Quantise { layers: Some(to), output };
        let of_codes = load(&folder, quantise).expect("a model");
        let found = logits(&of_codes);
        compare(&name, &found, &logits(&of_floats));
        // The adapters' sums are not rounded to codes.
        let peft = adapters();
        let of_floats = load_with(&floats, Quantise::default(), Some(&peft)).expect("a model");
        let of_codes = load_with(&folder, quantise, Some(&peft)).expect("a model");
        compare(&format!("{name} with adapters"), &logits(&of_codes), &logits(&of_floats));
        if output.is_none() {
            compare_folders(&name, [(&folder, Some(to)), (&floats, None)]);
        }
        let moved = found.iter().zip(&own).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(moved > 1e-3, "{name}: the weights were rounded, so the logits move: {moved}");
    }
}

#[test]
fn memory_follows_the_codes() {
    let folder = write(
        "memory",
        &{
            let mut all = plain_tensors();
            for (name, shape) in tensors().1 {
                all.insert(format!("{name}.weight"), floats(&numbers(&name, shape[0] * shape[1]), &shape));
            }
            all
        },
        None,
    );
    let config = Config::read(&folder).expect("the settings");
    let source = Folder::open(&folder, &config).expect("the weights");
    let bytes = |layers, output| {
        weight_bytes(&config, &source as &dyn Source, DType::BF16, Quantise { layers, output })
            .expect("bytes")
    };
    let plain = 2 * VOCABULARY * WIDTH * 2 + 5 * WIDTH * 4;
    let matrices: usize = tensors().1.iter().map(|(_, [outs, inputs])| outs * inputs).sum();
    assert_eq!(bytes(None, None), plain + 2 * matrices);
    // 4 bits, and 3 bytes for each group of 64.
    assert_eq!(bytes(Some(RoundTo::Int4), None), plain + matrices / 2 + 3 * matrices / 64);
    let output = 2 * VOCABULARY * (WIDTH + 2);
    let layers: usize =
        tensors().1.iter().map(|(_, [outs, inputs])| outs * (inputs + 2 * inputs.div_ceil(128))).sum();
    assert_eq!(bytes(Some(RoundTo::Int8), Some(RoundTo::Int8)), layers + output + 5 * WIDTH * 4);
}

#[test]
fn checkpoints_that_do_not_load_say_why() {
    let refused = |tensors: &BTreeMap<String, Stored>, settings: Value| {
        load(&write("refused", tensors, Some(settings)), Quantise::default())
            .expect_err("an error")
            .to_string()
    };
    let good = || {
        let mut all = plain_tensors();
        for (layer, shape) in tensors().1 {
            let codes = Codes::of(&layer, shape, 4, 32, false, true);
            codes
                .gptq(1)
                .into_iter()
                .for_each(|(last, stored)| drop(all.insert(format!("{layer}.{last}"), stored)));
        }
        all
    };
    let gptq = |bits: i64| json!({"quant_method": "gptq", "bits": bits, "group_size": 32});
    load(&write("good", &good(), Some(gptq(4))), Quantise::default()).expect("a model");
    for (settings, text) in [
        (
            json!({"quant_method": "bitsandbytes"}),
            "a checkpoint quantised by `bitsandbytes` is not supported; supported are GPTQ",
        ),
        (json!({}), "a quantised checkpoint without `quant_method` is not supported"),
        (json!({"quant_method": "gptq"}), "a quantised checkpoint without `bits` is not supported"),
        (gptq(3), "a quantised checkpoint of 3 bits is not supported"),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 0}),
            "a whole number above 0, or -1, found 0",
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}),
            "`marlin` is not supported",
        ),
        (json!({"quant_method": "awq", "bits": 4, "version": "gemv"}), "AWQ of 4 bits, version `gemv`, is"),
        (json!({"quant_method": "compressed-tensors", "format": "marlin-24"}), "`marlin-24` is not"),
        (
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized"}),
            "several groups of layers",
        ),
        // Groups of other sizes than the settings say.
        (json!({"quant_method": "gptq", "bits": 4, "group_size": 64}), "qzeros`"),
    ] {
        let found = refused(&good(), settings);
        assert!(found.contains(text), "expected {text}\nfound    {found}");
    }
    // Biases of zeros change nothing; others belong to another model.
    let mut biased = good();
    for (layer, [outs, _]) in tensors().1 {
        biased.insert(format!("{layer}.bias"), floats(&vec![0.0; outs], &[outs]));
    }
    load(&write("biased", &biased, Some(gptq(4))), Quantise::default()).expect("a model");
    let name = "model.layers.1.mlp.up_proj.bias";
    biased.insert(name.to_owned(), floats(&[[0.0; INNER - 1].as_slice(), &[0.5]].concat(), &[INNER]));
    let found = refused(&biased, gptq(4));
    assert!(found.contains(name), "{found}");
    let mut without = good();
    without.remove("model.layers.1.mlp.up_proj.scales");
    let found = refused(&without, gptq(4));
    assert!(found.contains("model.layers.1.mlp.up_proj.qweight") && found.contains("`scales`"), "{found}");
    let mut wide = good();
    let codes = Codes::of("wide", [INNER + 8, WIDTH], 4, 32, false, true);
    codes
        .gptq(1)
        .into_iter()
        .for_each(|(last, stored)| drop(wide.insert(format!("model.layers.0.mlp.gate_proj.{last}"), stored)));
    let found = refused(&wide, gptq(4));
    assert!(found.contains("gate_proj.qweight") && found.contains("[192, 128]"), "{found}");
}
