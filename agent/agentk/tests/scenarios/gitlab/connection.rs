//! Tests of the pool of streams, and of the end of connections.

use std::{fs, time::Duration};

use agentk_core::{
    AgentToken, DialError, KasAddress, SessionConfig, TcpDialer,
    connect::ProtocolChoice,
    upstream::{ClientTlsConfig, Pem},
};
use tokio::{
    io::AsyncWriteExt as _,
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

use super::{config, connect, echo, get, held};
use crate::support::{
    gitlab_kas::{GitLabKas, Step, listen_tls},
    start,
    tls::certificates,
};

#[tokio::test(start_paused = true)]
async fn connection_registers_and_opens_two_streams_without_response_heads() {
    let (mut kas, dial) = GitLabKas::grpc();
    let mut config = config();
    config.pod.name = Some("agentk-0".into());
    config.pod.namespace = Some("gitlab-agent".into());
    config.headers = vec!["X-Extra: some value".parse().unwrap()];
    let agent = start(config, dial, echo());
    let mut connection = kas.connection().await;

    let (headers, register) = connection.registrations.recv().await.unwrap();
    for (name, value) in [
        ("authorization", "Bearer agent-token"),
        ("user-agent", concat!("agentk/", env!("CARGO_PKG_VERSION"))),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("x-extra", "some value"),
    ] {
        assert_eq!(headers[name], value);
    }
    assert!(headers["grpc-accept-encoding"].to_str().unwrap().contains("gzip"));
    let meta = register.get_message(1);
    assert_eq!(meta.get_text(1), concat!("v", env!("CARGO_PKG_VERSION")));
    assert_eq!((meta.get_text(3), meta.get_text(4)), ("gitlab-agent".into(), "agentk-0".into()));
    let pod_id = register.get_number(2);
    assert!(pod_id > 0);

    let streams = connection.streams().await;
    assert_eq!(streams.len(), 2);
    for stream in &streams {
        assert_eq!(stream.path, "/gitlab.agent.reverse_tunnel.rpc.ReverseTunnel/Connect");
        assert_eq!(stream.headers["authorization"], "Bearer agent-token");
        let service = stream.first.get_message(1).get_message(1).get_message(1);
        assert_eq!(service.get_text(1), "gitlab.agent.kubernetes_api.rpc.KubernetesApi");
        assert_eq!(service.get_message(2).get_text(1), "MakeRequest");
    }
    agent.tunnels(1).await;

    sleep(Duration::from_secs(3000)).await;
    let mut registrations = 0;
    while let Ok((_, again)) = connection.registrations.try_recv() {
        assert_eq!(again.get_number(2), pod_id);
        registrations += 1;
    }
    assert!((9..=10).contains(&registrations), "{registrations}");
    assert!(connection.streams().await.is_empty(), "idle streams stay open");
    for stream in streams {
        assert_eq!(get(stream, "/a").await.0, 200);
    }
    assert_eq!(kas.dials.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn pool_grows_by_ten_and_serves_twelve_requests_at_once() {
    let (_agent, _kas, mut connection) = connect(echo()).await;
    let mut streams = connection.streams().await;
    streams[0].get("/first");
    assert_eq!(streams[0].response().await.0, 200);
    let more = connection.streams().await;
    assert_eq!(more.len(), 10);
    streams.remove(0).end(0);
    streams.extend(more);

    // All eleven carry a request, and so does one of those that replace them.
    for stream in &mut streams {
        stream.head("POST", "/all", &[], -1);
    }
    let mut more = connection.streams().await;
    assert!(more.len() >= 10, "{}", more.len());
    more[0].head("POST", "/all", &[], -1);
    streams.push(more.remove(0));
    for stream in &mut streams {
        stream.trailer();
        stream.close_send();
    }
    for stream in &mut streams {
        assert_eq!(stream.response().await.0, 200);
    }
    for stream in streams {
        stream.end(0);
    }
    assert!(connection.streams().await.is_empty(), "enough streams are idle");
}

#[tokio::test(start_paused = true)]
async fn idle_stream_that_kas_ended_is_replaced_at_once() {
    let (_agent, _kas, mut connection) = connect(echo()).await;
    for _ in 0..20 {
        let stream = connection.stream().await;
        let ended = Instant::now();
        stream.end(0);
        let next = timeout(Duration::from_millis(1), connection.stream()).await.unwrap();
        assert_eq!(ended.elapsed(), Duration::ZERO);
        next.end(0);
    }
}

#[tokio::test(start_paused = true)]
async fn failed_stream_is_opened_again_after_a_growing_wait() {
    let (_agent, _kas, mut connection) = connect(echo()).await;
    let _idle = connection.stream().await;
    let mut failing = connection.stream().await;
    for (shortest, longest) in [(800, 1200), (1280, 1920), (2048, 3072), (3276, 4916)] {
        let failed = Instant::now();
        failing.end(14);
        failing = connection.stream().await;
        let waited = failed.elapsed().as_millis();
        assert!((shortest..=longest).contains(&waited), "{waited}");
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_token_is_reported_and_tried_again_with_backoff() {
    let (mut kas, dial) = GitLabKas::grpc();
    *kas.status.lock() = 16;
    let agent = start(config(), dial, echo());
    let error = agent.dial_error().await;
    let expected = "kas refused the agent token: it is unknown or was revoked; renew the environment variable AGENTK_TOKEN \
                    (message: from the test)";
    assert_eq!(error, expected);
    assert_eq!(*agent.observability.health.tunnels().borrow(), 0);

    sleep(Duration::from_secs(40)).await;
    let waits = kas.waits();
    assert!((4..12).contains(&waits.len()), "{waits:?}");
    assert!(waits.last() > waits.first(), "{waits:?}");
    *kas.status.lock() = 0;
    agent.tunnels(1).await;
    while kas.dials.lock().len() > 1 && timeout(Duration::from_secs(1), kas.connection()).await.is_ok() {}
}

#[tokio::test(start_paused = true)]
async fn other_refusals_of_the_registration_are_named() {
    for (status, expected) in [
        (8, "kas accepts no tunnel now (429 Too Many Requests) (message: from the test)"),
        (
            12,
            "GitLab's kas at grpc://kas.test:8150 does not register this agent: Unimplemented: from the test",
        ),
    ] {
        let (kas, dial) = GitLabKas::grpc();
        *kas.status.lock() = status;
        assert_eq!(start(config(), dial, echo()).dial_error().await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn stopping_agent_resets_idle_streams_and_completes_requests() {
    let (services, release, _) = held();
    let (agent, _kas, mut connection) = connect(services).await;
    let mut streams = connection.streams().await;
    let (mut idle, mut busy) = (streams.remove(0), streams.remove(0));
    busy.get("/slow");
    let more = connection.streams().await;
    assert_eq!(more.len(), 10);

    agent.shut_down();
    assert_eq!(timeout(Duration::from_secs(1), idle.step()).await.unwrap(), Step::Reset);
    sleep(Duration::from_secs(20)).await;
    assert!(connection.ended.try_recv().is_err(), "the request is still running");
    release.send(()).unwrap();
    assert_eq!(busy.response().await, (200, "finished".into()));
    busy.end(0);
    timeout(Duration::from_secs(1), agent.ended()).await.unwrap();
    assert!(timeout(Duration::from_secs(1), connection.ended).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn stopping_agent_cuts_requests_after_the_grace_period() {
    let (services, _release, dropped) = held();
    let (agent, _kas, mut connection) = connect(services).await;
    let mut busy = connection.stream().await;
    busy.get("/slow");
    sleep(Duration::from_secs(1)).await;
    let started = Instant::now();
    agent.shut_down();
    agent.ended().await;
    assert!((25..26).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
    assert_eq!(busy.step().await, Step::Reset);
    assert!(dropped.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn goaway_opens_another_connection_first_and_completes_requests() {
    let (services, release, _) = held();
    let (agent, mut kas, mut old) = connect(services).await;
    let mut streams = old.streams().await;
    let (idle, mut busy) = (streams.remove(0), streams.remove(0));
    busy.get("/slow");
    let more = old.streams().await;
    assert_eq!(more.len(), 10);

    old.go_away();
    let mut new = timeout(Duration::from_millis(1), kas.connection()).await.unwrap();
    assert_eq!(new.streams().await.len(), 2);
    for stream in more.into_iter().chain([idle]) {
        stream.end(0);
    }
    sleep(Duration::from_secs(600)).await;
    assert!(old.ended.try_recv().is_err(), "the request is still running");
    release.send(()).unwrap();
    assert_eq!(busy.response().await, (200, "finished".into()));
    busy.end(0);
    assert!(timeout(Duration::from_secs(1), old.ended).await.is_ok());
    agent.tunnels(1).await;
    assert_eq!(kas.dials.lock().len(), 2);
}

/// GitLab's kas sends GOAWAY after a fifth of the age, and requests to idle streams for some time more.
#[tokio::test(start_paused = true)]
async fn request_to_an_idle_stream_is_served_at_and_after_goaway() {
    let (agent, mut kas, mut old) = connect(echo()).await;
    let mut streams = old.streams().await;
    old.go_away();
    streams[0].get("/at-goaway");
    let _new = kas.connection().await;
    assert_eq!(streams[0].response().await.0, 200);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(get(streams.remove(1), "/later").await.0, 200);
    assert!(old.streams().await.is_empty(), "the old connection takes no more streams");
    streams.remove(0).end(0);
    assert!(timeout(Duration::from_secs(1), old.ended).await.is_ok());
    agent.tunnels(1).await;
}

#[tokio::test(start_paused = true)]
async fn lost_connection_is_dialled_again_and_cancels_its_requests() {
    let (services, _release, dropped) = held();
    let (agent, mut kas, mut connection) = connect(services).await;
    agent.tunnels(1).await;
    let mut busy = connection.stream().await;
    busy.get("/slow");
    sleep(Duration::from_secs(60)).await;
    let lost = Instant::now();
    connection.cut();
    let mut next = kas.connection().await;
    assert!(lost.elapsed() <= Duration::from_millis(250), "{:?}", lost.elapsed());
    assert_eq!(next.streams().await.len(), 2);
    assert!(dropped.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn silent_kas_is_detected_by_pings() {
    let (mut kas, dial) = GitLabKas::grpc();
    let _agent = start(config(), dial, echo());
    let connection = kas.connection().await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(kas.dials.lock().len(), 1, "kas answers pings");
    connection.freeze();
    let frozen = Instant::now();
    kas.connection().await;
    // The next PING is sent up to 55 s later, and its answer may take 20 s.
    assert!((20..=76).contains(&frozen.elapsed().as_secs()), "{:?}", frozen.elapsed());
}

#[tokio::test(start_paused = true)]
async fn rotated_token_replaces_the_connection_before_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    fs::write(&file, "first").unwrap();
    let token = AgentToken::file(file.clone());
    let (mut kas, dial) = GitLabKas::grpc();
    let _agent = start(SessionConfig { token: token.clone(), ..config() }, dial, echo());
    let mut old = kas.connection().await;
    let mut idle = old.stream().await;

    fs::write(&file, "second").unwrap();
    token.reload().unwrap();
    let mut new = kas.connection().await;
    let stream = new.stream().await;
    assert_eq!(stream.headers["authorization"], "Bearer second");
    assert_eq!(timeout(Duration::from_secs(1), idle.step()).await.unwrap(), Step::Reset);
    assert!(timeout(Duration::from_secs(1), old.ended).await.is_ok());
    assert_eq!(get(stream, "/new").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn kas_chooses_the_protocol_of_a_websocket_and_gets_one_connection() {
    let (mut kas, dial) = GitLabKas::websocket();
    let address = "ws://kas.test:8150/prefix".parse().unwrap();
    let agent = start(SessionConfig { kas: address, tunnels: 2, ..config() }, dial, echo());
    let mut connection = kas.connection().await;
    assert_eq!(connection.handshake["sec-websocket-protocol"], "kas-tunnel.v1, ws-tunnel");
    assert_eq!(connection.handshake["authorization"], "Bearer agent-token");
    agent.tunnels(1).await;
    assert_eq!(get(connection.stream().await, "/a").await.0, 200);
    // The other slot has closed its connection before HTTP/2, and waits.
    assert!(timeout(Duration::from_secs(600), kas.connection()).await.is_err());
    assert_eq!(kas.dials.lock().len(), 2);
    connection.cut();
    let _next = kas.connection().await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(kas.dials.lock().len(), 3, "the slot that had the connection dials");
    agent.tunnels(1).await;
}

#[tokio::test(start_paused = true)]
async fn only_the_chosen_protocol_is_offered() {
    let (mut kas, dial) = GitLabKas::websocket();
    let address = "ws://kas.test:8150".parse().unwrap();
    let config = SessionConfig { kas: address, protocol: ProtocolChoice::GitLab, ..config() };
    let _agent = start(config, dial, echo());
    let connection = kas.connection().await;
    assert_eq!(connection.handshake["sec-websocket-protocol"], "ws-tunnel");
    assert!(!connection.handshake.contains_key("kas-hello"));

    let (_kas, dial) = GitLabKas::websocket();
    let address = "ws://kas.test:8150".parse().unwrap();
    let config = SessionConfig { kas: address, protocol: ProtocolChoice::KasTunnel, ..super::config() };
    let error = start(config, dial, echo()).dial_error().await;
    assert_eq!(
        error,
        "ws://kas.test:8150 is GitLab's kas, which does not have the protocol kas-tunnel: use --protocol gitlab, or leave \
         --protocol out"
    );
}

#[tokio::test]
async fn tls_handshake_offers_http2() {
    let (authority, tls) = certificates("127.0.0.1");
    let (port, mut kas) = listen_tls(tls).await;
    let address: KasAddress = format!("grpcs://127.0.0.1:{port}").parse().unwrap();
    let ca = Some(Pem::Inline(authority.into_bytes().into()));
    let dialer =
        TcpDialer::new(address.clone(), ClientTlsConfig { ca, ..ClientTlsConfig::default() }).unwrap();
    let _agent = start(SessionConfig { kas: address, ..config() }, dialer, echo());
    let mut connection = kas.connection().await;
    assert_eq!(get(connection.stream().await, "/tls").await, (200, "GET /tls?q=a+b none none ".into()));
}

#[tokio::test(start_paused = true)]
async fn flood_of_kas_ends_the_connection() {
    let (sender, mut pipes) = mpsc::unbounded_channel();
    let dial = move || {
        let (near, far) = tokio::io::duplex(64 << 10);
        sender.send(far).unwrap();
        async { Ok::<_, DialError>(near) }
    };
    let agent = start(config(), dial, echo());
    let (mut reading, mut kas) = tokio::io::split(pipes.recv().await.unwrap());
    tokio::spawn(async move { tokio::io::copy(&mut reading, &mut tokio::io::sink()).await });
    // SETTINGS and PING (RFC 9113 sections 6.5 and 6.7).
    kas.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let pings = b"\0\0\x08\x06\0\0\0\0\x0012345678".repeat(1000);
    let mut sent = 0;
    while kas.write_all(&pings).await.is_ok() {
        sent += pings.len();
        assert!(sent < 3 << 20, "agentk still reads");
    }
    assert!(agent.dial_error().await.contains("too many frames without effect"));
}
