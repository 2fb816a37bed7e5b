//! Web pages that send requests in the name of their users.

use kas_testing::world::World;

use crate::{
    cluster::Seen,
    http1::{exchange, head, status},
};

const LISTED: &str = "https://gitlab.example.com";

async fn attacked() -> (World, Seen, impl Sized) {
    let world = World::with(|config| {
        config.agent.kubernetes_api.allowed_origins = vec![LISTED.parse().unwrap()];
    });
    let seen = Seen::default();
    let agent = world.agent(seen.services()).await;
    (world, seen, agent)
}

/// Origins other than the listed one and that of kas (`Host: kas`).
const FOREIGN: [&str; 18] = [
    "null",
    "",
    "*",
    "https://evil.example",
    "http://gitlab.example.com",
    "https://gitlab.example.com:8443",
    "https://gitlab.example.com.evil.example",
    "https://evilgitlab.example.com",
    "https://gitlab.example.com@evil.example",
    "https://evil.example#https://gitlab.example.com",
    "https://evil.example/https://gitlab.example.com",
    "https://gitlab.example.com/",
    "https://gitlab.example.com https://evil.example",
    "https://gitlab.example.com, https://evil.example",
    "https://sub.gitlab.example.com",
    "https://kas.evil.example",
    "http://evil.example:80/kas",
    "file://",
];

#[tokio::test(start_paused = true)]
async fn attack_38_foreign_origin_is_refused_before_the_cluster() {
    let (world, seen, _agent) = attacked().await;
    let get = head(&world, "GET", "/kubernetes/page");
    let preflight = get.replacen("GET", "OPTIONS", 1);
    let websocket = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for origin in FOREIGN {
        for request in [
            format!("{get}Origin: {origin}\r\n\r\n"),
            format!("{get}{websocket}Origin: {origin}\r\n\r\n"),
            format!("{get}Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nOrigin: {origin}\r\n\r\n"),
            format!("{preflight}Access-Control-Request-Method: DELETE\r\nOrigin: {origin}\r\n\r\n"),
        ] {
            let answer = exchange(&world, request).await.to_lowercase();
            assert_eq!(status(&answer), 403, "{origin:?}: {answer}");
            assert!(!answer.contains("access-control-"), "{origin:?}: {answer}");
        }
    }
    let twice = format!("{get}Origin: {LISTED}\r\nOrigin: https://evil.example\r\n\r\n");
    assert_eq!(status(&exchange(&world, twice).await), 400);
    assert_eq!(seen.all(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn attack_38_only_listed_origins_get_cors_headers() {
    let (world, seen, _agent) = attacked().await;
    let get = head(&world, "GET", "/kubernetes/page");
    for origin in [LISTED, "HTTPS://GitLab.Example.com", "https://gitlab.example.com:443"] {
        let answer = exchange(&world, format!("{get}Origin: {origin}\r\n\r\n")).await;
        assert_eq!(status(&answer), 200, "{answer}");
        // The origin itself and never `*`, and for no cache to hand to another.
        assert!(answer.contains(&format!("access-control-allow-origin: {origin}\r\n")), "{answer}");
        assert!(answer.contains("vary: Origin\r\n"), "{answer}");
    }
    // A browser asks without a credential, and gets no more than leave to ask.
    let before = seen.all().len();
    let preflight = format!(
        "OPTIONS /agents/prod/kubernetes/page HTTP/1.1\r\nHost: kas\r\nOrigin: {LISTED}\r\n\
         Access-Control-Request-Method: DELETE\r\nAccess-Control-Request-Headers: authorization\r\n\
         Access-Control-Request-Private-Network: true\r\n\r\n"
    );
    let answer = exchange(&world, preflight).await;
    assert_eq!(status(&answer), 204, "{answer}");
    assert!(answer.contains("access-control-allow-headers: authorization\r\n"), "{answer}");
    assert!(!answer.contains("private-network"), "{answer}");
    assert_eq!(seen.all().len(), before, "a preflight reaches no cluster");
    // Clients other than browsers get no CORS headers.
    let answer = exchange(&world, format!("{get}\r\n")).await;
    assert!(status(&answer) == 200 && !answer.contains("access-control-"), "{answer}");
}

/// Cookies are not a credential, so that a page cannot forge a request (CSRF).
#[tokio::test(start_paused = true)]
async fn attack_38_cookies_are_ignored() {
    let (world, seen, _agent) = attacked().await;
    let with = head(&world, "POST", "/kubernetes/page");
    let without: String =
        with.split_inclusive("\r\n").filter(|line| !line.starts_with("Authorization")).collect();
    let token = with.rsplit("Bearer ").next().unwrap().trim();
    for lines in [
        format!("Cookie: token={token}"),
        format!("Cookie: _gitlab_kas={token}\r\nX-Csrf-Token: x"),
        format!("Cookie: Authorization=Bearer {token}"),
        format!("Gitlab-Agent-Id: 1\r\nCookie: _gitlab_kas={token}"),
    ] {
        for origin in [String::new(), format!("Origin: {LISTED}\r\n"), "Origin: http://kas\r\n".into()] {
            let request = format!("{without}{origin}{lines}\r\nContent-Length: 0\r\n\r\n");
            let answer = exchange(&world, request).await;
            assert_eq!(status(&answer), 401, "{lines}: {answer}");
        }
    }
    assert_eq!(seen.all(), Vec::<String>::new());
    // And with a credential, they stay here.
    let request =
        format!("{with}Cookie: session=private\r\nX-Csrf-Token: private\r\nContent-Length: 0\r\n\r\n");
    let answer = exchange(&world, request).await;
    assert!(status(&answer) == 200 && !answer.contains("private"), "{answer}");
    let with = head(&world, "POST", "/kubernetes/page?gitlab-csrf-token=private&gitlab-agent-id=1&x=1");
    let answer = exchange(&world, format!("{with}Content-Length: 0\r\n\r\n")).await;
    assert!(answer.contains("POST /page?x=1\n") && !answer.contains("private"), "{answer}");
}
