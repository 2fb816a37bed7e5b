//! The audit log and the path of a request on the web page: what a reader sees, of which replicas.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{path::Path, time::Duration};

use access::{
    Identity,
    kill_switch::file,
    token::{self, Holder, TokenHash},
};
use http::{Request, StatusCode};
use kas_testing::{
    fleet::{TestFleet, secret},
    world::{RunningAgent, World, text},
};
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::time::sleep;
use tunnel::Body;

use crate::{
    audit::audit,
    peers::cluster,
    web::{Browser, with_page},
};

/// Replicas with the callers `me` and `ops`, of which `ops` may read about all, and an agent at the second replica.
struct Fleet {
    fleet: TestFleet,
    ops: SecretString,
    _agent: RunningAgent,
}

impl Fleet {
    async fn new() -> Self {
        let fleet = TestFleet::with(2, with_page);
        let ops = token::new(Holder::Caller);
        for replica in &fleet.replicas {
            let (me, ops) = (TokenHash::of(&replica.caller_token), TokenHash::of(&ops));
            replica.set_callers(&format!(
                "{{name: me, tokens: ['{me}'], agents: [prod], services: ['*']}}, \
                 {{name: ops, tokens: ['{ops}'], agents: [prod], services: ['*'], audit: true}}"
            ));
            drop(audit(replica));
        }
        let agent = fleet.agent(1, cluster("here")).await;
        Self { fleet, ops, _agent: agent }
    }

    /// Returns a caller, to send requests to a replica.
    fn caller(&self, index: usize, is_ops: bool) -> World {
        let mut world = self.fleet.replicas[index].clone();
        if is_ops {
            world.caller_token = self.ops.clone();
        }
        world
    }

    /// Returns a browser of a caller at a replica.
    async fn browser(&self, index: usize, is_ops: bool) -> Browser {
        let mut browser = Browser::of(self.caller(index, is_ops));
        browser.log_in().await;
        browser
    }
}

/// Sends a request, and waits until its line is written.
async fn send(world: &World, method: &str, path: &str, id: &str) -> StatusCode {
    let request: Request<Body> = world.request(path);
    let (mut head, body) = request.into_parts();
    head.method = method.parse().unwrap();
    head.headers.insert("x-request-id", id.parse().unwrap());
    let response = world.send(Request::from_parts(head, body)).await;
    let status = response.status();
    text(response).await;
    sleep(Duration::from_millis(10)).await;
    status
}

async fn get(browser: &Browser, path: &str) -> Value {
    let response = browser.get(path).await;
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    serde_json::from_str(&text(response).await).unwrap()
}

fn ids(page: &Value) -> Vec<&str> {
    page["lines"].as_array().unwrap().iter().map(|line| line["request_id"].as_str().unwrap()).collect()
}

const PODS: &str = "/agents/prod/kubernetes/api/v1/namespaces/a/pods/b";

#[tokio::test(start_paused = true)]
async fn caller_reads_its_own_lines_and_an_auditor_all() {
    let fleet = Fleet::new().await;
    send(&fleet.caller(0, false), "DELETE", PODS, "one").await;
    send(&fleet.caller(1, true), "DELETE", PODS, "two").await;
    send(&fleet.caller(1, false), "GET", "/agents/none/kubernetes/api", "three").await;
    send(&fleet.caller(0, false), "GET", PODS, "no-line").await;
    // Of a stranger.
    let mut stranger = fleet.caller(0, false);
    stranger.caller_token = "unknown".into();
    send(&stranger, "DELETE", PODS, "four").await;

    let mine = fleet.browser(0, false).await;
    let page = get(&mine, "/web/v1/audit").await;
    assert_eq!(ids(&page), ["three", "one"], "{page}");
    assert_eq!(
        (&page["enabled"], &page["auditor"], &page["has_more"]),
        (&json!(true), &json!(false), &json!(false))
    );
    assert_eq!(page["replicas"].as_array().unwrap().len(), 2);
    assert_eq!(ids(&get(&mine, "/web/v1/audit?caller=ops").await), [""; 0]);
    let ops = fleet.browser(1, true).await;
    assert_eq!(ids(&get(&ops, "/web/v1/audit").await), ["four", "three", "two", "one"]);
    for (query, expected) in [
        ("caller=ops", vec!["two"]),
        ("verb=delete", vec!["two", "one"]),
        ("agent=prod", vec!["two", "one"]),
        ("result=deny", vec!["four", "three"]),
        ("limit=1", vec!["four"]),
        ("to=2001-01-01T00:00:00Z", vec![]),
    ] {
        let page = get(&ops, &format!("/web/v1/audit?{query}")).await;
        assert_eq!(ids(&page), expected, "{query}");
        assert_eq!(page["has_more"], query == "limit=1");
    }
    assert_eq!(ops.get("/web/v1/audit?limit=many").await.status(), 400);
    assert_eq!(ops.page(http::Method::POST, "/web/v1/audit").await.status(), 405);
}

#[tokio::test(start_paused = true)]
async fn path_of_a_request_names_both_replicas_and_the_tunnel() {
    let fleet = Fleet::new().await;
    assert_eq!(send(&fleet.caller(0, false), "GET", PODS, "near-1").await, 200);
    assert_eq!(send(&fleet.caller(1, true), "GET", PODS, "near-1").await, 200);
    let mine = fleet.browser(1, false).await;
    let found = get(&mine, "/web/v1/requests/near-1").await;
    let [request] = &found["requests"].as_array().unwrap()[..] else { panic!("{found}") };
    let (first, second) = (json!(fleet.fleet.id(0)), json!(fleet.fleet.id(1)));
    assert_eq!((&request["replica"], &request["holder"], &found["replica"]), (&first, &second, &second));
    assert_eq!(
        ["caller", "agent", "service", "method"].map(|key| request[key].as_str().unwrap()),
        ["me", "prod", "kubernetes", "GET"]
    );
    let tunnels = fleet.fleet.replicas[1].kas.agents.tunnels.views();
    let tunnels: Vec<Value> = tunnels.iter().map(|view| json!(view.tunnel())).collect();
    assert!(tunnels.contains(&request["tunnel"]["id"]), "{request}");
    assert!(
        request["tunnel"]["instance"].is_string() && request["timing"]["upstream_ms"].is_number(),
        "{request}"
    );

    let ops = fleet.browser(0, true).await;
    let found = get(&ops, "/web/v1/requests/near-1").await;
    let callers: Vec<_> =
        found["requests"].as_array().unwrap().iter().map(|request| request["caller"].as_str()).collect();
    assert_eq!(callers, [Some("ops"), Some("me")]);
    assert_eq!(found["requests"][0]["replica"], found["requests"][0]["holder"]);

    // A request that kas has refused has no tunnel, and its reader has the id from the error.
    assert_eq!(send(&fleet.caller(0, false), "GET", "/agents/none/kubernetes/api", "refused").await, 404);
    let found = get(&mine, "/web/v1/requests/refused").await;
    assert_eq!(
        (&found["requests"][0]["status"], &found["requests"][0]["holder"]),
        (&json!(404), &Value::Null)
    );
    assert!(found["requests"][0]["reason"].is_string(), "{found}");
    assert_eq!(get(&mine, "/web/v1/requests/unknown").await["requests"], json!([]));
    assert_eq!(mine.get(&format!("/web/v1/requests/{}", "x".repeat(65))).await.status(), 400);
}

#[tokio::test(start_paused = true)]
async fn replica_that_does_not_answer_is_named() {
    let fleet = Fleet::new().await;
    send(&fleet.caller(0, false), "DELETE", PODS, "one").await;
    let mine = fleet.browser(0, false).await;
    fleet.fleet.freeze(1);
    let page = get(&mine, "/web/v1/audit").await;
    assert_eq!(ids(&page), ["one"]);
    assert_eq!(page["missing"][0]["replica"], json!(fleet.fleet.id(1)));
    let found = get(&mine, "/web/v1/requests/one").await;
    assert_eq!(
        (&found["requests"][0]["tunnel"], &found["missing"][0]["replica"]),
        (&Value::Null, &json!(fleet.fleet.id(1)))
    );
}

#[tokio::test(start_paused = true)]
async fn reader_that_is_disabled_or_revoked_reads_nothing() {
    let fleet = Fleet::new().await;
    send(&fleet.caller(0, false), "DELETE", PODS, "one").await;
    let mine = fleet.browser(0, false).await;
    let switch = &fleet.fleet.replicas[0].kas.callers.kill_switch;
    switch.set_file(
        file::parse(Path::new("disabled.yaml"), "rules: [{caller: me, reason: incident 7}]").unwrap(),
    );
    for path in ["/web/v1/audit", "/web/v1/requests/one"] {
        let refused = mine.get(path).await;
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()["kas-error"]),
            (503, &"disabled".parse().unwrap())
        );
        assert!(text(refused).await.contains("incident 7"));
    }
    switch.set_file(Vec::new());
    assert_eq!(ids(&get(&mine, "/web/v1/audit").await), ["one"]);
    let nobody = "agents: [{id: 1, name: prod, tokens: []}]\ncallers: []";
    fleet.fleet.replicas[0]
        .kas
        .identities
        .replace(Identity::parse(Path::new("identity.yaml"), nobody).unwrap());
    for path in ["/web/v1/audit", "/web/v1/requests/one"] {
        assert_eq!(mine.get(path).await.status(), 401);
    }
}

#[tokio::test(start_paused = true)]
async fn replica_with_another_secret_is_not_believed() {
    let fleet = TestFleet::with_secrets(&[Some(secret(1)), Some(secret(2))], with_page);
    let mut browser = Browser::of(fleet.replicas[0].clone());
    browser.log_in().await;
    for path in ["/web/v1/audit", "/web/v1/requests/one"] {
        let page = get(&browser, path).await;
        assert!(page["missing"][0]["error"].as_str().unwrap().contains("do not trust one another"), "{page}");
    }
}

/// Without the page, nothing is kept.
#[tokio::test(start_paused = true)]
async fn replica_without_the_page_keeps_nothing() {
    let fleet = Fleet::new().await;
    assert!(fleet.fleet.replicas[0].kas.callers.observers.features.len() == 1);
    assert!(World::new().kas.callers.observers.features.is_empty());
    let mut alone = Browser::new();
    alone.log_in().await;
    let page = get(&alone, "/web/v1/audit").await;
    assert_eq!(
        (&page["enabled"], &page["lines"]),
        (&json!(false), &json!([])),
        "the page says that there is no audit log"
    );
}
