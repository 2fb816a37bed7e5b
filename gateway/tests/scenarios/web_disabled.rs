//! The kill switch and what the page gets from kas itself.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::path::Path;

use access::kill_switch::file;
use agentk_core::Services;
use http::{Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kas_testing::world::text;

use crate::web::Browser;

/// The requests of the page that kas itself answers for a caller.
const LISTS: [&str; 5] = [
    "/web/v1/agents",
    "/web/v1/agents/prod",
    "/web/v1/environments",
    "/web/v1/audit",
    "/web/v1/requests/one",
];

fn set_rule(browser: &Browser, rule: &str) {
    let text = format!("rules: [{{{rule}, reason: incident 7}}]");
    let rules = file::parse(Path::new("disabled.yaml"), &text).unwrap();
    browser.world.kas.callers.kill_switch.set_file(rules);
}

async fn open_stream(browser: &Browser) -> Response<Incoming> {
    browser.send(Method::POST, "/web/v1/live", "{\"agents\": true}", &[("kas-web", "1")]).await
}

/// Checks that a response has the rule.
async fn assert_disabled(response: Response<Incoming>, what: &str) {
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "{what}");
    assert_eq!(response.headers()["kas-error"], "disabled", "{what}");
    let message = text(response).await;
    assert!(
        message.contains("the operator of kas has disabled") && message.contains("incident 7"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn rule_for_the_caller_stops_the_lists_and_not_the_login() {
    let mut browser = Browser::new();
    let _agent = browser.world.agent(Services::new()).await;
    browser.log_in().await;
    for rule in ["all: true", "caller: me", "address: 0.0.0.0/0", "address: '::/0'"] {
        set_rule(&browser, rule);
        let client_is_ipv4 = !rule.contains("::");
        for path in LISTS {
            let response = browser.get(path).await;
            if client_is_ipv4 {
                assert_disabled(response, path).await
            } else {
                assert_ne!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "{path}")
            }
        }
        for path in ["/web/v1/session", "/web/v1/issuers"] {
            assert_eq!(browser.get(path).await.status(), StatusCode::OK, "{rule} {path}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn rule_for_others_stops_nothing_and_one_for_an_agent_its_details() {
    let mut browser = Browser::new();
    let _agent = browser.world.agent(Services::new()).await;
    browser.log_in().await;
    for rule in ["caller: other", "service: graph", "agent: 2"] {
        set_rule(&browser, rule);
        for path in LISTS {
            let status = browser.get(path).await.status();
            assert_ne!(status, StatusCode::SERVICE_UNAVAILABLE, "{rule} {path}");
        }
    }
    set_rule(&browser, "agent: prod");
    assert_disabled(browser.get("/web/v1/agents/prod").await, "details").await;
    assert_eq!(browser.get("/web/v1/agents").await.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn rule_ends_the_stream_of_a_tab_and_the_next_one_gets_it() {
    for rule in ["all: true", "caller: me"] {
        let mut browser = Browser::new();
        browser.log_in().await;
        let mut stream = open_stream(&browser).await.into_body();
        let list = stream.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(list[0], 1, "the list of agents");
        set_rule(&browser, rule);
        let last = stream.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!((&last[..], stream.frame().await.is_none()), (&[5, 0, 0, 0, 0, 0][..], true), "{rule}");
        assert_disabled(open_stream(&browser).await, rule).await;
    }
}
