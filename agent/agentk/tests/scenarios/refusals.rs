//! Tests of a kas that refuses tunnels.

use crate::support::{DialResponse, Kas, echo, options, start};
use proto::ReplicaId;
use tokio::time::Duration;

#[tokio::test(start_paused = true)]
async fn refused_connections_are_retried_with_backoff() {
    let replica = ReplicaId::random();
    let (mut kas, dial) = Kas::new(move |number| match number {
        0..13 => DialResponse::NoRoute,
        _ => DialResponse::Accept(replica),
    });
    let agent = start(options(1), dial, echo());

    kas.opened().await;
    // A kas that restarts is back within seconds, so the first ten attempts are quick ones.
    let longest = [500; 10].into_iter().chain([500, 1000, 2000]);
    for (wait, longest) in kas.waits().into_iter().zip(longest) {
        let range = Duration::from_millis(longest / 2)..=Duration::from_millis(longest);
        assert!(range.contains(&wait), "{wait:?} of {longest} ms");
    }
    agent.tunnels(1).await;
}

#[tokio::test(start_paused = true)]
async fn refused_token_names_its_source() {
    let (_kas, dial) = Kas::new(|_| DialResponse::Refuse(401, &[], "the agent token is unknown\n"));
    let agent = start(options(1), dial, echo());

    assert_eq!(
        agent.dial_error().await,
        "kas refused the agent token: it is unknown or was revoked; renew the environment variable AGENTK_TOKEN \
         (message: the agent token is unknown)"
    );
    assert!(
        agent.observability.health.problems()[0].starts_with("no tunnel to kas: kas refused the agent token")
    );
}

#[tokio::test(start_paused = true)]
async fn refusal_is_one_readable_line() {
    for (answer, expected) in [
        (
            DialResponse::Refuse(404, &[], "404 page not found"),
            "ws://kas.test:8150/prefix has no agent listener there",
        ),
        (
            DialResponse::Refuse(426, &[], "this kas speaks kas-tunnel.v9"),
            "(message: this kas speaks kas-tunnel.v9)",
        ),
        (DialResponse::Refuse(429, &[], ""), "kas accepts no tunnel now (429 Too Many Requests)"),
        (DialResponse::Refuse(302, &[("location", "https://login")], ""), "redirects to \"https://login\""),
        (
            DialResponse::Refuse(200, &[], "<h1>Welcome to nginx!</h1>\n\x1b[31m"),
            "answered 200 OK (message: <h1>Welcome",
        ),
        (DialResponse::Refuse(101, &[("upgrade", "websocket")], ""), "is not the agent address of kas"),
        (DialResponse::NoRoute, "the connection broke: connection refused"),
    ] {
        let (_kas, dial) = Kas::new(move |_| answer.clone());
        let error = start(options(1), dial, echo()).dial_error().await;
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains(|c: char| c.is_control()), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_obeyed_for_five_minutes_at_most() {
    let replica = ReplicaId::random();
    let (mut kas, dial) = Kas::new(move |number| match number {
        0 => DialResponse::Refuse(503, &[("retry-after", "30")], "draining"),
        1 => DialResponse::Refuse(429, &[("retry-after", "86400")], "come back tomorrow"),
        _ => DialResponse::Accept(replica),
    });
    let _agent = start(options(1), dial, echo());

    kas.opened().await;
    let waits: Vec<_> = kas.waits().iter().map(Duration::as_secs).collect();
    assert_eq!(waits, [30, 300], "Retry-After, and five minutes at most");
}

#[tokio::test(start_paused = true)]
async fn dial_without_answer_times_out() {
    let replica = ReplicaId::random();
    let (mut kas, dial) = Kas::new(move |number| match number {
        0 => DialResponse::AcceptAfter(Duration::from_secs(3600), replica),
        _ => DialResponse::Accept(replica),
    });
    let agent = start(options(1), dial, echo());

    assert_eq!(agent.dial_error().await, "no answer from ws://kas.test:8150/prefix within 30s");
    kas.opened().await;
}
