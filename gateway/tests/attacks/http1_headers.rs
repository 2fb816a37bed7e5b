//! Ambiguous headers, paths and trailers of callers.

use agentk_core::Services;
use http::{Request, Response};
use kas_testing::world::World;
use tokio::io::AsyncWriteExt as _;
use tunnel::Body;

use crate::{
    cluster::attacked,
    http1::{exchange, head, read, status},
};

#[tokio::test(start_paused = true)]
async fn attack_19_connection_cannot_list_identity_headers() {
    let (world, seen, _agent) = attacked().await;
    let head = head(&world, "GET", "/kubernetes/named");
    for name in [
        "Authorization",
        "Cookie",
        "Host",
        "Forwarded",
        "Gitlab-Agent-Id",
        "IMPERSONATE-USER",
        "Impersonate-Extra-scopes",
        "Kas-Service",
        "Proxy-Authorization",
        "X-Forwarded-For",
        "X-Real-IP",
        "X-Remote-User",
        "X-Request-Id",
    ] {
        for value in [name.to_owned(), format!("keep-alive, {name}"), format!("close\r\nConnection: {name}")]
        {
            let answer = exchange(&world, format!("{head}Connection: {value}\r\n\r\n")).await;
            assert_eq!(status(&answer), 400, "{value}: {answer}");
        }
    }
    assert_eq!(seen.all(), Vec::<String>::new());
    let answer = exchange(&world, format!("{head}Connection: X-Private\r\nX-Private: 1\r\n\r\n")).await;
    assert!(status(&answer) == 200 && !answer.contains("x-private"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn attack_20_underscore_spellings_are_refused() {
    let (world, seen, _agent) = attacked().await;
    let head = head(&world, "GET", "/kubernetes/twin");
    for name in [
        "Content_Length",
        "Gitlab_Agent_Id",
        "Impersonate_Extra_scopes",
        "Impersonate_Group",
        "impersonate-_user",
        "Impersonate_User",
        "Kas_Service",
        "Proxy_Authorization",
        "Transfer_Encoding",
        "X_CSRF_Token",
        "X_Forwarded_For",
        "X-Forwarded_User",
        "X_Real_IP",
        "X_Remote_User",
        "X_Request_Id",
    ] {
        let answer = exchange(&world, format!("{head}{name}: 1\r\n\r\n")).await;
        assert_eq!(status(&answer), 400, "{name}: {answer}");
    }
    assert_eq!(seen.all(), Vec::<String>::new());
    let answer = exchange(&world, format!("{head}X_Harmless: 1\r\n\r\n")).await;
    assert!(answer.contains("x_harmless: \"1\""), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn attack_21_path_is_forwarded_byte_for_byte_or_refused() {
    let (world, seen, _agent) = attacked().await;
    for path in [
        "//api",
        "/./api",
        "/../api",
        "/a/%2e%2e/%2E%2e/b",
        "/a%2fb",
        "/a%00b",
        "/a;b=c",
        "/a\\..\\b",
        "/%c0%ae%c0%ae/%e2%80%a5/b",
        "/a?b=/../c&d=%2f#e",
        "/a b",
        "/\u{ff0e}\u{ff0e}/b",
    ] {
        let before = seen.all().len();
        let answer =
            exchange(&world, format!("{}\r\n", head(&world, "GET", &format!("/kubernetes{path}")))).await;
        let after = seen.all().split_off(before);
        match status(&answer) {
            // A fragment is the caller's own (RFC 9110 section 7.1).
            200 => assert_eq!(after, [format!("GET {}", path.split('#').next().unwrap())], "{answer}"),
            refused => assert!((400..500).contains(&refused) && after.is_empty(), "{path}: {answer}"),
        }
    }
    // A path that authorization would have to normalize is refused.
    for path in [
        "/agents/other/../prod/kubernetes/a",
        "/agents/prod/control/../kubernetes/a",
        "//agents/prod/kubernetes/a",
        "/agents//prod/kubernetes/a",
        "/agents/prod%2fkubernetes/a",
        "/agents/prod/kubernete%73/a",
    ] {
        let before = seen.all().len();
        let request = head(&world, "GET", "").replacen("/agents/prod", path, 1);
        let answer = exchange(&world, format!("{request}\r\n")).await;
        assert!((400..500).contains(&status(&answer)), "{path}: {answer}");
        assert_eq!(seen.all().len(), before, "{path}");
    }
    // An unreserved character and its encoding are the same (RFC 3986 section 6.2.2.2).
    let request = head(&world, "GET", "").replacen("/agents/prod", "/agents/%70rod/kubernetes/a", 1);
    let answer = exchange(&world, format!("{request}\r\n")).await;
    assert_eq!((status(&answer), &*seen.all().pop().unwrap()), (200, "GET /a"), "{answer}");
    // The absolute form names kas or whomever; only its path counts (RFC 9112 section 3.2.2).
    let request = head(&world, "GET", "/kubernetes/a").replacen(" /", " http://elsewhere/", 1);
    let answer = exchange(&world, format!("{request}\r\n")).await;
    assert_eq!(status(&answer), 200, "{answer}");
    assert_eq!(seen.all().pop().unwrap(), "GET /a");
    assert!(!answer.contains("elsewhere"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn attack_22_continue_is_sent_only_if_the_body_is_read() {
    let (world, seen, _agent) = attacked().await;
    let expecting = |path: &str| {
        format!("{}Content-Length: 4\r\nExpect: 100-continue\r\n\r\n", head(&world, "POST", path))
    };
    let mut caller = world.connect();
    caller.write_all(expecting("/kubernetes/collect").as_bytes()).await.unwrap();
    assert_eq!(read(&mut caller).await, "HTTP/1.1 100 Continue\r\n\r\n");
    caller.write_all(b"body").await.unwrap();
    assert!(read(&mut caller).await.contains("4 bytes"));

    for (expected, request) in [
        (401, expecting("/kubernetes/refused").replace("Bearer ", "Bearer x")),
        (404, expecting("/control/refused")),
        (400, expecting("/kubernetes/refused").replacen("Expect", "Kas_Service: 1\r\nExpect", 1)),
    ] {
        let answer = exchange(&world, request).await;
        assert_eq!(status(&answer), expected, "{answer}");
        assert!(!answer.contains("100 Continue"), "{answer}");
    }
    assert_eq!(seen.all(), ["POST /collect"]);
}

#[tokio::test(start_paused = true)]
async fn attack_24_trailers_of_callers_are_filtered() {
    let world = World::new();
    let services = Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        use http_body_util::BodyExt as _;

        let body = request.into_body().collect().await.unwrap();
        let trailers = body.trailers().cloned().unwrap_or_default();
        let names: Vec<&str> = trailers.keys().map(http::HeaderName::as_str).collect();
        Response::new(Body::from(names.join(" ")))
    });
    let _agent = world.agent(services).await;
    let head = head(&world, "POST", "/kubernetes/trailers");
    let trailers = "Digest: 1\r\nAuthorization: x\r\nImpersonate-User: root\r\nImpersonate_User: root\r\nKas-Service: x\r\n\
                    Content-Length: 1\r\nTransfer-Encoding: chunked\r\nHost: x\r\nX-Remote-User: root\r\n";
    let request = format!(
        "{head}Transfer-Encoding: chunked\r\nTrailer: Digest, Authorization\r\n\r\n1\r\nx\r\n0\r\n{trailers}\r\n"
    );
    let answer = exchange(&world, request).await;
    assert!(answer.ends_with("\r\n\r\ndigest"), "{answer}");
    let many: String = (0..10_000).map(|number| format!("X-{number}: y\r\n")).collect();
    let answer = exchange(&world, format!("{head}Transfer-Encoding: chunked\r\n\r\n0\r\n{many}\r\n")).await;
    assert_eq!(status(&answer), 400, "{answer}");
}

#[tokio::test(start_paused = true)]
async fn attack_24_trailers_of_agents_are_filtered() {
    let world = World::new();
    let services = Services::new().with_fn("kubernetes", async |_: Request<Body>| {
        use http_body_util::BodyExt as _;

        let names =
            ["digest", "set-cookie", "kas-error", "content-length", "access-control-allow-origin", "te"];
        let trailers = names.map(|name| (name.parse().unwrap(), "1".parse().unwrap())).into_iter().collect();
        let body = http_body_util::Full::new(bytes::Bytes::from_static(b"body"));
        let body = body.with_trailers(async move { Some(Ok(trailers)) });
        Response::builder().header("trailer", names.join(", ")).body(Body::new(body)).unwrap()
    });
    let _agent = world.agent(services).await;
    let head = head(&world, "GET", "/kubernetes/trailers");
    let answer = exchange(&world, format!("{head}TE: trailers\r\nConnection: TE\r\n\r\n")).await;
    assert!(answer.ends_with("4\r\nbody\r\n0\r\ndigest: 1\r\n\r\n"), "{answer}");
    let answer = exchange(&world, format!("{head}\r\n")).await;
    assert!(answer.ends_with("4\r\nbody\r\n0\r\n\r\n"), "who does not take them gets a clean end: {answer}");
}
