//! The program: options, and the way it ends.

use std::env::VarError;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use tokio::net::TcpListener;

use super::api::Defaults;
use super::bench::{self, Shape};
use super::engine::{self, Handle, Limits};
use super::http::{Server, Serving, router, serve};
use super::text::Vocabulary;
use crate::config::{Config, Generation};
use crate::error::{Error, Result};
use crate::model::PIECE;
use crate::program::{ModelArguments, Opened, Passes, Texts, at_least_1, exit_of, load, open, room};
use crate::rng::Rng;
use crate::sample::Sampling;
use crate::text::Chat;

/// The tokens of a block of the cache.
const BLOCK: usize = burn_rocm_nn::language::BLOCK;
/// The tokens of a sequence if neither the user nor the model says less.
const CONTEXT: usize = 8192;

/// Serves a language model over HTTP, as OpenAI's API does: /v1/completions, /v1/chat/completions,
/// /v1/models, /health and /metrics.
#[derive(Debug, Parser)]
#[command(name = "llama-serve")]
struct Arguments {
    #[command(flatten)]
    of: ModelArguments,
    /// The address to listen at. Others than 127.0.0.1 and ::1 let other machines connect.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// The port to listen at; 0: any that is free.
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// The model's name in requests and answers. [default: the folder's or file's name]
    #[arg(long)]
    name: Option<String>,
    /// The key that requests must send as `Authorization: Bearer KEY`. Other users of the machine
    /// see options, but not the environment. [default: the variable LLAMA_API_KEY; without it, no
    /// key]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// The most sequences that run at once, up to 8192.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_1)]
    sequences: usize,
    /// The most sequences that wait to run. A request gets the status 429 while others take the
    /// room, and 400 if it asks for more than this by itself.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_1)]
    waiting: usize,
    /// The most tokens of a sequence, prompt and answer. [default: 8192, or the model's limit]
    #[arg(long, value_name = "N", value_parser = at_least_1)]
    context: Option<usize>,
    /// The tokens that the cache of all sequences has room for. [default: what fits, up to
    /// --sequences times --context]
    #[arg(long, value_name = "N", value_parser = at_least_1)]
    cache_tokens: Option<usize>,
    /// The most tokens of one step of the model: a token of each running answer, and pieces of
    /// prompts. At least --sequences.
    #[arg(long, value_name = "N", default_value_t = PIECE, value_parser = at_least_1)]
    step_tokens: usize,
    /// The most connections.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = at_least_1)]
    connections: usize,
    /// The most bytes of a request's body.
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20, value_parser = at_least_1)]
    body_limit: usize,
    /// Seconds that an answer may take, waiting included.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Seconds that a client may take to send a request's head or body, or to take a piece of an
    /// answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    idle: u64,
    /// Seconds that running answers have after SIGINT or SIGTERM. A second one ends them at once.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    grace: u64,
    /// Measure instead of serving: requests with prompts of random tokens, all at once, in process
    /// and then over HTTP.
    #[arg(long, value_name = "requests=N,prompt=N,output=N")]
    bench: Option<Shape>,
}

/// The chat template of a model with random weights.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";
/// The name of the threads that run connections.
const TASKS: &str = "connections";
/// The environment's variable with the key.
const KEY: &str = "LLAMA_API_KEY";

/// Parses the arguments and runs the program. An error is printed as its text alone.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    exit_of(|| run(&arguments))
}

fn run(arguments: &Arguments) -> Result<()> {
    let key = key(arguments.api_key.clone(), std::env::var(KEY))?;
    arguments.of.select()?;
    let Opened { config, source, generation, tokens, mut chat } = open(&arguments.of, Texts::Chat)?;
    if arguments.of.model.is_none() {
        chat = Some(Chat::new(TEMPLATE.to_owned(), Default::default())?);
    }
    let defaults = defaults(&arguments.of, &generation)?;
    let rows = arguments.sequences;
    // Requests may ask for the most likely tokens of every row.
    let others = engine::largest_bytes(rows, config.vocabulary);
    let passes = Passes { tokens: arguments.step_tokens.max(rows), rows, others };
    let limits = limits(arguments, &config, || room(&arguments.of, &config, source.as_ref(), passes))?;
    let address = SocketAddr::new(arguments.host, arguments.port);
    if arguments.bench.is_none() {
        // A port that is taken is an error before the model is loaded, which may take minutes. Nobody
        // can connect before it is loaded, so this listener is dropped.
        drop(std::net::TcpListener::bind(address).map_err(|why| unheard(address, &why))?);
    }
    let sized = (limits.blocks * BLOCK, passes);
    let model = Arc::new(load(&arguments.of, &config, source.as_ref(), sized, None)?);
    drop(source);
    eprintln!(
        "{} sequences of up to {} tokens at once, in {} blocks of {BLOCK} tokens",
        limits.rows, limits.context, limits.blocks
    );
    let (engine, thread) = engine::start(model.clone(), limits, arguments.of.stored(model.dtype()))?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let server = |engine: Handle| Server {
        engine,
        vocabulary: Vocabulary(tokens),
        chat,
        // A measurement generates as many tokens as it says.
        stop: if arguments.bench.is_some() { Vec::new() } else { generation.stop.clone() },
        defaults,
        model: name(arguments),
        created: since.as_secs(),
        key,
        local: arguments.host.is_loopback(),
        body: arguments.body_limit,
        slow: Duration::from_secs(arguments.idle),
        timeout: Duration::from_secs(arguments.timeout),
        seeds: Mutex::new(Rng::new(since.as_nanos() as u64)),
    };
    let serving = Serving {
        connections: arguments.connections,
        idle: Duration::from_secs(arguments.idle),
        grace: Duration::from_secs(arguments.grace),
    };
    report_panics();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).thread_name(TASKS).enable_all().build().map_err(Error::server)?;
    let watched = engine.clone();
    let failed = async move {
        // The engine ends early only with an error, which is told below.
        while watched.is_alive() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let served = runtime.block_on(async {
        if let Some(shape) = arguments.bench {
            return bench::run(shape, server(engine), serving).await;
        }
        let listener = TcpListener::bind(address).await.map_err(|why| unheard(address, &why))?;
        let server = Arc::new(server(engine));
        if server.key.is_none() && !server.local {
            eprintln!("note: other machines can use this server, and it asks for no key (--api-key)");
        }
        eprintln!("{} at http://{}/v1", server.model, listener.local_addr().map_err(Error::server)?);
        let (stopping, stopped) = tokio::sync::oneshot::channel::<()>();
        let stop = async move {
            tokio::select! {
                () = signal() => eprintln!("stopping: running answers have {} s", serving.grace.as_secs()),
                () = failed => {}
            }
            drop(stopping);
        };
        let again = async {
            let _ = stopped.await;
            signal().await;
        };
        tokio::select! {
            () = serve(listener, router(server), serving, stop) => {}
            // Its tasks end with it.
            () = again => eprintln!("stopping at once"),
        }
        Ok(())
    });
    // Ends the tasks that hold tickets, and so the engine.
    runtime.shutdown_timeout(Duration::from_secs(1));
    served?;
    thread.join().unwrap_or(Ok(()))
}

/// What counts if a request says nothing. Numbers out of range are an error here. Otherwise the
/// server would start, and refuse every request that leaves them unset.
fn defaults(of: &ModelArguments, generation: &Generation) -> Result<Defaults> {
    Sampling::recommended(generation).check().map_err(|why| match why {
        Error::Argument { name, expected, found } => {
            // GGUF files recommend nothing.
            let path = of.model.clone().unwrap_or_default().join("generation_config.json");
            Error::Field { path, field: name.replace('-', "_"), expected, found }
        }
        other => other,
    })?;
    Ok(Defaults::new(generation))
}

/// The error of a server that can't listen.
fn unheard(address: SocketAddr, why: &std::io::Error) -> Error {
    let (name, expected) = match why.kind() {
        ErrorKind::AddrInUse => ("port", "a port that no other program uses"),
        ErrorKind::PermissionDenied => {
            ("port", "a port at which this user may listen, such as one from 1024 on")
        }
        _ => ("host", "an address of this machine"),
    };
    Error::Argument { name, expected: expected.to_owned(), found: format!("{address}: {why}") }
}

/// Prints a line for each panic of a task: its connection ends without a word. Panics of other
/// threads are errors of the program.
fn report_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() == Some(TASKS) {
            eprintln!("error: a connection's task has failed: {}", panic.to_string().replace('\n', " "));
        }
        before(panic);
    }));
}

/// The key of the option, or else of the environment.
fn key(option: Option<String>, variable: std::result::Result<String, VarError>) -> Result<Option<String>> {
    let wrong = |name, found: &str| {
        Err(Error::Argument { name, expected: "a key".to_owned(), found: found.to_owned() })
    };
    match (option, variable) {
        (Some(key), _) if key.is_empty() => wrong("api-key", "an empty text"),
        (Some(key), _) => Ok(Some(key)),
        (None, Ok(key)) if key.is_empty() => wrong(KEY, "an empty text"),
        (None, Ok(key)) => Ok(Some(key)),
        // Without an error, the server would have no key.
        (None, Err(VarError::NotUnicode(_))) => wrong(KEY, "a text that is not UTF-8"),
        (None, Err(VarError::NotPresent)) => Ok(None),
    }
}

/// The sizes of the engine. `room`: the tokens that fit in the device's memory.
fn limits(arguments: &Arguments, config: &Config, room: impl FnOnce() -> Result<usize>) -> Result<Limits> {
    let &Arguments { sequences: rows, waiting, step_tokens, bench, .. } = arguments;
    // All requests of a measurement come at once.
    let waiting = bench.map_or(waiting, |shape| shape.requests().max(waiting));
    let wanted = arguments.context.unwrap_or(CONTEXT.min(config.context));
    let tokens = match arguments.cache_tokens {
        Some(tokens) => tokens,
        None => rows.saturating_mul(wanted.div_ceil(BLOCK)).saturating_mul(BLOCK).min(room()?),
    };
    let blocks = tokens / BLOCK;
    if blocks == 0 {
        let expected = format!("room for a block of {BLOCK} tokens");
        let found = match arguments.cache_tokens {
            Some(tokens) => format!("{tokens} tokens"),
            None => {
                "too little free memory beside the weights: lower --sequences or --step-tokens".to_owned()
            }
        };
        return Err(Error::Argument { name: "cache-tokens", expected, found });
    }
    // What the user asks for and doesn't fit is an error, what nobody asked for is not.
    let context = arguments.context.unwrap_or(wanted.min(blocks * BLOCK));
    let limits = Limits { rows, step: step_tokens.max(rows), context, blocks, waiting };
    // Before anything is loaded.
    limits.check(config.context)?;
    if let Some(shape) = bench {
        shape.check(limits.context)?;
    }
    Ok(limits)
}

fn name(arguments: &Arguments) -> String {
    let of_file = || {
        let path = arguments.of.model.as_ref()?;
        let path = path.canonicalize().unwrap_or_else(|_| path.clone());
        Some(path.file_stem().filter(|_| path.is_file()).or(path.file_name())?.to_string_lossy().into_owned())
    };
    arguments.name.clone().or_else(of_file).unwrap_or_else(|| "random".to_owned())
}

/// Waits for SIGINT or SIGTERM.
async fn signal() {
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminated = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<()>();
    tokio::select! {
        () = interrupted => {}
        () = terminated => {}
    }
}
