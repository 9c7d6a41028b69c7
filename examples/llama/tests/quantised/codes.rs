//! Small quantised checkpoints, and the same checkpoints with the floats that their codes stand for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::DType;
use burn_rocm::{RocmDevice, f16};
use burn_rocm_llama::config::Config;
use burn_rocm_llama::model::{Cache, Logits, Model, Quantise, weight_bytes};
use burn_rocm_llama::weights::{Adapted, Folder, Source};
use burn_rocm_nn::language::lora::{LoraConfig, Peft, PeftMatrix, PeftPair, Targets};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::shared::read;

pub(crate) const VOCABULARY: usize = 64;
pub(crate) const WIDTH: usize = 128;
pub(crate) const INNER: usize = 192;
pub(crate) const PROMPT: [u32; 7] = [1, 5, 9, 63, 0, 17, 30];

/// A tensor of a file.
pub(crate) struct Stored {
    dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

fn words(words: &[u32], shape: [usize; 2]) -> Stored {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Stored { dtype: Dtype::I32, shape: shape.to_vec(), bytes }
}

pub(crate) fn floats(numbers: &[f32], shape: &[usize]) -> Stored {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    Stored { dtype: Dtype::F32, shape: shape.to_vec(), bytes }
}

fn halves(numbers: &[f32], shape: [usize; 2]) -> Stored {
    let bytes = numbers.iter().flat_map(|&number| f16::from_f32(number).to_le_bytes()).collect();
    Stored { dtype: Dtype::F16, shape: shape.to_vec(), bytes }
}

/// Numbers that look drawn, between -1 and 1, different for each name.
pub(crate) fn numbers(name: &str, count: usize) -> Vec<f32> {
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
pub(crate) type Named<S> = Vec<(String, S)>;

/// The names and shapes of the tensors of two layers.
pub(crate) fn tensors() -> (Named<Vec<usize>>, Named<[usize; 2]>) {
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

pub(crate) fn plain_tensors() -> BTreeMap<String, Stored> {
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
pub(crate) struct Codes {
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
    pub(crate) fn of(
        name: &str,
        shape: [usize; 2],
        bits: u32,
        group: usize,
        shuffled: bool,
        symmetric: bool,
    ) -> Self {
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

    pub(crate) fn floats(&self) -> Vec<f32> {
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

    pub(crate) fn gptq(&self, less: u8) -> Vec<(&'static str, Stored)> {
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

    /// Packed codes. If `zeros` says so, zeros packed along the outputs; if `order`, each input's group.
    pub(crate) fn compressed(&self, zeros: bool, order: bool) -> Vec<(&'static str, Stored)> {
        let ([outs, inputs], groups, per) = (self.shape, self.groups(), (32 / self.bits) as usize);
        let codes = Self::places(outs, inputs).map(|(out, input)| {
            (self.codes[out * inputs + input], out * (inputs / per) + input / per, input % per)
        });
        let mut all = vec![
            ("weight_packed", self.packed([outs, inputs / per], codes)),
            ("weight_scale", halves(&self.scales, [outs, groups])),
        ];
        if zeros {
            let zeros = Self::places(outs, groups).map(|(out, group)| {
                (self.zeros[out * groups + group], out / per * groups + group, out % per)
            });
            all.push(("weight_zero_point", self.packed([outs / per, groups], zeros)));
        }
        if order {
            let g_idx = self.of.iter().map(|&of| of as u32).collect::<Vec<_>>();
            all.push(("weight_g_idx", Stored { shape: vec![inputs], ..words(&g_idx, [1, inputs]) }));
        }
        all
    }

    /// Codes and zeros as signed bytes (`int-quantized`).
    pub(crate) fn signed(&self, zeros: bool) -> Vec<(&'static str, Stored)> {
        let ([outs, inputs], groups, offset) = (self.shape, self.groups(), 1u8 << (self.bits - 1));
        let bytes = |codes: &[u8], shape: [usize; 2]| {
            let bytes = codes.iter().map(|code| code.wrapping_sub(offset)).collect();
            Stored { dtype: Dtype::I8, shape: shape.to_vec(), bytes }
        };
        let mut all = vec![
            ("weight", bytes(&self.codes, [outs, inputs])),
            ("weight_scale", halves(&self.scales, [outs, groups])),
        ];
        if zeros {
            all.push(("weight_zero_point", bytes(&self.zeros, [outs, groups])));
        }
        all
    }
}

pub(crate) fn write(name: &str, tensors: &BTreeMap<String, Stored>, quantisation: Option<Value>) -> PathBuf {
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

pub(crate) fn load(folder: &Path, quantise: Quantise) -> burn_rocm_llama::Result<Model> {
    load_with(folder, quantise, None)
}

pub(crate) fn load_with(
    folder: &Path,
    quantise: Quantise,
    adapters: Option<&Peft>,
) -> burn_rocm_llama::Result<Model> {
    let config = Config::read(folder)?;
    let mut source: Box<dyn Source> = Box::new(Folder::open(folder, &config)?);
    if let Some(adapters) = adapters {
        source = Box::new(Adapted::new(source, adapters, &config)?);
    }
    let mut last = (0, 0);
    let of = weight_bytes(&config, source.as_ref(), DType::F32, quantise)?;
    let device = RocmDevice::default();
    let model = Model::load_quantised(config, source.as_ref(), &device, DType::F32, quantise, |loaded| {
        last = (loaded.bytes, loaded.of);
    })?;
    assert_eq!(last, (of, of), "the progress ends with all bytes");
    Ok(model)
}

/// Adapters of some matrices, with ranks of their own. Of the matrices that are one product, some
/// have none.
pub(crate) fn adapters() -> Peft {
    let mut layers = tensors().1;
    layers.push(("lm_head".to_owned(), [VOCABULARY, WIDTH]));
    adapters_of(layers)
}

pub(crate) fn adapters_of(layers: Named<[usize; 2]>) -> Peft {
    let targets = ["q_proj", "v_proj", "gate_proj", "o_proj", "down_proj", "lm_head"];
    let lora = LoraConfig {
        alpha: 3.0,
        ranks: vec![("v_proj".to_owned(), 3)],
        ..LoraConfig::new(2, Targets::names(targets))
    };
    let lora = lora.build().expect("settings");
    let pairs = layers.into_iter().filter_map(|(name, [outs, inputs])| {
        let rank = lora.adapter(&name)?.rank;
        let matrix = |half: &str, shape: [usize; 2]| {
            let numbers = numbers(&format!("{name}.{half}"), shape[0] * shape[1]);
            let bytes = numbers.iter().flat_map(|x| (0.2 * x).to_le_bytes()).collect();
            PeftMatrix { shape, dtype: DType::F32, bytes }
        };
        let pair = PeftPair { a: matrix("a", [rank, inputs]), b: matrix("b", [outs, rank]) };
        Some((name, pair))
    });
    Peft::new(lora.clone(), pairs.collect::<Vec<_>>()).expect("adapters")
}

pub(crate) fn logits(model: &Model) -> Vec<f32> {
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
pub(crate) const WITHIN: f32 = 4e-4;

pub(crate) fn compare(name: &str, found: &[f32], expected: &[f32]) {
    let square = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| x * x).sum::<f32>();
    let error = square(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    let error = (error / square(&mut expected.iter().copied())).sqrt();
    println!("{name}: relative error {error:e}");
    assert!(error <= WITHIN, "{name}: relative error {error}");
    assert_eq!(found.len(), expected.len());
}

/// Checkpoints with codes: their names, their folders, and those of the floats.
pub(crate) fn checkpoints(test: &str) -> Vec<(&'static str, PathBuf, PathBuf)> {
    let linear = tensors().1;
    let mut all = Vec::new();
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
                "compressed" => drawn.compressed(false, false),
                _ => drawn.gptq(u8::from(name != "gptq-v2")),
            };
            stored
                .into_iter()
                .for_each(|(last, stored)| drop(codes.insert(format!("{layer}.{last}"), stored)));
        }
        let folder = |kind: &str| format!("{test}-{name}-{kind}");
        all.push((
            name,
            write(&folder("codes"), &codes, Some(settings)),
            write(&folder("floats"), &plain, None),
        ));
    }
    all
}
