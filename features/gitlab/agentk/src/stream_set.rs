//! The `Connect` streams of a connection: opens enough of them, and ends them at a drain, unless kas does.

use std::{collections::HashSet, future::pending, pin::pin, time::Duration};

use agentk_core::DrainSignals;
use proto::{
    control::{DrainReason, DrainRequest},
    short_line,
};
use tokio::{
    sync::mpsc,
    task::{Id, JoinError, JoinSet},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tunnel::Tunnel;

use super::{
    backoff::{BackoffConfig, RetryBackoff},
    client::GrpcClient,
    http2::ConnectionEnd,
    pool::streams_to_open,
    stream::{self, StreamEnd},
};

/// The time that requests have after a GOAWAY of kas: the default `max_connection_age` of GitLab's kas.
const GOAWAY_TIMEOUT: Duration = Duration::from_secs(2 * 3600);
/// The waits after failed streams.
const BACKOFF: BackoffConfig = BackoffConfig {
    first: Duration::from_secs(1),
    max: Duration::from_secs(20),
    factor: 1.6,
    jitter: 0.2,
    reset: Duration::from_secs(25),
};

/// The `Connect` streams of a connection. Dropping it resets them.
pub(super) struct StreamSet {
    client: GrpcClient,
    tunnel: Tunnel,
    streams: JoinSet<StreamEnd>,
    /// The streams that carry a request.
    active: HashSet<Id>,
    activated: (mpsc::UnboundedSender<Id>, mpsc::UnboundedReceiver<Id>),
    drain: CancellationToken,
    backoff: RetryBackoff,
    /// The time of the next attempt after a failure.
    retry_at: Option<Instant>,
}

impl StreamSet {
    /// Returns a set without streams. They send requests to the tunnel.
    pub(super) fn new(client: GrpcClient, tunnel: Tunnel) -> Self {
        Self {
            client,
            tunnel,
            streams: JoinSet::new(),
            active: HashSet::new(),
            activated: mpsc::unbounded_channel(),
            drain: CancellationToken::new(),
            backoff: RetryBackoff::new(BACKOFF),
            retry_at: None,
        }
    }

    /// Keeps enough streams open until the drain, and returns when the last one has ended or is cut.
    pub(super) async fn run(
        &mut self,
        signals: DrainSignals,
        going_away: CancellationToken,
    ) -> ConnectionEnd {
        let DrainSignals { drain, shutdown, grace, goaway } = signals;
        let mut drain = pin!(async {
            match drain.await {
                Ok(within) => within,
                // The slot has ended, which the shutdown precedes.
                Err(_) => pending().await,
            }
        });
        let mut deadline = pin!(sleep(Duration::MAX));
        let (mut drained, mut stopped) = (false, false);
        loop {
            if !drained && !stopped && !going_away.is_cancelled() && self.retry_at.is_none() {
                self.open_streams();
            }
            if (drained || stopped) && self.streams.is_empty() {
                return ConnectionEnd::Graceful;
            }
            tokio::select! {
                biased;
                Some(id) = self.activated.1.recv() => self.on_request(id),
                Some(ended) = self.streams.join_next_with_id() => {
                    if let Some(end) = self.on_end(ended) {
                        return end;
                    }
                }
                () = shutdown.cancelled(), if !stopped => {
                    stopped = true;
                    self.drain.cancel();
                    let end = Instant::now() + grace;
                    if !drained || end < deadline.deadline() {
                        deadline.as_mut().reset(end);
                    }
                }
                within = &mut drain, if !drained => {
                    drained = true;
                    // After its GOAWAY, kas still sends requests to idle streams, and ends them some time later. A reset could meet
                    // such a request.
                    if !going_away.is_cancelled() {
                        self.drain.cancel();
                    }
                    if !stopped {
                        deadline.as_mut().reset(Instant::now() + within);
                    }
                }
                () = going_away.cancelled(), if goaway.borrow().is_none() => {
                    let request = DrainRequest { reason: DrainReason::MaxAge, within: GOAWAY_TIMEOUT };
                    goaway.send_replace(Some(request));
                }
                () = sleep_until(self.retry_at) => self.retry_at = None,
                () = &mut deadline, if drained || stopped => return ConnectionEnd::Cut,
            }
        }
    }

    fn open_streams(&mut self) {
        let active = self.active.len();
        for _ in 0..streams_to_open(self.streams.len() - active, active) {
            let activated = self.activated.0.clone();
            let on_request = move || {
                // Fails if the set is dropped.
                let _ = activated.send(tokio::task::id());
            };
            let (client, tunnel) = (self.client.clone(), self.tunnel.clone());
            self.streams.spawn(stream::run(client, tunnel, self.drain.clone(), on_request));
        }
    }

    fn on_request(&mut self, id: Id) {
        self.active.insert(id);
        self.backoff.succeeded();
    }

    /// Records the end of a stream. Returns the end of the connection, if it has no use any more.
    fn on_end(&mut self, ended: Result<(Id, StreamEnd), JoinError>) -> Option<ConnectionEnd> {
        // Its request was sent to the channel before its end.
        while let Ok(id) = self.activated.1.try_recv() {
            self.on_request(id);
        }
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(panicked) => panicked.id(),
        };
        self.active.remove(&id);
        if let Ok((_, StreamEnd::Failed(status))) = ended {
            return self.on_failure(&status);
        }
        None
    }

    fn on_failure(&mut self, status: &Status) -> Option<ConnectionEnd> {
        tracing::debug!(code = ?status.code(), error = short_line(status.message().as_bytes()), "stream to GitLab's kas failed");
        if status.code() == Code::Unauthenticated && self.streams.is_empty() {
            return Some(ConnectionEnd::Unauthenticated);
        }
        // Streams that fail together are one failure.
        if self.retry_at.is_none() {
            let now = Instant::now();
            self.retry_at = Some(now + self.backoff.failed(now, rand::random()));
        }
        None
    }
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => pending().await,
    }
}
