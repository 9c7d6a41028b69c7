//! Quantised checkpoints: a folder or a GGUF file with codes gives the logits of one with the
//! floats that these codes stand for. So do adapters of both, and their gradients.

mod shared;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use burn::backend::Autodiff;
use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_rocm::{Rocm, RocmDevice, f16};
use burn_rocm_llama::Error;
use burn_rocm_llama::config::Config;
use burn_rocm_llama::gguf::Gguf;
use burn_rocm_llama::model::{Cache, Logits, Model, Quantise, frozen_bytes, weight_bytes};
use burn_rocm_llama::train::{Base, Decoder, Places, Trained, finetune, save_byte_tokenizer};
use burn_rocm_llama::weights::{Adapted, Elements, Folder, Role, Source, Weight};
use burn_rocm_nn::language::lora::{LoraConfig, Peft, PeftMatrix, PeftPair, Targets};
use burn_rocm_nn::language::quant::{QuantWeight, RoundTo, round_to_nearest};
use burn_rocm_nn::optim::GradientsParams;
use clap::Parser;
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
    load_with(folder, quantise, None)
}

fn load_with(folder: &Path, quantise: Quantise, adapters: Option<&Peft>) -> burn_rocm_llama::Result<Model> {
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
fn adapters() -> Peft {
    let mut layers = tensors().1;
    layers.push(("lm_head".to_owned(), [VOCABULARY, WIDTH]));
    adapters_of(layers)
}

fn adapters_of(layers: Named<[usize; 2]>) -> Peft {
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

/// Checkpoints with codes: their names, their folders, and those of the floats.
fn checkpoints(test: &str) -> Vec<(&'static str, PathBuf, PathBuf)> {
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
                "compressed" => drawn.compressed(),
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

#[test]
fn logits_of_codes_are_those_of_their_floats() {
    for (name, codes, floats) in checkpoints("logits") {
        let of_codes = load(&codes, Quantise::default()).expect(name);
        let of_floats = load(&floats, Quantise::default()).expect(name);
        compare(name, &logits(&of_codes), &logits(&of_floats));
    }
}

/// Adapters are computed beside codes, and merged into floats. A merged weight is rounded once more
/// than both parts, so the bound has room for it.
#[test]
fn adapters_beside_codes_are_those_of_their_floats() {
    let peft = adapters();
    let all = || Quantise::default();
    for (name, codes, floats) in checkpoints("adapters") {
        let of_codes = logits(&load_with(&codes, all(), Some(&peft)).expect(name));
        compare(name, &of_codes, &logits(&load_with(&floats, all(), Some(&peft)).expect(name)));
        let without = logits(&load(&codes, all()).expect(name));
        let moved = of_codes.iter().zip(&without).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(moved > 0.1, "{name}: the adapters change the logits by {moved}");

        // The codes stay, and adapters beside them are f32. The output matrix is a float, so it has
        // its adapter within.
        let config = Config::read(&codes).expect("the settings");
        let source: Box<dyn Source> = Box::new(Folder::open(&codes, &config).expect("the weights"));
        let bytes = |source: &dyn Source| weight_bytes(&config, source, DType::BF16, all()).expect("bytes");
        let before = bytes(source.as_ref());
        let beside: usize = (tensors().1.iter())
            .filter_map(|(layer, [outs, inputs])| {
                Some(4 * peft.lora().adapter(layer)?.rank * (outs + inputs))
            })
            .sum();
        let source = Adapted::new(source, &peft, &config).expect("adapters");
        assert_eq!(bytes(&source), before + beside, "{name}");
    }
}

type Train = Autodiff<Rocm>;

/// What a decoder computes: its logits, the gradients of its adapters by their layers, and the
/// number of adapters beside codes.
type Computed = (Vec<f32>, Vec<(String, [Vec<f32>; 2])>, usize);

/// A decoder's weights, and what its float matrices are rounded to.
type Given<'a> = (&'a dyn Source, Option<RoundTo>);

fn gradients(config: &Config, (source, round): Given<'_>, peft: &Peft, batch: usize) -> Computed {
    let device = RocmDevice::default();
    let trained = Trained::Again(peft);
    let decoder = Decoder::<Train>::load_quantised(config, source, trained, round, &device, DType::F32);
    let decoder = decoder.expect("a decoder");
    let (shape, rows) = ([batch, PROMPT.len()], batch * PROMPT.len());
    let ids: Vec<i32> = PROMPT.iter().cycle().take(rows).map(|&token| token as i32).collect();
    let ids = Tensor::<Train, 2, Int>::from_data(TensorData::new(ids, shape), (&device, DType::I32));
    let logits = decoder.forward(ids, &Places::new(config, shape, &device, DType::F32));
    let factors = TensorData::new(numbers("factors", rows * VOCABULARY), [rows, VOCABULARY]);
    let grads = (logits.clone() * Tensor::from_data(factors, &device)).sum().backward();
    let floats = |tensor: Tensor<Train, 2>| tensor.into_data().to_vec::<f32>().expect("f32");
    let mut beside = 0;
    let of_layers = decoder.adapted().map(|layer| {
        beside += usize::from(matches!(layer.base, Base::Quantised(_)));
        let adapter = layer.adapter.as_ref().expect("an adapter");
        let of =
            |matrix: Tensor<Train, 2>| floats(Tensor::from_inner(matrix.grad(&grads).expect("a gradient")));
        (layer.name.clone(), [of(adapter.a.val()), of(adapter.b.val())])
    });
    let of_layers: Vec<_> = of_layers.collect();
    assert_eq!(GradientsParams::from_grads(grads, &decoder).len(), 2 * of_layers.len());
    (floats(logits), of_layers, beside)
}

/// A gradient has the products of the pass before it, and as many backward: twice the roundings of
/// [`WITHIN`], and those of two products of its own. Seven rows are the product of a kernel that
/// reads codes, and 21 that of floats that another makes.
fn compare_gradients(name: &str, config: &Config, peft: &Peft, [codes, plain]: [Given<'_>; 2]) -> usize {
    let mut beside = 0;
    for batch in [1, 3] {
        let (found, of_codes, quantised) = gradients(config, codes, peft, batch);
        let (expected, of_floats, none) = gradients(config, plain, peft, batch);
        assert_eq!(none, 0, "{name}");
        beside = quantised;
        compare(name, &found, &expected);
        let mut worst = 0f32;
        for ((layer, found), (other, expected)) in of_codes.iter().zip(&of_floats) {
            assert_eq!(layer, other);
            for (half, (found, expected)) in found.iter().zip(expected).enumerate() {
                let square = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| x * x).sum::<f32>();
                let error = square(&mut found.iter().zip(expected).map(|(a, b)| a - b));
                let error = (error / square(&mut expected.iter().copied())).sqrt();
                worst = worst.max(error);
                assert!(error <= 2.2 * WITHIN, "{name}, {layer}, {half}: relative error {error:e}");
            }
        }
        println!("{name}, {batch} sequences: relative error of gradients {worst:e}");
    }
    beside
}

/// [`compare_gradients`] of folders, of whose adapters all but the output matrix's are beside codes.
fn compare_folders(name: &str, [(codes, round), (plain, none)]: [(&Path, Option<RoundTo>); 2]) {
    let config = Config::read(codes).expect("the settings");
    let [codes, plain] = [codes, plain].map(|path| Folder::open(path, &config).expect("the weights"));
    let peft = adapters();
    let beside = compare_gradients(name, &config, &peft, [(&codes, round), (&plain, none)]);
    assert_eq!(beside, peft.layers().count() - 1, "{name}");
}

/// A GGUF file as floats.
struct Floats(Gguf);

impl Source for Floats {
    fn read(&self, weight: &Weight) -> burn_rocm_llama::Result<Elements<'_>> {
        self.0.read_floats(weight)
    }

    fn check(&self, weights: &[Weight]) -> burn_rocm_llama::Result<()> {
        self.0.check(weights)
    }

    fn dtype(&self) -> DType {
        DType::F32
    }
}

/// Some matrices of the file are Q8_0 and Q4_0, the others f16 and bf16.
#[test]
fn adapters_beside_the_codes_of_a_gguf_file() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf/llama.gguf");
    let open = || Gguf::open(&path).expect("a file");
    let config = open().config().clone();
    let (width, inner) = (config.width, config.inner);
    let [queries, keys] = [config.heads, config.kv_heads].map(|heads| heads * config.head_dim);
    let layers = (0..config.layers.len()).flat_map(|layer| {
        [
            ("self_attn.q_proj", [queries, width]),
            ("self_attn.v_proj", [keys, width]),
            ("self_attn.o_proj", [width, queries]),
            ("mlp.gate_proj", [inner, width]),
            ("mlp.down_proj", [width, inner]),
        ]
        .map(|(name, shape)| (format!("model.layers.{layer}.{name}"), shape))
    });
    let mut layers: Vec<_> = layers.collect();
    if !config.tied {
        layers.push(("lm_head".to_owned(), [config.vocabulary, width]));
    }
    let peft = adapters_of(layers);
    let of = |source: Box<dyn Source>| {
        let source = Adapted::new(source, &peft, &config).expect("adapters");
        let device = RocmDevice::default();
        logits(&Model::load(config.clone(), &source, &device, DType::F32, |_| ()).expect("a model"))
    };
    compare("gguf", &of(Box::new(open())), &of(Box::new(Floats(open()))));
    let beside = compare_gradients("gguf", &config, &peft, [(&open(), None), (&Floats(open()), None)]);
    assert!((1..peft.layers().count()).contains(&beside), "{beside} beside codes");
}

/// The embedding of the file is Q8_0, and becomes floats.
#[test]
fn memory_beside_trained_adapters_has_a_float_embedding() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf/llama.gguf");
    let source = Gguf::open(&path).expect("a file");
    let config = source.config().clone();
    let embedding =
        Weight { role: Role::Embedding, layer: None, shape: vec![config.vocabulary, config.width] };
    let codes = source.quantised_bytes(&embedding).expect("the file").expect("a quantised embedding");
    for dtype in [DType::BF16, DType::F32] {
        let all = weight_bytes(&config, &source, dtype, Quantise::default()).expect("bytes");
        let frozen = frozen_bytes(&config, &source, dtype, None).expect("bytes");
        assert_eq!(frozen, all - codes + config.vocabulary * config.width * dtype.size());
    }
}

#[test]
fn gradients_beside_codes_are_those_of_their_floats() {
    for (name, codes, floats) in checkpoints("gradients") {
        compare_folders(name, [(&codes, None), (&floats, None)]);
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

/// The programs, from a checkpoint of codes to adapters and back.
#[test]
fn finetune_trains_beside_the_codes_of_a_checkpoint() {
    for (name, codes, _) in checkpoints("finetune") {
        save_byte_tokenizer(&codes).expect("a file");
        let (text, output) = (codes.join("text.txt"), codes.join("adapters"));
        // The vocabulary ends before the letters.
        std::fs::write(&text, "0 1 2 3 5 8 13 21 34 ".repeat(40)).expect("a file");
        let [model, text, output] = [&codes, &text, &output].map(|path| path.display().to_string());
        let mut arguments = vec!["finetune", "--model", &model, "--text", &text, "--output", &output];
        arguments.extend(["--dtype", "f32", "--steps", "10", "--batch", "2", "--context", "16"]);
        arguments.extend(["--targets", "q_proj,down_proj", "--rank", "2", "--lr", "1e-2"]);
        let [before, after] = finetune::run(&finetune::Arguments::parse_from(arguments)).expect("a run");
        assert!(after < before - 0.1, "{name}: {before} to {after}");
        let llama = Command::new(env!("CARGO_BIN_EXE_llama"))
            .args(["--model", &model, "--lora", &output, "--prompt", "0 1 2 ", "--tokens", "4"])
            .output()
            .expect("the program");
        let error = String::from_utf8_lossy(&llama.stderr);
        assert!(llama.status.success() && !llama.stdout.is_empty(), "{name}: {error}");
        assert!(error.contains("adapters: 4 of"), "{name}: {error}");
    }
}

#[test]
fn rounded_weights_are_not_trained() {
    let mut all = plain_tensors();
    for (name, shape) in tensors().1 {
        all.insert(format!("{name}.weight"), floats(&numbers(&name, shape[0] * shape[1]), &shape));
    }
    let folder = write("trained", &all, None);
    let config = Config::read(&folder).expect("the settings");
    let source = Folder::open(&folder, &config).expect("the weights");
    let (peft, device, int8) = (adapters(), RocmDevice::default(), Some(RoundTo::Int8));
    for (trained, dtype) in [(Trained::All, DType::F32), (Trained::Again(&peft), DType::F64)] {
        let error = Decoder::<Train>::load_quantised(&config, &source, trained, int8, &device, dtype);
        assert!(matches!(error, Err(Error::Argument { name: "quantize", .. })));
    }
}
