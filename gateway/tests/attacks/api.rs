//! API clients without a valid token.

use std::time::{Duration, SystemTime};

use access::{ApiTokenError, ApiTokenVerifier};
use gateway::test_support::api_messages::{Empty, GetServerInfoResponse};
use http::{Request, StatusCode, header::AUTHORIZATION};
use kas_testing::{
    fleet::secret,
    internal_api::{call, connect, get, jwt, send, valid_token},
    world::{World, text},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};
use tonic::{Code, Status};
use tunnel::Body;

fn head() -> Value {
    json!({"alg": "HS256", "typ": "JWT"})
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

fn claims(key: &str, value: impl Into<Value>) -> Value {
    let mut claims = json!({"aud": "gitlab-kas", "exp": now() + 60});
    claims[key] = value.into();
    claims
}

/// Returns invalid tokens with a part of their error.
fn invalid() -> Vec<(String, &'static str)> {
    let ours = |claims: &Value| jwt(&[1; 32], &head(), claims);
    let under = |head: Value| jwt(&[1; 32], &head, &claims("sub", "x"));
    let (whole, other) = (valid_token(), ours(&claims("sub", "root")));
    let parts: Vec<&str> = whole.split('.').collect();
    let claims_of_other = other.split('.').nth(1).unwrap();
    vec![
        (under(json!({"alg": "none"})), "not a JWT"),
        (under(json!({"alg": "None"})), "not a JWT"),
        (format!("{}.{}.", parts[0], parts[1]), "not signed with the secret"),
        (format!("{}.{}", parts[0], parts[1]), "not a JWT"),
        (under(json!({"alg": "RS256"})), "HS256, HS384 or HS512"),
        (under(json!({"alg": "ES256", "jwk": {"kty": "oct", "k": "AQEB"}})), "HS256, HS384 or HS512"),
        (under(json!({"alg": "HS512"})), "not signed with the secret"),
        (under(json!({"alg": "HS256", "crit": ["b64"], "b64": false})), "extensions"),
        (jwt(&[2; 32], &head(), &claims("sub", "x")), "not signed with the secret"),
        (jwt(&[], &head(), &claims("sub", "x")), "not signed with the secret"),
        (format!("{}.{claims_of_other}.{}", parts[0], parts[2]), "not signed with the secret"),
        (ours(&claims("aud", "gitlab")), "aud"),
        (ours(&claims("aud", json!([]))), "aud"),
        (ours(&claims("aud", json!({"gitlab-kas": 1}))), "aud"),
        (ours(&claims("aud", Value::Null)), "aud"),
        (ours(&json!({"exp": now() + 60})), "aud"),
        (ours(&claims("exp", now() - 1)), "expired"),
        (ours(&claims("exp", 0)), "expired"),
        (ours(&claims("exp", -1)), "number of seconds"),
        (ours(&claims("exp", "tomorrow")), "number of seconds"),
        (ours(&json!({"aud": "gitlab-kas"})), "no exp"),
        (ours(&claims("exp", Value::Null)), "exp"),
        (ours(&claims("exp", now() + 700)), "more than 10 min ahead"),
        (ours(&claims("exp", 1e300)), "number of seconds"),
        (ours(&claims("exp", u64::MAX)), "10 min ahead"),
        (ours(&claims("nbf", now() + 60)), "nbf"),
        (ours(&json!(["gitlab-kas"])), "not a JWT"),
        (ours(&claims("pad", "x".repeat(8192))), "longer than 4096 bytes"),
        (format!("{whole}.{}", parts[2]), "not a JWT"),
        (format!("{whole}="), "not a JWT"),
        ("...".to_owned(), "not a JWT"),
        (String::new(), "not a JWT"),
    ]
}

#[tokio::test(start_paused = true)]
async fn attack_37_invalid_tokens_are_refused() {
    let world = World::new();
    for (token, expected) in invalid() {
        let request = Request::get("/api/v1/agents").header(AUTHORIZATION, format!("Bearer {token}"));
        let answer = send(&world, request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{token}");
        let challenge = answer.headers()["www-authenticate"].to_str().unwrap().to_owned();
        let body = text(answer).await;
        assert!(challenge.starts_with("Bearer realm=\"kas\""), "{challenge}");
        if !token.is_empty() {
            assert!(body.contains(expected), "{token}: {body}");
        }
        assert!(!body.contains("prod") && (token.is_empty() || !body.contains(&token)), "{body}");
    }
    assert_eq!(get(&world, "/api/v1/agents").await.status(), StatusCode::OK);
}

async fn server_info(world: &World, method: &'static str, authorization: Option<&str>) -> Result<(), Status> {
    call::<_, GetServerInfoResponse>(world, method, authorization, Empty {}).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn attack_37_invalid_tokens_are_refused_over_grpc() {
    let world = World::new();
    let known = "/gitlab.agent.server_info.rpc.ServerInfo/GetServerInfo";
    let unknown = "/gitlab.agent.server_info.rpc.ServerInfo/Unknown";
    let mut values: Vec<String> = invalid().into_iter().map(|(token, _)| format!("bearer {token}")).collect();
    let good = valid_token();
    values.extend([good.clone(), format!("Basic {good}"), "bearer".into(), String::new()]);
    for method in [known, unknown] {
        for value in values.iter().map(String::as_str).map(Some).chain([None]) {
            let status = server_info(&world, method, value).await.unwrap_err();
            assert_eq!(status.code(), Code::Unauthenticated, "{value:?}");
            assert_eq!(status.message(), "JWT validation failed", "{value:?}");
            assert!(status.details().is_empty() && status.metadata().get("www-authenticate").is_none());
        }
    }
    for scheme in ["bearer", "Bearer", "BEARER"] {
        assert!(server_info(&world, known, Some(&format!("{scheme} {good}"))).await.is_ok(), "{scheme}");
    }
}

#[tokio::test(start_paused = true)]
async fn attack_37_misplaced_token_is_ignored() {
    let world = World::new();
    let good = valid_token();
    let query = format!("?token={good}&access_token={good}&jwt={good}");
    for path in ["/api/v1/agents", "/api/v1/agents/prod", "/api/v1/agents/nobody", "/metrics"] {
        for (name, value) in [
            ("x-nothing", String::new()),
            ("cookie", format!("token={good}")),
            ("gitlab-kas-api-request", good.clone()),
            ("proxy-authorization", format!("Bearer {good}")),
            ("authorization", good.clone()),
            ("authorization", format!("Basic {good}")),
        ] {
            let request = Request::get(format!("{path}{query}")).header(name, value);
            let answer = send(&world, request.body(Body::empty()).unwrap()).await;
            assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{path} {name}");
            let challenge = answer.headers()["www-authenticate"].to_str().unwrap();
            assert_eq!(challenge, "Bearer realm=\"kas\"", "nothing is said of errors");
            assert!(text(answer).await.contains("a token is missing"));
        }
    }
    let twice = Request::get("/api/v1/agents").header(AUTHORIZATION, format!("Bearer {good}"));
    let twice = twice.header(AUTHORIZATION, "Bearer x").body(Body::empty()).unwrap();
    assert_eq!(send(&world, twice).await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test(start_paused = true)]
async fn attack_37_oversized_token_ends_the_connection() {
    let world = World::new();
    let mut io = connect(&world);
    let head =
        format!("GET /api/v1/agents HTTP/1.1\r\nHost: kas\r\nAuthorization: Bearer {}", "x".repeat(20 << 10));
    // Fails once kas has seen enough.
    _ = io.write_all(head.as_bytes()).await;
    let mut answer = String::new();
    _ = timeout(Duration::from_secs(120), io.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert_eq!(get(&world, "/api/v1/agents").await.status(), StatusCode::OK);
}

#[test]
fn attack_37_other_encodings_of_the_secret_are_refused() {
    let token = valid_token();
    assert_eq!(ApiTokenVerifier::new(secret(1), None).check(&token), Ok(()));
    let denied = ApiTokenVerifier::new(secret(2), None).check(&token).unwrap_err();
    assert!(matches!(denied, ApiTokenError::Invalid(why) if why.contains("secret")), "{denied}");
}
