//! The listener for callers: one connection, its requests, and the answers that they get.
//!
//! `connection` reads requests and writes answers; `passage` takes a request through: who asks whom, out, and back. The other
//! modules are limits on what a connection or a request may do meanwhile.

mod budget;
mod connection;
mod http2;
mod idle;
mod incoming;
mod passage;
mod splice;
mod suspect;
mod tracked;
mod visit;

use std::{error::Error, net::SocketAddr, sync::Arc};

use http::{Method, Request, Response};
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
    connection::{Connection, Served},
    idle::Open,
    incoming::Incoming,
    passage::Passage,
    splice::Switched,
};
use crate::{
    config::Limits,
    cors::Cors,
    failure::Failure,
    forward::Forwarder,
    headers::{self, ExtraHeader},
    identity::Identities,
    io::StallGuard,
    metrics::Limit,
    traces::{RequestTrace, Traces},
};

/// Serves callers.
#[derive(Debug)]
pub struct Callers {
    /// Who callers are.
    pub identities: Identities,
    /// Where requests go.
    pub forwarder: Forwarder,
    /// Set once this replica takes no new requests on open connections.
    pub leaving: CancellationToken,
    /// Where connections run.
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

/// What a caller gets.
struct Answer {
    response: Response<Tracked>,
    /// What takes the connection over after a 101.
    switched: Option<Switched>,
}

impl From<Response<Tracked>> for Answer {
    fn from(response: Response<Tracked>) -> Self {
        Self { response, switched: None }
    }
}

impl Callers {
    /// Serves one connection until it ends.
    pub async fn serve<T>(self: &Arc<Self>, io: T, peer: SocketAddr)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let from = Arc::new(headers::Peer::new(peer.ip()));
        let metrics = &self.forwarder.metrics;
        let _open = Open::one_more(&metrics.connections);
        let io = StallGuard::new(io, self.limits.write_stall_timeout, metrics.write_stalls.clone());
        let served: Result<(), Box<dyn Error>> = match Connection::new(self, &from, io).serve().await {
            Ok(Served::Http2(io)) => http2::serve(self, &from, io).await.map_err(Into::into),
            Ok(Served::Closed) => Ok(()),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = served {
            if let Some(limit) = Limit::met_by(&*error) {
                metrics.limit(limit);
            }
            tracing::debug!(%peer, error, "a caller's connection failed");
        }
    }

    async fn answer(&self, request: Request<Incoming>, peer: &headers::Peer, busy: Option<Busy>) -> Answer {
        let visit = Visit::of(&request, peer, &self.trusted_proxies);
        let page = match self.cors.admit(&request) {
            Ok(page) => page,
            Err(failure) => return self.refuse(&failure, &visit, &mut RequestTrace::default()).into(),
        };
        if let Some(answer) = page.preflight(&request) {
            return answer.map(Tracked::untracked).into();
        }

        let mut trace = RequestTrace::begin(self.traces.as_ref(), &request, &visit.id);
        let answer = self.proxy(request, &visit, &mut trace, busy).await;
        let mut answer = answer.unwrap_or_else(|failure| self.refuse(&failure, &visit, &mut trace).into());
        page.mark(answer.response.headers_mut());
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
        busy: Option<Busy>,
    ) -> Result<Answer, Failure> {
        self.check_form(&request)?;
        suspect::refuse(&request)?;
        let passage = Passage::admit(self, &request, visit, trace, busy)?;
        let request = passage.outgoing(request).await?;
        let answered = self.forwarder.forward(&passage.to, request).await?;
        passage.incoming(answered)
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
