//! A measurement: many requests at once, in process and over HTTP.

use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn_rocm::fused::decode::Sampling;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::engine::{Event, Handle, Job};
use super::http::{Server, Serving, router, serve};
use crate::error::{Error, Result};
use crate::program::random_prompt;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// The requests, all at once.
    requests: usize,
    /// The tokens of each prompt, which no other shares.
    prompt: usize,
    /// The tokens of each answer.
    output: usize,
}

/// The most requests. Request `i` of a round has the round's first seed plus `i`, and the rounds' first
/// seeds are 2^20 apart.
const MOST_REQUESTS: usize = 1 << 20;

impl Shape {
    /// The requests, all of which wait at once.
    pub(super) fn requests(&self) -> usize {
        self.requests
    }

    /// Fails if prompt and answer are longer than a sequence may be. `limit`: the most tokens of one.
    pub(super) fn check(&self, limit: usize) -> Result<()> {
        let Self { prompt, output: answer, .. } = *self;
        if prompt.saturating_add(answer) > limit {
            return Err(Error::TooLong { prompt, answer, limit });
        }
        Ok(())
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut shape = Self { requests: 64, prompt: 512, output: 256 };
        for part in text.split(',') {
            let number = |text: &str| text.parse().ok().filter(|&number| number > 0);
            let (place, text) = match part.split_once('=') {
                Some(("requests", text)) => (&mut shape.requests, text),
                Some(("prompt", text)) => (&mut shape.prompt, text),
                Some(("output", text)) => (&mut shape.output, text),
                _ => return Err(format!("expected requests=N, prompt=N or output=N, found {part}")),
            };
            *place = number(text).ok_or_else(|| format!("expected a number above 0, found {text}"))?;
        }
        if shape.requests > MOST_REQUESTS {
            return Err(format!("expected at most {MOST_REQUESTS} requests, found {}", shape.requests));
        }
        Ok(shape)
    }
}

/// How often each way is measured, one after the other: other programs may take a machine's time.
const ROUNDS: u64 = 2;

/// An answer as its client saw it.
struct Answer {
    /// The tokens.
    tokens: usize,
    /// When each piece came: a token in process, and over HTTP a text, which may be of several tokens
    /// that make one character.
    times: Vec<Instant>,
}

/// Measures and prints.
pub(super) async fn run(shape: Shape, server: Server, serving: Serving) -> Result<()> {
    let engine = server.engine.clone();
    let vocabulary = engine.vocabulary();
    let prompts = |seed: u64| -> Vec<Vec<u32>> {
        let prompt = |index: usize| random_prompt(shape.prompt, vocabulary, seed + index as u64);
        (0..shape.requests).map(prompt).collect()
    };
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(Error::server)?;
    let address = listener.local_addr().map_err(Error::server)?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let key = server.key.clone();
    let served = tokio::spawn(serve(listener, router(Arc::new(server)), serving, async {
        let _ = stopped.await;
    }));
    // Kernels are compiled and memory is allocated at the first use.
    in_process(&engine, prompts(1 << 20), shape.output).await?;
    let mut best = [0f64; 2];
    for round in 1..=ROUNDS {
        let start = Instant::now();
        let answers = in_process(&engine, prompts((2 * round) << 20), shape.output).await?;
        best[0] = report("in process", shape, start, &answers).max(best[0]);

        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for (index, prompt) in prompts((2 * round + 1) << 20).into_iter().enumerate() {
            let body = json!({
                "prompt": prompt, "max_tokens": shape.output, "temperature": 0, "seed": index, "stream": true,
                "stream_options": {"include_usage": true},
            });
            tasks.spawn(over_http(address, body.to_string(), key.clone()));
        }
        let answers = tasks.join_all().await.into_iter().collect::<io::Result<Vec<_>>>();
        best[1] = report("over HTTP", shape, start, &answers.map_err(Error::server)?).max(best[1]);
    }
    println!("HTTP / in process: {:.3} of the tokens a second, by the faster of {ROUNDS}", best[1] / best[0]);
    drop(stop);
    served.await.map_err(Error::server)
}

async fn in_process(engine: &Handle, prompts: Vec<Vec<u32>>, tokens: usize) -> Result<Vec<Answer>> {
    let mut tasks = JoinSet::new();
    for prompt in prompts {
        let job = Job {
            prompts: vec![prompt],
            choices: 1,
            tokens,
            sampling: Sampling::default(),
            stop: Vec::new(),
            chances: None,
        };
        let mut ticket = engine.submit(job).map_err(Error::server)?;
        tasks.spawn(async move {
            let mut times = Vec::with_capacity(tokens);
            while let Some(event) = ticket.events.recv().await {
                match event {
                    Event::Token { .. } => times.push(Instant::now()),
                    Event::End { .. } => return Ok(Answer { tokens: times.len(), times }),
                    Event::Begun { .. } => {}
                }
            }
            Err(Error::server("the engine has stopped"))
        });
    }
    tasks.join_all().await.into_iter().collect()
}

/// Sends a request, and notes when each piece comes. The last one has the number of tokens.
async fn over_http(address: SocketAddr, body: String, key: Option<String>) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(address).await?;
    let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n{key}\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    let mut lines = BufReader::new(stream).lines();
    let status = lines.next_line().await?.unwrap_or_default();
    if !status.contains(" 200 ") {
        return Err(io::Error::other(status));
    }
    let (mut tokens, mut times) = (0, Vec::new());
    while let Some(line) = lines.next_line().await? {
        // Each piece is a chunk of its own, so a line of it is whole.
        match line.strip_prefix("data: ") {
            Some("[DONE]") => return Ok(Answer { tokens, times }),
            Some(piece) if piece.contains("\"finish_reason\":null") => times.push(Instant::now()),
            Some(piece) if piece.contains("\"completion_tokens\":") => {
                let piece: Value = serde_json::from_str(piece)?;
                tokens = piece["usage"]["completion_tokens"].as_u64().unwrap_or(0) as usize;
            }
            _ => {}
        }
    }
    Err(io::Error::other("the answer ended early"))
}

/// Prints what was measured, and returns the tokens a second.
fn report(what: &str, shape: Shape, start: Instant, answers: &[Answer]) -> f64 {
    let times = || answers.iter().map(|answer| &answer.times);
    let end = times().filter_map(|times| times.last()).max().copied().unwrap_or(start);
    let tokens: usize = answers.iter().map(|answer| answer.tokens).sum();
    let rate = tokens as f64 / (end - start).as_secs_f64();
    let mut between: Vec<Duration> =
        times().flat_map(|times| times.windows(2).map(|pair| pair[1] - pair[0])).collect();
    let mut first: Vec<Duration> = times().filter_map(|times| Some(*times.first()? - start)).collect();
    let Shape { requests, prompt, output } = shape;
    println!(
        "{what}: {requests} requests, prompts of {prompt} tokens, {output} tokens each: {tokens} tokens in \
         {:.3} s, {rate:.1} tokens/s; time to the first token {}, between tokens {}",
        (end - start).as_secs_f64(),
        quantiles(&mut first),
        quantiles(&mut between),
    );
    rate
}

/// The median and the 99th percentile.
fn quantiles(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |part: f64| {
        let index = (times.len() as f64 * part) as usize;
        times.get(index.min(times.len().saturating_sub(1))).copied().unwrap_or_default().as_secs_f64() * 1e3
    };
    format!("median {:.2} ms, 99 % within {:.2} ms", at(0.5), at(0.99))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read() {
        let shape = |text: &str| text.parse::<Shape>();
        assert_eq!(shape("requests=3"), Ok(Shape { requests: 3, prompt: 512, output: 256 }));
        assert_eq!(shape("output=1,prompt=2,requests=3"), Ok(Shape { requests: 3, prompt: 2, output: 1 }));
        assert_eq!(shape("output=0"), Err("expected a number above 0, found 0".to_owned()));
        assert!(shape("").is_err() && shape("tokens=1").is_err());
        assert!(shape("requests=1048576").is_ok());
        let found = Err("expected at most 1048576 requests, found 1048577".to_owned());
        assert_eq!(shape("requests=1048577"), found);
    }
}
