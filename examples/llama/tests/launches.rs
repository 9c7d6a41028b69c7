//! How many launches of this project's kernels one token of a small model takes, and how much memory
//! its draw.
//!
//! One test in its own program, because the counters belong to the device.
#![allow(missing_docs)]

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use burn::tensor::{DType, Tensor};
use burn_rocm::fused::decode::{self, CacheType, SampleState, SampleTables};
use burn_rocm::{Rocm, RocmDevice, trace};
use burn_rocm_llama::config::Config;
use burn_rocm_llama::generate::{Options, Session};
use burn_rocm_llama::model::{Cache, Logits, Model, Next, PASSES, Paged, Piece};
use burn_rocm_llama::sample::Sampling;
use burn_rocm_llama::weights::Folder;

/// A layer takes 6: four products with what is around them, one for the rotary embedding and the
/// append to the cache, and one of attention. Before the layers the embedding's row is a launch, and
/// behind them the output matrix. The first norm is a call of MIOpen. Gemma has norms behind
/// attention and the feed-forward part: its products are calls of rocBLAS, and a layer takes 5
/// launches. The factor of its embedding is one more.
#[test]
fn launches_of_a_token() {
    let hip = hip::Device::get(0).expect("a device");
    for (name, expected) in [("llama3", 20), ("qwen3", 20), ("gemma3", 23), ("qwen2", 20)] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name);
        let config = Config::read(&folder).expect("the settings");
        let source = Folder::open(&folder, &config).expect("the weights");
        let model =
            Model::load(config, &source, &RocmDevice::default(), DType::F32, |_| {}).expect("the model");
        let mut cache = Cache::new(&model, 16).expect("a cache");
        model.forward(&[5, 6, 7], &mut cache, Logits::Last).expect("logits");
        hip.sync().expect("the device");
        let before = hip.counters().launches;
        let logits = model.forward(&[8], &mut cache, Logits::Last).expect("logits");
        hip.sync().expect("the device");
        let launches = hip.counters().launches - before;
        drop(logits);
        println!("{name}: {launches} launches");
        assert!(launches <= expected, "{name}: {launches} launches, more than {expected}");
    }
    replays();
    batches();
    draws();
}

/// The tokens of a graph, of one pass or of several: one launch, one read, one wait for a pass that
/// the device has left, and nothing from the host.
fn replays() {
    const TOKENS: usize = 50;
    let hip = hip::Device::get(0).expect("a device");
    for name in ["llama3", "gemma3", "qwen2"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name);
        let config = Config::read(&folder).expect("the settings");
        let source = Folder::open(&folder, &config).expect("the weights");
        let model =
            Model::load(config, &source, &RocmDevice::default(), DType::F32, |_| {}).expect("the model");
        let sampling =
            Sampling { temperature: 0.9, top_k: 20, repetition_penalty: 1.1, ..Sampling::default() };
        let options = Options { tokens: TOKENS, sampling, stop: vec![] };
        for longest in [Duration::ZERO, Duration::MAX] {
            let mut session = Session::new(&model, 64, 1).expect("a session").several_within(longest);
            let (mut counted, mut last) = (Vec::new(), None);
            let each = |_| {
                let now = hip.counters();
                counted.extend(last.replace(now).map(|before: hip::Counters| {
                    [
                        now.graphs - before.graphs,
                        now.launches - before.launches,
                        now.device_to_host - before.device_to_host,
                        now.waits - before.waits,
                        now.host_to_device - before.host_to_device,
                    ]
                }));
                Ok(ControlFlow::Continue(()))
            };
            session.generate(&[5, 6, 7], &options, each).expect("a text");
            let one = session.step().graph().expect("a graph").recorded();
            println!("{name}: a graph of {one:?}");
            // The first pass runs op by op, the second is captured, the last token needs no pass.
            assert_eq!(counted.len(), TOKENS - 1);
            let mut at_once = 0;
            if longest == Duration::MAX {
                let several = session.step().graph_of_several().expect("a graph").recorded();
                let times = PASSES as u64;
                assert_eq!(
                    (several.kernels, several.library_calls, several.copies),
                    (times * one.kernels, times * one.library_calls, times * one.copies),
                    "{name}"
                );
                at_once = (TOKENS - 3) / PASSES * PASSES;
            }
            for (at, counts) in counted.iter().enumerate().take(TOKENS - 2).skip(2) {
                // Of tokens that come at once, the first has the counts of all.
                let is_first = at - 2 >= at_once || (at - 2).is_multiple_of(PASSES);
                let expected = if is_first { [1, 0, 1, 1, 0] } else { [0; 5] };
                assert_eq!(counts, &expected, "{name}, token {at}, at most {longest:?} at once");
            }
        }
    }
}

/// A step of `llama-serve` in which each sequence has its next token.
fn batches() {
    const SEQUENCES: usize = 3;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/llama3");
    let config = Config::read(&folder).expect("the settings");
    let source = Folder::open(&folder, &config).expect("the weights");
    let layers = config.layers.len() as u64;
    let model = Model::load(config, &source, &RocmDevice::default(), DType::F32, |_| {}).expect("the model");
    let mut paged = Paged::new(&model, 64, CacheType::F32).expect("a cache");
    let tables = SampleTables { counts: true, chances: true, ring: 0 };
    let vocabulary = model.config().vocabulary;
    let state = SampleState::new(model.device(), SEQUENCES, vocabulary, tables).expect("a state");
    let ids = [(); SEQUENCES].map(|()| paged.sequences().create());
    let mut step = |tokens: &dyn Fn(usize) -> Next<'static>| {
        let piece = |row: usize| Piece { sequence: ids[row], tokens: tokens(row) };
        let pieces: Vec<Piece> = (0..SEQUENCES).map(piece).collect();
        let wanted: Vec<usize> = (0..SEQUENCES).collect();
        let logits = model.forward_batch(&pieces, &wanted, &mut paged, &state).expect("logits");
        let logits = logits.expect("logits").into_primitive().tensor();
        decode::sample(logits, &state).expect("a draw");
    };
    step(&|_| Next::Tokens(&[5, 6, 7]));
    step(&Next::Drawn);
    let ((), counts) = trace::counting(|| step(&Next::Drawn));
    println!("a step of a batch: {counts:?}");
    assert_eq!((counts.kernels, counts.library_calls, counts.copies), (6 * layers + 6, 4 * layers + 2, 0));
}

/// The memory of a state and of a draw, by which programs plan theirs.
fn draws() {
    const VOCABULARY: usize = 5000;
    let hip = hip::Device::get(0).expect("a device");
    let device = RocmDevice::default();
    // The pool rounds each tensor up, by at most 1/32 or to 256 bytes.
    let holds = |what: &str, bytes: usize, found: usize| {
        let most = bytes + bytes / 32 + 16 * 256;
        assert!((bytes..=most).contains(&found), "{what}: {found} bytes, not {bytes} to {most}");
    };
    for rows in [1, 3, 20] {
        for (counts, ring) in [(true, 0), (false, 7)] {
            let logits = Tensor::<Rocm, 2>::ones([rows, VOCABULARY], &device).into_primitive().tensor();
            hip.sync().expect("the device");
            let before = hip.pool().stats().allocated;
            let tables = SampleTables { counts, chances: true, ring };
            let state = SampleState::new(&device, rows, VOCABULARY, tables).expect("a state");
            hip.sync().expect("the device");
            let kept = hip.pool().stats().allocated;
            holds("a state", SampleState::bytes(rows, VOCABULARY, tables), kept - before);
            hip.pool().reset_peak();
            decode::sample(logits, &state).expect("a draw");
            hip.sync().expect("the device");
            let taken = hip.pool().stats().peak - kept;
            holds("a draw", decode::sample_bytes(rows, VOCABULARY), taken);
        }
    }
}
