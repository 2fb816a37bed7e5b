//! The audit log of a cluster: which event is whose, who may read it, and what a reader of several replicas sees.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{convert::Infallible, path::Path, sync::Arc, time::Duration};

use access::{
    Identity,
    kill_switch::file,
    token::{self, Holder, TokenHash},
};
use agentk_core::Services;
use bytes::Bytes;
use environments_wire::DeploymentRecords as _;
use futures_util::stream;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use kas_gitlab::ApiRateLimit;
use kas_testing::{
    fleet::TestFleet,
    gitlab::{AGENT, world_with},
    issuer::{IssuerKey, TestIssuer, claims},
    world::{World, text},
};
use parking_lot::Mutex;
use proto::audit::{AuditLine, ClusterEvent, ClusterUser, EventObject};
use secrecy::SecretString;
use serde_json::{Value, json};
use testing::gitlab::{Job, Project, sha_of_job};
use tokio::{sync::watch, time::sleep};
use tunnel::Body;

use crate::audit::{audit, lines};

const CONFIGMAP: &str = "/agents/prod/kubernetes/api/v1/namespaces/shop/configmaps/settings";

/// A cluster that writes an audit log, as agentk sends it.
#[derive(Clone)]
struct Cluster {
    log: Arc<Mutex<String>>,
    written: watch::Sender<()>,
    /// The status of the log.
    status: Arc<Mutex<StatusCode>>,
    /// The queries of the requests for the log.
    queries: Arc<Mutex<Vec<String>>>,
}

impl Cluster {
    fn new() -> Self {
        Self {
            log: Arc::default(),
            written: watch::Sender::new(()),
            status: Arc::default(),
            queries: Arc::default(),
        }
    }

    fn services(&self) -> Services {
        let (kubernetes, audit) = (self.clone(), self.clone());
        Services::new()
            .with_fn("kubernetes", move |request| {
                kubernetes.write_event(&kubernetes.event(request.method(), request.headers()));
                async { Response::new(Body::from("done")) }
            })
            .with_fn("audit", move |request| {
                let response = audit.respond(&request);
                async { response }
            })
    }

    /// Returns the event about the ConfigMap.
    fn event(&self, method: &Method, headers: &HeaderMap) -> ClusterEvent {
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        let user = |name: &str| ClusterUser { name: name.to_owned(), ..ClusterUser::default() };
        ClusterEvent {
            position: "0a0b0c0d.1".to_owned(),
            of_agentk: Some(true),
            time: "2026-01-31T12:00:00.000000Z".to_owned(),
            audit_id: text("audit-id").unwrap(),
            verb: if *method == Method::PUT { "update" } else { "delete" }.to_owned(),
            cluster_user: user("agentk"),
            impersonated_user: text("impersonate-user").map(|name| user(&name)),
            object: Some(EventObject {
                resource: "configmaps".to_owned(),
                namespace: "shop".to_owned(),
                name: "settings".to_owned(),
                ..EventObject::default()
            }),
            status: Some(200),
            ..ClusterEvent::default()
        }
    }

    fn write_event(&self, event: &ClusterEvent) {
        self.write(&serde_json::to_string(&AuditLine::Event(Box::new(event.clone()))).unwrap());
    }

    fn write(&self, line: &str) {
        *self.log.lock() += &format!("{line}\n");
        self.written.send_replace(());
    }

    /// Returns the audit id of the last request.
    fn last_id(&self) -> String {
        let log = self.log.lock();
        let event: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        event["audit_id"].as_str().unwrap().to_owned()
    }

    fn respond(&self, request: &Request<Body>) -> Response<Body> {
        self.queries.lock().push(request.uri().query().unwrap_or_default().to_owned());
        if request.uri().query().is_none_or(|query| !query.contains("follow=true")) {
            let mut response = Response::new(Body::from(self.log.lock().clone()));
            *response.status_mut() = *self.status.lock();
            return response;
        }
        let state = (self.clone(), self.written.subscribe(), 0);
        let frames = stream::unfold(state, async |(cluster, mut written, sent)| {
            loop {
                let new = Bytes::from(cluster.log.lock()[sent..].to_owned());
                let sent = sent + new.len();
                if !new.is_empty() {
                    return Some((Ok::<_, Infallible>(Frame::data(new)), (cluster, written, sent)));
                }
                written.changed().await.unwrap();
            }
        });
        Response::new(Body::new(StreamBody::new(Box::pin(frames))))
    }
}

/// A kas with the callers `me` and `auditor`, and with an agent.
struct Audited {
    world: World,
    auditor: World,
    cluster: Cluster,
    _agent: kas_testing::world::RunningAgent,
}

/// Returns another caller of the same kas.
fn caller(world: &World, token: SecretString) -> World {
    let mut caller = world.clone();
    caller.caller_token = token;
    caller
}

/// Admits the callers `me` and `auditor`.
fn set_callers(world: &World, auditor: &SecretString) {
    let (me, auditor) = (TokenHash::of(&world.caller_token), TokenHash::of(auditor));
    world.set_callers(&format!(
        "{{name: me, tokens: ['{me}'], agents: [prod], services: ['*'], audit: true}}, \
         {{name: auditor, tokens: ['{auditor}'], agents: [prod], services: [graph], cluster_audit: true}}"
    ));
}

impl Audited {
    async fn new() -> Self {
        let world = World::new();
        let token = token::new(Holder::Caller);
        set_callers(&world, &token);
        let auditor = caller(&world, token);
        let cluster = Cluster::new();
        let agent = world.agent(cluster.services()).await;
        Self { world, auditor, cluster, _agent: agent }
    }

    async fn events(&self) -> Vec<Value> {
        events(&self.auditor, "/agents/prod/audit").await
    }
}

async fn send(world: &World, method: Method, headers: &[(&str, &str)]) {
    let mut request = world.request(CONFIGMAP);
    *request.method_mut() = method;
    for (name, value) in headers {
        request.headers_mut().append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
    }
    let response = world.send(request).await;
    assert_eq!(response.status(), StatusCode::OK);
    text(response).await;
}

async fn events(reader: &World, path: &str) -> Vec<Value> {
    let response = reader.get(path).await;
    let status = response.status();
    let text = text(response).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn request_of_a_caller_is_one_line_with_the_caller_and_the_result() {
    let world = Audited::new().await;
    send(&world.world, Method::DELETE, &[("x-request-id", "id-1"), ("impersonate-user", "jane")]).await;
    let [line] = &world.events().await[..] else { panic!() };
    assert_eq!(
        ["type", "agent", "through", "verb"].map(|key| line[key].as_str().unwrap()),
        ["event", "prod", "kas", "delete"]
    );
    let request = &line["request"];
    assert_eq!(
        ["caller", "id", "client"].map(|key| request[key].as_str().unwrap()),
        ["me", "id-1", "192.0.2.1"]
    );
    assert_eq!(request["replica"], world.world.kas.agents.replica.to_string());
    assert_eq!(
        (&line["cluster_user"]["name"], &line["impersonated_user"]["name"]),
        (&json!("agentk"), &json!("jane"))
    );
    assert_eq!((&line["object"]["name"], &line["status"]), (&json!("settings"), &json!(200)));
    assert_eq!(world.world.metric("kas_cluster_audit_events_total{through=\"kas\"}"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn audit_id_is_that_of_kas_in_both_logs() {
    let world = Audited::new().await;
    let sink = audit(&world.world);
    send(
        &world.world,
        Method::DELETE,
        &[("audit-id", "theirs"), ("audit-id", "kas-00000000000000000000000000000000")],
    )
    .await;
    let id = world.cluster.last_id();
    assert!(proto::audit::parse_id(&id).is_some_and(|id| id != 0), "{id}");
    let line = lines(&world.world, &sink).await.remove(0);
    assert_eq!((&line["cluster_audit_id"], &line["verb"]), (&json!(id), &json!("delete")));
}

#[tokio::test(start_paused = true)]
async fn requests_that_did_not_pass_kas_are_no_requests_of_a_caller() {
    let world = Audited::new().await;
    send(&world.world, Method::DELETE, &[]).await;
    let known = world.cluster.last_id();
    let mut headers = HeaderMap::new();
    let event = |headers: &mut HeaderMap, id: &str, method: Method| {
        headers.insert("audit-id", id.parse().unwrap());
        world.cluster.event(&method, headers)
    };
    let direct = ClusterEvent { of_agentk: Some(false), ..event(&mut headers, "4c5a4b4d", Method::DELETE) };
    let mut of_agentk = event(&mut headers, "4c5a4b4e", Method::DELETE);
    of_agentk.user_agent = Some("agentk/0.1.0 gitops/714a629c (shop/web)".to_owned());
    let imitated = ClusterEvent { of_agentk: Some(false), ..of_agentk.clone() };
    // Somebody with another access to the cluster sends the id of the request.
    let other_verb = ClusterEvent { of_agentk: None, ..event(&mut headers, &known, Method::PUT) };
    let mut other_object = ClusterEvent { of_agentk: None, ..event(&mut headers, &known, Method::DELETE) };
    other_object.object.as_mut().unwrap().name = "other".to_owned();
    let same_object = ClusterEvent { of_agentk: Some(false), ..event(&mut headers, &known, Method::DELETE) };
    let forgotten = event(&mut headers, "kas-000102030405060708090a0b0c0d0e0f", Method::DELETE);
    for event in [direct, of_agentk, imitated, other_verb, other_object, same_object, forgotten] {
        world.cluster.write_event(&event);
    }
    let lines = world.events().await;
    let through: Vec<&Value> = lines.iter().map(|line| &line["through"]).collect();
    assert_eq!(through, ["kas", "direct", "agentk", "direct", "direct", "direct", "direct", "unknown"]);
    let syncs: Vec<&Value> = lines.iter().map(|line| &line["sync"]).filter(|sync| !sync.is_null()).collect();
    assert_eq!(syncs, [&json!({"project": "shop/web", "commit": "714a629c"})]);
    assert_eq!(world.world.metric("kas_cluster_audit_mismatches_total"), 3.0);
}

#[tokio::test(start_paused = true)]
async fn agent_that_does_not_know_its_own_user_shows_each_request_once() {
    let world = Audited::new().await;
    send(&world.world, Method::DELETE, &[]).await;
    let mut headers = HeaderMap::new();
    headers.insert("audit-id", world.cluster.last_id().parse().unwrap());
    let event = ClusterEvent { of_agentk: None, ..world.cluster.event(&Method::DELETE, &headers) };
    let again = ClusterEvent { time: "2026-01-31T12:00:01.000000Z".to_owned(), ..event.clone() };
    let audit_id = "kas-000102030405060708090a0b0c0d0e0f".to_owned();
    let forgotten = ClusterEvent { audit_id, ..event.clone() };
    let direct = ClusterEvent { audit_id: "4c5a4b4d".to_owned(), ..event.clone() };
    world.cluster.log.lock().clear();
    for event in [&event, &again, &event, &forgotten, &direct] {
        world.cluster.write_event(event);
    }
    let lines = world.events().await;
    let through: Vec<&Value> = lines.iter().map(|line| &line["through"]).collect();
    assert_eq!(through, ["kas", "direct", "kas", "unknown", "direct"]);
    assert_eq!(world.world.metric("kas_cluster_audit_mismatches_total"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn caller_cannot_act_as_manifests_from_git() {
    let world = Audited::new().await;
    let agent = "agentk/0.1.0 gitops/714a629c (shop/web)";
    send(&world.world, Method::DELETE, &[("user-agent", agent)]).await;
    let mut headers = HeaderMap::new();
    headers.insert("audit-id", world.cluster.last_id().parse().unwrap());
    let known =
        ClusterEvent { user_agent: Some(agent.to_owned()), ..world.cluster.event(&Method::DELETE, &headers) };
    // kas has no record of this one any more.
    let audit_id = "kas-000102030405060708090a0b0c0d0e0f".to_owned();
    world.cluster.write_event(&ClusterEvent { audit_id, ..known.clone() });
    world.cluster.write_event(&known);
    for line in world.events().await {
        assert_eq!(line["sync"], Value::Null, "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn caller_cannot_hide_behind_a_path_that_only_the_api_server_understands() {
    let world = Audited::new().await;
    let long = format!("{}/{}", "a".repeat(1000), "%73ettings".repeat(10));
    for name in ["%73ettings/", "/settings", "settings%2fstatus;a", &*long] {
        let path = format!("/agents/prod/kubernetes/api/v1/namespaces/shop/configmaps/{name}");
        let mut request = world.world.request(&path);
        *request.method_mut() = Method::DELETE;
        assert_eq!(world.world.send(request).await.status(), StatusCode::OK, "{path}");
    }
    for line in world.events().await {
        assert_eq!((&line["through"], &line["request"]["caller"]), (&json!("kas"), &json!("me")), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn agent_cannot_send_lines_that_kas_does_not_join() {
    let world = Audited::new().await;
    for status in [StatusCode::NON_AUTHORITATIVE_INFORMATION, StatusCode::PARTIAL_CONTENT] {
        *world.cluster.status.lock() = status;
        world.cluster.write(r#"{"type":"event","through":"kas","request":{"caller":"me"}}"#);
        let response = world.auditor.get("/agents/prod/audit").await;
        assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
        assert_eq!(response.headers()["kas-error"], "agent-misbehaved");
    }
}

#[tokio::test(start_paused = true)]
async fn reader_may_ask_for_one_user() {
    let world = Audited::new().await;
    send(&world.world, Method::DELETE, &[]).await;
    send(&world.world, Method::PUT, &[("impersonate-user", "jane")]).await;
    for (user, expected) in [("me", &["delete", "update"][..]), ("jane", &["update"]), ("bob", &[])] {
        let events = events(&world.auditor, &format!("/agents/prod/audit/v1/events?user={user}&verb=")).await;
        let verbs: Vec<&str> = events.iter().map(|line| line["verb"].as_str().unwrap()).collect();
        assert_eq!(verbs, expected, "{user}");
    }
}

#[tokio::test(start_paused = true)]
async fn right_to_read_is_one_of_its_own_and_reading_is_audited() {
    let world = Audited::new().await;
    let sink = audit(&world.world);
    let refused = world.world.get("/agents/prod/audit").await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN, "all services and `audit: true` are not enough");
    let other = world.auditor.get(CONFIGMAP).await;
    assert_eq!(other.status(), StatusCode::FORBIDDEN, "the right is for nothing else");
    assert_eq!(world.events().await.len(), 0);
    let lines = lines(&world.world, &sink).await;
    let read = lines.last().unwrap();
    assert_eq!(
        (&read["caller"], &read["service"], &read["events"]),
        (&json!("auditor"), &json!("audit"), &json!(["secret-read"]))
    );
}

#[tokio::test(start_paused = true)]
async fn following_ends_with_the_right_and_with_the_kill_switch() {
    let world = Audited::new().await;
    let open = async || {
        send(&world.world, Method::DELETE, &[]).await;
        let mut body = world.auditor.get("/agents/prod/audit/v1/events?follow=true").await.into_body();
        body.frame().await.unwrap().unwrap();
        send(&world.world, Method::DELETE, &[]).await;
        let next = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(next.starts_with(br#"{"type":"event","agent":"prod","through":"kas""#), "{next:?}");
        body
    };
    let mut body = open().await;
    set_callers(&world.world, &token::new(Holder::Caller));
    assert!(body.frame().await.unwrap().is_err(), "the token was revoked");
    set_callers(&world.world, &world.auditor.caller_token);
    let mut body = open().await;
    let rule = file::parse(Path::new("disabled.yaml"), "rules: [{service: audit, reason: drill}]").unwrap();
    world.world.kas.callers.kill_switch.set_file(rule);
    assert!(body.frame().await.unwrap().is_err(), "the service was disabled");
    assert_eq!(world.auditor.get("/agents/prod/audit").await.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn agent_that_sends_anything_but_lines_ends_its_response_only() {
    let world = Audited::new().await;
    send(&world.world, Method::DELETE, &[]).await;
    for wrong in ["{}", "not json", &format!("{{\"type\":\"event\",\"a\":\"{}\"}}", "x".repeat(1 << 20))] {
        let before = world.cluster.log.lock().clone();
        world.cluster.write(wrong);
        let auditor = world.auditor.clone();
        let read = async move { auditor.get("/agents/prod/audit").await.into_body().collect().await.is_ok() };
        // The head may not arrive either, which is a panic of the client.
        assert!(!tokio::spawn(read).await.unwrap_or(false), "{}", &wrong[..2]);
        *world.cluster.log.lock() = before;
    }
    world.cluster.write(r#"{"type":"gap","position":"0a.7","lost_bytes":9}"#);
    world.cluster.write(r#"{"type":"end","position":"0a.7","has_more":false}"#);
    let lines = world.events().await;
    let types: Vec<&str> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["event", "gap", "end"]);
}

#[tokio::test(start_paused = true)]
async fn reader_at_any_replica_sees_the_callers_of_all_replicas() {
    let fleet = TestFleet::new(3);
    let token = token::new(Holder::Caller);
    for replica in &fleet.replicas {
        set_callers(replica, &token);
    }
    let cluster = Cluster::new();
    let _agent = fleet.agent(2, cluster.services()).await;
    send(&fleet.replicas[0], Method::DELETE, &[]).await;
    send(&fleet.replicas[1], Method::DELETE, &[]).await;
    let reader = caller(&fleet.replicas[1], token);
    let found = events(&reader, "/agents/prod/audit").await;
    let replicas: Vec<Value> = found.iter().map(|line| line["request"]["replica"].clone()).collect();
    assert_eq!(replicas, [json!(fleet.id(0)), json!(fleet.id(1))]);
    fleet.freeze(0);
    let through: Vec<Value> =
        events(&reader, "/agents/prod/audit").await.iter().map(|line| line["through"].clone()).collect();
    assert_eq!(through, ["unknown", "kas"], "the replica that does not answer may know the caller");
}

#[tokio::test(start_paused = true)]
async fn audit_log_may_be_that_of_another_pod_at_another_replica() {
    let fleet = TestFleet::new(2);
    let token = token::new(Holder::Caller);
    for replica in &fleet.replicas {
        set_callers(replica, &token);
    }
    let cluster = Cluster::new();
    // The pods of the agent serve different services.
    let only_kubernetes = Services::new().with_fn("kubernetes", async |_| Response::new(Body::empty()));
    let _first = fleet.agent(0, only_kubernetes).await;
    let reader = caller(&fleet.replicas[0], token);
    let missing = reader.get("/agents/prod/audit").await;
    assert_eq!(missing.headers()["kas-error"], "unknown-service");
    let _second = fleet.agent(1, cluster.services()).await;
    cluster.write(r#"{"type":"end","position":"0a.7","has_more":false}"#);
    assert_eq!(events(&reader, "/agents/prod/audit").await[0]["type"], "end");
}

#[tokio::test(start_paused = true)]
async fn job_of_an_oidc_token_is_named_with_its_commit() {
    let key = IssuerKey::ec("a");
    let issuer = TestIssuer::new(&[&key]);
    let world = World::with_issuer(&issuer, "");
    let cluster = Cluster::new();
    let _agent = world.agent(cluster.services()).await;
    let auditor = token::new(Holder::Caller);
    world.set_callers(&format!(
        "{{name: jobs, oidc: {{issuer: test, claims: {{project_path: shop/web}}}}, agents: [prod], services: [kubernetes]}}, \
         {{name: auditor, tokens: ['{}'], agents: [prod], services: [graph], cluster_audit: true}}",
        TokenHash::of(&auditor)
    ));
    let job = json!({"job_id": "302", "project_path": "shop/web", "user_login": "bob", "environment": "prod", "sha": "714a629c"});
    let of_job = caller(&world, key.token(&claims(job)).into());
    send(&of_job, Method::DELETE, &[]).await;
    let reader = caller(&world, auditor);
    let line = events(&reader, "/agents/prod/audit").await.remove(0);
    let expected = json!({"id": "302", "project": "shop/web", "user": "bob", "environment": "prod", "commit": "714a629c"});
    assert_eq!((&line["request"]["caller"], &line["request"]["job"]), (&json!("jobs"), &expected));
}

/// Sends a deletion with the token of a CI job, and waits until GitLab has described the job.
async fn deploy(world: &World, path: &str) {
    let request = Request::delete(path).header("host", "kas").header("authorization", "Bearer ci:7:job");
    assert_eq!(world.send(request.body(Body::empty()).unwrap()).await.status(), StatusCode::OK);
    while world.kas.deployments.list().await.unwrap()[0].commit.is_none() {
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn request_of_a_job_has_its_deployment_and_is_found_by_it() {
    let cluster = Cluster::new();
    let (gitlab, world, _agent) = world_with(&ApiRateLimit::default(), |_| {}, cluster.services()).await;
    let job = Job::new(3, 30).with_agent(AGENT, json!({"access_as": {"ci_job": {}}}));
    gitlab.state().add_job("job", job.with_environment("prod", "production"));
    gitlab.state().projects.push(Project::new(30, "shop/web"));
    let token = token::new(Holder::Caller);
    let caller_entry = format!(
        "callers: [{{name: auditor, tokens: ['{}'], agents: ['gitlab:{AGENT}'], services: [graph], cluster_audit: true}}]",
        TokenHash::of(&token)
    );
    world.kas.identities.replace(Identity::parse(Path::new("identity.yaml"), &caller_entry).unwrap());
    let auditor = caller(&world, token);
    deploy(&world, &CONFIGMAP.replace("prod", &AGENT.to_string())).await;
    cluster
        .write_event(&ClusterEvent { of_agentk: Some(false), ..cluster.event(&Method::PUT, &with_id("x")) });

    let path = format!("/agents/{AGENT}/audit/v1/events");
    let lines = events(&auditor, &path).await;
    let commit = sha_of_job(3);
    assert_eq!(
        lines[0]["deployment"],
        json!({
            "project": "shop/web", "environment": "prod", "status": "running", "commit": commit, "author": "Alice Liddell",
            "ref": "main", "commit_url": format!("https://gitlab.example.com/shop/web/-/commit/{commit}"),
            "job_url": "https://gitlab.example.com/shop/web/-/jobs/3",
        })
    );
    assert_eq!((lines.len(), &lines[1]["deployment"]), (2, &Value::Null));
    for (query, expected) in [
        (format!("commit={}", &commit[..8]), 1),
        ("environment=prod&project=shop/web".to_owned(), 1),
        ("environment=staging".to_owned(), 0),
        (format!("commit={}&user=gitlab:ci_job:3", &commit[..8]), 1),
        (format!("commit={}&user=nobody", &commit[..8]), 0),
    ] {
        assert_eq!(events(&auditor, &format!("{path}?{query}")).await.len(), expected, "{query}");
        let asked = cluster.queries.lock().pop().unwrap();
        assert!(
            !asked.contains("commit") && !asked.contains("environment"),
            "agentk does not know them: {asked}"
        );
    }
    let refused = auditor.get(&format!("{path}?commit=v1.2")).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    assert!(text(refused).await.contains("7 to 64 hexadecimal digits"));
    gitlab.assert_no_violations();
}

/// Returns the headers of a request with an audit id.
fn with_id(id: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(HeaderName::from_static("audit-id"), HeaderValue::from_static(id))])
}
