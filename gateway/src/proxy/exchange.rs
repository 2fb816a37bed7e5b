//! One request on its way: who asks whom, out through a tunnel, and back.

use std::{str::FromStr as _, sync::Arc, time::Duration};

use http::{
    HeaderMap, Method, Request, Response, StatusCode, Uri, Version, header::CONTENT_LENGTH, uri::PathAndQuery,
};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use proto::{Reason, border};
use router::{Class, Lease};
use tokio::time::Instant;
use tracing::Instrument as _;
use tunnel::{Body, upgrade, upgrade::Upgraded};

use super::{
    Busy, Callers, Places, Tracked, Tracking, Turn, incoming::watched, splice::splice, visit::Visit,
};
use crate::{
    access::{Access, authorize},
    connected::Connected,
    failure::Failure,
    forward::{Answered, Destination},
    headers::{self, Stamp},
    identity::Grant,
    metrics::{Limit, ServiceMetrics},
    promql::{self, Labels},
    target::Target,
    timing::Stages,
    traces::RequestTrace,
};

/// Bytes of an answer that nobody needs to watch for memory's sake.
const SMALL: u64 = 64 << 10;

/// A request that may be passed on, and what it takes part in until its answer has ended.
pub(super) struct Passage<'a> {
    callers: &'a Callers,
    visit: &'a Visit,
    trace: &'a mut RequestTrace,
    /// Where to, and as what kind of load.
    pub(super) to: Destination,
    grant: Grant,
    method: Method,
    version: Version,
    /// Path and query as the service shall see them.
    target: Uri,
    metrics: Arc<ServiceMetrics>,
    turn: Turn,
    busy: Busy,
}

impl<'a> Passage<'a> {
    /// Whether this caller may ask this of this agent, now.
    pub(super) fn admit<B>(
        callers: &'a Callers,
        request: &Request<B>,
        visit: &'a Visit,
        trace: &'a mut RequestTrace,
        busy: Busy,
    ) -> Result<Self, Failure> {
        let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let target = Target::parse(&path)?;
        let identity = callers.identities.load();
        let Access { grant, agent } = authorize(&identity, request.headers(), &target)?;
        let name = identity.name(agent).expect("authorized").clone();
        let turn = turn(callers, &grant)?;
        let class = target.class(border::upgrade(request.headers()).is_some());
        let uri = Uri::from_str(target.path)
            .map_err(|_| Failure::new(Reason::BadRequest, "the path cannot be passed on"))?;
        let to = Destination { agent, name, service: target.service, class };
        trace.authorized(&to, request.method());
        let metrics = Arc::clone(callers.forwarder.metrics.of(&to.service));

        Ok(Self {
            callers,
            visit,
            trace,
            to,
            grant,
            method: request.method().clone(),
            version: request.version(),
            target: uri,
            metrics,
            turn,
            busy,
        })
    }

    /// The request as it travels, and the caller's connection where an upgrade would need it.
    pub(super) async fn outgoing(
        &self,
        mut request: Request<Incoming>,
    ) -> Result<(Request<Body>, Option<OnUpgrade>), Failure> {
        let upgrading = border::upgrade(request.headers()).is_some();
        if upgrading && self.version != Version::HTTP_11 {
            return Err(Failure::new(Reason::BadRequest, "an upgrade needs HTTP/1.1"));
        }
        let stamp = Stamp {
            service: &self.to.service,
            access_as: &self.grant.caller.access_as,
            request_id: &self.visit.id,
            version: self.version,
            way: &self.visit.way,
        };
        headers::to_agent(request.headers_mut(), stamp)?;
        self.trace.write(request.headers_mut());
        *request.uri_mut() = self.target.clone();
        let outside = upgrading.then(|| hyper::upgrade::on(&mut request));

        let patience = self.callers.limits.write_stall_timeout;
        let stalls = self.callers.forwarder.metrics.counter(Limit::WriteStall);
        let request = request.map(|body| watched(body, patience, &self.metrics, stalls));
        match self.grant.caller.labels(&self.to.service) {
            Some(labels) => Ok((self.narrow(request, labels).await?, outside)),
            None => Ok((request, outside)),
        }
    }

    /// For a caller who sees only certain series.
    async fn narrow(&self, request: Request<Body>, labels: &Labels) -> Result<Request<Body>, Failure> {
        let narrowed = promql::enforce(labels, request, self.callers.limits.max_form_bytes).await;
        if let Err(Failure { reason: Reason::BodyTooLarge, .. }) = &narrowed {
            self.callers.forwarder.metrics.limit(Limit::Form);
        }
        narrowed
    }

    /// The answer as the caller gets it.
    pub(super) fn incoming(
        self,
        answered: Answered,
        outside: Option<OnUpgrade>,
    ) -> Result<Response<Tracked>, Failure> {
        let Answered { mut response, lease, sent } = answered;
        if let Some(failure) = Failure::of_agent(&response, &self.to) {
            return Err(failure);
        }

        let stages = Stages::of(self.visit.started, sent, Instant::now(), response.headers());
        self.metrics.answered(response.status(), &stages);
        let upgraded = upgrade::take(&mut response);
        let extra = &self.callers.extra_headers;
        headers::to_caller(response.headers_mut(), upgraded.is_some(), extra, &self.visit.id);
        stages.write(response.headers_mut());
        self.log(response.status(), &stages);
        match (upgraded, outside) {
            (Some(upgraded), Some(outside)) => {
                self.switch(upgraded, outside, lease, response.status(), &stages);
                Ok(response.map(Tracked::untracked))
            }
            _ if response.status() == StatusCode::SWITCHING_PROTOCOLS => Err(Failure::new(
                Reason::AgentMisbehaved,
                "the agent switched protocols although nobody asked it to",
            )),
            _ => Ok(self.stream(response, lease, &stages)),
        }
    }

    /// A body that is watched while it lasts.
    fn stream(
        self,
        response: Response<Body>,
        lease: Option<Lease<Connected>>,
        stages: &Stages,
    ) -> Response<Tracked> {
        let may_grow = may_grow(response.headers());
        let multiplexed = self.version == Version::HTTP_2;
        let grip = response.body().grip().filter(|_| multiplexed || may_grow);
        // Whatever the request looked like: what an API server takes for a watch is for it to say.
        let stays = self.to.class == Class::Long || may_grow;
        let (budget, revoked) = (&self.callers.budget, self.grant.revoked.clone());
        let (tracking, turn) = self.tracking(lease, response.status(), stages);
        response.map(|body| {
            let mut answer = Tracked::new(body, tracking, turn);
            if let Some(grip) = grip {
                answer = answer.within(budget, grip);
            }
            if stays { answer.until(revoked) } else { answer }
        })
    }

    /// Raw bytes, after the 101 and beside it.
    fn switch(
        self,
        upgraded: Upgraded,
        outside: OnUpgrade,
        lease: Option<Lease<Connected>>,
        status: StatusCode,
        stages: &Stages,
    ) {
        let (callers, id) = (self.callers, self.visit.id.clone());
        self.busy.set_upgraded();
        let cut = self.grant.revoked.child_token();
        let release = cut.clone();
        let share = callers.budget.share(upgraded.grip(), move || release.cancel());
        let (tracking, turn) = self.tracking(lease, status, stages);
        let splice = splice(upgraded, outside, tracking, callers.forwarder.metrics.clone());
        let splice = splice.instrument(tracing::debug_span!("upgraded", request.id = ?id));
        callers.tasks.spawn(async move {
            let (_share, _turn) = (share, turn);
            cut.run_until_cancelled(splice).await;
        });
    }

    fn tracking(
        self,
        lease: Option<Lease<Connected>>,
        status: StatusCode,
        stages: &Stages,
    ) -> (Tracking, Turn) {
        let places = Places { lease, busy: self.busy };
        let tracking = Tracking::new(places, self.metrics, self.visit.started);
        (tracking.traced(self.trace, status, stages), self.turn)
    }

    fn log(&self, status: StatusCode, stages: &Stages) {
        tracing::debug!(
            request.id = ?self.visit.id,
            trace_id = self.trace.id().map(display),
            client = %self.visit.way.client,
            caller = self.grant.caller.name,
            agent.name = %self.to.name,
            service = %self.to.service,
            method = %self.method,
            path = self.target.path(),
            status = status.as_u16(),
            queue = ?stages.queue,
            tunnel = ?stages.tunnel,
            upstream = ?stages.upstream,
            "a request was answered"
        );
    }
}

/// One of the requests that the caller may have in flight.
fn turn(callers: &Callers, grant: &Grant) -> Result<Turn, Failure> {
    Turn::take(&grant.in_flight, callers.limits.max_requests_per_caller).ok_or_else(|| {
        callers.forwarder.metrics.limit(Limit::RequestsPerCaller);
        let what = format!("caller {} has as many requests in flight as it may have (agent.kubernetes_api.limits.max_requests_per_caller)", grant.caller.name);
        Failure::new(Reason::TooManyRequests, what).retry_after(Duration::from_secs(1))
    })
}

/// Whether an answer may come to hold much memory while nobody reads it.
fn may_grow(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    length.is_none_or(|length: u64| length > SMALL)
}
