//! What agentk makes of a kas that does not let it in.

mod support;

use proto::ReplicaId;
use support::{Answer, Kas, echo, options, start};
use tokio::time::Duration;

#[tokio::test(start_paused = true)]
async fn an_agent_comes_back_slower_and_slower() {
    let replica = ReplicaId::random();
    let (mut kas, dial) = Kas::new(move |number| match number {
        0..4 => Answer::NoRoute,
        _ => Answer::Accept(replica),
    });
    let agent = start(options(1), dial, echo());

    kas.opened().await;
    for (wait, longest) in kas.waits().into_iter().zip([500, 1000, 2000, 4000]) {
        let range = Duration::from_millis(longest / 2)..=Duration::from_millis(longest);
        assert!(range.contains(&wait), "{wait:?} of {longest} ms");
    }
    agent.tunnels(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_token_says_what_to_renew() {
    let (_kas, dial) = Kas::new(|_| Answer::Refuse(401, &[], "the agent token is unknown\n"));
    let agent = start(options(1), dial, echo());

    assert_eq!(
        agent.dial_failure().await,
        "kas refused the agent token: it is unknown or was revoked; renew the environment variable AGENTK_TOKEN \
         (it says: the agent token is unknown)"
    );
    assert!(
        agent.telemetry.health.problems()[0].starts_with("no tunnel to kas: kas refused the agent token")
    );
}

#[tokio::test(start_paused = true)]
async fn every_refusal_is_one_readable_line() {
    for (answer, expected) in [
        (
            Answer::Refuse(404, &[], "404 page not found"),
            "ws://kas.test:8150/prefix has no agent listener there",
        ),
        (
            Answer::Refuse(426, &[], "this kas speaks kas-tunnel.v9"),
            "(it says: this kas speaks kas-tunnel.v9)",
        ),
        (Answer::Refuse(429, &[], ""), "kas takes no tunnel now (429 Too Many Requests)"),
        (Answer::Refuse(302, &[("location", "https://login")], ""), "redirects to \"https://login\""),
        (
            Answer::Refuse(200, &[], "<h1>Welcome to nginx!</h1>\n\x1b[31m"),
            "answered 200 OK (it says: <h1>Welcome",
        ),
        (Answer::Refuse(101, &[("upgrade", "websocket")], ""), "is not the agent address of kas"),
        (Answer::NoRoute, "the connection broke: connection refused"),
    ] {
        let (_kas, dial) = Kas::new(move |_| answer.clone());
        let failure = start(options(1), dial, echo()).dial_failure().await;
        assert!(failure.contains(expected), "{failure}");
        assert!(!failure.contains(|c: char| c.is_control()), "{failure:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn kas_may_ask_for_patience() {
    let replica = ReplicaId::random();
    let (mut kas, dial) = Kas::new(move |number| match number {
        0 => Answer::Refuse(503, &[("retry-after", "30")], "draining"),
        1 => Answer::Refuse(429, &[("retry-after", "86400")], "come back tomorrow"),
        _ => Answer::Accept(replica),
    });
    let _agent = start(options(1), dial, echo());

    kas.opened().await;
    let waits: Vec<_> = kas.waits().iter().map(Duration::as_secs).collect();
    assert_eq!(waits, [30, 300], "as asked, but never longer than five minutes");
}

#[tokio::test(start_paused = true)]
async fn a_silent_kas_is_given_up_after_a_while() {
    let replica = ReplicaId::random();
    let (mut kas, dial) = Kas::new(move |number| match number {
        0 => Answer::AcceptAfter(Duration::from_secs(3600), replica),
        _ => Answer::Accept(replica),
    });
    let agent = start(options(1), dial, echo());

    assert_eq!(agent.dial_failure().await, "no answer from ws://kas.test:8150/prefix within 30s");
    kas.opened().await;
}
