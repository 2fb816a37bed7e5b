//! Responses that attack the client or the browser of a caller.

use http::StatusCode;
use kas_testing::{
    server,
    world::{World, text},
};
use proto::Reason;
use tokio::{
    io::{AsyncWriteExt as _, DuplexStream},
    task::JoinHandle,
};

use crate::{
    http1::{self, exchange, read, status},
    http2::{DATA, END_STREAM, HEADERS, frame, headers},
    tunnel_ends::{Tunnel, agent, asked, asked_for},
};

/// Headers that a cluster may not send on the origin of kas, in lower case.
const REFUSED: [(&str, &str); 36] = [
    ("nel", "{\"report_to\":\"x\",\"max_age\":1}"),
    ("report-to", "{\"group\":\"x\"}"),
    ("reporting-endpoints", "x=\"https://evil.example\""),
    ("set-cookie", "a=b"),
    ("set-cookie2", "a=b"),
    ("content-security-policy", "script-src *"),
    ("content-security-policy-report-only", "report-uri https://evil.example"),
    ("access-control-allow-origin", "*"),
    ("access-control-allow-credentials", "true"),
    ("access-control-expose-headers", "*"),
    ("alt-svc", "h3=\"evil.example:443\""),
    ("clear-site-data", "\"*\""),
    ("strict-transport-security", "max-age=1"),
    ("public-key-pins", "max-age=1"),
    ("expect-ct", "report-uri=x"),
    ("link", "<https://evil.example>; rel=preload"),
    ("service-worker-allowed", "/"),
    ("sourcemap", "/map"),
    ("refresh", "0;url=https://evil.example"),
    ("server-timing", "forged;dur=1"),
    ("origin-agent-cluster", "?1"),
    ("permissions-policy", "camera=*"),
    ("cross-origin-opener-policy", "unsafe-none"),
    ("cross-origin-resource-policy", "cross-origin"),
    ("timing-allow-origin", "*"),
    ("x-frame-options", "ALLOWALL"),
    ("x-xss-protection", "0"),
    ("x-content-type-options", "sniff"),
    ("www-authenticate", "Basic realm=evil"),
    ("proxy-authenticate", "Basic"),
    ("authentication-info", "x"),
    ("gitlab-unauthorized", "true"),
    ("x-accel-redirect", "/etc/passwd"),
    ("x-sendfile", "/etc/passwd"),
    ("x-request-id", "forged"),
    ("kas-anything", "x"),
];

/// Headers with such a name that kas itself sends.
fn is_ours(line: &str) -> bool {
    ["content-security-policy: sandbox;", "x-content-type-options: nosniff", "server-timing: queue;"]
        .iter()
        .any(|ours| line.starts_with(ours))
        || (line.starts_with("x-request-id: ") && !line.contains("forged"))
}

/// Returns a head with these fields.
type Said = &'static [(&'static str, &'static str)];

fn assert_clean(answer: &str) {
    for line in answer.to_lowercase().lines().filter(|line| !is_ours(line)) {
        let forged = REFUSED.iter().find(|(name, _)| line.starts_with(&format!("{name}:")));
        assert!(forged.is_none(), "{line}");
    }
}

/// Sends a request, and returns it as the only tunnel received it.
async fn begun(world: &World, agent: &mut Tunnel, lines: &str) -> (DuplexStream, u32) {
    let mut caller = world.connect();
    let head = http1::head(world, "GET", "/kubernetes/page");
    caller.write_all(format!("{head}{lines}\r\n").as_bytes()).await.unwrap();
    (caller, agent.next_of(HEADERS).await.unwrap().stream)
}

#[tokio::test(start_paused = true)]
async fn attack_39_forbidden_response_headers_are_removed() {
    let world = World::new();
    let mut attacker = agent(&world, &[]).await;
    let (mut caller, stream) = begun(&world, &mut attacker, "").await;
    let head = [&[(":status", "200"), ("content-type", "application/json"), ("etag", "7")], &REFUSED[..]];
    attacker.send(&headers(stream, END_STREAM, &head.concat())).await;
    let answer = read(&mut caller).await;
    assert_clean(&answer);
    assert!(answer.contains("etag: 7") && !answer.contains("content-security-policy"), "{answer}");

    // Nor after a body, also if they are announced.
    let (mut caller, stream) = begun(&world, &mut attacker, "TE: trailers\r\nConnection: TE\r\n").await;
    let names: Vec<&str> = REFUSED.iter().map(|(name, _)| *name).chain(["digest", "location"]).collect();
    let announced = names.join(", ");
    let said = [
        headers(stream, 0, &[(":status", "200"), ("trailer", &announced)]),
        frame(DATA, 0, stream, b"body"),
        headers(
            stream,
            END_STREAM,
            &[&REFUSED[..], &[("digest", "1"), ("location", "//evil.example")]].concat(),
        ),
    ];
    attacker.send(&said.concat()).await;
    let answer = read(&mut caller).await;
    let mut trailers: Vec<&str> = answer.split("\r\n0\r\n").nth(1).unwrap().trim().lines().collect();
    trailers.sort_unstable();
    // The second was made for trailers, and says nothing that matters.
    assert_eq!(trailers, ["digest: 1", "server-timing: forged;dur=1"]);

    // Nor with a 101, which says a little more.
    let (mut caller, stream) =
        begun(&world, &mut attacker, "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n").await;
    let switch = [(":status", "200"), ("kas-upgraded", "SPDY/3.1"), ("x-stream-protocol-version", "v4")];
    attacker.send(&headers(stream, 0, &[&switch[..], &REFUSED[..]].concat())).await;
    let answer = server::read_head(&mut caller).await;
    assert_eq!(status(&answer), 101, "{answer}");
    assert_clean(&answer);
    assert!(answer.contains("x-stream-protocol-version: v4"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn attack_39_foreign_location_is_removed() {
    let world = World::new();
    let mut attacker = agent(&world, &[]).await;
    for (location, kept) in [
        ("/api", true),
        ("https://evil.example/", false),
        ("//evil.example/", false),
        ("/\\evil.example/", false),
        ("javascript:alert(1)", false),
        ("data:text/html,x", false),
        ("https:evil.example", false),
        ("http://kas@evil.example", false),
    ] {
        for code in ["201", "301", "302", "303", "307", "308"] {
            let (mut caller, stream) = begun(&world, &mut attacker, "").await;
            let said = [(":status", code), ("location", location), ("content-location", location)];
            attacker.send(&headers(stream, END_STREAM, &said)).await;
            let answer = read(&mut caller).await;
            assert_eq!(answer.contains("\r\nlocation: "), kept, "{location}: {answer}");
            assert!(kept || !answer.contains("evil.example"), "{location}: {answer}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn attack_40_executable_content_is_sandboxed() {
    let world = World::new();
    let mut attacker = agent(&world, &[]).await;
    for kinds in [
        &["text/html"][..],
        &["text/html; charset=utf-7"],
        &["TEXT/HTML"],
        &["image/svg+xml"],
        &["application/xhtml+xml"],
        &["application/xml"],
        &["text/xml"],
        &["text/xsl"],
        &["application/rss+xml"],
        &["application/javascript"],
        &["text/javascript"],
        &["application/wasm"],
        &["application/pdf"],
        &["application/x-shockwave-flash"],
        &["multipart/x-mixed-replace;boundary=x"],
        &["message/rfc822"],
        &["text/css"],
        &["text/vtt"],
        &["*/*"],
        &["application/json, text/html"],
        &["application/json", "text/html"],
        &["text/html;application/json"],
        &[],
        &[""],
        &[" "],
        &["json"],
    ] {
        for code in ["200", "404", "500"] {
            let (mut caller, stream) = begun(&world, &mut attacker, "").await;
            let mut said = vec![(":status", code)];
            said.extend(kinds.iter().map(|kind| ("content-type", *kind)));
            said.extend([("content-disposition", "inline"), ("content-security-policy", "script-src *")]);
            attacker.send(&headers(stream, 0, &said)).await;
            attacker.send(&frame(DATA, END_STREAM, stream, b"<script>alert(1)</script>")).await;
            let answer = read(&mut caller).await;
            let policy: Vec<&str> =
                answer.lines().filter(|line| line.starts_with("content-security-policy:")).collect();
            assert_eq!(
                policy,
                ["content-security-policy: sandbox; default-src 'none'; frame-ancestors 'none'"],
                "{kinds:?}: {answer}"
            );
            assert!(answer.contains("x-content-type-options: nosniff"), "{kinds:?}: {answer}");
        }
    }
}

/// A client that receives `unauthorized` discards its credential, or sends its user to sign in again. One that receives
/// `disabled` takes it for a decision of the operator.
#[tokio::test(start_paused = true)]
async fn attack_39_agent_cannot_send_errors_of_kas() {
    let world = World::new();
    let mut attacker = agent(&world, &[]).await;
    for reason in [Reason::Unauthorized.as_str(), Reason::Disabled.as_str(), "no-such-reason", ""] {
        for code in ["401", "200"] {
            let (asking, stream) = asked_for(&world, &mut attacker, "/version").await;
            let said = [
                (":status", code),
                ("kas-error", reason),
                ("kas-error-message", "sign%20in%0d%0aat%20evil.example"),
                ("www-authenticate", "Basic realm=evil"),
                ("gitlab-unauthorized", "true"),
            ];
            attacker.send(&headers(stream, END_STREAM, &said)).await;
            let answer = asking.await.unwrap();
            assert_eq!(answer.status(), StatusCode::BAD_GATEWAY, "{reason} {code}");
            assert_eq!(answer.headers()["kas-error"], "agent-misbehaved", "{reason} {code}");
            for name in ["www-authenticate", "gitlab-unauthorized", "kas-error-message"] {
                assert!(!answer.headers().contains_key(name), "{name}");
            }
            let said = text(answer).await;
            assert!(said.contains("agent prod: sign inat evil.example"), "whose words they are: {said}");
        }
    }
    // As an answer of the cluster's, it has nothing of kas's.
    let (asking, stream) = asked_for(&world, &mut attacker, "/version").await;
    attacker.send(&headers(stream, END_STREAM, &[(":status", "401"), ("www-authenticate", "Basic")])).await;
    let answer = asking.await.unwrap();
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    for name in ["kas-error", "www-authenticate", "gitlab-unauthorized"] {
        assert!(!answer.headers().contains_key(name), "{name}");
    }
}

/// Every other error of an agent has the name of the agent.
#[tokio::test(start_paused = true)]
async fn attack_39_error_of_agent_has_the_status_of_its_reason() {
    let world = World::new();
    let mut attacker = agent(&world, &[]).await;
    let only_kas = [Reason::Unauthorized, Reason::Disabled];
    for reason in Reason::ALL.iter().filter(|reason| !only_kas.contains(reason)) {
        let (asking, stream) = asked(&world, &mut attacker).await;
        let said = [(":status", "200"), ("kas-error", reason.as_str()), ("content-type", "text/html")];
        attacker.send(&headers(stream, 0, &said)).await;
        attacker.send(&frame(DATA, END_STREAM, stream, b"<script>alert(1)</script>")).await;
        let (code, body) = asking.await.unwrap();
        assert_eq!(code, reason.status(), "{reason:?}");
        assert!(
            body.contains("agent prod: the agent gave no message") && !body.contains("<script>"),
            "{body}"
        );
    }
}

/// kas alone frames the responses on a connection.
#[tokio::test(start_paused = true)]
async fn attack_41_response_cannot_be_smuggled() {
    let hidden = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nsmuggled";
    let forms: [(&str, &str, Said, &str); 10] = [
        ("HEAD", "a body of HEAD", &[(":status", "200")], hidden),
        ("HEAD", "a body of HEAD with a length", &[(":status", "200"), ("content-length", "47")], hidden),
        ("GET", "a body of 204", &[(":status", "204")], hidden),
        ("GET", "a body of 304", &[(":status", "304")], hidden),
        ("GET", "a body of 205", &[(":status", "205")], hidden),
        ("GET", "a short length", &[(":status", "200"), ("content-length", "1")], hidden),
        ("GET", "a long length", &[(":status", "200"), ("content-length", "99")], hidden),
        ("GET", "a length and nothing", &[(":status", "200"), ("content-length", "47")], ""),
        (
            "GET",
            "two lengths",
            &[(":status", "200"), ("content-length", "1"), ("content-length", "47")],
            hidden,
        ),
        ("GET", "a length of 204", &[(":status", "204"), ("content-length", "47")], ""),
    ];
    for (method, name, said, body) in forms {
        let world = World::new();
        let mut attacker = agent(&world, &[]).await;
        let mut caller = world.connect();
        let first = http1::head(&world, method, "/kubernetes/first");
        let second = http1::head(&world, "GET", "/kubernetes/second");
        caller.write_all(format!("{first}\r\n{second}\r\n").as_bytes()).await.unwrap();
        let serving: JoinHandle<()> = tokio::spawn(async move {
            let stream = attacker.next_of(HEADERS).await.unwrap().stream;
            let end = if body.is_empty() { END_STREAM } else { 0 };
            attacker.send(&headers(stream, end, said)).await;
            if !body.is_empty() {
                attacker.send(&frame(DATA, END_STREAM, stream, body.as_bytes())).await;
            }
            while let Some(next) = attacker.next_of(HEADERS).await {
                let fine = [(":status", "200"), ("content-length", "4"), ("etag", "second")];
                attacker.send(&headers(next.stream, 0, &fine)).await;
                attacker.send(&frame(DATA, END_STREAM, next.stream, b"fine")).await;
            }
        });
        let all = read(&mut caller).await;
        serving.abort();
        for answer in heads(method, &all) {
            let known = answer.contains("x-request-id: ");
            assert!(known, "{name}: an answer that is not kas's: {answer}\nin {all}");
        }
    }
}

/// Returns the heads of the responses on a connection, as a client parses them.
fn heads(method: &str, mut rest: &str) -> Vec<String> {
    let mut heads = Vec::new();
    while let Some((head, after)) = rest.split_once("\r\n\r\n") {
        let bodiless = (heads.is_empty() && method == "HEAD") || matches!(status(head), 204 | 304);
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        rest = match length {
            _ if bodiless => after,
            Some(length) => after.get(length.parse().unwrap()..).unwrap_or_default(),
            None if head.contains("transfer-encoding: chunked") => {
                after.split_once("0\r\n\r\n").map_or("", |(_, after)| after)
            }
            None => "",
        };
        heads.push(head.to_owned());
    }
    heads
}

#[tokio::test(start_paused = true)]
async fn attack_39_header_values_cannot_split_a_response() {
    let world = World::new();
    let mut attacker = agent(&world, &[]).await;
    for value in ["a\r\nset-cookie: b", "a\nset-cookie: b", "a\0b", "a\rb"] {
        let (asking, stream) = asked(&world, &mut attacker).await;
        attacker.send(&headers(stream, END_STREAM, &[(":status", "200"), ("etag", value)])).await;
        let (code, body) = asking.await.unwrap();
        assert!(code.is_server_error(), "{value:?}: {code} {body}");
        // A violation of HTTP/2 itself ends the tunnel.
        if world.kas.agents.metrics.tunnels.get() == 0 {
            attacker = agent(&world, &[]).await;
        }
    }
    let refused = exchange(&world, "GET / HTTP/1.1\r\nHost: kas\r\n\r\n").await;
    assert_eq!(status(&refused), 404, "kas is well: {refused}");
}
