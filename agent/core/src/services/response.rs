//! Responses and errors that several request types have.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::{HeaderValue, Response, header::CONTENT_TYPE};
use http_body::Frame;
use http_body_util::StreamBody;
use proto::Reason;
use serde::Serialize;
use tunnel::Body;

use super::ServiceError;

/// The type of a stream whose lines are JSON.
pub const JSON_LINES: &str = "application/x-ndjson";

/// Marks a response as that of a watch, in its extensions. agentk ends it when it stops: the client sends its request again, and another pod
/// of agentk responds.
#[derive(Clone, Copy, Debug)]
pub struct WatchResponse;

/// Returns a value as a line of JSON.
pub fn line(value: &impl Serialize) -> Bytes {
    let mut line = serde_json::to_vec(value).expect("it has keys that are text");
    line.push(b'\n');
    line.into()
}

/// Returns a response that sends lines as they come.
pub fn stream_response(
    content_type: &'static str,
    lines: impl Stream<Item = Bytes> + Send + 'static,
) -> Response<Body> {
    let frames = lines.map(|line| Ok::<_, Infallible>(Frame::data(line)));
    let mut response = Response::new(Body::new(StreamBody::new(frames)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Returns a value as JSON.
pub fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("it has keys that are text")
}

/// Returns a response with a value as JSON.
pub fn json_response(value: &impl Serialize) -> Response<Body> {
    json_text(json(value))
}

/// Returns a response with a JSON text, which may be compressed.
pub fn json_text(text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::from(text.into()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Returns the error of a request that the caller has to change.
pub fn bad_request(what: &str) -> ServiceError {
    ServiceError::new(Reason::BadRequest, what)
}

/// Returns the error of a request with another method.
pub fn wrong_method(path: &str, methods: &'static str) -> ServiceError {
    ServiceError::new(Reason::MethodNotAllowed, format!("the method of {path} is {methods}"))
        .with_allow(methods)
}
