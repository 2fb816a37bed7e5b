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
use crate::{destination::Destination, timing::RequestTiming};

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

/// The receiver of a request.
#[derive(Clone, Debug)]
pub(crate) enum Hop {
    /// A tunnel to this replica.
    Tunnel(TunnelId, Arc<Hello>),
    /// A replica that holds a tunnel.
    Replica(ReplicaId),
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
    /// Begins the record of a request whose head arrived at `time`. `access` is the result of the authorization, if it got so far.
    pub(crate) fn new(
        time: SystemTime,
        id: &HeaderValue,
        method: &Method,
        access: Option<(Arc<Grant>, Destination)>,
    ) -> Self {
        Self {
            time,
            id: id.clone(),
            method: method.clone(),
            access,
            refused: None,
            status: 0,
            reason: None,
            hop: None,
            timing: None,
        }
    }

    /// Completes the record with the head of the response.
    pub(crate) fn answered(self, status: u16, timing: RequestTiming, hop: Option<Hop>) -> Self {
        Self { status, timing: Some(timing), hop, ..self }
    }

    /// Completes the record with the error that the caller receives.
    pub(crate) fn refused(self, reason: Reason, caller: Option<Box<CallerNames>>) -> Self {
        Self { status: reason.status().as_u16(), reason: Some(reason), refused: caller, ..self }
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
    use super::*;

    fn refused(id: &str, caller: Option<&str>) -> RequestRecord {
        let id = HeaderValue::from_str(id).unwrap();
        let record = RequestRecord::new(SystemTime::now(), &id, &Method::GET, None);
        let names = caller.map(|name| Box::new(CallerNames { name: name.to_owned(), user: None }));
        record.refused(Reason::UnknownAgent, names)
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
