//! Adapters beside codes, and their gradients.

use std::path::Path;
use std::process::Command;

use burn::backend::Autodiff;
use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_llama::Error;
use burn_rocm_llama::config::Config;
use burn_rocm_llama::gguf::Gguf;
use burn_rocm_llama::model::{Model, Quantise, frozen_bytes, weight_bytes};
use burn_rocm_llama::train::{Base, Decoder, Places, Trained, finetune, save_byte_tokenizer};
use burn_rocm_llama::weights::{Adapted, Elements, Folder, Role, Source, Weight};
use burn_rocm_nn::language::lora::Peft;
use burn_rocm_nn::language::quant::RoundTo;
use burn_rocm_nn::optim::GradientsParams;
use clap::Parser;

use crate::codes::*;

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
pub(crate) fn compare_folders(name: &str, [(codes, round), (plain, none)]: [(&Path, Option<RoundTo>); 2]) {
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
