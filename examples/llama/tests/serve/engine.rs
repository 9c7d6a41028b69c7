//! The engine's texts are those of the program that generates one at a time.

use std::sync::atomic::Ordering::Relaxed;

use burn_rocm::fused::decode::Sampling;
use burn_rocm_llama::model::{Cache, Logits};
use burn_rocm_llama::serve::engine::{Chances, End, Event, Job, Limits};

use crate::support::{Engine, LIMITS, Text, alone, job, model, prompts, read};

/// Prompts of one block and less, of several, and longer than a step; more than there are rows.
const LENGTHS: [usize; 12] = [1, 5, 16, 17, 31, 33, 40, 50, 64, 70, 90, 3];
const TOKENS: usize = 24;

fn texts(engine: &Engine, jobs: Vec<Job>) -> Vec<Text> {
    let tickets: Vec<_> = jobs.into_iter().map(|job| (job.texts(), engine.submit(job))).collect();
    tickets.into_iter().flat_map(|(choices, ticket)| read(ticket, choices)).collect()
}

#[test]
fn texts_at_once_are_those_of_one_at_a_time() {
    // With windows, softcaps, norms of heads, biases and two rotary embeddings.
    for name in ["llama3", "mistral", "gemma2", "gemma3", "qwen2", "qwen3"] {
        let model = model(name);
        let engine = Engine::start(&model, LIMITS);
        let prompts = prompts(LENGTHS, 1);
        let found = texts(&engine, prompts.iter().map(|prompt| job(prompt, TOKENS)).collect());
        for (prompt, found) in prompts.iter().zip(found) {
            assert_eq!(found.tokens, alone(&model, prompt, TOKENS), "{name}, {} tokens", prompt.len());
            assert_eq!((found.end, found.reused), (Some(End::Length), Some(0)));
        }
        let metrics = engine.metrics();
        assert_eq!(metrics.preemptions.load(Relaxed), 0);
        assert_eq!(metrics.prompt_tokens.load(Relaxed), LENGTHS.iter().sum::<usize>() as u64);
        assert_eq!(metrics.generated_tokens.load(Relaxed), (LENGTHS.len() * TOKENS) as u64);
        // Twelve texts of 24 tokens are 288 steps one at a time; eight at once need fewer.
        assert!(metrics.steps.load(Relaxed) < 120, "{:?}", metrics.steps);
        engine.wait_for_idle();
    }
}

#[test]
fn sequences_without_blocks_wait_and_go_on_as_if_nothing_had_happened() {
    let model = model("llama3");
    let prompts = prompts([20; 6], 2);
    let drawn = |seed| Sampling {
        temperature: 1.0,
        top_p: 0.95,
        repetition_penalty: 1.1,
        presence_penalty: 0.2,
        frequency_penalty: 0.1,
        seed,
        ..Sampling::default()
    };
    let jobs = || -> Vec<Job> {
        let greedy = prompts.iter().map(|prompt| job(prompt, 60));
        let drawn =
            (1..).zip(&prompts).map(|(seed, prompt)| Job { sampling: drawn(seed), ..job(prompt, 60) });
        greedy.chain(drawn).collect()
    };
    let roomy = Engine::start(&model, LIMITS);
    let expected = texts(&roomy, jobs());
    assert_eq!(roomy.metrics().preemptions.load(Relaxed), 0);
    for (prompt, expected) in prompts.iter().zip(&expected) {
        assert_eq!(expected.tokens, alone(&model, prompt, 60));
    }
    // A sequence needs five blocks in the end, and eight run.
    let tight = Engine::start(&model, Limits { blocks: 12, ..LIMITS });
    let found = texts(&tight, jobs());
    assert!(tight.metrics().preemptions.load(Relaxed) > 3, "{:?}", tight.metrics().preemptions);
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!((&found.tokens, &found.end), (&expected.tokens, &expected.end));
    }
    tight.wait_for_idle();
}

#[test]
fn prompts_with_the_same_start_share_its_blocks() {
    let model = model("llama3");
    let engine = Engine::start(&model, LIMITS);
    let first = prompts([50], 3).remove(0);
    let expected = read(engine.submit(job(&first, 20)), 1).remove(0);
    assert_eq!(expected.reused, Some(0));
    // The last token runs again, for its logits.
    let again = read(engine.submit(job(&first, 20)), 1).remove(0);
    assert_eq!((again.reused, &again.tokens), (Some(48), &expected.tokens));
    let mut other = first.clone();
    other[40] ^= 1;
    let other_text = read(engine.submit(job(&other, 20)), 1).remove(0);
    assert_eq!(other_text.reused, Some(32));
    assert_eq!(other_text.tokens, alone(&model, &other, 20));
    // An answer is the start of the conversation's next prompt: 69 of its 70 tokens were computed.
    let longer = [&first[..], &expected.tokens, &[7, 8, 9]].concat();
    let longer_text = read(engine.submit(job(&longer, 20)), 1).remove(0);
    assert_eq!(longer_text.reused, Some(64));
    assert_eq!(longer_text.tokens, alone(&model, &longer, 20));
    assert_eq!(engine.metrics().reused_tokens.load(Relaxed), 48 + 32 + 64);
    engine.wait_for_idle();
}

#[test]
fn kept_blocks_make_room_for_sequences() {
    let model = model("llama3");
    let engine = Engine::start(&model, Limits { blocks: 10, ..LIMITS });
    for (index, prompt) in prompts([70; 5], 4).into_iter().enumerate() {
        let text = read(engine.submit(job(&prompt, 10)), 1).remove(0);
        assert_eq!(text.tokens, alone(&model, &prompt, 10), "{index}");
    }
    let metrics = engine.metrics();
    assert_eq!(metrics.preemptions.load(Relaxed), 0);
    engine.wait_for_idle();
    assert!(metrics.blocks_kept.load(Relaxed) > 0);
}

#[test]
fn a_prompt_asked_again_may_fill_the_cache() {
    let model = model("llama3");
    let engine = Engine::start(&model, Limits { context: 80, blocks: 5, ..LIMITS });
    // The last of its blocks is computed again each time.
    let prompt = prompts([32], 11).remove(0);
    let expected = alone(&model, &prompt, 48);
    for (tokens, reused) in [(2, 0), (48, 16), (48, 16)] {
        let text = read(engine.submit(job(&prompt, tokens)), 1).remove(0);
        assert_eq!((text.end, text.reused), (Some(End::Length), Some(reused)));
        assert_eq!(text.tokens, expected[..tokens]);
        engine.wait_for_idle();
    }
}

#[test]
fn prompts_at_once_may_be_the_same_where_the_cache_is_as_long_as_one_text() {
    let model = model("llama3");
    let engine = Engine::start(&model, Limits { context: 128, blocks: 8, ..LIMITS });
    let prompts = prompts([48, 47, 33], 12);
    for prompt in &prompts {
        let tokens = 128 - prompt.len();
        let expected = alone(&model, prompt, tokens);
        // Both begin at once, and the first ends early. The second needs all blocks then.
        let both = vec![prompt.clone(), prompt.clone()];
        let mut ticket = engine.submit(Job { prompts: both, ..job(&[], tokens) });
        let mut text = Vec::new();
        let why = loop {
            match ticket.events.blocking_recv().expect("an event") {
                Event::Token { choice: 0, .. } => ticket.end(0),
                Event::Token { token, .. } => text.push(token),
                Event::End { choice: 1, why } => break why,
                _ => {}
            }
        };
        assert_eq!((why, &text), (End::Length, &expected), "{}", prompt.len());
        engine.wait_for_idle();
        // Two requests, and one of two choices.
        let jobs = vec![job(prompt, tokens), job(prompt, tokens), Job { choices: 2, ..job(prompt, tokens) }];
        for text in texts(&engine, jobs) {
            assert_eq!((text.end, &text.tokens), (Some(End::Length), &expected), "{}", prompt.len());
        }
        engine.wait_for_idle();
    }
}

#[test]
fn prompts_wait_for_blocks_that_others_will_need() {
    let model = model("llama3");
    // A text has eight blocks in the end, so one runs at a time.
    let engine = Engine::start(&model, Limits { blocks: 12, ..LIMITS });
    let prompts = prompts([100; 6], 13);
    let found = texts(&engine, prompts.iter().map(|prompt| job(prompt, 20)).collect());
    for (prompt, found) in prompts.iter().zip(found) {
        assert_eq!(found.tokens, alone(&model, prompt, 20));
    }
    assert_eq!(engine.metrics().preemptions.load(Relaxed), 0);
    engine.wait_for_idle();
}

#[test]
fn choices_share_their_prompt_and_draw_on_their_own() {
    let model = model("llama3");
    let engine = Engine::start(&model, LIMITS);
    let prompts = prompts([45, 20], 5);
    let drawn = Sampling { temperature: 1.0, seed: 9, ..Sampling::default() };
    let jobs = |sampling| Job { prompts: prompts.clone(), choices: 3, sampling, ..job(&[], 16) };
    let greedy = read(engine.submit(jobs(Sampling::default())), 6);
    for (index, text) in greedy.iter().enumerate() {
        let prompt = &prompts[index / 3];
        assert_eq!(text.tokens, alone(&model, prompt, 16), "{index}");
        // All but the last token, whose logits are wanted, or what is left of the first's blocks.
        let reused = if index % 3 == 0 { 0 } else { prompt.len() - 1 };
        assert_eq!(text.reused, Some(reused), "{index}");
    }
    let texts = read(engine.submit(jobs(drawn)), 6);
    let again = read(engine.submit(jobs(drawn)), 6);
    let tokens = |texts: &[Text]| texts.iter().map(|text| text.tokens.clone()).collect::<Vec<_>>();
    assert_eq!(tokens(&texts), tokens(&again), "the seed decides");
    for (one, other) in [(0, 1), (1, 2), (3, 4), (4, 5)] {
        assert_ne!(texts[one].tokens, texts[other].tokens);
    }
    let other = read(engine.submit(jobs(Sampling { seed: 100, ..drawn })), 6);
    assert_ne!(tokens(&texts), tokens(&other));
    engine.wait_for_idle();
}

#[test]
fn probabilities_are_those_of_the_logits() {
    let model = model("llama3");
    let engine = Engine::start(&model, LIMITS);
    let prompt = prompts([19], 6).remove(0);
    let sampling = Sampling { temperature: 0.7, repetition_penalty: 1.3, seed: 3, ..Sampling::default() };
    // Others that run beside it and don't ask.
    let beside: Vec<_> = prompts([30, 7], 7).iter().map(|prompt| engine.submit(job(prompt, 30))).collect();
    let text = read(engine.submit(Job { chances: Some(4), sampling, ..job(&prompt, 12) }), 1).remove(0);
    beside.into_iter().for_each(|ticket| assert!(read(ticket, 1)[0].chances.is_empty()));
    // Without others' probabilities, and with more than there are tokens.
    for (count, best) in [(0, 0), (99, 64)] {
        let text = read(engine.submit(Job { chances: Some(count), ..job(&prompt, 3) }), 1).remove(0);
        assert_eq!(text.chances.iter().map(|chances| chances.best.len()).collect::<Vec<_>>(), [best; 3]);
    }
    assert_eq!(text.chances.len(), 12);
    let mut cache = Cache::new(&model, 64).expect("a cache");
    let all = [&prompt[..], &text.tokens].concat();
    let logits = model.forward(&all, &mut cache, Logits::All).expect("logits");
    let logits: Vec<f32> = logits.into_data().to_vec().expect("f32");
    for (index, (token, chances)) in text.tokens.iter().zip(&text.chances).enumerate() {
        let row = &logits[(prompt.len() + index - 1) * 64..][..64];
        let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        let chance = |id: u32| f64::from(row[id as usize]) - sum.ln();
        // Two ways to the same logits differ by up to 1e-4, and so do the logarithms, twice.
        let near = |found: f32, id: u32| (f64::from(found) - chance(id)).abs() < 2e-4;
        assert!(near(chances.drawn, *token));
        assert_eq!(chances.best.len(), 4);
        assert!(chances.best.iter().all(|&(id, found)| near(found, id)));
        assert!(chances.best.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        let better = (0..64).filter(|&id| chance(id) > f64::from(chances.best[3].1) + 4e-4).count();
        assert!(better <= 3, "{better}");
    }
}

#[test]
fn probabilities_of_many_rows_are_those_of_one() {
    let model = model("llama3");
    // More rows than are sorted at once.
    let many = Engine::start(&model, Limits { rows: 40, step: 40, blocks: 160, ..LIMITS });
    let one = Engine::start(&model, LIMITS);
    let prompts = prompts([6; 40], 14);
    let asking = |prompt: &Vec<u32>| Job { chances: Some(2), ..job(prompt, 20) };
    let found = texts(&many, prompts.iter().map(asking).collect());
    for (prompt, found) in prompts.iter().zip(found) {
        let alone = read(one.submit(asking(prompt)), 1).remove(0);
        assert_eq!((found.tokens.len(), &found.tokens), (20, &alone.tokens));
        for (found, alone) in found.chances.iter().zip(&alone.chances) {
            let all = |chances: &Chances| {
                [chances.drawn].into_iter().chain(chances.best.iter().map(|best| best.1)).collect::<Vec<_>>()
            };
            // Two ways to the same logits differ by up to 1e-4, and so do the logarithms.
            let mut pairs = all(found).into_iter().zip(all(alone));
            assert!(pairs.all(|(a, b)| (a - b).abs() < 2e-4), "{found:?} {alone:?}");
            assert_eq!(found.best[0].0, alone.best[0].0);
        }
    }
}

#[test]
fn a_stop_token_ends_a_text_and_is_no_part_of_it() {
    let model = model("llama3");
    let engine = Engine::start(&model, LIMITS);
    let prompt = prompts([9], 8).remove(0);
    let whole = alone(&model, &prompt, 30);
    let stop = *whole.last().expect("tokens");
    let before = whole.iter().position(|&token| token == stop).expect("it is there");
    let text = read(engine.submit(Job { stop: vec![0, stop], ..job(&prompt, 30) }), 1).remove(0);
    assert_eq!((&text.tokens[..], text.end), (&whole[..before], Some(End::Stop)));
}
