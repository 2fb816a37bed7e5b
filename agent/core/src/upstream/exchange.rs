//! One exchange: a request, until the head of its response, and the time limit of that.

use std::{
    future::poll_fn,
    io::Cursor,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
};
use http_body::{Body as _, Frame, SizeHint};
use hyper::upgrade::OnUpgrade;
use tokio::{
    io::AsyncReadExt as _,
    time::{Instant, Sleep, sleep},
};
use tunnel::{Body, upgrade::UpgradedConnection};

use super::{body::ResponseBody, connection::PooledConnection};

/// Most bytes that are read before the head of a response, which is four times the longest one: a server may send interim
/// responses (1xx) without end.
const MAX_BEFORE_RESPONSE: u64 = 1 << 20;

/// The error of an exchange without a response.
pub(super) enum ExchangeError {
    /// hyper's error.
    Http {
        error: hyper::Error,
        /// The request, if hyper wrote no byte of it.
        unsent: Option<Box<Request<Body>>>,
        /// True if some bytes of a response have arrived.
        response_began: bool,
    },
    /// There was no response within this time.
    Timeout(Duration),
    /// hyper accepted the response, and this client refused it for this reason.
    Refused(&'static str),
}

/// Expires `after` the last byte of the request, unless the server has responded.
///
/// The time does not start before the body of the request has ended: the caller may pause, and the write timeout applies to a
/// server that does not read.
struct ResponseTimer {
    after: Duration,
    /// `None` if the request has no body.
    body_ended: Option<Arc<AtomicBool>>,
    written: u64,
    /// Created when the time starts.
    timer: Option<Pin<Box<Sleep>>>,
}

/// A body that sets a flag when it ends or is dropped.
struct EndFlagBody {
    body: Body,
    ended: Arc<AtomicBool>,
}

/// Sends a request and waits for the head of its response, for `response_timeout` at most. If `upgrading`, a 101 has the raw
/// connection in its extensions.
///
/// Dropping the future closes the connection.
pub(super) async fn exchange(
    mut pooled: PooledConnection,
    request: Request<Body>,
    upgrading: bool,
    response_timeout: Option<Duration>,
) -> Result<Response<ResponseBody>, ExchangeError> {
    let (mut timer, request) = match response_timeout {
        None => (None, request),
        Some(after) => {
            let (timer, request) = ResponseTimer::new(after, request);
            (Some(timer), request)
        }
    };
    let connection = &mut pooled.connection;
    let read_before = connection.read();
    let mut response = pin!(connection.send(request));
    let response = poll_fn(|cx| {
        connection.poll(cx);
        if let Poll::Ready(response) = response.as_mut().poll(cx) {
            return Poll::Ready(Ok(response));
        }
        if connection.read() - read_before > MAX_BEFORE_RESPONSE {
            return Poll::Ready(Err(ExchangeError::Refused(
                "over 1 MiB of interim responses (1xx) without a response",
            )));
        }
        let Some(timer) = &mut timer else { return Poll::Pending };
        timer.poll(cx, connection.written()).map(|()| Err(ExchangeError::Timeout(timer.after())))
    });
    let response = match response.await {
        Err(error) => return Err(error),
        Ok(Ok(response)) => response,
        Ok(Err(mut error)) => {
            return Err(ExchangeError::Http {
                unsent: error.take_message().map(Box::new),
                error: error.into_error(),
                response_began: pooled.connection.has_unparsed_bytes(),
            });
        }
    };

    let (mut head, body) = response.into_parts();
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        if !upgrading {
            return Err(ExchangeError::Refused("101 Switching Protocols without an upgrade request"));
        }
        head.extensions.remove::<OnUpgrade>();
        head.extensions.insert(raw_stream(pooled).await);
        return Ok(Response::from_parts(head, ResponseBody::default()));
    }
    let unambiguous = check_length(&mut head.headers).map_err(ExchangeError::Refused)?;
    // The connection of an upgrade request is never used again, also if the response is not 101: bytes after a refused
    // upgrade allow request smuggling.
    let body = ResponseBody::new(pooled, body, unambiguous && !upgrading).await;

    Ok(Response::from_parts(head, body))
}

/// Returns the raw stream after a 101, beginning with the bytes that arrived with the head.
async fn raw_stream(pooled: PooledConnection) -> UpgradedConnection {
    let (stream, received) = pooled.connection.into_stream().await;
    let (reader, writer) = tokio::io::split(stream.without_write_timeout());
    UpgradedConnection::new(tokio::io::join(Cursor::new(received).chain(reader), writer))
}

/// Checks how a response announces its length. Returns false if it does so twice, so that its connection must not be used
/// again.
///
/// hyper has already refused differing lengths. It accepts every coding that ends in `chunked`, but does not decode the others.
fn check_length(headers: &mut HeaderMap) -> Result<bool, &'static str> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else { return Ok(true) };
    if !coding.as_bytes().eq_ignore_ascii_case(b"chunked") || codings.next().is_some() {
        return Err("its Transfer-Encoding is not `chunked` alone");
    }

    // RFC 9112 section 6.3: the coding takes precedence, and both together may be an attempt at request smuggling.
    Ok(headers.remove(CONTENT_LENGTH).is_none())
}

/// Sets the headers that announce the body.
///
/// hyper does not compare `Content-Length` with an empty body, and would omit the body of a GET of unknown length.
///
/// # Errors
///
/// `Content-Length` is not a number, or the body is empty and it is not zero.
pub(super) fn announce_body(request: &mut Request<Body>) -> Result<(), &'static str> {
    // The transfer coding of the caller ends at kas (RFC 9112 section 6.1).
    request.headers_mut().remove(TRANSFER_ENCODING);
    let length = content_length(request.headers())?;
    let (empty, known) = (request.body().is_end_stream(), request.body().size_hint().exact().is_some());
    match length {
        Some(length) if length > 0 && empty => Err("the body has fewer bytes than its Content-Length"),
        None if !empty && !known => {
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            Ok(())
        }
        _ => Ok(()),
    }
}

fn content_length(headers: &HeaderMap) -> Result<Option<u64>, &'static str> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = values.next() else { return Ok(None) };
    let digits = first.to_str().ok().filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()));
    let length = digits.and_then(|digits| digits.parse().ok());
    match length {
        Some(length) if values.all(|value| value == first) => Ok(Some(length)),
        _ => Err("its Content-Length is not one number"),
    }
}

impl ResponseTimer {
    /// Returns a timer of the response to `request`, and the request to send.
    fn new(after: Duration, request: Request<Body>) -> (Self, Request<Body>) {
        let timer = Self { after, body_ended: None, written: 0, timer: None };
        if request.body().is_end_stream() {
            return (timer, request);
        }

        let ended = Arc::new(AtomicBool::new(false));
        let request = request.map(|body| Body::new(EndFlagBody { body, ended: Arc::clone(&ended) }));
        (Self { body_ended: Some(ended), ..timer }, request)
    }

    fn after(&self) -> Duration {
        self.after
    }

    /// Completes when the time is over. `written` is the number of bytes that the connection has written. It must be called
    /// whenever the connection was polled.
    fn poll(&mut self, cx: &mut Context<'_>, written: u64) -> Poll<()> {
        if self.body_ended.as_ref().is_some_and(|ended| !ended.load(Relaxed)) {
            return Poll::Pending;
        }
        let progress = written != self.written;
        self.written = written;
        let timer = match &mut self.timer {
            Some(timer) => {
                if progress {
                    timer.as_mut().reset(Instant::now() + self.after);
                }
                timer
            }
            timer @ None => timer.insert(Box::pin(sleep(self.after))),
        };
        timer.as_mut().poll(cx)
    }
}

impl http_body::Body for EndFlagBody {
    type Data = Bytes;
    type Error = <Body as http_body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// hyper drops a body when it has read the end.
impl Drop for EndFlagBody {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
    }
}
