//! Who gets this request, and why. The page to read first.
//!
//! ```text
//!   a tunnel of the agent on this replica? ──yes──► send it there, the least loaded one
//!        │ no
//!   another replica that holds the agent?  ──yes──► send it there; that replica never sends it on
//!        │ no
//!   either comes within `reconnect_wait`?  ──yes──► send it there
//!        │ no
//!   say why there is none: never connected, gone since when, serves something else, whose replica does not answer
//! ```
//!
//! * **One decision-maker per request.** The replica that took the request decides, waits and retries.
//! * **A reconnecting agent is not an absent one.** Waiting is woken by push: from the local table, and from the route
//!   store for what other replicas see. Nothing polls.
//! * **A retry does no harm.** [`Attempt`] is the rule; the tunnel says how far a failed request got, and gives back a
//!   request that is still whole.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{Request, Response};
use http_body::Body as _;
use proto::{AgentId, AgentName, Reason, ServiceName, TunnelId, header};
use router::{Attempt, Choice, Class, Lease, LocalTunnels, Progress, RouteStore};
use tokio::time::{Instant, timeout_at};
use tunnel::{Body, CallError, CallErrorKind, Delivery};

use crate::{
    connected::Connected,
    failure::Failure,
    metrics::{Limit, Metrics, Route},
    peers::{Declined, Owner, Peers, trouble::Trouble},
};

/// What a caller is told to wait when the agent is away: about a reconnect with some backoff.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Finds the tunnel for a request and sends it.
#[derive(Clone, Debug)]
pub struct Forwarder {
    /// The tunnels that end here.
    pub tunnels: Arc<LocalTunnels<Connected>>,
    /// The directory that the replicas share.
    pub store: Arc<dyn RouteStore>,
    /// The other replicas.
    pub peers: Peers,
    /// How long a request waits for a tunnel of an agent that has none.
    pub reconnect_wait: Duration,
    /// What is counted.
    pub metrics: Metrics,
}

/// Where a request goes.
#[derive(Clone, Debug)]
pub struct Destination {
    /// To whom.
    pub agent: AgentId,
    /// For messages.
    pub name: AgentName,
    /// The request type.
    pub service: ServiceName,
    /// What kind of load it is.
    pub class: Class,
}

/// What came back.
#[derive(Debug)]
pub struct Answered {
    /// The head of the response; its body is still to come.
    pub response: Response<Body>,
    /// The tunnel that it occupies, if that ends here.
    pub lease: Option<Lease<Connected>>,
    /// When the request was sent.
    pub sent: Instant,
}

/// Where a request is sent next.
enum Way {
    Tunnel(Lease<Connected>),
    Owner(Owner),
}

impl Forwarder {
    /// Sends a request until it is answered, or until trying again could do harm.
    ///
    /// Dropping the future cancels the request in the cluster.
    pub async fn forward(&self, to: &Destination, mut request: Request<Body>) -> Result<Answered, Failure> {
        let id = request.headers().get(header::REQUEST_ID).cloned();
        let mut attempt = Attempt::new(request.method().is_safe());
        let mut tried = Vec::new();
        loop {
            let way = self.find(to, &tried, request.body().is_end_stream()).await?;
            let sent = Instant::now();
            let called = match &way {
                Way::Tunnel(lease) => {
                    self.metrics.peers.route(Route::Local);
                    lease.handle().tunnel.call(request).await
                }
                Way::Owner(owner) => {
                    self.metrics.peers.route(Route::Peer);
                    Box::pin(owner.call(to, request)).await
                }
            };
            let error = match called {
                Ok(response) => return Ok(Answered { response, lease: way.lease(), sent }),
                Err(error) => error,
            };
            tracing::debug!(request.id = ?id, %error, way = way.name(), "a request was not answered");
            match error.request {
                Some(whole) if attempt.again(progress(error.delivery), true) => {
                    self.metrics.retries.inc();
                    // Only tunnels: an owner is asked again, and may have another.
                    if let Way::Tunnel(lease) = way {
                        tried.push(lease.tunnel());
                    }
                    request = *whole;
                }
                _ => return Err(unanswered(to, &way, &error)),
            }
        }
    }

    fn choose(&self, to: &Destination, tried: &[TunnelId]) -> Choice<Connected> {
        self.tunnels.choose(to.agent, &to.service, to.class, tried, cores::here())
    }

    /// `light`: the request has no body, so that it is whole until somebody answers it.
    async fn find(&self, to: &Destination, tried: &[TunnelId], light: bool) -> Result<Way, Failure> {
        match self.choose(to, tried) {
            Choice::Tunnel(lease) => return Ok(Way::Tunnel(lease)),
            Choice::NoTunnel if light => {
                if let Some(owner) = self.peers.fresh(&*self.store, to).await {
                    return Ok(Way::Owner(owner));
                }
            }
            _ => {}
        }
        // Boxed: most requests find a tunnel at once, and should not have room for this.
        Box::pin(self.wait(to, tried)).await
    }

    /// Waits for a tunnel, here or at another replica.
    async fn wait(&self, to: &Destination, tried: &[TunnelId]) -> Result<Way, Failure> {
        let deadline = Instant::now() + self.reconnect_wait;
        loop {
            // Made before looking, so that nothing is missed in between.
            let arrival = self.tunnels.arrival(to.agent);
            let change = self.store.change(to.agent);
            match self.choose(to, tried) {
                Choice::Tunnel(lease) => return Ok(Way::Tunnel(lease)),
                Choice::NotServed(services) => return Err(not_served(to, &services)),
                Choice::Busy => {
                    self.metrics.limit(Limit::RequestsPerAgent);
                    return Err(busy(to));
                }
                Choice::NoTunnel => {}
            }
            let declined = match self.peers.find(&*self.store, to).await {
                Ok(owner) => return Ok(Way::Owner(owner)),
                Err(declined) => declined,
            };
            if let Some(failure) = declined.iter().find_map(|declined| elsewhere(to, &declined.trouble)) {
                return Err(failure);
            }
            let woken = async {
                tokio::select! { () = arrival => {}, () = change => {} }
            };
            if timeout_at(deadline, woken).await.is_err() {
                return Err(self.absent(to, &declined).await);
            }
        }
    }

    /// `declined`: what the owners said that the directory named last.
    async fn absent(&self, to: &Destination, declined: &[Declined]) -> Failure {
        let name = &to.name;
        if !declined.is_empty() {
            let why = declined.iter().map(|Declined { replica, trouble }| format!("{replica}: {trouble}"));
            let why = why.collect::<Vec<_>>().join("; ");
            let what = format!(
                "agent {name} is said to be connected to other replicas, and none of them takes the request: {why}"
            );
            return Failure::new(Reason::AgentNotConnected, what).retry_after(RETRY_AFTER);
        }
        let what = match self.store.lookup(to.agent).await {
            Ok(record) => match (record.routes.is_empty(), record.gone_since) {
                (false, _) => {
                    format!("agent {name} is connected, but none of its tunnels takes requests now")
                }
                (true, Some(since)) => format!("agent {name} is not connected since {} ago", ago(since)),
                (true, None) => format!(
                    "agent {name} has not connected since this kas started: check that agentk runs, with a valid token \
                     and this kas's address"
                ),
            },
            Err(error) => format!("agent {name} has no tunnel on this replica, and {error}"),
        };
        Failure::new(Reason::AgentNotConnected, what).retry_after(RETRY_AFTER)
    }
}

impl Way {
    fn lease(self) -> Option<Lease<Connected>> {
        match self {
            Self::Tunnel(lease) => Some(lease),
            Self::Owner(_) => None,
        }
    }

    /// For logs.
    fn name(&self) -> String {
        match self {
            Self::Tunnel(lease) => format!("tunnel {}", lease.tunnel()),
            Self::Owner(owner) => format!("replica {}", owner.replica()),
        }
    }
}

/// What no other owner, and no waiting, would mend.
fn elsewhere(to: &Destination, trouble: &Trouble) -> Option<Failure> {
    match trouble {
        Trouble::Declines { reason: Reason::TooManyRequests, .. } => Some(busy(to)),
        Trouble::Declines { reason: Reason::UnknownService, message } => {
            let what = format!("agent {} does not serve {}: {message}", to.name, to.service);
            Some(Failure::new(Reason::UnknownService, what))
        }
        _ => None,
    }
}

fn progress(delivery: Delivery) -> Progress {
    match delivery {
        Delivery::NotProcessed => Progress::NotProcessed,
        Delivery::Unknown => Progress::Unknown,
    }
}

fn busy(to: &Destination) -> Failure {
    let what = format!(
        "agent {} has as many requests in flight as it may have (agent.kubernetes_api.limits.max_requests_per_agent)",
        to.name
    );
    Failure::new(Reason::TooManyRequests, what).retry_after(Duration::from_secs(1))
}

fn not_served(to: &Destination, services: &[ServiceName]) -> Failure {
    let served = services.iter().map(ServiceName::as_str).collect::<Vec<_>>().join(", ");
    let what = format!("agent {} does not serve {}; it serves: {served}", to.name, to.service);
    Failure::new(Reason::UnknownService, what)
}

fn unanswered(to: &Destination, way: &Way, error: &CallError) -> Failure {
    let name = &to.name;
    if let Way::Owner(owner) = way
        && !matches!(error.kind, CallErrorKind::Body(_))
    {
        let replica = owner.replica();
        return match error.delivery {
            Delivery::NotProcessed => {
                let what = format!(
                    "agent {name} was connected to replica {replica}, which takes no more requests for it"
                );
                Failure::new(Reason::AgentNotConnected, what).retry_after(RETRY_AFTER)
            }
            Delivery::Unknown => Failure::new(
                Reason::TunnelLost,
                format!(
                    "replica {replica} lost the request to agent {name} before it was answered; the cluster may have acted on it"
                ),
            ),
        };
    }
    match error.kind {
        CallErrorKind::Closed | CallErrorKind::Refused => {
            let what = format!("agent {name} is leaving and has no other tunnel");
            Failure::new(Reason::AgentNotConnected, what).retry_after(RETRY_AFTER)
        }
        CallErrorKind::Lost(_) => Failure::new(
            Reason::TunnelLost,
            format!(
                "the tunnel to agent {name} was lost before it answered; the cluster may have acted on the request"
            ),
        ),
        CallErrorKind::Reset(_) => Failure::new(
            Reason::TunnelLost,
            format!("agent {name} gave the request up before it answered; the cluster may have acted on it"),
        ),
        CallErrorKind::Body(_) => Failure::new(Reason::BadRequest, error.to_string()),
        CallErrorKind::Unsupported(what) => {
            Failure::new(Reason::AgentMisbehaved, format!("the request cannot reach agent {name}: {what}"))
        }
    }
}

fn ago(since: SystemTime) -> String {
    let seconds = since.elapsed().unwrap_or_default().as_secs();
    match seconds {
        0..=119 => format!("{seconds} seconds"),
        120..=7199 => format!("{} minutes", seconds / 60),
        _ => format!("{} hours", seconds / 3600),
    }
}
