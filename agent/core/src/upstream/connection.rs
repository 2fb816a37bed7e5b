//! HTTP/1.1 connections of hyper, without tasks of their own, and the pool of the unused ones.
//!
//! hyper separates the sender of requests from the connection that reads and writes, so that a task can poll the latter. Here
//! both stay together: the future of a request, or the body of its response, polls the connection. That saves two wake-ups
//! per request, and dropping either closes the connection at once, even while hyper waits to write.
//!
//! While the body of a response is not polled, the request is not written either.

use std::{
    future::poll_fn,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::{
        TrySendError,
        http1::{self, Parts, SendRequest},
    },
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use proto::ErrorChain;
use tokio::time::{Instant, sleep};
use tunnel::Body;

use super::stream::{Io, ServerStream};

/// The most bytes that are read at once, and the longest head of a response.
const MAX_BUFFER: usize = 256 << 10;

/// The time that unused connections beyond `max_idle` are kept. In a burst, each of them is used again at once; if it were
/// closed, every request of the burst would need a new one.
const SURPLUS_TIMEOUT: Duration = Duration::from_secs(2);
/// The most unused connections.
const MAX_UNUSED: usize = 1024;

/// hyper's connection and its sender of requests.
pub(super) struct UpstreamConnection {
    sender: SendRequest<Body>,
    /// Boxed, since connections move between the pool and requests.
    driver: Option<Box<http1::Connection<TokioIo<ServerStream>, Body>>>,
    /// The stream, once hyper has ended the connection.
    parts: Option<Parts<TokioIo<ServerStream>>>,
    written: Arc<AtomicU64>,
    read: Arc<AtomicU64>,
}

/// The unused connections of one core.
pub(super) struct Pool {
    max_idle: usize,
    idle_timeout: Duration,
    state: Mutex<PoolState>,
}

struct PoolState {
    /// In the order of their last use. The most recent one is used first, so that after a burst the surplus expires.
    idle: Vec<IdleConnection>,
    generation: u64,
    /// True while a task closes expired connections.
    has_reaper: bool,
}

struct IdleConnection {
    since: Instant,
    connection: UpstreamConnection,
}

/// A connection of a pool that is in use for one request. Dropping it closes the connection.
pub(super) struct PooledConnection {
    pub(super) connection: UpstreamConnection,
    /// The time that the connection was unused; `None` if it is new.
    pub(super) unused: Option<Duration>,
    generation: u64,
    pool: Arc<Pool>,
}

impl UpstreamConnection {
    pub(super) async fn new(io: impl Io, write_timeout: Duration) -> hyper::Result<Self> {
        let stream = ServerStream::new(io, write_timeout);
        let (written, read, io) = (stream.written(), stream.read(), TokioIo::new(stream));
        let (sender, driver) = http1::Builder::new().max_buf_size(MAX_BUFFER).handshake(io).await?;
        Ok(Self { sender, driver: Some(Box::new(driver)), parts: None, written, read })
    }

    /// Queues a request. The future makes no progress unless [`Self::poll`] is called.
    pub(super) fn send(
        &mut self,
        request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Body>>>> + use<> {
        self.sender.try_send_request(request)
    }

    /// Reads and writes as much as possible.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        let Some(driver) = &mut self.driver else { return };
        let Poll::Ready(ended) = driver.poll_without_shutdown(cx) else { return };
        if let Err(error) = ended {
            tracing::debug!(error = %ErrorChain(&error), "upstream connection failed");
        }
        // Drops hyper's end of the queue of requests, so that an unsent request is returned.
        self.parts = self.driver.take().map(|driver| driver.into_parts());
    }

    /// Returns the number of bytes written, over all exchanges.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// Returns the number of bytes read, over all exchanges.
    pub(super) fn read(&self) -> u64 {
        self.read.load(Relaxed)
    }

    /// Returns true once the last exchange is complete in both directions, so that another may begin.
    pub(super) fn is_idle(&self) -> bool {
        self.driver.is_some() && self.sender.is_ready()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.driver.is_none()
    }

    /// Returns true if a request may be sent now: the server has neither closed nor sent unexpected bytes.
    pub(super) fn is_ready(&mut self) -> bool {
        self.poll(&mut Context::from_waker(Waker::noop()));
        self.is_idle()
    }

    /// Returns true if the connection ended with received bytes that hyper had not parsed.
    pub(super) fn has_unparsed_bytes(&self) -> bool {
        self.parts.as_ref().is_some_and(|parts| !parts.read_buf.is_empty())
    }

    /// Waits until hyper has ended the connection, which it does after a 101, and returns the stream and the bytes that
    /// were received after the head.
    pub(super) async fn into_stream(mut self) -> (ServerStream, Bytes) {
        let ended = poll_fn(|cx| {
            self.poll(cx);
            self.parts.take().map_or(Poll::Pending, Poll::Ready)
        });
        let Parts { io, read_buf, .. } = ended.await;
        (io.into_inner(), read_buf)
    }
}

impl Pool {
    pub(super) fn new(max_idle: usize, idle_timeout: Duration) -> Arc<Self> {
        let state = Mutex::new(PoolState { idle: Vec::new(), generation: 0, has_reaper: false });
        Arc::new(Self { max_idle, idle_timeout, state })
    }

    /// Returns an unused connection. If its server has closed it, hyper returns the request unsent.
    pub(super) fn checkout(self: &Arc<Self>, now: Instant) -> Option<PooledConnection> {
        let mut state = self.state.lock();
        state.expire(now, self.idle_timeout, self.max_idle);
        let IdleConnection { since, connection } = state.idle.pop()?;
        let unused = Some(now.duration_since(since));
        Some(PooledConnection { unused, ..self.add(state.generation, connection) })
    }

    /// Closes the unused connections that their server has closed.
    pub(super) fn discard_closed(&self) {
        self.state.lock().discard_closed();
    }

    /// Returns a new connection as one of this pool. It was opened with the certificates of `generation`.
    pub(super) fn add(self: &Arc<Self>, generation: u64, connection: UpstreamConnection) -> PooledConnection {
        PooledConnection { connection, unused: None, generation, pool: Arc::clone(self) }
    }

    /// Closes all connections of the generations so far. Those in use are closed when their exchange is complete.
    pub(super) fn renew(&self) {
        let mut state = self.state.lock();
        state.generation += 1;
        state.idle.clear();
    }

    /// Returns the current generation. It must be read before the certificates of a new connection.
    pub(super) fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        self.state.lock().idle.len()
    }
}

impl PoolState {
    fn expire(&mut self, now: Instant, timeout: Duration, max_idle: usize) {
        let unused = |idle: &IdleConnection| now.duration_since(idle.since);
        let surplus = &self.idle[..self.idle.len().saturating_sub(max_idle)];
        let surplus = surplus.partition_point(|idle| unused(idle) >= SURPLUS_TIMEOUT);
        let expired = self.idle.partition_point(|idle| unused(idle) >= timeout);
        self.idle.drain(..expired.max(surplus));
    }

    fn discard_closed(&mut self) {
        self.idle.retain_mut(|idle| idle.connection.is_ready());
    }
}

impl PooledConnection {
    /// Returns the connection to its pool. The exchange must be complete in both directions.
    pub(super) fn release(self) {
        let Self { connection, generation, pool, .. } = self;
        let now = Instant::now();
        let mut state = pool.state.lock();
        state.expire(now, pool.idle_timeout, pool.max_idle);
        if generation == state.generation && state.idle.len() < MAX_UNUSED {
            state.idle.push(IdleConnection { since: now, connection });
            if !state.has_reaper {
                state.has_reaper = true;
                tokio::spawn(reap(Arc::downgrade(&pool)));
            }
        }
    }
}

/// Closes connections that have expired, or that their server has closed, until the pool is empty.
async fn reap(pool: Weak<Pool>) {
    loop {
        sleep(SURPLUS_TIMEOUT).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut state = pool.state.lock();
        state.expire(Instant::now(), pool.idle_timeout, pool.max_idle);
        state.discard_closed();
        if state.idle.is_empty() {
            state.has_reaper = false;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn connection_is_ready_until_the_server_sends_or_closes() {
        let (client, mut server) = duplex(64);
        let mut connection = UpstreamConnection::new(client, TIMEOUT).await.unwrap();
        assert!(connection.is_ready() && connection.is_ready());
        server.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
        assert!(!connection.is_ready());

        let (client, server) = duplex(64);
        let mut connection = UpstreamConnection::new(client, TIMEOUT).await.unwrap();
        drop(server);
        assert!(!connection.is_ready());
    }
}
