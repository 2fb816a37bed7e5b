//! Attacks on the private listener: by strangers, and with captured requests of replicas.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use agentk_core::Services;
use http::{HeaderMap, Method, Request, Response, Uri};
use kas_core::peers::{PEER_HEADER, PeerHeader, PeerRequestKind, ProbeResponse, ResponseKey, SignedRequest};
use proto::{AgentId, ReplicaId};
use router::RequestClass;
use settings::Secret;
use store::{Replica, RouteStore as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tunnel::{Body, CallError, CallErrorKind, Tunnel, TunnelConfig, direct};

use kas_testing::{
    fleet::{AGENT, PeerBehaviour, TestFleet, address, secret},
    world::{RunningAgent, text},
};

/// Two replicas, an agent at the second one, and the number of requests that reached it.
struct Target {
    fleet: TestFleet,
    received: Arc<AtomicUsize>,
    _agent: RunningAgent,
}

/// A valid request of the first replica to the second one.
#[derive(Clone)]
struct PeerRequest {
    secret: Option<Secret>,
    to: Replica,
    headers: HeaderMap,
    header: PeerHeader,
    service: &'static str,
    method: Method,
    uri: Uri,
}

impl Target {
    async fn new() -> Self {
        let fleet = TestFleet::new(2);
        let received = Arc::new(AtomicUsize::new(0));
        let counting = Arc::clone(&received);
        let services = Services::new().with_fn("kubernetes", move |_: Request<Body>| {
            counting.fetch_add(1, Relaxed);
            async { Response::new(Body::from("cluster")) }
        });
        let agent = fleet.agent(1, services).await;
        Self { fleet, received, _agent: agent }
    }

    async fn connect(&self) -> Tunnel {
        let settings = TunnelConfig::default();
        let (tunnel, driver) = direct::open(self.fleet.pipes.connect(1), &settings).await.unwrap();
        tokio::spawn(driver.run());
        tunnel.ready().await;
        tunnel
    }

    fn request(&self, sequence: u64) -> PeerRequest {
        let sent_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64;
        let (from, class) = (self.fleet.id(0), RequestClass::Short);
        PeerRequest {
            secret: Some(secret(1)),
            to: self.fleet.store.replica(self.fleet.id(1)).unwrap(),
            headers: HeaderMap::new(),
            header: PeerHeader {
                kind: PeerRequestKind::Forward,
                from,
                agent: AGENT,
                class,
                sent_ms,
                sequence,
                mac: None,
            },
            service: "kubernetes",
            method: Method::DELETE,
            uri: Uri::from_static("/api/v1/pods?x=1"),
        }
    }

    fn served(&self, result: &str) -> f64 {
        self.fleet.replicas[1].metric(&format!("kas_peer_served_total{{result=\"{result}\"}}"))
    }

    /// Asserts that other callers are still served.
    async fn assert_served(&self) {
        let before = self.received.load(Relaxed);
        assert_eq!(text(self.fleet.replicas[0].get("/agents/prod/kubernetes/").await).await, "cluster");
        assert_eq!(self.received.load(Relaxed), before + 1);
    }
}

impl PeerRequest {
    fn into_request(mut self) -> Request<Body> {
        let Self { secret, to, headers, header, service, method, uri } = &self;
        let signed = SignedRequest { header, to, service, method, uri, headers };
        self.header.mac = secret.as_ref().map(|secret| signed.sign(secret));
        let request =
            Request::builder().method(self.method).uri(self.uri).header(proto::header::SERVICE, self.service);
        request.header(PEER_HEADER, self.header.encode()).body(Body::empty()).unwrap()
    }
}

fn refused(answer: Result<Response<Body>, CallError>) -> bool {
    matches!(answer, Err(CallError { kind: CallErrorKind::Refused, .. }))
}

#[tokio::test(start_paused = true)]
async fn private_signed_request_is_accepted_once() {
    let target = Target::new().await;
    let tunnel = target.connect().await;
    let request = target.request(7);
    assert!(tunnel.call(request.clone().into_request()).await.unwrap().status().is_success());
    assert_eq!(target.received.load(Relaxed), 1);
    // Neither the same connection nor another one accepts it again.
    assert!(refused(tunnel.call(request.clone().into_request()).await));
    assert!(refused(target.connect().await.call(request.into_request()).await));
    assert_eq!((target.received.load(Relaxed), target.served("replayed")), (1, 2.0));
    target.assert_served().await;
}

/// A ping-back makes a replica connect: only for another replica, and only to its address in the route store.
#[tokio::test(start_paused = true)]
async fn private_stranger_causes_no_connection() {
    let target = Target::new().await;
    let tunnel = target.connect().await;
    let ping_back = |sequence| {
        let mut request = target.request(sequence);
        request.header.kind = PeerRequestKind::PingBack;
        PeerRequest { service: "control", method: Method::GET, uri: Uri::from_static("/"), ..request }
    };
    for secret in [None, Some(secret(2))] {
        assert!(refused(tunnel.call(PeerRequest { secret, ..ping_back(1) }.into_request()).await));
    }
    let pings = || target.fleet.replicas[0].metric("kas_peer_served_total{result=\"answered\"}");
    assert_eq!((pings(), target.served("invalid-mac")), (0.0, 2.0));

    let mut unknown = ping_back(1);
    unknown.header.from = ReplicaId::random();
    let answer = tunnel.call(unknown.into_request()).await.unwrap();
    assert!(
        answer.headers()[&PEER_HEADER].to_str().unwrap().starts_with("v1 agent-not-connected "),
        "{answer:?}"
    );
    let answer = tunnel.call(ping_back(2).into_request()).await.unwrap();
    assert!(answer.headers()[&PEER_HEADER].to_str().unwrap().starts_with("v1 holds "), "{answer:?}");
    assert_eq!(pings(), 1.0, "at the address in the directory");
    target.assert_served().await;
}

#[tokio::test(start_paused = true)]
async fn private_request_without_the_secret_is_refused() {
    let target = Target::new().await;
    let tunnel = target.connect().await;
    let request = target.request(1);
    for (what, secret) in [("no MAC", None), ("another secret", Some(secret(2)))] {
        assert!(
            refused(tunnel.call(PeerRequest { secret, ..request.clone() }.into_request()).await),
            "{what}"
        );
    }
    assert_eq!(target.served("invalid-mac"), 2.0);

    let good = request.into_request();
    let header = good.headers()[&PEER_HEADER].clone();
    let bare = || Request::get("/").header(proto::header::SERVICE, "kubernetes");
    for (what, request) in [
        ("no header", bare().body(Body::empty())),
        ("an empty header", bare().header(PEER_HEADER, "").body(Body::empty())),
        ("half of a header", bare().header(PEER_HEADER, &header.as_bytes()[..40]).body(Body::empty())),
        ("bytes that are not text", bare().header(PEER_HEADER, &[0xff; 300][..]).body(Body::empty())),
        ("no service", Request::get("/").header(PEER_HEADER, &header).body(Body::empty())),
        (
            "an invalid service",
            Request::get("/")
                .header(PEER_HEADER, &header)
                .header(proto::header::SERVICE, "/..")
                .body(Body::empty()),
        ),
    ] {
        assert!(refused(tunnel.call(request.unwrap()).await), "{what}");
    }
    assert_eq!((target.served("malformed"), target.received.load(Relaxed)), (6.0, 0));
    target.assert_served().await;
}

#[tokio::test(start_paused = true)]
async fn private_mac_is_valid_for_one_request_to_one_replica() {
    let target = Target::new().await;
    let tunnel = target.connect().await;
    let good = target.request(1).into_request();
    let resent = |edit: fn(&mut Request<Body>)| {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = good.method().clone();
        *request.uri_mut() = good.uri().clone();
        *request.headers_mut() = good.headers().clone();
        edit(&mut request);
        request
    };
    for (what, edit) in [
        ("another path", (|r| *r.uri_mut() = Uri::from_static("/api/v1/secrets")) as fn(&mut Request<Body>)),
        ("another query", |r| *r.uri_mut() = Uri::from_static("/api/v1/pods?x=2")),
        ("another method", |r| *r.method_mut() = Method::GET),
        ("another service", |r| {
            drop(r.headers_mut().insert(proto::header::SERVICE, "prometheus".parse().unwrap()))
        }),
        ("another agent", |r| {
            let header = PeerHeader::decode(&r.headers()[&PEER_HEADER]).unwrap();
            r.headers_mut().insert(PEER_HEADER, PeerHeader { agent: AgentId(2), ..header }.encode());
        }),
        ("a user", |r| drop(r.headers_mut().insert("impersonate-user", "root".parse().unwrap()))),
        ("a credential", |r| drop(r.headers_mut().insert("authorization", "Bearer x".parse().unwrap()))),
        ("another kind", |r| {
            let header = PeerHeader::decode(&r.headers()[&PEER_HEADER]).unwrap();
            r.headers_mut()
                .insert(PEER_HEADER, PeerHeader { kind: PeerRequestKind::Probe, ..header }.encode());
        }),
    ] {
        assert!(refused(tunnel.call(resent(edit)).await), "{what}");
    }
    let to = target.fleet.store.replica(target.fleet.id(0)).unwrap();
    let elsewhere = PeerRequest { to, ..target.request(2) };
    assert!(refused(tunnel.call(elsewhere.into_request()).await), "another receiver");
    assert_eq!(target.served("invalid-mac"), 9.0);

    for (sequence, milliseconds) in [(3, -6000), (4, 6000), (5, -3_600_000)] {
        let mut late = target.request(sequence);
        late.header.sent_ms = late.header.sent_ms.saturating_add_signed(milliseconds);
        assert!(refused(tunnel.call(late.into_request()).await), "{milliseconds} ms");
    }
    assert_eq!((target.served("expired"), target.received.load(Relaxed)), (3.0, 0));
    // A probe gets a signed response with the time; that of a stranger is refused.
    let mut late = target.request(6);
    late.header.kind = PeerRequestKind::Probe;
    late.header.sent_ms -= 6000;
    let probe = late.clone().into_request();
    let mac = PeerHeader::decode(&probe.headers()[&PEER_HEADER]).unwrap().mac.unwrap();
    let (sent_ms, secret_of_both) = (late.header.sent_ms, secret(1));
    let answer = tunnel.call(probe).await.unwrap();
    let key = ResponseKey::new(Some(&secret_of_both), Some(&mac));
    let response = ProbeResponse::decode(answer.headers(), key).unwrap();
    assert!(
        matches!(response, ProbeResponse::ClockSkew { now_ms } if now_ms >= sent_ms + 6000),
        "{response:?}"
    );
    late.secret = Some(secret(2));
    assert!(refused(tunnel.call(late.into_request()).await));
    // None of these requests used up the sequence number.
    assert!(tunnel.call(resent(|_| {})).await.unwrap().status().is_success());
}

#[tokio::test(start_paused = true)]
async fn private_control_request_is_refused() {
    let target = Target::new().await;
    let tunnel = target.connect().await;
    let control = PeerRequest {
        service: "control",
        method: Method::POST,
        uri: Uri::from_static(proto::control::DRAIN_PATH),
        ..target.request(1)
    };
    assert!(refused(tunnel.call(control.into_request()).await));
    assert_eq!(target.served("forwarded"), 0.0);
}

#[tokio::test(start_paused = true)]
async fn private_connection_without_verified_request_is_closed() {
    let target = Target::new().await;
    for bytes in [&b""[..], b"GET / HTTP/1.1\r\nHost: kas\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut stranger = target.fleet.pipes.connect(1);
        stranger.write_all(bytes).await.unwrap();
        let mut received = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(30), stranger.read_to_end(&mut received));
        assert!(ended.await.is_ok(), "{bytes:?}");
    }
    // A connection that keeps sending invalid requests is closed, too.
    let settings = TunnelConfig::default();
    let (tunnel, driver) = direct::open(target.fleet.pipes.connect(1), &settings).await.unwrap();
    let driving = tokio::spawn(driver.run());
    tunnel.ready().await;
    let forging = async {
        loop {
            let forged = PeerRequest { secret: Some(secret(2)), ..target.request(1) };
            if matches!(tunnel.call(forged.into_request()).await, Err(error) if !matches!(error.kind, CallErrorKind::Refused))
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), forging).await.unwrap();
    driving.await.unwrap();
    target.assert_served().await;
}

#[tokio::test(start_paused = true)]
async fn private_flood_of_invalid_requests_delays_no_caller() {
    let target = Target::new().await;
    let tunnel = target.connect().await;
    let flood = (0..5000).map(|sequence| {
        let (tunnel, request) = (tunnel.clone(), target.request(sequence));
        async move {
            refused(tunnel.call(PeerRequest { secret: Some(secret(2)), ..request }.into_request()).await)
        }
    });
    let (refusals, ()) = tokio::join!(futures_util::future::join_all(flood), target.assert_served());
    assert!(refusals.into_iter().all(|refused| refused));
    target.assert_served().await;
}

#[tokio::test(start_paused = true)]
async fn private_headers_of_a_caller_are_ignored() {
    let target = Target::new().await;
    let good = target.request(1).into_request();
    for replica in &target.fleet.replicas {
        let mut request = replica.request("/agents/prod/kubernetes/");
        request.headers_mut().insert(PEER_HEADER, good.headers()[&PEER_HEADER].clone());
        request.headers_mut().insert("kas-service", "control".parse().unwrap());
        let answer = replica.send(request).await;
        assert_eq!(text(answer).await, "cluster");
    }
}

/// An attacker with access to Redis could give a replica the URL of a relay that passes on all bytes, and reads and changes the bodies.
#[tokio::test(start_paused = true)]
async fn attack_85_replica_sends_nothing_through_a_relay_at_another_url() {
    let target = Target::new().await;
    let fleet = &target.fleet;
    target.assert_served().await;
    let relayed = fleet.pipes.put(1, PeerBehaviour::Refuse).unwrap();
    fleet.pipes.put(2, relayed.clone());
    fleet.store.join(Replica { id: fleet.id(1), url: address(2) });
    for _ in 0..3 {
        let answer = fleet.replicas[0].get("/agents/prod/kubernetes/secrets").await;
        assert_eq!(answer.status(), 503);
    }
    assert_eq!(target.received.load(Relaxed), 1, "no request of a caller has reached the cluster");
    assert!(target.served("invalid-mac") >= 3.0, "the relay has passed on the probes");

    fleet.pipes.put(1, relayed);
    fleet.store.join(Replica { id: fleet.id(1), url: address(1) });
    target.assert_served().await;
}
