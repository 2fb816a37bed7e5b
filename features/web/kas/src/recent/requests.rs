//! The recent requests of callers, with the way that each has taken.

use std::{collections::VecDeque, sync::Arc, time::SystemTime};

use access::{CallerNames, Grant};
use cores::PerCore;
use http::{HeaderValue, Method};
use parking_lot::Mutex;
use proto::{AgentId, AgentName, Hello, InstanceId, Reason, ReplicaId, ServiceName, TunnelId};
use serde::{Deserialize, Serialize};
use settings::rfc3339;

use super::{MAX_ENTRIES, Reader};
use kas_core::{
    destination::Destination,
    request_hooks::{Hop, ObservedRequest, RequestResult},
    timing::RequestTiming,
};

/// The most requests of one answer: a caller may give several requests the same id.
const MAX_FOUND: usize = 20;

/// The requests, in order of their responses. Each core has its own, so that requests of several cores do not wait for one another.
#[derive(Debug)]
pub(crate) struct RequestRing(PerCore<Mutex<Rings>>);

#[derive(Debug, Default)]
struct Rings {
    requests: VecDeque<RequestRecord>,
    relays: VecDeque<Relay>,
}

/// The facts about one request of a caller, from its head to the head of its response.
#[derive(Debug)]
pub(crate) struct RequestRecord {
    time: SystemTime,
    id: HeaderValue,
    method: Method,
    access: Option<(Arc<Grant>, Destination)>,
    /// The caller of a request that was refused before it was authorized.
    refused: Option<Box<CallerNames>>,
    status: u16,
    reason: Option<Reason>,
    hop: Option<Hop>,
    timing: Option<RequestTiming>,
}

/// A request of another replica that this one has sent into a tunnel.
#[derive(Debug)]
struct Relay {
    id: HeaderValue,
    from: ReplicaId,
    agent: AgentId,
    tunnel: TunnelId,
    hello: Arc<Hello>,
}

/// The requests and the relayed requests of a replica with one id, the newest ones first.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct RequestAnswer {
    pub(crate) requests: Vec<RequestView>,
    pub(crate) relays: Vec<RelayView>,
}

/// A request of a caller, for the page.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RequestView {
    /// The time at which the head of the request was complete.
    #[serde(with = "rfc3339")]
    pub(crate) time: SystemTime,
    pub(crate) caller: String,
    pub(crate) user: Option<String>,
    pub(crate) agent_id: Option<AgentId>,
    pub(crate) agent: Option<AgentName>,
    pub(crate) service: Option<ServiceName>,
    pub(crate) method: String,
    pub(crate) status: u16,
    /// The reason of kas, if kas or agentk has refused it.
    pub(crate) reason: Option<String>,
    /// The replica that has received it.
    pub(crate) replica: ReplicaId,
    /// The replica that held the tunnel, unless the request has not come so far.
    pub(crate) holder: Option<ReplicaId>,
    /// The tunnel, unless its replica does not know the request any more.
    pub(crate) tunnel: Option<TunnelView>,
    pub(crate) timing: Option<TimingView>,
}

/// A request of another replica, for that replica.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RelayView {
    pub(crate) from: ReplicaId,
    pub(crate) replica: ReplicaId,
    pub(crate) agent_id: AgentId,
    pub(crate) tunnel: TunnelView,
}

/// A tunnel, with what agentk reports about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TunnelView {
    id: TunnelId,
    instance: InstanceId,
    version: String,
    pod_namespace: Option<String>,
    pod_name: Option<String>,
}

/// The times of a request, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct TimingView {
    queue_ms: f64,
    tunnel_ms: f64,
    upstream_ms: f64,
}

impl RequestRing {
    pub(super) fn new() -> Self {
        Self(PerCore::new(Mutex::default))
    }

    /// Adds a request whose response has begun. Requests of strangers are left out.
    pub(crate) fn push(&self, record: RequestRecord) {
        if record.access.is_some() || record.refused.is_some() {
            push(&mut self.0.current().lock().requests, record, self.each());
        }
    }

    /// Adds a request of another replica.
    pub(crate) fn push_relay(
        &self,
        id: HeaderValue,
        from: ReplicaId,
        agent: AgentId,
        (tunnel, hello): (TunnelId, Arc<Hello>),
    ) {
        let relay = Relay { id, from, agent, tunnel, hello };
        push(&mut self.0.current().lock().relays, relay, self.each());
    }

    /// Returns the entries with an id that the reader may see. `replica` is this one.
    pub(super) fn find(&self, reader: &Reader, id: &str, replica: ReplicaId) -> RequestAnswer {
        let mut answer = RequestAnswer::default();
        for ring in self.0.iter() {
            let ring = ring.lock();
            let requests = ring.requests.iter().filter(|request| request.id == id);
            answer.requests.extend(requests.filter_map(|request| request.view(reader, replica)));
            let relays = ring.relays.iter().rev().filter(|relay| relay.id == id).take(MAX_FOUND);
            answer.relays.extend(relays.map(|relay| relay.view(replica)));
        }
        answer.requests.sort_by_key(|request| std::cmp::Reverse(request.time));
        answer.requests.truncate(MAX_FOUND);
        answer
    }

    /// Returns the most entries of one core.
    fn each(&self) -> usize {
        MAX_ENTRIES.div_ceil(self.0.iter().count().saturating_sub(1).max(1))
    }
}

fn push<T>(ring: &mut VecDeque<T>, entry: T, most: usize) {
    if ring.len() >= most {
        ring.pop_front();
    }
    ring.push_back(entry);
}

impl RequestRecord {
    /// Returns the record of a request.
    pub(super) fn new(request: &ObservedRequest<'_>) -> Self {
        let base = Self {
            time: request.time,
            id: request.id.clone(),
            method: request.method.clone(),
            access: request.access.map(|(grant, destination)| (Arc::clone(grant), destination.clone())),
            refused: None,
            status: 0,
            reason: None,
            hop: None,
            timing: None,
        };
        match &request.result {
            RequestResult::Answered { status, timing, hop } => {
                Self { status: status.as_u16(), timing: Some(*timing), hop: hop.clone(), ..base }
            }
            RequestResult::Refused(error) => Self {
                status: error.reason.status().as_u16(),
                reason: Some(error.reason),
                refused: error.caller.clone(),
                ..base
            },
        }
    }

    /// Returns the request, unless the reader may not see it.
    fn view(&self, reader: &Reader, replica: ReplicaId) -> Option<RequestView> {
        let (caller, user) = match (&self.access, &self.refused) {
            (Some((grant, _)), _) => (grant.caller.name(), grant.caller.user.as_deref()),
            (None, Some(names)) => (names.name.as_str(), names.user.as_deref()),
            (None, None) => return None,
        };
        if !reader.may_see(Some(caller), user) {
            return None;
        }
        let destination = self.access.as_ref().map(|(_, destination)| destination);
        let (holder, tunnel) = match &self.hop {
            Some(Hop::Tunnel(tunnel, hello)) => (Some(replica), Some(TunnelView::new(*tunnel, hello))),
            Some(Hop::Replica(replica)) => (Some(*replica), None),
            None => (None, None),
        };
        Some(RequestView {
            time: self.time,
            caller: caller.to_owned(),
            user: user.map(str::to_owned),
            agent_id: destination.map(|destination| destination.agent),
            agent: destination.and_then(|destination| destination.name.clone()),
            service: destination.map(|destination| destination.service.clone()),
            method: self.method.as_str().chars().take(32).collect(),
            status: self.status,
            reason: self.reason.map(|reason| reason.as_str().to_owned()),
            replica,
            holder,
            tunnel,
            timing: self.timing.map(TimingView::from),
        })
    }
}

impl Relay {
    fn view(&self, replica: ReplicaId) -> RelayView {
        let tunnel = TunnelView::new(self.tunnel, &self.hello);
        RelayView { from: self.from, replica, agent_id: self.agent, tunnel }
    }
}

impl TunnelView {
    fn new(id: TunnelId, hello: &Hello) -> Self {
        Self {
            id,
            instance: hello.instance,
            version: hello.version.clone(),
            pod_namespace: hello.pod_namespace.clone(),
            pod_name: hello.pod_name.clone(),
        }
    }
}

impl From<RequestTiming> for TimingView {
    fn from(timing: RequestTiming) -> Self {
        let [queue_ms, tunnel_ms, upstream_ms] =
            [timing.queue, timing.tunnel, timing.upstream].map(|time| time.as_micros() as f64 / 1000.0);
        Self { queue_ms, tunnel_ms, upstream_ms }
    }
}

#[cfg(test)]
mod tests {
    use access::RequestError;

    use super::*;

    fn refused(id: &str, caller: Option<&str>) -> RequestRecord {
        let names = caller.map(|name| Box::new(CallerNames { name: name.to_owned(), user: None }));
        let error = RequestError { caller: names, ..RequestError::new(Reason::UnknownAgent, "unknown") };
        RequestRecord::new(&ObservedRequest {
            time: SystemTime::now(),
            id: &HeaderValue::from_str(id).unwrap(),
            method: &Method::GET,
            access: None,
            result: RequestResult::Refused(&error),
        })
    }

    #[test]
    fn ring_keeps_the_newest_requests_of_callers() {
        let (ring, replica) = (RequestRing::new(), ReplicaId::random());
        let found = |reader: &Reader, id: &str| ring.find(reader, id, replica).requests.len();
        ring.push(refused("stranger", None));
        assert_eq!(found(&Reader::Auditor, "stranger"), 0);
        ring.push(refused("first", Some("dev")));
        let reader = |name: &str| Reader::Caller { name: name.to_owned(), user: None };
        assert_eq!(["dev", "ops"].map(|name| found(&reader(name), "first")), [1, 0]);
        for _ in 0..ring.each() {
            ring.push(refused("later", Some("dev")));
        }
        assert_eq!(["first", "later"].map(|id| found(&Reader::Auditor, id)), [0, MAX_FOUND]);
        let kept = ring.0.iter().map(|rings| rings.lock().requests.len()).sum::<usize>();
        assert_eq!(kept, ring.each());
    }
}
