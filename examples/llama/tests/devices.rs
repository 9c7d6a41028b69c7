//! A model that is divided among devices has the logits of the whole one, and its sessions the
//! texts.

/// What the tests of the whole use too.
#[allow(unreachable_pub)]
#[path = "../../../tests/src/again.rs"]
mod again;
mod shared;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use again::again;
use burn::tensor::DType;
use burn_rocm::trace::counting;
use burn_rocm::{Communicator, RocmDevice};
use burn_rocm_llama::config::{Config, Fields};
use burn_rocm_llama::generate::{Options, Session};
use burn_rocm_llama::model::{Cache, Logits, Model, Quantise};
use burn_rocm_llama::ranks::{follow, followers};
use burn_rocm_llama::sample::Sampling;
use burn_rocm_llama::weights::{Elements, Folder, LowRank, Part, Role, Source, Weight};
use burn_rocm_llama::{Error, Rng};
use burn_rocm_nn::language::quant::RoundTo;
use serde_json::json;
use shared::{Expected, read};

/// Runs a test in a process with so many devices of the CPU provider; `true` in such a process.
fn with_devices(count: &str, test: &str) -> bool {
    const DEVICES: &str = "BURN_ROCM_CPU_DEVICES";
    if std::env::var(DEVICES).is_ok() {
        return true;
    }
    let environment =
        [(DEVICES, count), ("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_COLLECTIVE_TIMEOUT", "60")];
    again(&["--exact", test], &environment);
    false
}

/// Runs a function on each device, in a thread for each.
fn on_ranks<T: Send>(run: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    let ranks = Communicator::local(&RocmDevice::all().expect("devices")).expect("a group");
    thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = ranks.iter().map(|ranks| scope.spawn(move || run(ranks))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name)
}

fn open(name: &str) -> (Config, Folder) {
    let config = Config::read(&folder(name)).expect("the settings");
    let source = Folder::open(&folder(name), &config).expect("the weights");
    (config, source)
}

const FAMILIES: [&str; 9] =
    ["gemma2", "gemma3", "gemma3-nested", "llama-biases", "llama3", "mistral", "nemo", "qwen2", "qwen3"];

/// Each rank gets all logits, so each holds them against the reference by itself, within the same
/// bound as the whole model.
#[test]
fn divided_models_are_those_of_transformers() {
    if !with_devices("2", "divided_models_are_those_of_transformers") {
        return;
    }
    for name in FAMILIES {
        let (config, source) = open(name);
        on_ranks(|ranks| {
            let quantise = Quantise::default();
            let model =
                Model::load_part(&config, &source, ranks, DType::F32, quantise, |_| ()).expect("a part");
            assert_eq!(model.config().heads * 2, config.heads);
            let expected = Expected::read(&folder(name).join("expected.safetensors"));
            expected.hold(&format!("{name}, rank {}", ranks.rank()), &model);
        });
    }
}

/// A token's linear layers are kernels of this project, as on one device.
#[test]
fn a_divided_token_takes_the_kernels_of_one_row() {
    if !with_devices("2", "a_divided_token_takes_the_kernels_of_one_row") {
        return;
    }
    let (config, source) = open("llama3");
    let layers = config.layers.len() as u64;
    let counts = on_ranks(|ranks| {
        let quantise = Quantise::default();
        let model = Model::load_part(&config, &source, ranks, DType::F32, quantise, |_| ()).expect("a part");
        let mut cache = Cache::new(&model, 16).expect("a cache");
        model.forward(&[5, 6, 7], &mut cache, Logits::Last).expect("logits");
        let (logits, counts) = counting(|| model.forward(&[8], &mut cache, Logits::Last).expect("logits"));
        drop(logits.into_data());
        counts
    });
    for counts in counts {
        // Two all-reduces for each layer, the logits' all-gather, and the first norm. A rank's part of
        // attention's output matrix has 12 inputs, no multiple of 8, and is left to rocBLAS.
        assert!(counts.library_calls <= 3 * layers + 2, "{counts:?} with {layers} layers");
    }
}

/// Weights for any shape, the same for the same weight.
struct Made {
    /// Whether some matrices have adapters.
    adapted: bool,
}

/// Numbers between -1 and 1, the same for the same name.
fn numbers(name: &str, count: usize) -> Vec<f32> {
    let hash = |hash: u64, byte| hash.wrapping_mul(31) ^ u64::from(byte);
    let mut rng = Rng::new(name.bytes().fold(7, hash));
    (0..count).map(|_| (rng.uniform() * 2.0 - 1.0) as f32).collect()
}

impl Source for Made {
    fn read(&self, weight: &Weight) -> Result<Elements<'_>, Error> {
        if weight.is_norm() {
            return Ok(Elements::Constant(1.0));
        }
        let size = (3.0 / *weight.shape.last().expect("a shape") as f32).sqrt();
        let numbers = numbers(&format!("{:?} {:?}", weight.role, weight.layer), weight.len());
        Ok(Elements::F32(numbers.into_iter().map(|x| x * size).collect()))
    }

    /// Of two ranks, some matrices divide outputs and others inputs, and of those that become one
    /// some have no adapter.
    fn adapter(&self, weight: &Weight) -> Option<LowRank> {
        use Role::*;
        let rank = match weight.role {
            Query | Down | Output => 2,
            Value | AttentionOutput | Up => 3,
            _ => return None,
        };
        let &[outputs, inputs] = &weight.shape[..] else { return None };
        let name = format!("adapter of {:?} {:?}", weight.role, weight.layer);
        let [a, b] = [("a", inputs), ("b", outputs)].map(|(half, len)| {
            numbers(&format!("{name} {half}"), rank * len).into_iter().map(|x| x / 4.0).collect()
        });
        self.adapted.then_some(LowRank { scale: 0.5, a, b, rank })
    }

    fn check(&self, _: &[Weight]) -> Result<(), Error> {
        Ok(())
    }

    fn dtype(&self) -> DType {
        DType::F32
    }
}

/// Two layers of 128 features, of which attention has 256 and the feed-forward layer 512.
fn made(vocabulary: usize) -> Config {
    let settings = json!({
        "model_type": "llama", "vocab_size": vocabulary, "hidden_size": 128, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "max_position_embeddings": 256, "tie_word_embeddings": false
    });
    let serde_json::Value::Object(map) = settings else { unreachable!("an object") };
    Config::of(&Fields::of(Path::new("made"), map)).expect("settings")
}

/// Rounded weights are the same on the parts, because these begin with a group. So only the order
/// of sums differs: the partial sums of the two products of each layer, of up to `k` = 512 terms in
/// f32. A sum of `k` terms in another order is off by at most `k 2^-24` of the sum of the
/// magnitudes, which for independent terms is about `sqrt(k)` of the sum's deviation. There are
/// four such sums, whose errors reach the logits with a factor near 1, because each is added to a
/// normed residual: `4 k^1.5 2^-24 = 0.0028` of the logits' largest magnitude. 97 outputs are not
/// divided. Adapters add products of 2 or 3 terms.
#[test]
fn rounded_weights_are_divided_by_groups() {
    if !with_devices("2", "rounded_weights_are_divided_by_groups") {
        return;
    }
    let prompt: Vec<u32> = (0..40).map(|at| at * 11 % 97).collect();
    let (int4, int8) = (Some(RoundTo::Int4), Some(RoundTo::Int8));
    for (layers, output, vocabulary, adapted) in [
        (int4, None, 97, false),
        (int8, int8, 98, false),
        (int4, int4, 100, false),
        (None, int8, 98, false),
        (None, None, 100, false),
        (int4, None, 97, true),
        (int8, int8, 98, true),
        (None, None, 100, true),
    ] {
        let (config, source) = (made(vocabulary), Made { adapted });
        let quantise = Quantise { layers, output };
        let logits = |model: &Model| {
            let mut cache = Cache::new(model, 64).expect("a cache");
            let mut found = read(model.forward(&prompt, &mut cache, Logits::All).expect("logits"));
            for token in [3, 9, 27] {
                found.extend(read(model.forward(&[token], &mut cache, Logits::Last).expect("logits")));
            }
            found
        };
        let device = RocmDevice::default();
        let whole = Model::load_quantised(config.clone(), &source, &device, DType::F32, quantise, |_| ());
        let expected = logits(&whole.expect("a model"));
        let most = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let found = on_ranks(|ranks| {
            let part = Model::load_part(&config, &source, ranks, DType::F32, quantise, |_| ());
            logits(&part.expect("a part"))
        });
        let quantise = format!("{quantise:?}, adapters {adapted}");
        assert_eq!(found[0], found[1], "{quantise}: both ranks have the same logits");
        let worst = found[0].iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{quantise}: logits up to {most} differ by at most {worst:e}");
        assert!(worst <= 0.0028 * most, "{quantise}: {worst:e} of {most}");
    }
}

fn ask(session: &mut Session, prompt: &[u32], options: &Options) -> Vec<u32> {
    let mut answer = Vec::new();
    let each = |token| {
        answer.push(token);
        Ok(ControlFlow::Continue(()))
    };
    session.generate(prompt, options, each).expect("an answer");
    answer
}

/// A conversation whose passes, single ones and several at once, are replayed graphs with
/// collectives, on both ranks.
fn converse(session: &mut Session, sampling: &Sampling) -> Vec<Vec<u32>> {
    let options = |tokens, stop: &[u32]| Options { tokens, sampling: sampling.clone(), stop: stop.to_vec() };
    let mut answers = vec![ask(session, &[5, 6, 7], &options(25, &[]))];
    // A stop token within, a prompt that goes on with half of the text, and one that begins anew.
    let stop = answers[0][9];
    answers.push(ask(session, &[5, 6, 7], &options(25, &[stop])));
    let half = [&[5, 6, 7], &answers[0][..12], &[1, 2]].concat();
    answers.push(ask(session, &half, &options(20, &[])));
    answers.push(ask(session, &[9], &options(1, &[])));
    answers.push(ask(session, &[9], &options(0, &[])));
    answers
}

#[test]
fn sessions_have_the_texts_of_one_device() {
    if !with_devices("2", "sessions_have_the_texts_of_one_device") {
        return;
    }
    let drawn = Sampling { temperature: 0.8, top_k: 20, repetition_penalty: 1.2, ..Sampling::default() };
    for name in ["llama3", "gemma3", "qwen2"] {
        for sampling in [Sampling::default(), drawn.clone()] {
            let (config, source) = open(name);
            let expected = {
                let device = RocmDevice::default();
                let model =
                    Model::load(config.clone(), &source, &device, DType::F32, |_| ()).expect("a model");
                let mut session = Session::new(&model, 100, 3).expect("a session");
                converse(&mut session, &sampling)
            };
            let ranks = Communicator::local(&RocmDevice::all().expect("devices")).expect("a group");
            let (leader, mut commands) = followers(1);
            let commands = commands.remove(0);
            let part = |ranks: &Communicator| {
                let quantise = Quantise::default();
                Model::load_part(&config, &source, ranks, DType::F32, quantise, |_| ()).expect("a part")
            };
            let found = thread::scope(|scope| {
                let (part, second) = (&part, &ranks[1]);
                scope.spawn(move || {
                    let model = part(second);
                    follow(&model, Cache::new(&model, 100).expect("a cache"), &commands).expect("it follows");
                });
                let model = part(&ranks[0]);
                let session = Session::new(&model, 100, 3).expect("a session").leading(leader);
                let mut session = session.several_within(Duration::MAX);
                let found = converse(&mut session, &sampling);
                let graph = session.step().graph_of_several().expect("a graph");
                println!("{name}: {:?}", graph.recorded());
                found
            });
            assert_eq!(found, expected, "{name}, {sampling:?}");
        }
    }
}

#[test]
fn what_cannot_be_divided_is_said() {
    if !with_devices("2", "what_cannot_be_divided_is_said") {
        return;
    }
    let (config, source) = open("llama3");
    let part = |count| Part::new(&source, &config, 0, count).map(|_| ()).expect_err("refused").to_string();
    let text = "devices: expected a divisor of the model's 2 heads of keys and values, found";
    assert_eq!(part(4), format!("{text} 4"));
    assert_eq!(part(0), format!("{text} 0"));
    let quantise = Quantise { layers: Some(RoundTo::Int4), output: None };
    let errors = on_ranks(|ranks| {
        let part = Model::load_part(&config, &source, ranks, DType::F32, quantise, |_| ());
        part.expect_err("parts within a group").to_string()
    });
    for error in errors {
        let expected = "devices: expected parts of whole groups of 64 quantised weights, found 2, \
             whose parts have 12 inputs";
        assert_eq!(error, expected);
    }
}
