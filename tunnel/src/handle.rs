//! kas's end of a tunnel: send it a request.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use http::{Request, Response, header::UPGRADE, request::Parts};
use http_body::Body as _;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    Body, BodyError, Driver, Settings, Stalls,
    http2::{self, Connection, Error, Reason, Receiving, Role, Sending, Shared, Transport, Unsent},
    keepalive::Liveness,
    pump::{Pump, Sent},
    upgrade,
    websocket::WebSocket,
};

/// A connection to one agentk. Cheap to clone; all clones share the connection.
#[derive(Clone, Debug)]
pub struct Tunnel {
    shared: Arc<Shared>,
    liveness: Arc<Liveness>,
    stalls: Stalls,
}

/// A request that got no response.
#[derive(Debug, thiserror::Error)]
#[error("{kind}")]
pub struct CallError {
    /// What happened.
    pub kind: CallErrorKind,
    /// How far the request got.
    pub delivery: Delivery,
    /// The request as it was given, if its body is still whole.
    pub request: Option<Box<Request<Body>>>,
}

/// What happened to a request that got no response.
#[derive(Debug, thiserror::Error)]
pub enum CallErrorKind {
    /// The tunnel was gone, or leaving, before the request was sent.
    #[error("the tunnel takes no more requests")]
    Closed,
    /// agentk refused the stream without looking at it.
    #[error("the agent refused the request unseen")]
    Refused,
    /// The connection was lost while the request was under way.
    #[error("the tunnel was lost before the agent answered: {0}")]
    Lost(#[source] Error),
    /// agentk gave this one request up.
    #[error("the agent aborted the request ({0})")]
    Reset(Reason),
    /// The request's own body failed; the other end sees an abort.
    #[error("the request's body did not arrive whole: {0}")]
    Body(#[source] BodyError),
    /// The request cannot be expressed in HTTP/2, or agentk does not speak what its hello promised.
    #[error("the request cannot travel through the tunnel: {0}")]
    Unsupported(&'static str),
}

/// How far a failed request got: what a retry may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The other end has certainly not acted on it.
    NotProcessed,
    /// It may have been acted on.
    Unknown,
}

/// Starts HTTP/2 on an accepted WebSocket: the handle, and the driver that must be run for anything to happen.
pub fn open<T>(socket: WebSocket<T>, settings: &Settings) -> (Tunnel, Driver<WebSocket<T>>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let liveness = socket.liveness();
    start(socket, liveness, settings)
}

/// Starts HTTP/2 on a stream of bytes whose `liveness` counts what is heard on it.
pub(crate) fn start<S>(stream: S, liveness: Arc<Liveness>, settings: &Settings) -> (Tunnel, Driver<S>)
where
    S: Transport,
{
    let connection = Connection::new(stream, Role::Client, settings);
    let (shared, stalls) = (Arc::clone(connection.shared()), settings.stalls.clone());
    let driver = Driver::new(connection, settings.keepalive, Arc::clone(&liveness));
    (Tunnel { shared, liveness, stalls }, driver)
}

impl Tunnel {
    /// Sends a request and waits for the head of its response.
    ///
    /// A request with an `Upgrade` header travels as extended CONNECT; where the cluster agreed, the response has status
    /// 101 and [`upgrade::take`] gives the raw stream. Dropping the future, or the response's body, cancels the
    /// request at the other end at once.
    pub async fn call(&self, request: Request<Body>) -> Result<Response<Body>, CallError> {
        let (head, body) = request.into_parts();
        let Ok(upgrade) = head.headers.get(UPGRADE).map(|protocol| protocol.to_str()).transpose() else {
            return Err(CallError::unsent(NOT_ASCII, head, body));
        };
        let bodyless = upgrade.is_none() && body.is_end_stream();
        let (sending, receiving) = match http2::ask(&self.shared, &head, upgrade, bodyless).await {
            Ok(halves) => halves,
            Err(unsent) => return Err(CallError::unsent(unsent.into(), head, body)),
        };
        match sending {
            None => answer_to_head(receiving, head, body).await,
            Some(sending) if upgrade.is_some() => answer_to_upgrade(sending, receiving, head, body).await,
            Some(sending) => {
                let pump = Pump::new(body, sending, self.stalls.clone());
                answer_to_body(pump, receiving, head).await
            }
        }
    }

    /// Waits until agentk has answered for the first time: its limits and what it supports are known then. Before that, a
    /// request may be refused that would not be later. Never completes if the tunnel ends first.
    pub async fn ready(&self) {
        self.liveness.answered().await;
    }

    /// Cuts the tunnel: everything in flight is aborted.
    pub fn close(&self) {
        self.shared.cut();
    }

    /// The round trip that the keepalive measured last.
    pub fn round_trip(&self) -> Option<Duration> {
        self.liveness.round_trip()
    }
}

/// The request is all there is of it.
async fn answer_to_head(
    mut receiving: Receiving,
    head: Parts,
    body: Body,
) -> Result<Response<Body>, CallError> {
    match poll_fn(|cx| receiving.poll_answer(cx)).await {
        Ok((answer, Some(whole))) => Ok(Response::from_parts(answer, whole.into())),
        Ok((answer, None)) => Ok(Response::from_parts(answer, Body::received(receiving, None))),
        Err(error) => Err(CallError::sent(error, head, Some(body))),
    }
}

/// The request's body moves while the response is awaited, and afterwards along with the response's.
async fn answer_to_body(
    mut pump: Pump,
    mut receiving: Receiving,
    head: Parts,
) -> Result<Response<Body>, CallError> {
    let mut sent = false;
    let answer = poll_fn(|cx| {
        if !sent {
            match pump.poll(cx) {
                Poll::Ready(Sent::Broken(error)) => return Poll::Ready(Err(error)),
                polled => sent = polled.is_ready(),
            }
        }
        receiving.poll_answer(cx).map(Ok)
    })
    .await;

    match answer {
        Err(error) => {
            let kind = CallErrorKind::Body(error);
            Err(CallError { kind, delivery: Delivery::Unknown, request: None })
        }
        Ok(Ok((answer, Some(whole)))) => Ok(Response::from_parts(answer, whole.into())),
        Ok(Ok((answer, None))) => {
            pump.forget();
            let sending = (!sent).then_some(pump);
            Ok(Response::from_parts(answer, Body::received(receiving, sending)))
        }
        Ok(Err(error)) => Err(CallError::sent(error, head, pump.into_whole())),
    }
}

async fn answer_to_upgrade(
    sending: Sending,
    mut receiving: Receiving,
    head: Parts,
    body: Body,
) -> Result<Response<Body>, CallError> {
    match poll_fn(|cx| receiving.poll_answer(cx)).await {
        Ok((answer, _)) => Ok(upgrade::accepted(answer, sending, receiving)),
        Err(error) => Err(CallError::sent(error, head, Some(body))),
    }
}

const NOT_ASCII: CallErrorKind = CallErrorKind::Unsupported("the Upgrade header is not ASCII");

impl From<Unsent> for CallErrorKind {
    fn from(unsent: Unsent) -> Self {
        match unsent {
            Unsent::Full => unreachable!("that is waited for"),
            Unsent::Closed => Self::Closed,
            Unsent::NoExtendedConnect => {
                Self::Unsupported("the agent has not enabled extended CONNECT (RFC 8441)")
            }
        }
    }
}

impl CallError {
    fn unsent(kind: CallErrorKind, head: Parts, body: Body) -> Self {
        let request = Some(Box::new(Request::from_parts(head, body)));
        Self { kind, delivery: Delivery::NotProcessed, request }
    }

    fn sent(error: Error, head: Parts, body: Option<Body>) -> Self {
        let (kind, delivery) = match error {
            // RFC 9113 section 8.7: both guarantee that the request was not processed.
            Error::Reset(Reason::REFUSED_STREAM) => (CallErrorKind::Refused, Delivery::NotProcessed),
            Error::Unseen => (CallErrorKind::Closed, Delivery::NotProcessed),
            Error::Reset(reason) => (CallErrorKind::Reset(reason), Delivery::Unknown),
            Error::Malformed(_) => (CallErrorKind::Reset(Reason::PROTOCOL_ERROR), Delivery::Unknown),
            error => (CallErrorKind::Lost(error), Delivery::Unknown),
        };
        let request = body.map(|body| Box::new(Request::from_parts(head, body)));
        Self { kind, delivery, request }
    }
}
