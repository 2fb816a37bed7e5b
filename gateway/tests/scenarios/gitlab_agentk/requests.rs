//! Requests of callers, and the responses of agentk.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::stream::{self, StreamExt as _};
use h2::Reason;
use http::{HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use kas_testing::world::{World, endless};
use prost::Message as _;
use secrecy::ExposeSecret as _;
use tokio::time::{Instant, sleep};
use tunnel::Body;

use super::{
    assert_aborted,
    client::{Agentk, End, ok},
    get,
    messages::{
        ConnectRequest, ExtraKeyVal, Fields, HeaderExtra, ImpersonationConfig, KUBERNETES, RequestPart, data,
        failure, fields, grpc_header, head, response,
    },
    post, reason, send,
};

#[tokio::test(start_paused = true)]
async fn get_has_these_messages() {
    let world = World::new();
    let (_agentk, [mut first, _second]) = Agentk::start(&world).await;
    let calling = get(&world, "/api/v1/pods?b=2&a=1&b=%20");

    let request = first.request().await;
    assert_eq!(request.info.method_name, format!("/{KUBERNETES}/MakeRequest"));
    let names = |fields: &Fields| {
        let mut names: Vec<String> = fields.keys().cloned().collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names(&request.info.meta), ["content-type", "user-agent"], "no secret of kas");
    assert_eq!(request.info.meta["content-type"].value, ["application/grpc+proto"]);
    let head = request.header.request.unwrap();
    assert_eq!((head.method.as_str(), head.url_path.as_str()), ("GET", "/api/v1/pods"));
    assert_eq!(head.query, fields(&[("a", "1"), ("b", "2"), ("b", " ")]));
    assert_eq!(request.header.content_length, Some(0));
    assert_eq!(request.header.extra, None);
    assert_eq!(
        names(&head.header),
        ["Audit-Id", "Via", "X-Forwarded-For", "X-Request-Id"],
        "no credential of the caller"
    );
    assert_eq!(request.data, [b""; 0]);

    first.finish(response(200, &[("Content-Type", "text/plain")], b"pods"));
    assert_eq!(first.end().await, ok());
    assert_eq!(calling.await.unwrap(), (StatusCode::OK, "pods".to_owned()));
}

/// Returns a body that counts the bytes that kas has taken from it.
fn counted(pieces: usize, piece: usize) -> (Body, Arc<AtomicUsize>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&taken);
    let frames = stream::iter(0..pieces).map(move |_| {
        counter.fetch_add(piece, Relaxed);
        Ok::<_, std::io::Error>(Frame::data(vec![b'x'; piece].into()))
    });
    (Body::new(StreamBody::new(frames)), taken)
}

#[tokio::test(start_paused = true)]
async fn post_has_its_length_and_its_headers_in_the_spelling_of_go() {
    let world = World::new();
    let (_agentk, [mut first, _second]) = Agentk::start(&world).await;
    let mut request = world.request("/agents/prod/kubernetes/api");
    *request.method_mut() = http::Method::POST;
    for (name, value) in [
        ("content-type", "application/json"),
        ("x-a", "1"),
        ("x-a", "2"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("cookie", "secret=1"),
        ("kas-service", "control"),
    ] {
        request.headers_mut().append(name, HeaderValue::from_static(value));
    }
    *request.body_mut() = Body::from("{}");
    let calling = send(&world, request);

    let received = first.request().await;
    assert_eq!(received.header.content_length, Some(2));
    assert_eq!(received.data, [b"{}"]);
    assert_eq!(received.values("Content-Type"), ["application/json"]);
    assert_eq!(received.values("X-A"), ["1", "2"]);
    assert_eq!(received.values("Content-Length"), ["2"]);
    let text = format!("{:?}", received.header).to_lowercase();
    for secret in
        ["hop", "authorization", world.caller_token.expose_secret(), "secret", "kas-service", "host"]
    {
        assert!(!text.contains(&secret.to_lowercase()), "{secret}: {text}");
    }
    first.finish(response(201, &[], b"created"));
    assert_eq!(calling.await.unwrap(), (StatusCode::CREATED, "created".to_owned()));
    assert_eq!(first.end().await, ok());
}

#[tokio::test(start_paused = true)]
async fn upload_is_sent_in_pieces_and_waits_for_agentk() {
    let world = World::new();
    let (_agentk, [mut first, _second]) = Agentk::start(&world).await;
    let (body, taken) = counted(1024, 16 << 10);
    first.stop_reading();
    let calling = post(&world, "/upload", body);
    let (_, header) = first.request_head().await;
    assert_eq!(header.content_length, Some(-1), "its length is not known");
    sleep(Duration::from_secs(5)).await;
    // The windows of the stream and of the tunnel inside of kas, and the buffers of the pipes.
    assert!(taken.load(Relaxed) < 6 << 20, "{} bytes", taken.load(Relaxed));

    first.go_on();
    let mut length = 0;
    loop {
        match first.next_part().await {
            RequestPart::Data(piece) => {
                assert!((1..=32 << 10).contains(&piece.data.len()), "{}", piece.data.len());
                length += piece.data.len();
            }
            other => break assert!(matches!(other, RequestPart::Trailer(_)), "{other:?}"),
        }
    }
    assert_eq!(length, 16 << 20);
    first.finish(response(200, &[], b"stored"));
    assert_eq!(calling.await.unwrap().1, "stored");
}

#[tokio::test(start_paused = true)]
async fn response_may_end_before_the_upload() {
    let world = World::new();
    let (_agentk, [mut first, second]) = Agentk::start(&world).await;
    let calling = post(&world, "/upload", endless("first"));
    first.request_head().await;
    first.finish(response(403, &[("Content-Length", "2")], b"no"));
    assert_eq!(calling.await.unwrap(), (StatusCode::FORBIDDEN, "no".to_owned()));
    // agentk has ended its direction: it needs no error to give the request up.
    assert!(matches!(first.any_end().await, End::Status(0 | 1, _)));
    let calling = get(&world, "/next");
    second.serve().await;
    assert_eq!(calling.await.unwrap().0, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn large_response_waits_for_the_caller_and_arrives_whole() {
    let world = World::new();
    let (_agentk, [mut first, _second]) = Agentk::start(&world).await;
    let calling = tokio::spawn({
        let world = world.clone();
        async move { world.get("/agents/prod/kubernetes/large").await }
    });
    first.request().await;
    let body: Vec<u8> =
        (0..5u32 << 18).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    first.finish(response(200, &[], &body));
    let received = calling.await.unwrap().into_body().collect().await.unwrap().to_bytes();
    assert!(received == body, "{} of {} bytes", received.len(), body.len());
    assert_eq!(first.end().await, ok());
}

#[tokio::test(start_paused = true)]
async fn messages_without_compression_are_accepted() {
    let world = World::new();
    let (_agentk, [mut first, _second]) = Agentk::start(&world).await;
    let calling = get(&world, "/api");
    first.request().await;
    for step in response(200, &[], b"plain") {
        first.send_raw(0, &ConnectRequest { step: Some(step) }.encode_to_vec());
    }
    first.half_close();
    assert_eq!(calling.await.unwrap().1, "plain");
    assert_eq!(first.end().await, ok());
}

#[tokio::test(start_paused = true)]
async fn responses_without_a_body_are_complete() {
    for (method, status) in [("HEAD", 200), ("DELETE", 204), ("GET", 304)] {
        let world = World::new();
        let (_agentk, [mut first, _second]) = Agentk::start(&world).await;
        let mut request = world.request("/agents/prod/kubernetes/api");
        *request.method_mut() = method.parse().unwrap();
        let calling = send(&world, request);
        let received = first.request().await;
        assert_eq!(received.header.request.as_ref().unwrap().method, method);
        first.finish(response(status, &[("Content-Length", "5"), ("X-A", "1")], b""));
        assert_eq!(
            calling.await.unwrap(),
            (StatusCode::from_u16(status).unwrap(), String::new()),
            "{method}"
        );
        assert_eq!(first.end().await, ok(), "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn impersonated_user_is_extra_and_never_a_header() {
    let world = World::new();
    world.set_caller_rights(
        "services: ['*'], access_as: {impersonate: {username: jane, uid: u-1, groups: [dev, ops], \
         extra: [{key: example.com/Team, val: [a, b]}]}}",
    );
    let (_agentk, [mut first, _second]) = Agentk::start(&world).await;
    let calling = get(&world, "/api");
    let received = first.request().await;
    let extra = received.header.extra.clone().unwrap();
    assert_eq!(extra.type_url, "type.googleapis.com/gitlab.agent.kubernetes_api.rpc.HeaderExtra");
    let extra = HeaderExtra::decode(&extra.value[..]).unwrap();
    let expected = ImpersonationConfig {
        username: "jane".to_owned(),
        groups: vec!["dev".to_owned(), "ops".to_owned()],
        uid: "u-1".to_owned(),
        extra: vec![ExtraKeyVal {
            key: "example.com/team".to_owned(),
            val: vec!["a".to_owned(), "b".to_owned()],
        }],
    };
    assert_eq!(extra.imp_config, Some(expected));
    let headers = received.header.request.unwrap().header;
    assert!(headers.keys().all(|name| !name.to_lowercase().starts_with("impersonate")), "{headers:?}");
    first.finish(response(200, &[], b"done"));
    assert_eq!(calling.await.unwrap().1, "done");
}

#[tokio::test(start_paused = true)]
async fn error_before_the_head_has_its_reason() {
    let dial = "gRPC -> HTTP: dial tcp 10.0.0.1:443: connect: connection refused";
    let nested = "gRPC -> HTTP: nested impersonation is not supported - agent is already configured to impersonate an identity";
    for (code, message, status, expected) in [
        (14, dial, 502, "cluster-unreachable"),
        (4, "context deadline exceeded", 504, "cluster-timeout"),
        (12, "unknown service", 404, "unknown-service"),
        (14, nested, 400, "nested-impersonation"),
        (1, "gRPC -> HTTP: malformed HTTP response", 502, "cluster-misbehaved"),
        (-5, "no such code", 502, "cluster-misbehaved"),
    ] {
        let world = World::new();
        let (_agentk, [mut first, _second]) = Agentk::start(&world).await;
        let calling = get(&world, "/api");
        first.request().await;
        first.finish(failure(code, message));
        let (received, body) = calling.await.unwrap();
        assert_eq!(reason(&body), expected, "{code} {message}: {body}");
        assert!(body.contains(message), "{body}");
        assert_eq!(received.as_u16(), status, "{code} {message}");
        assert_eq!(first.end().await, ok(), "{code}: the error is a complete answer");
        assert_eq!(world.metric("kas_gitlab_agentk_violations_total"), 0.0);
    }
}

#[tokio::test(start_paused = true)]
async fn error_at_once_is_an_answer_too() {
    let world = World::new();
    let (_agentk, [mut first, _second]) = Agentk::start(&world).await;
    let calling = post(&world, "/api", "body");
    first.request_head().await;
    first.finish(failure(14, "refused").split_off(2));
    assert_eq!(reason(&calling.await.unwrap().1), "cluster-unreachable");
    assert!(matches!(first.any_end().await, End::Status(0, _)));
}

#[tokio::test(start_paused = true)]
async fn error_in_the_middle_of_a_body_aborts_the_response() {
    let error = failure(1, "gRPC -> HTTP: read HTTP response body: unexpected EOF");
    for (end, with_error) in [("an error", true), ("a half-close", false), ("a reset", false)] {
        let world = World::new();
        let (_agentk, [mut first, _second]) = Agentk::start(&world).await;
        let calling = tokio::spawn({
            let world = world.clone();
            async move { world.get("/agents/prod/kubernetes/api").await }
        });
        first.request().await;
        for step in [grpc_header(), head(200, &[("Content-Length", "100")]), data(b"half")] {
            first.step(step);
        }
        let response = calling.await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        if with_error {
            first.finish(error.clone().split_off(1));
        } else if end == "a reset" {
            first.reset(Reason::INTERNAL_ERROR);
        } else {
            first.half_close();
        }
        assert_aborted(response.into_body()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn caller_that_is_gone_ends_the_stream_with_cancelled() {
    for when in ["before the head", "in the answer", "in the upload"] {
        let world = World::new();
        let (_agentk, [mut first, second]) = Agentk::start(&world).await;
        let caller = world.clone();
        let calling = tokio::spawn(async move {
            let mut request = caller.request("/agents/prod/kubernetes/api");
            if when == "in the upload" {
                *request.method_mut() = http::Method::POST;
                *request.body_mut() = endless("first");
            }
            let response = caller.send(request).await;
            let mut body = response.into_body();
            while body.frame().await.is_some() {}
        });
        first.request_head().await;
        if when == "in the answer" {
            for step in [grpc_header(), head(200, &[]), data(b"watching")] {
                first.step(step);
            }
        }
        sleep(Duration::from_millis(10)).await;
        let started = Instant::now();
        calling.abort();
        assert_eq!(first.any_end().await, End::Status(1, "the caller is gone".to_owned()), "{when}");
        assert!(started.elapsed() < Duration::from_secs(1), "{when}: {:?}", started.elapsed());
        let calling = get(&world, "/next");
        second.serve().await;
        assert_eq!(calling.await.unwrap().0, StatusCode::OK);
    }
}

#[tokio::test(start_paused = true)]
async fn request_that_the_protocol_cannot_carry_is_refused() {
    let world = World::new();
    let (_agentk, [first, _second]) = Agentk::start(&world).await;
    for path in ["/api/v1/a%2Fb", "/api/%2e%2e/b", "/api?a=1;b=2", "/api?a=%ff"] {
        let (status, body) = get(&world, path).await.unwrap();
        assert_eq!(
            (status, reason(&body).as_str()),
            (StatusCode::BAD_REQUEST, "bad-request"),
            "{path}: {body}"
        );
    }
    let calling = get(&world, "/a%20b/%C3%BC//c?q=%2F");
    let received = first.serve().await;
    assert_eq!(received.path(), "/a b/ü//c");
    assert_eq!(received.header.request.unwrap().query, fields(&[("q", "/")]));
    assert_eq!(calling.await.unwrap().0, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn services_that_agentk_does_not_have_are_named() {
    let world = World::new();
    let (_agentk, [first, _second]) = Agentk::start(&world).await;
    for service in ["graph", "gitops", "nonsense"] {
        let (_, body) = send(&world, world.request(&format!("/agents/prod/{service}/x"))).await.unwrap();
        assert!(body.contains("unknown-service") || body.contains("unknown-path"), "{service}: {body}");
    }
    let calling = get(&world, "/still");
    first.serve().await;
    assert_eq!(calling.await.unwrap().0, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn response_may_arrive_step_by_step() {
    let world = World::new();
    let (_agentk, [mut first, _second]) = Agentk::start(&world).await;
    let calling = get(&world, "/api");
    first.request().await;
    for step in response(200, &[], b"x") {
        first.step(step);
        sleep(Duration::from_millis(1)).await;
    }
    first.half_close();
    assert_eq!(first.end().await, ok());
    assert_eq!(calling.await.unwrap(), (StatusCode::OK, "x".to_owned()));
}
