//! Responses of the simulator.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use serde::Serialize;

use super::error::StatusError;

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
