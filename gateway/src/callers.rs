//! The listener for callers: authorize, pass on, answer.

mod tracked;

use std::{convert::Infallible, fmt::Display, str::FromStr as _, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, uri::PathAndQuery};
use hyper::{body::Incoming, service::service_fn, upgrade::OnUpgrade};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use proto::{Reason, border, header};
use router::Class;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tunnel::{Body, upgrade};

pub use self::tracked::{Tracked, Turn};
use crate::{
    access::{Access, authorize},
    config::Limits,
    failure::{Failure, Reader},
    forward::{Destination, Forwarder},
    headers,
    identity::Identities,
    io::StallGuard,
    log_limit::LogLimit,
    metrics::class,
    target::Target,
};

/// How long the caller's connection may take to be handed over after the 101 was sent.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest request id of a caller that is taken over.
const MAX_REQUEST_ID: usize = 64;
/// hyper reads into no smaller buffer.
const MIN_HEAD_BYTES: usize = 8192;

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
    /// What a caller may take.
    pub limits: Limits,
}

impl Callers {
    /// Serves one connection until it ends. `address` is for logs.
    pub async fn serve<T>(self: &Arc<Self>, io: T, address: impl Display)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let address: Arc<str> = address.to_string().into();
        let service = service_fn(|request| {
            let (callers, address) = (Arc::clone(self), Arc::clone(&address));
            async move { Ok::<_, Infallible>(callers.answer(request, &address).await) }
        });
        let limits = &self.limits;
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_timeout)
            .max_headers(limits.max_headers)
            .max_buf_size(limits.max_head_bytes.max(MIN_HEAD_BYTES));
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(30))
            .max_header_list_size(u32::try_from(limits.max_head_bytes).unwrap_or(u32::MAX));
        let io = StallGuard::new(io, limits.write_stall_timeout);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(io), service);
        tokio::pin!(connection);
        let connections = &self.forwarder.metrics.connections;
        connections.inc();
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = self.leaving.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        connections.dec();
        if let Err(error) = served {
            tracing::debug!(peer = &*address, error, "a caller's connection failed");
        }
    }

    async fn answer(&self, request: Request<Incoming>, address: &str) -> Response<Tracked> {
        let id = request_id(request.headers());
        let reader = Reader::of(Target::dialect(request.uri().path()), request.headers());
        match self.proxy(request, &id).await {
            Ok(response) => response,
            Err(failure) => {
                self.forwarder.metrics.refused(failure.reason.as_str());
                if let Some(suppressed) = self.failures.admit(failure.reason, std::time::Instant::now()) {
                    let reason = failure.reason.as_str();
                    tracing::info!(peer = address, request.id = ?id, reason, suppressed, what = %failure, "a request failed");
                }
                failure.render(&reader, &id).map(Tracked::untracked)
            }
        }
    }

    async fn proxy(
        &self,
        mut request: Request<Incoming>,
        id: &HeaderValue,
    ) -> Result<Response<Tracked>, Failure> {
        let started = Instant::now();
        if request.method() == Method::CONNECT {
            return Err(Failure::new(Reason::BadRequest, "CONNECT is not served: this is no forward proxy"));
        }
        if request.headers().len() > self.limits.max_headers {
            return Err(Failure::new(Reason::HeadTooLarge, "the request has too many header fields"));
        }
        let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let target = Target::parse(&path)?;
        let identity = self.identities.load();
        let Access { grant, agent } = authorize(&identity, request.headers(), &target)?;
        let name = identity.name(agent).expect("authorized").clone();
        drop(identity);

        let turn = Turn::take(&grant.in_flight, self.limits.max_requests_per_caller).ok_or_else(|| {
            let what = format!("caller {} has as many requests in flight as it may have", grant.caller.name);
            Failure::new(Reason::TooManyRequests, what).retry_after(Duration::from_secs(1))
        })?;
        let upgrading = border::upgrade(request.headers()).is_some();
        if upgrading && request.version() != Version::HTTP_11 {
            return Err(Failure::new(Reason::BadRequest, "an upgrade needs HTTP/1.1"));
        }
        let to = Destination { agent, name, service: target.service.clone(), class: target.class(upgrading) };
        headers::to_agent(request.headers_mut(), &to.service, &grant.caller.access_as, id)?;
        *request.uri_mut() = Uri::from_str(target.path)
            .map_err(|_| Failure::new(Reason::BadRequest, "the path cannot be passed on"))?;
        let upgrade = upgrading.then(|| hyper::upgrade::on(&mut request));

        let metrics = self.forwarder.metrics.of(&to.service);
        let request = request.map(Body::from);
        let (mut response, lease) = self.forwarder.forward(&to, request).await?;
        if let Some(failure) = failure_of(&response, &to) {
            return Err(failure);
        }

        metrics.answered(class(response.status()));
        let upgraded = upgrade::take(&mut response);
        let switching = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        headers::to_caller(response.headers_mut(), upgraded.is_some(), id);
        tracing::debug!(
            request.id = ?id,
            caller = grant.caller.name,
            agent.name = %to.name,
            service = %to.service,
            status = response.status().as_u16(),
            "a request was answered"
        );
        match (upgraded, upgrade) {
            (Some(upgraded), Some(outside)) => {
                let tracked = Tracked::new(Body::empty(), lease, turn, metrics, started);
                let splice = splice(upgraded, outside, tracked);
                self.tasks.spawn(async move { grant.revoked.run_until_cancelled(splice).await });
                Ok(response.map(Tracked::untracked))
            }
            _ if switching => Err(Failure::new(
                Reason::AgentMisbehaved,
                "the agent switched protocols although nobody asked it to",
            )),
            _ => Ok(response.map(|body| {
                let tracked = Tracked::new(body, lease, turn, metrics, started);
                if to.class == Class::Long { tracked.until(grant.revoked) } else { tracked }
            })),
        }
    }
}

/// Moves raw bytes after the 101. What is tracked ends with it.
async fn splice(upgraded: upgrade::Upgraded, outside: OnUpgrade, tracked: Tracked) {
    let _tracked = tracked;
    let Ok(Ok(outside)) = timeout(UPGRADE_TIMEOUT, outside).await else {
        return;
    };
    if let Err(error) = upgrade::splice(upgraded, TokioIo::new(outside)).await {
        tracing::debug!(%error, "an upgraded connection was aborted");
    }
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
    Some(Failure::new(reason, format!("agent {}: {message}", to.name)))
}

/// The caller's own, so that it finds its request in our logs; a new one if it has none that fits into a log line.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let given = headers
        .get(&header::REQUEST_ID)
        .filter(|id| (1..=MAX_REQUEST_ID).contains(&id.len()) && id.as_bytes().iter().all(plain));
    given.cloned().unwrap_or_else(|| {
        HeaderValue::from_str(&format!("{:016x}", rand::random::<u64>())).expect("hexadecimal digits")
    })
}
