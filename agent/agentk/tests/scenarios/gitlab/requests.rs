//! Tests of requests and their errors.

use std::{fs, sync::Arc, time::Duration};

use agentk_core::{AgentMetrics, ServiceError, Services, SessionConfig, policy::PolicyEnforcer};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use proto::Reason;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tunnel::Body;

use super::{config, connect, echo, get, held};
use crate::support::{
    gitlab_kas::{GitLabKas, MAKE_REQUEST, Step},
    protobuf::Message,
    start,
};

#[tokio::test(start_paused = true)]
async fn request_and_response_are_forwarded() {
    let (agent, _kas, mut connection) = connect(echo()).await;
    let mut stream = connection.stream().await;
    let headers = [("Impersonate-User", "ada"), ("Kas-Service", "gitops"), ("Connection", "keep-alive")];
    stream.head("GET", "/api/v1/ö/pods", &headers, 0);
    stream.trailer();
    stream.close_send();
    let (status, head) = stream.response_head().await;
    assert_eq!((status, head.get_text(2)), (200, "200 OK".into()));
    assert_eq!(head.get_values(3, "X-Cluster"), ["1"]);
    assert!(head.get_values(3, "Kas-Upstream-Time").is_empty());
    let body = stream.response_data(2).await;
    assert_eq!(String::from_utf8(body).unwrap(), "GET /api/v1/%C3%B6/pods?q=a+b none ada ");
    assert_eq!(stream.response_part().await, (3, Message::new()));
    assert_eq!(stream.step().await, Step::Trailer(Message::new()));
    assert_eq!(stream.step().await, Step::End);
    stream.end(0);

    let mut stream = connection.stream().await;
    stream.head("GET", "/with-body", &[], 4);
    stream.data("bo");
    stream.data("dy");
    stream.trailer();
    stream.close_send();
    assert_eq!(stream.response().await, (200, "GET /with-body?q=a+b 4 none body".into()));
    drop(agent);
}

#[tokio::test(start_paused = true)]
async fn body_without_a_length_arrives_in_pieces() {
    let (_agent, _kas, mut connection) = connect(echo()).await;
    let mut stream = connection.stream().await;
    stream.head("POST", "/chunked", &[], -1);
    for piece in ["one ", "two ", "three"] {
        sleep(Duration::from_millis(500)).await;
        stream.data(piece);
    }
    stream.trailer();
    stream.close_send();
    assert_eq!(stream.response().await, (200, "POST /chunked?q=a+b none none one two three".into()));
}

/// The paused clock allows no overhead, so that this also tests how the WebSocket counts it.
#[tokio::test(start_paused = true)]
async fn large_upload_passes_a_websocket() {
    let services = Services::new().with_fn("kubernetes", |request: Request<Body>| async {
        let body = request.into_body().collect().await.expect("the body is complete").to_bytes();
        Response::new(Body::from(format!("{} bytes", body.len())))
    });
    let (mut kas, dial) = GitLabKas::websocket();
    let address = "ws://kas.test:8150".parse().unwrap();
    let _agent = start(SessionConfig { kas: address, tunnels: 1, ..config() }, dial, services);
    let mut connection = kas.connection().await;
    let mut stream = connection.stream().await;
    // Random bytes, which do not shrink.
    let mut piece = vec![0; 32 << 10];
    piece.fill_with(rand::random);
    let length = 400 * (32 << 10);
    stream.head("POST", "/large", &[], length);
    for _ in 0..400 {
        stream.data(&piece);
    }
    stream.trailer();
    stream.close_send();
    assert_eq!(stream.response().await, (200, format!("{length} bytes")));
}

#[tokio::test(start_paused = true)]
async fn unknown_method_is_unimplemented() {
    let (_agent, _kas, mut connection) = connect(echo()).await;
    let mut stream = connection.stream().await;
    stream.request_info("/gitlab.agent.grpctool.test.Testing/RequestResponse");
    let (code, message) = stream.error().await;
    assert_eq!(code, 12);
    assert_eq!(message, "agentk has no method /gitlab.agent.grpctool.test.Testing/RequestResponse");
    stream.end(0);
}

#[tokio::test(start_paused = true)]
async fn unreachable_cluster_is_unavailable() {
    let services = Services::new().with_fn("kubernetes", |_: Request<Body>| async {
        ServiceError::new(Reason::ClusterUnreachable, "cannot connect to 10.0.0.1:443").into_response()
    });
    let (_agent, _kas, mut connection) = connect(services).await;
    let mut stream = connection.stream().await;
    stream.get("/version");
    let (code, message) = stream.error().await;
    assert_eq!((code, &*message), (14, "agentk: cluster-unreachable: cannot connect to 10.0.0.1:443"));
}

#[tokio::test(start_paused = true)]
async fn refusal_of_the_policy_is_a_status_of_kubernetes() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    fs::write(&file, "rules: [{name: pods, action: allow, services: [kubernetes], resources: [pods]}]")
        .unwrap();
    let policy = Arc::new(PolicyEnforcer::load(file, Vec::new(), AgentMetrics::default()).unwrap());
    let (_agent, _kas, mut connection) = connect(echo().with_policy(&policy)).await;
    assert_eq!(get(connection.stream().await, "/api/v1/namespaces/a/pods").await.0, 200);

    let (status, body) = get(connection.stream().await, "/api/v1/namespaces/a/secrets").await;
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["kind"]), (403, &"Status".into()));
    assert!(body["message"].as_str().unwrap().starts_with("agentk: refused-by-policy: "), "{body}");
}

#[tokio::test(start_paused = true)]
async fn response_that_ends_early_is_an_error() {
    let services = Services::new().with_fn("kubernetes", |_: Request<Body>| async {
        let frames =
            [Ok(Frame::data(Bytes::from_static(b"half"))), Err(std::io::Error::other("connection reset"))];
        Response::new(Body::new(StreamBody::new(stream::iter(frames))))
    });
    let (_agent, _kas, mut connection) = connect(services).await;
    let mut stream = connection.stream().await;
    stream.get("/cut");
    assert_eq!(stream.response_head().await.0, 200);
    assert_eq!(stream.response_data(2).await, b"half");
    let (code, message) = stream.error_after_header().await;
    assert_eq!(code, 1);
    assert!(message.starts_with("the response of the cluster ended early"), "{message}");
}

/// Returns a cluster that takes this number of pieces of the body and no more, and a token that is cancelled with the request.
fn upload(pieces: usize) -> (Services, CancellationToken) {
    let dropped = CancellationToken::new();
    let token = dropped.clone();
    let services = Services::new().with_fn("kubernetes", move |mut request: Request<Body>| {
        let guard = token.clone().drop_guard();
        async move {
            for _ in 0..pieces {
                request.body_mut().frame().await.expect("a frame").expect("no error");
            }
            std::future::pending::<()>().await;
            drop(guard);
            Response::new(Body::empty())
        }
    });
    (services, dropped)
}

#[tokio::test(start_paused = true)]
async fn caller_that_leaves_in_an_upload_cancels_the_request() {
    for ending in 0..4 {
        let (services, dropped) = upload(1);
        let (_agent, _kas, mut connection) = connect(services).await;
        let mut stream = connection.stream().await;
        stream.head("POST", "/upload", &[], 1 << 20);
        // The cluster takes one piece, so that the others block the stream.
        for _ in 0..if ending < 2 { 1 } else { 30 } {
            stream.data(vec![b'x'; 32 << 10]);
        }
        sleep(Duration::from_secs(1)).await;
        assert!(!dropped.is_cancelled());
        match ending {
            0 => stream.end(1),
            1 | 2 => stream.reset(),
            _ => connection.cut(),
        }
        let cancelled = timeout(Duration::from_secs(1), dropped.cancelled()).await;
        assert!(cancelled.is_ok(), "{ending}");
    }
}

#[tokio::test(start_paused = true)]
async fn end_of_the_stream_cancels_a_request_without_a_response() {
    let (services, _release, dropped) = held();
    let (_agent, _kas, mut connection) = connect(services).await;
    let mut stream = connection.stream().await;
    stream.get("/slow");
    sleep(Duration::from_secs(1)).await;
    assert!(!dropped.is_cancelled());
    stream.end(1);
    timeout(Duration::from_secs(1), dropped.cancelled()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn caller_that_leaves_in_a_response_cancels_the_request() {
    // The second one has a reader that takes no bytes.
    for endless in [false, true] {
        let dropped = CancellationToken::new();
        let token = dropped.clone();
        let services = Services::new().with_fn("kubernetes", move |_: Request<Body>| {
            let guard = token.clone().drop_guard();
            async move {
                let first = stream::once(async { Bytes::from_static(b"first") });
                let rest = if endless {
                    stream::repeat(Bytes::from(vec![b'x'; 1000])).boxed()
                } else {
                    stream::pending().boxed()
                };
                let frames = first.chain(rest).map(move |data| {
                    let _ = &guard;
                    Ok::<_, std::io::Error>(Frame::data(data))
                });
                Response::new(Body::new(StreamBody::new(frames)))
            }
        });
        let (_agent, _kas, mut connection) = connect(services).await;
        let mut stream = connection.stream().await;
        stream.get("/watch");
        assert_eq!(stream.response_head().await.0, 200);
        assert!(stream.response_data(2).await.starts_with(b"first"));
        sleep(Duration::from_secs(1)).await;
        assert!(!dropped.is_cancelled());
        stream.end(1);
        timeout(Duration::from_secs(1), dropped.cancelled()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn messages_in_a_wrong_order_end_the_request() {
    let (_agent, _kas, mut connection) = connect(echo()).await;
    let mut stream = connection.stream().await;
    stream.trailer();
    let (code, message) = stream.error().await;
    let expected = "the order of messages is wrong: Message is not allowed after the start";
    assert_eq!((code, &*message), (3, expected));
    stream.end(0);

    let mut stream = connection.stream().await;
    stream.request_info(MAKE_REQUEST);
    stream.data("early");
    let (code, message) = stream.error().await;
    assert_eq!((code, &*message), (3, "the order of messages is wrong: Data is not allowed after the start"));
    stream.end(0);

    let mut stream = connection.stream().await;
    stream.head("POST", "/", &[], -1);
    stream.trailer();
    stream.data("late");
    let (code, message) = stream.error().await;
    assert_eq!((code, &*message), (3, "the order of messages is wrong: Data is not allowed after Trailer"));
    stream.end(0);

    // A request without a target.
    let mut stream = connection.stream().await;
    stream.head("GET", "no-slash", &[], 0);
    let (code, message) = stream.error().await;
    assert_eq!((code, &*message), (3, "its field url_path is not valid in HTTP"));
    stream.end(0);
    assert_eq!(get(connection.stream().await, "/alive").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn new_policy_ends_a_running_response() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    fs::write(&file, "rules: [{name: all, action: allow, services: ['*']}]").unwrap();
    let policy = Arc::new(PolicyEnforcer::load(file.clone(), Vec::new(), AgentMetrics::default()).unwrap());
    let services = Services::new().with_fn("kubernetes", |_: Request<Body>| async {
        let frames =
            stream::once(async { Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(b"first"))) });
        Response::new(Body::new(StreamBody::new(frames.chain(stream::pending()))))
    });
    let (_agent, _kas, mut connection) = connect(services.with_policy(&policy)).await;
    let mut stream = connection.stream().await;
    stream.get("/api/v1/pods");
    assert_eq!(stream.response_head().await.0, 200);
    assert_eq!(stream.response_data(2).await, b"first");
    fs::write(&file, "rules: []").unwrap();
    let reload = tokio::sync::watch::Sender::new(());
    let health = files::ReloadHealth::default().file("--policy-file");
    let follower = tokio::spawn(policy.follow(health, reload.subscribe()));
    assert_eq!(stream.error_after_header().await.0, 1);
    follower.abort();
}
