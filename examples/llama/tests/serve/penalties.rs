//! Penalties that requests ask for: each token of an answer is the one that the formulas choose from
//! the logits that the model computes without a server.

use burn_rocm_llama::model::{Cache, Logits, Model};
use burn_rocm_llama::serve::Vocabulary;
use serde_json::{Value, json};

use crate::client::post;
use crate::support::{LIMITS, Running, load, prompts};

/// The tokens of an answer.
const TOKENS: usize = 40;
/// Two ways to the same logits in f32 differ by up to this.
const LOGITS: f64 = 1e-4;

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
struct Penalties {
    repetition: f64,
    presence: f64,
    frequency: f64,
}

const NONE: Penalties = Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 };

impl Penalties {
    /// A logit as the API's documentation changes it: `repetition` counts a token of prompt and
    /// answer once, the others count those of the answer.
    fn score(self, logit: f64, in_prompt: bool, times: usize) -> f64 {
        let Self { repetition, presence, frequency } = self;
        let repeated = match (in_prompt || times > 0, logit < 0.0) {
            (false, _) => logit,
            (true, false) => logit / repetition,
            (true, true) => logit * repetition,
        };
        repeated - if times > 0 { presence } else { 0.0 } - frequency * times as f64
    }

    /// The most by which a score differs if the logit differs by `LOGITS`.
    fn within(self) -> f64 {
        LOGITS * self.repetition.max(1.0 / self.repetition)
    }

    /// Checks each token of an answer. Returns how many are not the most likely ones.
    fn hold(self, model: &Model, prompt: &[u32], answer: &[u32]) -> usize {
        let all = [prompt, answer].concat();
        let mut cache = Cache::new(model, all.len()).expect("a cache");
        let logits = model.forward(&all, &mut cache, Logits::All).expect("logits");
        let logits: Vec<f32> = logits.into_data().to_vec().expect("f32");
        let vocabulary = model.config().vocabulary;
        let mut moved = 0;
        for (index, &token) in answer.iter().enumerate() {
            let row = &logits[(prompt.len() + index - 1) * vocabulary..][..vocabulary];
            let score = |id: u32| {
                let times = answer[..index].iter().filter(|&&earlier| earlier == id).count();
                self.score(row[id as usize].into(), prompt.contains(&id), times)
            };
            let best = (0..vocabulary as u32).map(score).fold(f64::NEG_INFINITY, f64::max);
            let found = score(token);
            // Both scores may be off.
            let within = 2.0 * self.within();
            assert!(found >= best - within, "{self:?}, token {index}: {token} has {found}, the best {best}");
            let likeliest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            moved += usize::from(f64::from(row[token as usize]) < f64::from(likeliest) - 2.0 * LOGITS);
        }
        moved
    }
}

#[test]
fn penalties_choose_as_their_formulas_say() {
    // Tokens' numbers are the text.
    let server = Running::start("penalties", LIMITS, |server, _| server.vocabulary = Vocabulary(None));
    let model = load(&crate::folder::folder("penalties-own", None));
    let answer = |prompt: &[u32], of: Penalties| -> Vec<u32> {
        let mut body = json!({"prompt": prompt, "max_tokens": TOKENS, "temperature": 0});
        // A penalty that changes nothing is not sent.
        for (name, value, none) in [
            ("repetition_penalty", of.repetition, 1.0),
            ("presence_penalty", of.presence, 0.0),
            ("frequency_penalty", of.frequency, 0.0),
        ] {
            if value != none {
                body[name] = json!(value);
            }
        }
        let answer = post(server.address, "/v1/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let answer: Value = answer.json();
        let text = answer["choices"][0]["text"].as_str().expect("a text");
        text.split_whitespace().map(|id| id.parse().expect("a number")).collect()
    };
    let prompts = prompts([5, 20, 40], 21);
    for of in [
        Penalties { repetition: 1.8, ..NONE },
        Penalties { repetition: 0.4, ..NONE },
        Penalties { presence: 2.0, ..NONE },
        Penalties { presence: -2.0, ..NONE },
        Penalties { frequency: 1.5, ..NONE },
        Penalties { frequency: -0.5, ..NONE },
        Penalties { repetition: 1.2, presence: 0.7, frequency: 0.3 },
    ] {
        let mut moved = 0;
        for prompt in &prompts {
            let plain = answer(prompt, NONE);
            assert_eq!((plain.len(), NONE.hold(&model, prompt, &plain)), (TOKENS, 0));
            let found = answer(prompt, of);
            assert_eq!(found.len(), TOKENS);
            moved += of.hold(&model, prompt, &found);
        }
        assert!(moved > 0, "{of:?} chose no other token in {} answers", prompts.len());
        println!("{of:?}: {moved} tokens are not the most likely ones");
    }
    server.join();
}
