//! Requests that try to reach another server of the cluster, or kas and agentk themselves.

use http::StatusCode;
use kas_testing::{
    server::{self, SOON},
    world::World,
};
use secrecy::ExposeSecret as _;
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::timeout,
};

use crate::{
    cluster::{Seen, caller},
    http1::{exchange, head, status},
    http2::{END_STREAM, HEADERS, headers},
    tunnel_ends::connect,
};

/// The names of the endpoints of kas and agentk.
const ADMIN: [&str; 9] = [
    "/metrics",
    "/agents",
    "/readiness",
    "/liveness",
    "/debug/pprof/",
    "/drain",
    "/control/drain",
    "/agents/prod/control/drain",
    "/agents/prod/control",
];

/// Returns a Prometheus that reports each received head.
async fn listening() -> (World, UnboundedReceiver<String>, impl Sized) {
    let (heard, heads) = unbounded_channel();
    let (world, running) = server::world(move |mut server: TcpStream| {
        let heard = heard.clone();
        async move {
            heard.send(server::read_head(&mut server).await).unwrap();
            let answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nup";
            server.write_all(answer).await.unwrap();
        }
    })
    .await;
    (world, heads, running)
}

#[tokio::test]
async fn attack_46_request_cannot_select_the_server() {
    let (world, mut heads, _running) = listening().await;
    let plain = head(&world, "GET", "/prometheus/api/v1/query");
    let close = "Connection: close\r\n\r\n";
    let ask = async |request: String| {
        let mut caller = world.connect();
        caller.write_all(request.as_bytes()).await.unwrap();
        let answer = timeout(SOON, server::read_head(&mut caller)).await.unwrap();
        status(&answer)
    };
    assert_eq!(ask(format!("{plain}{close}")).await, 200);
    let expected = heads.recv().await.unwrap();
    let host = expected.lines().find(|line| line.starts_with("host: ")).unwrap().to_owned();
    assert!(host.starts_with("host: 127.0.0.1:"), "the flag's own: {host}");
    for request in [
        plain.replacen(" /", " http://169.254.169.254/", 1),
        plain.replacen(" /", " https://169.254.169.254:80/", 1),
        plain.replacen("Host: kas", "Host: 169.254.169.254", 1),
        format!(
            "{plain}X-Forwarded-Host: 169.254.169.254\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Port: 1\r\n"
        ),
        format!("{plain}X-Forwarded-Server: evil.example\r\nForwarded: host=evil.example;proto=https\r\n"),
        format!("{plain}Kas-Service: kubernetes\r\nKas-Upstream: http://evil.example\r\n"),
        plain.replacen("query", "query?query=up&url=http://evil.example&target=//evil.example", 1),
    ] {
        assert_eq!(ask(format!("{request}{close}")).await, 200, "{request}");
        let arrived = timeout(SOON, heads.recv()).await.unwrap().unwrap();
        assert!(arrived.contains(&host), "{request}: {arrived}");
        for trace in ["169.254", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-port", "kas-"] {
            assert!(!arrived.contains(trace), "{request}: {arrived}");
        }
        assert!(!arrived.contains("forwarded: host"), "{request}: {arrived}");
    }
    for path in [
        "/prometheus/http://169.254.169.254/latest/meta-data",
        "/prometheus//169.254.169.254/api/v1/query",
        "/prometheus/@169.254.169.254/api/v1/query",
        "/prometheus/\\169.254.169.254\\api/v1/query",
        "/prometheus/api/v1/query@169.254.169.254",
        "/prometheus/%2f%2f169.254.169.254/api/v1/query",
        "/prometheus:9100/api/v1/query",
        "/prometheus@169.254.169.254/api/v1/query",
        "/prometheus.169.254.169.254/api/v1/query",
        "/prometheus.evil.example/api/v1/query",
        "/http://169.254.169.254/",
        "/unix:/run/api/v1/query",
    ] {
        let code = ask(format!("{}{close}", head(&world, "GET", path))).await;
        assert!((400..500).contains(&code), "{path}: {code}");
    }
    for target in ["169.254.169.254:80", "kas:443"] {
        let bearer = world.caller_token.expose_secret();
        let request =
            format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nAuthorization: Bearer {bearer}\r\n\r\n");
        assert_eq!(ask(request).await, 400, "this is no forward proxy");
    }
    assert!(heads.try_recv().is_err(), "nothing of it reached anybody");
}

/// CVE-2024-40632.
#[tokio::test(start_paused = true)]
async fn attack_48_own_endpoints_are_unreachable_for_callers() {
    let world = World::new();
    let seen = Seen::default();
    let _agent = world.agent(seen.services()).await;
    let authorization = world.authorization();
    for path in ADMIN {
        for spelling in [
            path.to_owned(),
            format!("/{path}"),
            format!("/.{path}"),
            format!("/agents/..{path}"),
            format!("/agents/prod/..{path}"),
            format!("/agents/prod/control{path}"),
            format!("/agents/prod/CONTROL{path}"),
            format!("/agents/prod/contro%6c{path}"),
            format!("/agents/prod/kubernetes%2f..%2fcontrol{path}"),
            format!("/agents/prod/agentk{path}"),
            format!("/agents/prod/control.kubernetes{path}"),
            format!("http://127.0.0.1:8151{path}"),
        ] {
            // The list of the caller's own agents, at its own listener.
            if ["/agents", "http://127.0.0.1:8151/agents"].contains(&&*spelling) {
                continue;
            }
            for method in ["GET", "POST"] {
                let request = format!(
                    "{method} {spelling} HTTP/1.1\r\nHost: localhost:8151\r\n{authorization}\r\nContent-Length: 0\r\n\r\n"
                );
                let answer = exchange(&world, request).await;
                assert!(matches!(status(&answer), 400 | 404), "{method} {spelling}: {answer}");
                for own in ["# HELP", "replica", "tunnels\":", "ready\n"] {
                    assert!(!answer.contains(own), "{method} {spelling}: {answer}");
                }
            }
        }
        // Nor at the agents' listener.
        let mut attacker = connect(&world);
        attacker.write_all(format!("GET {path} HTTP/1.1\r\nHost: kas\r\n\r\n").as_bytes()).await.unwrap();
        let answer = crate::http1::read(&mut attacker).await;
        assert_eq!(status(&answer), 426, "{answer}");
    }
    assert_eq!(seen.all(), Vec::<String>::new());
    world.tunnels(2).await;
}

#[tokio::test(start_paused = true)]
async fn attack_48_header_cannot_select_the_control_service() {
    let world = World::new();
    let seen = Seen::default();
    let _agent = world.agent(seen.services()).await;
    let drain = r#"{"reason":"shutdown","within":0}"#;
    let asked = head(&world, "POST", "/kubernetes/drain");
    for lines in ["Kas-Service: control", "KAS-SERVICE: control\r\nKas-Service: control"] {
        let request = format!("{asked}{lines}\r\nContent-Length: {}\r\n\r\n{drain}", drain.len());
        let answer = exchange(&world, request).await;
        assert_eq!(status(&answer), 200, "the cluster's own /drain: {answer}");
        assert!(!answer.contains("kas-service"), "{answer}");
    }
    for lines in ["Kas_Service: control", "Connection: Kas-Service\r\nKas-Service: control"] {
        let request = format!("{asked}{lines}\r\nContent-Length: {}\r\n\r\n{drain}", drain.len());
        assert_eq!(status(&exchange(&world, request).await), 400, "{lines}");
    }

    let mut over_http2 = caller(&world, &[]).await;
    let bearer = format!("Bearer {}", world.caller_token.expose_secret());
    let mut streams = (0..).map(|number| 2 * number + 1);
    for (path, expected) in [
        ("/agents/prod/kubernetes/drain", "GET /drain"),
        ("/agents/prod/control/drain", "unknown-path"),
        ("/metrics", "unknown-path"),
        ("/agents", "\"name\":\"prod\""),
        ("*", "unknown-path"),
    ] {
        let stream = streams.next().unwrap();
        let fields = [
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "127.0.0.1:8151"),
            (":path", path),
            ("authorization", &*bearer),
            ("kas-service", "control"),
        ];
        over_http2.send(&headers(stream, END_STREAM, &fields)).await;
        over_http2.next_of(HEADERS).await.unwrap();
        let body = String::from_utf8(over_http2.body(stream).await.unwrap()).unwrap();
        assert!(body.contains(expected) && !body.contains("kas-service"), "{path}: {body}");
    }
    assert_eq!(seen.all(), ["POST /drain", "POST /drain", "GET /drain"]);
    // No agent was asked to leave.
    assert!(world.kas.agents.tunnels.views().iter().all(|tunnel| !tunnel.is_draining()));
    world.tunnels(2).await;
    assert_eq!(world.get("/agents/prod/kubernetes/fine").await.status(), StatusCode::OK);
}
