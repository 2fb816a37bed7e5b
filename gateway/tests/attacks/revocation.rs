//! Revoked rights and invalid identity files.

use std::{path::Path, time::Duration};

use access::kill_switch;
use futures_util::future::join_all;
use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kas_testing::{
    server,
    world::{World, parse},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    time::{Instant, timeout},
};

use crate::{
    cluster::{Seen, assert_serves, services},
    http1::{head, status},
    http2::{HEADERS, headers},
    tunnel_ends::{Tunnel, agent, switched},
};

/// The time until a revocation takes effect: one check of the file.
const BOUND: Duration = Duration::from_secs(3);

/// Returns a watch, in a spelling that the API server accepts.
async fn watch(world: &World, query: &str) -> Incoming {
    let mut watch = world.get(&format!("/agents/prod/kubernetes/watch{query}")).await.into_body();
    watch.frame().await.unwrap().unwrap();
    watch
}

async fn assert_cut(mut watch: Incoming) {
    let end = timeout(BOUND, watch.frame()).await.expect("it goes on");
    assert!(matches!(end, Some(Err(_))), "{end:?}");
}

/// Starts an exec through the only tunnel.
async fn exec(world: &World, agent: &mut Tunnel) -> DuplexStream {
    let mut caller = world.connect();
    let upgrade = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
    caller
        .write_all(format!("{}{upgrade}", head(world, "POST", "/kubernetes/exec")).as_bytes())
        .await
        .unwrap();
    let stream = agent.next_of(HEADERS).await.unwrap().stream;
    agent.send(&headers(stream, 0, &[(":status", "200"), ("kas-upgraded", "SPDY/3.1")])).await;
    let answer = server::read_head(&mut caller).await;
    assert_eq!(status(&answer), 101, "{answer}");
    caller
}

async fn assert_hung_up(mut exec: DuplexStream) {
    let mut rest = Vec::new();
    timeout(BOUND, exec.read_to_end(&mut rest)).await.expect("it goes on").ok();
}

#[tokio::test(start_paused = true)]
async fn attack_34_revoked_agent_is_cut() {
    let world = World::new();
    let mut by_hand = agent(&world, &[]).await;
    let exec = exec(&world, &mut by_hand).await;
    let half_open = switched(&world).await;
    let _agent = world.start_agent(services());
    world.tunnels(3).await;
    let watch = watch(&world, "?watch=true").await;
    let waiting = tokio::spawn({
        let world = world.clone();
        async move { world.get("/agents/prod/kubernetes/never").await.status() }
    });
    tokio::task::yield_now().await;

    let started = Instant::now();
    world.revoke();
    assert_cut(watch).await;
    assert_hung_up(exec).await;
    world.tunnels(0).await;
    // A safe request waits for another tunnel, as long as any does.
    assert!(timeout(BOUND, waiting).await.unwrap().unwrap().is_server_error());
    assert!(started.elapsed() < 2 * BOUND, "{:?}", started.elapsed());
    // And one that was about to be a tunnel becomes none.
    drop(half_open);
    tokio::time::sleep(Duration::from_secs(60)).await;
    world.tunnels(0).await;
}

#[tokio::test(start_paused = true)]
async fn attack_34_revoked_agent_that_does_not_answer_a_drain_is_cut() {
    let world = World::new();
    let mut by_hand = agent(&world, &[]).await;
    let exec = exec(&world, &mut by_hand).await;
    world.kas.agents.connections.draining.cancel();
    let asked = by_hand.next_of(HEADERS).await.unwrap();
    assert_ne!(asked.stream, 0, "the request to leave, which gets no response");

    world.revoke();
    assert_hung_up(exec).await;
    world.tunnels(0).await;
}

#[tokio::test(start_paused = true)]
async fn exec_that_a_rule_disables_is_cut_and_its_tunnel_stays() {
    let world = World::new();
    let mut by_hand = agent(&world, &[]).await;
    let exec = exec(&world, &mut by_hand).await;
    let disable = |rules: &str| {
        let rules = kill_switch::file::parse(Path::new("disabled.yaml"), rules).unwrap();
        world.kas.callers.kill_switch.set_file(rules);
    };
    disable("rules: [{caller: me, service: prometheus, reason: another service}]");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.in_flight(), 1);

    disable("rules: [{caller: me, reason: an incident}]");
    assert_hung_up(exec).await;
    assert_eq!(world.in_flight(), 0);
    world.tunnels(1).await;
}

#[tokio::test(start_paused = true)]
async fn attack_34_token_that_moves_to_another_agent_loses_its_tunnels() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let watch = watch(&world, "?watch=true").await;
    let moved = world.identity_file("services: ['*']").replace(
        "agents: [{id: 1, name: prod,",
        "agents: [{id: 1, name: prod, tokens: []}, {id: 2, name: other,",
    );
    assert!(moved.contains("name: other"), "{moved}");
    world.kas.identities.replace(parse(&moved));
    assert_cut(watch).await;
    let response = timeout(BOUND, world.get("/agents/prod/kubernetes/api")).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn attack_34_removed_token_is_revoked_within_seconds() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("identity.yaml");
    std::fs::write(&file, world.identity_file("services: ['*']")).unwrap();
    let (identities, read) = (world.kas.identities.clone(), file.clone());
    let (followed, requests) = (world.kas.admin.files.file("identity.file"), world.kas.reload.subscribe());
    let reading = files::follow(followed, vec![file.clone()], requests, move || identities.reload(&read));
    let _reading = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(reading));
    let _agent = world.agent(services()).await;
    let watch = watch(&world, "?watch=true").await;
    tokio::time::sleep(Duration::from_secs(10)).await;

    let started = Instant::now();
    std::fs::write(&file, "agents: [{id: 1, name: prod, tokens: []}]").unwrap();
    assert_cut(watch).await;
    world.tunnels(0).await;
    assert!(started.elapsed() <= BOUND, "{:?}", started.elapsed());
    assert_eq!(world.get("/agents/prod/kubernetes/api").await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test(start_paused = true)]
async fn attack_35_revoked_right_cuts_its_streams() {
    for (rights, refused) in [
        ("services: [prometheus]", "forbidden"),
        ("services: ['*'], access_as: {impersonate: {username: nobody}}", "nested-impersonation"),
    ] {
        let world = World::new();
        let mut by_hand = agent(&world, &[]).await;
        let exec = exec(&world, &mut by_hand).await;
        let _agent = world.start_agent(services());
        world.tunnels(3).await;
        // All of these are watches to an API server; the last one to nobody, and yet it goes on.
        let mut watches = Vec::new();
        for query in ["?watch=true", "?watch", "?watch=", "?watch=yes", "?w%61tch=1", "?follow=TRUE", ""] {
            watches.push(watch_through_either(&world, query, &mut by_hand).await);
        }
        world.set_caller_rights(rights);
        for watch in watches {
            assert_cut(watch).await;
        }
        assert_hung_up(exec).await;
        let mut request = world.request("/agents/prod/kubernetes/api");
        request.headers_mut().insert("impersonate-user", "me".parse().unwrap());
        assert_eq!(world.send(request).await.headers()["kas-error"], refused);
    }
}

/// Starts a watch in one of the tunnels.
async fn watch_through_either(world: &World, query: &str, by_hand: &mut Tunnel) -> Incoming {
    let asking = watch(world, query);
    tokio::pin!(asking);
    loop {
        tokio::select! {
            watch = &mut asking => return watch,
            Some(asked) = by_hand.next_of(HEADERS) => {
                let begun = [
                    headers(asked.stream, 0, &[(":status", "200")]),
                    crate::http2::frame(crate::http2::DATA, 0, asked.stream, b"watching"),
                ];
                by_hand.send(&begun.concat()).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn attack_35_invalid_identity_file_is_ignored() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let mut watch = watch(&world, "?watch=true").await;
    let directory = tempfile::tempdir().unwrap();
    let good = world.identity_file("services: ['*']");
    let (one, two) = good.split_once('\n').unwrap();
    let broken = [
        String::new(),
        "\n# nothing yet\n".into(),
        good[..good.len() / 2].to_owned(),
        one.to_owned() + "\ncallers: [",
        format!("{good}colour: blue\n"),
        good.replace("sha256:", "sha256:zz"),
        good.replace("sha256:", "md5:"),
        format!("{one}\n{one}\n"),
        format!("{two}\n"),
        format!("{good}&a [*a, *a]\n"),
        good.replace("services: ['*']", "services: ['*'], access_as: {impersonate: {}}"),
        "\0\0\0".into(),
    ];
    for (number, text) in broken.iter().enumerate() {
        let file = directory.path().join(number.to_string());
        std::fs::write(&file, text).unwrap();
        assert!(world.kas.identities.reload(&file).is_err(), "{number}: {text}");
    }
    assert!(world.kas.identities.reload(Path::new("/nowhere/identity.yaml")).is_err());
    std::fs::write(directory.path().join("bytes"), b"agents: [\xff\xfe]").unwrap();
    assert!(world.kas.identities.reload(&directory.path().join("bytes")).is_err());

    assert!(timeout(BOUND, watch.frame()).await.is_err(), "the watch goes on");
    world.tunnels(2).await;
    assert_serves(&world).await;
}

/// Permissions are in a file of kas: many callers cause no requests to another system.
#[tokio::test(start_paused = true)]
async fn attack_35_many_callers_cause_no_additional_requests() {
    let world = World::new();
    let seen = Seen::default();
    let _agent = world.agent(seen.services()).await;
    let herd = (0..500).map(|_| {
        let world = world.clone();
        async move { world.get("/agents/prod/kubernetes/herd").await.status() }
    });
    assert!(join_all(herd).await.iter().all(|status| *status == StatusCode::OK));
    assert_eq!(seen.all(), vec!["GET /herd"; 500]);
}

#[tokio::test(start_paused = true)]
async fn exec_ends_when_a_stopping_kas_cuts_its_callers() {
    let world = World::new();
    let mut agent = agent(&world, &[]).await;
    let exec = exec(&world, &mut agent).await;
    world.kas.callers.connections.group.cut.cancel();
    assert_hung_up(exec).await;
}
