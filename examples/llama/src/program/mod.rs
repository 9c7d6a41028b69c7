//! The program: options, messages, and the way it ends.

mod arguments;
mod bench;
mod devices;
mod models;
mod open;

use std::io::{self, BufRead, IsTerminal, Write};
use std::ops::ControlFlow;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use burn_rocm::Communicator;
use clap::Parser;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::generate::{Options, Session, Timing};
use crate::model::{Cache, Model, PIECE};
use crate::ranks::{self, followers};
use crate::text::{Chat, Message, Stream, Tokens};
use arguments::Arguments;
pub use arguments::RandomModel;
pub(crate) use arguments::{ModelArguments, Precision, Provider, Rounded, at_least_1, device};
pub(crate) use models::random_prompt;
pub(crate) use open::{Opened, Passes, Texts, load, open, open_model, room, size};

/// The most tokens to generate if the user does not say.
const TOKENS: usize = 256;
/// The standard input, as errors name it.
const INPUT: &str = "the standard input";
/// Room for a conversation if neither the user nor the model says less.
const CONVERSATION: usize = 4096;

/// Parses the arguments and runs the program. An error is printed as its text alone.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    exit_of(|| run(&arguments))
}

/// Runs a program. An error is printed as its text alone.
pub(crate) fn exit_of(run: impl FnOnce() -> Result<()>) -> ExitCode {
    // A device that fails in the middle of an op panics with the error's text, which is all a user
    // wants to see. RUST_BACKTRACE shows the rest.
    if std::env::var_os("RUST_BACKTRACE").is_none() {
        panic::set_hook(Box::new(|_| {}));
    }
    let text = match panic::catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        // The reader of a pipe, such as `head`, has seen enough.
        Ok(Err(Error::Output(why))) if why.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
        Ok(Err(error)) => error.to_string(),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().cloned();
            text.or_else(|| payload.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default()
        }
    };
    eprintln!("error: {text}");
    ExitCode::FAILURE
}

/// What the model is asked.
enum Task {
    /// One prompt.
    Tokens(Vec<u32>),
    /// A conversation.
    Chat(Box<Chat>),
}

fn run(arguments: &Arguments) -> Result<()> {
    let texts = match arguments {
        Arguments { bench: true, .. } => Texts::None,
        Arguments { chat: true, .. } => Texts::Chat,
        _ => Texts::Tokens,
    };
    let opened = open(&arguments.of, texts)?;
    if arguments.bench {
        return bench::run(arguments, opened);
    }
    let Opened { config, source, generation, tokens, chat } = opened;
    let mut options = Options {
        tokens: arguments.tokens.unwrap_or(TOKENS),
        sampling: arguments.sampling(&generation),
        stop: generation.stop.clone(),
    };
    options.sampling.check()?;
    if options.sampling.temperature == 0.0 && arguments.filters() {
        eprintln!(
            "note: the most likely token is always taken: --top-k, --top-p and --min-p need a --temperature above 0"
        );
    }
    let task = task(arguments, tokens.as_ref(), chat, &config)?;
    if let (Task::Tokens(prompt), None) = (&task, arguments.tokens) {
        // At least one, so that a prompt without room for it is an error.
        let room = arguments.context.unwrap_or(config.context).saturating_sub(prompt.len());
        options.tokens = options.tokens.min(room).max(1);
    }
    let context = match (&task, arguments.context) {
        (_, Some(context)) => context,
        (Task::Chat(_), None) => CONVERSATION.min(config.context),
        (Task::Tokens(prompt), None) => {
            let (prompt, answer) = (prompt.len(), options.tokens);
            let both = prompt.saturating_add(answer);
            if both > config.context {
                return Err(Error::TooLong { prompt, answer, limit: config.context });
            }
            both
        }
    };
    check_context(context, &config)?;
    if let Task::Tokens(prompt) = &task {
        check_prompt(prompt, options.tokens, context, config.vocabulary)?;
    }
    let (followers, commands) = followers(arguments.devices - 1);
    let load = |ranks: Option<&Communicator>| -> Result<(Model, Cache)> {
        let sized = (context, Passes { tokens: PIECE, rows: 1, others: 0 });
        let model = open::load(&arguments.of, &config, source.as_ref(), sized, ranks)?;
        let cache = Cache::stored(&model, context, arguments.of.stored(model.dtype()))?;
        Ok((model, cache))
    };
    let commands: Vec<_> = commands.into_iter().map(Mutex::new).collect();
    let follow = |ranks: &Communicator| {
        let (model, cache) = load(Some(ranks))?;
        // Nobody else takes the lock of a rank, so it is not poisoned.
        let commands = commands[ranks.rank() - 1].lock().unwrap_or_else(PoisonError::into_inner);
        ranks::follow(&model, cache, &commands)
    };
    devices::on_each(arguments, follow, |ranks| {
        let (model, cache) = load(ranks)?;
        let session = Session::with_cache(&model, cache, arguments.of.seed)?.leading(followers);
        converse_or_continue(arguments, session, task, tokens.as_ref(), context, &options)
    })
}

/// Generates what the task asks for.
fn converse_or_continue(
    arguments: &Arguments,
    mut session: Session<'_>,
    task: Task,
    tokens: Option<&Tokens>,
    context: usize,
    options: &Options,
) -> Result<()> {
    let mut answer = |prompt: &[u32], options: &Options| -> Result<String> {
        let (text, timing) = match tokens {
            Some(tokens) => write(&mut session, prompt, options, tokens)?,
            None => (String::new(), write_ids(&mut session, prompt, options)?),
        };
        report(&timing, session.step().not_captured());
        Ok(text)
    };
    match task {
        Task::Tokens(prompt) => answer(&prompt, options).map(|_| ()),
        Task::Chat(chat) => {
            let Some(tokens) = tokens else { return Ok(()) };
            converse(arguments, &chat, tokens, context, options, &mut answer)
        }
    }
}

/// Refuses, before anything is loaded, a cache that the model was not made for.
fn check_context(context: usize, config: &Config) -> Result<()> {
    if context <= config.context {
        return Ok(());
    }
    let expected = format!("1 to {} tokens, for which the model was made", config.context);
    Err(Error::Argument { name: "context", expected, found: context.to_string() })
}

/// Refuses, before anything is loaded, a prompt that leaves no room for the answer.
fn check_prompt(prompt: &[u32], answer: usize, limit: usize, vocabulary: usize) -> Result<()> {
    if let Some(&token) = prompt.iter().find(|&&token| token as usize >= vocabulary) {
        return Err(Error::Token { token, vocabulary });
    }
    // The last token of an answer need not be in the cache.
    if prompt.len().saturating_add(answer) > limit.saturating_add(1) {
        return Err(Error::TooLong { prompt: prompt.len(), answer, limit });
    }
    Ok(())
}

fn task(arguments: &Arguments, tokens: Option<&Tokens>, chat: Option<Chat>, config: &Config) -> Result<Task> {
    if let Some(prompt) = arguments.prompt_tokens {
        // Before the ids are drawn, which may take more memory than there is.
        if prompt > config.context {
            let answer = arguments.tokens.unwrap_or(1);
            return Err(Error::TooLong { prompt, answer, limit: config.context });
        }
        return Ok(Task::Tokens(random_prompt(prompt, config.vocabulary, arguments.of.seed)));
    }
    if arguments.chat {
        return chat.map(|chat| Task::Chat(Box::new(chat))).ok_or_else(|| {
            let reason = "--chat: expected chat_template.jinja, or `chat_template` in \
                          tokenizer_config.json or GGUF's metadata, found none";
            Error::file(arguments.of.model.clone().unwrap_or_default(), reason)
        });
    }
    let prompt = match (tokens, &arguments.prompt) {
        (Some(tokens), Some(text)) => tokens.encode(text, true)?,
        (Some(tokens), None) => {
            let mut text = String::new();
            if io::stdin().is_terminal() {
                eprintln!("the prompt, ended by Ctrl-D:");
            }
            io::Read::read_to_string(&mut io::stdin(), &mut text).map_err(|why| Error::file(INPUT, why))?;
            tokens.encode(&text, true)?
        }
        // Random weights: a byte is a token.
        (None, text) => text.as_deref().unwrap_or("Once upon a time").bytes().map(u32::from).collect(),
    };
    if prompt.is_empty() {
        let (expected, found) = ("at least 1 token".to_owned(), "none".to_owned());
        return Err(Error::Argument { name: "prompt", expected, found });
    }
    Ok(Task::Tokens(prompt))
}

/// Answers `--prompt`, or each line of the standard input.
fn converse(
    arguments: &Arguments,
    chat: &Chat,
    tokens: &Tokens,
    context: usize,
    options: &Options,
    answer: &mut dyn FnMut(&[u32], &Options) -> Result<String>,
) -> Result<()> {
    let mut messages: Vec<_> =
        arguments.system.iter().map(|text| Message::new("system", text.as_str())).collect();
    let mut reply = |messages: &mut Vec<Message>, text: &str| {
        messages.push(Message::new("user", text));
        let prompt = tokens.encode(&chat.render(messages, true)?, false)?;
        let room = (context + 1).saturating_sub(prompt.len());
        if room == 0 {
            messages.pop();
            return Err(Error::TooLong { prompt: prompt.len(), answer: 1, limit: context });
        }
        let options = Options { tokens: options.tokens.min(room), ..options.clone() };
        let text = answer(&prompt, &options)?;
        messages.push(Message::new("assistant", text));
        Ok(())
    };
    if let Some(text) = &arguments.prompt {
        return reply(&mut messages, text);
    }
    let mut lines = io::stdin().lock().lines();
    loop {
        if io::stdin().is_terminal() {
            eprint!("> ");
        }
        let Some(line) = lines.next() else { return Ok(()) };
        let line = line.map_err(|why| Error::file(INPUT, why))?;
        if line.trim().is_empty() {
            continue;
        }
        match reply(&mut messages, line.trim()) {
            // The conversation may go on with a shorter message.
            Err(error @ Error::TooLong { .. }) => eprintln!("error: {error}"),
            other => other?,
        }
    }
}

/// Generates a text and writes it as it comes.
fn write(
    session: &mut Session,
    prompt: &[u32],
    options: &Options,
    tokens: &Tokens,
) -> Result<(String, Timing)> {
    let mut out = io::stdout().lock();
    let mut text = String::new();
    let mut stream = Stream::new(tokens);
    let mut show = |piece: String| -> Result<()> {
        out.write_all(piece.as_bytes()).and_then(|()| out.flush())?;
        text += &piece;
        Ok(())
    };
    let timing = session.generate(prompt, options, |token| {
        show(stream.push(token)?)?;
        Ok(ControlFlow::Continue(()))
    })?;
    show(stream.finish()?)?;
    writeln!(out)?;
    Ok((text, timing))
}

/// Generates tokens that have no text, and writes their ids.
fn write_ids(session: &mut Session, prompt: &[u32], options: &Options) -> Result<Timing> {
    let mut out = io::stdout().lock();
    let timing = session.generate(prompt, options, |token| {
        write!(out, "{token} ").and_then(|()| out.flush())?;
        Ok(ControlFlow::Continue(()))
    })?;
    writeln!(out)?;
    Ok(timing)
}

fn report(timing: &Timing, not_captured: Option<&str>) {
    if let Some(why) = not_captured {
        eprintln!("each token's pass was launched op by op, because it can't be captured: {why}");
    }
    let took = |time: Duration, rate: Option<f64>| match rate {
        Some(rate) => format!(" in {:.3} s, {rate:.1} tokens/s", time.as_secs_f64()),
        None => String::new(),
    };
    let prompt = took(timing.to_first, timing.prompt_rate());
    let generation = took(timing.generation, timing.rate());
    eprintln!(
        "prompt: {} tokens{prompt}; generated: {} more tokens{generation}",
        timing.prompt, timing.generated
    );
}
