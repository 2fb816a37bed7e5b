//! The client of HTTP/2, by hyper.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use agentk_core::connect::BoxIo;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use hyper::{
    client::conn::http2::{Builder, Connection, SendRequest},
    rt::Executor,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use proto::ErrorChain;
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::body::Body;
use tunnel::{OverheadCounter, OverheadStream};

/// The flow-control window of a stream, in bytes: the most data of a request that the cluster has not taken yet.
const STREAM_WINDOW: u32 = 1 << 20;
/// The flow-control window of the connection, in bytes. Only the windows of streams limit the data.
const CONNECTION_WINDOW: u32 = 1 << 30;
/// The largest frame that is received, in bytes.
const MAX_FRAME: u32 = 64 << 10;
/// The most bytes of header fields in one response, plus 32 for each field.
const MAX_HEADER_BYTES: u32 = 64 << 10;
/// The most bytes of one stream that are queued for the network.
const SEND_BUFFER: usize = 256 << 10;
/// The streams that are opened before the SETTINGS of kas arrive.
const INITIAL_STREAMS: usize = 100;
/// The time without data after which a PING is sent. GitLab's kas accepts one in 20 s.
const PING_INTERVAL: Duration = Duration::from_secs(55);
/// The time that the answer to a PING may take.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// A connection that runs in a task of its own. Dropping it closes the connection.
pub(super) struct Http2Connection {
    /// kas accepts no new streams on the connection any more.
    pub(super) going_away: CancellationToken,
    pub(super) driver: AbortOnDropHandle<ConnectionEnd>,
    /// Counts the bytes without effect that kas sends.
    pub(super) overhead: OverheadCounter,
}

/// The reason why a connection to GitLab's kas ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionEnd {
    /// One end closed the connection with GOAWAY, after its last request.
    #[error("closed gracefully")]
    Graceful,
    /// The requests in flight were cut at the end of a drain.
    #[error("requests that exceeded the drain timeout were cut")]
    Cut,
    /// kas did not answer a PING in time.
    #[error("kas did not answer a PING in time")]
    TimedOut,
    /// kas sent too many bytes that carry neither requests nor data.
    #[error("kas sent too many frames without effect")]
    Flooded,
    /// The network failed, or kas violated HTTP/2.
    #[error("{}", ErrorChain(.0))]
    Lost(hyper::Error),
    /// kas accepts no more streams with the token of this connection.
    #[error("kas refuses the agent token")]
    Unauthenticated,
}

impl ConnectionEnd {
    /// Returns the label for metrics: one of those of the other protocol.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Graceful => "graceful",
            Self::Cut => "closed",
            Self::TimedOut => "timed-out",
            Self::Flooded => "flooded",
            Self::Lost(_) | Self::Unauthenticated => "lost",
        }
    }
}

/// Sends the preface of HTTP/2, and spawns the task of the connection. It does not wait for kas.
pub(super) async fn connect(io: BoxIo) -> hyper::Result<(SendRequest<Body>, Http2Connection)> {
    let io = OverheadStream::of_server(io);
    let overhead = io.counter();
    let (executor, spawned) = mpsc::unbounded_channel();
    let (sender, connection) = Builder::new(SameTask(executor))
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_send_buf_size(SEND_BUFFER)
        .initial_max_send_streams(INITIAL_STREAMS)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(io))
        .await?;
    let going_away = CancellationToken::new();
    let driver = tokio::spawn(drive(connection, spawned, going_away.clone(), overhead.clone()));
    Ok((sender, Http2Connection { going_away, driver: AbortOnDropHandle::new(driver), overhead }))
}

/// A part of a connection that hyper spawns.
type ConnectionPart = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Sends the futures of hyper to the task of the connection. They end with it.
#[derive(Clone)]
struct SameTask(mpsc::UnboundedSender<ConnectionPart>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for SameTask {
    fn execute(&self, part: F) {
        // Fails if the task has ended.
        let _ = self.0.send(Box::pin(part));
    }
}

/// Polls the connection until its last stream has ended.
async fn drive(
    connection: Connection<TokioIo<OverheadStream<BoxIo>>, Body, SameTask>,
    mut spawned: mpsc::UnboundedReceiver<ConnectionPart>,
    going_away: CancellationToken,
    overhead: OverheadCounter,
) -> ConnectionEnd {
    let mut parts = FuturesUnordered::new();
    let mut connection = Some(connection);
    let mut end = ConnectionEnd::Graceful;
    poll_fn(|cx| {
        loop {
            while let Poll::Ready(Some(part)) = spawned.poll_recv(cx) {
                parts.push(part);
            }
            while let Poll::Ready(Some(())) = parts.poll_next_unpin(cx) {}
            // After the parts, one of which reads from the connection: this future completes when it is polled after a GOAWAY, and
            // nothing wakes it then.
            if let Some(running) = &mut connection
                && let Poll::Ready(result) = Pin::new(running).poll(cx)
            {
                connection = None;
                end = match result {
                    _ if overhead.is_exceeded() => ConnectionEnd::Flooded,
                    Ok(()) => ConnectionEnd::Graceful,
                    Err(error) if error.is_timeout() => ConnectionEnd::TimedOut,
                    Err(error) => ConnectionEnd::Lost(error),
                };
                going_away.cancel();
            }
            if spawned.is_empty() {
                break;
            }
        }
        if connection.is_none() && parts.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    end
}
