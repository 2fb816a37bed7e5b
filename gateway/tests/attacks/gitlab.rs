//! Callers that use, steal or forge credentials of GitLab: jobs, users, browser sessions, and GitLab's own token.

use std::time::Duration;

use futures_util::future::join_all;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kas_gitlab::ApiRateLimit;
use kas_testing::{
    gitlab::{AGENT, world_with},
    internal_api::jwt,
    world::World,
};
use serde_json::json;
use testing::gitlab::{AgentAccess, Endpoint, Fault, Job, StandIn, User};
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    cluster::Seen,
    http1::{exchange, status},
};

const MINUTE: Duration = Duration::from_secs(60);
const PAGE: &str = "https://gitlab.example.com";
const SESSION: &str = "Cookie: _gitlab_kas=cookie\r\nGitlab-Agent-Id: 7\r\nX-Csrf-Token: csrf\r\n";

async fn attacked() -> (StandIn, World, Seen, impl Sized) {
    attacked_with(&ApiRateLimit::default()).await
}

async fn attacked_with(limit: &ApiRateLimit) -> (StandIn, World, Seen, impl Sized + use<>) {
    let seen = Seen::default();
    let edit = |config: &mut gateway::config::Config| {
        config.agent.kubernetes_api.allowed_origins = vec![PAGE.parse().unwrap()];
        config.agent.kubernetes_api.listen.trusted_proxies = vec!["0.0.0.0/0".parse().unwrap()];
    };
    let (gitlab, world, agent) = world_with(limit, edit, seen.services()).await;
    let mut state = gitlab.state();
    state.add_job("job", Job::new(3, 30).with_agent(AGENT, json!({"access_as": {"ci_job": {}}})));
    state.add_job("agent", Job::new(4, 30).with_agent(AGENT, json!({})));
    state.users.push(
        User::new(5, "alice")
            .with_token("glpat-alice")
            .with_session("cookie", "csrf")
            .with_access(AGENT, AgentAccess::User { projects: Vec::new(), groups: Vec::new() }),
    );
    drop(state);
    (gitlab, world, seen, agent)
}

fn request(lines: &str) -> String {
    format!("GET /k8s-proxy/who HTTP/1.1\r\nHost: kas\r\n{lines}\r\n")
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

async fn send(world: &World, lines: &str) -> String {
    exchange(world, request(lines)).await
}

async fn watch(world: &World, token: &str) -> Incoming {
    let request = http::Request::get("/k8s-proxy/watch?watch=1").header("host", "kas");
    let request = request.header("authorization", format!("Bearer {token}"));
    let mut watch = world.send(request.body(tunnel::Body::empty()).unwrap()).await.into_body();
    watch.frame().await.unwrap().unwrap();
    watch
}

#[tokio::test(start_paused = true)]
async fn attack_31_job_and_user_cannot_choose_their_identity() {
    let (_gitlab, world, seen, _agent) = attacked().await;
    for credential in [bearer("ci:7:job"), bearer("pat:7:glpat-alice"), SESSION.to_owned()] {
        for line in [
            "Impersonate-User: root",
            "impersonate-user: root",
            "IMPERSONATE-GROUP: system:masters",
            "Impersonate-Uid: 0",
            "Impersonate-Extra-agent.gitlab.com%2fid: 1",
            "Impersonate_User: root",
            "Connection: Impersonate-User",
        ] {
            let answer = send(&world, &format!("{credential}{line}\r\n")).await;
            assert_eq!(status(&answer), 400, "{line}: {answer}");
        }
    }
    assert_eq!(seen.all(), Vec::<String>::new());
    let answer = send(&world, &format!("{}Impersonate-User: bob\r\n", bearer("ci:7:agent"))).await;
    assert!(answer.contains("impersonate-user: \"bob\""), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn attack_31_credentials_of_gitlab_do_not_reach_the_cluster() {
    let (_gitlab, world, _seen, _agent) = attacked().await;
    let target = "/k8s-proxy/who?gitlab-agent-id=7&gitlab-csrf-token=csrf&gitlab%2Dcsrf-token=csrf&x=1";
    let with_query = format!("GET {target} HTTP/1.1\r\nHost: kas\r\nCookie: _gitlab_kas=cookie\r\n\r\n");
    assert_eq!(status(&exchange(&world, with_query).await), 401, "two CSRF tokens");
    for (target, lines) in [
        ("/k8s-proxy/who?gitlab-agent-id=7&x=1&gitlab%2Dcsrf-token=csrf", "Cookie: _gitlab_kas=cookie\r\n"),
        ("/k8s-proxy/who?x=1", SESSION),
        ("/k8s-proxy/who?gitlab-csrf-token=csrf&x=1", &*bearer("ci:7:job")),
        // The token names the agent; the header belongs to sessions.
        ("/k8s-proxy/who?gitlab-agent-id=8&x=1", &*format!("{}Gitlab-Agent-Id: 8\r\n", bearer("ci:7:job"))),
    ] {
        let answer = exchange(&world, format!("GET {target} HTTP/1.1\r\nHost: kas\r\n{lines}\r\n")).await;
        assert_eq!(status(&answer), 200, "{target}: {answer}");
        assert!(answer.contains("GET /who?x=1\n"), "{answer}");
        for secret in ["csrf", "_gitlab_kas", "gitlab-agent-id", "ci:7"] {
            assert!(!answer.contains(secret), "{secret}: {answer}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn attack_32_malformed_credentials_do_not_reach_gitlab() {
    let (gitlab, world, seen, _agent) = attacked().await;
    let hundred = bearer("ci:7:job").repeat(100);
    let huge_cookie = format!("Cookie: _gitlab_kas={}\r\n", "x".repeat(10 << 20));
    let long_cookie =
        format!("Cookie: _gitlab_kas={}\r\nGitlab-Agent-Id: 7\r\nX-Csrf-Token: csrf\r\n", "x".repeat(40_000));
    for lines in [
        hundred,
        huge_cookie,
        long_cookie,
        bearer(&format!("ci:7:{}", "x".repeat(40_000))),
        format!("{}{}", bearer("ci:7:job"), bearer("ci:7:job")),
        bearer("ci:7:job\njob"),
        bearer("ci:7:job\r job"),
        bearer("ci:7:job job"),
        bearer("ci:7:job\tjob"),
        bearer("ci:7:\u{e9}"),
        bearer("ci:7:"),
        bearer("ci::job"),
        bearer("ci:07:job"),
        bearer("ci:-7:job"),
        bearer("ci:7"),
        bearer("CI:7:job"),
        bearer("session:7:cookie"),
        "Cookie: _gitlab_kas=cookie\r\nGitlab-Agent-Id: 7\r\n".into(),
        "Cookie: _gitlab_kas=cookie\r\nX-Csrf-Token: csrf\r\n".into(),
        "Cookie: _gitlab_kas=cookie\r\nGitlab-Agent-Id: 7, 8\r\nX-Csrf-Token: csrf\r\n".into(),
        "Cookie: _gitlab_kas=%zz\r\nGitlab-Agent-Id: 7\r\nX-Csrf-Token: csrf\r\n".into(),
        format!("{SESSION}X-Csrf-Token: csrf\r\n"),
        format!("{SESSION}Gitlab-Agent-Id: 7\r\n"),
        // A credential in the header replaces the session, also if it is bad.
        format!("{SESSION}{}", bearer("x")),
    ] {
        let answer = send(&world, &lines).await;
        let shown = &lines[..lines.len().min(100)];
        assert!(matches!(status(&answer), 400 | 401 | 431), "{shown}: {answer}");
    }
    assert_eq!(gitlab.requests(Endpoint::AllowedAgents) + gitlab.requests(Endpoint::AuthorizeProxyUser), 0);
    assert_eq!(seen.all(), Vec::<String>::new());
    assert_eq!(status(&send(&world, SESSION).await), 200);
}

#[tokio::test(start_paused = true)]
async fn attack_32_credential_of_one_kind_is_none_of_another() {
    let (_gitlab, world, seen, _agent) = attacked().await;
    let caller = secrecy::ExposeSecret::expose_secret(&world.caller_token).to_owned();
    for lines in [
        bearer("pat:7:job"),
        bearer("ci:7:glpat-alice"),
        bearer("pat:7:cookie"),
        bearer("job"),
        bearer("glpat-alice"),
        "Cookie: _gitlab_kas=glpat-alice\r\nGitlab-Agent-Id: 7\r\nX-Csrf-Token: csrf\r\n".into(),
        format!("Cookie: _gitlab_kas={caller}\r\nGitlab-Agent-Id: 7\r\nX-Csrf-Token: csrf\r\n"),
        bearer("ci:7:glagent-standin"),
    ] {
        // Also after the real one is in the cache.
        assert_eq!(status(&send(&world, &bearer("ci:7:job")).await), 200);
        assert_eq!(status(&send(&world, &lines).await), 401, "{lines}");
    }
    assert!(seen.all().iter().all(|request| request.contains("/who")), "{:?}", seen.all());
}

#[tokio::test(start_paused = true)]
async fn attack_33_credential_for_one_agent_does_not_reach_another() {
    let (_gitlab, world, seen, _agent) = attacked().await;
    for (path, token) in [
        ("/agents/8/kubernetes/who", "ci:7:job"),
        ("/agents/7/kubernetes/who", "ci:8:job"),
        ("/agents/prod/kubernetes/who", "ci:8:job"),
        ("/agents/other/kubernetes/who", "ci:7:job"),
        ("/agents/agent-7/kubernetes/who", "ci:7:job"),
        ("/agents/07/kubernetes/who", "ci:7:job"),
        ("/agents/8/kubernetes/who", "pat:7:glpat-alice"),
        ("/k8s-proxy/who", "ci:8:job"),
    ] {
        let bytes = format!("GET {path} HTTP/1.1\r\nHost: kas\r\n{}\r\n", bearer(token));
        assert_eq!(status(&exchange(&world, bytes).await), 403, "{path} {token}");
    }
    // The identity file has another agent 7: those of GitLab must not reach it.
    let file = "agents: [{id: 7, name: internal, tokens: []}]";
    world.kas.identities.replace(kas_testing::world::parse(file));
    for token in ["ci:7:job", "ci:7:agent", "pat:7:glpat-alice"] {
        assert_eq!(status(&send(&world, &bearer(token)).await), 403, "{token}");
    }
    assert_eq!(seen.all(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn attack_33_answer_about_another_agent_is_no_permission() {
    let (gitlab, world, seen, _agent) = attacked().await;
    gitlab.state().wrong_agent = Some(8);
    for lines in [bearer("pat:7:glpat-alice"), SESSION.to_owned()] {
        assert_eq!(status(&send(&world, &lines).await), 503, "{lines}");
    }
    assert_eq!(seen.all(), Vec::<String>::new());
    gitlab.state().wrong_agent = None;
    sleep(MINUTE).await;
    assert_eq!(status(&send(&world, SESSION).await), 200);
}

#[tokio::test(start_paused = true)]
async fn attack_34_streams_of_a_revoked_job_end() {
    let (gitlab, world, _seen, _agent) = attacked().await;
    let (mut of_job, mut of_user) =
        (watch(&world, "ci:7:job").await, watch(&world, "pat:7:glpat-alice").await);
    gitlab.set_fault(Fault::Down);
    let first = timeout(4 * MINUTE, of_job.frame()).await;
    assert!(first.is_err(), "the streams go on while GitLab is down for some minutes");
    gitlab.set_fault(None);
    gitlab.state().jobs.clear();
    let end = timeout(3 * MINUTE, of_job.frame()).await.expect("it goes on");
    assert!(matches!(end, Some(Err(_))), "{end:?}");
    assert!(timeout(3 * MINUTE, of_user.frame()).await.is_err(), "the stream of another caller goes on");
    gitlab.state().users[0].access.insert(AGENT, AgentAccess::Agent);
    let end = timeout(3 * MINUTE, of_user.frame()).await.expect("it goes on with its old identity");
    assert!(matches!(end, Some(Err(_))), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn attack_35_error_is_no_permission_and_a_refusal_does_not_stay() {
    let (gitlab, world, seen, _agent) = attacked().await;
    for fault in [Fault::Down, Fault::Garbage, Fault::Status(http::StatusCode::FOUND), Fault::SwitchedOff] {
        gitlab.set_fault(fault.clone());
        for _ in 0..2 {
            for token in ["ci:7:job", "pat:7:glpat-alice"] {
                let answer = send(&world, &bearer(token)).await;
                assert!(matches!(status(&answer), 401 | 404 | 503), "{fault:?} {token}: {answer}");
            }
        }
        sleep(MINUTE).await;
    }
    assert_eq!(seen.all(), Vec::<String>::new());
    gitlab.set_fault(None);
    for token in ["ci:7:job", "pat:7:glpat-alice"] {
        assert_eq!(status(&send(&world, &bearer(token)).await), 200, "{token}");
    }
}

#[tokio::test(start_paused = true)]
async fn attack_35_many_requests_with_one_token_are_one_lookup() {
    let (gitlab, world, _seen, _agent) = attacked().await;
    gitlab.set_fault(Fault::Slow(Duration::from_secs(2)));
    for (token, expected) in [("ci:7:job", 200), ("ci:7:unknown", 401)] {
        let before = gitlab.requests(Endpoint::AllowedAgents);
        let requests = (0..200).map(|_| {
            let (world, lines) = (world.clone(), bearer(token));
            async move { status(&send(&world, &lines).await) }
        });
        assert_eq!(join_all(requests).await, vec![expected; 200]);
        assert_eq!(gitlab.requests(Endpoint::AllowedAgents), before + 1, "{token}");
    }
    gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn attack_37_forged_token_of_gitlab_is_refused() {
    let (_gitlab, world, seen, _agent) = attacked().await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let hs256 = json!({"alg": "HS256", "typ": "JWT"});
    let good = json!({"aud": "gitlab-kas", "project_id": 30, "exp": now + 60});
    let with = |key: &str, value: serde_json::Value| {
        let mut claims = good.clone();
        claims[key] = value;
        jwt(&[1; 32], &hs256, &claims)
    };
    let valid = jwt(&[1; 32], &hs256, &good);
    let unsigned = format!("{}.", &valid[..valid.rfind('.').unwrap()]);
    let query = |token: &str| {
        let path = "/agents/7/prometheus/api/v1/query?query=up";
        format!("GET {path} HTTP/1.1\r\nHost: kas\r\n{}\r\n", bearer(token))
    };
    for token in [
        jwt(&[2; 32], &hs256, &good),
        jwt(&[1; 32], &json!({"alg": "none"}), &good),
        jwt(&[1; 32], &json!({"alg": "RS256"}), &good),
        jwt(&[1; 32], &json!({"alg": "HS256", "crit": ["b64"]}), &good),
        jwt(&[1; 32], &json!({"alg": "HS256", "kid": "/dev/null"}), &json!({"aud": "gitlab"})),
        unsigned,
        with("aud", json!("gitlab")),
        with("aud", json!([])),
        with("exp", json!(now - 1)),
        with("exp", json!(now + 3600)),
        with("exp", json!(null)),
        with("nbf", json!(now + 60)),
        with("project_id", json!("30")),
        format!("{valid}x"),
        format!("x{valid}"),
    ] {
        let answer = exchange(&world, query(&token)).await;
        assert_eq!(status(&answer), 401, "{token}: {answer}");
        assert!(answer.to_lowercase().contains("gitlab-unauthorized: true"), "{answer}");
    }
    // The valid one is for queries alone.
    for path in ["/agents/7/kubernetes/who", "/k8s-proxy/who", "/agents/7/gitops/x"] {
        let answer =
            exchange(&world, format!("GET {path} HTTP/1.1\r\nHost: kas\r\n{}\r\n", bearer(&valid))).await;
        assert_eq!(status(&answer), 403, "{path}: {answer}");
    }
    assert_eq!(seen.all(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn attack_38_foreign_page_cannot_use_a_session() {
    let (gitlab, world, seen, _agent) = attacked().await;
    let cookie = "Cookie: _gitlab_kas=cookie\r\nGitlab-Agent-Id: 7\r\n";
    let websocket = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for origin in ["https://evil.example", "null", "https://gitlab.example.com.evil.example"] {
        for lines in ["", websocket] {
            let answer = send(&world, &format!("{SESSION}{lines}Origin: {origin}\r\n")).await;
            assert_eq!(status(&answer), 403, "{origin}: {answer}");
        }
    }
    assert_eq!(gitlab.requests(Endpoint::AuthorizeProxyUser), 0, "refused before GitLab is asked");
    // Browsers send the cookie with requests of forms and images, which have neither an Origin nor a CSRF token.
    for lines in ["", "X-Csrf-Token: \r\n", "X-Csrf-Token: other\r\n"] {
        let answer = send(&world, &format!("{cookie}{lines}")).await;
        assert_eq!(status(&answer), 401, "{lines}: {answer}");
    }
    assert_eq!(seen.all(), Vec::<String>::new());
    let answer = send(&world, &format!("{SESSION}Origin: {PAGE}\r\n")).await;
    assert_eq!(status(&answer), 200, "{answer}");
    assert!(answer.contains("access-control-allow-credentials: true"), "{answer}");
}

/// Sends a request of a client behind a trusted proxy. Returns its status.
async fn from(world: &World, client: &str, token: &str) -> u16 {
    let answer =
        send(world, &format!("{}X-Forwarded-For: {client}\r\nConnection: close\r\n", bearer(token))).await;
    assert_eq!(
        status(&answer) == 429,
        answer.contains("unknown_credentials_per_address_per_minute"),
        "{answer}"
    );
    assert!(status(&answer) != 429 || answer.to_lowercase().contains("retry-after: 1\r\n"), "{answer}");
    status(&answer)
}

#[tokio::test(start_paused = true)]
async fn attack_75_invented_tokens_of_one_address_are_limited() {
    let (gitlab, world, _seen, _agent) = attacked().await;
    let (nat, other) = ("198.51.100.7", "198.51.100.8");
    for id in 0..100 {
        gitlab.state().add_job(&format!("job-{id}"), Job::new(1000 + id, 30).with_agent(AGENT, json!({})));
        assert_eq!(
            from(&world, nat, &format!("ci:7:job-{id}")).await,
            200,
            "good credentials are not limited"
        );
    }
    let lookups = || gitlab.requests(Endpoint::AllowedAgents) + gitlab.requests(Endpoint::AuthorizeProxyUser);
    let before = lookups();
    for id in 0..400 {
        let kind = if id % 2 == 0 { "pat" } else { "ci" };
        let expected = if id < 60 { 401 } else { 429 };
        assert_eq!(from(&world, nat, &format!("{kind}:7:invented-{id}")).await, expected, "{id}");
    }
    assert_eq!(lookups(), before + 60);
    assert_eq!(world.limit_count("unknown-credentials-per-address"), 340.0);
    assert_eq!(from(&world, nat, "plain").await, 429);
    assert_eq!(from(&world, nat, "ci:7:job-1").await, 200, "GitLab has confirmed this one");
    assert_eq!(from(&world, nat, "ci:7:job").await, 429, "this one is unknown as yet");
    assert_eq!(from(&world, other, "ci:7:agent").await, 200, "another address");
    sleep(Duration::from_secs(2)).await;
    assert_eq!(from(&world, nat, "ci:7:job").await, 200);
    gitlab.assert_no_violations();
}

/// Sends 20 requests per second with invented tokens, each from another address.
fn strangers(world: &World) -> AbortOnDropHandle<()> {
    let world = world.clone();
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut ticks = interval(Duration::from_millis(50));
        for id in 0_u32.. {
            ticks.tick().await;
            let world = world.clone();
            tokio::spawn(async move {
                let client = std::net::Ipv4Addr::from(0x0A00_0000 | id);
                let lines = format!(
                    "{}X-Forwarded-For: {client}\r\nConnection: close\r\n",
                    bearer(&format!("pat:7:s{id}"))
                );
                send(&world, &lines).await;
            });
        }
    }))
}

#[tokio::test(start_paused = true)]
async fn attack_75_strangers_do_not_keep_others_from_gitlab() {
    let limit = ApiRateLimit { refill_rate_per_second: 10, bucket_size: 20 };
    let (gitlab, world, _seen, _agent) = attacked_with(&limit).await;
    for known in ["ci:7:job", "pat:7:glpat-alice"] {
        assert_eq!(from(&world, "198.51.100.7", known).await, 200);
    }
    let mut revoked = watch(&world, "pat:7:glpat-alice").await;
    let _strangers = strangers(&world);
    sleep(MINUTE).await;

    gitlab.state().users.clear();
    let started = Instant::now();
    assert_eq!(from(&world, "198.51.100.7", "ci:7:job").await, 200, "GitLab has to be asked again");
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    let end = timeout((2 * MINUTE).saturating_sub(started.elapsed()), revoked.frame()).await;
    let end = end.expect("the watch of a revoked token goes on");
    assert!(matches!(end, Some(Err(_))), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn attack_75_stream_does_not_outlive_a_gitlab_that_does_not_answer() {
    for fault in [Fault::Down, Fault::Slow(60 * MINUTE)] {
        let (gitlab, world, _seen, _agent) = attacked().await;
        let mut streams = [watch(&world, "ci:7:job").await, watch(&world, "pat:7:glpat-alice").await];
        gitlab.set_fault(fault.clone());
        let started = Instant::now();
        for stream in &mut streams {
            let end = timeout(6 * MINUTE, stream.frame()).await.expect("it goes on");
            assert!(matches!(end, Some(Err(_))), "{fault:?}: {end:?}");
            let minutes = started.elapsed().as_secs_f64() / 60.0;
            assert!((4.9..5.5).contains(&minutes), "{fault:?}: {minutes} min");
        }
        gitlab.set_fault(None);
        sleep(MINUTE).await;
        let mut again = watch(&world, "ci:7:job").await;
        assert!(timeout(10 * MINUTE, again.frame()).await.is_err(), "{fault:?}: a new stream goes on");
    }
}
