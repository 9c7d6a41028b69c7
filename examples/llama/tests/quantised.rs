//! Quantised checkpoints: a folder or a GGUF file with codes gives the logits of one with the
//! floats that these codes stand for.

mod shared;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::{DType, TensorData};
use burn_rocm::{RocmDevice, f16};
use burn_rocm_llama::config::Config;
use burn_rocm_llama::model::{Cache, Logits, Model, Quantise, weight_bytes};
use burn_rocm_llama::weights::{Folder, Source};
use burn_rocm_nn::language::quant::{QuantWeight, RoundTo, round_to_nearest};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use shared::read;

const VOCABULARY: usize = 64;
const WIDTH: usize = 128;
const INNER: usize = 192;
const PROMPT: [u32; 7] = [1, 5, 9, 63, 0, 17, 30];

/// A tensor of a file.
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn words(words: &[u32], shape: [usize; 2]) -> Stored {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Stored { dtype: Dtype::I32, shape: shape.to_vec(), bytes }
}

fn floats(numbers: &[f32], shape: &[usize]) -> Stored {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    Stored { dtype: Dtype::F32, shape: shape.to_vec(), bytes }
}

fn halves(numbers: &[f32], shape: [usize; 2]) -> Stored {
    let bytes = numbers.iter().flat_map(|&number| f16::from_f32(number).to_le_bytes()).collect();
    Stored { dtype: Dtype::F16, shape: shape.to_vec(), bytes }
}

/// Numbers that look drawn, between -1 and 1, different for each name.
fn numbers(name: &str, count: usize) -> Vec<f32> {
    let mut state = name
        .bytes()
        .fold(0x9e37_79b9_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

/// Names and shapes.
type Named<S> = Vec<(String, S)>;

/// The names and shapes of the tensors of two layers.
fn tensors() -> (Named<Vec<usize>>, Named<[usize; 2]>) {
    let mut plain = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, WIDTH]),
        ("model.norm.weight".to_owned(), vec![WIDTH]),
        ("lm_head.weight".to_owned(), vec![VOCABULARY, WIDTH]),
    ];
    let mut linear = Vec::new();
    for layer in 0..2 {
        let name = |rest: &str| format!("model.layers.{layer}.{rest}");
        plain.push((name("input_layernorm.weight"), vec![WIDTH]));
        plain.push((name("post_attention_layernorm.weight"), vec![WIDTH]));
        for (rest, shape) in [
            ("self_attn.q_proj", [WIDTH, WIDTH]),
            ("self_attn.k_proj", [WIDTH / 2, WIDTH]),
            ("self_attn.v_proj", [WIDTH / 2, WIDTH]),
            ("self_attn.o_proj", [WIDTH, WIDTH]),
            ("mlp.gate_proj", [INNER, WIDTH]),
            ("mlp.up_proj", [INNER, WIDTH]),
            ("mlp.down_proj", [WIDTH, INNER]),
        ] {
            linear.push((name(rest), shape));
        }
    }
    (plain, linear)
}

fn plain_tensors() -> BTreeMap<String, Stored> {
    let of = |(name, shape): (String, Vec<usize>)| {
        let numbers = numbers(&name, shape.iter().product());
        // Factors of norms lie around 1.
        let is_norm = shape.len() == 1;
        let numbers: Vec<f32> =
            numbers.iter().map(|x| if is_norm { 1.0 + 0.1 * x } else { 0.5 * x }).collect();
        (name, floats(&numbers, &shape))
    };
    tensors().0.into_iter().map(of).collect()
}

/// Codes of 4 or 8 bits of a layer with their scales and zeros.
struct Codes {
    shape: [usize; 2],
    group: usize,
    bits: u32,
    /// `[outs, inputs]`.
    codes: Vec<u8>,
    /// `[outs, groups]`, numbers of f16.
    scales: Vec<f32>,
    zeros: Vec<u8>,
    /// The group of each input.
    of: Vec<usize>,
}

impl Codes {
    fn of(name: &str, shape: [usize; 2], bits: u32, group: usize, shuffled: bool, symmetric: bool) -> Self {
        let [outs, inputs] = shape;
        let groups = inputs / group;
        let most = (1u32 << bits) as f32;
        let draw = |kind: &str, count: usize| {
            numbers(&format!("{name} {kind}"), count).into_iter().map(|x| (x + 1.0) / 2.0)
        };
        let size = 2.0 / (most * (inputs as f32).sqrt());
        let mut of: Vec<usize> = (0..inputs).map(|input| input / group).collect();
        if shuffled {
            // 5 is coprime to 128 and 192.
            of = (0..inputs).map(|input| input * 5 % inputs / group).collect();
        }
        Self {
            shape,
            group,
            bits,
            codes: draw("codes", outs * inputs).map(|x| (x * most).min(most - 1.0) as u8).collect(),
            scales: draw("scales", outs * groups).map(|x| f16::from_f32(size * (0.5 + x)).to_f32()).collect(),
            zeros: draw("zeros", outs * groups)
                .map(|x| if symmetric { (most / 2.0) as u8 } else { (most * (0.4 + 0.2 * x)) as u8 })
                .collect(),
            of,
        }
    }

    fn groups(&self) -> usize {
        self.shape[1] / self.group
    }

    fn floats(&self) -> Vec<f32> {
        let [outs, inputs] = self.shape;
        let value = |out: usize, input: usize| {
            let group = out * self.groups() + self.of[input];
            self.scales[group] * (f32::from(self.codes[out * inputs + input]) - f32::from(self.zeros[group]))
        };
        (0..outs)
            .flat_map(|out| (0..inputs).map(move |input| (out, input)))
            .map(|(o, i)| value(o, i))
            .collect()
    }

    /// Words of numbers: number `(row, column)` lies at some place of some word.
    fn packed(&self, shape: [usize; 2], numbers: impl Iterator<Item = (u8, usize, usize)>) -> Stored {
        let mut all = vec![0u32; shape[0] * shape[1]];
        numbers
            .for_each(|(number, word, place)| all[word] |= u32::from(number) << (self.bits as usize * place));
        words(&all, shape)
    }

    fn places(rows: usize, columns: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..rows).flat_map(move |row| (0..columns).map(move |column| (row, column)))
    }

    fn turned_scales(&self) -> Stored {
        let [outs, groups] = [self.shape[0], self.groups()];
        let turned: Vec<f32> =
            Self::places(groups, outs).map(|(group, out)| self.scales[out * groups + group]).collect();
        halves(&turned, [groups, outs])
    }

    fn gptq(&self, less: u8) -> Vec<(&'static str, Stored)> {
        let ([outs, inputs], groups, per) = (self.shape, self.groups(), (32 / self.bits) as usize);
        let codes = Self::places(outs, inputs)
            .map(|(out, input)| (self.codes[out * inputs + input], input / per * outs + out, input % per));
        let zeros = Self::places(outs, groups).map(|(out, group)| {
            (self.zeros[out * groups + group] - less, group * (outs / per) + out / per, out % per)
        });
        let g_idx = self.of.iter().map(|&of| of as u32).collect::<Vec<_>>();
        vec![
            ("qweight", self.packed([inputs / per, outs], codes)),
            ("qzeros", self.packed([groups, outs / per], zeros)),
            ("scales", self.turned_scales()),
            ("g_idx", Stored { shape: vec![inputs], ..words(&g_idx, [1, inputs]) }),
        ]
    }

    fn awq(&self) -> Vec<(&'static str, Stored)> {
        let ([outs, inputs], groups) = (self.shape, self.groups());
        let place = |out: usize| [0, 4, 1, 5, 2, 6, 3, 7][out % 8];
        let codes = Self::places(outs, inputs)
            .map(|(out, input)| (self.codes[out * inputs + input], input * (outs / 8) + out / 8, place(out)));
        let zeros = Self::places(outs, groups)
            .map(|(out, group)| (self.zeros[out * groups + group], group * (outs / 8) + out / 8, place(out)));
        vec![
            ("qweight", self.packed([inputs, outs / 8], codes)),
            ("qzeros", self.packed([groups, outs / 8], zeros)),
            ("scales", self.turned_scales()),
        ]
    }

    fn compressed(&self) -> Vec<(&'static str, Stored)> {
        let ([outs, inputs], per) = (self.shape, (32 / self.bits) as usize);
        let codes = Self::places(outs, inputs).map(|(out, input)| {
            (self.codes[out * inputs + input], out * (inputs / per) + input / per, input % per)
        });
        vec![
            ("weight_packed", self.packed([outs, inputs / per], codes)),
            ("weight_scale", halves(&self.scales, [outs, self.groups()])),
        ]
    }
}

fn write(name: &str, tensors: &BTreeMap<String, Stored>, quantisation: Option<Value>) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("quantised-{name}"));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut config = json!({
        "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": INNER,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 128, "tie_word_embeddings": false
    });
    if let Some(quantisation) = quantisation {
        config["quantization_config"] = quantisation;
    }
    std::fs::write(folder.join("config.json"), config.to_string()).expect("a file");
    let views: BTreeMap<&String, TensorView<'_>> = tensors
        .iter()
        .map(|(name, stored)| {
            (name, TensorView::new(stored.dtype, stored.shape.clone(), &stored.bytes).expect("a tensor"))
        })
        .collect();
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).expect("a file");
    folder
}

fn load(folder: &Path, quantise: Quantise) -> burn_rocm_llama::Result<Model> {
    let config = Config::read(folder)?;
    let source = Folder::open(folder, &config)?;
    let mut last = (0, 0);
    let of = weight_bytes(&config, &source, DType::F32, quantise)?;
    let device = RocmDevice::default();
    let model = Model::load_quantised(config, &source, &device, DType::F32, quantise, |loaded| {
        last = (loaded.bytes, loaded.of);
    })?;
    assert_eq!(last, (of, of), "the progress ends with all bytes");
    Ok(model)
}

fn logits(model: &Model) -> Vec<f32> {
    let mut cache = Cache::new(model, PROMPT.len() + 1).expect("a cache");
    let mut all = read(model.forward(&PROMPT, &mut cache, Logits::All).expect("logits"));
    all.extend(read(model.forward(&[3], &mut cache, Logits::Last).expect("logits")));
    all
}

/// The relative error of all logits. A product of n terms in f32 is off by (n + 8) u of the sum of
/// magnitudes, in either order (`burn-rocm/nn/tests/quant`): at most 400 u for both, with 192 terms.
/// Terms of either sign make that sum about sqrt(n) times the result, and errors of either sign are
/// sqrt(n) times smaller than their bound. Two layers have 14 products one after the other or beside
/// each other; 16 of them in a chain, each adding 400 u, are 4e-4.
const WITHIN: f32 = 4e-4;

fn compare(name: &str, found: &[f32], expected: &[f32]) {
    let square = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| x * x).sum::<f32>();
    let error = square(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    let error = (error / square(&mut expected.iter().copied())).sqrt();
    println!("{name}: relative error {error:e}");
    assert!(error <= WITHIN, "{name}: relative error {error}");
    assert_eq!(found.len(), expected.len());
}

#[test]
fn logits_of_codes_are_those_of_their_floats() {
    let linear = tensors().1;
    for (name, bits, group, shuffled, settings) in [
        ("gptq", 4, 32, true, json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": true})),
        ("gptq8", 8, 64, false, json!({"quant_method": "gptq", "bits": 8, "group_size": 64})),
        (
            "gptq-v2",
            4,
            64,
            false,
            json!({"quant_method": "gptq", "bits": 4, "group_size": 64, "checkpoint_format": "gptq_v2"}),
        ),
        ("awq", 4, 64, false, json!({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "GEMM"})),
        (
            "compressed",
            4,
            32,
            false,
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {
                "targets": ["Linear"], "input_activations": null,
                "weights": {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 32}
            }}}),
        ),
    ] {
        let (mut codes, mut plain) = (plain_tensors(), plain_tensors());
        for (layer, shape) in &linear {
            let drawn = Codes::of(layer, *shape, bits, group, shuffled, name == "compressed");
            plain.insert(format!("{layer}.weight"), floats(&drawn.floats(), shape));
            let stored = match name {
                "awq" => drawn.awq(),
                "compressed" => drawn.compressed(),
                _ => drawn.gptq(u8::from(name != "gptq-v2")),
            };
            stored
                .into_iter()
                .for_each(|(last, stored)| drop(codes.insert(format!("{layer}.{last}"), stored)));
        }
        let of_codes = load(&write(name, &codes, Some(settings)), Quantise::default()).expect(name);
        let of_floats =
            load(&write(&format!("{name}-floats"), &plain, None), Quantise::default()).expect(name);
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
    for (to, output) in [(RoundTo::Int4, None), (RoundTo::Int8, Some(RoundTo::Int8))] {
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
        let name = format!("{to:?}");
        let of_floats = load(&write(&name, &rounded, None), Quantise::default()).expect("a model");
        let of_codes = load(&folder, Quantise { layers: Some(to), output }).expect("a model");
        let found = logits(&of_codes);
        compare(&name, &found, &logits(&of_floats));
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
        (
            json!({"quant_method": "compressed-tensors", "format": "float-quantized"}),
            "`float-quantized` is not",
        ),
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
