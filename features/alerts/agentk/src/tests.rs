//! Alerts with stand-ins for Hubble Relay and the API server.

mod api_server;
mod open_alerts;
mod relay;

use std::time::Instant;

use agentk_core::services::configuration::Section;
use agentk_core::{
    AgentMetrics,
    policy::{PolicyEnforcer, ScopeEnforcer},
    services::{ConfigurationService, RequestHandler as _, ServiceError},
    upstream::ClientTls,
};
use bytes::Bytes;
use cluster_alerts::messages::{
    AUDIT, DROPPED, EGRESS, Endpoint, Flow, FlowsContent, INGRESS, Ip, Layer4, LostEvents, Policy, Ports,
    Protocol, Timestamp, Workload,
};
use cluster_alerts::{ALERT_ANNOTATION, MAX_OPEN, Verdict};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http::Request;
use http_body_util::BodyExt as _;
use proto::{
    InstanceId, Reason, ServiceName,
    agent_configuration::{Scope, alerts::AlertPolicies},
    events::AgentEvent,
};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::timeout};
use tonic::Status;
use tunnel::Body;

use self::{
    api_server::{ApiServer, Contents},
    relay::{Relay, failing, message, open},
};
use super::*;

const POLICIES: &str = "/apis/cilium.io/v2/ciliumnetworkpolicies";
const CLUSTER_POLICIES: &str = "/apis/cilium.io/v2/ciliumclusterwidenetworkpolicies";
const EVENTS: &str = "/api/v1/events";

struct World {
    alerts: Arc<Alerts>,
    events: EventLog,
    metrics: AlertsMetrics,
    task: JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl World {
    fn start(relay: Option<&Relay>, server: &ApiServer, section: AlertsSection) -> Self {
        Self::start_with(relay, server, section, Restrictions::default(), true)
    }

    fn start_with(
        relay: Option<&Relay>,
        server: &ApiServer,
        section: AlertsSection,
        restrictions: Restrictions,
        leads: bool,
    ) -> Self {
        let hubble = relay.map(|relay| {
            let url = format!("http://{}", relay.address).parse().unwrap();
            HubbleRelay::new(url, Arc::new(ClientTls::system()))
        });
        let sources = AlertSources { hubble, policy_engines: relay.is_none() };
        let (events, metrics) = (
            EventLog::new(InstanceId::random()),
            AlertsMetrics::register(&mut prometheus_client::registry::Registry::default()),
        );
        let alerts = Alerts::new(
            sources,
            server.service(),
            restrictions,
            move || leads,
            events.clone(),
            metrics.clone(),
        );
        alerts.set_section(section);
        let running = Arc::clone(&alerts);
        let task = tokio::spawn(async move { running.run().await });
        Self { alerts, events, metrics, task }
    }

    fn reported(&self) -> Vec<Arc<AgentEvent>> {
        self.events.read(None, 1000).events
    }

    /// Waits until so many events were reported.
    async fn wait_for_events(&self, number: usize) -> Vec<Arc<AgentEvent>> {
        let mut changes = self.events.changes();
        let wait = async {
            while self.reported().len() < number {
                changes.changed().await.unwrap();
            }
        };
        timeout(Duration::from_secs(20), wait).await.expect("events in time");
        self.reported()
    }

    async fn get(&self, query: &str, user: Option<&str>) -> Result<Value, ServiceError> {
        let mut request = Request::get(format!("/v1/alerts{query}"));
        if let Some(user) = user {
            request = request.header("impersonate-user", user);
        }
        let request = request.body(Body::empty()).unwrap();
        let body = AlertsHandler(Arc::clone(&self.alerts)).handle(request).await?.into_body();
        Ok(serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap())
    }
}

/// Waits for a condition that no channel announces.
async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// An alert that goes on: a flow each 20 ms.
async fn endless_relay() -> Relay {
    Relay::start(|_| {
        let flows = stream::unfold((), async |()| {
            sleep(Duration::from_millis(20)).await;
            Some((Ok(flow(egress_drop("web", 443))), ()))
        });
        flows.boxed()
    })
    .await
}

fn all() -> AlertsSection {
    AlertsSection { policies: AlertPolicies::All, ..AlertsSection::default() }
}

fn endpoint(namespace: &str, workload: &str) -> Endpoint {
    Endpoint {
        namespace: namespace.to_owned(),
        labels: vec![format!("k8s:app={workload}"), format!("k8s:io.kubernetes.pod.namespace={namespace}")],
        pod_name: format!("{workload}-5d4b8c7f9-x2x7q"),
        workloads: vec![Workload { name: workload.to_owned(), kind: "Deployment".to_owned() }],
    }
}

/// A flow as Cilium 1.17 records it: a pod of `shop` opens a connection that no policy allows.
fn egress_drop(workload: &str, port: u32) -> Flow {
    Flow {
        time: Some(now()),
        verdict: DROPPED,
        drop_reason: 133,
        r#type: 1,
        traffic_direction: EGRESS,
        ip: Some(Ip { source: "10.0.1.7".to_owned(), destination: "93.184.216.34".to_owned() }),
        l4: Some(Layer4 { protocol: Some(Protocol::Tcp(Ports { destination: port })) }),
        source: Some(endpoint("shop", workload)),
        destination: Some(Endpoint { labels: vec!["reserved:world".to_owned()], ..Endpoint::default() }),
        destination_names: vec!["example.com".to_owned()],
        ..Flow::default()
    }
}

/// A flow that an explicit rule of the receiver forbids, in audit mode.
fn ingress_audit() -> Flow {
    let policy = Policy {
        name: "db".to_owned(),
        namespace: "shop".to_owned(),
        kind: "CiliumNetworkPolicy".to_owned(),
    };
    Flow {
        verdict: AUDIT,
        drop_reason: 0,
        traffic_direction: INGRESS,
        source: Some(endpoint("other", "batch")),
        destination: Some(endpoint("shop", "db")),
        ingress_denied_by: vec![policy],
        ..egress_drop("batch", 5432)
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Timestamp {
        seconds: since.as_secs().try_into().unwrap(),
        nanos: since.subsec_nanos().try_into().unwrap(),
    }
}

fn flow(flow: Flow) -> Bytes {
    message(FlowsContent::Flow(Box::new(flow)))
}

fn policy(namespace: &str, name: &str, asks: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"namespace": namespace, "name": name, "annotations": {ALERT_ANNOTATION: asks}},
        "spec": spec,
    })
}

#[tokio::test]
async fn check_asks_the_relay_for_its_status() {
    let relay = Relay::start(|_| open(Vec::new())).await;
    let check = async |url: String| {
        HubbleRelay::new(url.parse().unwrap(), Arc::new(ClientTls::system())).check().await.map(drop)
    };
    assert_eq!(check(format!("http://{}", relay.address)).await, Ok(()));
    assert!(relay.calls().is_empty(), "no flow is asked for");
    let error = check(format!("https://{}", relay.address)).await.unwrap_err();
    assert!(error.contains("cannot connect to Hubble Relay"), "{error}");
}

#[tokio::test]
async fn drop_by_a_policy_that_asks_becomes_one_event_and_an_open_alert() {
    let web =
        json!({"endpointSelector": {"matchLabels": {"app": "web"}}, "egress": [{"toEntities": ["cluster"]}]});
    let db = json!({"endpointSelector": {"matchLabels": {"app": "db"}}, "ingressDeny": [{}]});
    let policies = vec![policy("shop", "web", "true", &web), policy("shop", "db", "true", &db)];
    let silent = policy("shop", "silent", "false", &json!({"endpointSelector": {}, "egress": [{}]}));
    let lists = vec![(POLICIES, [policies, vec![silent]].concat()), (CLUSTER_POLICIES, Vec::new())];
    let server = ApiServer::start(Contents { lists, ..Contents::default() }).await;
    let (go, gone) = watch::channel(false);
    let relay = Relay::start(move |_| {
        let flows =
            (0..1000).map(|_| egress_drop("web", 443)).chain([egress_drop("silent", 443), ingress_audit()]);
        let flows: Vec<_> = flows.map(flow).collect();
        let mut gone = gone.clone();
        // Once the policies are known.
        let wait = async move {
            gone.wait_for(|go| *go).await.unwrap();
            open(flows)
        };
        wait.flatten_stream().boxed()
    })
    .await;
    let world = World::start(Some(&relay), &server, AlertsSection::default());
    eventually("the policies are known", || world.alerts.policies.load().len() == 2).await;
    go.send_replace(true);

    let events = world.wait_for_events(2).await;
    let of = |verdict: &str| {
        let found = events.iter().find(|event| event.event.content.details["verdict"] == verdict);
        found.unwrap().event.content.clone()
    };
    let dropped = of("dropped");
    assert_eq!(
        dropped.message,
        "the policy shop/web drops traffic from shop/Deployment/web to example.com (443/TCP)"
    );
    assert_eq!(of("audited").details["policy"], "shop/db");
    eventually("all flows are counted", || world.metrics.counted(Verdict::Dropped) == 1000).await;
    assert_eq!(world.metrics.dropped("not-asked"), 1);
    let list = world.get("?severity=warning", None).await.unwrap();
    assert_eq!((&list["total"], &list["alerts"][0]["count"]), (&json!(1), &json!(1000)));
    assert_eq!(list["sources"]["hubble"], "connected");
    assert_eq!(list["alerts"][0]["policy"], json!({"namespace": "shop", "name": "web"}));
    assert_eq!(world.get("?namespace=other", None).await.unwrap()["total"], 0, "that of the policy counts");
    assert_eq!(world.get("?limit=1", None).await.unwrap()["total"], 2);
    assert_eq!(world.reported().len(), 2, "no more events");
}

#[tokio::test]
async fn flood_of_hostile_flows_is_bounded_and_counted() {
    const FLOWS: u64 = 20_000;
    let server = ApiServer::start(Contents::default()).await;
    let relay = Relay::start(|_| {
        open((0..FLOWS).map(|number| {
            let mut hostile =
                egress_drop(&format!("w{}\u{1b}[2J\n", number % 3000), (number % 60_000) as u32);
            let source = hostile.source.as_mut().unwrap();
            source.labels = vec!["k8s:x=".to_owned() + &"y".repeat(200); 20];
            hostile.destination_names = vec!["n".repeat(5000)];
            hostile.time = Some(Timestamp { seconds: i64::MAX, nanos: -1 });
            flow(hostile)
        }))
    })
    .await;
    let began = Instant::now();
    let world = World::start(Some(&relay), &server, all());
    eventually("all flows are counted", || world.metrics.counted(Verdict::Dropped) == FLOWS).await;
    let open = world.alerts.table.lock().open();
    assert!(open.len() <= MAX_OPEN + 1);
    assert_eq!(open.iter().map(|alert| alert.count).sum::<u64>(), FLOWS);
    assert!(world.metrics.dropped("too-many-alerts") > 0);
    let events = world.reported();
    let most = 51 + began.elapsed().as_secs();
    assert!((1..=most).contains(&(events.len() as u64)), "{} events", events.len());
    for event in &events {
        let text = serde_json::to_string(&**event).unwrap();
        assert!(text.len() < 5000 && !text.contains("\\u001b") && !text.contains("\\n"), "{text}");
    }
    let list = world.get("?limit=1000", None).await.unwrap().to_string();
    assert!(!list.contains("\\u001b") && list.len() < 2 << 20);
}

#[tokio::test]
async fn lost_relay_is_connected_again_from_the_last_flow_on() {
    let server = ApiServer::start(Contents::default()).await;
    let last = now();
    let relay = Relay::start(move |call| match call {
        0 => {
            let lost = FlowsContent::Lost(LostEvents { count: 7 });
            let messages = vec![flow(Flow { time: Some(last), ..egress_drop("web", 80) }), message(lost)];
            failing(messages, Status::unavailable("the relay stops"))
        }
        // A source that is no message: the labels of this flow are a number.
        1 => failing(vec![Bytes::from_static(&[0x0a, 2, 0x40, 1])], Status::internal("not reached")),
        2 => open([Bytes::from(vec![0xff; 100])]),
        3 => open([flow(egress_drop("web", 443))]),
        _ => panic!("one call too many"),
    })
    .await;
    let world = World::start(Some(&relay), &server, all());
    let events = world.wait_for_events(2).await;
    assert_eq!(events[1].event.content.details["destination"], "example.com (443/TCP)");
    assert_eq!((world.metrics.dropped("lost-by-hubble"), world.metrics.failures()), (7, 3));
    let calls = relay.calls();
    assert_eq!((calls.len(), calls[0].since), (4, None));
    let since = calls[1].since.unwrap();
    assert!((since.seconds, since.nanos) > (last.seconds, last.nanos), "the flow is not counted twice");
    assert!(calls.iter().all(|call| call.follow && call.whitelist[0].verdict == [DROPPED, AUDIT]));
}

#[tokio::test]
async fn only_the_pod_that_leads_reports() {
    let server = ApiServer::start(Contents::default()).await;
    let relay = Relay::start(|_| open([flow(egress_drop("web", 443))])).await;
    let world = World::start_with(Some(&relay), &server, all(), Restrictions::default(), false);
    eventually("the flow is counted", || world.metrics.counted(Verdict::Dropped) == 1).await;
    // The look of each second.
    sleep(LOOK * 2).await;
    assert!(world.reported().is_empty());
    assert_eq!(world.get("", None).await.unwrap()["total"], 1, "callers read the alerts at any pod");
}

#[tokio::test]
async fn scope_limits_what_is_watched_counted_and_read() {
    let spec = json!({"endpointSelector": {}, "egress": [{}]});
    let path = "/apis/cilium.io/v2/namespaces/shop/ciliumnetworkpolicies";
    let lists = vec![(path, vec![policy("shop", "all", "true", &spec)])];
    let server = ApiServer::start(Contents { lists, ..Contents::default() }).await;
    let (go, gone) = watch::channel(false);
    let relay = Relay::start(move |_| {
        let elsewhere = Flow { source: Some(endpoint("other", "web")), ..egress_drop("web", 443) };
        let flows = [flow(elsewhere), flow(egress_drop("web", 443))];
        let mut gone = gone.clone();
        async move {
            gone.wait_for(|go| *go).await.unwrap();
            open(flows)
        }
        .flatten_stream()
        .boxed()
    })
    .await;
    let scope = Scope::new(vec!["shop".to_owned()]).unwrap();
    let scope = Arc::new(ScopeEnforcer::new(Some(scope), AgentMetrics::default()));
    let restrictions = Restrictions { scope: Some(Arc::clone(&scope)), policy: None };
    let world = World::start_with(Some(&relay), &server, AlertsSection::default(), restrictions, true);
    eventually("the policy is known", || world.alerts.policies.load().len() == 1).await;
    go.send_replace(true);
    world.wait_for_events(1).await;
    eventually("both flows are read", || world.metrics.dropped("out-of-scope") == 1).await;
    assert_eq!(world.get("", None).await.unwrap()["total"], 1);
    let beyond =
        |request: &String| request.contains(CLUSTER_POLICIES) || request.contains(&format!("{POLICIES}?"));
    assert!(!server.requests().iter().any(beyond), "{:?}", server.requests());
    // The configuration restricts agentk to another namespace.
    scope.set(Some(Scope::new(vec!["other".to_owned()]).unwrap()));
    assert_eq!(world.get("", None).await.unwrap()["total"], 0);
}

#[tokio::test]
async fn violations_of_policy_engines_are_alerts_from_now_on() {
    let event = |name: &str, reason: &str| {
        json!({
            "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": reason,
            "metadata": {"namespace": "shop", "name": name, "resourceVersion": "2"},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web-1"},
            "message": "policy disallow-latest-tag/check fail: use a tag",
        })
    };
    let added = |name: &str, reason: &str| json!({"type": "ADDED", "object": event(name, reason)});
    let lists = vec![(EVENTS, vec![event("before", "PolicyViolation")])];
    let watches = vec![(
        EVENTS,
        vec![added("a", "PolicyViolation"), added("b", "BackOff"), added("c", "PolicyViolation")],
    )];
    let server = ApiServer::start(Contents { lists, watches, ..Contents::default() }).await;
    let world = World::start(None, &server, AlertsSection::default());
    let events = world.wait_for_events(1).await;
    let content = &events[0].event.content;
    assert_eq!(content.message, "shop/Pod/web-1 violates the policy disallow-latest-tag (PolicyViolation)");
    eventually("all Events are read", || world.metrics.counted(Verdict::Violation) == 2).await;
    assert_eq!(world.metrics.dropped("other-reason"), 1);
    assert_eq!(world.get("", None).await.unwrap()["alerts"][0]["count"], 2);
    assert!(server.requests().iter().any(|request| request.contains("fieldSelector=type%3DWarning")));
}

#[tokio::test]
async fn caller_with_an_identity_needs_the_right_to_list_events() {
    let server = ApiServer::start(Contents { allowed: vec!["shop"], ..Contents::default() }).await;
    let relay = Relay::start(|_| open([flow(egress_drop("web", 443))])).await;
    let world = World::start(Some(&relay), &server, all());
    world.wait_for_events(1).await;
    assert_eq!(world.get("?namespace=shop", Some("ana")).await.unwrap()["total"], 1);
    for query in ["", "?namespace=other"] {
        assert_eq!(world.get(query, Some("ana")).await.unwrap_err().reason, Reason::Forbidden, "{query}");
    }
    assert_eq!(world.get("", None).await.unwrap()["total"], 1, "a caller who acts as agentk");
    let wrong =
        |method: &str, uri: &str| Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
    let handler = AlertsHandler(Arc::clone(&world.alerts));
    for (request, reason) in [
        (wrong("POST", "/v1/alerts"), Reason::MethodNotAllowed),
        (wrong("GET", "/v1/alert"), Reason::UnknownPath),
        (wrong("GET", "/v1/alerts?after=1"), Reason::BadRequest),
    ] {
        assert_eq!(handler.handle(request).await.unwrap_err().reason, reason);
    }
}

#[tokio::test]
async fn policy_of_the_owner_limits_what_is_watched_and_read() {
    let server = ApiServer::start(Contents::default()).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    let text = "rules:\n- {name: shop, action: allow, services: [alerts], verbs: [list, watch], apiGroups: [''], resources: [events], \
                namespaces: [shop]}\n";
    std::fs::write(&file, text).unwrap();
    let served = vec![ServiceName::ALERTS.parse().unwrap()];
    let policy = PolicyEnforcer::load(file, served, AgentMetrics::default()).unwrap();
    let restrictions = Restrictions { scope: None, policy: Some(Arc::new(policy)) };
    let relay = Relay::start(|_| open([flow(egress_drop("web", 443))])).await;
    let world = World::start_with(Some(&relay), &server, AlertsSection::default(), restrictions, true);
    // No policy is known, because agentk may not read them.
    eventually("the flow is read", || world.metrics.dropped("not-asked") == 1).await;
    assert_eq!(server.requests(), Vec::<String>::new());
    assert_eq!(world.get("?namespace=shop", None).await.unwrap()["total"], 0);
    for query in ["", "?namespace=other"] {
        assert_eq!(world.get(query, None).await.unwrap_err().reason, Reason::RefusedByPolicy, "{query}");
    }
}

#[tokio::test]
async fn configuration_of_kas_applies_while_agentk_runs() {
    let server = ApiServer::start(Contents::default()).await;
    let relay = endless_relay().await;
    let world = World::start(Some(&relay), &server, AlertsSection::default());
    eventually("flows are read", || world.metrics.dropped("not-asked") > 0).await;
    let scope = Arc::new(ScopeEnforcer::new(None, AgentMetrics::default()));
    let service = ConfigurationService::new(scope, None, AgentMetrics::default());
    let alerts = Arc::clone(&world.alerts);
    let section: Section = Box::new(move |update| {
        alerts.set_section(update.keys.alerts.clone());
        Vec::new()
    });
    let service = service.with_sections([section]);
    let put = async |observed: u64, alerts: Value| {
        let configuration = json!({"alerts": alerts});
        let update =
            json!({"observed": observed, "version": "1", "configuration": configuration, "error": null});
        let request = Request::put("/v1/configuration").body(Body::from(update.to_string())).unwrap();
        service.handle(request).await.unwrap();
    };
    put(1, json!({"policies": "all", "namespaces": ["other"]})).await;
    eventually("the namespace is left out", || world.metrics.dropped("out-of-scope") > 0).await;
    put(2, json!({"policies": "all", "quiet_period": "5m"})).await;
    world.wait_for_events(1).await;
    assert_eq!(world.alerts.filter.borrow().section.quiet_period, Duration::from_secs(300));
    // One of a later kas, with a key that this agentk does not have.
    put(3, json!({"policies": "all", "later": 1})).await;
    assert_eq!(**world.alerts.section.borrow(), AlertsSection::default());
}
