//! The routes and what they check before a job starts.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::answering::{Work, deadline, pieces, whole};
use super::server::Server;
use crate::serve::api::{self, Answering, ApiError, Ask, Defaults, Kind, Route};

type Shared = State<Arc<Server>>;

/// The routes of a server.
pub fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .with_state(server)
}

async fn not_found(request: Request) -> ApiError {
    let message = format!("Unknown request URL: {} {}", request.method(), request.uri().path());
    ApiError::new(Kind::NotFound, message)
}

async fn not_allowed(request: Request) -> ApiError {
    let message = format!("Not allowed to {} on {}", request.method(), request.uri().path());
    ApiError::new(Kind::Method, message)
}

async fn health(State(server): Shared) -> Response {
    match server.engine.is_alive() {
        true => Json(json!({"status": "ok"})).into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "failed"}))).into_response(),
    }
}

async fn metrics(State(server): Shared) -> Response {
    let kind = HeaderValue::from_static("text/plain; version=0.0.4");
    ([(CONTENT_TYPE, kind)], server.engine.metrics().text()).into_response()
}

async fn models(State(server): Shared, headers: HeaderMap) -> Result<Json<Value>, ApiError> {
    server.check_access(&headers)?;
    Ok(Json(json!({"object": "list", "data": [server.card()]})))
}

async fn model(
    State(server): Shared,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    server.check_access(&headers)?;
    if name != server.model {
        return Err(ApiError::new(Kind::Model, format!("The model `{name}` does not exist")));
    }
    Ok(Json(server.card()))
}

async fn completions(State(server): Shared, request: Request) -> Response {
    counted("/v1/completions", server, request, api::completion).await
}

async fn chat_completions(State(server): Shared, request: Request) -> Response {
    counted("/v1/chat/completions", server, request, api::chat).await
}

type Parse = fn(&[u8], &Defaults) -> Result<Ask, ApiError>;

async fn counted(route: &'static str, server: Arc<Server>, request: Request, parse: Parse) -> Response {
    let response = answer(&server, request, parse).await.unwrap_or_else(ApiError::into_response);
    server.engine.metrics().answered(route, response.status().as_u16());
    response
}

async fn answer(server: &Arc<Server>, request: Request, parse: Parse) -> Result<Response, ApiError> {
    server.check_access(request.headers())?;
    check_type(request.headers())?;
    let deadline = deadline(server.timeout);
    let body = read(request.into_body(), server.body, server.slow).await?;
    let mut ask = parse(&body, &server.defaults)?;
    // An answer may take long. The engine has the prompts' tokens.
    drop(body);
    ask.check_model(&server.model)?;
    let (stream, prompts) = (ask.stream, ask.prompts.len());
    // Long texts take a while to become tokens.
    let (ticket, prompt, last) = tokio::task::block_in_place(|| server.start(&mut ask))?;
    let work = Work {
        choices: prompts * ask.choices,
        each: ask.choices,
        last: if ask.route == Route::Completion { last } else { Vec::new() },
        answering: Answering::new(ask.route, &server.model, ask.usage),
        stops: ask.stops,
        scored: ask.logprobs.is_some(),
        ticket,
        prompt,
        deadline,
    };
    if !stream {
        return Ok(Json(whole(server, work).await?).into_response());
    }
    let kind = HeaderValue::from_static("text/event-stream");
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, HeaderValue::from_static("no-cache"))];
    Ok((headers, Body::from_stream(Pieces(pieces(server.clone(), work)))).into_response())
}

/// Requires JSON. A browser asks before it sends this type to another site, and is refused, so no
/// page of another site can use a server on its visitor's machine.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
    let kind = kind.split(';').next().unwrap_or("").trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let message = format!("expected the Content-Type application/json, found {kind:?}");
    Err(ApiError::new(Kind::ContentType, message))
}

async fn read(body: Body, most: usize, limit: Duration) -> Result<Bytes, ApiError> {
    let slow = |_| ApiError::new(Kind::Slow, format!("the body took longer than {} s", limit.as_secs_f64()));
    timeout(limit, to_bytes(body, most)).await.map_err(slow)?.map_err(|why| {
        // The limit's error has no type of its own.
        let message = format!("the body can't be read, or has more than {most} bytes: {why}");
        ApiError::new(Kind::Size, message)
    })
}

/// The pieces of an answer as a body.
struct Pieces(mpsc::Receiver<Bytes>);

impl futures_core::Stream for Pieces {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|piece| piece.map(Ok))
    }
}
