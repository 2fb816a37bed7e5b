//! The listener for callers: one connection, its requests, and the answers that they get.
//!
//! `passage` takes a request through: who asks whom, out, and back. The other modules are limits on what a connection
//! or a request may do meanwhile.

mod budget;
mod http2;
mod idle;
mod incoming;
mod passage;
mod splice;
mod suspect;
mod tracked;
mod visit;

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use http::{Method, Request, Response};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use ipnet::IpNet;
use proto::Reason;
use telemetry::log_limit::LogLimit;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::field::display;

pub use self::{
    budget::Budget,
    idle::Busy,
    tracked::{Places, Tracked, Tracking, Turn},
    visit::Visit,
};
use self::{
    idle::{Activity, Open},
    passage::Passage,
};
use crate::{
    config::Limits,
    cors::Cors,
    failure::Failure,
    forward::Forwarder,
    headers::{self, ExtraHeader},
    identity::Identities,
    io::{LingeringClose, StallGuard},
    metrics::Limit,
    traces::{RequestTrace, Traces},
};

/// hyper reads into no smaller buffer.
const MIN_HEAD_BYTES: usize = 8192;
/// How many fields of a head hyper takes unless it is told a number.
const HYPER_MAX_HEADERS: usize = 100;
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
        let from = Arc::new(headers::Peer::new(peer.ip()));
        let service = service_fn(|request| {
            let (callers, from, busy) = (Arc::clone(self), Arc::clone(&from), activity.begin());
            async move { Ok::<_, Infallible>(callers.answer(request, &from, busy).await) }
        });
        let metrics = &self.forwarder.metrics;
        let io = StallGuard::new(io, self.limits.write_stall_timeout, metrics.write_stalls.clone());
        let io = LingeringClose::new(io, Arc::clone(&activity.upgraded));
        let builder = self.protocols();
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(io), service);
        tokio::pin!(connection);
        let _open = Open::one_more(&metrics.connections);
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
            .max_buf_size(limits.max_head_bytes.max(MIN_HEAD_BYTES));
        // With a limit of its own, hyper clears room for so many fields at every request. A lower one is for
        // `check_form`, which says so in the answer's body.
        if limits.max_headers > HYPER_MAX_HEADERS {
            builder.http1().max_headers(limits.max_headers);
        }
        http2::configure(&mut builder, limits);
        builder
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        peer: &headers::Peer,
        busy: Busy,
    ) -> Response<Tracked> {
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
        request: Request<Incoming>,
        visit: &Visit,
        trace: &mut RequestTrace,
        busy: Busy,
    ) -> Result<Response<Tracked>, Failure> {
        self.check_form(&request)?;
        suspect::refuse(&request)?;
        let passage = Passage::admit(self, &request, visit, trace, busy)?;
        let (request, outside) = passage.outgoing(request).await?;
        let answered = self.forwarder.forward(&passage.to, request).await?;
        passage.incoming(answered, outside)
    }

    /// Whether a request has the form of one that is served here.
    fn check_form<B>(&self, request: &Request<B>) -> Result<(), Failure> {
        if request.method() == Method::CONNECT {
            return Err(Failure::new(Reason::BadRequest, "CONNECT is not served: this is no forward proxy"));
        }
        if request.headers().len() > self.limits.max_headers {
            self.forwarder.metrics.limit(Limit::Head);
            return Err(Failure::new(
                Reason::HeadTooLarge,
                "the request has more header fields than agent.kubernetes_api.limits.max_headers",
            ));
        }
        Ok(())
    }
}
