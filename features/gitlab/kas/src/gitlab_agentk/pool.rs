//! The `Connect` streams of one connection that wait for a request: first come, first served, in both directions.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use futures_util::{FutureExt as _, Stream, StreamExt as _};
use gitlab_tunnel::messages::{ConnectRequest, ConnectResponse};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};
use tunnel::StreamMonitor;

/// The steps of kas that wait for the connection. A slow agentk stops its own request and no other.
const STEPS: usize = 4;

/// The streams of one connection that wait for a request. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamPool(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<PoolState>,
    /// Cancelled when there is a first stream.
    opened: CancellationToken,
    /// Cancelled when agentk has ended its last waiting stream by itself: it leaves.
    left: CancellationToken,
    /// Cancelled when the pool is closed.
    closed: CancellationToken,
}

#[derive(Debug, Default)]
struct PoolState {
    next: u64,
    /// The streams that have not ended.
    streams: usize,
    ready: VecDeque<(u64, ReadyStream)>,
    waiting: VecDeque<oneshot::Sender<ReadyStream>>,
}

/// A stream that waits for a request. Dropping it ends the call.
#[derive(Debug)]
pub(super) struct ReadyStream {
    incoming: WaitingIncoming,
    monitor: StreamMonitor,
    begin: oneshot::Sender<OpenSteps>,
}

/// The steps of agentk in a stream that waits for a request. They are read at once: agentk has nothing to send before the request.
type WaitingIncoming = Arc<Mutex<Option<Streaming<ConnectRequest>>>>;

/// A stream for one request.
#[derive(Debug)]
pub(super) struct OpenStream {
    /// The steps of agentk.
    pub(super) incoming: Streaming<ConnectRequest>,
    /// Observes the reader of these steps, and can reset the stream.
    pub(super) monitor: StreamMonitor,
    /// The steps of kas. Dropping it ends the call.
    pub(super) outgoing: mpsc::Sender<ConnectResponse>,
    /// The error with which the call ends; OK without one.
    pub(super) end: Arc<OnceLock<Status>>,
}

/// The steps of kas in one stream, for the connection.
#[derive(Debug)]
pub(super) struct Steps {
    state: StepsState,
    pool: StreamPool,
    number: u64,
}

#[derive(Debug)]
enum StepsState {
    /// The stream waits for a request.
    Waiting(oneshot::Receiver<OpenSteps>, WaitingIncoming),
    Open(OpenSteps),
    Complete,
}

/// The other end of an [`OpenStream`].
#[derive(Debug)]
struct OpenSteps {
    steps: mpsc::Receiver<ConnectResponse>,
    end: Arc<OnceLock<Status>>,
}

impl ReadyStream {
    /// Begins a request. Returns `None` if agentk has ended the stream.
    pub(super) fn open(self) -> Option<OpenStream> {
        let Self { incoming, monitor, begin } = self;
        let incoming = incoming.lock().take()?;
        let (outgoing, steps) = mpsc::channel(STEPS);
        let end = Arc::<OnceLock<Status>>::default();
        begin.send(OpenSteps { steps, end: Arc::clone(&end) }).ok()?;
        Some(OpenStream { incoming, monitor, outgoing, end })
    }
}

impl StreamPool {
    /// Adds a stream whose descriptor has arrived, and returns the steps of kas in it. They end at once if the pool is closed.
    pub(super) fn add(&self, incoming: Streaming<ConnectRequest>, monitor: StreamMonitor) -> Steps {
        let (begin, waiting) = oneshot::channel();
        let incoming = Arc::new(Mutex::new(Some(incoming)));
        let read = Arc::clone(&incoming);
        let mut state = self.0.state.lock();
        state.next += 1;
        state.streams += 1;
        let number = state.next;
        if !self.0.closed.is_cancelled() {
            state.give(number, ReadyStream { incoming, monitor, begin });
        }
        drop(state);
        self.0.opened.cancel();
        Steps { state: StepsState::Waiting(waiting, read), pool: self.clone(), number }
    }

    /// Returns the stream that has waited for the longest time, or waits for the next one. `None` if the pool is closed, or if agentk
    /// leaves. Cancel-safe.
    pub(super) async fn take(&self) -> Option<ReadyStream> {
        loop {
            let next = {
                let mut state = self.0.state.lock();
                if let Some((_, stream)) = state.ready.pop_front() {
                    return Some(stream);
                }
                if self.0.closed.is_cancelled() || self.0.left.is_cancelled() {
                    return None;
                }
                // Requests that have waited for too long are the first ones.
                while state.waiting.pop_front_if(|waiting| waiting.is_closed()).is_some() {}
                let (sender, receiver) = oneshot::channel();
                state.waiting.push_back(sender);
                receiver
            };
            // The sender is dropped when the pool is closed, and when agentk leaves.
            if let Ok(stream) = next.await {
                return Some(stream);
            }
        }
    }

    /// Waits for the first stream.
    pub(super) async fn opened(&self) {
        self.0.opened.cancelled().await;
    }

    /// Waits until agentk has ended its last waiting stream by itself.
    pub(super) async fn left(&self) {
        self.0.left.cancelled().await;
    }

    /// Waits until the pool is closed.
    pub(super) async fn closed(&self) {
        self.0.closed.cancelled().await;
    }

    /// Ends all waiting streams except for `kept`. agentk opens others, on another connection if this one drains.
    pub(super) fn shrink(&self, kept: usize) {
        let ended = {
            let mut state = self.0.state.lock();
            let kept = kept.min(state.ready.len());
            state.ready.split_off(kept)
        };
        // Without the lock: the end of a stream takes it.
        drop(ended);
    }

    /// Ends all waiting streams, and those that agentk opens from now on.
    pub(super) fn close(&self) {
        let ended = {
            let mut state = self.0.state.lock();
            self.0.closed.cancel();
            (std::mem::take(&mut state.ready), std::mem::take(&mut state.waiting))
        };
        drop(ended);
    }

    /// Returns whether all streams carry a request. agentk opens more if it can, so that this is its limit.
    pub(super) fn is_busy(&self) -> bool {
        let state = self.0.state.lock();
        state.streams > 0 && state.ready.is_empty()
    }

    /// Removes a stream that has ended.
    fn remove(&self, number: u64) {
        let mut state = self.0.state.lock();
        state.streams -= 1;
        let Some(position) = state.ready.iter().position(|(other, _)| *other == number) else { return };
        let removed = state.ready.remove(position);
        let mut waiting = VecDeque::new();
        if state.ready.is_empty() {
            self.0.left.cancel();
            waiting = std::mem::take(&mut state.waiting);
        }
        drop(state);
        drop((removed, waiting));
    }
}

impl PoolState {
    /// Hands a stream to the request that has waited for the longest time, or keeps it.
    fn give(&mut self, number: u64, mut stream: ReadyStream) {
        while let Some(waiting) = self.waiting.pop_front() {
            // Fails if the request has ended.
            match waiting.send(stream) {
                Ok(()) => return,
                Err(returned) => stream = returned,
            }
        }
        self.ready.push_back((number, stream));
    }
}

/// Completes if agentk ends a stream that waits for a request, or sends something in it.
fn poll_early(incoming: &WaitingIncoming, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
    // A request has the steps otherwise.
    let mut incoming = incoming.lock();
    let Some(steps) = incoming.as_mut() else { return Poll::Pending };
    let early = ready!(steps.poll_next_unpin(cx));
    *incoming = None;
    Poll::Ready(match early {
        None => Ok(()),
        Some(Ok(_)) => Err(Status::invalid_argument("the stream has a message before its request")),
        Some(Err(status)) => Err(status),
    })
}

impl Stream for Steps {
    type Item = Result<ConnectResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let (next, ended) = match &mut self.state {
                StepsState::Waiting(begin, incoming) => match begin.poll_unpin(cx) {
                    Poll::Ready(Ok(open)) => (StepsState::Open(open), None),
                    Poll::Ready(Err(_)) => (StepsState::Complete, None),
                    Poll::Pending => match ready!(poll_early(incoming, cx)) {
                        Err(status) => (StepsState::Complete, Some(status)),
                        Ok(()) => (StepsState::Complete, None),
                    },
                },
                StepsState::Open(open) => match ready!(open.steps.poll_recv(cx)) {
                    Some(step) => return Poll::Ready(Some(Ok(step))),
                    None => (StepsState::Complete, open.end.get().cloned()),
                },
                StepsState::Complete => return Poll::Ready(None),
            };
            self.state = next;
            if let Some(status) = ended {
                return Poll::Ready(Some(Err(status)));
            }
        }
    }
}

/// The connection drops the steps when agentk resets the stream, and when the connection ends.
impl Drop for Steps {
    fn drop(&mut self) {
        self.pool.remove(self.number);
    }
}
