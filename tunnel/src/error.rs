//! Why a request got no response, and why a tunnel ended.

use std::io;

use http::{Request, request::Parts};

use crate::{Body, BodyError};

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
    /// The tunnel had ended, or was draining, before the request was sent.
    #[error("the tunnel takes no more requests")]
    Closed,
    /// agentk refused the stream before it looked at the request.
    #[error("the agent refused the request unseen")]
    Refused,
    /// The connection was lost while the request was in flight.
    #[error("the tunnel was lost before the agent answered: {0}")]
    Lost(#[source] h2::Error),
    /// agentk reset the stream of this request.
    #[error("the agent aborted the request ({0})")]
    Reset(h2::Reason),
    /// The body of the request failed. The other end sees an abort.
    #[error("the request's body did not arrive whole: {0}")]
    Body(#[source] BodyError),
    /// The request has no form in HTTP/2, or agentk does not support what its hello promised.
    #[error("the request cannot travel through the tunnel: {0}")]
    Unsupported(&'static str),
}

/// How far a failed request got: what a retry may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The other end has certainly not acted on it.
    NotProcessed,
    /// The other end may have acted on it.
    Unknown,
}

/// Why a tunnel ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The other end closed it after it had finished the requests in flight.
    #[error("left in good order")]
    Gracefully,
    /// This end closed it, by [`Tunnel::close`](crate::Tunnel::close) or at the end of a drain.
    #[error("cut from this side")]
    Cut,
    /// The other end did not answer a ping in time.
    #[error("no sign of life from the other end")]
    Silent,
    /// The network failed, or the process at the other end is gone.
    #[error("connection lost: {0}")]
    Lost(io::Error),
    /// One end broke HTTP/2 or exceeded a limit of it.
    #[error("the connection was ended for a protocol error: {0}")]
    Protocol(h2::Error),
}

impl CallError {
    pub(crate) fn unsent(kind: CallErrorKind, head: Parts, body: Body) -> Self {
        let request = Some(Box::new(Request::from_parts(head, body)));
        Self { kind, delivery: Delivery::NotProcessed, request }
    }

    pub(crate) fn sent(error: h2::Error, head: Parts, body: Option<Body>) -> Self {
        let (kind, delivery) = match error.reason() {
            // RFC 9113 section 8.7: both guarantee that the request was not processed.
            Some(h2::Reason::REFUSED_STREAM) => (CallErrorKind::Refused, Delivery::NotProcessed),
            Some(h2::Reason::NO_ERROR) if error.is_go_away() => {
                (CallErrorKind::Closed, Delivery::NotProcessed)
            }
            Some(reason) if error.is_reset() => (CallErrorKind::Reset(reason), Delivery::Unknown),
            _ => (CallErrorKind::Lost(error), Delivery::Unknown),
        };
        let request = body.map(|body| Box::new(Request::from_parts(head, body)));
        Self { kind, delivery, request }
    }

    pub(crate) fn body(error: BodyError) -> Self {
        Self { kind: CallErrorKind::Body(error), delivery: Delivery::Unknown, request: None }
    }
}

impl Ended {
    /// Returns the label for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Gracefully => "graceful",
            Self::Cut => "cut",
            Self::Silent => "silent",
            Self::Lost(_) => "lost",
            Self::Protocol(_) => "protocol",
        }
    }
}

impl From<Result<(), h2::Error>> for Ended {
    fn from(result: Result<(), h2::Error>) -> Self {
        match result {
            Ok(()) => Self::Gracefully,
            Err(error) => error.into(),
        }
    }
}

impl From<h2::Error> for Ended {
    fn from(error: h2::Error) -> Self {
        match error.reason() {
            Some(h2::Reason::NO_ERROR) => Self::Gracefully,
            _ if error.is_io() => Self::Lost(readable(error.into_io().expect("checked above"))),
            _ => Self::Protocol(error),
        }
    }
}

/// Replaces the text of rustls, which refers programmers to its documentation.
fn readable(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            io::Error::new(error.kind(), "the other end closed the connection without announcing it")
        }
        _ => error,
    }
}
