//! The reasons why a request got no response, and why a tunnel ended.

use std::{io, time::Duration};

use http::{Request, request::Parts};
use proto::Delivery;

use crate::{Body, BodyError, overhead::OverheadCounter};

/// A failed request.
#[derive(Debug, thiserror::Error)]
#[error("{kind}")]
pub struct CallError {
    /// The reason of the failure.
    pub kind: CallErrorKind,
    /// The possibility that the other end has processed the request.
    pub delivery: Delivery,
    /// The request as it was given to [`Tunnel::call`](crate::Tunnel::call), if its body is still whole.
    pub request: Option<Box<Request<Body>>>,
}

/// The reason why a request got no response.
#[derive(Debug, thiserror::Error)]
pub enum CallErrorKind {
    /// The tunnel had ended, or was draining, before the request was sent.
    #[error("the tunnel accepts no more requests")]
    Closed,
    /// agentk refused the stream and did not process the request.
    #[error("the agent refused the request without processing it")]
    Refused,
    /// agentk serves as many requests as it can at the same time, and the request was not sent.
    #[error("the agent serves as many requests as it can")]
    Busy,
    /// The connection was lost while the request was in flight.
    #[error("the tunnel was lost before the agent responded: {0}")]
    Lost(#[source] h2::Error),
    /// agentk reset the stream of the request.
    #[error("the agent aborted the request ({0})")]
    Reset(h2::Reason),
    /// The body of the request failed. The stream was reset.
    #[error("the request's body did not arrive whole: {0}")]
    Body(#[source] BodyError),
    /// The request is not valid in HTTP/2, or agentk does not support extended CONNECT.
    #[error("the tunnel cannot carry the request: {0}")]
    Unsupported(&'static str),
}

impl CallErrorKind {
    /// Classifies the error of a request that h2 did not accept.
    pub(crate) fn not_sent(error: &h2::Error) -> Self {
        // Errors of the connection have a reason or an I/O error. The other ones are about the request: it would fail in every
        // tunnel.
        if error.is_io() || error.reason().is_some() {
            Self::Closed
        } else {
            Self::Unsupported("its headers are not valid in HTTP/2")
        }
    }
}

/// The reason why a tunnel ended.
#[derive(Debug, thiserror::Error)]
pub enum CloseReason {
    /// One end announced the end with GOAWAY.
    #[error("closed gracefully")]
    Graceful,
    /// This end closed the tunnel, by [`Tunnel::close`](crate::Tunnel::close) or at the end of a drain.
    #[error("closed by this end")]
    LocallyClosed,
    /// The other end did not answer a ping in time.
    #[error("the other end did not answer a ping in time")]
    TimedOut,
    /// The network failed, a proxy closed the connection, or the process at the other end ended.
    #[error("connection lost after {silence:.1?} without a byte: {error}")]
    Lost {
        /// The error of the connection.
        error: io::Error,
        /// The time from the last byte received to the end.
        silence: Duration,
    },
    /// One end violated HTTP/2 or exceeded a limit of it.
    #[error("the connection ended with a protocol error: {0}")]
    Protocol(h2::Error),
    /// The other end sent too many frames that carry neither requests, responses nor data.
    #[error("the other end sent too many frames without effect")]
    Flooded,
}

impl CallError {
    pub(crate) fn unsent(kind: CallErrorKind, head: Parts, body: Body) -> Self {
        let request = Some(Box::new(Request::from_parts(head, body)));
        Self { kind, delivery: Delivery::NotProcessed, request }
    }

    /// Classifies the error of a request that h2 has sent. `interim`: an interim response (1xx) has arrived.
    pub(crate) fn sent(error: h2::Error, head: Parts, body: Option<Body>, interim: bool) -> Self {
        let (kind, delivery) = match error.reason() {
            // RFC 9113 section 8.7: REFUSED_STREAM and GOAWAY guarantee that the request was not processed. An end that has
            // begun to respond has processed it.
            Some(h2::Reason::REFUSED_STREAM) if !interim => (CallErrorKind::Refused, Delivery::NotProcessed),
            Some(h2::Reason::NO_ERROR) if error.is_go_away() && !interim => {
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

impl CloseReason {
    /// All values of [`CloseReason::label`].
    pub const LABELS: [&str; 6] = ["graceful", "closed", "timed-out", "lost", "protocol", "flooded"];

    /// Returns the label for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Graceful => "graceful",
            Self::LocallyClosed => "closed",
            Self::TimedOut => "timed-out",
            Self::Lost { .. } => "lost",
            Self::Protocol(_) => "protocol",
            Self::Flooded => "flooded",
        }
    }

    /// Classifies the error that ended a connection. `silence` is the time since the last byte received.
    pub(crate) fn from_error(error: h2::Error, silence: Duration, overhead: &OverheadCounter) -> Self {
        match error.reason() {
            _ if overhead.is_exceeded() => Self::Flooded,
            Some(h2::Reason::NO_ERROR) => Self::Graceful,
            _ if error.is_io() => {
                let error = with_plain_text(error.into_io().expect("it is an I/O error"));
                Self::Lost { error, silence }
            }
            _ => Self::Protocol(error),
        }
    }
}

/// Replaces the texts of rustls, which refer programmers to its documentation, and of the standard library.
fn with_plain_text(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionAborted => {
            let what = "it was closed without GOAWAY, by a proxy or by the end of the process";
            io::Error::new(error.kind(), what)
        }
        _ => error,
    }
}
