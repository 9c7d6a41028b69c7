//! What the engine refuses, and what readers and hang-ups do to others.

use std::sync::atomic::Ordering::Relaxed;

use burn_rocm::fused::decode::{CacheType, Sampling};
use burn_rocm_llama::serve::engine::{self, Job, Limits, Refusal};

use crate::support::{Engine, LIMITS, alone, job, model, prompts, read, wait_until};

#[test]
fn jobs_that_cannot_run_are_refused() {
    let model = model("llama3");
    let engine = Engine::start(&model, Limits { waiting: 3, ..LIMITS });
    let refused = |job: Job| engine.handle().submit(job).expect_err("a refusal");
    assert_eq!(refused(job(&[5; 100], 29)), Refusal::TooLong { prompt: 100, answer: 29, limit: 128 });
    assert_eq!(
        refused(job(&[5], usize::MAX)),
        Refusal::TooLong { prompt: 1, answer: usize::MAX, limit: 128 }
    );
    let invalid = |job: Job, text: &str| match refused(job) {
        Refusal::Invalid(found) => assert!(found.contains(text), "{found}"),
        other => panic!("{other:?}"),
    };
    invalid(job(&[], 4), "expected prompts with tokens");
    invalid(job(&[5], 0), "at least 1 token to generate");
    invalid(Job { choices: 0, ..job(&[5], 4) }, "expected prompts");
    invalid(job(&[64], 4), "expected token ids below 64, found 64");
    let sampling = Sampling { temperature: f64::NAN, ..Sampling::default() };
    invalid(Job { sampling, ..job(&[5], 4) }, "temperature");
    // More at once than may wait at all.
    invalid(Job { choices: 4, ..job(&[5], 4) }, "at most 3 texts at once, found 1 prompts with 4 choices");
    // The whole context.
    assert_eq!(read(engine.submit(job(&[5; 100], 28)), 1)[0].tokens, alone(&model, &[5; 100], 28));
    engine.wait_for_idle();
}

#[test]
fn limits_that_make_no_sense_are_refused() {
    let model = model("llama3");
    for (limits, text) in [
        (Limits { rows: 0, ..LIMITS }, "sequences: expected at least 1, found 0"),
        (Limits { rows: 8193, step: 8193, ..LIMITS }, "sequences: expected at most 8192, found 8193"),
        (Limits { step: 7, ..LIMITS }, "step-tokens: expected at least one for each of 8 sequences, found 7"),
        (Limits { context: 129, ..LIMITS }, "context: expected 2 to 128 tokens"),
        (Limits { blocks: 4, ..LIMITS }, "context: expected 2 to 64 tokens"),
        (Limits { context: 1, ..LIMITS }, "found 1"),
    ] {
        let error = engine::start(model.clone(), limits, CacheType::F32).expect_err("a refusal").to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn a_dropped_ticket_frees_blocks_wherever_its_sequences_are() {
    let model = model("llama3");
    let engine = Engine::start(&model, Limits { rows: 2, step: 16, ..LIMITS });
    // Two run, and the others wait.
    let mut tickets: Vec<_> =
        prompts([60; 6], 1).iter().map(|prompt| engine.submit(job(prompt, 60))).collect();
    let metrics = engine.metrics();
    wait_until("two that run", || metrics.running.load(Relaxed) == 2 && metrics.waiting.load(Relaxed) == 4);
    drop(tickets.pop());
    wait_until("a waiting one is gone", || metrics.waiting.load(Relaxed) < 4);
    drop(tickets);
    engine.wait_for_idle();
    assert_eq!(metrics.cancelled.load(Relaxed), 6);
    assert!(metrics.generated_tokens.load(Relaxed) < 6 * 60);
    // One choice of several.
    let prompt = prompts([20], 2).remove(0);
    let ticket = engine.submit(Job { choices: 2, ..job(&prompt, 100) });
    ticket.end(1);
    let mut ticket = ticket;
    let mut ends = Vec::new();
    while ends.is_empty() {
        if let engine::Event::End { choice, .. } = ticket.events.blocking_recv().expect("an event") {
            ends.push(choice);
        }
    }
    assert_eq!(ends, [0]);
    drop(ticket);
    engine.wait_for_idle();
    // One choice ended by itself, and the other had its whole text.
    assert_eq!(metrics.cancelled.load(Relaxed), 6);
    // The rows are free again.
    assert_eq!(read(engine.submit(job(&prompt, 10)), 1)[0].tokens, alone(&model, &prompt, 10));
}

#[test]
fn a_reader_that_takes_nothing_stops_nobody() {
    let model = model("llama3");
    let engine = Engine::start(&model, Limits { rows: 2, ..LIMITS });
    let prompts = prompts([10, 10, 10, 10], 3);
    let slow = engine.submit(job(&prompts[0], 100));
    for prompt in &prompts[1..] {
        assert_eq!(read(engine.submit(job(prompt, 100)), 1)[0].tokens, alone(&model, prompt, 100));
    }
    // Its text is complete too, and waits for it.
    wait_until("the end of all", || engine.metrics().running.load(Relaxed) == 0);
    assert_eq!(read(slow, 1)[0].tokens, alone(&model, &prompts[0], 100));
}

#[test]
fn more_than_may_wait_are_refused_until_others_run() {
    let model = model("llama3");
    let engine = Engine::start(&model, Limits { rows: 1, waiting: 2, ..LIMITS });
    let prompt = prompts([30], 4).remove(0);
    let first = engine.submit(job(&prompt, 90));
    wait_until("the first to run", || engine.metrics().running.load(Relaxed) == 1);
    let others = [engine.submit(job(&prompt, 5)), engine.submit(job(&prompt, 5))];
    let refused = engine.handle().submit(job(&prompt, 5)).expect_err("a refusal");
    assert_eq!(refused, Refusal::Busy { waiting: 2, limit: 2 });
    drop(first);
    others.into_iter().for_each(|ticket| assert_eq!(read(ticket, 1)[0].tokens.len(), 5));
    assert_eq!(read(engine.submit(job(&prompt, 5)), 1)[0].tokens.len(), 5);
}
