//! The listener for callers: authorize, pass on, answer.

mod budget;
mod http2;
mod idle;
mod incoming;
mod suspect;
mod tracked;
mod visit;

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    str::FromStr as _,
    sync::Arc,
    time::Duration,
};

use http::{
    HeaderMap, Method, Request, Response, StatusCode, Uri, Version,
    header::{ALLOW, CONTENT_LENGTH},
    uri::PathAndQuery,
};
use hyper::{body::Incoming, service::service_fn, upgrade::OnUpgrade};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use ipnet::IpNet;
use proto::{Reason, border, header};
use router::Class;
use telemetry::log_limit::LogLimit;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout},
};
use tokio_util::{
    io::{InspectReader, InspectWriter},
    sync::CancellationToken,
    task::TaskTracker,
};
use tracing::{Instrument as _, field::display};
use tunnel::{Body, upgrade};

pub use self::{
    budget::Budget,
    idle::Busy,
    tracked::{Places, Tracked, Tracking, Turn},
};
use self::{idle::Activity, incoming::watched, visit::Visit};
use crate::{
    access::{Access, authorize},
    config::Limits,
    cors::Cors,
    failure::Failure,
    forward::{Answered, Destination, Forwarder},
    headers::{self, ExtraHeader, Stamp},
    identity::{Grant, Identities},
    io::StallGuard,
    metrics::{Limit, Metrics},
    promql,
    target::Target,
    timing::Stages,
    traces::{RequestTrace, Traces},
};

/// How long the caller's connection may take to be handed over after the 101 was sent.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an answer that nobody needs to watch for memory's sake.
const SMALL: u64 = 64 << 10;
/// hyper reads into no smaller buffer.
const MIN_HEAD_BYTES: usize = 8192;
/// How long a connection that is asked to close may stay without a request.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves callers.
#[derive(Debug)]
pub struct Callers {
    /// Who callers are.
    pub identities: Identities,
    /// Where requests go.
    pub forwarder: Forwarder,
    /// Set once this replica takes no new requests on open connections.
    pub leaving: CancellationToken,
    /// Where upgraded connections run.
    pub tasks: TaskTracker,
    /// Failed requests are worth a line, not a flood.
    pub failures: LogLimit<Reason>,
    /// How requests are traced, if they are.
    pub traces: Option<Traces>,
    /// What a caller may take.
    pub limits: Limits,
    /// The memory that answers may take.
    pub budget: Arc<Budget>,
    /// Which web pages may ask.
    pub cors: Cors,
    /// Whose word for a caller's address is taken.
    pub trusted_proxies: Vec<IpNet>,
    /// What a response may bring along besides what is harmless.
    pub extra_headers: Vec<ExtraHeader>,
}

impl Callers {
    /// Serves one connection until it ends.
    pub async fn serve<T>(self: &Arc<Self>, io: T, peer: SocketAddr)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let activity = Arc::new(Activity::default());
        let service = service_fn(|request| {
            let (callers, busy) = (Arc::clone(self), activity.begin());
            async move { Ok::<_, Infallible>(callers.answer(request, peer.ip(), busy).await) }
        });
        let metrics = &self.forwarder.metrics;
        let io = StallGuard::new(io, self.limits.write_stall_timeout, metrics.write_stalls.clone());
        let builder = self.protocols();
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(io), service);
        tokio::pin!(connection);
        metrics.connections.inc();
        let mut closing = false;
        let served = loop {
            let patience = if closing { CLOSE_TIMEOUT } else { self.limits.idle_timeout };
            tokio::select! {
                served = connection.as_mut() => break served,
                () = self.leaving.cancelled(), if !closing => {}
                () = activity.idle(patience) => {
                    if closing {
                        break Ok(());
                    }
                    metrics.limit(Limit::Idle);
                }
            }
            closing = true;
            connection.as_mut().graceful_shutdown();
        };
        metrics.connections.dec();
        if let Err(error) = served {
            if let Some(limit) = Limit::met_by(&*error) {
                metrics.limit(limit);
            }
            tracing::debug!(%peer, error, "a caller's connection failed");
        }
    }

    fn protocols(&self) -> auto::Builder<TokioExecutor> {
        let limits = &self.limits;
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_timeout)
            .max_headers(limits.max_headers)
            .max_buf_size(limits.max_head_bytes.max(MIN_HEAD_BYTES));
        http2::configure(&mut builder, limits);
        builder
    }

    async fn answer(&self, request: Request<Incoming>, peer: IpAddr, busy: Busy) -> Response<Tracked> {
        let visit = Visit::of(&request, peer, &self.trusted_proxies);
        let page = match self.cors.admit(&request) {
            Ok(page) => page,
            Err(failure) => return self.refuse(&failure, &visit, &mut RequestTrace::default()),
        };
        if let Some(answer) = page.preflight(&request) {
            return answer.map(Tracked::untracked);
        }

        let mut trace = RequestTrace::begin(self.traces.as_ref(), &request, &visit.id);
        let answer = self.proxy(request, &visit, &mut trace, busy).await;
        let mut answer = answer.unwrap_or_else(|failure| self.refuse(&failure, &visit, &mut trace));
        page.mark(answer.headers_mut());
        answer
    }

    /// The answer to a request that failed here.
    fn refuse(&self, failure: &Failure, visit: &Visit, trace: &mut RequestTrace) -> Response<Tracked> {
        let reason = failure.reason.as_str();
        trace.failed(failure);
        self.forwarder.metrics.refused(reason);
        if let Some(suppressed) = self.failures.admit(failure.reason, std::time::Instant::now()) {
            let (client, id) = (visit.way.client, &visit.id);
            let trace_id = trace.id().map(display);
            tracing::info!(%client, request.id = ?id, trace_id, reason, suppressed, what = %failure, "a request failed");
        }
        failure.render(&visit.reader, &visit.id, trace.id()).map(Tracked::untracked)
    }

    async fn proxy(
        &self,
        mut request: Request<Incoming>,
        visit: &Visit,
        trace: &mut RequestTrace,
        busy: Busy,
    ) -> Result<Response<Tracked>, Failure> {
        self.check_form(&request)?;
        suspect::refuse(&request)?;
        let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let target = Target::parse(&path)?;
        let identity = self.identities.load();
        let Access { grant, agent } = authorize(&identity, request.headers(), &target)?;
        let name = identity.name(agent).expect("authorized").clone();
        drop(identity);

        let turn = self.turn(&grant)?;
        let upgrading = border::upgrade(request.headers()).is_some();
        if upgrading && request.version() != Version::HTTP_11 {
            return Err(Failure::new(Reason::BadRequest, "an upgrade needs HTTP/1.1"));
        }
        let to = Destination { agent, name, service: target.service.clone(), class: target.class(upgrading) };
        trace.authorized(&to, request.method());
        let stamp = Stamp {
            service: &to.service,
            access_as: &grant.caller.access_as,
            request_id: &visit.id,
            version: request.version(),
            way: &visit.way,
        };
        headers::to_agent(request.headers_mut(), stamp)?;
        trace.write(request.headers_mut());
        let multiplexed = request.version() == Version::HTTP_2;
        let method = request.method().clone();
        *request.uri_mut() = Uri::from_str(target.path)
            .map_err(|_| Failure::new(Reason::BadRequest, "the path cannot be passed on"))?;
        let upgrade = upgrading.then(|| hyper::upgrade::on(&mut request));

        let metrics = Arc::clone(self.forwarder.metrics.of(&to.service));
        let patience = self.limits.write_stall_timeout;
        let mut request = request.map(|body| watched(body, patience, &metrics));
        if let Some(labels) = grant.caller.labels(&to.service) {
            request = promql::enforce(labels, request).await?;
        }
        let Answered { mut response, lease, sent } = self.forwarder.forward(&to, request).await?;
        if let Some(failure) = failure_of(&response, &to) {
            return Err(failure);
        }

        let status = response.status();
        let stages = Stages::of(visit.started, sent, Instant::now(), response.headers());
        metrics.answered(status, &stages);
        let upgraded = upgrade::take(&mut response);
        headers::to_caller(response.headers_mut(), upgraded.is_some(), &self.extra_headers, &visit.id);
        stages.write(response.headers_mut());
        tracing::debug!(
            request.id = ?visit.id,
            trace_id = trace.id().map(display),
            client = %visit.way.client,
            caller = grant.caller.name,
            agent.name = %to.name,
            service = %to.service,
            %method,
            path = target.path.split('?').next(),
            status = status.as_u16(),
            queue = ?stages.queue,
            tunnel = ?stages.tunnel,
            upstream = ?stages.upstream,
            "a request was answered"
        );
        let tracking = Tracking::new(Places { lease, turn, busy }, metrics, visit.started);
        match (upgraded, upgrade) {
            (Some(upgraded), Some(outside)) => {
                let tracking = tracking.traced(trace, status, &stages);
                let cut = grant.revoked.child_token();
                let release = cut.clone();
                let share = self.budget.share(upgraded.grip(), move || release.cancel());
                let metrics = self.forwarder.metrics.clone();
                let splice = splice(upgraded, outside, tracking, metrics);
                let splice = splice.instrument(tracing::debug_span!("upgraded", request.id = ?visit.id));
                self.tasks.spawn(async move {
                    let _share = share;
                    cut.run_until_cancelled(splice).await;
                });
                Ok(response.map(Tracked::untracked))
            }
            _ if status == StatusCode::SWITCHING_PROTOCOLS => Err(Failure::new(
                Reason::AgentMisbehaved,
                "the agent switched protocols although nobody asked it to",
            )),
            _ => {
                let may_grow = may_grow(response.headers());
                let grip = response.body().grip().filter(|_| multiplexed || may_grow);
                // Whatever the request looked like: what an API server takes for a watch is for it to say.
                let stays = to.class == Class::Long || may_grow;
                Ok(response.map(|body| {
                    let mut answer = Tracked::new(body, tracking.traced(trace, status, &stages));
                    if let Some(grip) = grip {
                        answer = answer.within(&self.budget, grip);
                    }
                    if stays { answer.until(grant.revoked) } else { answer }
                }))
            }
        }
    }

    /// Whether a request has the form of one that is served here.
    fn check_form<B>(&self, request: &Request<B>) -> Result<(), Failure> {
        if request.method() == Method::CONNECT {
            return Err(Failure::new(Reason::BadRequest, "CONNECT is not served: this is no forward proxy"));
        }
        if request.headers().len() > self.limits.max_headers {
            self.forwarder.metrics.limit(Limit::Head);
            return Err(Failure::new(Reason::HeadTooLarge, "the request has too many header fields"));
        }
        Ok(())
    }

    fn turn(&self, grant: &Grant) -> Result<Turn, Failure> {
        Turn::take(&grant.in_flight, self.limits.max_requests_per_caller).ok_or_else(|| {
            self.forwarder.metrics.limit(Limit::RequestsPerCaller);
            let what = format!("caller {} has as many requests in flight as it may have", grant.caller.name);
            Failure::new(Reason::TooManyRequests, what).retry_after(Duration::from_secs(1))
        })
    }
}

/// Moves raw bytes after the 101. What is tracked ends with it.
async fn splice(upgraded: upgrade::Upgraded, outside: OnUpgrade, tracking: Tracking, metrics: Metrics) {
    let Ok(Ok(outside)) = timeout(UPGRADE_TIMEOUT, outside).await else {
        return;
    };
    let service = &tracking.metrics;
    let outside = InspectReader::new(TokioIo::new(outside), |bytes| {
        service.request_bytes.inc_by(bytes.len() as u64);
    });
    let outside = InspectWriter::new(outside, |bytes| {
        service.response_bytes.inc_by(bytes.len() as u64);
    });
    if let Err(error) = upgrade::splice(upgraded, outside).await {
        if let Some(limit) = Limit::met_by(&error) {
            metrics.limit(limit);
        }
        tracing::debug!(%error, "an upgraded connection was aborted");
    }
}

/// Whether an answer may come to hold much memory while nobody reads it.
fn may_grow(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    length.is_none_or(|length: u64| length > SMALL)
}

/// The agent's own failure, if the response is one.
fn failure_of(response: &Response<Body>, to: &Destination) -> Option<Failure> {
    let reason = response.headers().get(&header::ERROR)?.to_str().ok()?;
    let message = response.headers().get(&header::ERROR_MESSAGE).and_then(|message| message.to_str().ok());
    let message =
        percent_encoding::percent_decode_str(message.unwrap_or("it did not say why")).decode_utf8_lossy();
    let message: String = message.chars().filter(|c| !c.is_control()).collect();
    // What kas alone decides, an agent cannot say: a caller told `unauthorized` would throw its credential away.
    let reason = reason.parse().ok().filter(|reason| *reason != Reason::Unauthorized);
    let reason = reason.unwrap_or(Reason::AgentMisbehaved);
    let mut failure = Failure::new(reason, format!("agent {}: {message}", to.name));
    failure.allow = response.headers().get(ALLOW).filter(|_| reason == Reason::MethodNotAllowed).cloned();
    Some(failure)
}
