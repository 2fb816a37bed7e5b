//! Who gets this request, and why. The page to read first.
//!
//! ```text
//!   a tunnel of the agent on this replica? ──yes──► send it there, the least loaded one
//!        │ no
//!   one arrives within `reconnect_wait`?  ──yes──► send it there
//!        │ no
//!   say why there is none: never connected, gone since when, serves something else
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
use proto::{AgentId, AgentName, Reason, ServiceName, TunnelId, header};
use router::{Attempt, Choice, Class, Lease, LocalTunnels, Progress, RouteStore};
use tokio::time::{Instant, timeout_at};
use tunnel::{Body, CallError, CallErrorKind, Delivery};

use crate::{
    connected::Connected,
    failure::Failure,
    metrics::{Limit, Metrics},
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
    /// The tunnel that it occupies.
    pub lease: Lease<Connected>,
    /// When the tunnel was given the request.
    pub sent: Instant,
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
            let lease = self.find(to, &tried).await?;
            let sent = Instant::now();
            let error = match lease.handle().tunnel.call(request).await {
                Ok(response) => return Ok(Answered { response, lease, sent }),
                Err(error) => error,
            };
            tracing::debug!(request.id = ?id, %error, tunnel = %lease.tunnel(), "a request was not answered");
            match error.request {
                Some(whole) if attempt.again(progress(error.delivery), true) => {
                    self.metrics.retries.inc();
                    tried.push(lease.tunnel());
                    request = *whole;
                }
                _ => return Err(unanswered(to, &error)),
            }
        }
    }

    fn choose(&self, to: &Destination, tried: &[TunnelId]) -> Choice<Connected> {
        self.tunnels.choose(to.agent, &to.service, to.class, tried, cores::here())
    }

    async fn find(&self, to: &Destination, tried: &[TunnelId]) -> Result<Lease<Connected>, Failure> {
        if let Choice::Tunnel(lease) = self.choose(to, tried) {
            return Ok(lease);
        }

        let deadline = Instant::now() + self.reconnect_wait;
        loop {
            // Made before looking, so that nothing is missed in between.
            let arrival = self.tunnels.arrival(to.agent);
            let change = self.store.change(to.agent);
            match self.choose(to, tried) {
                Choice::Tunnel(lease) => return Ok(lease),
                Choice::NotServed(services) => return Err(not_served(to, &services)),
                Choice::Busy => {
                    self.metrics.limit(Limit::RequestsPerAgent);
                    return Err(busy(to));
                }
                Choice::NoTunnel => {}
            }
            let woken = async {
                tokio::select! { () = arrival => {}, () = change => {} }
            };
            if timeout_at(deadline, woken).await.is_err() {
                return Err(self.absent(to).await);
            }
        }
    }

    async fn absent(&self, to: &Destination) -> Failure {
        let name = &to.name;
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

fn unanswered(to: &Destination, error: &CallError) -> Failure {
    let name = &to.name;
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
