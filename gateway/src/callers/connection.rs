//! A caller's connection. It turns out to be HTTP/2, which is hyper's, or HTTP/1.1 (RFC 9112), which is served here.
//!
//! All of it happens in the connection's task, and nothing goes through a channel: the handler of a request is polled here, and
//! reads the request's body off the connection by itself. Whoever has nothing to wait for looks whether the caller is
//! still there.
//!
//! ```text
//!  Patience ── until a head is there ──> Callers::answer ──> Outgoing ──> the next head
//!                                            │                  │
//!                 Wire <── RequestBody ──────┴── Wire: is the caller gone?
//! ```

mod body;
mod date;
mod patience;
mod wire;

use std::{
    future::poll_fn,
    pin::pin,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderMap, Method, Request, Response, Version};
use http1::{
    Error, Outgoing,
    request::{self, Head, Refused},
    response::{self, Asked},
};
use proto::Reason;
use tokio::time::timeout;

pub(super) use self::{
    body::RequestBody,
    wire::{Io, Rewound},
};
use self::{
    patience::{Patience, Tired},
    wire::Wire,
};
use super::{Answer, Callers, Tracked, incoming::Incoming, visit::Visit};
use crate::{failure::Failure, headers::Peer, metrics::Limit, traces::RequestTrace};

/// What HTTP/2 begins with (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long a caller may go on sending what nobody reads. Without it, the answer to a refused upload would be lost: a
/// connection that is closed with something unread is reset, and takes along what was written (RFC 9112 section 9.6).
const LINGER: Duration = Duration::from_secs(2);

/// A connection, and the request that is next.
pub(super) struct Connection<'a> {
    callers: &'a Callers,
    from: &'a Peer,
    wire: Wire,
    patience: Patience<'a>,
    limits: request::Limits,
    /// Nothing was served: it may still be HTTP/2.
    fresh: bool,
    /// A part of a head is there.
    begun: bool,
    /// How much of it was looked at.
    seen: usize,
    /// Room for the next head's fields.
    spare: HeaderMap,
}

/// How serving ended.
pub(super) enum Served {
    /// There will be no further request.
    Closed,
    /// It is HTTP/2, and nothing was done.
    Http2(Rewound),
}

#[expect(clippy::large_enum_variant, reason = "mostly it is the largest, and no box is worth its price")]
enum Next {
    Request(Head),
    Refused(Refused),
    Http2,
    /// No request: the caller has left, or shall leave.
    None,
}

/// What becomes of a connection after an answer.
enum Then {
    /// It waits for the next request.
    Stay,
    /// The caller has said all, or what it says is not worth waiting for.
    Close,
    /// The caller may still be sending what nobody reads.
    Linger,
    /// It is somebody else's.
    Gone,
}

impl<'a> Connection<'a> {
    pub(super) fn new(callers: &'a Callers, from: &'a Peer, io: impl Io + 'static) -> Self {
        let limits = &callers.limits;
        Self {
            callers,
            from,
            wire: Wire::new(Box::new(io)),
            patience: Patience::new(&callers.leaving, limits.idle_timeout),
            limits: request::Limits { bytes: limits.max_head_bytes, fields: limits.max_headers },
            fresh: true,
            begun: false,
            seen: 0,
            spare: HeaderMap::new(),
        }
    }

    /// Serves one request after the other.
    pub(super) async fn serve(mut self) -> Result<Served, Error> {
        loop {
            let then = match poll_fn(|cx| self.poll_next(cx)).await? {
                Next::Request(head) => self.exchange(head).await?,
                Next::Refused(refused) => self.refuse(refused).await?,
                Next::Http2 => return Ok(Served::Http2(self.wire.release())),
                Next::None => Then::Close,
            };
            match then {
                Then::Stay => self.patience.begin(self.callers.limits.idle_timeout),
                Then::Close => self.close().await?,
                Then::Linger => {
                    self.close().await?;
                    // Late or early, there is nothing more to be done for it.
                    let _ = timeout(LINGER, poll_fn(|cx| self.wire.poll_discard(cx))).await;
                }
                Then::Gone => {}
            }
            if !matches!(then, Then::Stay) {
                return Ok(Served::Closed);
            }
        }
    }

    /// Reads the next head.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Next, Error>> {
        let mut wire = self.wire.lock();
        loop {
            let received = &mut wire.received.bytes;
            self.fresh &= PREFACE.starts_with(received) || received.starts_with(PREFACE);
            if self.fresh && received.len() >= PREFACE.len() {
                return Poll::Ready(Ok(Next::Http2));
            }
            if !self.fresh {
                match request::take(received, &mut self.seen, self.limits, &mut self.spare) {
                    Ok(Some(head)) => {
                        self.begun = false;
                        return Poll::Ready(Ok(Next::Request(head)));
                    }
                    Ok(None) => {}
                    Err(refused) => return Poll::Ready(Ok(Next::Refused(refused))),
                }
            }
            if !received.is_empty() && !self.begun {
                self.begun = true;
                self.patience.begin(self.callers.limits.head_timeout);
            }
            match wire.poll_read(cx)? {
                Poll::Ready(true) => {}
                Poll::Ready(false) if self.begun => return Poll::Ready(Err(Error::Closed)),
                Poll::Ready(false) => return Poll::Ready(Ok(Next::None)),
                Poll::Pending => break,
            }
        }
        wire.rest();
        drop(wire);
        self.patience.poll(cx).map(|tired| {
            if let Tired::Late = tired {
                let limit = if self.begun { Limit::HeadTimeout } else { Limit::Idle };
                self.callers.forwarder.metrics.limit(limit);
            }
            Ok(Next::None)
        })
    }

    async fn exchange(&mut self, head: Head) -> Result<Then, Error> {
        let Head { request, length, persistent, expects, trailers } = head;
        let asked =
            Asked { method: request.method().clone(), version: request.version(), persistent, trailers };
        let body = self.wire.begin(length, expects).map_or(Incoming::Empty, Incoming::Http1);
        let answer = {
            let mut answer = pin!(self.callers.answer(request.map(|()| body), self.from, None));
            poll_fn(|cx| match answer.as_mut().poll(cx) {
                Poll::Ready(answer) => Poll::Ready(Ok(answer)),
                Poll::Pending => self.wire.lock().poll_gone(cx).map(Err),
            })
            .await?
        };
        let Answer { response, switched } = answer;
        let Some(switched) = switched else { return self.send(response, asked).await };

        // A switch comes after all of the request (RFC 9110 section 7.8). Bytes of a body would be taken for something else.
        if !poll_fn(|cx| Poll::Ready(self.wire.lock().drain(cx))).await {
            return Err(Error::Malformed("a request that switched protocols has not ended"));
        }
        self.send(response, asked).await?;
        Box::pin(switched.run(self.wire.release())).await;
        Ok(Then::Gone)
    }

    /// Sends an answer, as it comes.
    async fn send(&mut self, response: Response<Tracked>, mut asked: Asked) -> Result<Then, Error> {
        asked.persistent &= !self.callers.leaving.is_cancelled();
        let (mut head, body) = response.into_parts();
        let mut queue = self.wire.lock().answer();
        let written = queue.text(|text| response::write(&head, &body, &asked, &date::now(), text));
        head.headers.clear();
        self.spare = head.headers;
        let body = written.body.map(|length| (body, length));
        let mut outgoing = Outgoing::new(queue, body, written.trailers);
        poll_fn(|cx| match outgoing.poll(cx, &mut self.wire) {
            Poll::Ready(sent) => Poll::Ready(sent),
            Poll::Pending => self.wire.lock().poll_gone(cx).map(Err),
        })
        .await?;
        self.wire.lock().answered(outgoing.into_queue());
        let drained = poll_fn(|cx| Poll::Ready(self.wire.lock().end(cx))).await;
        Ok(match (drained, written.persistent) {
            (false, _) => Then::Linger,
            (true, true) => Then::Stay,
            (true, false) => Then::Close,
        })
    }

    /// Answers what is no request.
    async fn refuse(&mut self, refused: Refused) -> Result<Then, Error> {
        let reason = match refused {
            Refused::Malformed(_) => Reason::BadRequest,
            Refused::TooLarge(_) => {
                self.callers.forwarder.metrics.limit(Limit::Head);
                Reason::HeadTooLarge
            }
        };
        let visit = Visit::of(&Request::new(()), self.from, &self.callers.trusted_proxies);
        let failure = Failure::new(reason, refused.to_string());
        let response = self.callers.refuse(&failure, &visit, &mut RequestTrace::default());
        let asked =
            Asked { method: Method::GET, version: Version::HTTP_11, persistent: false, trailers: false };
        self.send(response, asked).await?;
        Ok(Then::Linger)
    }

    async fn close(&mut self) -> Result<(), Error> {
        poll_fn(|cx| self.wire.lock().poll_shutdown(cx)).await?;
        Ok(())
    }
}
