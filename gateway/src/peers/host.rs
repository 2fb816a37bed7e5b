//! The private listener: what other replicas may ask of this one. They are given local tunnels, and nothing else: what
//! came from a replica never goes to another. Whoever asks whether it can be reached is greeted, where the directory says
//! that it is.

use std::{
    fmt::Display,
    sync::Arc,
    time::{Duration, SystemTime},
};

use cores::Cores;
use http::{Request, Response};
use parking_lot::Mutex;
use proto::{Reason, ReplicaId, ServiceName, header};
use router::{Choice, Lease, LocalTunnels, RouteStore};
use telemetry::log_limit::LogLimit;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::SetOnce,
    time::{Instant, timeout},
};
use tunnel::{Body, IncomingRequest, Settings, direct};

use super::{
    Peers, milliseconds,
    replay::Seen,
    seal::{Seal, Secret, Subject, timely},
    stamp::{Kind, STAMP, Stamp},
    verdict::Verdict,
};
use crate::{
    config::Config,
    connected::Connected,
    listen::Listener,
    metrics::{Metrics, Served},
    tasks::TaskGroup,
};

/// How long a connection may take to say something that a replica would say.
const STRANGER_TIMEOUT: Duration = Duration::from_secs(10);

/// How often one kind of refusal is logged.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// Serves other replicas.
#[derive(Debug)]
pub struct Host {
    /// This replica.
    me: ReplicaId,
    /// The tunnels that end here.
    tunnels: Arc<LocalTunnels<Connected>>,
    /// What other replicas prove that they know; without it the listener, or TLS, keeps strangers out.
    secret: Option<Secret>,
    /// The way back to them, for those that ask whether there is one.
    peers: Peers,
    /// Where they are.
    store: Arc<dyn RouteStore>,
    /// What they said before.
    seen: Mutex<Seen>,
    /// How connections are set up.
    settings: Settings,
    /// How long requests in flight may take once this replica leaves.
    grace: Duration,
    /// Connections of other replicas and their requests. Once the group drains, new requests are refused.
    pub connections: TaskGroup,
    /// What is counted.
    metrics: Metrics,
    /// Refused requests are worth a line, not a flood.
    refusals: LogLimit<&'static str>,
}

/// A request that a replica sent, and that may be answered.
struct Admitted {
    stamp: Stamp,
    service: ServiceName,
}

impl Host {
    /// Of one replica, that reaches the others through `peers`.
    pub fn new(
        me: ReplicaId,
        secret: Option<Secret>,
        tunnels: Arc<LocalTunnels<Connected>>,
        (peers, store): (Peers, Arc<dyn RouteStore>),
        config: &Config,
        metrics: Metrics,
    ) -> Self {
        Self {
            me,
            tunnels,
            secret,
            peers,
            store,
            seen: Mutex::default(),
            settings: Settings { stalls: metrics.stalls.clone(), ..config.peer_settings() },
            grace: config.agent.kubernetes_api.listen.shutdown_grace_period,
            connections: TaskGroup::default(),
            metrics,
            refusals: LogLimit::new(LOG_PERIOD),
        }
    }

    /// Accepts connections of other replicas until their group drains.
    pub async fn listen(self: Arc<Self>, listener: Listener, cores: Cores) {
        let (connections, metrics) = (self.connections.clone(), self.metrics.clone());
        let serving = listener.serve(connections, cores, metrics, move |io, address| {
            let host = Arc::clone(&self);
            async move { host.serve(io, address).await }
        });
        serving.await;
    }

    /// Serves one connection until it ends. `address` is for logs.
    pub async fn serve<T>(self: &Arc<Self>, io: T, address: impl Display)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (session, leave) = direct::accept(io, &self.settings);
        let known = Arc::new(SetOnce::new());
        let serving = session.run(|incoming| {
            let (host, known) = (Arc::clone(self), Arc::clone(&known));
            // Boxed: what is spawned is moved half a dozen times, and this is some kilobytes.
            self.connections.tasks.spawn(Box::pin(async move { host.handle(incoming, &known).await }));
        });
        tokio::pin!(serving);
        let stranger = timeout(STRANGER_TIMEOUT, known.wait());
        tokio::pin!(stranger);
        let (mut introduced, mut leaving) = (false, false);
        loop {
            tokio::select! {
                ended = &mut serving => {
                    return tracing::debug!(peer = %address, reason = %ended, "a connection of a replica ended");
                }
                met = &mut stranger, if !introduced => {
                    if met.is_err() {
                        return tracing::debug!(peer = %address, "a connection to the private listener is no replica's");
                    }
                    introduced = true;
                }
                () = self.connections.draining.cancelled(), if !leaving => {
                    leaving = true;
                    leave.within(self.grace);
                }
            }
        }
    }

    async fn handle(&self, incoming: IncomingRequest, known: &SetOnce<()>) {
        let admitted = match self.admit(incoming.request()) {
            Ok(admitted) => admitted,
            Err(served) => return self.refuse(incoming, served),
        };
        // Fails if it was set before, which is as good.
        let _ = known.set(());
        match admitted.stamp.kind {
            Kind::Ask => self.answer(incoming, &admitted).await,
            Kind::Pass => self.pass(incoming, &admitted).await,
            Kind::Greet => {
                self.metrics.peers.served(Served::Asked);
                self.say(incoming, &admitted, Verdict::Holds).await;
            }
            Kind::Call => {
                self.metrics.peers.served(Served::Asked);
                let verdict = match self.peers.call_back(&*self.store, admitted.stamp.from).await {
                    Ok(()) => Verdict::Holds,
                    Err((reason, message)) => Verdict::Declines { reason, message },
                };
                self.say(incoming, &admitted, verdict).await;
            }
        }
    }

    fn admit(&self, request: &Request<Body>) -> Result<Admitted, Served> {
        let headers = request.headers();
        let service = headers.get(header::SERVICE).and_then(|service| service.to_str().ok()?.parse().ok());
        let service: ServiceName = service.ok_or(Served::Malformed)?;
        let stamp = headers.get(STAMP).and_then(|stamp| Stamp::decode(stamp).ok());
        let stamp = stamp.ok_or(Served::Malformed)?;
        if let Some(secret) = &self.secret {
            let (method, uri) = (request.method(), request.uri());
            let subject = Subject { stamp: &stamp, to: self.me, service: service.as_str(), method, uri };
            if !secret.verify(subject) {
                return Err(Served::Forged);
            }
            if !timely(stamp.sent, milliseconds(SystemTime::now())) {
                return Err(Served::Expired);
            }
            if !self.seen.lock().admit(stamp.from, stamp.number, Instant::now()) {
                return Err(Served::Replayed);
            }
        }
        Ok(Admitted { stamp, service })
    }

    /// To somebody who is perhaps a replica that is set up wrongly.
    fn refuse(&self, incoming: IncomingRequest, served: Served) {
        self.metrics.peers.served(served);
        let result = served.as_str();
        if let Some(suppressed) = self.refusals.admit(result, std::time::Instant::now()) {
            tracing::warn!(
                result,
                suppressed,
                "the private listener refused a request: whoever sent it is no replica of this fleet, or has another secret or clock"
            );
        }
        incoming.refuse();
    }

    async fn answer(&self, incoming: IncomingRequest, admitted: &Admitted) {
        self.metrics.peers.served(Served::Asked);
        let verdict = match self.choose(admitted) {
            Ok(_) => Verdict::Holds,
            Err(declines) => declines,
        };
        self.say(incoming, admitted, verdict).await;
    }

    async fn say(&self, incoming: IncomingRequest, admitted: &Admitted, verdict: Verdict) {
        let question: Option<&Seal> = admitted.stamp.seal.as_ref();
        let mut response = Response::new(Body::empty());
        *response.headers_mut() = verdict.encode(self.secret.as_ref().zip(question));
        incoming.answer(|_| std::future::ready(response)).await;
    }

    async fn pass(&self, mut incoming: IncomingRequest, admitted: &Admitted) {
        let Ok(lease) = self.choose(admitted) else {
            self.metrics.peers.served(Served::Absent);
            return incoming.refuse();
        };
        self.metrics.peers.served(Served::Passed);
        incoming.request_mut().headers_mut().remove(STAMP);
        let id = incoming.request().headers().get(header::REQUEST_ID).cloned();
        if let Err(error) = incoming.relay(&lease.handle().tunnel).await {
            tracing::debug!(request.id = ?id, %error, tunnel = %lease.tunnel(), "a replica's request was not answered");
        }
    }

    fn choose(&self, Admitted { stamp, service }: &Admitted) -> Result<Lease<Connected>, Verdict> {
        let declines = |reason, message: &str| Verdict::Declines { reason, message: message.to_owned() };
        match self.tunnels.choose(stamp.agent, service, stamp.class, &[], cores::here()) {
            // What kas itself asks of an agent, no request of a caller is.
            _ if service.as_str() == ServiceName::CONTROL => {
                Err(declines(Reason::UnknownService, "it passes no control requests on"))
            }
            Choice::Tunnel(lease) => Ok(lease),
            Choice::NoTunnel => {
                Err(declines(Reason::AgentNotConnected, "it does not hold the agent any more"))
            }
            Choice::Busy => Err(declines(
                Reason::TooManyRequests,
                "the agent has as many requests in flight there as it may have \
                 (agent.kubernetes_api.limits.max_requests_per_agent)",
            )),
            Choice::NotServed(services) => {
                let served = services.iter().map(ServiceName::as_str).collect::<Vec<_>>().join(", ");
                Err(declines(Reason::UnknownService, &format!("the agent serves there: {served}")))
            }
        }
    }
}
