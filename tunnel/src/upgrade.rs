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
//! connections that it came over carry no raw bytes (CVE-2018-1002105).

use std::{
    future::{pending, poll_fn},
    io,
    sync::Arc,
};

use bytes::{Buf as _, Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use http::{
    HeaderMap, HeaderValue, Response, StatusCode, Version,
    header::{CONNECTION, CONTENT_LENGTH, UPGRADE},
};
use parking_lot::Mutex;
use proto::header;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::{Body, BodyError, StreamMonitor, monitor::ReceiveStream};

/// Bytes that are read at once from the connection outside of the tunnel.
const READ_BYTES: usize = 32 << 10;

/// Chunks below this size are copied out of larger buffers, and joined where they wait.
const SMALL_CHUNK: usize = 4 << 10;

/// The raw stream of an upgrade inside the tunnel.
#[derive(Debug)]
pub struct Upgraded {
    sending: SendStream<Bytes>,
    receiving: ReceiveStream,
}

/// Carries an [`Upgraded`] in the extensions of a 101, which must be `Clone`.
#[derive(Clone)]
struct UpgradedSlot(Arc<Mutex<Option<Upgraded>>>);

/// A connection outside of the tunnel that has switched protocols. It travels in the extensions of a handler's 101, which
/// must be `Clone`.
#[derive(Clone)]
pub struct Outside(Arc<Mutex<Option<Box<dyn Io>>>>);

pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

impl Outside {
    /// Wraps the connection that carries the raw bytes.
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

/// Takes the raw stream out of a 101 that [`Tunnel::call`](crate::Tunnel::call) returned.
pub fn take<B>(response: &mut Response<B>) -> Option<Upgraded> {
    response.extensions_mut().remove::<UpgradedSlot>()?.0.lock().take()
}

/// Copies both ways between the tunnel and a connection outside of it, until both directions have ended.
///
/// Each direction ends on its own: the end of one is passed on as a half-close. An abort of either side aborts both, and
/// dropping the future does too.
pub async fn splice<T>(upgraded: Upgraded, outside: T) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let (reader, writer) = tokio::io::split(outside);
    tokio::try_join!(copy_outward(upgraded.receiving, writer), copy_inward(reader, upgraded.sending))?;
    Ok(())
}

/// Copies both ways between two tunnels, until both directions have ended.
pub(crate) async fn join(one: Upgraded, other: Upgraded) -> io::Result<()> {
    tokio::try_join!(copy_across(one.receiving, other.sending), copy_across(other.receiving, one.sending))?;
    Ok(())
}

impl Upgraded {
    pub(crate) fn new(sending: SendStream<Bytes>, receiving: RecvStream) -> Self {
        Self { sending, receiving: ReceiveStream::new(receiving, None) }
    }

    /// Returns a monitor of the receiving half.
    pub fn monitor(&self) -> StreamMonitor {
        self.receiving.monitor()
    }
}

/// Reads agentk's response to an extended CONNECT, at kas.
pub(crate) fn accepted(response: Response<RecvStream>, mut sending: SendStream<Bytes>) -> Response<Body> {
    let (mut head, receiving) = response.into_parts();
    head.version = Version::HTTP_11;
    match head.headers.remove(header::UPGRADED) {
        Some(protocol) if head.status == StatusCode::OK => {
            head.status = StatusCode::SWITCHING_PROTOCOLS;
            head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            head.headers.insert(UPGRADE, protocol);
            let upgraded = Upgraded::new(sending, receiving);
            head.extensions.insert(UpgradedSlot(Arc::new(Mutex::new(Some(upgraded)))));
            Response::from_parts(head, Body::empty())
        }
        _ => {
            // An ordinary response: the request has no body. This fails only if the stream has ended already.
            let _ = sending.send_data(Bytes::new(), true);
            Response::from_parts(head, Body::from_stream(receiving))
        }
    }
}

/// Makes agentk's response to an extended CONNECT from the headers of the cluster's 101.
pub(crate) fn accept(mut headers: HeaderMap) -> Response<()> {
    let protocol = headers.remove(UPGRADE).unwrap_or_else(|| HeaderValue::from_static(""));
    headers.remove(CONNECTION);
    // The stream has no length (RFC 9110 section 8.6).
    headers.remove(CONTENT_LENGTH);
    headers.insert(header::UPGRADED, protocol);
    let mut response = Response::new(());
    *response.headers_mut() = headers;
    response
}

async fn copy_outward(receiving: ReceiveStream, mut outside: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut pending = Pending::default();
    while let Some(data) = pending.next(&receiving).await {
        let mut data = data.map_err(io::Error::other)?;
        while !data.is_empty() {
            tokio::select! {
                biased;
                written = outside.write(&data) => {
                    let written = written?;
                    if written == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                    data.advance(written);
                    // Only now: a slow connection outside slows its own stream and no other.
                    receiving.release(written).map_err(io::Error::other)?;
                }
                () = pending.join(&receiving) => {}
            }
        }
        outside.flush().await?;
    }
    outside.shutdown().await
}

/// What has arrived on a stream while the chunk before it is written.
///
/// h2 counts small frames that wait in it, and ends the connection when there are too many. So small chunks are taken
/// out of it and joined; the window of the stream bounds them.
#[derive(Default)]
struct Pending {
    joined: BytesMut,
    /// The first result that was not joined.
    next: Option<Option<Result<Bytes, BodyError>>>,
}

impl Pending {
    /// Returns the next chunk, or `None` at the end of the stream.
    async fn next(&mut self, receiving: &ReceiveStream) -> Option<Result<Bytes, BodyError>> {
        if !self.joined.is_empty() {
            receiving.count_read();
            return Some(Ok(self.joined.split().freeze()));
        }
        match self.next.take() {
            Some(next) => {
                receiving.count_read();
                next
            }
            None => poll_fn(|cx| receiving.poll_data(cx)).await,
        }
    }

    /// Joins small chunks as they arrive. Completes at the first other result, and never after that. Cancel safe.
    async fn join(&mut self, receiving: &ReceiveStream) {
        if self.next.is_some() {
            return pending().await;
        }
        loop {
            match poll_fn(|cx| receiving.poll_data_ahead(cx)).await {
                Some(Ok(data)) if data.len() < SMALL_CHUNK => self.joined.extend_from_slice(&data),
                other => {
                    self.next = Some(other);
                    return;
                }
            }
        }
    }
}

async fn copy_inward(mut outside: impl AsyncRead + Unpin, mut sending: SendStream<Bytes>) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(READ_BYTES);
        let read = tokio::select! {
            read = outside.read_buf(&mut buffer) => read?,
            // Without this, an abort of the other end is noticed only when there is something to send.
            reset = wait_reset(&mut sending) => return Err(reset),
        };
        if read == 0 {
            return sending.send_data(Bytes::new(), true).map_err(io::Error::other);
        }
        let data = if read < SMALL_CHUNK {
            // A copy: a few bytes that wait in h2 would hold the whole buffer.
            let data = Bytes::copy_from_slice(&buffer);
            buffer.clear();
            data
        } else {
            buffer.split().freeze()
        };
        send_all(data, &mut sending).await?;
    }
}

async fn copy_across(receiving: ReceiveStream, mut sending: SendStream<Bytes>) -> io::Result<()> {
    loop {
        let data = tokio::select! {
            data = poll_fn(|cx| receiving.poll_data(cx)) => data,
            reset = wait_reset(&mut sending) => return Err(reset),
        };
        let Some(data) = data else {
            return sending.send_data(Bytes::new(), true).map_err(io::Error::other);
        };
        let data = data.map_err(io::Error::other)?;
        let length = data.len();
        send_all(data, &mut sending).await?;
        // Only now: a slow receiver slows its own stream and no other.
        receiving.release(length).map_err(io::Error::other)?;
    }
}

/// Completes when the other end has reset the stream, or the connection has ended.
async fn wait_reset(sending: &mut SendStream<Bytes>) -> io::Error {
    match poll_fn(|cx| sending.poll_reset(cx)).await {
        Ok(reason) => io::Error::other(h2::Error::from(reason)),
        Err(error) => io::Error::other(error),
    }
}

/// Sends all of `data` as fast as flow control allows.
async fn send_all(mut data: Bytes, sending: &mut SendStream<Bytes>) -> io::Result<()> {
    while !data.is_empty() {
        sending.reserve_capacity(data.len());
        let capacity = match sending.capacity() {
            0 => match poll_fn(|cx| sending.poll_capacity(cx)).await {
                Some(capacity) => capacity.map_err(io::Error::other)?,
                None => return Err(io::ErrorKind::BrokenPipe.into()),
            },
            capacity => capacity,
        };
        sending.send_data(data.split_to(capacity.min(data.len())), false).map_err(io::Error::other)?;
    }
    Ok(())
}
