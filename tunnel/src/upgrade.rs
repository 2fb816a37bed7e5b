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
//! Raw bytes flow only after the API server itself responded with 101. Any other response is an ordinary one, and its stream
//! carries no raw bytes (CVE-2018-1002105).

use std::{fmt, future::poll_fn, io, sync::Arc, time::Duration};

use bytes::{Buf as _, Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream};
use http::{
    HeaderMap, HeaderValue, Response, StatusCode, Version,
    header::{CONNECTION, CONTENT_LENGTH, UPGRADE},
};
use parking_lot::Mutex;
use proto::header;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::Notify,
    time::sleep,
};

use crate::{
    Body, BodyError, StreamMonitor, monitor::ReceiveStream, overhead::OverheadCounter, send_body::SMALL_CHUNK,
};

/// Bytes that are read at once from a connection outside of the tunnel.
const READ_BYTES: usize = 32 << 10;
/// Bytes that are read at once where a task carries the bytes of the tunnel.
const IO_BYTES: usize = 8 << 10;
/// The time for which input is still read after the output has ended.
const LINGER: Duration = Duration::from_secs(2);

/// The raw stream of an upgrade inside the tunnel.
#[derive(Debug)]
pub struct UpgradedStream(RawStream);

enum RawStream {
    Http2 {
        sending: SendStream<Bytes>,
        receiving: ReceiveStream,
    },
    /// A connection to the task that carries the bytes.
    Io {
        io: Box<dyn RawIo>,
        monitor: StreamMonitor,
    },
}

/// Carries an [`UpgradedStream`] in the extensions of a 101, which must be `Clone`.
#[derive(Clone)]
struct UpgradedSlot(Arc<Mutex<Option<UpgradedStream>>>);

/// A connection outside of the tunnel that has switched protocols. A handler puts it into the extensions of its 101, which
/// must be `Clone`.
#[derive(Clone)]
pub struct UpgradedConnection(Arc<Mutex<Option<Box<dyn RawIo>>>>);

pub(crate) trait RawIo: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> RawIo for T {}

impl UpgradedConnection {
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

/// Takes the raw stream out of a 101 of [`Tunnel::call`](crate::Tunnel::call). Returns `None` for any other response.
pub fn take<B>(response: &mut Response<B>) -> Option<UpgradedStream> {
    response.extensions_mut().remove::<UpgradedSlot>()?.0.lock().take()
}

/// Copies both ways between the tunnel and a connection outside of it, until both directions have ended.
///
/// Each direction ends on its own: its end is forwarded as a half-close. An error of either side aborts both, and so does
/// dropping the future. A tunnel that takes no more input may still have output, which arrives.
///
/// # Errors
///
/// If either side is aborted.
pub async fn splice<T>(upgraded: UpgradedStream, outside: T) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    match upgraded.0 {
        RawStream::Http2 { mut sending, receiving } => {
            let (reader, writer) = tokio::io::split(outside);
            tokio::try_join!(copy_outward(receiving, writer), copy_inward(reader, &mut sending))?;
        }
        RawStream::Io { io, .. } => splice_io(io, outside).await?,
    }
    Ok(())
}

/// Copies both ways between the task that carries the bytes of the tunnel and a connection outside of it.
async fn splice_io(
    tunnel: impl AsyncRead + AsyncWrite + Unpin,
    outside: impl AsyncRead + AsyncWrite + Unpin,
) -> io::Result<()> {
    let (from_tunnel, to_tunnel) = tokio::io::split(tunnel);
    let (from_outside, to_outside) = tokio::io::split(outside);
    let ended = Notify::new();
    let output = async {
        copy_io(from_tunnel, to_outside).await.map_err(CopyError::into_inner)?;
        ended.notify_one();
        Ok(())
    };
    let mut from_outside = from_outside;
    let input = async {
        match copy_io(&mut from_outside, to_tunnel).await {
            Ok(()) => Ok(()),
            Err(CopyError::Read(error)) => Err(error),
            Err(CopyError::Write(_)) => {
                // A connection that is closed with unread bytes is reset, and the output on its way is lost (RFC 9112, section 9.6).
                let lingering = async {
                    ended.notified().await;
                    sleep(LINGER).await;
                };
                let mut nowhere = tokio::io::sink();
                tokio::select! {
                    read = tokio::io::copy(&mut from_outside, &mut nowhere) => read.map(drop),
                    () = lingering => Ok(()),
                }
            }
        }
    };
    tokio::try_join!(output, input).map(drop)
}

/// Copies both ways between the tunnel and the connection of a cluster, as [`splice`] does. The bytes that were read before an error still
/// arrive at kas.
pub(crate) async fn splice_cluster<T>(
    mut sending: SendStream<Bytes>,
    receiving: ReceiveStream,
    cluster: T,
) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let (reader, writer) = tokio::io::split(cluster);
    let copied = tokio::try_join!(copy_outward(receiving, writer), copy_inward(reader, &mut sending));
    if copied.is_err() {
        // h2 discards unsent bytes when an unfinished stream is dropped. This fails if kas has reset the stream.
        let _ = sending.send_data(Bytes::new(), true);
    }
    copied.map(|_| ())
}

/// Copies both ways between two tunnels, until both directions have ended.
pub(crate) async fn splice_streams(one: UpgradedStream, other: UpgradedStream) -> io::Result<()> {
    match (one.0, other.0) {
        (
            RawStream::Http2 { sending: to_one, receiving: from_one },
            RawStream::Http2 { sending: to_other, receiving: from_other },
        ) => {
            tokio::try_join!(copy_across(from_one, to_other), copy_across(from_other, to_one))?;
            Ok(())
        }
        (RawStream::Io { io, .. }, stream) | (stream, RawStream::Io { io, .. }) => {
            splice(UpgradedStream(stream), io).await
        }
    }
}

impl UpgradedStream {
    pub(crate) fn new(sending: SendStream<Bytes>, receiving: ReceiveStream) -> Self {
        Self(RawStream::Http2 { sending, receiving })
    }

    /// Wraps a connection to the task that carries the bytes. `monitor` observes the stream from which this task receives them.
    pub fn from_io(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, monitor: StreamMonitor) -> Self {
        Self(RawStream::Io { io: Box::new(io), monitor })
    }

    /// Returns a monitor of the receiving half.
    pub fn monitor(&self) -> StreamMonitor {
        match &self.0 {
            RawStream::Http2 { receiving, .. } => receiving.monitor(),
            RawStream::Io { monitor, .. } => monitor.clone(),
        }
    }

    /// Puts the raw stream into a 101, out of which [`take`] takes it.
    pub fn put_into<B>(self, response: &mut Response<B>) {
        response.extensions_mut().insert(UpgradedSlot(Arc::new(Mutex::new(Some(self)))));
    }
}

impl fmt::Debug for RawStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RawStream")
    }
}

/// Turns the response of agentk to an extended CONNECT into the response to an upgrade, at kas.
pub(crate) fn into_response(
    response: Response<RecvStream>,
    mut sending: SendStream<Bytes>,
    overhead: &OverheadCounter,
) -> Response<Body> {
    let (mut head, receiving) = response.into_parts();
    head.version = Version::HTTP_11;
    match head.headers.remove(header::UPGRADED) {
        Some(protocol) if head.status == StatusCode::OK => {
            head.status = StatusCode::SWITCHING_PROTOCOLS;
            head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            head.headers.insert(UPGRADE, protocol);
            let mut response = Response::from_parts(head, Body::empty());
            UpgradedStream::new(sending, ReceiveStream::new(receiving, None, overhead))
                .put_into(&mut response);
            response
        }
        _ => {
            // The upgrade was refused, and the request has no body. This fails only if the stream has ended already.
            let _ = sending.send_data(Bytes::new(), true);
            Response::from_parts(head, Body::from_stream(receiving, overhead))
        }
    }
}

/// Makes the response of agentk to an extended CONNECT from the headers of the cluster's 101.
pub(crate) fn connect_response(mut headers: HeaderMap) -> Response<()> {
    let protocol = headers.remove(UPGRADE).unwrap_or_else(|| HeaderValue::from_static(""));
    headers.remove(CONNECTION);
    // A response to CONNECT has no length (RFC 9110 section 8.6).
    headers.remove(CONTENT_LENGTH);
    headers.insert(header::UPGRADED, protocol);
    let mut response = Response::new(());
    *response.headers_mut() = headers;
    response
}

async fn copy_outward(receiving: ReceiveStream, mut outside: impl AsyncWrite + Unpin) -> io::Result<()> {
    while let Some(data) = next_data(&receiving).await {
        let mut data = data?;
        while !data.is_empty() {
            let written = outside.write(&data).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            data.advance(written);
            // Released after the write: a slow connection slows its own stream and no other.
            receiving.release(written).map_err(io::Error::other)?;
        }
        outside.flush().await?;
    }
    outside.shutdown().await
}

async fn copy_inward(mut outside: impl AsyncRead + Unpin, sending: &mut SendStream<Bytes>) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(READ_BYTES);
        let read = tokio::select! {
            read = outside.read_buf(&mut buffer) => read?,
            // Without this branch, a reset is detected only when there are bytes to send.
            reset = wait_reset(sending) => return reset,
        };
        if read == 0 {
            return sending.send_data(Bytes::new(), true).map_err(io::Error::other);
        }
        let data = if read < SMALL_CHUNK {
            // Copied: a few bytes that wait in h2 would keep the whole buffer alive.
            let data = Bytes::copy_from_slice(&buffer);
            buffer.clear();
            data
        } else {
            buffer.split().freeze()
        };
        send_all(data, sending).await?;
    }
}

async fn copy_across(receiving: ReceiveStream, mut sending: SendStream<Bytes>) -> io::Result<()> {
    loop {
        let data = tokio::select! {
            data = next_data(&receiving) => data,
            reset = wait_reset(&mut sending) => return reset,
        };
        let Some(data) = data else {
            return sending.send_data(Bytes::new(), true).map_err(io::Error::other);
        };
        let data = data?;
        let length = data.len();
        send_all(data, &mut sending).await?;
        // Released after the send: a slow receiver slows its own stream and no other.
        receiving.release(length).map_err(io::Error::other)?;
    }
}

/// The side of a copy that has failed.
enum CopyError {
    Read(io::Error),
    Write(io::Error),
}

impl CopyError {
    fn into_inner(self) -> io::Error {
        match self {
            Self::Read(error) | Self::Write(error) => error,
        }
    }
}

/// Copies one direction between two connections until its end, which it forwards.
async fn copy_io(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> Result<(), CopyError> {
    let mut buffer = BytesMut::with_capacity(IO_BYTES);
    loop {
        if from.read_buf(&mut buffer).await.map_err(CopyError::Read)? == 0 {
            return to.shutdown().await.map_err(CopyError::Write);
        }
        to.write_all(&buffer).await.map_err(CopyError::Write)?;
        to.flush().await.map_err(CopyError::Write)?;
        buffer.clear();
    }
}

/// Returns the next bytes, or `None` at the end.
///
/// agentk ends its half before it resets a stream with NO_ERROR, and h2 returns that reset in place of the end.
async fn next_data(receiving: &ReceiveStream) -> Option<io::Result<Bytes>> {
    match poll_fn(|cx| receiving.poll_data(cx)).await? {
        Ok(data) => Some(Ok(data)),
        Err(BodyError::Tunnel(error)) if error.reason() == Some(Reason::NO_ERROR) => None,
        Err(error) => Some(Err(io::Error::other(error))),
    }
}

/// Waits until the other end resets the stream or the connection ends.
///
/// # Errors
///
/// The reason, unless it is NO_ERROR: then the other end has sent everything, and only reads no more (RFC 9113 section 8.1).
async fn wait_reset(sending: &mut SendStream<Bytes>) -> io::Result<()> {
    match poll_fn(|cx| sending.poll_reset(cx)).await {
        Ok(Reason::NO_ERROR) => Ok(()),
        Ok(reason) => Err(io::Error::other(h2::Error::from(reason))),
        Err(error) => Err(io::Error::other(error)),
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

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    /// GitLab's agentk has ended the stream with its output, and the caller sends input meanwhile.
    #[tokio::test(start_paused = true)]
    async fn output_arrives_although_the_tunnel_takes_no_more_input() {
        let (near, mut agent) = duplex(64 << 10);
        agent.write_all(&[7; 3000]).await.unwrap();
        drop(agent);
        // The caller reads slowly.
        let (outside, mut caller) = duplex(16);
        caller.write_all(b"input").await.unwrap();
        let mut output = Vec::new();
        let (spliced, read) = tokio::join!(splice_io(near, outside), caller.read_to_end(&mut output));
        assert!(spliced.is_ok() && read.is_ok(), "{spliced:?} {read:?}");
        assert_eq!(output, [7; 3000]);
    }
}
