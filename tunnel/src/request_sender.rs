//! Sends requests on the HTTP/2 connection of a tunnel.

use std::{
    future::poll_fn,
    mem,
    pin::Pin,
    sync::LazyLock,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use h2::{
    RecvStream, SendStream,
    client::{ResponseFuture, SendRequest},
};
use http::{
    Method, Request, Response, Uri, Version,
    header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE},
    request::Parts,
    uri::{Authority, PathAndQuery, Scheme},
};
use http_body::Body as _;
use proto::header;

use crate::{
    Body, CallError, CallErrorKind, StallCounter, config,
    monitor::FinishedStreams,
    overhead::OverheadCounter,
    send_body::{SendBody, SendOutcome},
    upgrade,
};

/// The authority of all requests, which HTTP/2 requires. The handler of the service sets the real one.
static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::from_static("agent"));

/// Sends requests on an HTTP/2 connection. Clones share the connection.
#[derive(Clone, Debug)]
pub(crate) struct RequestSender {
    pub(crate) sender: SendRequest<Bytes>,
    pub(crate) overhead: OverheadCounter,
    pub(crate) stalls: StallCounter,
    /// The streams of requests without a body whose responses have arrived whole. Dropping one wakes the task of the connection, as the
    /// next request does.
    pub(crate) finished: FinishedStreams,
}

impl RequestSender {
    /// Sends a request, as [`Tunnel::call`](crate::Tunnel::call) does.
    pub(crate) async fn call(&self, request: Request<Body>) -> Result<Response<Body>, CallError> {
        let (head, body) = request.into_parts();
        let wire = match wire_request(&head, body.is_end_stream()) {
            Ok(wire) => wire,
            Err(what) => return Err(CallError::unsent(CallErrorKind::Unsupported(what), head, body)),
        };
        let upgrading = wire.method() == Method::CONNECT;
        let mut sender = self.sender.clone();
        if poll_fn(|cx| sender.poll_ready(cx)).await.is_err() {
            return Err(CallError::unsent(CallErrorKind::Closed, head, body));
        }
        if upgrading && !sender.is_extended_connect_protocol_enabled() {
            let what = "the agent has not enabled extended CONNECT (RFC 8441)";
            return Err(CallError::unsent(CallErrorKind::Unsupported(what), head, body));
        }

        let bodyless = !upgrading && body.is_end_stream();
        let (response, stream) = match sender.send_request(wire, bodyless) {
            Ok((response, stream)) => (PendingResponse { response, interim: false }, stream),
            Err(error) => return Err(CallError::unsent(CallErrorKind::not_sent(&error), head, body)),
        };
        let finished = mem::take(&mut *self.finished.lock());
        // Dropped without the lock, because dropping a stream locks the connection.
        drop((sender, finished));
        self.overhead.subtract_request();
        // Boxed: most requests have no body and are no upgrade, and their futures stay small.
        match (upgrading, bodyless) {
            (true, _) => Box::pin(response_to_upgrade(response, stream, head, body, &self.overhead)).await,
            (false, true) => response_to_head(response, head, body, self).await,
            (false, false) => {
                let sending = SendBody::new(body, stream, self.stalls.clone());
                Box::pin(response_to_body(response, sending, head, &self.overhead)).await
            }
        }
    }

    /// Returns true if the other end drains the connection, or if it has ended.
    pub(crate) fn is_closed(&self) -> bool {
        let mut sender = self.sender.clone();
        sender.poll_ready(&mut Context::from_waker(Waker::noop())).map_err(drop) == Poll::Ready(Err(()))
    }
}

/// The response of a request that was sent.
struct PendingResponse {
    response: ResponseFuture,
    /// An interim response (1xx) has arrived. agentk sends none.
    interim: bool,
}

impl PendingResponse {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<RecvStream>, h2::Error>> {
        while let Poll::Ready(Some(Ok(_))) = self.response.poll_informational(cx) {
            self.interim = true;
        }
        Pin::new(&mut self.response).poll(cx)
    }
}

/// Waits for the response to a request without a body.
async fn response_to_head(
    mut response: PendingResponse,
    head: Parts,
    body: Body,
    sender: &RequestSender,
) -> Result<Response<Body>, CallError> {
    let result = poll_fn(|cx| {
        let polled = response.poll(cx);
        polled.map_ok(|response| into_response(response, None, &sender.overhead, Some(&sender.finished), cx))
    });
    let result = result.await;
    result.map_err(|error| CallError::sent(error, head, Some(body), response.interim))
}

/// Sends the body and waits for the response. The reader of the response sends the rest of the body.
async fn response_to_body(
    mut response: PendingResponse,
    sending: SendBody,
    head: Parts,
    overhead: &OverheadCounter,
) -> Result<Response<Body>, CallError> {
    let mut sending = Some(sending);
    let mut complete = false;
    let result = poll_fn(|cx| {
        if let Some(body) = &mut sending
            && !complete
        {
            match body.poll(cx) {
                Poll::Ready(SendOutcome::Failed(error)) => return Poll::Ready(Err(CallError::body(error))),
                polled => complete = polled.is_ready(),
            }
        }
        response.poll(cx).map(|result| {
            Ok(result.map(|response| {
                let unfinished = sending.take_if(|_| !complete).map(|mut body| {
                    body.forget_replay();
                    body
                });
                // The stream is not kept: h2 may still hold bytes of the request, and the waker of this task.
                into_response(response, unfinished, overhead, None, cx)
            }))
        })
    });
    match result.await? {
        Ok(response) => Ok(response),
        Err(error) => {
            let whole = sending.and_then(SendBody::into_whole);
            Err(CallError::sent(error, head, whole, response.interim))
        }
    }
}

async fn response_to_upgrade(
    mut response: PendingResponse,
    stream: SendStream<Bytes>,
    head: Parts,
    body: Body,
    overhead: &OverheadCounter,
) -> Result<Response<Body>, CallError> {
    match poll_fn(|cx| response.poll(cx)).await {
        Ok(response) => {
            overhead.subtract_fields(response.headers());
            Ok(upgrade::into_response(response, stream, overhead))
        }
        Err(error) => Err(CallError::sent(error, head, Some(body), response.interim)),
    }
}

/// Makes the response that [`Tunnel::call`](crate::Tunnel::call) returns. Its version is HTTP/1.1, by which a server decides how it
/// treats the connection of the caller.
fn into_response(
    response: Response<RecvStream>,
    sending: Option<SendBody>,
    overhead: &OverheadCounter,
    finished: Option<&FinishedStreams>,
    cx: &mut Context<'_>,
) -> Response<Body> {
    overhead.subtract_fields(response.headers());
    let mut response = response.map(|stream| Body::received(stream, sending, overhead, finished, cx));
    *response.version_mut() = Version::HTTP_11;
    response
}

/// Returns the head in the form of HTTP/2. It is a copy, because a retry needs the original.
fn wire_request(head: &Parts, bodyless: bool) -> Result<Request<()>, &'static str> {
    let mut headers = head.headers.clone();
    // RFC 9113 section 8.2.2 forbids these fields.
    for name in [&HOST, &CONNECTION, &TRANSFER_ENCODING] {
        headers.remove(name);
    }
    let upgrade = headers.remove(UPGRADE);

    let mut wire = Request::new(());
    *wire.version_mut() = Version::HTTP_2;
    *wire.uri_mut() = wire_uri(&head.uri)?;
    *wire.method_mut() = head.method.clone();
    if let Some(protocol) = upgrade {
        if !bodyless {
            return Err("a request with a body cannot become an upgrade, which would lose the body");
        }
        let protocol = protocol.to_str().map_err(|_| "the Upgrade header is not ASCII")?;
        let method = head.method.as_str().parse().map_err(|_| "the method is not a header value")?;
        headers.insert(header::UPGRADE_METHOD, method);
        headers.remove(CONTENT_LENGTH);
        *wire.method_mut() = Method::CONNECT;
        wire.extensions_mut().insert(h2::ext::Protocol::from(protocol));
    } else if head.method == Method::CONNECT {
        return Err("the method CONNECT is for forward proxies");
    }
    config::mark_unindexed(&mut headers, &config::UNIQUE_IN_REQUESTS);
    *wire.headers_mut() = headers;
    Ok(wire)
}

fn wire_uri(uri: &Uri) -> Result<Uri, &'static str> {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(AUTHORITY.clone());
    let root = || PathAndQuery::from_static("/");
    parts.path_and_query = Some(uri.path_and_query().cloned().unwrap_or_else(root));
    Uri::from_parts(parts).map_err(|_| "the path is not valid in HTTP/2")
}
