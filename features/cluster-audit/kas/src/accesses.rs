//! The recent requests of callers to Kubernetes APIs, by their ids in the audit logs of the clusters.
//!
//! Each replica keeps its own. The replica that shows the audit log of a cluster asks all of them who has sent which request.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    future::ready,
    hash::{BuildHasher as _, RandomState},
    net::IpAddr,
    sync::Arc,
};

use access::Grant;
use cores::PerCore;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use parking_lot::Mutex;
use proto::{
    AgentId, ReplicaId,
    audit::{ID_PREFIX, KasRequest, parse_id},
    header::AUDIT_ID,
};
use serde::{Deserialize, Serialize};

use kas_core::{peers::PeerHooks, request_hooks::AuthorizedRequest};

/// The most requests that a replica keeps of each kind.
const MAX_ENTRIES: usize = 10_000;
/// The longest path that is kept, in bytes. What names an object comes before that.
const MAX_PATH: usize = 1024;
/// The longest id of a request or name of a user that is kept, in bytes.
const MAX_NAME: usize = 512;
/// The part of a ring that the requests of one caller may have.
const CALLER_SHARE: usize = 4;
/// The most ids of one question.
pub(crate) const MAX_IDS: usize = 100;

/// The methods of Kubernetes. Others may be as long as a head, and no API server executes them.
const METHODS: [Method; 7] =
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");

/// The requests, in order of their heads. Each core has its own, so that requests of several cores do not wait for one another.
#[derive(Debug)]
pub(crate) struct AccessRing {
    replica: ReplicaId,
    rings: PerCore<Mutex<Rings>>,
}

/// Reads are kept apart: there are many more of them, and they must not push out the changes.
#[derive(Debug, Default)]
struct Rings {
    changes: FairRing,
    reads: FairRing,
}

/// Requests in order. The oldest one leaves first, but a caller that has its share of the places replaces its own oldest one, so that it
/// cannot push out the others.
#[derive(Debug, Default)]
struct FairRing {
    /// `None` is the place of a request that was replaced.
    places: VecDeque<Option<AccessRecord>>,
    /// The number of the first place.
    first: u64,
    /// The numbers of the places of each caller, by the hash of its name and user.
    callers: HashMap<u64, VecDeque<u64>>,
    hasher: RandomState,
    len: usize,
}

/// A request of a caller to the API of a cluster.
#[derive(Debug)]
pub(crate) struct AccessRecord {
    audit_id: u128,
    request_id: Box<str>,
    client: IpAddr,
    agent: AgentId,
    grant: Arc<Grant>,
    method: Method,
    path: Box<str>,
    is_path_cut: bool,
    impersonated_user: Option<Box<str>>,
}

/// A question for requests to an agent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct AccessQuery {
    pub(crate) agent: u64,
    /// The audit ids, without their common beginning.
    pub(crate) ids: Vec<String>,
}

/// An [`AccessQuery`] as the question of another replica. The answer is an [`AccessAnswer`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AccessQuestion {
    pub(crate) accesses: AccessQuery,
}

/// The answer to an [`AccessQuery`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct AccessAnswer {
    pub(crate) accesses: Vec<AccessView>,
}

/// A request, for the join with the event of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AccessView {
    pub(crate) audit_id: String,
    pub(crate) request: KasRequest,
    pub(crate) method: String,
    /// The beginning of the path, without the query.
    pub(crate) path: String,
    /// The path is longer.
    #[serde(default)]
    pub(crate) is_path_cut: bool,
    /// The user as whom kas or the caller has sent it, if it is another one than agentk.
    pub(crate) impersonated_user: Option<String>,
}

/// Returns a new audit id, and the header with it. Nobody can guess it.
pub(crate) fn new_audit_id() -> (u128, HeaderValue) {
    let id: u128 = rand::random();
    let mut value = HeaderValue::try_from(format!("{ID_PREFIX}{id:032x}")).expect("it is ASCII");
    // Each value is used once: it needs no place in the table of HPACK.
    value.set_sensitive(true);
    (id, value)
}

impl AccessRecord {
    /// Describes a request that kas sends to an agent with these headers. All texts are copied: headers share the memory of a whole head.
    pub(crate) fn new(audit_id: u128, request: AuthorizedRequest<'_>, headers: &HeaderMap) -> Self {
        let path = request.uri.path();
        debug_assert!(headers.contains_key(AUDIT_ID), "the cluster has another id");
        let text = |value: &HeaderValue| -> Box<str> {
            let text = String::from_utf8_lossy(value.as_bytes());
            text[..text.floor_char_boundary(MAX_NAME)].into()
        };
        Self {
            audit_id,
            request_id: text(request.id),
            client: request.client,
            agent: request.destination.agent,
            grant: Arc::clone(request.grant),
            method: request.method.clone(),
            path: path[..path.floor_char_boundary(MAX_PATH)].into(),
            is_path_cut: path.len() > MAX_PATH,
            impersonated_user: headers.get(IMPERSONATE_USER).map(text),
        }
    }

    fn view(&self, replica: ReplicaId) -> AccessView {
        let caller = &self.grant.caller;
        AccessView {
            audit_id: format!("{ID_PREFIX}{:032x}", self.audit_id),
            request: KasRequest {
                caller: caller.name().to_owned(),
                user: caller.user.clone(),
                job: caller.job.as_deref().cloned(),
                client: Some(self.client),
                id: self.request_id.to_string(),
                replica: replica.to_string(),
            },
            method: self.method.to_string(),
            path: self.path.to_string(),
            is_path_cut: self.is_path_cut,
            impersonated_user: self.impersonated_user.as_deref().map(str::to_owned),
        }
    }
}

impl AccessRing {
    /// Returns an empty ring of this replica.
    pub(crate) fn new(replica: ReplicaId) -> Self {
        Self { replica, rings: PerCore::new(Mutex::default) }
    }

    /// Adds a request. `may_change` is whether it may change something: it has such a method, or asks for an upgrade.
    pub(crate) fn push(&self, record: AccessRecord, may_change: bool) {
        if !METHODS.contains(&record.method) {
            return;
        }
        let most = self.each();
        let mut rings = self.rings.current().lock();
        let ring = if may_change { &mut rings.changes } else { &mut rings.reads };
        ring.push(record, most);
    }

    /// Returns the requests with these ids, in no order.
    pub(crate) fn find(&self, query: &AccessQuery) -> AccessAnswer {
        let ids = query.ids.iter().take(MAX_IDS).filter_map(|id| parse_id(&format!("{ID_PREFIX}{id}")));
        let ids: HashSet<u128> = ids.collect();
        let mut accesses = Vec::new();
        for rings in self.rings.iter() {
            let rings = rings.lock();
            let all = rings.changes.places.iter().chain(&rings.reads.places).flatten();
            let found = all.filter(|record| ids.contains(&record.audit_id) && record.agent.0 == query.agent);
            accesses.extend(found.map(|record| record.view(self.replica)));
        }
        AccessAnswer { accesses }
    }

    /// Returns the most entries of each kind of one core.
    fn each(&self) -> usize {
        MAX_ENTRIES.div_ceil(self.rings.iter().count().saturating_sub(1).max(1))
    }
}

impl PeerHooks for AccessRing {
    fn answer(&self, question: &str) -> Option<BoxFuture<'_, Result<String, &'static str>>> {
        let AccessQuestion { accesses } = serde_json::from_str(question).ok()?;
        let answer = serde_json::to_string(&self.find(&accesses)).expect("it has keys that are text");
        Some(Box::pin(ready(Ok(answer))))
    }
}

impl FairRing {
    /// Adds a request. The ring has `most` of them.
    fn push(&mut self, record: AccessRecord, most: usize) {
        if self.places.len() >= 2 * most {
            self.compact();
        }
        let own = self.add(record);
        if own.len() > most.div_ceil(CALLER_SHARE)
            && let Some(oldest) = own.pop_front()
        {
            self.places[(oldest - self.first) as usize] = None;
            self.len -= 1;
        }
        while self.len > most {
            self.pop();
        }
    }

    /// Adds a request. Returns the numbers of the places of its caller.
    fn add(&mut self, record: AccessRecord) -> &mut VecDeque<u64> {
        let caller = self.caller_of(&record);
        let own = self.callers.entry(caller).or_default();
        own.push_back(self.first + self.places.len() as u64);
        self.places.push_back(Some(record));
        self.len += 1;
        own
    }

    /// Removes the first place, and its request.
    fn pop(&mut self) {
        let Some(first) = self.places.pop_front() else { return };
        self.first += 1;
        let Some(record) = first else { return };
        self.len -= 1;
        let caller = self.caller_of(&record);
        if let Some(own) = self.callers.get_mut(&caller) {
            own.pop_front();
            if own.is_empty() {
                self.callers.remove(&caller);
            }
        }
    }

    /// Removes the places without a request.
    fn compact(&mut self) {
        self.callers.clear();
        (self.first, self.len) = (0, 0);
        for record in std::mem::take(&mut self.places).into_iter().flatten() {
            self.add(record);
        }
    }

    fn caller_of(&self, record: &AccessRecord) -> u64 {
        let caller = &record.grant.caller;
        self.hasher.hash_one((caller.name(), &caller.user))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use access::{AccessAs, Caller, ServiceRights};
    use proto::{ServiceName, audit::CiJob};
    use router::RequestClass;

    use super::*;
    use kas_core::destination::Destination;

    fn push(ring: &AccessRing, agent: u64, method: Method, path: &str) -> String {
        push_of(ring, 3, agent, method, path)
    }

    /// Adds a request of a job.
    fn push_of(ring: &AccessRing, job: usize, agent: u64, method: Method, path: &str) -> String {
        let name = format!("gitlab:ci_job:{job}");
        let job = CiJob { id: Some(job.to_string()), ..CiJob::default() };
        let caller = Caller::of_agent(name, AgentId(agent), ServiceRights::All, AccessAs::Agent);
        let grant = Arc::new(Grant::new(caller.with_job(job), Arc::new(AtomicU32::new(0))));
        let (id, header) = new_audit_id();
        let mut headers = HeaderMap::new();
        headers.insert(AUDIT_ID, header);
        headers.insert(IMPERSONATE_USER, HeaderValue::from_static("jane"));
        let request = AuthorizedRequest {
            id: &HeaderValue::from_static("id-1"),
            client: [192, 0, 2, 1].into(),
            method: &method,
            uri: &path.parse().unwrap(),
            upgrade: false,
            grant: &grant,
            destination: &Destination {
                agent: AgentId(agent),
                name: None,
                project_path: None,
                service: ServiceName::KUBERNETES.parse().unwrap(),
                class: RequestClass::Short,
            },
            environment: None,
        };
        ring.push(AccessRecord::new(id, request, &headers), method != Method::GET);
        format!("{id:032x}")
    }

    fn find(ring: &AccessRing, agent: u64, ids: &[&str]) -> Vec<AccessView> {
        ring.find(&AccessQuery { agent, ids: ids.iter().map(|&id| id.to_owned()).collect() }).accesses
    }

    #[test]
    fn request_is_found_by_its_id_and_agent() {
        let ring = AccessRing::new(ReplicaId::random());
        let id = push(&ring, 7, Method::DELETE, &format!("/api/v1/namespaces/{}", "x".repeat(2 * MAX_PATH)));
        push(&ring, 7, Method::DELETE, "/another");
        let brewed = push(&ring, 7, "BREW".parse().unwrap(), "/api");
        assert_eq!(find(&ring, 7, &[&brewed]), []);
        let [found] = &find(&ring, 7, &["", "kas-1", &id])[..] else { panic!() };
        assert_eq!(found.audit_id, format!("kas-{id}"));
        let KasRequest { caller, job, id: request_id, .. } = &found.request;
        assert_eq!((caller.as_str(), request_id.as_str()), ("gitlab:ci_job:3", "id-1"));
        assert_eq!(job.as_ref().unwrap().id.as_deref(), Some("3"));
        assert_eq!((found.path.len(), found.is_path_cut), (MAX_PATH, true));
        assert_eq!(found.impersonated_user.as_deref(), Some("jane"));
        assert_eq!(find(&ring, 8, &[&id]), [], "another agent cannot claim it");
        let many: Vec<String> = (0..MAX_IDS).map(|number| format!("{number:032x}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).chain([&*id]).collect();
        assert_eq!(find(&ring, 7, &many), [], "a question has a limit");
    }

    #[test]
    fn reads_do_not_push_out_changes() {
        let ring = AccessRing::new(ReplicaId::random());
        let change = push(&ring, 7, Method::DELETE, "/a");
        let read = push(&ring, 7, Method::GET, "/a");
        for _ in 0..ring.each() {
            push(&ring, 7, Method::GET, "/b");
        }
        assert_eq!(find(&ring, 7, &[&change, &read]).len(), 1);
        for _ in 0..ring.each() {
            push(&ring, 7, Method::DELETE, "/b");
        }
        assert_eq!(find(&ring, 7, &[&change]), []);
    }

    #[test]
    fn caller_pushes_out_only_its_own_requests() {
        let ring = AccessRing::new(ReplicaId::random());
        let (most, share) = (ring.each(), ring.each().div_ceil(CALLER_SHARE));
        let other = push_of(&ring, 1, 7, Method::DELETE, "/a");
        let mut own = Vec::new();
        for _ in 0..3 * most {
            own.push(push_of(&ring, 2, 7, Method::DELETE, "/b"));
        }
        assert_eq!(find(&ring, 7, &[&other]).len(), 1);
        let newest = own.len() - share;
        assert_eq!(find(&ring, 7, &[&own[newest], &own[newest - 1]]).len(), 1, "the last ones of the caller");
        {
            let rings = ring.rings.current().lock();
            assert_eq!(rings.changes.len, share + 1);
            assert!(rings.changes.places.len() <= 2 * most);
        }
        // Many callers fill the ring, and the oldest requests leave.
        for job in 10..10 + most {
            push_of(&ring, job, 7, Method::DELETE, "/c");
        }
        assert_eq!(find(&ring, 7, &[&other, own.last().unwrap()]), []);
        let rings = ring.rings.current().lock();
        assert_eq!((rings.changes.len, rings.changes.callers.len()), (most, most));
    }
}
