use std::{collections::VecDeque, convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tower::service_fn;

use super::*;

fn observed(holder: &str, since: Instant) -> Observed {
    Observed { resource_version: "1".to_owned(), holder: holder.to_owned(), transitions: 0, since }
}

#[test]
fn lease_is_taken_over_once_its_holder_has_been_silent() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    assert_eq!(step(None, "me", start), Step::Create);
    assert_eq!(step(Some(&observed("me", start)), "me", at(100)), Step::Renew);
    assert_eq!(step(Some(&observed("", start)), "me", start), Step::TakeOver, "it was released");
    assert_eq!(step(Some(&observed("other", start)), "me", at(14)), Step::Wait);
    assert_eq!(step(Some(&observed("other", start)), "me", at(15)), Step::TakeOver);
}

#[tokio::test(start_paused = true)]
async fn leader_that_was_frozen_finds_its_time_over() {
    let leadership = Leadership::Own(Instant::now() + RENEW_DEADLINE);
    assert!(leadership.is_held());
    tokio::time::advance(RENEW_DEADLINE).await;
    assert!(!leadership.is_held(), "before another candidate may take over");
    assert!(RENEW_DEADLINE < DURATION);
}

/// An API server with one Lease. Clones share it.
#[derive(Clone, Default)]
struct LeaseServer(Arc<Mutex<ServerState>>);

#[derive(Default)]
struct ServerState {
    lease: Option<Value>,
    version: u64,
}

/// The way of the writes of one pod to the API server.
#[derive(Clone, Default)]
struct Writes(Arc<Mutex<VecDeque<Write>>>);

/// A write that differs from a usual one.
#[derive(Clone, Copy, Default)]
struct Write {
    /// The time before the API server executes it, also if the pod does not wait for it.
    executed_after: Duration,
    /// The time between this and the response.
    answered_after: Duration,
    /// The status of a refusal; 0 if it is executed.
    refused: u16,
}

impl LeaseServer {
    /// Returns a candidate, and the next writes that differ.
    fn candidate(&self, identity: &str) -> (LeaderElector, Writes) {
        let (server, writes) = (self.clone(), Writes::default());
        let next = writes.clone();
        let service = service_fn(move |request: Request<kube::client::Body>| {
            let server = server.clone();
            let write = match *request.method() {
                Method::GET => Write::default(),
                _ => next.0.lock().pop_front().unwrap_or_default(),
            };
            // A request that was sent is executed, though its sender is gone.
            let executed = tokio::spawn(async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                sleep(write.executed_after).await;
                match write.refused {
                    0 => server.execute(&parts.method, &body),
                    status => (status, json!({})),
                }
            });
            async move {
                let (status, answer) = executed.await.unwrap();
                sleep(write.answered_after).await;
                let body = Full::new(Bytes::from(answer.to_string()));
                Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
            }
        });
        let cluster = KubeCluster::new(move || kube::Client::new(service, "default"));
        (LeaderElector::new(cluster, "GitOps", "agentk", "agentk-7-gitops", identity), writes)
    }

    fn execute(&self, method: &Method, body: &[u8]) -> (u16, Value) {
        let mut state = self.0.lock();
        let current = state.lease.as_ref().map(|lease| lease["metadata"]["resourceVersion"].clone());
        if *method == Method::GET {
            return state.lease.clone().map_or_else(|| (404, json!({})), |lease| (200, lease));
        }
        let mut lease: Value = serde_json::from_slice(body).unwrap();
        let expected = lease["metadata"]["resourceVersion"].clone();
        if (*method == Method::POST && current.is_some())
            || (*method == Method::PUT && current != Some(expected))
        {
            return (409, json!({}));
        }
        state.version += 1;
        lease["metadata"]["resourceVersion"] = json!(state.version.to_string());
        state.lease = Some(lease.clone());
        (200, lease)
    }

    /// Writes the Lease as another client does.
    fn set_holder(&self, holder: &str) {
        let lease = json!({"metadata": {"resourceVersion": "0"}, "spec": {"holderIdentity": holder}});
        self.0.lock().lease = Some(lease);
    }

    fn holder(&self) -> Option<String> {
        let state = self.0.lock();
        Some(state.lease.as_ref()?["spec"]["holderIdentity"].as_str()?.to_owned())
    }
}

impl Writes {
    fn push(&self, writes: impl IntoIterator<Item = Write>) {
        self.0.lock().extend(writes);
    }
}

fn executed_after(milliseconds: u64) -> Write {
    Write { executed_after: Duration::from_millis(milliseconds), ..Write::default() }
}

/// Runs a candidate among `pods`. It leads according to the receiver.
fn spawn(pods: &mut JoinSet<()>, mut candidate: LeaderElector) -> watch::Receiver<Leadership> {
    let (sender, receiver) = watch::channel(Leadership::default());
    pods.spawn(async move { candidate.run(&sender).await });
    receiver
}

/// The shutdown drops the write that creates, takes or renews the Lease. Its execution is before the first read of the release, between
/// this read and the write of the release, or after that.
#[tokio::test(start_paused = true)]
async fn lease_is_given_back_though_the_shutdown_drops_a_write() {
    let in_flight = Duration::from_millis(10);
    for (held_before, begun_after) in [
        (None, Duration::ZERO),
        (Some(""), Duration::ZERO),
        (Some("me"), Duration::ZERO),
        (Some("other"), 2 * DURATION),
    ] {
        for (dropped, release) in [(10, 0), (500, 1000), (500, 100)] {
            let server = LeaseServer::default();
            if let Some(holder) = held_before {
                server.set_holder(holder);
            }
            let (mut candidate, writes) = server.candidate("me");
            let leadership = watch::Sender::default();
            writes.push([executed_after(dropped), executed_after(release)]);
            let written = async {
                while writes.0.lock().len() == 2 {
                    sleep(Duration::from_millis(1)).await;
                }
                sleep(in_flight).await;
            };
            tokio::select! {
                () = candidate.run(&leadership) => {}
                written = timeout(begun_after + PERIOD, written) => written.expect("a write"),
            }
            candidate.release().await;
            sleep(DURATION).await;
            let holder = server.holder();
            assert_eq!(holder.as_deref(), Some(""), "{held_before:?}, {dropped} ms, {release} ms");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lease_is_given_back_in_spite_of_an_error_that_passes() {
    for status in [409, 429, 503] {
        let server = LeaseServer::default();
        let (mut candidate, writes) = server.candidate("me");
        assert!(candidate.attempt().await.unwrap());
        writes.push([Write { refused: status, ..Write::default() }]);
        candidate.release().await;
        assert_eq!(server.holder().as_deref(), Some(""), "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn lease_of_another_pod_is_not_given_back() {
    let server = LeaseServer::default();
    server.set_holder("");
    let (mut candidate, writes) = server.candidate("me");
    writes.push([executed_after(100)]);
    let dropped = timeout(Duration::from_millis(10), candidate.attempt()).await;
    assert!(dropped.is_err());
    let (mut other, _) = server.candidate("other");
    assert!(other.attempt().await.unwrap(), "it was faster");
    candidate.release().await;
    sleep(DURATION).await;
    assert_eq!(server.holder().as_deref(), Some("other"));
}

/// The API server executes no write of the leader any more, and answers none.
#[tokio::test(start_paused = true)]
async fn leader_whose_renewal_is_not_answered_stops_before_another_one_leads() {
    let server = LeaseServer::default();
    let (leader, writes) = server.candidate("leader");
    let (other, _) = server.candidate("other");
    let mut pods = JoinSet::new();
    let mut leader = spawn(&mut pods, leader);
    leader.wait_for(Leadership::is_held).await.unwrap();
    let other = spawn(&mut pods, other);
    writes.push([executed_after(3_600_000); 100]);

    let began = Instant::now();
    let mut stopped = None;
    while !other.borrow().is_held() {
        assert!(began.elapsed() < 2 * DURATION, "the other pod leads at last");
        if !leader.borrow().is_held() {
            stopped.get_or_insert_with(|| began.elapsed());
        }
        sleep(Duration::from_millis(50)).await;
    }
    assert!(!leader.borrow().is_held());
    let stopped = stopped.expect("the leader has stopped");
    assert!(stopped <= RENEW_DEADLINE + PERIOD, "{stopped:?}");
    assert!(began.elapsed() >= stopped + (DURATION - RENEW_DEADLINE) / 2, "with time between both");
}

/// The API server executes a renewal at once, and answers it after the term of the leader.
#[tokio::test(start_paused = true)]
async fn renewal_that_is_answered_late_gives_the_rest_of_its_term_and_wakes_the_workers() {
    let server = LeaseServer::default();
    let (leader, writes) = server.candidate("leader");
    let mut pods = JoinSet::new();
    let mut leader = spawn(&mut pods, leader);
    leader.wait_for(Leadership::is_held).await.unwrap();
    let began = Instant::now();
    leader.mark_unchanged();
    writes.push([Write { answered_after: Duration::from_secs(9), ..Write::default() }]);

    sleep(RENEW_DEADLINE).await;
    assert!(!leader.borrow().is_held(), "the response has not arrived");
    timeout(DURATION, leader.changed()).await.expect("a new term").unwrap();
    assert_eq!(
        began.elapsed().as_secs(),
        11,
        "a worker that has seen the end of the term learns of the new one"
    );
    let until = leader.borrow_and_update().until().unwrap();
    assert_eq!((until - began).as_secs(), 12, "the term begins with the request, not with its response");

    // The rest of that term ends before the next renewal. Usual ones follow, which wake no worker.
    timeout(DURATION, leader.changed()).await.expect("a new term").unwrap();
    assert_eq!(began.elapsed().as_secs(), 13);
    leader.mark_unchanged();
    sleep(Duration::from_secs(20)).await;
    assert!(leader.borrow().is_held());
    assert!(!leader.has_changed().unwrap());
}
