//! Connections: how many, for how long, and how they end.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::stalled::Stalled;

/// As good as no limit. Clocks can't count much longer times.
pub(super) const LONGEST: Duration = Duration::from_secs(1 << 32);

/// How a server treats its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serving {
    /// The most connections, up to [`Semaphore::MAX_PERMITS`]. Others wait.
    pub connections: usize,
    /// How long a client may take to send a request's head, or to take a piece of the answer.
    pub idle: Duration,
    /// How long answers that run may take after the server was told to stop.
    pub grace: Duration,
}

/// Serves until `stop` is ready. Then it accepts no connection, and running answers end, at the
/// latest after the grace time.
pub async fn serve(listener: TcpListener, router: Router, serving: Serving, stop: impl Future<Output = ()>) {
    let Serving { connections, idle, grace } = serving;
    // hyper adds the time to that of a clock, which fails if the sum is too large.
    let idle = idle.min(LONGEST);
    let permits = Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS)));
    let (closing, closed) = watch::channel(());
    let mut tasks = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        let accepted = async {
            let permit = permits.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, stream) = tokio::select! {
            () = &mut stop => break,
            (permit, accepted) = accepted => match accepted {
                Ok((stream, _)) => (permit, stream),
                // The client is gone, or the process has too many files open.
                Err(_) => {
                    sleep(Duration::from_millis(10)).await;
                    continue;
                }
            },
            // Takes ended tasks out of the set.
            Some(_) = tasks.join_next() => continue,
        };
        let (router, mut closed) = (router.clone(), closed.clone());
        tasks.spawn(async move {
            // The client learns by its end that the connection failed.
            let _ = connection(stream, router, idle, async move { closed.changed().await.is_err() }).await;
            drop(permit);
        });
    }
    // Every task's `changed` fails.
    drop((closing, listener));
    let all = async { while tasks.join_next().await.is_some() {} };
    if timeout(grace, all).await.is_err() {
        tasks.shutdown().await;
    }
}

/// Serves a connection until it ends or, after `closing`, to the end of its answer.
async fn connection(
    stream: TcpStream,
    router: Router,
    idle: Duration,
    closing: impl Future<Output = bool>,
) -> io::Result<()> {
    // Each piece of an answer leaves at once.
    stream.set_nodelay(true)?;
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(idle);
    let stream = TokioIo::new(Stalled::new(stream, idle));
    let mut served = pin!(builder.serve_connection(stream, TowerToHyperService::new(router)));
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        _ = closing => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    ended.map_err(io::Error::other)
}
