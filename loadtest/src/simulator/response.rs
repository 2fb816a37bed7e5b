//! Building responses.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use serde::Serialize;

use super::failure::Failure;

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;
pub(crate) type Reply = Response<Body>;

/// The answer as JSON.
pub(crate) fn json(code: StatusCode, value: &impl Serialize) -> Reply {
    reply(code, "application/json", Full::new(encode(value)).boxed_unsync())
}

/// The answer as plain text.
pub(crate) fn text(code: StatusCode, text: impl Into<Bytes>) -> Reply {
    reply(code, "text/plain; charset=utf-8", Full::new(text.into()).boxed_unsync())
}

/// An answer that arrives piece by piece. Whatever the stream holds is dropped when the client leaves.
pub(crate) fn stream(
    content_type: &'static str,
    chunks: impl Stream<Item = Bytes> + Send + 'static,
) -> Reply {
    let body = StreamBody::new(chunks.map(|chunk| Ok(Frame::data(chunk))));
    reply(StatusCode::OK, content_type, body.boxed_unsync())
}

/// What went wrong.
pub(crate) fn failure(failure: &Failure) -> Reply {
    json(failure.code, &failure.status())
}

pub(crate) fn encode(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("keys are strings, so this is always JSON").into()
}

fn reply(code: StatusCode, content_type: &'static str, body: Body) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = code;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}
