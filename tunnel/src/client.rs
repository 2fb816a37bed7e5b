//! The end of a tunnel at kas: the HTTP/2 client.

use std::{io, sync::Arc};

use bytes::Bytes;
use cores::poll_on_wake;
use h2::client::Connection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::{
    CloseReason, KeepaliveConfig, Tunnel, TunnelConfig, handle::Requests, keepalive::KeepaliveState,
    overhead::OverheadCounter, request_sender::RequestSender, websocket::WebSocket,
};

/// The connection of a [`Tunnel`]. It makes progress only while [`Driver::run`] is polled.
#[must_use = "a tunnel makes no progress unless its driver runs"]
pub struct Driver<S: AsyncRead + AsyncWrite + Unpin> {
    connection: Connection<S, Bytes>,
    keepalive: KeepaliveConfig,
    keepalive_state: Arc<KeepaliveState>,
    overhead: OverheadCounter,
    closing: CancellationToken,
}

/// Starts HTTP/2 on an accepted WebSocket. Returns the handle, and the driver, which must run.
///
/// It writes the preface of HTTP/2 and does not wait for the other end.
///
/// # Errors
///
/// If the preface cannot be written.
pub fn open<T>(
    socket: WebSocket<T>,
    config: &TunnelConfig,
) -> impl Future<Output = io::Result<(Tunnel, Driver<WebSocket<T>>)>>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let (keepalive_state, overhead) = (socket.keepalive_state(), socket.overhead());
    start(socket, keepalive_state, overhead, config)
}

/// Starts HTTP/2 on a byte stream that counts the received bytes in `keepalive_state`, and those without effect in `overhead`.
pub(crate) fn start<S>(
    stream: S,
    keepalive_state: Arc<KeepaliveState>,
    overhead: OverheadCounter,
    config: &TunnelConfig,
) -> impl Future<Output = io::Result<(Tunnel, Driver<S>)>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // Outside of the future, which would have room for the stream twice.
    let handshake = config.client().handshake(stream);
    async move {
        let started = handshake.await;
        let (sender, connection) =
            started.map_err(|error| error.into_io().unwrap_or_else(|| io::ErrorKind::InvalidData.into()))?;
        let closing = CancellationToken::new();
        let sender = RequestSender { sender, overhead: overhead.clone(), stalls: config.stalls.clone() };
        let tunnel = Tunnel::new(Requests::Http2(sender), Arc::clone(&keepalive_state), closing.clone());
        Ok((tunnel, Driver { connection, keepalive: config.keepalive, keepalive_state, overhead, closing }))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    /// Reads from the connection and writes to it until the tunnel ends. Dropping the future closes the tunnel.
    #[expect(clippy::manual_async_fn, reason = "an async fn would have room for the connection twice")]
    pub fn run(mut self) -> impl Future<Output = CloseReason> {
        async move {
            let pings = self.connection.ping_pong().expect("it is taken only once");
            let end = poll_on_wake(async {
                tokio::select! {
                    () = self.keepalive.watch(pings, Arc::clone(&self.keepalive_state)) => CloseReason::TimedOut,
                    () = self.closing.cancelled() => CloseReason::LocallyClosed,
                }
            });
            tokio::select! {
                biased;
                result = &mut self.connection => match result {
                    Ok(()) => CloseReason::Graceful,
                    Err(error) => CloseReason::from_error(error, self.keepalive_state.silence(), &self.overhead),
                },
                ended = end => ended,
            }
        }
    }
}
