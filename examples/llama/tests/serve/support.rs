//! Models, engines and servers of the tests.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use burn::tensor::DType;
use burn_rocm::RocmDevice;
use burn_rocm::fused::decode::{CacheType, Sampling};
use burn_rocm_llama::config::{Config, Generation};
use burn_rocm_llama::generate::{Options, Session};
use burn_rocm_llama::model::Model;
use burn_rocm_llama::serve::api::Defaults;
use burn_rocm_llama::serve::engine::{self, Chances, End, Event, Handle, Job, Limits, Ticket};
use burn_rocm_llama::serve::http::{Server, Serving, router, serve};
use burn_rocm_llama::serve::{Metrics, Vocabulary};
use burn_rocm_llama::text::{Chat, Tokens};
use burn_rocm_llama::weights::Folder;
use burn_rocm_llama::{Result, Rng};
use tokio::net::TcpSocket;
use tokio::sync::oneshot;

use crate::client::NARROW;

pub(crate) const LIMITS: Limits = Limits { rows: 8, step: 32, context: 128, blocks: 96, waiting: 64 };

pub(crate) fn load(folder: &Path) -> Arc<Model> {
    let config = Config::read(folder).expect("the settings");
    let source = Folder::open(folder, &config).expect("the weights");
    Arc::new(Model::load(config, &source, &RocmDevice::default(), DType::F32, |_| {}).expect("the model"))
}

/// A model of `tests/models`: 64 tokens, a context of 128.
pub(crate) fn model(name: &str) -> Arc<Model> {
    load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name))
}

/// The text that the program `llama` generates.
pub(crate) fn alone(model: &Model, prompt: &[u32], tokens: usize) -> Vec<u32> {
    let mut session = Session::new(model, prompt.len() + tokens, 0).expect("a session");
    let options = Options { tokens, sampling: Default::default(), stop: Vec::new() };
    let mut text = Vec::new();
    let each = |token| {
        text.push(token);
        Ok(ControlFlow::Continue(()))
    };
    session.generate(prompt, &options, each).expect("a text");
    text
}

/// Prompts of random tokens.
pub(crate) fn prompts(lengths: impl IntoIterator<Item = usize>, seed: u64) -> Vec<Vec<u32>> {
    let mut rng = Rng::new(seed);
    // 2 and 3 end a text.
    let mut token = || 4 + (rng.uniform() * 60.0) as u32;
    lengths.into_iter().map(|length| (0..length).map(|_| token()).collect()).collect()
}

pub(crate) fn job(prompt: &[u32], tokens: usize) -> Job {
    let sampling = Sampling::default();
    Job { prompts: vec![prompt.to_vec()], choices: 1, tokens, sampling, stop: Vec::new(), chances: None }
}

/// An engine that a test ends.
pub(crate) struct Engine {
    handle: Option<Handle>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Engine {
    pub(crate) fn start(model: &Arc<Model>, limits: Limits) -> Self {
        let (handle, thread) = engine::start(model.clone(), limits, CacheType::F32).expect("an engine");
        Self { handle: Some(handle), thread: Some(thread) }
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.handle.as_ref().expect("not ended")
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        self.handle().metrics()
    }

    pub(crate) fn submit(&self, job: Job) -> Ticket {
        self.handle().submit(job).expect("an accepted job")
    }

    /// Waits until no sequence runs, and checks that only kept blocks are in use.
    pub(crate) fn wait_for_idle(&self) {
        let metrics = self.metrics();
        let load = |gauge: &std::sync::atomic::AtomicUsize| gauge.load(Ordering::Acquire);
        wait_until("an engine without sequences", || {
            load(&metrics.running) + load(&metrics.waiting) + load(&metrics.preempted) == 0
                && load(&metrics.blocks_used) == load(&metrics.blocks_kept)
        });
        assert_eq!(load(&metrics.blocks_lost), 0, "kept blocks that a sequence still has");
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.handle = None;
        if let (Some(thread), false) = (self.thread.take(), thread::panicking()) {
            thread.join().expect("an engine that does not panic").expect("no error of the engine");
        }
    }
}

pub(crate) fn wait_until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// What became of a choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Text {
    pub(crate) tokens: Vec<u32>,
    pub(crate) chances: Vec<Chances>,
    pub(crate) reused: Option<usize>,
    pub(crate) end: Option<End>,
}

/// Waits for all choices of a job.
pub(crate) fn read(mut ticket: Ticket, choices: usize) -> Vec<Text> {
    let mut texts = vec![Text::default(); choices];
    while texts.iter().any(|text| text.end.is_none()) {
        match ticket.events.blocking_recv().expect("an engine that runs") {
            Event::Begun { choice, reused } => texts[choice].reused = Some(reused),
            Event::Token { choice, token, chances } => {
                texts[choice].tokens.push(token);
                texts[choice].chances.extend(chances);
            }
            Event::End { choice, why } => texts[choice].end = Some(why),
        }
    }
    texts
}

/// A server in this process.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    ended: Option<JoinHandle<Result<()>>>,
}

/// The name of the servers' model.
pub(crate) const NAME: &str = "small";
/// The chat template of the servers' model.
const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}\
                        {% if add_generation_prompt %}[assistant]{% endif %}";

impl Running {
    /// A server of a model with a tokenizer, changed by `change`.
    pub(crate) fn start(test: &str, limits: Limits, change: impl FnOnce(&mut Server, &mut Serving)) -> Self {
        Self::start_on(TcpSocket::new_v4().expect("a socket"), test, limits, change)
    }

    /// [`start`](Self::start) with connections that hold few bytes which the client has not taken.
    pub(crate) fn narrow(test: &str, limits: Limits, change: impl FnOnce(&mut Server, &mut Serving)) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        // Accepted connections have the listener's size.
        socket.set_send_buffer_size(NARROW).expect("a size");
        Self::start_on(socket, test, limits, change)
    }

    fn start_on(
        socket: TcpSocket,
        test: &str,
        limits: Limits,
        change: impl FnOnce(&mut Server, &mut Serving),
    ) -> Self {
        let folder = crate::folder::folder(test, None);
        let model = load(&folder);
        let (engine, ended) = engine::start(model, limits, CacheType::F32).expect("an engine");
        let tokens = Tokens::read(&folder.join("tokenizer.json")).expect("a tokenizer");
        let chat = Chat::new(TEMPLATE.to_owned(), ["<|start|>".to_owned(), String::new()]);
        let mut server = Server {
            engine: engine.clone(),
            vocabulary: Vocabulary(Some(tokens)),
            chat: Some(chat.expect("a template")),
            stop: Vec::new(),
            defaults: Defaults::new(&Generation::default()),
            model: NAME.to_owned(),
            created: 1,
            key: None,
            local: false,
            body: 1 << 16,
            slow: Duration::from_secs(30),
            timeout: Duration::from_secs(120),
            seeds: Mutex::new(Rng::new(1)),
        };
        let second = Duration::from_secs(1);
        let mut serving = Serving { connections: 64, idle: 30 * second, grace: 30 * second };
        change(&mut server, &mut serving);
        let (stop, stopped) = oneshot::channel::<()>();
        let (sender, address) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.expect("a runtime").block_on(async {
                socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
                let listener = socket.listen(1024).expect("a listener");
                sender.send(listener.local_addr().expect("an address")).expect("the test");
                let stop = async {
                    let _ = stopped.await;
                };
                serve(listener, router(Arc::new(server)), serving, stop).await;
            });
        });
        let address = address.recv().expect("an address");
        Self { address, engine, stop: Some(stop), thread: Some(thread), ended: Some(ended) }
    }

    /// Tells the server to stop.
    pub(crate) fn stop(&mut self) {
        self.stop = None;
    }

    /// Waits for its end.
    pub(crate) fn join(self) {
        self.end().expect("no error of the engine");
    }

    /// Waits for its end, and returns what the engine returned.
    pub(crate) fn end(mut self) -> Result<()> {
        self.stop();
        self.thread.take().expect("not ended").join().expect("a server that does not panic");
        let ended = self.ended.take().expect("not ended");
        drop(self);
        ended.join().expect("an engine that does not panic")
    }
}
