//! Upgrades: exec, attach, port-forward, cp (SPDY/3.1 and WebSocket) on one stream of the tunnel.
//!
//! ```text
//!  caller                kas                       agentk                API server
//!    | POST, Upgrade: X   | CONNECT, :protocol: X    | POST, Upgrade: X     |
//!    |------------------->|------------------------->|--------------------->|
//!    |                    | 200, Kas-Upgraded: X     | 101                  |
//!    | 101                |<-------------------------|<---------------------|
//!    |<-------------------|                          |                      |
//!    |<====================== raw bytes, each direction ends on its own ===>|
//! ```
//!
//! Raw bytes flow only after the API server itself answered 101. Any other answer is an ordinary response, and the
//! connections it came over carry no raw bytes (CVE-2018-1002105).

use std::{future::poll_fn, io, sync::Arc};

use bytes::{Bytes, BytesMut};
use http::{
    HeaderValue, Response, StatusCode,
    header::{CONNECTION, CONTENT_LENGTH, UPGRADE},
    response,
};
use parking_lot::Mutex;
use proto::header;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::{
    Body, Grip,
    http2::{Error, Receiving, Sending},
};

/// How much is read from the outside at once.
const CHUNK: usize = 32 << 10;

/// The raw stream of an upgrade inside the tunnel.
#[derive(Debug)]
pub struct Upgraded {
    sending: Sending,
    receiving: Receiving,
}

/// Rides in the extensions of a 101, which want to be cloned.
#[derive(Clone)]
struct Slot(Arc<Mutex<Option<Upgraded>>>);

/// A connection outside of the tunnel that has switched protocols. It rides in the extensions of a handler's 101, which want to
/// be cloned.
#[derive(Clone)]
pub struct Outside(Arc<Mutex<Option<Box<dyn Io>>>>);

pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

impl Outside {
    /// Reads from `io`, and writes to it, whatever the caller and the cluster say to each other.
    pub fn new(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        Self(Arc::new(Mutex::new(Some(Box::new(io)))))
    }

    /// Takes the connection out of a 101.
    pub fn take<B>(
        response: &mut Response<B>,
    ) -> Option<impl AsyncRead + AsyncWrite + Send + Unpin + use<B>> {
        response.extensions_mut().remove::<Self>()?.0.lock().take()
    }
}

/// Takes the raw stream out of a 101 that [`crate::Tunnel::call`] returned.
pub fn take<B>(response: &mut Response<B>) -> Option<Upgraded> {
    response.extensions_mut().remove::<Slot>()?.0.lock().take()
}

/// Copies both ways between the tunnel and a connection outside of it, until both directions have ended.
///
/// Each direction ends on its own: the end of one is passed on as a half-close. An abort of either side aborts both;
/// dropping the future does too.
pub async fn splice<T>(upgraded: Upgraded, outside: T) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let (reader, writer) = tokio::io::split(outside);
    tokio::try_join!(outward(upgraded.receiving, writer), inward(reader, upgraded.sending))?;
    Ok(())
}

/// The same between two connections, for whoever stands between them.
pub(crate) async fn join(one: Upgraded, other: Upgraded) -> io::Result<()> {
    tokio::try_join!(across(one.receiving, other.sending), across(other.receiving, one.sending))?;
    Ok(())
}

impl Upgraded {
    pub(crate) fn new(sending: Sending, receiving: Receiving) -> Self {
        Self { sending, receiving }
    }

    /// A grip on what arrives.
    pub fn grip(&self) -> Grip {
        Grip(self.receiving.view())
    }
}

/// kas: reads agentk's answer to an extended CONNECT.
pub(crate) fn accepted(mut head: response::Parts, sending: Sending, receiving: Receiving) -> Response<Body> {
    match head.headers.remove(header::UPGRADED) {
        Some(protocol) if head.status == StatusCode::OK => {
            head.status = StatusCode::SWITCHING_PROTOCOLS;
            head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            head.headers.insert(UPGRADE, protocol);
            head.extensions.insert(Slot(Arc::new(Mutex::new(Some(Upgraded::new(sending, receiving))))));
            Response::from_parts(head, Body::empty())
        }
        _ => {
            // An ordinary answer: this end has nothing more to say. An error means that the stream is over already.
            let _ = sending.finish(None);
            Response::from_parts(head, Body::received(receiving, None))
        }
    }
}

/// agentk: the answer to an extended CONNECT whose upgrade the cluster accepted with these headers.
pub(crate) fn accept(mut head: response::Parts) -> response::Parts {
    let protocol = head.headers.remove(UPGRADE).unwrap_or_else(|| HeaderValue::from_static(""));
    head.headers.insert(header::UPGRADED, protocol);
    // A tunnel has no length (RFC 9110 section 8.6).
    head.headers.remove(CONTENT_LENGTH);
    head.status = StatusCode::OK;
    head
}

async fn outward(receiving: Receiving, mut outside: impl AsyncWrite + Unpin) -> io::Result<()> {
    while let Some(data) = poll_fn(|cx| receiving.poll_data(cx)).await {
        let mut data = data.map_err(into_io)?;
        let length = data.len();
        outside.write_all_buf(&mut data).await?;
        outside.flush().await?;
        // Only now: a slow outside holds the sender back, and nobody else.
        receiving.release(length);
    }
    outside.shutdown().await
}

async fn inward(mut outside: impl AsyncRead + Unpin, sending: Sending) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(CHUNK);
        let read = tokio::select! {
            read = outside.read_buf(&mut buffer) => read?,
            // Without this, a peer that aborted is noticed only when there is something to send.
            error = poll_fn(|cx| sending.poll_unwanted(cx)) => return Err(into_io(error)),
        };
        if read == 0 {
            return sending.finish(None).map_err(into_io);
        }
        send(buffer.split().freeze(), &sending).await?;
    }
}

async fn across(receiving: Receiving, sending: Sending) -> io::Result<()> {
    loop {
        let data = tokio::select! {
            data = poll_fn(|cx| receiving.poll_data(cx)) => data,
            error = poll_fn(|cx| sending.poll_unwanted(cx)) => return Err(into_io(error)),
        };
        let Some(data) = data else {
            return sending.finish(None).map_err(into_io);
        };
        let data = data.map_err(into_io)?;
        let length = data.len();
        send(data, &sending).await?;
        // Only now: a slow receiver holds the sender back, and nobody else.
        receiving.release(length);
    }
}

/// Sends all of it, as fast as the other end takes it.
async fn send(mut data: Bytes, sending: &Sending) -> io::Result<()> {
    while !data.is_empty() {
        poll_fn(|cx| sending.poll_send(&mut data, false, cx)).await.map_err(into_io)?;
    }
    Ok(())
}

fn into_io(error: Error) -> io::Error {
    io::Error::other(error)
}
