//! The observability listener.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{collections::BTreeSet, path::Path, sync::Arc};

use agentk_core::Services;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kas_testing::{
    fleet::TestFleet,
    world::{CALLER, World, text},
};
use tunnel::Body;

use crate::{
    gitlab_client::{TOKEN, client, standin},
    web::with_page,
};

pub(crate) async fn send(world: &World, method: Method, path: &str) -> Response<Incoming> {
    let (near, far) = tokio::io::duplex(64 << 10);
    tokio::spawn(Arc::clone(&world.kas.admin).server().serve(far, CALLER, Arc::default()));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path).header("host", "kas");
    sender.send_request(request.body(Body::empty()).unwrap()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_path_has_its_status_and_content_type() {
    let world = World::new();
    let (plain, metrics) = ("text/plain; charset=utf-8", "text/plain; version=0.0.4; charset=utf-8");
    for (path, status, content_type, begin) in [
        ("/liveness", 200, plain, "alive\n"),
        ("/readiness", 503, plain, "not ready: starting\n"),
        ("/metrics", 200, metrics, "# HELP "),
        ("/agents", 200, "application/json", "{\n"),
        ("/environments?deployments=true", 200, "application/json", "{"),
        ("/environments?health=true", 400, "application/json", "{"),
        ("/deployments?commit=3f1c9a7", 200, "application/json", "{"),
        (
            "/",
            404,
            plain,
            "the paths are /liveness, /readiness, /metrics, /agents, /events, /environments and /deployments\n",
        ),
        ("/metrics/", 404, plain, "the paths are /liveness"),
    ] {
        let response = send(&world, Method::GET, path).await;
        assert_eq!(
            (response.status().as_u16(), response.headers()["content-type"].as_bytes()),
            (status, content_type.as_bytes())
        );
        let body = text(response).await;
        assert!(body.starts_with(begin), "{path}: {body}");
    }
}

#[tokio::test(start_paused = true)]
async fn head_has_no_body_and_other_methods_are_refused() {
    let world = World::new();
    let head = send(&world, Method::HEAD, "/liveness").await;
    assert_eq!((head.status().as_u16(), head.headers()["content-length"].as_bytes()), (200, &b"6"[..]));
    assert_eq!(text(head).await, "");
    for path in ["/liveness", "/readiness", "/metrics", "/agents"] {
        let refused = send(&world, Method::POST, path).await;
        assert_eq!(
            (refused.status().as_u16(), refused.headers()["allow"].as_bytes()),
            (405, &b"GET,HEAD"[..]),
            "{path}"
        );
        assert_eq!(text(refused).await, "the methods are GET and HEAD\n");
    }
}

/// Returns the lines of `/metrics` that begin with one of the names.
async fn series(world: &World, names: &[&str]) -> Vec<String> {
    let text = text(send(world, Method::GET, "/metrics").await).await;
    let lines = text.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
    lines.map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn each_replica_counts_the_agents_of_all() {
    let fleet = TestFleet::new(2);
    let [here, there] = &fleet.replicas[..] else { panic!("there are two") };
    let names = ["kas_agents{", "kas_agent_instances{", "kas_agent_up{"];
    let expected = |connected: u8, away: u8, never: u8| {
        let version = format!(r#"kas_agent_instances{{version="{}"}} 1"#, env!("CARGO_PKG_VERSION"));
        let lines = [
            Some(format!(r#"kas_agents{{state="connected"}} {connected}"#)),
            Some(format!(r#"kas_agents{{state="away"}} {away}"#)),
            Some(format!(r#"kas_agents{{state="never"}} {never}"#)),
            Some(r#"kas_agents{state="unknown"} 0"#.to_owned()),
            (connected > 0).then_some(version),
            Some(r#"kas_agent_instances{version="other"} 0"#.to_owned()),
            Some(format!(r#"kas_agent_up{{agent="prod"}} {connected}"#)),
        ];
        lines.into_iter().flatten().collect::<Vec<_>>()
    };
    assert_eq!(series(here, &names).await, expected(0, 0, 1));

    let agent = fleet.agent(0, Services::new()).await;
    assert_eq!(series(here, &names).await, expected(1, 0, 0));
    assert_eq!(series(there, &names).await, expected(1, 0, 0), "both tunnels end at the other replica");

    agent.stop().await;
    here.tunnels(0).await;
    assert_eq!(series(here, &names).await, expected(0, 1, 0));
    assert_eq!(series(there, &names).await, expected(1, 0, 0), "the directory was read in the last minute");
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!(series(there, &names).await, expected(0, 1, 0));
}

/// The rate of a series misses the event with which the series begins.
#[tokio::test(start_paused = true)]
async fn counters_of_alerts_exist_before_their_first_event() {
    let world = World::new();
    for name in [
        r#"kas_handshakes_total{reason="accepted"}"#,
        r#"kas_handshakes_total{reason="identity-unavailable"}"#,
        r#"kas_tunnel_lifetime_seconds_count{reason="timed-out"}"#,
        r#"kas_tunnel_lifetime_seconds_count{reason="lost"}"#,
        r#"kas_requests_total{service="none",result="tunnel-lost"}"#,
        r#"kas_limits_total{limit="tunnels-per-agent"}"#,
        r#"kas_disabled{what="agent"}"#,
    ] {
        assert_eq!(world.metric(name), 0.0, "{name}");
    }
}

/// Returns a line of the text format without its value: a help text, a type, or a series. Buckets keep their bound only.
fn shape(line: &str) -> String {
    if line.starts_with('#') {
        return line.to_owned();
    }
    let (series, _) = line.rsplit_once(' ').unwrap();
    let Some((name, labels)) = series.split_once("_bucket{") else {
        return series.replace(env!("CARGO_PKG_VERSION"), "VERSION");
    };
    let bound =
        labels.split(',').map(|label| label.trim_end_matches('}')).find(|label| label.starts_with("le="));
    format!("{name}_bucket{{{}}}", bound.unwrap())
}

/// Dashboards, alerts and queries of users name the metrics, their labels and buckets.
#[tokio::test(start_paused = true)]
async fn metrics_are_those_of_the_list() {
    let gitlab = standin().await;
    let world = World::with_gitlab(client(&gitlab), TOKEN, |config| {
        with_page(config);
        let webhook = "webhooks: [{name: ops, url: 'https://a.example', secret_file: key}]";
        config.events = settings::parse(Path::new("kas.yaml"), webhook).unwrap();
    });
    world.kas.callers.observers.metrics.listeners.create_refused_connections("callers");
    let _agent = world.agent(Services::new()).await;
    assert_eq!(world.send(world.request("/agents/production/nothing/")).await.status(), 404);
    // It reads the states of the agents.
    drop(send(&world, Method::GET, "/metrics").await);
    let text = telemetry::ExpositionFormat::OpenMetrics.render(&world.kas.admin.registry);
    let list = include_str!("../fixtures/metrics.txt");
    let (found, listed) =
        (text.lines().map(shape).collect(), list.lines().map(str::to_owned).collect::<BTreeSet<_>>());
    let missing: Vec<_> = listed.difference(&found).collect();
    let new: Vec<_> = found.difference(&listed).collect();
    assert!(missing.is_empty() && new.is_empty(), "missing: {missing:#?}\nnew: {new:#?}");
}

/// Returns the lines of the metrics that GitLab's kas has, too, without the buckets.
fn lines_of_gitlab(world: &World) -> Vec<String> {
    let text = telemetry::ExpositionFormat::OpenMetrics.render(&world.kas.admin.registry);
    let names = ["gitlab_build", "connected_agents", "agent_server", "k8s_api_proxy"];
    let of_gitlab =
        |line: &str| names.iter().any(|name| line.trim_start_matches("# TYPE ").starts_with(name));
    let lines = text.lines().filter(|line| of_gitlab(line) && !line.contains("_bucket{"));
    lines.map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn metrics_of_gitlab_have_their_names_types_and_labels() {
    let world = World::with(|config| config.observability.gitlab_metrics = true);
    assert_eq!(world.get("/agents/prod/kubernetes/api").await.status(), 503);
    let _agent = world.agent(
        Services::new().with_fn("kubernetes", async |_: Request<Body>| Response::new(Body::from("hello"))),
    );
    let _agent = _agent.await;
    assert_eq!(world.get("/agents/prod/kubernetes/api").await.status(), 200);
    world.kas.agents.metrics.count_handshake("token-rate-limit");
    world.kas.agents.metrics.count_handshake("replica-rate-limit");
    assert_eq!(send(&world, Method::GET, "/metrics").await.status(), 200);
    let lines = lines_of_gitlab(&world);
    let version = env!("CARGO_PKG_VERSION");
    let sum = lines.iter().position(|line| line.starts_with("k8s_api_proxy_routing_duration_seconds_sum"));
    let mut rest = lines.clone();
    assert!(rest.remove(sum.unwrap()).contains("{status=\"success\"} "), "{lines:?}");
    assert_eq!(
        rest,
        [
            "# TYPE gitlab_build_info gauge",
            &format!("gitlab_build_info{{version=\"{version}\",built=\"unknown\"}} 1"),
            "# TYPE connected_agents_count gauge",
            "connected_agents_count 1",
            "# TYPE agent_server_rate_exceeded counter",
            "agent_server_rate_exceeded_total 2",
            "# TYPE k8s_api_proxy_routing_timeout counter",
            "k8s_api_proxy_routing_timeout_total 1",
            "# TYPE k8s_api_proxy_routing_duration_seconds histogram",
            "k8s_api_proxy_routing_duration_seconds_count{status=\"success\"} 1",
        ]
    );
    assert_eq!(lines_of_gitlab(&World::new()), Vec::<String>::new(), "not without the key");
}
