//! Responses of the simulator, and errors as the `Status` object of Kubernetes.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::{HeaderValue, Response, StatusCode, header::CONTENT_TYPE};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use serde::Serialize;
use serde_json::{Value, json};

use crate::simulator::resources::Resource;

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;
pub(crate) type ApiResponse = Response<Body>;

/// Returns a response with a JSON body.
pub(crate) fn json(code: StatusCode, value: &impl Serialize) -> ApiResponse {
    reply(code, "application/json", Full::new(encode(value)).boxed_unsync())
}

/// Returns a response with a plain text body.
pub(crate) fn text(code: StatusCode, text: impl Into<Bytes>) -> ApiResponse {
    reply(code, "text/plain; charset=utf-8", Full::new(text.into()).boxed_unsync())
}

/// Returns a response with a streamed body. The stream is dropped when the client closes the connection.
pub(crate) fn stream(
    content_type: &'static str,
    chunks: impl Stream<Item = Bytes> + Send + 'static,
) -> ApiResponse {
    let body = StreamBody::new(chunks.map(|chunk| Ok(Frame::data(chunk))));
    reply(StatusCode::OK, content_type, body.boxed_unsync())
}

/// Returns the response for an error.
pub(crate) fn failure(failure: &StatusError) -> ApiResponse {
    json(failure.code, &failure.status())
}

pub(crate) fn encode(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("keys are strings, so this is always JSON").into()
}

fn reply(code: StatusCode, content_type: &'static str, body: Body) -> ApiResponse {
    let mut reply = Response::new(body);
    *reply.status_mut() = code;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

/// The error of a request. `Display` formats only its message.
#[derive(Debug)]
pub(crate) struct StatusError {
    pub code: StatusCode,
    reason: &'static str,
    message: String,
    details: Option<Value>,
}

impl StatusError {
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    pub(crate) fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", resource.qualified_name());
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).about(resource, name)
    }

    /// Returns the error for an unknown path.
    pub(crate) fn no_such_path() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource")
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    pub(crate) fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", resource.qualified_name());
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).about(resource, name)
    }

    pub(crate) fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} \"{name}\": {why}", resource.qualified_name());
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(resource, name)
    }

    pub(crate) fn expired(revision: u64) -> Self {
        let message = format!("the resource version {revision} is not, or no longer, known: list again");
        Self::new(StatusCode::GONE, "Expired", message)
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("the request body is larger than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    pub(crate) fn unsupported_media_type(found: &str, supported: &str) -> Self {
        let message = format!("the body is \"{found}\", and the simulator reads {supported}");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    /// Returns the error for an object with an invalid `field`.
    pub(crate) fn invalid(resource: &Resource, name: &str, field: &str, why: &str) -> Self {
        let message = format!("{} \"{name}\" is invalid: {field}: {why}", resource.kind);
        let mut failure =
            Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).about(resource, name);
        if let Some(details) = &mut failure.details {
            details["causes"] = json!([{ "reason": "FieldValueInvalid", "message": why, "field": field }]);
        }
        failure
    }

    /// Returns the `Status` object.
    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
        });
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status
    }

    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None }
    }

    fn about(mut self, resource: &Resource, name: &str) -> Self {
        self.details = Some(json!({ "name": name, "group": resource.group, "kind": resource.plural }));
        self
    }
}

impl std::fmt::Display for StatusError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for StatusError {}
