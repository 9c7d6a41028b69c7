//! Errors as OpenAI's clients expect them.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::error::Error;
use crate::serve::engine::Refusal;

/// The kinds of errors, each with its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 400: the request makes no sense, or asks for what the server does not have.
    Invalid,
    /// 400: prompt and answer are longer than a sequence may be.
    ContextLength,
    /// 401: the key is missing or wrong.
    Key,
    /// 403: the request is for another host.
    Host,
    /// 404: there is no such route.
    NotFound,
    /// 404: there is no such model.
    Model,
    /// 405: the route has other methods.
    Method,
    /// 408: the client was too slow to send its request.
    Slow,
    /// 413: the body is too large.
    Size,
    /// 415: the body is no JSON by its header.
    ContentType,
    /// 429: too many requests wait.
    Busy,
    /// 500: the model or its device failed.
    Failed,
    /// 503: the server stops.
    Stopping,
    /// 504: the answer took too long.
    Timeout,
}

impl Kind {
    /// The status, `type` and `code`.
    fn facts(self) -> (StatusCode, &'static str, Option<&'static str>) {
        let request = "invalid_request_error";
        match self {
            Self::Invalid => (StatusCode::BAD_REQUEST, request, None),
            Self::ContextLength => (StatusCode::BAD_REQUEST, request, Some("context_length_exceeded")),
            Self::Key => (StatusCode::UNAUTHORIZED, request, Some("invalid_api_key")),
            Self::Host => (StatusCode::FORBIDDEN, request, Some("wrong_host")),
            Self::NotFound => (StatusCode::NOT_FOUND, request, Some("unknown_url")),
            Self::Model => (StatusCode::NOT_FOUND, request, Some("model_not_found")),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, request, Some("method_not_supported")),
            Self::Slow => (StatusCode::REQUEST_TIMEOUT, request, Some("request_timeout")),
            Self::Size => (StatusCode::PAYLOAD_TOO_LARGE, request, Some("request_too_large")),
            Self::ContentType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, request, None),
            Self::Busy => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", Some("rate_limit_exceeded")),
            Self::Failed => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", None),
            Self::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "server_error", None),
            Self::Timeout => (StatusCode::GATEWAY_TIMEOUT, "server_error", Some("timeout")),
        }
    }
}

/// An error with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The kind.
    pub kind: Kind,
    /// The text for the user.
    pub message: String,
    /// The field of the request that is wrong.
    pub param: Option<String>,
}

impl ApiError {
    /// An error of the whole request.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None }
    }

    /// A field of the request is wrong.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind: Kind::Invalid, message: message.into(), param: Some(param.into()) }
    }

    /// OpenAI's error object.
    pub fn json(&self) -> Value {
        let (_, kind, code) = self.kind.facts();
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": code}})
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let kind = match &refusal {
            Refusal::Busy { .. } => Kind::Busy,
            Refusal::TooLong { .. } => Kind::ContextLength,
            Refusal::Invalid(_) => Kind::Invalid,
            Refusal::Stopped => Kind::Stopping,
        };
        if let Refusal::TooLong { prompt, answer, limit } = refusal {
            // The begin of OpenAI's text, by which programs recognise the error.
            return Self::new(
                kind,
                format!(
                    "This model's maximum context length is {limit} tokens. However, you requested {} tokens \
                     ({prompt} in the prompt, {answer} in the answer). Please reduce the length of either.",
                    prompt.saturating_add(answer)
                ),
            );
        }
        Self::new(kind, refusal.to_string())
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let kind = match error {
            // The conversation, not the server, is at fault.
            Error::Template(_) => Kind::Invalid,
            _ => Kind::Failed,
        };
        Self::new(kind, error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, ..) = self.kind.facts();
        let mut response = (status, Json(self.json())).into_response();
        if self.kind == Kind::Busy {
            response.headers_mut().insert(RETRY_AFTER, axum::http::HeaderValue::from_static("1"));
        }
        response
    }
}
