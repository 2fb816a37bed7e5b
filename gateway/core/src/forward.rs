//! Chooses the tunnel or the replica for a request, waits for an agent that reconnects, and retries.
//!
//! ```text
//!   this replica has a tunnel of the agent?       ──yes──► send into the least loaded tunnel
//!        │ no
//!   another replica has one?                      ──yes──► send to that replica, which never forwards it again
//!        │ no
//!   one of the two happens in `reconnect_wait`?   ──yes──► send
//!        │ no
//!   respond with the reason: never connected, disconnected since, service not served, replica unreachable
//! ```
//!
//! * **One decision-maker per request.** The replica that received the request chooses, waits and retries.
//! * **A reconnecting agent is not an absent agent.** A waiting request is woken by events of the local tunnels and of the
//!   route store. Nothing polls.
//! * **A retry has no side effects.** [`RetryPolicy`] is the rule. The tunnel reports how far a failed request came, and returns
//!   the request if its body is untouched, or small enough to be kept.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use access::RequestError;
use http::{Request, Response, header::ALLOW};
use http_body::Body as _;
use kas_listen::metrics::Limit;
use percent_encoding::percent_decode_str;
use proto::{Reason, ReplicaId, ServiceName, TunnelId, header};
use router::{LocalTunnels, RequestPermit, RetryPolicy, TunnelChoice};
use store::Store;
use tokio::time::{Instant, timeout_at};
use tunnel::{Body, CallError, CallErrorKind, Delivery};

use crate::{
    agents::DialErrors,
    destination::{AgentLabel, Destination},
    metrics::{Metrics, RouteKind},
    peers::{OwnerConnection, OwnerError, PeerClient, PeerError},
    tunnel_entry::{TunnelEntry, gitlab_version_of_all},
};

/// The time after which a request may succeed that agentk refused because it has not received its scope yet.
const SCOPE_RETRY_AFTER: Duration = Duration::from_secs(5);
/// `Retry-After` while the agent is not connected: the time of a reconnect with some backoff.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Forwards requests to agents. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Forwarder {
    /// The tunnels that end at this replica.
    pub tunnels: Arc<LocalTunnels<TunnelEntry>>,
    /// The store that all replicas share.
    pub store: Arc<dyn Store>,
    /// The other replicas.
    pub peers: PeerClient,
    /// The time that a request waits for an agent without a tunnel.
    pub reconnect_wait: Duration,
    /// The reasons for which kas cannot dial agents.
    pub dial_errors: Arc<DialErrors>,
    /// The metrics of this replica.
    pub metrics: Metrics,
}

/// The response of an agent.
#[derive(Debug)]
pub struct ForwardedResponse {
    /// The response. Its body is still a stream of the tunnel.
    pub response: Response<Body>,
    /// Counts the request in its tunnel until it is dropped; `None` if another replica has the tunnel.
    pub request_permit: Option<RequestPermit<TunnelEntry>>,
    /// The replica that has the tunnel, if it is another one.
    pub owner: Option<ReplicaId>,
    /// The time at which the request was sent.
    pub sent: Instant,
}

impl ForwardedResponse {
    /// Returns a response that kas itself has made.
    pub(crate) fn from_kas(response: Response<Body>) -> Self {
        Self { response, request_permit: None, owner: None, sent: Instant::now() }
    }
}

/// The receiver of one attempt.
enum NextHop {
    Tunnel(RequestPermit<TunnelEntry>),
    Owner(OwnerConnection),
}

impl Forwarder {
    /// Sends a request until it is answered, or until a retry could repeat a side effect.
    ///
    /// # Errors
    ///
    /// The reason is `agent-not-connected`, `unknown-service`, `too-many-requests` or `tunnel-lost`. It is `bad-request` or
    /// `body-timeout` if the body of the request failed, and `agent-misbehaved` if the tunnel cannot carry the request.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future cancels the request in the cluster.
    pub async fn forward(
        &self,
        to: &Destination,
        mut request: Request<Body>,
    ) -> Result<ForwardedResponse, RequestError> {
        let id = request.headers().get(header::REQUEST_ID).cloned();
        let mut retry = RetryPolicy::new(&request);
        let (mut tried, mut is_busy) = (Vec::new(), false);
        loop {
            let next_hop = if is_busy {
                Box::pin(self.next_hop_of_busy(to, &tried)).await?
            } else {
                self.next_hop(to, &tried, request.body().is_end_stream()).await?
            };
            let sent = Instant::now();
            let called = match &next_hop {
                NextHop::Tunnel(request_permit) => {
                    self.metrics.peers.record_route(RouteKind::Local);
                    request_permit.handle().tunnel.call(request).await
                }
                NextHop::Owner(owner) => {
                    self.metrics.peers.record_route(RouteKind::Peer);
                    Box::pin(owner.call(to, request)).await
                }
            };
            let error = match called {
                Ok(response) => {
                    let owner = next_hop.owner();
                    let request_permit = next_hop.into_request_permit();
                    return Ok(ForwardedResponse { response, request_permit, owner, sent });
                }
                Err(error) => error,
            };
            tracing::debug!(request.id = id.as_ref().and_then(|id| id.to_str().ok()), %error, next_hop = next_hop.name(), "attempt failed");
            match error.request {
                Some(whole) if retry.should_retry(error.delivery) => {
                    self.metrics.retries.inc();
                    // Only tunnels are excluded: an owner that failed may have another tunnel.
                    if let NextHop::Tunnel(request_permit) = next_hop {
                        tried.push(request_permit.tunnel());
                        is_busy |= matches!(error.kind, CallErrorKind::Busy);
                    }
                    request = *whole;
                }
                _ => return Err(call_error(to, &next_hop, &error)),
            }
        }
    }

    /// Chooses the least loaded local tunnel of the agent, without those that were tried.
    fn choose_tunnel(&self, to: &Destination, tried: &[TunnelId]) -> TunnelChoice<TunnelEntry> {
        self.tunnels.choose(to.agent, &to.service, to.class, tried, cores::current())
    }

    /// Returns the next hop, at once if there is one. `bodyless`: the request has no body, so that a failed attempt always
    /// returns it.
    async fn next_hop(
        &self,
        to: &Destination,
        tried: &[TunnelId],
        bodyless: bool,
    ) -> Result<NextHop, RequestError> {
        match self.choose_tunnel(to, tried) {
            TunnelChoice::Tunnel(request_permit) => return Ok(NextHop::Tunnel(request_permit)),
            TunnelChoice::NoTunnel if bodyless => {
                if let Some(owner) = self.peers.recent_owner(&*self.store, to).await {
                    return Ok(NextHop::Owner(owner));
                }
            }
            _ => {}
        }
        // Boxed: most requests find a tunnel at once, and should not reserve memory for the wait.
        Box::pin(self.wait_for_next_hop(to, tried)).await
    }

    /// Returns another tunnel of an agent, of which one is busy. It waits for none, since the agent is connected.
    async fn next_hop_of_busy(&self, to: &Destination, tried: &[TunnelId]) -> Result<NextHop, RequestError> {
        if let TunnelChoice::Tunnel(request_permit) = self.choose_tunnel(to, tried) {
            return Ok(NextHop::Tunnel(request_permit));
        }
        let owner = self.peers.find_owner(&*self.store, to).await;
        owner.map(NextHop::Owner).map_err(|_| busy(to))
    }

    /// Waits until this replica or another one has a tunnel of the agent.
    async fn wait_for_next_hop(&self, to: &Destination, tried: &[TunnelId]) -> Result<NextHop, RequestError> {
        let deadline = Instant::now() + self.reconnect_wait;
        loop {
            // Created before the lookup, so that no event in between is missed.
            let arrival = self.tunnels.registered(to.agent);
            let change = self.store.changed(to.agent);
            let served = match self.choose_tunnel(to, tried) {
                TunnelChoice::Tunnel(request_permit) => return Ok(NextHop::Tunnel(request_permit)),
                // The pods of an agent may serve different services, and another replica may have the tunnels of another pod.
                TunnelChoice::NotServed(services) => Some(services),
                TunnelChoice::LimitReached => {
                    self.metrics.count_limit(Limit::RequestsPerAgent);
                    return Err(too_many_requests(to));
                }
                TunnelChoice::NoTunnel => None,
            };
            let declined = match self.peers.find_owner(&*self.store, to).await {
                Ok(owner) => return Ok(NextHop::Owner(owner)),
                Err(declined) => declined,
            };
            if let Some(services) = served {
                return Err(self.not_served(to, &services));
            }
            if let Some(failure) = declined.iter().find_map(|declined| final_error(to, &declined.error)) {
                return Err(failure);
            }
            let woken = async {
                tokio::select! { () = arrival => {}, () = change => {} }
            };
            if timeout_at(deadline, woken).await.is_err() {
                return Err(self.not_connected(to, &declined).await);
            }
        }
    }

    /// Returns the error for an agent without a tunnel. `declined`: the errors of the owners in the last lookup.
    async fn not_connected(&self, to: &Destination, declined: &[OwnerError]) -> RequestError {
        let name = to.label();
        if !declined.is_empty() {
            let why = declined.iter().map(|OwnerError { replica, error }| format!("{replica}: {error}"));
            let why = why.collect::<Vec<_>>().join("; ");
            let what = format!(
                "agent {name} is connected to other replicas according to Redis, but none of them accepts the request: {why}"
            );
            return RequestError::new(Reason::AgentNotConnected, what).with_retry_after(RETRY_AFTER);
        }
        let what = match self.store.lookup(to.agent).await {
            Ok(record) => match (record.routes.is_empty(), record.disconnected_since) {
                (false, _) => {
                    format!("agent {name} is connected, but none of its tunnels accepts requests now")
                }
                (true, _) if let Some(kind) = self.dial_errors.kind(to.agent) => {
                    format!(
                        "agent {name} is not connected, and kas cannot dial it ({kind}): `kas agents show` has the reason"
                    )
                }
                (true, Some(since)) => format!("agent {name} disconnected {} ago", format_age(since)),
                (true, None) => format!(
                    "agent {name} is not connected, and has not connected to this kas since it started: check that agentk \
                     runs with a valid token and the address of this kas"
                ),
            },
            Err(error) => format!("agent {name} has no tunnel on this replica, and {error}"),
        };
        RequestError::new(Reason::AgentNotConnected, what).with_retry_after(RETRY_AFTER)
    }
}

impl Forwarder {
    /// Returns the error for an agent that serves only `services`.
    fn not_served(&self, to: &Destination, services: &[ServiceName]) -> RequestError {
        let served = services.iter().filter(|service| !service.is_internal()).map(ServiceName::as_str);
        let served = served.collect::<Vec<_>>().join(", ");
        let (agent, service) = (to.label(), &to.service);
        let tunnels = self.tunnels.views_of(to.agent);
        let gitlab_version = gitlab_version_of_all(tunnels.iter().map(|tunnel| tunnel.handle().hello()));
        let what = match gitlab_version {
            Some(version) => format!(
                "agent {agent} speaks GitLab's protocol (agentk {version}), which has no {service}; it serves: {served}. For the \
                 other services, use the agentk of kas with the same token, at an address with ws:// or wss://"
            ),
            None => format!("agent {agent} does not serve {service}; it serves: {served}"),
        };
        RequestError::new(Reason::UnknownService, what)
    }
}

impl NextHop {
    fn into_request_permit(self) -> Option<RequestPermit<TunnelEntry>> {
        match self {
            Self::Tunnel(request_permit) => Some(request_permit),
            Self::Owner(_) => None,
        }
    }

    fn owner(&self) -> Option<ReplicaId> {
        match self {
            Self::Tunnel(_) => None,
            Self::Owner(owner) => Some(owner.replica()),
        }
    }

    /// Returns the name for logs.
    fn name(&self) -> String {
        match self {
            Self::Tunnel(request_permit) => format!("tunnel {}", request_permit.tunnel()),
            Self::Owner(owner) => format!("replica {}", owner.replica()),
        }
    }
}

/// Returns the error of an owner that the caller gets at once: neither another owner nor waiting would help.
fn final_error(to: &Destination, error: &PeerError) -> Option<RequestError> {
    match error {
        PeerError::Declined { reason: Reason::TooManyRequests, .. } => Some(too_many_requests(to)),
        PeerError::Declined { reason: Reason::UnknownService, message } => {
            let what = format!("agent {} does not serve {}: {message}", to.label(), to.service);
            Some(RequestError::new(Reason::UnknownService, what))
        }
        _ => None,
    }
}

fn too_many_requests(to: &Destination) -> RequestError {
    let what = format!(
        "agent {} has as many requests in flight as allowed (agent.kubernetes_api.limits.max_requests_per_agent)",
        to.label()
    );
    RequestError::new(Reason::TooManyRequests, what).with_retry_after(Duration::from_secs(1))
}

/// Returns the error for an agent whose processes serve as many requests as they can.
fn busy(to: &Destination) -> RequestError {
    let what = format!(
        "all streams of agent {} carry requests: GitLab's agentk serves at most 500 at the same time in each of its pods. End \
         watches that are not needed, or run more pods",
        to.label()
    );
    RequestError::new(Reason::TooManyRequests, what).with_retry_after(Duration::from_secs(1))
}

/// Returns the error for a request whose last attempt failed.
fn call_error(to: &Destination, next_hop: &NextHop, error: &CallError) -> RequestError {
    let name = to.label();
    if let NextHop::Owner(owner) = next_hop
        && !matches!(error.kind, CallErrorKind::Body(_))
    {
        let replica = owner.replica();
        return match error.delivery {
            Delivery::NotProcessed => {
                let what = format!(
                    "agent {name} was connected to replica {replica}, which accepts no more requests for it"
                );
                RequestError::new(Reason::AgentNotConnected, what).with_retry_after(RETRY_AFTER)
            }
            Delivery::Unknown => RequestError::new(
                Reason::TunnelLost,
                format!(
                    "replica {replica} lost the request to agent {name} before the response; the cluster may have executed it"
                ),
            ),
        };
    }
    match error.kind {
        CallErrorKind::Closed | CallErrorKind::Refused => {
            let what = format!("agent {name} is draining its tunnel and has no other one");
            RequestError::new(Reason::AgentNotConnected, what).with_retry_after(RETRY_AFTER)
        }
        CallErrorKind::Busy => busy(to),
        CallErrorKind::Lost(_) => RequestError::new(
            Reason::TunnelLost,
            format!(
                "the tunnel to agent {name} was lost before the response; the cluster may have executed the request"
            ),
        ),
        CallErrorKind::Reset(_) => RequestError::new(
            Reason::TunnelLost,
            format!("agent {name} aborted the request before the response; the cluster may have executed it"),
        ),
        CallErrorKind::Body(ref body) => {
            RequestError::of_body(body).unwrap_or_else(|| RequestError::bad_request(error.to_string()))
        }
        CallErrorKind::Unsupported(what) => RequestError::new(
            Reason::AgentMisbehaved,
            format!("the request cannot be sent to agent {name}: {what}"),
        ),
    }
}

/// Returns the error of the agent, if the response is one.
///
/// The agent is not trusted: it cannot send an error that only kas may send.
pub fn agent_error(response: &Response<Body>, agent: AgentLabel<'_>) -> Option<RequestError> {
    let headers = response.headers();
    let reason = headers.get(&header::ERROR)?.to_str().ok()?;
    let message = headers.get(&header::ERROR_MESSAGE).and_then(|message| message.to_str().ok());
    let message = percent_decode_str(message.unwrap_or("the agent gave no message")).decode_utf8_lossy();
    let message: String = message.chars().filter(|c| !c.is_control()).collect();
    // A caller that receives `unauthorized` discards its credential; only the operator of kas disables requests.
    let only_kas = [Reason::Unauthorized, Reason::Disabled];
    let reason = reason.parse().ok().filter(|reason| !only_kas.contains(reason));
    let reason = reason.unwrap_or(Reason::AgentMisbehaved);
    let mut error = RequestError::new(reason, format!("agent {agent}: {message}"));
    error.allow = headers.get(ALLOW).filter(|_| reason == Reason::MethodNotAllowed).cloned();
    error.retry_after = (reason == Reason::ScopeAwaited).then_some(SCOPE_RETRY_AFTER);
    Some(error)
}

fn format_age(since: SystemTime) -> String {
    let seconds = since.elapsed().unwrap_or_default().as_secs();
    match seconds {
        0..=119 => format!("{seconds} seconds"),
        120..=7199 => format!("{} minutes", seconds / 60),
        _ => format!("{} hours", seconds / 3600),
    }
}
