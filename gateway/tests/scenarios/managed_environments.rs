//! The objects of environments: kas asks agentk for them before the first request of a CI job.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod agent;

use std::{path::Path, time::Duration};

use access::kill_switch::file;
use agentk_core::Services;
use gateway::config::Config;
use http::{Method, Request, Response, header::AUTHORIZATION};
use kas_gitlab::ApiRateLimit;
use kas_testing::{
    fleet::TestFleet,
    gitlab::{AGENT, AGENT_TOKEN, client, world_with},
    internal_api::{call, valid_token},
    world::{RunningAgent, World, text},
};
use proto::Reason;
use serde_json::{Value, json};
use testing::gitlab::{Agent as GitLabAgent, Endpoint, Job, StandIn};
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};
use tunnel::Body;

use self::agent::{Provision, REVIEW, Reply, Rights};
use crate::audit::{audit, lines};

const SECOND: Duration = Duration::from_secs(1);
const PODS: &str = "/k8s-proxy/api/v1/pods";

const ENSURE: &str = "POST /v1/projects/30/environments/live";
const CLUSTER: &str = "/api/v1/pods";

fn managed(access_as: &Value) -> Value {
    json!({"access_as": access_as, "resource_management": {"enabled": true}})
}

fn add_job(gitlab: &StandIn, id: u64, configuration: Value) {
    let job = Job { username: "alice".to_owned(), user: 5, ..Job::new(id, 30) };
    let job = job.with_agent(AGENT, configuration).with_environment("live", "production");
    gitlab.state().add_job(&format!("job{id}"), job);
}

async fn start(edit: impl FnOnce(&mut Config)) -> (StandIn, World, RunningAgent, Provision) {
    let provision = Provision::default();
    let (gitlab, world, agent) = world_with(&ApiRateLimit::default(), edit, provision.services()).await;
    add_job(&gitlab, 3, managed(&json!({"ci_job": {}})));
    add_job(&gitlab, 4, managed(&json!({"agent": {}})));
    (gitlab, world, agent, provision)
}

async fn send(world: &World, path: &str, token: &str) -> (u16, Option<String>, String) {
    let request = Request::get(path).header("host", "kas").header(AUTHORIZATION, format!("Bearer {token}"));
    let response = world.send(request.body(Body::empty()).unwrap()).await;
    let status = response.status().as_u16();
    let reason = response.headers().get("kas-error").map(|reason| reason.to_str().unwrap().to_owned());
    (status, reason, text(response).await)
}

async fn status(world: &World, token: &str) -> u16 {
    send(world, PODS, token).await.0
}

#[tokio::test(start_paused = true)]
async fn objects_are_asked_for_before_the_first_request_of_each_job() {
    let (gitlab, world, _agent, provision) = start(|_| {}).await;
    assert_eq!(status(&world, "ci:7:job3").await, 200);
    let (line, body) = provision.0.lock().requests[0].clone();
    assert_eq!(line, ENSURE);
    let expected = json!({"tier": "production", "pipeline": 1003, "job": 3, "user": 5, "username": "alice"});
    assert_eq!(body, expected);
    assert_eq!(provision.take(), [ENSURE, CLUSTER]);
    assert_eq!(status(&world, "ci:7:job3").await, 200);
    assert_eq!(provision.take(), [CLUSTER], "once for each job");
    assert_eq!(status(&world, "ci:7:job4").await, 200);
    assert_eq!(provision.take(), [ENSURE, CLUSTER]);
    sleep(601 * SECOND).await;
    assert_eq!(status(&world, "ci:7:job3").await, 200);
    assert_eq!(provision.take(), [ENSURE, CLUSTER], "and again after a while");
    assert_eq!(world.metric("kas_managed_environments_total{result=\"ok\"}"), 3.0);
    assert_eq!(world.metric("kas_managed_environment_wait_seconds_count"), 3.0);
    gitlab.assert_no_violations();
}

/// The authorizer of the API server learns of a new binding after the request that makes it.
#[tokio::test(start_paused = true)]
async fn first_request_waits_until_a_new_binding_grants_rights() {
    let (_gitlab, world, _agent, provision) = start(|_| {}).await;
    let set = |binding, rights| {
        let mut state = provision.0.lock();
        (state.binding, state.rights) = (Some(binding), rights);
    };
    set("created", Rights::After(2));
    assert_eq!(status(&world, "ci:7:job3").await, 200);
    assert!(provision.0.lock().impersonated, "the question is that of the job");
    assert_eq!(provision.take(), [ENSURE, REVIEW, REVIEW, REVIEW, CLUSTER]);

    // A job that acts as agentk has its rights, and one whose binding is old has them by now.
    assert_eq!(status(&world, "ci:7:job4").await, 200);
    assert_eq!(provision.take(), [ENSURE, CLUSTER]);
    sleep(601 * SECOND).await;
    set("unchanged", Rights::Never);
    assert_eq!(status(&world, "ci:7:job3").await, 200);
    assert_eq!(provision.take(), [ENSURE, CLUSTER]);

    sleep(601 * SECOND).await;
    set("updated", Rights::Refused);
    assert_eq!(status(&world, "ci:7:job3").await, 200);
    assert_eq!(provision.take(), [ENSURE, REVIEW, CLUSTER], "a policy may refuse the question");

    sleep(601 * SECOND).await;
    set("updated", Rights::Never);
    let start = Instant::now();
    assert_eq!(status(&world, "ci:7:job3").await, 200);
    assert_eq!(start.elapsed().as_secs(), 2, "a binding may be for others");
    assert_eq!(provision.take().last().unwrap(), CLUSTER);
}

#[tokio::test(start_paused = true)]
async fn other_requests_need_no_objects() {
    let (gitlab, world, _agent, provision) = start(|_| {}).await;
    add_job(&gitlab, 5, json!({"access_as": {"ci_job": {}}}));
    add_job(&gitlab, 6, json!({"resource_management": {"enabled": false}}));
    let without = Job::new(7, 30).with_agent(AGENT, managed(&json!({"ci_job": {}})));
    gitlab.state().add_job("job7", without);
    for token in ["ci:7:job5", "ci:7:job6", "ci:7:job7"] {
        assert_eq!(status(&world, token).await, 200, "{token}");
        assert_eq!(provision.take(), [CLUSTER], "{token}");
    }
    // PromQL is for jobs that act as agentk.
    let (status, _, body) = send(&world, "/agents/7/prometheus/api/v1/query?query=up", "ci:7:job4").await;
    assert_eq!((status, &*body), (200, "series"));
    assert_eq!(provision.take(), [""; 0]);
}

/// A job that stops its environment deletes the objects, as agentk and not as itself.
#[tokio::test(start_paused = true)]
async fn job_may_delete_the_objects_of_its_own_environment_alone() {
    let (gitlab, world, _agent, provision) = start(|_| {}).await;
    add_job(&gitlab, 5, json!({"access_as": {"ci_job": {}}}));
    let send = async |method: Method, path: &str, token: &str| {
        let path = format!("/agents/7/provision/v1/projects/{path}");
        let request = Request::builder().method(method).uri(path).header("host", "kas");
        let request = request.header(AUTHORIZATION, format!("Bearer ci:7:{token}"));
        let response = world.send(request.body(Body::empty()).unwrap()).await;
        let status = response.status().as_u16();
        (status, text(response).await)
    };
    for token in ["job3", "job4"] {
        let (status, body) = send(Method::DELETE, "30/environments/live", token).await;
        assert_eq!(status, 200, "{body}");
        assert_eq!(
            provision.take(),
            ["DELETE /v1/projects/30/environments/live"],
            "and nothing is made before"
        );
        assert!(!provision.0.lock().impersonated, "agentk works with its own rights");
    }
    for (path, token) in [
        ("30/environments/dev", "job3"),
        ("31/environments/live", "job3"),
        ("30/environments/live?x", "job3"),
        ("30/environments/live/x", "job3"),
        ("30", "job3"),
        ("30/environments/live", "job5"),
    ] {
        let (status, body) = send(Method::DELETE, path, token).await;
        assert_eq!(status, 403, "{path} {token}");
        assert!(body.contains("for the environment of the job alone"), "{body}");
    }
    // The facts about a job are those of GitLab.
    let (status, _) = send(Method::POST, "30/environments/live", "job3").await;
    assert_eq!(status, 200, "the agentk of this test has no methods, and the real one refuses it");
    assert_eq!(provision.take(), ["POST /v1/projects/30/environments/live"]);
    // The internal service cannot be reached.
    let request =
        Request::post("/agents/7/environments/v1/projects/30/environments/live").header("host", "kas");
    let request = request.header(AUTHORIZATION, "Bearer ci:7:job3").body(Body::empty()).unwrap();
    assert_eq!(world.send(request).await.status(), 404);
    assert_eq!(provision.take(), [""; 0]);
    // The stream ends with the job.
    provision.next([Reply::Never]);
    let finish = async {
        sleep(SECOND).await;
        gitlab.state().jobs.get_mut("job3").unwrap().finished = true;
    };
    let ((status, _), ()) = tokio::join!(send(Method::DELETE, "30/environments/live", "job3"), finish);
    assert!(matches!(status, 401 | 403), "{status}");
}

#[tokio::test(start_paused = true)]
async fn operator_may_ignore_managed_resources() {
    let (_gitlab, world, _agent, provision) =
        start(|config| config.agent.managed_resources.enabled = false).await;
    provision.always(Some(Reply::Never));
    assert_eq!(status(&world, "ci:7:job3").await, 200);
    assert_eq!(provision.take(), [CLUSTER]);
}

#[tokio::test(start_paused = true)]
async fn refusal_fails_the_first_request_and_says_why() {
    let (_gitlab, world, _agent, provision) = start(|_| {}).await;
    let cause =
        "default.yaml:5: RoleBinding.rbac.authorization.k8s.io live-30-7/a: the policy does not allow this";
    provision.next([Reply::Fail(Reason::EnvironmentRefused, cause)]);
    let (status_code, reason, body) = send(&world, PODS, "ci:7:job3").await;
    assert_eq!((status_code, reason.as_deref()), (424, Some("environment-refused")));
    let object: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&object["kind"], &object["code"]), (&json!("Status"), &json!(424)));
    let message = object["message"].as_str().unwrap();
    let expected = format!(
        "the objects of the environment live of project 30 do not exist, so that job 3 cannot begin: agent prod: {cause}"
    );
    assert!(message.contains(&expected), "{message}");
    assert_eq!(provision.take(), [ENSURE], "the request is not sent");
    // Further requests of the job do not repeat it at once.
    assert_eq!(status(&world, "ci:7:job3").await, 424);
    assert_eq!(provision.take(), [""; 0]);
    sleep(6 * SECOND).await;
    assert_eq!(status(&world, "ci:7:job3").await, 200);
    assert_eq!(world.metric("kas_managed_environments_total{result=\"refused\"}"), 1.0);
    for reply in [Reply::Garbage, Reply::Fail(Reason::Unauthorized, "x"), Reply::Fail(Reason::Forbidden, "x")]
    {
        provision.next([reply.clone()]);
        sleep(601 * SECOND).await;
        assert_eq!(status(&world, "ci:7:job3").await, 424, "{reply:?}");
    }
}

/// An older agentk, and the one of GitLab.
#[tokio::test(start_paused = true)]
async fn environment_of_an_agent_without_the_service_is_not_managed() {
    let echo = async |_: Request<Body>| Response::new(Body::from("done"));
    let services = Services::new().with_fn("kubernetes", echo);
    let (gitlab, world, _agent) = world_with(&ApiRateLimit::default(), |_| {}, services).await;
    add_job(&gitlab, 3, managed(&json!({"ci_job": {}})));
    let (status, reason, body) = send(&world, PODS, "ci:7:job3").await;
    assert_eq!((status, reason, &*body), (200, None, "done"));
    assert_eq!(world.metric("kas_managed_environments_total{result=\"unmanaged\"}"), 1.0);
}

/// The owner of the cluster has to agree.
#[tokio::test(start_paused = true)]
async fn environment_without_consent_of_the_cluster_is_not_managed() {
    let (_gitlab, world, _agent, provision) = start(|_| {}).await;
    let sink = audit(&world);
    provision
        .always(Some(Reply::Fail(Reason::EnvironmentUnmanaged, "the policy of this cluster has no rule")));
    for expected in [&[ENSURE, CLUSTER][..], &[CLUSTER]] {
        assert_eq!(status(&world, "ci:7:job3").await, 200);
        assert_eq!(provision.take(), expected, "agentk is asked once");
    }
    let lines = lines(&world, &sink).await;
    let line = lines.iter().find(|line| line["service"] == "provision").unwrap();
    assert_eq!((&line["status"], &line["reason"]), (&json!(424), &json!("environment-unmanaged")));
    // The owner agrees now.
    provision.always(Some(Reply::Fail(Reason::EnvironmentRefused, "no")));
    sleep(601 * SECOND).await;
    assert_eq!(status(&world, "ci:7:job3").await, 424);
    for (result, number) in [("unmanaged", 1.0), ("refused", 1.0), ("ok", 0.0)] {
        let metric = format!("kas_managed_environments_total{{result=\"{result}\"}}");
        assert_eq!(world.metric(&metric), number, "{result}");
    }
}

/// A job that goes on after its environment was deleted finds the objects again.
#[tokio::test(start_paused = true)]
async fn objects_are_made_again_after_a_deletion() {
    let (gitlab, world, _agent, provision) = start(|_| {}).await;
    let other = Job { username: "alice".to_owned(), user: 5, ..Job::new(8, 30) };
    let other =
        other.with_agent(AGENT, managed(&json!({"ci_job": {}}))).with_environment("dev", "development");
    gitlab.state().add_job("job8", other);
    for token in ["ci:7:job3", "ci:7:job4", "ci:7:job8"] {
        assert_eq!(status(&world, token).await, 200);
    }
    sleep(SECOND).await;
    let delete = async || {
        let request = Request::delete("/agents/7/provision/v1/projects/30/environments/live");
        let request = request.header("host", "kas").header(AUTHORIZATION, "Bearer ci:7:job4");
        world.send(request.body(Body::empty()).unwrap()).await.status().as_u16()
    };
    provision.next([Reply::Fail(Reason::EnvironmentRefused, "no")]);
    assert_eq!(delete().await, 424);
    provision.take();
    assert_eq!(status(&world, "ci:7:job3").await, 200);
    assert_eq!(provision.take(), [CLUSTER], "nothing was deleted");
    assert_eq!(delete().await, 200);
    provision.take();
    sleep(SECOND).await;
    assert_eq!(status(&world, "ci:7:job3").await, 200);
    assert_eq!(provision.take(), [ENSURE, CLUSTER]);
    // The job that has deleted them does not make them again.
    for token in ["ci:7:job3", "ci:7:job4", "ci:7:job8"] {
        assert_eq!(status(&world, token).await, 200);
        assert_eq!(provision.take(), [CLUSTER], "{token}");
    }
}

#[tokio::test(start_paused = true)]
async fn attempt_is_repeated_while_the_agent_is_not_ready() {
    let (_gitlab, world, _agent, provision) = start(|_| {}).await;
    provision.next([
        Reply::Fail(Reason::EnvironmentNotReady, "no configuration yet"),
        Reply::Fail(Reason::ClusterUnreachable, "refused"),
        Reply::Cut,
    ]);
    assert_eq!(status(&world, "ci:7:job3").await, 200);
    assert_eq!(provision.take(), [ENSURE, ENSURE, ENSURE, ENSURE, CLUSTER]);

    // The tunnel is lost in the middle of it, and the agent comes back.
    provision.next([Reply::Never]);
    let request = send(&world, PODS, "ci:7:job4");
    let cut = async {
        while provision.0.lock().requests.is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
        world.cut_tunnels();
    };
    let ((status, _, body), ()) = tokio::join!(request, cut);
    assert_eq!(status, 200, "{body}");
    assert_eq!(provision.take(), [ENSURE, ENSURE, CLUSTER]);
}

#[tokio::test(start_paused = true)]
async fn wait_of_the_first_request_has_an_end() {
    let (_gitlab, world, agent, provision) = start(|_| {}).await;
    provision.always(Some(Reply::Never));
    let begun = Instant::now();
    let (status, reason, body) = send(&world, PODS, "ci:7:job3").await;
    assert_eq!((status, reason.as_deref()), (503, Some("environment-not-ready")));
    assert!(body.contains("they were not complete within 20 s (agent.managed_resources.timeout)"), "{body}");
    assert!(body.contains("\"retryAfterSeconds\":5"), "{body}");
    assert_eq!(begun.elapsed().as_secs(), 20);

    provision.always(Some(Reply::Fail(Reason::ClusterTimeout, "the API server is slow")));
    sleep(6 * SECOND).await;
    let begun = Instant::now();
    let (status, _, body) = send(&world, PODS, "ci:7:job3").await;
    assert!(status == 503 && body.contains("the API server is slow"), "{body}");
    assert!((18..=20).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());

    agent.kill();
    world.cut_tunnels();
    sleep(60 * SECOND).await;
    let (status, reason, body) = send(&world, PODS, "ci:7:job3").await;
    assert_eq!((status, reason.as_deref()), (503, Some("environment-not-ready")));
    assert!(body.contains("agent prod disconnected") || body.contains("is not connected"), "{body}");
    assert_eq!(world.metric("kas_managed_environments_total{result=\"not-ready\"}"), 3.0);
}

#[tokio::test(start_paused = true)]
async fn requests_of_one_job_share_an_attempt() {
    let (_gitlab, world, _agent, provision) = start(|_| {}).await;
    provision.next([Reply::After(SECOND)]);
    let all = futures_util::future::join_all((0..20).map(|_| status(&world, "ci:7:job3"))).await;
    assert!(all.iter().all(|status| *status == 200), "{all:?}");
    let requests = provision.take();
    assert_eq!(requests.iter().filter(|line| *line == ENSURE).count(), 1, "{requests:?}");
    assert_eq!(requests[0], ENSURE);

    // The caller whose request makes the attempt goes away: another one makes the next.
    sleep(601 * SECOND).await;
    provision.next([Reply::Never]);
    let gone = async {
        let first = tokio::time::timeout(SECOND, status(&world, "ci:7:job3")).await;
        assert!(first.is_err());
    };
    let later = async {
        sleep(SECOND / 2).await;
        status(&world, "ci:7:job3").await
    };
    let ((), status) = tokio::join!(gone, later);
    assert_eq!(status, 200);
    assert_eq!(provision.take(), [ENSURE, ENSURE, CLUSTER]);
}

fn disable(world: &World, text: &str) {
    world.kas.callers.kill_switch.set_file(file::parse(Path::new("disabled.yaml"), text).unwrap());
}

#[tokio::test(start_paused = true)]
async fn operator_disables_it_also_in_the_middle() {
    let (_gitlab, world, _agent, provision) = start(|_| {}).await;
    disable(&world, "rules: [{service: provision, reason: not now}]");
    let (status_code, reason, body) = send(&world, PODS, "ci:7:job3").await;
    assert_eq!((status_code, reason.as_deref()), (503, Some("disabled")));
    assert!(body.contains("not now"), "{body}");
    assert_eq!(provision.take(), [""; 0]);
    disable(&world, "rules: []");
    sleep(6 * SECOND).await;
    provision.next([Reply::Never]);
    let stop = async {
        sleep(SECOND).await;
        disable(&world, "rules: [{service: provision, reason: not now}]");
    };
    let begun = Instant::now();
    let (status_code, ()) = tokio::join!(status(&world, "ci:7:job3"), stop);
    assert_eq!((status_code, begun.elapsed().as_secs()), (503, 1));
    assert_eq!(world.metric("kas_managed_environments_total{result=\"disabled\"}"), 2.0);
}

#[tokio::test(start_paused = true)]
async fn job_that_ends_waits_no_longer() {
    let (gitlab, world, _agent, provision) =
        start(|config| config.agent.managed_resources.timeout = 600 * SECOND).await;
    provision.always(Some(Reply::Never));
    let finish = async {
        sleep(SECOND).await;
        gitlab.state().jobs.get_mut("job3").unwrap().finished = true;
    };
    let begun = Instant::now();
    let (status, ()) = tokio::join!(status(&world, "ci:7:job3"), finish);
    assert!(matches!(status, 401 | 403), "{status}");
    assert!(begun.elapsed() < 200 * SECOND, "{:?}", begun.elapsed());
    assert!(gitlab.requests(Endpoint::AllowedAgents) >= 2);
}

#[tokio::test(start_paused = true)]
async fn audit_log_names_job_user_and_environment() {
    let (_gitlab, world, _agent, provision) = start(|_| {}).await;
    let sink = audit(&world);
    assert_eq!(status(&world, "ci:7:job3").await, 200);
    provision.next([Reply::Fail(Reason::EnvironmentRefused, "no")]);
    assert_eq!(status(&world, "ci:7:job4").await, 424);
    let lines = lines(&world, &sink).await;
    let of_service: Vec<&Value> = lines.iter().filter(|line| line["service"] == "provision").collect();
    assert_eq!(of_service.len(), 2, "{lines:?}");
    for (line, (job, status, decision, reason)) in of_service.iter().zip([
        ("gitlab:ci_job:3", 200, "allow", Value::Null),
        ("gitlab:ci_job:4", 424, "allow", json!("environment-refused")),
    ]) {
        assert_eq!((&line["caller"], &line["user"]), (&json!(job), &json!("alice")));
        assert_eq!((&line["agent_id"], &line["verb"]), (&json!(7), &json!("post")));
        assert_eq!(line["path"], "/v1/projects/30/environments/live");
        assert_eq!(
            (&line["status"], &line["decision"], &line["reason"]),
            (&json!(status), &json!(decision), &reason)
        );
        assert!(line["events"].as_array().unwrap().contains(&json!("change")), "{line}");
        let same = |other: &&Value| other["request_id"] == line["request_id"];
        assert!(lines.iter().filter(same).count() >= 1);
    }
}

/// Two jobs of one environment begin at two replicas at the same time. agentk is asked twice, which is safe.
#[tokio::test(start_paused = true)]
async fn jobs_at_two_replicas_both_wait_for_the_objects() {
    let gitlab = StandIn::start().await;
    gitlab.state().add_agent(GitLabAgent::new(AGENT, "prod", AGENT_TOKEN));
    let fleet = TestFleet::with_gitlab(2, || client(&gitlab, &ApiRateLimit::default()), AGENT_TOKEN);
    for id in [3, 4] {
        add_job(&gitlab, id, managed(&json!({"ci_job": {}})));
    }
    let provision = Provision::default();
    // The tunnels are at the first replica, so that the second one asks through it.
    let _agent = fleet.replicas[0].agent(provision.services()).await;
    provision.always(Some(Reply::After(SECOND)));
    let [one, two] = [&fleet.replicas[0], &fleet.replicas[1]];
    let (first, second) = tokio::join!(status(one, "ci:7:job3"), status(two, "ci:7:job4"));
    assert_eq!((first, second), (200, 200));
    let requests = provision.take();
    assert_eq!(requests[..2], [ENSURE, ENSURE]);
    assert_eq!(requests[2..], [CLUSTER, CLUSTER]);
}

/// Callers of the identity file may use the service, for environments that have stopped.
#[tokio::test(start_paused = true)]
async fn caller_with_the_service_reaches_it() {
    let (provision, world) = (Provision::default(), World::new());
    let _agent = world.agent(provision.services()).await;
    let path = "/agents/prod/provision/v1/projects/30/environments/live";
    let delete = || {
        let mut request = world.request(path);
        *request.method_mut() = Method::DELETE;
        request
    };
    assert_eq!(world.send(delete()).await.status(), 200);
    assert_eq!(provision.take(), ["DELETE /v1/projects/30/environments/live"]);
    world.set_caller_rights("services: [kubernetes]");
    assert_eq!(world.send(delete()).await.status(), 403);
    world.set_caller_rights("services: [provision]");
    disable(&world, "rules: [{service: provision, reason: not now}]");
    assert_eq!(world.send(delete()).await.status(), 503);
    assert_eq!(provision.take(), [""; 0]);
}

/// The numbers of the fields of GitLab's messages are not published.
#[tokio::test(start_paused = true)]
async fn methods_of_gitlab_are_unimplemented_with_a_remedy() {
    let world = World::new();
    let token = format!("bearer {}", valid_token());
    for method in [
        "/gitlab.agent.managed_resources.rpc.Provisioner/GetEnvironmentTemplate",
        "/gitlab.agent.managed_resources.rpc.Provisioner/EnsureEnvironment",
        "/gitlab.agent.managed_resources.rpc.Provisioner/DeleteEnvironment",
    ] {
        let answer: Result<gateway::test_support::api_messages::Empty, Status> =
            call(&world, method, Some(&token), gateway::test_support::api_messages::Empty {}).await;
        let status = answer.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
        assert!(status.message().contains("environment.kubernetes.managed_resources.enabled"), "{status}");
    }
}
