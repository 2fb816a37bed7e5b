//! One request, up to the head of its answer.

use std::{
    future::poll_fn,
    task::{Context, Poll, ready},
};

use http::{Method, Request, Response, StatusCode};
use tunnel::{Body, upgrade::Outside};

use super::{
    super::pool::Lease,
    Answer, Connection, Error,
    head::{self, Head},
};

/// Sends a request, and waits for the head of its answer. If `upgrading`, a 101 holds the raw connection.
///
/// Dropping the future closes the connection.
pub(in crate::upstream) async fn exchange(
    mut lease: Lease,
    request: Request<Body>,
    upgrading: bool,
) -> Result<Response<Answer>, Error> {
    let (request, mut outgoing) = head::outgoing(request)?;
    let connection = &mut lease.connection;
    let mut seen = 0;
    let answered = poll_fn(|cx| {
        // A server may answer before it has read all of the request.
        if let Poll::Ready(sent) = outgoing.poll(cx, connection) {
            sent?;
        }
        poll_head(cx, connection, &mut seen, &request.method)
    });
    let Head { mut parts, length, reusable } = answered.await?;

    if parts.status == StatusCode::SWITCHING_PROTOCOLS {
        if !upgrading {
            return Err(Error::Malformed("101 Switching Protocols, which was not asked for"));
        }
        parts.extensions.insert(Outside::new(lease.connection));
        return Ok(Response::from_parts(parts, Answer::default()));
    }
    // Not after an upgrade request, however it was answered: what a server does with bytes that follow a refused
    // upgrade is where request smuggling starts.
    let answer = Answer::new(lease, outgoing, length, reusable && !upgrading);
    Ok(Response::from_parts(parts, answer))
}

/// Passes over what is said before the answer (RFC 9110 section 15.2).
fn poll_head(
    cx: &mut Context<'_>,
    connection: &mut Connection,
    seen: &mut usize,
    method: &Method,
) -> Poll<Result<Head, Error>> {
    loop {
        if let Some(head) = head::take(&mut connection.received.bytes, seen, method)? {
            let status = head.parts.status;
            if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
                return Poll::Ready(Ok(head));
            }
        } else if !ready!(connection.read(cx))? {
            return Poll::Ready(Err(Error::Closed));
        }
    }
}
