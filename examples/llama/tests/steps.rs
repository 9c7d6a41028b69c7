//! Sessions replay graphs of one pass or of several. They launch each graph before the host has read
//! the tokens of the one before it. A loop reads each token and then runs the next pass op by op. Both
//! must give the same, bit for bit.

/// What the tests of the whole use too.
#[allow(dead_code, unreachable_pub)] // these tests draw less
#[path = "../../../tests/src/random.rs"]
mod random;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use burn::tensor::{DType, Tensor};
use burn_rocm::fused::decode::{self, CacheType, Draw, SampleState, SampleTables};
use burn_rocm::graph::Graph;
use burn_rocm::{RocmDevice, read_with_fault};
use burn_rocm_llama::config::Config;
use burn_rocm_llama::generate::{Options, PIECE, Session};
use burn_rocm_llama::model::{Cache, Logits, Model, PASSES, Quantise, Step};
use burn_rocm_llama::sample::Sampling;
use burn_rocm_llama::weights::{Adapted, Folder, Source};
use burn_rocm_llama::{Error, Rng};
use burn_rocm_nn::language::lora::Peft;
use burn_rocm_nn::language::quant::RoundTo;
use random::Random;

/// A device captures for one thread at a time, so these tests take turns.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

const FAMILIES: [&str; 9] =
    ["gemma2", "gemma3", "gemma3-nested", "llama-biases", "llama3", "mistral", "nemo", "qwen2", "qwen3"];
const CONTEXT: usize = 100;

fn folder(kind: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(kind).join(name)
}

fn load(name: &str, dtype: DType, quantise: Quantise, adapted: bool) -> Model {
    let config = Config::read(&folder("models", name)).expect("the settings");
    let mut source: Box<dyn Source> =
        Box::new(Folder::open(&folder("models", name), &config).expect("the weights"));
    if adapted {
        let peft = Peft::read(&folder("lora", name)).expect("adapters");
        source = Box::new(Adapted::new(source, &peft, &config).expect("adapters"));
    }
    let device = RocmDevice::default();
    Model::load_quantised(config, source.as_ref(), &device, dtype, quantise, |_| ()).expect("the model")
}

fn plain(name: &str) -> Model {
    load(name, DType::F32, Quantise::default(), false)
}

/// One answer of a session.
#[derive(Debug)]
struct Ask {
    prompt: Vec<u32>,
    options: Options,
    /// The caller ends the answer with this token of it, counted from 1.
    end: Option<usize>,
}

impl Ask {
    fn greedy(prompt: &[u32], tokens: usize) -> Self {
        let options = Options { tokens, sampling: Sampling::default(), stop: Vec::new() };
        Self { prompt: prompt.to_vec(), options, end: None }
    }
}

/// Reads each token before it runs the next pass, by [`Model::forward`].
struct Loop<'a> {
    model: &'a Model,
    cache: Cache,
    text: Vec<u32>,
    state: SampleState,
    rng: Rng,
}

impl<'a> Loop<'a> {
    fn new(model: &'a Model, cache: Cache, seed: u64) -> Self {
        let tables = SampleTables { counts: true, ..SampleTables::default() };
        let state = SampleState::new(model.device(), 1, model.config().vocabulary, tables).expect("a state");
        Self { model, cache, text: Vec::new(), state, rng: Rng::new(seed) }
    }

    fn answer(&mut self, ask: &Ask) -> Vec<u32> {
        let Ask { prompt, options, end } = ask;
        let same = self.text.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(prompt.len() - 1);
        self.cache.truncate(same);
        self.text.truncate(same);
        let mut logits = self.model.prefill(&prompt[same..], &mut self.cache, PIECE).expect("logits");
        self.text.extend(&prompt[same..]);
        let sampling = options.sampling.on_device(self.rng.bits());
        self.state.set(0, &sampling, &self.text).expect("settings in range");
        let mut answer = Vec::new();
        loop {
            decode::sample(logits.into_primitive().tensor(), &self.state).expect("a draw");
            let (token, fault) = read_with_fault(self.state.tokens()).expect("a token");
            assert!(fault.is_none(), "{fault:?}");
            let token = token.iter::<i64>().next().expect("a token") as u32;
            if options.stop.contains(&token) {
                return answer;
            }
            answer.push(token);
            if answer.len() == options.tokens || Some(answer.len()) == *end {
                return answer;
            }
            logits = self.model.forward(&[token], &mut self.cache, Logits::Last).expect("logits");
            self.text.push(token);
        }
    }
}

fn answer(session: &mut Session, ask: &Ask) -> Vec<u32> {
    let mut found = Vec::new();
    let timing = session.generate(&ask.prompt, &ask.options, |token| {
        found.push(token);
        Ok(if Some(found.len()) == ask.end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    });
    let generated = timing.expect("an answer").generated;
    assert!((found.len().saturating_sub(1)..=found.len()).contains(&generated), "{generated} of {found:?}");
    found
}

/// Holds sessions with graphs of single passes, with graphs of several, and without any against the
/// loop. `next` makes the asks from the text so far. Returns the answers.
fn hold(
    what: &str,
    model: &Model,
    stored: CacheType,
    turns: usize,
    next: impl Fn(usize, &[u32]) -> Ask,
) -> Vec<Vec<u32>> {
    let cache = || Cache::stored(model, CONTEXT, stored).expect("a cache");
    let session =
        |longest| Session::with_cache(model, cache(), 9).expect("a session").several_within(longest);
    let (mut graph, mut several) = (session(Duration::ZERO), session(Duration::MAX));
    let (mut ops, mut plain) = (session(Duration::MAX).op_by_op(), Loop::new(model, cache(), 9));
    let mut answers = Vec::new();
    for turn in 0..turns {
        let ask = next(turn, &plain.text);
        let expected = plain.answer(&ask);
        assert_eq!(answer(&mut graph, &ask), expected, "{what}, replayed: {ask:?}");
        assert_eq!(answer(&mut several, &ask), expected, "{what}, several at once: {ask:?}");
        assert_eq!(answer(&mut ops, &ask), expected, "{what}, op by op: {ask:?}");
        for session in [&graph, &several, &ops] {
            assert_eq!(session.text(), plain.text, "{what}: {ask:?}");
        }
        answers.push(expected);
    }
    assert!(ops.step().graph().is_none() && ops.step().not_captured().is_none());
    assert!(graph.step().graph_of_several().is_none() && ops.step().graph_of_several().is_none());
    assert_eq!((graph.step().not_captured(), several.step().not_captured()), (None, None), "{what}");
    if answers.iter().map(Vec::len).sum::<usize>() > turns + 2 {
        assert!(graph.step().graph().is_some(), "{what}: two passes were enough for a graph");
    }
    // An answer begins with two single passes, and its last token needs none.
    if answers.iter().any(|answer| answer.len() > 2 + PASSES) {
        assert!(several.step().graph_of_several().is_some(), "{what}: enough passes for a graph of several");
    }
    answers
}

fn tokens(random: &Random, count: usize, vocabulary: usize) -> Vec<u32> {
    (0..count).map(|_| random.below(vocabulary) as u32).collect()
}

/// A conversation: each prompt is the text so far, cut somewhere, and new tokens.
fn talk(random: &Random, text: &[u32], vocabulary: usize) -> Ask {
    let mut prompt = text[..random.below(text.len() + 1)].to_vec();
    prompt.truncate(CONTEXT / 2);
    prompt.extend(tokens(random, 1 + random.below(20), vocabulary));
    let sampling = match random.below(3) {
        0 => Sampling::default(),
        1 => Sampling { repetition_penalty: random.uniform(1.0, 2.0), ..Sampling::default() },
        _ => Sampling {
            temperature: random.uniform(0.3, 3.0),
            top_k: random.below(vocabulary),
            top_p: random.uniform(0.3, 1.0),
            min_p: random.uniform(0.0, 0.1),
            repetition_penalty: random.uniform(0.5, 2.0),
        },
    };
    let stop = tokens(random, random.below(3), vocabulary);
    let most = CONTEXT + 1 - prompt.len();
    let tokens = (1 + random.below(30)).min(most);
    let end = (random.below(3) == 0).then(|| 1 + random.below(tokens));
    Ask { prompt, options: Options { tokens, sampling, stop }, end }
}

#[test]
fn conversations_of_each_family() {
    let _turn = turn();
    let random = Random::new();
    let mut lengths = 0;
    for name in FAMILIES {
        let model = plain(name);
        let vocabulary = model.config().vocabulary;
        let stored = [CacheType::F32, CacheType::I8, CacheType::BF16][random.below(3)];
        let answers = hold(name, &model, stored, 5, |_, text| talk(&random, text, vocabulary));
        lengths += answers.iter().map(Vec::len).sum::<usize>();
    }
    assert!(lengths > 100, "45 answers had {lengths} tokens");
}

/// 16-bit models with caches of both types, rounded weights, adapters merged and beside them.
#[test]
fn conversations_of_other_weights_and_caches() {
    let _turn = turn();
    let random = Random::new();
    let quantise = |layers, output| Quantise { layers, output };
    let (int4, int8) = (Some(RoundTo::Int4), Some(RoundTo::Int8));
    for (name, dtype, stored, quantise, adapted) in [
        ("llama3", DType::BF16, CacheType::BF16, quantise(None, None), false),
        ("gemma3", DType::BF16, CacheType::I8, quantise(None, None), false),
        ("qwen3", DType::F16, CacheType::F16, quantise(None, None), false),
        ("gemma3", DType::F32, CacheType::F32, quantise(int4, None), false),
        ("llama3", DType::BF16, CacheType::BF16, quantise(int4, int8), false),
        ("qwen2", DType::BF16, CacheType::I8, quantise(int8, int4), false),
        ("llama3", DType::F32, CacheType::F32, quantise(None, None), true),
        ("gemma3", DType::BF16, CacheType::BF16, quantise(int8, None), true),
        ("qwen2", DType::F32, CacheType::I8, quantise(int4, None), true),
    ] {
        let model = load(name, dtype, quantise, adapted);
        let vocabulary = model.config().vocabulary;
        let what = format!("{name}, {dtype:?}, cache {stored:?}, {quantise:?}, adapters {adapted}");
        hold(&what, &model, stored, 4, |_, text| talk(&random, text, vocabulary));
    }
}

/// Each place of a stop token, and of a caller's end, before, within and behind several passes of one
/// graph. The next answer of the session, which counts repetitions, shows whether something of the
/// passes that ran ahead is left.
#[test]
fn a_text_ends_at_each_place() {
    let _turn = turn();
    let model = plain("gemma3");
    let prompt = [5, 40, 7, 19, 33];
    let penalty = Sampling { repetition_penalty: 1.5, ..Sampling::default() };
    let draws = Sampling { temperature: 1.5, repetition_penalty: 1.2, ..Sampling::default() };
    for sampling in [penalty, draws] {
        let options = Options { tokens: 9, sampling, stop: Vec::new() };
        let ask = |end, stop: &[u32]| Ask {
            prompt: prompt.to_vec(),
            options: Options { stop: stop.to_vec(), ..options.clone() },
            end,
        };
        let whole = hold("whole", &model, CacheType::F32, 1, |_, _| ask(None, &[])).remove(0);
        assert_eq!(whole.len(), 9);
        let mut ends = std::collections::BTreeSet::new();
        for place in 0..9 {
            let answers = hold("stop token", &model, CacheType::F32, 2, |turn, text| match turn {
                0 => ask(None, &[whole[place]]),
                _ => Ask { prompt: [text, &[11]].concat(), ..ask(None, &[]) },
            });
            assert_eq!(answers[0], whole[..answers[0].len()]);
            ends.insert(answers[0].len());
            let answers = hold("the caller's end", &model, CacheType::F32, 2, |turn, text| match turn {
                0 => ask(Some(place + 1), &[]),
                _ => Ask { prompt: [text, &[11]].concat(), ..ask(None, &[]) },
            });
            assert_eq!(answers[0], whole[..=place]);
        }
        assert!(ends.len() > 4, "{ends:?}");
    }
}

/// The last pass fills the last place of the cache, and no pass runs beyond it. After a prompt of 14
/// tokens, that pass is the last one of a graph of several.
#[test]
fn a_text_fills_the_cache() {
    let _turn = turn();
    let model = plain("llama3");
    for prompt in [1, 14, 15, 16, 17, CONTEXT - 1, CONTEXT] {
        let prompt: Vec<u32> = (0..prompt as u32).map(|token| token * 7 % 64).collect();
        let tokens = CONTEXT + 1 - prompt.len();
        let answers = hold("full", &model, CacheType::F32, 1, |_, _| Ask::greedy(&prompt, tokens));
        assert_eq!(answers[0].len(), tokens);
        let mut session = Session::new(&model, CONTEXT, 1).expect("a session");
        let options = Ask::greedy(&prompt, tokens + 1).options;
        let error = session.generate(&prompt, &options, |_| Ok(ControlFlow::Continue(())));
        assert!(matches!(error, Err(Error::TooLong { .. })), "{error:?}");
    }
}

/// An error of the caller ends the text as a break does, and the session can go on, also within the
/// tokens of one graph.
#[test]
fn a_session_goes_on_after_an_error() {
    let _turn = turn();
    let model = plain("qwen3");
    let ask = Ask::greedy(&[3, 1, 4], 12);
    let cache = || Cache::new(&model, CONTEXT).expect("a cache");
    let session = Session::with_cache(&model, cache(), 9).expect("a session");
    let mut session = session.several_within(Duration::MAX);
    let expected = Loop::new(&model, cache(), 9).answer(&ask);
    for fails in 1..8 {
        let mut count = 0;
        let ended = session.generate(&ask.prompt, &ask.options, |token| {
            assert_eq!(token, expected[count]);
            count += 1;
            if count == fails {
                Err(Error::Read("the reader has gone".to_owned()))
            } else {
                Ok(ControlFlow::Continue(()))
            }
        });
        assert!(matches!(ended, Err(Error::Read(_))), "{ended:?}");
        assert_eq!(session.text(), [&ask.prompt[..], &expected[..fails - 1]].concat());
        assert_eq!(answer(&mut session, &ask), expected);
    }
    assert!(session.step().graph_of_several().is_some());
}

#[test]
fn a_nan_is_an_error() {
    let _turn = turn();
    // A weight beyond f16's range.
    let config = Config::read(&folder("models", "llama3")).expect("the settings");
    let source = Folder::open(&folder("models", "llama3"), &config).expect("the weights");
    struct Huge(Folder);
    impl Source for Huge {
        fn read(
            &self,
            weight: &burn_rocm_llama::weights::Weight,
        ) -> Result<burn_rocm_llama::weights::Elements<'_>, Error> {
            use burn_rocm_llama::weights::{Elements, Role};
            match weight.role {
                Role::Down => Ok(Elements::Constant(f64::from(f32::MAX))),
                _ => self.0.read(weight),
            }
        }
        fn check(&self, weights: &[burn_rocm_llama::weights::Weight]) -> Result<(), Error> {
            self.0.check(weights)
        }
        fn dtype(&self) -> DType {
            DType::F32
        }
    }
    let model = Model::load(config, &Huge(source), &RocmDevice::default(), DType::F32, |_| ());
    let model = model.expect("the model");
    let mut session = Session::new(&model, CONTEXT, 1).expect("a session");
    let Ask { prompt, options, .. } = Ask::greedy(&[1, 2, 3], 4);
    let error = session.generate(&prompt, &options, |token| panic!("a token from NaN: {token}"));
    assert!(matches!(error, Err(Error::NotNumbers)), "{error:?}");
}

/// While another thread captures, a step can't be captured. It runs op by op and says why. If the
/// graph of one pass exists and that of several can't be captured, single passes are replayed.
#[test]
fn without_a_capture_the_text_is_the_same() {
    let _turn = turn();
    let model = plain("mistral");
    let ask = Ask::greedy(&[9, 8, 7, 6], 20);
    let cache = || Cache::new(&model, CONTEXT).expect("a cache");
    let expected = Loop::new(&model, cache(), 9).answer(&ask);
    for has_graph in [false, true] {
        let session = Session::with_cache(&model, cache(), 9).expect("a session");
        let mut session = session.several_within(Duration::MAX);
        if has_graph {
            answer(&mut session, &Ask::greedy(&ask.prompt, 3));
        }
        assert_eq!(session.step().graph().is_some(), has_graph);
        let (begun, has_begun) = mpsc::channel();
        let (end, may_end) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let device = RocmDevice::default();
                let step = || {
                    begun.send(()).expect("somebody waits");
                    may_end.recv().expect("somebody ends it");
                };
                Graph::capture_after(&device, 0, step).expect("a graph of nothing");
            });
            has_begun.recv().expect("a capture");
            let found = answer(&mut session, &ask);
            end.send(()).expect("the capture ends");
            assert_eq!(found, expected);
        });
        let step = session.step();
        match has_graph {
            true => assert_eq!(step.not_captured(), None),
            false => assert!(step.not_captured().expect("no graph").contains("captur")),
        }
        assert_eq!((step.graph().is_some(), step.takes_several()), (has_graph, false));
        assert!(step.graph_of_several().is_none());
        assert_eq!(answer(&mut session, &ask), expected);
    }
}

/// What a test does with a step of some rows.
#[derive(Clone, Copy, Debug)]
enum Do {
    One,
    Several,
    /// Every other row begins again from the middle of its text.
    Cut,
}

/// The same with single passes.
fn one_by_one(todo: &[Do]) -> Vec<Do> {
    let singles = |&what: &Do| match what {
        Do::Several => vec![Do::One; PASSES],
        other => vec![other],
    };
    todo.iter().flat_map(singles).collect()
}

/// What each pass draws for each row, and the logits of one more token of each row, which depend on
/// all keys and values in its cache. Each launch comes before the host reads what the one before has
/// drawn.
fn run_rows(
    (model, stored): (&Model, CacheType),
    prompts: &[Vec<u32>],
    sampling: impl Fn(usize) -> decode::Sampling,
    op_by_op: bool,
    todo: &[Do],
) -> (Vec<Draw>, Vec<Vec<u32>>) {
    let mut caches = Cache::rows(model, prompts.len(), CONTEXT, stored).expect("caches");
    let tables = SampleTables { counts: true, chances: true, ring: 0 };
    let mut step = Step::new(model, &caches, tables).expect("a step");
    if op_by_op {
        step = step.op_by_op();
    }
    let mut logits = Vec::new();
    for (row, (cache, prompt)) in caches.iter_mut().zip(prompts).enumerate() {
        logits.push(model.prefill(prompt, cache, PIECE).expect("logits"));
        step.state().set(row, &sampling(row), prompt).expect("settings in range");
    }
    decode::sample(Tensor::cat(logits, 0).into_primitive().tensor(), step.state()).expect("draws");
    let mut draws = Vec::new();
    let mut read = step.state().begin_read().expect("a read");
    for what in todo {
        let next = match what {
            Do::One => step.run(&mut caches).and_then(|()| Ok(step.state().begin_read()?)),
            Do::Several => {
                step.run_several(&mut caches).and_then(|()| Ok(step.state().begin_read_passes()?))
            }
            Do::Cut => {
                caches.iter_mut().step_by(2).for_each(|cache| cache.truncate(cache.len() / 2));
                continue;
            }
        };
        draws.extend(std::mem::replace(&mut read, next.expect("passes")).wait().expect("draws"));
    }
    draws.extend(read.wait().expect("draws"));
    assert_eq!(step.graph().is_some(), !op_by_op, "{:?}", step.not_captured());
    let is_several = todo.iter().any(|what| matches!(what, Do::Several));
    assert_eq!(step.graph_of_several().is_some(), is_several && !op_by_op);
    let after = |cache: &mut Cache| {
        let logits = model.forward(&[7], cache, Logits::Last).expect("logits").into_data();
        logits.iter::<f32>().map(f32::to_bits).collect()
    };
    (draws, caches.iter_mut().map(after).collect())
}

/// Rows of different lengths, against the same step op by op: one pass at a time and several, in any
/// order.
#[test]
fn rows_are_those_of_a_step_op_by_op() {
    use Do::{Cut, One, Several};
    let _turn = turn();
    let random = Random::new();
    let begins_with_one = [One, One, Several, Several, One, Several, One, One, Cut, Several, Several, One];
    let begins_with_several =
        [Several, Several, Several, One, One, One, One, One, Cut, One, Several, Several];
    for (name, dtype, stored) in [
        ("gemma3", DType::F32, CacheType::F32),
        ("llama3", DType::BF16, CacheType::BF16),
        ("qwen2", DType::F32, CacheType::I8),
    ] {
        let model = load(name, dtype, Quantise::default(), false);
        let vocabulary = model.config().vocabulary;
        for rows in [1, 3] {
            let prompts: Vec<_> =
                (0..rows).map(|_| tokens(&random, 1 + random.below(40), vocabulary)).collect();
            let drawn = |row: usize| decode::Sampling {
                temperature: 0.5 + row as f64,
                top_p: 0.95,
                repetition_penalty: 1.3,
                presence_penalty: 0.3,
                frequency_penalty: 0.2,
                seed: row as u64,
                ..decode::Sampling::default()
            };
            for greedy in [true, false] {
                let sampling = |row| if greedy { decode::Sampling::default() } else { drawn(row) };
                let run =
                    |op_by_op, todo: &[Do]| run_rows((&model, stored), &prompts, sampling, op_by_op, todo);
                let what = format!("{name}, {rows} rows, greedy {greedy}");
                let singles = one_by_one(&begins_with_one);
                let expected = run(true, &singles);
                assert_eq!(expected.0.len(), rows * singles.len(), "{what}");
                assert!(
                    expected.0.iter().all(|draw| draw.chance.is_some_and(|chance| chance <= 0.0)),
                    "{what}"
                );
                let distinct: std::collections::BTreeSet<_> =
                    expected.0.iter().map(|draw| draw.token).collect();
                assert!(
                    greedy || distinct.len() > 4,
                    "{what}: {distinct:?} are too few to tell tokens apart"
                );
                assert!(run(false, &singles) == expected, "{what}, replayed");
                assert!(run(false, &begins_with_one) == expected, "{what}, several at once");
                assert!(run(true, &begins_with_one) == expected, "{what}, several op by op");
                let expected = run(true, &one_by_one(&begins_with_several));
                assert!(run(false, &begins_with_several) == expected, "{what}, several at first");
            }
        }
    }
}

#[test]
fn a_step_takes_its_own_caches_only() {
    let _turn = turn();
    let model = plain("llama3");
    let rows = |count| Cache::rows(&model, count, CONTEXT, CacheType::F32).expect("caches");
    let tables = SampleTables::default();
    let wrong =
        |caches: &[Cache]| Step::new(&model, caches, tables).map(|_| ()).expect_err("refused").to_string();
    let text = "caches: expected at least one, all made by one call of Cache::rows, found";
    assert_eq!(wrong(&[]), format!("{text} 0 caches"));
    let [mut two, other] = [rows(2), rows(2)];
    let mut mixed = vec![rows(1).remove(0)];
    mixed.extend(other);
    assert_eq!(wrong(&mixed), format!("{text} 3 caches"));
    let mut step = Step::new(&model, &two, tables).expect("a step");
    two.swap(0, 1);
    let error = step.run(&mut two).expect_err("rows in another order").to_string();
    assert!(error.contains("in the same order"), "{error}");
    two.swap(0, 1);
    let full: Vec<u32> = vec![1; CONTEXT];
    model.prefill(&full, &mut two[1], PIECE).expect("logits");
    assert!(matches!(step.run(&mut two), Err(Error::TooLong { .. })));
    two[1].truncate(5);
    step.run(&mut two).expect("room again");
    assert_eq!(two.iter().map(Cache::len).collect::<Vec<_>>(), [1, 6]);
    model.prefill(&full[..CONTEXT + 1 - PASSES - 6], &mut two[1], PIECE).expect("logits");
    let lengths = |two: &[Cache]| two.iter().map(Cache::len).collect::<Vec<_>>();
    let before = lengths(&two);
    assert!(matches!(step.run_several(&mut two), Err(Error::TooLong { .. })), "room for one pass less");
    assert_eq!(lengths(&two), before);
    two.swap(0, 1);
    assert!(matches!(step.run_several(&mut two), Err(Error::Argument { .. })));
    two.swap(0, 1);
    (1..PASSES).for_each(|_| step.run(&mut two).expect("room for single passes"));
    assert_eq!(lengths(&two), [PASSES, CONTEXT]);
    assert!(
        Cache::stored(&load("llama3", DType::F16, Quantise::default(), false), 9, CacheType::BF16).is_err()
    );
}
