//! Requests that must not be executed twice, although the tunnel, the replica or the agent ends in the middle.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use access::kill_switch;
use agentk_core::Services;
use http::{Request, Response, StatusCode};
use kas_testing::{fleet::TestFleet, server, world::World};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};
use tunnel::{Body, upgrade::UpgradedConnection};

use crate::{
    http1::{self, status},
    http2::{HEADERS, REFUSED_STREAM, goaway, headers, reset},
    tunnel_ends::{Tunnel, agent},
};

const EXEC: &str = "/kubernetes/api/v1/namespaces/a/pods/b/exec?command=sh&stdin=true";
/// The methods and the protocols of an exec: the GET is safe by its method only.
const PROTOCOLS: [(&str, &str); 2] = [("GET", "websocket"), ("POST", "SPDY/3.1")];
/// Longer than kas waits for another tunnel.
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts the requests that arrive at a cluster.
#[derive(Clone, Default)]
struct Arrivals(Arc<AtomicUsize>);

impl Arrivals {
    /// Returns services that accept each request, never answer, and call `on_arrival`.
    fn services(&self, on_arrival: impl Fn() + Clone + Send + Sync + 'static) -> Services {
        let count = Arc::clone(&self.0);
        Services::new().with_fn("kubernetes", move |_: Request<Body>| {
            count.fetch_add(1, Relaxed);
            on_arrival();
            std::future::pending::<Response<Body>>()
        })
    }

    fn count(&self) -> usize {
        self.0.load(Relaxed)
    }
}

/// Sends an exec on a new connection, and returns the head of the response.
async fn exec(world: &World, (method, protocol): (&str, &str)) -> (DuplexStream, String) {
    let mut caller = world.connect();
    let upgrade = format!("Connection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n");
    let head = http1::head(world, method, EXEC) + &upgrade;
    caller.write_all(head.as_bytes()).await.unwrap();
    let answer = timeout(PATIENCE, server::read_head(&mut caller)).await.unwrap();
    (caller, answer)
}

fn assert_lost(answer: &str) {
    assert_eq!(status(answer), 502, "{answer}");
    assert!(answer.contains("kas-error: tunnel-lost"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn attack_80_exec_is_not_sent_again_when_its_tunnel_dies() {
    for protocol in PROTOCOLS {
        let (world, arrivals) = (World::new(), Arrivals::default());
        let cut = world.clone();
        let _agent = world.agent(arrivals.services(move || cut.cut_tunnels())).await;
        let (_caller, answer) = exec(&world, protocol).await;
        assert_lost(&answer);
        assert_eq!(arrivals.count(), 1, "{protocol:?}");
        assert_eq!(world.metric("kas_retries_total"), 0.0);

        // A request that is safe is repeated, so that the count above is no accident.
        let answer = timeout(PATIENCE, world.get("/agents/prod/kubernetes/api")).await.unwrap();
        assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
        assert_eq!(arrivals.count(), 1 + 3);
    }
}

#[tokio::test(start_paused = true)]
async fn attack_80_relayed_exec_is_not_sent_again_when_the_tunnel_of_its_owner_dies() {
    for protocol in PROTOCOLS {
        let (fleet, arrivals) = (TestFleet::new(3), Arrivals::default());
        let owners = [fleet.replicas[1].clone(), fleet.replicas[2].clone()];
        let cutting = arrivals.services(move || owners.iter().for_each(World::cut_tunnels));
        let _agents = [fleet.agent(1, cutting.clone()).await, fleet.agent(2, cutting).await];
        let (_caller, answer) = exec(&fleet.replicas[0], protocol).await;
        assert_lost(&answer);
        assert_eq!(arrivals.count(), 1, "{protocol:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn attack_80_relayed_exec_is_not_sent_again_when_its_owner_dies() {
    for protocol in PROTOCOLS {
        let (fleet, arrivals) = (TestFleet::new(3), Arrivals::default());
        let (arrived, mut arrival) = mpsc::unbounded_channel();
        let mut agents = Vec::new();
        for index in [1, 2] {
            let arrived = arrived.clone();
            agents.push(fleet.agent(index, arrivals.services(move || arrived.send(index).unwrap())).await);
        }
        let killing = async {
            let owner = arrival.recv().await.unwrap();
            fleet.kill(owner).await;
        };
        let ((_caller, answer), ()) = tokio::join!(exec(&fleet.replicas[0], protocol), killing);
        assert_lost(&answer);
        assert_eq!(arrivals.count(), 1, "{protocol:?}");
    }
}

/// The refusal of a stream guarantees that the agent did not process it (RFC 9113 section 8.7), so that nobody notices.
#[tokio::test(start_paused = true)]
async fn exec_that_was_certainly_not_processed_is_sent_again() {
    let world = World::new();
    let mut refusing = agent(&world, &[]).await;
    let calling = tokio::spawn({
        let world = world.clone();
        async move { exec(&world, PROTOCOLS[0]).await }
    });
    let refused = refusing.next_of(HEADERS).await.unwrap().stream;
    let mut accepting = agent(&world, &[]).await;
    refusing.send(&reset(refused, REFUSED_STREAM)).await;
    let accepted = accepting.next_of(HEADERS).await.unwrap().stream;
    accepting.send(&headers(accepted, 0, &[(":status", "200"), ("kas-upgraded", "websocket")])).await;
    let (_caller, answer) = calling.await.unwrap();
    assert_eq!(status(&answer), 101, "{answer}");
}

/// Two replicas: the agent is at the second one, the caller at the first one. The ends of execs in the cluster.
async fn relayed() -> (TestFleet, impl Sized, mpsc::UnboundedReceiver<DuplexStream>) {
    let fleet = TestFleet::new(2);
    let (started, execs) = mpsc::unbounded_channel();
    let services = Services::new().with_fn("kubernetes", move |_: Request<Body>| {
        let (near, far) = tokio::io::duplex(64 << 10);
        started.send(far).unwrap();
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert("upgrade", "websocket".parse().unwrap());
        response.extensions_mut().insert(UpgradedConnection::new(near));
        std::future::ready(response)
    });
    let agent = fleet.agent(1, services).await;
    (fleet, agent, execs)
}

async fn assert_ends(mut exec: DuplexStream) {
    let ended = timeout(Duration::from_secs(3), exec.read_to_end(&mut Vec::new())).await;
    ended.expect("the connection ends").ok();
}

#[tokio::test(start_paused = true)]
async fn attack_80_relayed_exec_keeps_its_half_close() {
    let (fleet, _agent, mut execs) = relayed().await;
    let (mut caller, answer) = exec(&fleet.replicas[0], PROTOCOLS[0]).await;
    assert_eq!(status(&answer), 101, "{answer}");
    let mut cluster = execs.recv().await.unwrap();
    caller.write_all(b"input").await.unwrap();
    caller.shutdown().await.unwrap();
    let mut input = String::new();
    cluster.read_to_string(&mut input).await.unwrap();
    assert_eq!(input, "input");
    cluster.write_all(b"exit status 3").await.unwrap();
    drop(cluster);
    let mut output = String::new();
    caller.read_to_string(&mut output).await.unwrap();
    assert_eq!(output, "exit status 3");
}

#[tokio::test(start_paused = true)]
async fn attack_80_relayed_exec_ends_by_kill_switch_revocation_and_death() {
    let (fleet, _agent, mut execs) = relayed().await;
    let near = &fleet.replicas[0];
    let disable = |world: &World, rules| {
        let rules = kill_switch::file::parse(std::path::Path::new("disabled.yaml"), rules).unwrap();
        world.kas.callers.kill_switch.set_file(rules);
    };
    for cause in ["kill switch", "rights", "caller", "tunnel"] {
        let (caller, answer) = exec(near, PROTOCOLS[0]).await;
        assert_eq!(status(&answer), 101, "{cause}: {answer}");
        let cluster = execs.recv().await.unwrap();
        match cause {
            "kill switch" => disable(near, "rules: [{agent: prod, reason: an incident}]"),
            "rights" => near.set_caller_rights("services: [prometheus]"),
            "caller" => near.revoke_caller(),
            _ => fleet.replicas[1].cut_tunnels(),
        }
        assert_ends(caller).await;
        assert_ends(cluster).await;
        disable(near, "rules: []");
        near.set_caller_rights("services: ['*']");
    }
    assert!(execs.try_recv().is_err(), "no exec was sent a second time");
}

/// Sends a POST that the only tunnel receives. Returns its response as text, and its stream.
async fn posted(world: &World, to: &mut Tunnel) -> (JoinHandle<String>, u32) {
    let request = http1::head(world, "POST", "/kubernetes/apply") + "Content-Length: 11\r\n\r\nreplicas: 1";
    let world = world.clone();
    let calling = tokio::spawn(async move { http1::exchange(&world, request).await });
    (calling, to.next_of(HEADERS).await.unwrap().stream)
}

/// Starts an agent that counts its requests and answers them.
async fn honest(world: &World, count: &Arc<AtomicUsize>) -> impl Sized + use<> {
    let count = Arc::clone(count);
    let agent = world.start_agent(Services::new().with_fn("kubernetes", move |_: Request<Body>| {
        count.fetch_add(1, Relaxed);
        std::future::ready(Response::new(Body::from("applied")))
    }));
    world.tunnels(3).await;
    agent
}

/// The agent has begun to answer, and then claims that it has not processed the request.
#[tokio::test(start_paused = true)]
async fn attack_08_request_with_a_begun_response_is_not_sent_again() {
    let lies: [fn(u32) -> Vec<u8>; 2] = [|_| goaway(0, 0), |stream| reset(stream, REFUSED_STREAM)];
    for (lie, begun, expected) in lies.into_iter().flat_map(|lie| [(lie, "103", 502), (lie, "200", 0)]) {
        let (world, repeated) = (World::new(), Arc::default());
        let mut lying = agent(&world, &[]).await;
        let (calling, stream) = posted(&world, &mut lying).await;
        let _honest = honest(&world, &repeated).await;
        lying.send(&[headers(stream, 0, &[(":status", begun)]), lie(stream)].concat()).await;
        let answer = calling.await.unwrap();
        // A head that arrives together with the error of its body is not written: the connection is closed.
        assert_eq!(status(&answer), expected, "{begun}: {answer}");
        assert!(expected == 0 || answer.contains("kas-error: tunnel-lost"), "{answer}");
        assert_eq!(repeated.load(Relaxed), 0, "{begun}");
    }
}

/// Without an answer kas cannot know that the agent has executed the request. It believes the agent, which thus repeats only
/// requests to itself, and each at most twice.
#[tokio::test(start_paused = true)]
async fn attack_08_lying_goaway_repeats_a_request_only_to_its_own_agent() {
    let (world, executed) = (World::new(), Arc::new(AtomicUsize::new(0)));
    for _ in 0..4 {
        let (mut lying, executed) = (agent(&world, &[]).await, Arc::clone(&executed));
        tokio::spawn(async move {
            while lying.next_of(HEADERS).await.is_some() {
                executed.fetch_add(1, Relaxed);
                lying.send(&goaway(0, 0)).await;
            }
        });
    }
    let request = http1::head(&world, "POST", "/kubernetes/apply") + "Content-Length: 11\r\n\r\nreplicas: 1";
    let answer = http1::exchange(&world, request).await;
    assert_eq!(status(&answer), 503, "{answer}");
    assert_eq!(executed.load(Relaxed), 3);
    assert_eq!(world.metric("kas_retries_total"), 2.0);
}
