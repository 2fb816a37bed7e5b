//! Connections: how they begin, are listed, drain, and are cut.

use std::{collections::BTreeSet, time::Duration};

use agentk_core::Services;
use futures_util::future::join_all;
use gateway::config::AgentProtocol;
use http::{Request, Response, StatusCode};
use kas_testing::world::World;
use proto::AgentId;
use secrecy::ExposeSecret as _;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, sleep, timeout},
};
use tunnel::Body;

use super::{
    client::{Agentk, End, dial, ok, shake_hands},
    get,
    messages::{CONNECT, GET_CONFIGURATION, REGISTER, response},
};
use crate::agent_list::agents;

#[tokio::test(start_paused = true)]
async fn agentk_is_listed_with_what_it_reports() {
    let world = World::new();
    let (_agentk, _streams) = Agentk::start(&world).await;
    let listed = agents(&world).await;
    assert_eq!((&listed[0]["name"], &listed[0]["state"]), (&json!("prod"), &json!("connected")));
    let tunnels = listed[0]["tunnels"].as_array().unwrap();
    assert_eq!(tunnels.len(), 1, "one for each connection");
    let tunnel = &tunnels[0];
    assert_eq!(tunnel["version"], "gitlab-16.5.0-8daa08cc");
    assert_eq!(
        (&tunnel["pod_name"], &tunnel["pod_namespace"]),
        (&json!("agentk-1"), &json!("exchanges")),
        "{tunnel}"
    );
    assert_eq!(tunnel["kubernetes_version"], "v1.37.2", "{tunnel}");
    assert_eq!(tunnel["services"][0]["name"], "kubernetes");
    let calls = |method: &str| {
        world.metric(&format!("kas_gitlab_agentk_calls_total{{method=\"{method}\",code=\"Ok\"}}"))
    };
    assert_eq!(calls("ReverseTunnel/Connect"), 2.0);
    assert_eq!(calls("AgentRegistrar/Register"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn agentk_in_a_websocket_is_served() {
    let world = World::new();
    let agentk = Agentk::connect_websocket(&world).await;
    let (_agentk, [first, _second]) = agentk.started(&world, "agentk-1").await;
    let calling = get(&world, "/version");
    first.serve().await;
    assert_eq!(calling.await.unwrap(), (StatusCode::OK, "/version".to_owned()));
}

/// agentk asks the API server for its version first, and the tunnel does not wait for that.
#[tokio::test(start_paused = true)]
async fn agentk_that_registers_late_is_listed_with_what_it_reports_then() {
    let world = World::new();
    let mut agentk = Agentk::connect(&world).await;
    let _streams = [agentk.idle().await, agentk.idle().await];
    world.tunnels(1).await;
    let version = async || {
        let listed = agents(&world).await;
        let tunnel = listed[0]["tunnels"][0].clone();
        (tunnel["version"].clone(), tunnel["kubernetes_version"].clone())
    };
    assert_eq!(version().await, (json!("gitlab-unknown"), json!(null)));
    sleep(Duration::from_secs(5)).await;
    agentk.register("agentk-1").await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(version().await, (json!("gitlab-16.5.0-8daa08cc"), json!("v1.37.2")));
    let published = world.kas.agents.store.list_instances(&[AgentId(1)]).await.connected;
    let reported = &published[0].instances[0].reported;
    assert_eq!(reported.version, "gitlab-16.5.0-8daa08cc");
    assert_eq!(reported.pod_name.as_deref(), Some("agentk-1"));
}

/// Versions after 16.5 describe themselves later, or not at all.
#[tokio::test(start_paused = true)]
async fn agentk_that_does_not_describe_itself_is_served() {
    let world = World::new();
    let mut agentk = Agentk::connect(&world).await;
    let stream = agentk.idle().await;
    world.tunnels(1).await;
    let calling = get(&world, "/version");
    stream.serve().await;
    assert_eq!(calling.await.unwrap().0, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn protocols_of_the_configuration_are_the_only_ones() {
    use AgentProtocol::{Http2, KasTunnel, WsTunnel};

    for (allowed, direct, websocket, own) in [
        (vec![KasTunnel, WsTunnel, Http2], true, true, true),
        (vec![KasTunnel, WsTunnel], false, true, true),
        (vec![KasTunnel, Http2], true, false, true),
        (vec![WsTunnel], false, true, false),
        (vec![KasTunnel], false, false, true),
    ] {
        let world = World::with(|config| {
            config.agent.listen.protocols = allowed.iter().copied().collect::<BTreeSet<_>>();
        });
        let mut io = dial(&world);
        io.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut head = vec![0; 9];
        let is_http2 = io.read_exact(&mut head).await.is_ok() && head[3] == 4;
        assert_eq!(is_http2, direct, "{allowed:?}: {head:?}");
        for (subprotocol, expected) in [("ws-tunnel", websocket), ("kas-tunnel.v1", own)] {
            let head = shake_hands(&mut dial(&world), subprotocol).await;
            // 401: it has no token.
            let accepted = if subprotocol == "ws-tunnel" { "http/1.1 101" } else { "http/1.1 401" };
            assert_eq!(head.starts_with(accepted), expected, "{allowed:?}: {head}");
            assert!(expected || head.starts_with("http/1.1 426"), "{allowed:?}: {head}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_credentials_are_refused_with_unauthenticated() {
    let world = World::new();
    let token = format!("Bearer {}", world.agent_token.expose_secret());
    let caller = format!("Bearer {}", world.caller_token.expose_secret());
    for fields in [
        vec![],
        vec![("authorization", "Bearer wrong")],
        vec![("authorization", &*caller)],
        vec![("authorization", &*token), ("authorization", &*token)],
        vec![("authorization", token.strip_prefix("Bearer ").unwrap())],
    ] {
        for method in [CONNECT, GET_CONFIGURATION, REGISTER, "/unknown/Method"] {
            let mut agentk = Agentk::connect(&world).await;
            let mut call = agentk.call_with(method, &fields).await;
            let End::Status(code, message) = call.end().await else { panic!("no status") };
            assert_eq!(code, 16, "{method} {fields:?}: {message}");
        }
    }
    assert_eq!(world.kas.agents.metrics.tunnels.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn connection_belongs_to_the_agent_of_its_first_call() {
    let world = World::new();
    let other = access::token::new(access::token::Holder::Agent);
    let identity = world.identity_file("services: ['*']");
    let entry = format!("}}, {{id: 2, name: test, tokens: ['{}']}}]\n", access::token::TokenHash::of(&other));
    world.kas.identities.replace(kas_testing::world::parse(&identity.replacen("}]\n", &entry, 1)));
    let (mut agentk, [first, _second]) = Agentk::start(&world).await;
    let bearer = format!("Bearer {}", other.expose_secret());
    for method in [CONNECT, GET_CONFIGURATION, REGISTER] {
        let mut call = agentk.call_with(method, &[("authorization", &bearer)]).await;
        assert!(matches!(call.end().await, End::Status(16, _)), "{method}");
    }
    let calling = get(&world, "/version");
    first.serve().await;
    assert_eq!(calling.await.unwrap().0, StatusCode::OK, "the first agent is undisturbed");
}

#[tokio::test(start_paused = true)]
async fn revoked_token_cuts_the_connection_and_refuses_new_calls() {
    let world = World::new();
    let (agentk, [mut busy, mut idle]) = Agentk::start(&world).await;
    let calling = get(&world, "/slow");
    busy.request().await;
    world.revoke();
    let started = Instant::now();
    assert_eq!(calling.await.unwrap().0, StatusCode::SERVICE_UNAVAILABLE);
    world.tunnels(0).await;
    busy.any_end().await;
    idle.any_end().await;
    agentk.closed().await;
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    let mut again = Agentk::connect(&world).await;
    let mut call = again.call(CONNECT).await;
    assert!(matches!(call.end().await, End::Status(16, _)));
}

#[tokio::test(start_paused = true)]
async fn connection_that_kas_drains_keeps_one_stream_until_agentk_has_another() {
    for reason in ["age", "shutdown"] {
        let world =
            World::with(|config| config.agent.listen.max_connection_age = Duration::from_secs(60).into());
        let (mut agentk, [mut busy, mut kept]) = Agentk::start(&world).await;
        let mut surplus = agentk.idle().await;
        let calling = get(&world, "/slow");
        busy.request().await;
        if reason == "shutdown" {
            world.kas.agents.connections.draining.cancel();
        }
        assert_eq!(surplus.end().await, ok(), "{reason}: agentk opens another at once");
        let drained = Instant::now();
        assert!(agentk.is_leaving().await, "{reason}: on another connection");
        assert_eq!(kept.end().await, ok());
        assert_eq!(drained.elapsed(), Duration::from_secs(3), "{reason}");

        busy.finish(response(200, &[], b"done"));
        assert_eq!(calling.await.unwrap(), (StatusCode::OK, "done".to_owned()), "{reason}");
        assert_eq!(busy.end().await, ok());
        agentk.closed().await;
    }
}

/// A GitLab agentk that opens a new connection as soon as kas drains the old one, and serves all requests.
async fn reconnecting(world: World) {
    loop {
        let mut agentk = Agentk::connect(&world).await;
        let mut serving = tokio::task::JoinSet::new();
        while let Ok(mut stream) = agentk.try_idle().await {
            serving.spawn(async move {
                // kas ends the stream without a request when it drains.
                let Ok(Some(_)) = stream.try_next::<super::messages::ConnectResponse>().await else { return };
                while !matches!(stream.next_step().await, super::messages::KasStep::CloseSend(_)) {}
                sleep(Duration::from_millis(70)).await;
                stream.finish(response(200, &[], b"done"));
                assert_eq!(stream.end().await, ok());
            });
            if serving.len() >= 12 {
                serving.join_next().await.unwrap().unwrap();
            }
        }
        tokio::spawn(async move { while serving.join_next().await.is_some() {} });
    }
}

#[tokio::test(start_paused = true)]
async fn draining_under_load_loses_no_request() {
    let world = World::with(|config| config.agent.listen.max_connection_age = Duration::from_secs(5).into());
    let _agentk = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(reconnecting(world.clone())));
    world.tunnels(1).await;
    let end = Instant::now() + Duration::from_secs(20);
    let callers = (0..4).map(|_| {
        let world = world.clone();
        async move {
            let mut served = 0;
            while Instant::now() < end {
                let (status, body) = get(&world, "/api").await.unwrap();
                assert_eq!((status, body.as_str()), (StatusCode::OK, "done"));
                served += 1;
            }
            served
        }
    });
    let served: u32 = join_all(callers).await.into_iter().sum();
    assert!(served > 4 * 150, "{served}");
}

#[tokio::test(start_paused = true)]
async fn pods_with_both_kinds_of_agentk_serve_without_a_failed_request() {
    for leaver in ["ours", "GitLab's"] {
        let world = World::new();
        let services = Services::new().with_fn("kubernetes", async |_: Request<Body>| {
            sleep(Duration::from_millis(70)).await;
            Response::new(Body::from("done"))
        });
        let ours = world.agent(services).await;
        let (agentk, streams) = Agentk::start(&world).await;
        let mut agentk = agentk;
        let mut open: Vec<_> = streams.into();
        for _ in 0..10 {
            open.push(agentk.idle().await);
        }
        let mut stop = Vec::new();
        for mut stream in open {
            let (stopping, mut stopped) = tokio::sync::oneshot::channel::<()>();
            stop.push(stopping);
            tokio::spawn(async move {
                tokio::select! {
                    biased;
                    _ = &mut stopped => return stream.reset(h2::Reason::CANCEL),
                    _ = stream.request() => {}
                }
                sleep(Duration::from_millis(70)).await;
                stream.finish(response(200, &[], b"done"));
                assert_eq!(stream.end().await, ok());
            });
        }
        let callers: Vec<_> = (0..16).map(|_| get(&world, "/api")).collect();
        sleep(Duration::from_millis(10)).await;
        if leaver == "ours" {
            ours.stop().await;
        } else {
            drop(stop);
            sleep(Duration::from_millis(200)).await;
            world.tunnels(2).await;
        }
        for calling in callers {
            assert_eq!(calling.await.unwrap(), (StatusCode::OK, "done".to_owned()), "{leaver} leaves");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn connection_without_a_stream_is_closed_after_the_handshake_timeout() {
    let world = World::new();
    let limit = world.kas.agents.handshake_timeout;
    for calls in [false, true] {
        let mut agentk = Agentk::connect(&world).await;
        if calls {
            agentk.register("agentk-1").await;
        }
        let started = Instant::now();
        timeout(limit * 2, agentk.closed()).await.expect("kas closes it");
        assert!(started.elapsed() <= limit + Duration::from_secs(1), "{:?}", started.elapsed());
    }
}
