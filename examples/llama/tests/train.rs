//! Training and adapters, held against PyTorch, `transformers` and PEFT (`tests/llama/lora.py`,
//! `tests/llama/bytes_lm.py`).

mod shared;

use std::path::{Path, PathBuf};
use std::process::Command;

use burn::backend::Autodiff;
use burn::module::AutodiffModule;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_llama::Error;
use burn_rocm_llama::config::Config;
use burn_rocm_llama::model::{Cache, Logits, Model, Quantise};
use burn_rocm_llama::train::{
    Base, Corpus, Decoder, Drawn, Places, Recipe, Trained, Trainer, Windows, bytes, bytes_of, finetune,
};
use burn_rocm_llama::weights::{Adapted, Folder};
use burn_rocm_llama::{Rng, text::Tokens};
use burn_rocm_nn::language::lora::{LoraConfig, Peft, PeftMatrix, PeftPair, Targets};
use burn_rocm_nn::language::quant::RoundTo;
use burn_rocm_nn::loss::CrossEntropyLoss;
use burn_rocm_nn::optim::GradientsParams;
use clap::Parser;
use safetensors::SafeTensors;
use shared::{Expected, floats, read};

type Train = Autodiff<Rocm>;

const ADAPTED: [&str; 3] = ["gemma3", "llama3", "qwen2"];

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn open(model: &str) -> (Config, Folder) {
    let folder = tests().join("models").join(model);
    let config = Config::read(&folder).expect("the settings");
    let source = Folder::open(&folder, &config).expect("the weights");
    (config, source)
}

fn peft(model: &str) -> Peft {
    Peft::read(&tests().join("lora").join(model)).expect("adapters")
}

/// What PyTorch computed with the adapters.
struct Reference {
    bytes: Vec<u8>,
    prompt: Vec<u32>,
}

impl Reference {
    fn read(model: &str) -> Self {
        let bytes = std::fs::read(tests().join("lora").join(model).join("expected.safetensors"));
        let bytes = bytes.expect("the reference");
        let prompt = SafeTensors::deserialize(&bytes).expect("the reference");
        let prompt = prompt.tensor("prompt").expect("a prompt").data();
        let token = |b: &[u8]| u64::from_le_bytes(b.try_into().expect("8 bytes")) as u32;
        Self { prompt: prompt.chunks_exact(8).map(token).collect(), bytes }
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        floats(&SafeTensors::deserialize(&self.bytes).expect("the reference"), name)
    }
}

fn largest(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().all(|x| x.is_finite()));
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn ids<B: AutodiffBackend>(tokens: &[u32], batch: usize) -> Tensor<B, 2, Int> {
    let ids: Vec<i32> = (0..batch).flat_map(|_| tokens).map(|&token| token as i32).collect();
    let data = TensorData::new(ids, [batch, tokens.len()]);
    Tensor::from_data(data, (&Default::default(), DType::I32))
}

#[test]
fn models_with_adapters_are_those_of_peft() {
    for name in ADAPTED {
        let reference = Reference::read(name);
        let logits = |adapted: bool| {
            let (config, source) = open(name);
            let source: Box<dyn burn_rocm_llama::weights::Source> = match adapted {
                true => {
                    let source = Adapted::new(Box::new(source), &peft(name), &config).expect("adapters");
                    assert_eq!(source.count(), peft(name).layers().count());
                    Box::new(source)
                }
                false => Box::new(source),
            };
            let device = RocmDevice::default();
            let model = Model::load(config, source.as_ref(), &device, DType::F32, |_| ()).expect("a model");
            let mut cache = Cache::new(&model, 32).expect("a cache");
            read(model.forward(&reference.prompt, &mut cache, Logits::All).expect("logits"))
        };
        let expected = reference.floats("logits");
        let worst = largest(&logits(true), &expected);
        println!("{name} with adapters: logits differ by at most {worst:e}");
        assert!(worst <= 1e-4, "{name}: {worst:e}");
        assert!(largest(&logits(false), &expected) > 0.1, "{name}: the adapters change the logits");
    }
}

/// Training starts from the sum of a model and its adapters.
#[test]
fn decoders_of_models_with_adapters_are_those_of_peft() {
    let device = RocmDevice::default();
    let lora = LoraConfig::new(2, Targets::All).build().expect("settings");
    for name in ADAPTED {
        let reference = Reference::read(name);
        let (config, source) = open(name);
        let source = Adapted::new(Box::new(source), &peft(name), &config).expect("adapters");
        // New adapters change nothing before they are trained.
        for trained in [Trained::All, Trained::Adapters(&lora)] {
            let decoder = Decoder::<Train>::load(&config, &source, trained, &device, DType::F32);
            let places = Places::new(&config, [1, reference.prompt.len()], &device, DType::F32);
            let found = decoder.expect("a decoder").forward(ids(&reference.prompt, 1), &places);
            let found: Vec<f32> = found.into_data().to_vec().expect("logits in f32");
            let worst = largest(&found, &reference.floats("logits"));
            println!("{name} with adapters: logits of a decoder differ by at most {worst:e}");
            assert!(worst <= 1e-4, "{name}: {worst:e}");
        }
        // Codes can't hold the sum.
        let (trained, int8) = (Trained::Adapters(&lora), Some(RoundTo::Int8));
        let refused = Decoder::<Train>::load_quantised(&config, &source, trained, int8, &device, DType::F32);
        assert!(matches!(refused, Err(Error::Argument { name: "lora", .. })), "{name}");
    }
}

#[test]
fn decoders_have_the_logits_of_transformers() {
    let families = ["gemma2", "gemma3", "llama-biases", "llama3", "mistral", "nemo", "qwen2", "qwen3"];
    for name in families {
        let Expected { prompt, logits, .. } =
            Expected::read(&tests().join("models").join(name).join("expected.safetensors"));
        let (config, source) = open(name);
        let device = RocmDevice::default();
        let decoder = Decoder::<Train>::load(&config, &source, Trained::All, &device, DType::F32);
        // Two sequences, of which neither sees the other.
        let places = Places::new(&config, [2, prompt.len()], &device, DType::F32);
        let decoder = decoder.expect("a decoder");
        let trained = decoder.forward(ids(&prompt, 2), &places).inner();
        // Without a gradient, as held-out texts are read.
        let places = Places::new(&config, [2, prompt.len()], &device, DType::F32);
        let evaluated = decoder.valid().forward(ids::<Train>(&prompt, 2).inner(), &places);
        let logits = [logits.clone(), logits].concat();
        for (what, found) in [("trained", trained), ("evaluated", evaluated)] {
            let found: Vec<f32> = found.into_data().to_vec().expect("logits in f32");
            let worst = largest(&found, &logits);
            println!("{name}, {what}: logits differ by at most {worst:e}");
            assert!(worst <= 1e-4, "{name}, {what}: {worst:e}");
        }
    }
}

/// The derivative of a loss along the gradient of all adapters, against differences of losses in f64
/// of fourth order. Those of twice the step tell how far they are off: 16 times as far, so a 15th of
/// what the two differ by. The bound is twice that and the losses' rounding.
#[test]
fn gradients_with_softcaps_are_differences_of_losses() {
    const STEP: f64 = 1e-3;
    let (config, source) = open("gemma2");
    assert!(config.score_softcap.is_some());
    let device = RocmDevice::default();
    let lora = LoraConfig::new(2, Targets::All).build().expect("settings");
    let new = Decoder::<Train>::load(&config, &source, Trained::Adapters(&lora), &device, DType::F64);
    let new = new.expect("a decoder");
    let pairs: Vec<(String, PeftPair)> =
        new.adapted().map(|layer| layer.pair().expect("matrices").expect("an adapter")).collect();
    let seed = std::env::var("BURN_ROCM_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(3);
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let mut draw = |size: f64| -> Vec<[Vec<f64>; 2]> {
        let mut matrix = |matrix: &PeftMatrix| -> Vec<f64> {
            let [rows, columns] = matrix.shape;
            (0..rows * columns).map(|_| size * (2.0 * rng.uniform() - 1.0)).collect()
        };
        pairs.iter().map(|(_, pair)| [matrix(&pair.a), matrix(&pair.b)]).collect()
    };
    let values = draw(0.2);

    // Two sequences, longer than the windows of 6 keys.
    let prompt: Vec<u32> = (0..20).map(|at| 4 + at * 17 % 56).collect();
    let (tokens, targets) = (&prompt[..19], &prompt[1..]);
    let loss = |step: f64, along: &[[Vec<f64>; 2]]| {
        let moved = pairs.iter().zip(&values).zip(along).map(|(((name, pair), values), along)| {
            let matrix = |shape: [usize; 2], half: usize| {
                let numbers = values[half].iter().zip(&along[half]).map(|(x, along)| x + step * along);
                let bytes = numbers.flat_map(f64::to_le_bytes).collect();
                PeftMatrix { shape, dtype: DType::F64, bytes }
            };
            (name.clone(), PeftPair { a: matrix(pair.a.shape, 0), b: matrix(pair.b.shape, 1) })
        });
        let peft = Peft::new(lora.clone(), moved.collect::<Vec<_>>()).expect("adapters");
        let decoder = Decoder::<Train>::load(&config, &source, Trained::Again(&peft), &device, DType::F64);
        let decoder = decoder.expect("a decoder");
        let places = Places::new(&config, [2, 19], &device, DType::F64);
        let logits = decoder.forward(ids(tokens, 2), &places);
        let loss = CrossEntropyLoss::new(None, &device);
        (loss.forward(logits, ids::<Train>(targets, 2).reshape([38])), decoder)
    };
    let number = |loss: Tensor<Train, 1>| loss.into_data().iter::<f64>().next().expect("a loss");
    let (at, decoder) = loss(0.0, &values);
    let grads = at.backward();
    // Along the gradient, the loss changes by the gradient's length.
    let mut along: Vec<[Vec<f64>; 2]> = decoder
        .adapted()
        .map(|layer| {
            let adapter = layer.adapter.as_ref().expect("an adapter");
            [&adapter.a, &adapter.b].map(|param| {
                let grad = param.val().grad(&grads).expect("a gradient").transpose().into_data();
                grad.iter::<f64>().collect()
            })
        })
        .collect();
    let found = along.iter().flatten().flatten().map(|x| x * x).sum::<f64>().sqrt();
    assert!(found > 1e-3, "{found}: a gradient that changes the loss");
    along.iter_mut().flatten().flatten().for_each(|x| *x /= found);

    let change = |step: f64| number(loss(step, &along).0) - number(loss(-step, &along).0);
    let derivative = |step: f64| (8.0 * change(step) - change(2.0 * step)) / (12.0 * step);
    let (expected, coarse) = (derivative(STEP), derivative(2.0 * STEP));
    // The fifth derivative's share grows by 2^4 with twice the step. The losses, of about 4, are rounded
    // in f64, with up to 2^10 units of error, and differences of them are divided by the step.
    let differences = 2.0 * (coarse - expected).abs() / 15.0 + 4.0 * 2f64.powi(-43) * 1.5 / STEP;
    // Burn's gradient of a division by a scalar takes the quotient 1 / scalar in f32: once for the logits'
    // softcap, and once for the scores of each layer.
    let limit = differences + (1 + config.layers.len()) as f64 * 2f64.powi(-24) * found;
    println!("{found}, by differences {expected}, at most {limit} apart");
    assert!((found - expected).abs() <= limit, "{found}, by differences {expected}, limit {limit}");
    assert!(differences < 1e-6 * found, "{differences}: differences that show the gradient");
}

/// The relative error of gradients, of each adapter's matrix as a whole. A rounding in f32 is wrong
/// by up to 2^-24 of a number. A layer rounds about twenty times forward and twice as often
/// backward, three or four layers and both sides add up, and errors that are independent add up as
/// a random walk: 2^-24 * sqrt(480) = 1.3e-6. The bound is 30 times as much, because the scores of
/// random models are large, so that softmax magnifies their errors.
#[test]
fn gradients_of_adapters_are_those_of_pytorch() {
    for name in ADAPTED {
        let reference = Reference::read(name);
        let (config, source) = open(name);
        let device = RocmDevice::default();
        let adapters = peft(name);
        let decoder =
            Decoder::<Train>::load(&config, &source, Trained::Again(&adapters), &device, DType::F32)
                .expect("a decoder");
        let (tokens, targets) = (&reference.prompt[..19], &reference.prompt[1..]);
        let places = Places::new(&config, [1, 19], &device, DType::F32);
        let logits = decoder.forward(ids(tokens, 1), &places);
        let loss =
            CrossEntropyLoss::new(None, &device).forward(logits, ids::<Train>(targets, 1).reshape([19]));
        let value = loss.clone().into_scalar();
        let expected = reference.floats("loss")[0];
        assert!((value - expected).abs() <= 4e-5 * expected, "{name}: loss {value}, not {expected}");
        let grads = loss.backward();
        let mut worst = 0f64;
        for layer in decoder.adapted() {
            let Base::Floats(base) = &layer.base else { panic!("{}: quantised", layer.name) };
            assert!(base.weight.val().grad(&grads).is_none(), "{}: frozen", layer.name);
            let adapter = layer.adapter.as_ref().expect("an adapter");
            for (half, param) in [("lora_A", &adapter.a), ("lora_B", &adapter.b)] {
                let found = param.val().grad(&grads).expect("a gradient").transpose();
                let found: Vec<f32> = found.into_data().to_vec().expect("f32");
                let expected = reference.floats(&format!("grad.{}.{half}", layer.name));
                assert_eq!(found.len(), expected.len());
                let square = |numbers: &mut dyn Iterator<Item = f32>| {
                    numbers.map(|x| f64::from(x).powi(2)).sum::<f64>()
                };
                let error = square(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
                let error = (error / square(&mut expected.iter().copied())).sqrt();
                worst = worst.max(error);
                assert!(error <= 4e-5, "{name}, {}.{half}: relative error {error:e}", layer.name);
            }
        }
        println!("{name}: gradients differ by at most {worst:e}");
        assert_eq!(decoder.adapted().count(), adapters.layers().count());
        let trained = GradientsParams::from_grads(grads, &decoder).len();
        assert_eq!(trained, 2 * adapters.layers().count(), "{name}: only adapters are trained");
    }
}

/// Both sides start with the same weights and windows. PyTorch's own losses in f32 differ from
/// those in f64 by up to `deviation`, as the order of summation is. The tables of the rotary
/// embedding are in f32 on both sides, and two libraries' cosines differ by up to 2^-23. That moves
/// a score, a sum of 32 products times `32^-0.5` of numbers of size 1, by up to 7e-7. So the limit
/// is eight times the largest deviation and 7e-7.
#[test]
fn the_first_losses_of_bytes_lm_are_those_of_pytorch() {
    let text = std::fs::read_to_string(tests().join("bytes_lm.json")).expect("the reference");
    let reference: serde_json::Value = serde_json::from_str(&text).expect("the reference");
    let numbers = |name: &str| -> Vec<f64> {
        let list = reference[name].as_array().expect("a list");
        list.iter().map(|x| x.as_f64().expect("a number")).collect()
    };
    let (expected, deviation) = (numbers("losses"), numbers("deviation"));
    assert_eq!(expected.len(), 21);
    let limit = 8.0 * deviation.into_iter().fold(0.0, f64::max) + 7e-7;
    assert!(limit < 1e-5, "{limit:e}");

    let text = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../LICENSE-APACHE"));
    let corpus = Corpus::of_tokens(bytes_of(&text.expect("the text")));
    let config = bytes::config(&bytes::settings(2, 64, 32)).expect("settings");
    let (source, device) = (Drawn::new(&config, 42), RocmDevice::default());
    let decoder = Decoder::<Train>::load(&config, &source, Trained::All, &device, DType::F32);
    let recipe = Recipe { steps: 200, batch: 4, time: 32, rate: 3e-3, warm_up: 5, decay: 0.1 };
    let mut trainer = Trainer::new(decoder.expect("a decoder"), recipe, &device, DType::F32);
    let mut rng = Rng::new(42);
    let mut worst = 0f64;
    for (step, expected) in expected.into_iter().enumerate() {
        let (next, loss) = trainer.step(&Windows::random(&corpus.train, [4, 32], &mut rng));
        trainer = next;
        let error = (f64::from(loss.into_scalar()) - expected).abs();
        worst = worst.max(error);
        assert!(error <= limit, "step {step}: off by {error:e} of {expected}, limit {limit:e}");
    }
    println!("21 losses differ by at most {worst:e}, limit {limit:e}");
}

/// A folder for a test's files.
fn scratch(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("train-{test}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Runs the program `llama`.
fn llama(arguments: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_llama")).args(arguments).output().expect("the program");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn bytes_lm_writes_a_model_that_llama_runs() {
    let folder = scratch("bytes");
    std::fs::create_dir_all(folder.join("text/a/target")).expect("a folder");
    for at in 0..20 {
        let text = "The quick brown fox jumps over the lazy dog. ".repeat(40);
        std::fs::write(folder.join(format!("text/a/{at:02}.md")), text).expect("a file");
    }
    // Neither counts.
    std::fs::write(folder.join("text/a/picture.png"), [0; 100]).expect("a file");
    std::fs::write(folder.join("text/a/target/00.md"), [0; 100]).expect("a file");
    let text = folder.join("text").display().to_string();
    let output = folder.join("model").display().to_string();
    let mut arguments = vec!["bytes-lm", "--text", &text, "--output", &output, "--steps", "120"];
    arguments.extend(["--batch", "4", "--context", "48", "--layers", "1", "--width", "32", "--lr", "1e-2"]);
    let arguments = bytes::Arguments::parse_from(arguments);
    let [train, held_out] = bytes::run(&arguments).expect("a run");
    let steps: Vec<usize> = held_out.iter().map(|reading| reading.step).collect();
    assert_eq!((train.len(), steps), (12, vec![100, 120]));
    let (first, last) = (train[0].loss, held_out[1].loss);
    assert!((4.0..6.5).contains(&first) && last < 1.5, "{first} to {last}");
    let curve = std::fs::read_to_string(folder.join("model/curve.csv")).expect("a table");
    assert_eq!(curve.lines().count(), 1 + 12 + 2);

    let prompt = "The quick brown fox jumps ";
    let (fine, text, error) =
        llama(&["--model", &output, "--prompt", prompt, "--tokens", "8", "--temperature", "0"]);
    assert!(fine, "{error}");
    assert_eq!(text.trim_end_matches('\n'), "over the", "{error}");
    // Every byte is a token.
    let tokens = Tokens::read(&folder.join("model/tokenizer.json")).expect("a tokenizer");
    let text = "Grüße,\n\t日本 🦊!";
    let ids = tokens.encode(text, true).expect("tokens");
    assert_eq!(ids, bytes_of(text.as_bytes()));
    assert_eq!(tokens.decode(&ids).expect("a text"), text);

    let mut few = arguments.clone();
    few.text = folder.join("model");
    let error = bytes::run(&few).expect_err("an error").to_string();
    assert!(error.contains("expected at least 10 texts"), "{error}");
    let mut wrong = arguments;
    wrong.width = 33;
    assert!(matches!(bytes::run(&wrong), Err(Error::Argument { name: "options", .. })));
}

/// The mean loss over the last tenth of a text's bytes, of a model with the adapters of `finetune`.
fn held_out(output: &Path, text: &str, quantise: Quantise) -> f64 {
    let model = output.join("model");
    let config = Config::read(&model).expect("the settings");
    let peft = Peft::read(output).expect("adapters");
    assert_eq!(peft.base_model(), Some(&*model.display().to_string()));
    let source = Folder::open(&model, &config).expect("the weights");
    let source = Adapted::new(Box::new(source), &peft, &config).expect("adapters");
    let device = RocmDevice::default();
    let model = Model::load_quantised(config, &source, &device, DType::F32, quantise, |_| ());
    let model = model.expect("a model");
    let ids = bytes_of(&std::fs::read(text).expect("the text"));
    let windows = Windows::spread(&Corpus::of_tokens(ids).held_out, 32, 128);
    let mut sum = 0.0;
    for (row, targets) in windows.tokens.chunks(32).zip(windows.targets.chunks(32)) {
        let tokens: Vec<u32> = row.iter().map(|&token| token as u32).collect();
        let mut cache = Cache::new(&model, 32).expect("a cache");
        let logits = read(model.forward(&tokens, &mut cache, Logits::All).expect("logits"));
        for (logits, &target) in logits.chunks(256).zip(targets) {
            let exponentials: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
            sum += exponentials.ln() - f64::from(logits[target as usize]);
        }
    }
    sum / windows.targets.len() as f64
}

#[test]
fn finetune_writes_adapters_that_llama_reads() {
    let folder = scratch("finetune");
    let text = folder.join("text.txt");
    std::fs::write(&text, "The quick brown fox jumps over the lazy dog. ".repeat(60)).expect("a file");
    let (text, output) = (text.display().to_string(), folder.join("out").display().to_string());
    let mut arguments =
        vec!["finetune", "--text", &text, "--output", &output, "--steps", "60", "--rank", "4"];
    arguments.extend(["--targets", "q_proj,v_proj,up_proj,down_proj", "--context", "32", "--lr", "2e-2"]);
    let arguments = finetune::Arguments::parse_from(arguments);
    let [before, after] = finetune::run(&arguments).expect("a run");
    assert!(before > 4.5 && after < before - 1.0, "{before} to {after}");

    // The loss of the merged model over the last tenth is that of the decoder with its adapters.
    assert_eq!(Peft::read(&folder.join("out")).expect("adapters").layers().count(), 16);
    let found = held_out(&folder.join("out"), &text, Quantise::default());
    assert!((found - after).abs() <= 1e-4 * after, "{found}, not {after}");

    let model = folder.join("out/model");
    let path = model.display().to_string();
    let (fine, text, error) =
        llama(&["--model", &path, "--lora", &output, "--prompt", "The quick ", "--tokens", "4"]);
    assert!(fine && !text.is_empty() && error.contains("adapters: 16 of"), "{text}\n{error}");
    let mut none = arguments.clone();
    none.targets = "x_proj".to_owned();
    let error = finetune::run(&none).expect_err("an error").to_string();
    assert!(error.contains("targets: expected a layer of the model") && error.contains("x_proj"), "{error}");
    let mut long = arguments;
    long.context = 300;
    assert!(finetune::run(&long).expect_err("an error").to_string().contains("more than 300 tokens"));
}

/// Adapters that were trained beside codes belong to the codes, and not to the floats that were
/// rounded.
#[test]
fn finetune_trains_beside_rounded_weights() {
    let folder = scratch("finetune-quantized");
    let text = folder.join("text.txt");
    std::fs::write(&text, "The quick brown fox jumps over the lazy dog. ".repeat(60)).expect("a file");
    let text = text.display().to_string();
    for (name, to, targets) in [("int4", RoundTo::Int4, "all"), ("int8", RoundTo::Int8, "all-linear")] {
        let output = folder.join(name).display().to_string();
        let mut arguments = vec!["finetune", "--text", &text, "--output", &output, "--steps", "60"];
        arguments.extend(["--rank", "4", "--context", "32", "--lr", "2e-2", "--quantize", name]);
        arguments.extend(["--targets", targets]);
        let arguments = finetune::Arguments::parse_from(arguments);
        let [before, after] = finetune::run(&arguments).expect("a run");
        assert!(before > 4.5 && after < before - 1.0, "{name}: {before} to {after}");
        let output = Path::new(&output);
        let found = held_out(output, &text, Quantise { layers: Some(to), output: None });
        assert!((found - after).abs() <= 1e-4 * after, "{name}: {found}, not {after}");
        if to == RoundTo::Int4 {
            let floats = held_out(output, &text, Quantise::default());
            assert!((floats - after).abs() > 1e-3 * after, "{floats} of the floats, {after} of the codes");
        }
        let model = output.join("model").display().to_string();
        let peft = output.display().to_string();
        let (fine, text, error) = llama(&[
            "--model",
            &model,
            "--lora",
            &peft,
            "--quantize",
            name,
            "--prompt",
            "The ",
            "--tokens",
            "4",
        ]);
        assert!(fine && !text.is_empty() && error.contains("adapters: 28 of"), "{text}\n{error}");
    }
}

#[test]
fn adapters_that_do_not_fit_are_refused() {
    let lora = |model: &str, adapters: &Path| {
        let path = tests().join("models").join(model).display().to_string();
        let (fine, _, error) =
            llama(&["--model", &path, "--lora", &adapters.display().to_string(), "--prompt", "a"]);
        assert!(!fine);
        error
    };
    let (config, source) = open("qwen2");
    let error = Adapted::new(Box::new(source), &peft("gemma3"), &config).err().expect("an error").to_string();
    assert!(error.contains("`base_model.model.model.layers.0.self_attn.k_proj.lora_B.weight`"), "{error}");
    assert!(error.contains("expected [12, 2], found [20, 2]"), "{error}");
    let (config, source) = open("gemma3");
    let peft = LoraConfig::new(2, Targets::names(["layers.7.mlp.up_proj"])).build().expect("settings");
    let zeros =
        |shape: [usize; 2]| PeftMatrix { shape, dtype: DType::F32, bytes: vec![0; shape[0] * shape[1] * 4] };
    let pair = PeftPair { a: zeros([2, 24]), b: zeros([32, 2]) };
    let peft = Peft::new(peft, [("model.layers.7.mlp.up_proj".to_owned(), pair)]).expect("adapters");
    let error = Adapted::new(Box::new(source), &peft, &config).err().expect("an error").to_string();
    assert!(error.contains("expected an adapter of a layer of the model"), "{error}");
    let error = lora("gemma3", Path::new("/nonexistent"));
    // The model of the test has no tokenizer, which is found first.
    assert!(error.contains("tokenizer.json: missing"), "{error}");
}
