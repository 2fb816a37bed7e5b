//! Connections that wait for their next request.
//!
//! Only hyper knows when an exchange is over: the response was read to its end *and* the request was written to its
//! end. So [`Lease::give_back`] may be called as soon as the head of the response is there; the sender then waits
//! beside its connection, and the task that drives the connection moves it into the pool in the very poll that ends
//! the exchange. That costs no task and no wake-up per request, and the pool holds usable connections only.
//!
//! There is no task that looks for expired connections. They go when the pool is used next; if it is not used, the
//! server's own idle timeout closes them and their driver ends.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::{TrySendError, http1::SendRequest},
};
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long unused connections beyond those that are kept may wait: in a burst each of them is used again at once, and
/// closing it would make every request of the burst pay for a new one.
const SURPLUS_TIMEOUT: Duration = Duration::from_secs(2);
/// How many unused connections there may be at all.
const MAX_SURPLUS: usize = 1024;

pub(super) struct Pool<B> {
    max_idle: usize,
    idle_timeout: Duration,
    state: Mutex<State<B>>,
}

struct State<B> {
    /// Longest unused first. The last is taken first, so that after a burst the surplus expires.
    idle: Vec<Idle<B>>,
    generation: u64,
}

struct Idle<B> {
    since: Instant,
    lease: Lease<B>,
}

/// A connection and the right to send one request on it. Dropping it closes the connection once its exchange is over.
pub(super) struct Lease<B> {
    sender: SendRequest<B>,
    link: Arc<Link<B>>,
}

/// Between a connection's driver, whoever uses the connection, and the pool.
struct Link<B> {
    generation: u64,
    /// Given back while the exchange was still going on.
    returning: Mutex<Option<SendRequest<B>>>,
    /// Weak, or idle connections would keep the pool alive through their own drivers.
    pool: Weak<Pool<B>>,
}

impl<B> Pool<B> {
    pub(super) fn new(max_idle: usize, idle_timeout: Duration) -> Arc<Self> {
        let state = Mutex::new(State { idle: Vec::new(), generation: 0 });
        Arc::new(Self { max_idle, idle_timeout, state })
    }

    /// A connection that is ready now.
    pub(super) fn take(&self, now: Instant) -> Option<Lease<B>> {
        let mut state = self.state.lock();
        state.expire(now, self.idle_timeout, self.max_idle);
        while let Some(idle) = state.idle.pop() {
            if idle.lease.sender.is_ready() {
                return Some(idle.lease);
            }
        }

        None
    }

    /// Closes every connection of the generations so far, those in use when their exchange is over.
    pub(super) fn renew(&self) {
        let mut state = self.state.lock();
        state.generation += 1;
        state.idle.clear();
    }

    /// To be asked before the certificates for a new connection are.
    pub(super) fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    /// Starts `driver`, which moves the bytes of a new connection, and lends out the connection.
    pub(super) fn adopt<D>(self: &Arc<Self>, generation: u64, sender: SendRequest<B>, driver: D) -> Lease<B>
    where
        B: Send + 'static,
        D: Future<Output = hyper::Result<()>> + Send + 'static,
    {
        let link = Arc::new(Link { generation, returning: Mutex::new(None), pool: Arc::downgrade(self) });
        tokio::spawn(drive(driver, Arc::clone(&link)));

        Lease { sender, link }
    }

    fn park(&self, lease: Lease<B>, now: Instant) {
        let mut state = self.state.lock();
        state.expire(now, self.idle_timeout, self.max_idle);
        if lease.link.generation == state.generation && state.idle.len() < MAX_SURPLUS {
            state.idle.push(Idle { since: now, lease });
        }
    }

    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        self.state.lock().idle.len()
    }
}

impl<B> State<B> {
    fn expire(&mut self, now: Instant, timeout: Duration, max_idle: usize) {
        let unused = |idle: &Idle<B>| now.duration_since(idle.since);
        let surplus = &self.idle[..self.idle.len().saturating_sub(max_idle)];
        let surplus = surplus.partition_point(|idle| unused(idle) >= SURPLUS_TIMEOUT);
        let expired = self.idle.partition_point(|idle| unused(idle) >= timeout);
        self.idle.drain(..expired.max(surplus));
    }
}

impl<B: http_body::Body + 'static> Lease<B> {
    pub(super) fn try_send(
        &mut self,
        request: Request<B>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<B>>>> + use<B> {
        self.sender.try_send_request(request)
    }

    /// To be called after the head of the response, which is when hyper no longer calls a connection ready that has
    /// a request to serve.
    pub(super) fn give_back(self) {
        *self.link.returning.lock() = Some(self.sender);
        self.link.settle();
    }
}

impl<B> Link<B> {
    /// Moves the connection into the pool if its exchange is over.
    ///
    /// Called after the sender was put down, and after every poll of the connection: whichever of the two comes last
    /// sees both.
    fn settle(self: &Arc<Self>) {
        let sender = self.returning.lock().take_if(|sender| sender.is_ready() || sender.is_closed());
        let (Some(sender), Some(pool)) = (sender, self.pool.upgrade()) else { return };
        if sender.is_ready() {
            pool.park(Lease { sender, link: Arc::clone(self) }, Instant::now());
        }
    }
}

async fn drive<B>(driver: impl Future<Output = hyper::Result<()>>, link: Arc<Link<B>>) {
    let mut driver = pin!(driver);
    let ended = poll_fn(|cx| {
        let polled = driver.as_mut().poll(cx);
        if polled.is_pending() {
            link.settle();
        }
        polled
    });

    if let Err(error) = ended.await {
        tracing::debug!(error = %super::error::Chain(&error), "an upstream connection was lost");
    }
}
