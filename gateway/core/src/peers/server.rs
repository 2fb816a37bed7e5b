//! The server: answers requests of other replicas on the private listener.
//!
//! A request of another replica is sent into a tunnel that ends here, and never to a third replica. A ping-back makes this
//! replica connect to the sender, at no other address than that in the route store.

use std::{fmt::Display, sync::Arc, time::Duration};

use cores::{Cores, TaskGroup, poll_on_wake};
use http::Response;
use kas_listen::listener::Listener;
use process::LogLimiter;
use proto::{Reason, ReplicaId, ServiceName, TunnelId, header};
use router::{LocalTunnels, RequestPermit, TunnelChoice};
use settings::Secret;
use store::{Replica, Store};
use strangers::Stranger;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::SetOnce,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tunnel::{Body, IncomingRequest, TunnelConfig, WatchEnds, direct};

use super::{
    PeerClient,
    auth::{RequestVerifier, ResponseKey, VerifiedRequest, VerifyError},
    header::{PEER_HEADER, PeerHeader, PeerRequestKind},
    questions::{self, PeerHooks},
    response::ProbeResponse,
};
use crate::{
    metrics::{Metrics, ServedResult},
    request_types::RequestTypes,
    tunnel_entry::{TunnelEntry, gitlab_version_of_all},
};

/// The time in which a connection has to send its first verified request.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(10);

/// The period in which each kind of refusal is logged once.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// Serves other replicas.
#[derive(Debug)]
pub struct PeerServer {
    tunnels: Arc<LocalTunnels<TunnelEntry>>,
    verifier: RequestVerifier,
    /// Pings replicas that ask for it.
    client: PeerClient,
    /// The store with the addresses of other replicas.
    store: Arc<dyn Store>,
    /// The limits of HTTP/2.
    settings: TunnelConfig,
    /// The time that requests in flight may take after the drain began.
    grace: Duration,
    /// Connections of other replicas and their requests. New requests are refused once the group drains.
    pub connections: TaskGroup,
    metrics: Metrics,
    types: RequestTypes,
    /// Decides when watches end.
    watches: WatchEnds,
    hooks: Vec<Arc<dyn PeerHooks>>,
    refusals: LogLimiter<&'static str>,
}

impl PeerServer {
    /// Creates the server of the replica `own`, with the tunnels that end there. Without [`Self::with_grace`], a drain ends the requests
    /// in flight.
    pub fn new(
        own: Replica,
        secret: Option<Secret>,
        tunnels: Arc<LocalTunnels<TunnelEntry>>,
        client: PeerClient,
        store: Arc<dyn Store>,
        http2: TunnelConfig,
        metrics: Metrics,
    ) -> Self {
        Self {
            tunnels,
            verifier: RequestVerifier::new(own, secret),
            client,
            store,
            settings: TunnelConfig { stalls: metrics.stalls.clone(), ..http2 },
            grace: Duration::ZERO,
            connections: TaskGroup::default(),
            metrics,
            types: RequestTypes::with(Vec::new()),
            watches: WatchEnds::new(CancellationToken::new(), Duration::ZERO),
            hooks: Vec::new(),
            refusals: LogLimiter::new(LOG_PERIOD),
        }
    }

    /// Returns the server with the ends of those requests that are watches of these types.
    #[must_use]
    pub fn with_watches(self, types: RequestTypes, watches: WatchEnds) -> Self {
        Self { types, watches, ..self }
    }

    /// Returns the server with the hooks of features.
    #[must_use]
    pub fn with_hooks(self, hooks: Vec<Arc<dyn PeerHooks>>) -> Self {
        Self { hooks, ..self }
    }

    /// Returns the server with the time that requests in flight may take after the drain began.
    #[must_use]
    pub fn with_grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// Accepts connections of other replicas until their group drains.
    pub async fn listen(self: Arc<Self>, listener: Listener, cores: Cores) {
        let (connections, metrics) = (self.connections.clone(), self.metrics.listeners.clone());
        let serving = listener.serve(connections, cores, metrics, move |io, address| {
            let server = Arc::clone(&self);
            async move {
                let stranger = Arc::clone(io.stranger());
                server.serve(io, address, stranger).await
            }
        });
        serving.await;
    }

    /// Serves one connection until it ends. `address` is for the log. The connection is that of the `stranger` until a request is
    /// verified.
    pub async fn serve<T>(self: &Arc<Self>, io: T, address: impl Display, stranger: Arc<Stranger>)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (session, drain) = direct::accept(io, &self.settings);
        let overhead = session.overhead();
        let verified = Arc::new(SetOnce::new());
        let serving = session.run(|incoming| {
            let (server, verified) = (Arc::clone(self), Arc::clone(&verified));
            // Boxed: spawning moves a future several times, and this one has some kilobytes.
            self.connections.tasks.spawn(Box::pin(async move { server.handle(incoming, &verified).await }));
        });
        tokio::pin!(serving);
        let verifying = timeout(VERIFY_TIMEOUT, verified.wait());
        tokio::pin!(verifying);
        let mut draining = poll_on_wake(self.connections.draining.cancelled());
        let (mut is_verified, mut is_draining) = (false, false);
        loop {
            tokio::select! {
                biased;
                ended = &mut serving => {
                    return tracing::debug!(peer = %address, reason = %ended, "connection of another replica ended");
                }
                result = &mut verifying, if !is_verified => {
                    if result.is_err() {
                        return tracing::debug!(peer = %address, "connection to the private listener closed: it sent no verified request in time");
                    }
                    is_verified = true;
                    overhead.trust();
                    stranger.admit();
                }
                () = &mut draining, if !is_draining => {
                    is_draining = true;
                    drain.drain(self.grace);
                }
            }
        }
    }

    async fn handle(&self, incoming: IncomingRequest, verified: &SetOnce<()>) {
        let request = match self.verifier.verify(incoming.request()) {
            Ok(request) => request,
            Err(error) => return self.refuse(incoming, error).await,
        };
        // Fails if an earlier request has set it.
        let _ = verified.set(());
        let response = match request.header.kind {
            PeerRequestKind::Forward => return self.forward(incoming, &request).await,
            PeerRequestKind::Question => return self.answer_question(incoming, &request.header).await,
            PeerRequestKind::Probe => self.answer_probe(&request),
            PeerRequestKind::Ping => ProbeResponse::Accepted,
            PeerRequestKind::PingBack => self.ping_back(request.header.from).await,
        };
        self.metrics.peers.record_served(ServedResult::Answered);
        self.respond(incoming, &request.header, response).await;
    }

    /// Refuses a request of a stranger, or of a replica with another secret or clock.
    async fn refuse(&self, incoming: IncomingRequest, error: VerifyError) {
        self.metrics.peers.record_served(error.result());
        let result: &str = error.result().into();
        if let Some(suppressed) = self.refusals.admit(result, std::time::Instant::now()) {
            match &error {
                VerifyError::Expired { header, now_ms } => tracing::warn!(
                    result,
                    suppressed,
                    replica = %header.from,
                    sent_ms = header.sent_ms,
                    now_ms,
                    "private listener refused a request: the clock of its sender differs, or the request is old and was sent again"
                ),
                VerifyError::Malformed | VerifyError::InvalidMac | VerifyError::Replayed => tracing::warn!(
                    result,
                    suppressed,
                    "private listener refused a request: its sender is not a replica of this installation, or has another secret"
                ),
            }
        }
        match error {
            // The sender has the secret, so it may learn the time. A forwarded request is refused instead: its sender can
            // send it to another replica.
            VerifyError::Expired { header, now_ms } if header.kind != PeerRequestKind::Forward => {
                self.respond(incoming, &header, ProbeResponse::ClockSkew { now_ms }).await;
            }
            _ => incoming.refuse(),
        }
    }

    async fn respond(&self, incoming: IncomingRequest, request: &PeerHeader, response: ProbeResponse) {
        let mut http_response = Response::new(Body::empty());
        let key = ResponseKey::new(self.verifier.secret(), request.mac.as_ref());
        *http_response.headers_mut() = response.encode(key);
        incoming.respond(|_| std::future::ready(http_response)).await;
    }

    /// Sends a request of another replica into a tunnel that ends here. While an agentk stops, its tunnels refuse requests, and have the
    /// fewest in flight: the tunnels of the other pods are tried, too. The other replica knows no tunnels, and retries a few times only.
    ///
    /// A watch ends when this replica stops: its client sends it again, and it does not delay the end of this replica.
    async fn forward(&self, mut incoming: IncomingRequest, request: &VerifiedRequest) {
        incoming.request_mut().headers_mut().remove(PEER_HEADER);
        let id = incoming.request().headers().get(header::REQUEST_ID).cloned();
        let is_watch = {
            let (method, uri) = (incoming.request().method(), incoming.request().uri());
            self.types.is_watch(&request.service, request.header.class, method, uri)
        };
        let ends = is_watch.then_some(&self.watches);
        let mut tried = Vec::new();
        loop {
            let chosen = self.choose(request, &tried);
            if tried.is_empty() {
                let served = if chosen.is_ok() { ServedResult::Forwarded } else { ServedResult::NoTunnel };
                self.metrics.peers.record_served(served);
            }
            let Ok(request_permit) = chosen else { return incoming.refuse() };
            if let Some(id) = &id {
                self.hooks.iter().for_each(|hook| hook.on_relay(id, &request.header, &request_permit));
            }
            let Err(failed) = incoming.relay(&request_permit.handle().tunnel, ends).await else { return };
            tracing::debug!(request.id = id.as_ref().and_then(|id| id.to_str().ok()), error = %failed.error, tunnel = %request_permit.tunnel(), "request of another replica got no response");
            incoming = match failed.retry() {
                Ok(again) => again,
                Err(failed) => return failed.reset(),
            };
            self.metrics.retries.inc();
            tried.push(request_permit.tunnel());
        }
    }

    /// Answers a question for the feature that knows it.
    async fn answer_question(&self, incoming: IncomingRequest, request: &PeerHeader) {
        let answer = questions::decode(incoming.request().uri())
            .and_then(|question| self.hooks.iter().find_map(|hook| hook.answer(&question)));
        let answer = match answer {
            Some(answer) => answer.await,
            None => Err("it does not know this question"),
        };
        self.metrics.peers.record_served(ServedResult::Answered);
        let key = ResponseKey::new(self.verifier.secret(), request.mac.as_ref());
        match answer {
            Ok(answer) => {
                let response = questions::encode_answer(answer, key);
                incoming.respond(|_| std::future::ready(response)).await;
            }
            Err(message) => {
                let declined =
                    ProbeResponse::Declined { reason: Reason::UnknownService, message: message.to_owned() };
                self.respond(incoming, request, declined).await;
            }
        }
    }

    /// Pings the replica at its address in the route store.
    async fn ping_back(&self, replica: ReplicaId) -> ProbeResponse {
        let Some(replica) = self.store.replica(replica) else {
            let message = "the route store has no address of the replica".to_owned();
            return ProbeResponse::Declined { reason: Reason::AgentNotConnected, message };
        };
        match self.client.ping(&replica).await {
            Ok(()) => ProbeResponse::Accepted,
            Err(error) => ProbeResponse::Declined { reason: Reason::TunnelLost, message: error.to_string() },
        }
    }

    /// Accepts a request before it is sent, if there is a tunnel for it. A tunnel that agentk has replaced takes no more requests, and stays
    /// for its streams: a request with a body would come back without the part that was sent.
    fn answer_probe(&self, request: &VerifiedRequest) -> ProbeResponse {
        let mut closed = Vec::new();
        loop {
            match self.choose(request, &closed) {
                Ok(permit) if permit.handle().tunnel.is_closed() => closed.push(permit.tunnel()),
                Ok(_) => return ProbeResponse::Accepted,
                Err(declined) => return declined,
            }
        }
    }

    /// Returns a tunnel for the request, without those that were tried, or the response if there is none.
    fn choose(
        &self,
        request: &VerifiedRequest,
        tried: &[TunnelId],
    ) -> Result<RequestPermit<TunnelEntry>, ProbeResponse> {
        let VerifiedRequest { header, service } = request;
        let declined =
            |reason, message: &str| Err(ProbeResponse::Declined { reason, message: message.to_owned() });
        // The replica with the tunnel sends these requests itself.
        if !service.is_forwarded() {
            return declined(Reason::UnknownService, "it does not forward requests of kas itself");
        }
        match self.tunnels.choose(header.agent, service, header.class, tried, cores::current()) {
            TunnelChoice::Tunnel(request_permit) => Ok(request_permit),
            TunnelChoice::NoTunnel => {
                declined(Reason::AgentNotConnected, "it does not hold the agent any more")
            }
            TunnelChoice::LimitReached => declined(
                Reason::TooManyRequests,
                "the agent has as many requests in flight there as it may have \
                 (agent.kubernetes_api.limits.max_requests_per_agent)",
            ),
            TunnelChoice::NotServed(services) => {
                let served = services.iter().filter(|service| !service.is_internal());
                let served = served.map(ServiceName::as_str).collect::<Vec<_>>().join(", ");
                let tunnels = self.tunnels.views_of(header.agent);
                let version = gitlab_version_of_all(tunnels.iter().map(|tunnel| tunnel.handle().hello()));
                let protocol = version.map(|version| {
                    format!("; it speaks GitLab's protocol (agentk {version}), and the agentk of kas serves the others")
                });
                let what = format!("the agent serves there: {served}{}", protocol.unwrap_or_default());
                declined(Reason::UnknownService, &what)
            }
        }
    }
}
