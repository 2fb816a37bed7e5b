//! One slot: at any time one tunnel in use, or on the way to one.

use std::sync::Arc;

use proto::{
    ReplicaId,
    control::{Drain, DrainReason},
};
use tokio::time::{Duration, Instant, sleep, timeout};

use super::{
    Shared,
    tunnels::{Event, Live},
};
use crate::{
    Dial, DialError,
    backoff::Backoff,
    connect::{self, Opened},
    spread::Search,
};

/// The longest time that a replica which stops is kept waiting for our next tunnel. There may be no other replica, and
/// until we leave, this one cannot end.
const STOPPING_PATIENCE: Duration = Duration::from_secs(5);

/// How long streams may go on in a tunnel that is left for a better one: as long as kas, by default, lets them.
const STREAMS: Duration = Duration::from_secs(3600);

pub(super) struct Slot<D> {
    shared: Arc<Shared<D>>,
    index: u16,
    backoff: Backoff,
}

impl<D: Dial> Slot<D> {
    pub(super) fn new(shared: Arc<Shared<D>>, index: u16) -> Self {
        Self { shared, index, backoff: Backoff::default() }
    }

    /// Until shutdown.
    pub(super) async fn run(mut self) {
        let shutdown = self.shared.shutdown.clone();
        let mut next = self.connect(None).await;
        while let Some(mut live) = next {
            // Tunnels see to their own shutdown.
            let Some(event) = shutdown.run_until_cancelled(self.attend(&mut live)).await else { return };
            next = match event {
                Event::Ended => self.reconnect(live.age()).await,
                Event::Drain(drain) => self.replace(live, drain).await,
                Event::Better(better) => {
                    live.leave(STREAMS);
                    Some(better)
                }
            };
        }
    }

    /// Waits until the tunnel wants attention. If it shares its replica with another of ours, a better one is looked for
    /// meanwhile: a replica that is frozen is not noticed at once by those who have no other.
    async fn attend(&self, live: &mut Live) -> Event {
        for nth in 0.. {
            let wait = self.shared.spread.lock().look(usize::from(self.index), nth, rand::random());
            let Some(wait) = wait else { break };
            let looking = async {
                sleep(wait).await;
                self.look().await
            };
            tokio::select! {
                event = live.event() => return event,
                found = looking => {
                    if let Some(better) = found {
                        return Event::Better(better);
                    }
                }
            }
        }
        live.event().await
    }

    /// One dial, which is no matter if it fails.
    async fn look(&self) -> Option<Live> {
        let (spread, slot) = (&self.shared.spread, usize::from(self.index));
        let dialled = async {
            let opened = self.dial().await?;
            let (replica, replicas) = (opened.welcome.replica, opened.welcome.replicas);
            if !spread.lock().improve(slot, replica, replicas) {
                self.decline(opened).await;
                return Ok(None);
            }
            Ok(Some(self.accept(opened)))
        };
        dialled.await.unwrap_or_else(|error: DialError| {
            tracing::debug!(%error, slot, "cannot look for another replica");
            None
        })
    }

    async fn reconnect(&mut self, lived: Duration) -> Option<Live> {
        self.shared.spread.lock().release(usize::from(self.index));
        self.backoff.lived(lived);
        let wait = self.backoff.failed(None, rand::random());
        tracing::info!(slot = self.index, retry_in = ?wait, "opening another tunnel");
        if !self.shared.pause(wait).await {
            return None;
        }

        self.connect(None).await
    }

    /// Make before break: the next tunnel first, then the old one is left and finishes by itself.
    async fn replace(&mut self, old: Live, drain: Drain) -> Option<Live> {
        let (tunnel, replica, reason) = (old.tunnel, old.replica, drain.reason);
        tracing::info!(%tunnel, %replica, ?reason, within = ?drain.within, "kas asks us to leave a tunnel");
        self.backoff.lived(old.age());
        let deadline = Instant::now() + drain.within;
        let (avoid, patience) = match reason {
            DrainReason::MaxAge => (None, drain.within / 2),
            DrainReason::Rebalance => (Some(replica), drain.within / 2),
            DrainReason::Shutdown => (Some(replica), STOPPING_PATIENCE.min(drain.within / 2)),
        };
        let next = timeout(patience, self.connect(avoid)).await;
        old.leave(deadline.saturating_duration_since(Instant::now()));
        match next {
            Ok(next) => next,
            Err(_) => {
                tracing::warn!(%tunnel, "no other tunnel could be opened in time; leaving nevertheless");
                self.connect(avoid).await
            }
        }
    }

    /// None if the agent is stopping.
    async fn connect(&mut self, avoid: Option<ReplicaId>) -> Option<Live> {
        let shutdown = self.shared.shutdown.clone();
        let mut search = Search::new(usize::from(self.index), avoid);
        loop {
            let attempt = shutdown.run_until_cancelled(self.attempt(&mut search)).await?;
            let error = match attempt {
                Ok(live) => return Some(live),
                Err(error) => error,
            };
            search.failed();
            let wait = self.backoff.failed(error.retry_after(), rand::random());
            self.failed(&error, wait);
            if !self.shared.pause(wait).await {
                return None;
            }
        }
    }

    async fn attempt(&self, search: &mut Search) -> Result<Live, DialError> {
        let opened = self.open(search).await?;
        Ok(self.accept(opened))
    }

    fn accept(&self, opened: Opened<D::Io>) -> Live {
        let shared = &self.shared;
        let (tunnel, replica) = (opened.welcome.tunnel, opened.welcome.replica);
        let session = opened.accept(&shared.options.tunnel);
        shared.telemetry.metrics.dial("connected");
        shared.failures.lock().over();
        tracing::info!(%tunnel, %replica, slot = self.index, "connected to kas");
        Live::start(shared, (tunnel, replica), session)
    }

    /// Dials until `Spread` is content with the replica.
    async fn open(&self, search: &mut Search) -> Result<Opened<D::Io>, DialError> {
        loop {
            let opened = self.dial().await?;
            let (replica, replicas) = (opened.welcome.replica, opened.welcome.replicas);
            if self.shared.spread.lock().claim(search, replica, replicas) {
                return Ok(opened);
            }
            self.decline(opened).await;
        }
    }

    async fn dial(&self) -> Result<Opened<D::Io>, DialError> {
        let (shared, options) = (&self.shared, &self.shared.options);
        let hello = shared.hello(self.index);
        connect::open(&shared.dial, &options.kas, &options.token, &options.headers, &hello).await
    }

    async fn decline(&self, opened: Opened<D::Io>) {
        let replica = opened.welcome.replica;
        opened.decline().await;
        self.shared.telemetry.metrics.dial("crowded");
        tracing::debug!(%replica, slot = self.index, "another tunnel is at this replica");
    }

    fn failed(&self, error: &DialError, retry_in: Duration) {
        let shared = &self.shared;
        let what = error.to_string();
        shared.telemetry.metrics.dial(error.label());
        match shared.failures.lock().happened(&what, Instant::now()) {
            Some(0) => tracing::warn!(error = what, ?retry_in, "cannot open a tunnel to kas"),
            Some(repeated) => tracing::warn!(error = what, ?retry_in, repeated, "still no tunnel to kas"),
            None => {
                tracing::debug!(error = what, ?retry_in, slot = self.index, "cannot open a tunnel to kas")
            }
        }
        shared.telemetry.health.dial_failed(what);
    }
}
