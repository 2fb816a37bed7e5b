//! The body of a response that ends with the session of its reader.

use std::{pin::Pin, task::Poll};

use axum::body::Body;
use futures_util::stream;
use http_body::Body as _;
use http_body_util::StreamBody;

/// The error of a body whose session has ended. The connection of HTTP/1.1 is closed, and the stream of HTTP/2 is reset.
#[derive(Debug, thiserror::Error)]
#[error("the session of the web page has ended")]
struct SessionEnded;

/// Returns a body that fails when `ended` completes.
pub(super) fn until(ended: impl Future<Output = ()> + Send + 'static, body: Body) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let (mut ended, mut body) = (Box::pin(ended), body);
    let frames = stream::poll_fn(move |context| {
        if ended.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(axum::Error::new(SessionEnded))));
        }
        Pin::new(&mut body).poll_frame(context)
    });
    Body::new(StreamBody::new(frames))
}
