//! A page of GitLab that follows the graph and the events of an agent, in the session of its user, and pages that have a token.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::time::Duration;

use agentk_core::Services;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use gateway::config::Config;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use kas_gitlab::ApiRateLimit;
use kas_testing::{
    gitlab::{AGENT, world_with},
    world::{RunningAgent, World, text},
};
use serde_json::json;
use testing::gitlab::{AgentAccess, Membership, StandIn, User};
use tokio::time::timeout;
use tunnel::Body;

const ORIGIN: &str = "https://gitlab.example.com";
const COOKIE: (&str, &str) = ("cookie", "_gitlab_kas=cookie%2B%2F%3D");
const IN_HEADERS: [(&str, &str); 3] = [COOKIE, ("gitlab-agent-id", "7"), ("x-csrf-token", "csrf")];
const IN_QUERY: &str = "gitlab-agent-id=7&gitlab-csrf-token=csrf";
/// The streams of an agent that a page can follow: that of agentk, and that of kas.
const STREAMS: [&str; 2] = ["graph/v1/watch?groups=all", "events/v1/events?watch"];

/// Answers with a server-sent event about the request, and nothing more.
async fn follow(request: Request<Body>) -> Response<Body> {
    let headers: String =
        request.headers().iter().map(|(name, value)| format!(" {name}={value:?}")).collect();
    let event = Bytes::from(format!("data: {}{headers}\n\n", request.uri()));
    let frames = stream::once(async { Ok::<_, std::io::Error>(Frame::data(event)) }).chain(stream::pending());
    let response = Response::builder().header("content-type", "text/event-stream");
    response.body(Body::new(StreamBody::new(Box::pin(frames)))).unwrap()
}

/// A GitLab at `ORIGIN`, and a user with a session and a token, who is a developer.
async fn gitlab() -> (StandIn, World, RunningAgent) {
    let external_url = |config: &mut Config| {
        let section = json!({
            "address": "http://gitlab", "authentication_secret_file": "secret", "external_url": ORIGIN,
        });
        config.gitlab = Some(serde_json::from_value(section).unwrap());
    };
    let services = Services::new().with_fn("graph", follow);
    let (gitlab, world, agent) = world_with(&ApiRateLimit::default(), external_url, services).await;
    let projects = vec![Membership { id: 30, roles: vec!["developer".into()] }];
    gitlab.state().users.push(
        User::new(5, "alice")
            .with_token("glpat-alice")
            .with_session("cookie+/=", "csrf")
            .with_access(AGENT, AgentAccess::User { projects, groups: Vec::new() }),
    );
    (gitlab, world, agent)
}

async fn get(world: &World, path: &str, headers: &[(&str, &str)]) -> Response<Incoming> {
    let request = Request::get(format!("/agents/{path}")).header("host", "kas");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    world.send(request.body(Body::empty()).unwrap()).await
}

async fn first_part(body: &mut Incoming) -> String {
    let frame = body.frame().await.unwrap().unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

/// `fetch` sets headers, and `EventSource` cannot.
#[tokio::test(start_paused = true)]
async fn page_of_gitlab_follows_an_agent_in_the_session_of_its_user() {
    let (gitlab, world, _agent) = gitlab().await;
    for path in STREAMS {
        let with_query = format!("{path}&{IN_QUERY}");
        for (path, headers) in [(path, &IN_HEADERS[..]), (&with_query, &[COOKIE])] {
            let headers = [headers, &[("origin", ORIGIN), ("accept", "text/event-stream")]].concat();
            let mut response = get(&world, &format!("{AGENT}/{path}"), &headers).await;
            assert_eq!(response.status(), 200, "{path}");
            assert_eq!(response.headers()["content-type"], "text/event-stream", "{path}");
            assert_eq!(response.headers()["access-control-allow-origin"], ORIGIN);
            assert_eq!(response.headers()["access-control-allow-credentials"], "true");
            let part = first_part(response.body_mut()).await;
            // The event of this stream has the request as the agent received it.
            if path.starts_with("graph") {
                for secret in ["csrf", "_gitlab_kas", "gitlab-agent-id"] {
                    assert!(!part.contains(secret), "{path}: {part}");
                }
                assert!(part.starts_with("data: /v1/watch?groups=all "), "{part}");
                assert!(part.contains("impersonate-user=\"gitlab:user:alice\""), "{part}");
            }
        }
    }
    gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn page_without_a_part_of_the_session_follows_nothing() {
    let (_gitlab, world, _agent) = gitlab().await;
    for path in STREAMS {
        for (agent, headers, origin, expected) in [
            (7, &IN_HEADERS[..2], ORIGIN, 401),
            (7, &[COOKIE, ("x-csrf-token", "csrf")], ORIGIN, 401),
            (7, &[COOKIE, IN_HEADERS[1], ("x-csrf-token", "other")], ORIGIN, 401),
            (7, &IN_HEADERS[1..], ORIGIN, 401),
            (8, &IN_HEADERS, ORIGIN, 403),
            (7, &IN_HEADERS, "https://gitlab.example.com.evil.example", 403),
            (7, &IN_HEADERS, "null", 403),
        ] {
            let headers = [headers, &[("origin", origin)]].concat();
            let response = get(&world, &format!("{agent}/{path}"), &headers).await;
            assert_eq!(response.status(), expected, "{agent} {path} {headers:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn streams_of_a_page_end_with_its_session() {
    let (gitlab, world, _agent) = gitlab().await;
    let mut streams = Vec::new();
    for path in STREAMS {
        let mut response = get(&world, &format!("{AGENT}/{path}"), &IN_HEADERS).await;
        first_part(response.body_mut()).await;
        streams.push(response.into_body());
    }
    gitlab.state().users.clear();
    for stream in &mut streams {
        let rest = async { while let Some(Ok(_)) = stream.frame().await {} };
        timeout(Duration::from_secs(130), rest).await.expect("the stream ends within two minutes");
    }
}

/// agentk and kas accept no upgrade at these services, and answer the request as any other one.
#[tokio::test(start_paused = true)]
async fn token_in_the_subprotocol_authenticates_at_each_service() {
    let (_gitlab, world, _agent) = gitlab().await;
    let subprotocol = |token: &str| {
        format!("base64url.bearer.authorization.k8s.io.{}, other", BASE64_URL_SAFE_NO_PAD.encode(token))
    };
    for (token, expected) in [("pat:7:glpat-alice", 200), ("pat:7:glpat-other", 401)] {
        for path in STREAMS {
            let headers = [
                ("connection", "Upgrade"),
                ("upgrade", "websocket"),
                ("sec-websocket-version", "13"),
                ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
                ("sec-websocket-protocol", &subprotocol(token)),
                ("origin", ORIGIN),
            ];
            let mut response = get(&world, &format!("{AGENT}/{path}"), &headers).await;
            assert_eq!(response.status(), expected, "{path} {token}");
            if expected == 200 {
                let part = first_part(response.body_mut()).await;
                assert!(!part.contains("base64url") && !part.contains("glpat"), "{part}");
            } else {
                assert!(text(response).await.contains("Unauthorized"));
            }
        }
    }
}
