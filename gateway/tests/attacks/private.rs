//! Strangers at the private listener, and replicas' words in the wrong hands.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use agent::Services;
use gateway::peers::{
    seal::{Secret, Subject},
    stamp::{Kind, STAMP, Stamp},
};
use http::{Method, Request, Response, Uri};
use proto::{AgentId, ReplicaId, header};
use router::Class;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tunnel::{Body, CallError, CallErrorKind, Settings, Tunnel, direct};

use crate::{
    fleet::{AGENT, Several, secret},
    world::{RunningAgent, text},
};

/// Two replicas, an agent at the second, and how many requests it has seen.
struct Attacked {
    fleet: Several,
    seen: Arc<AtomicUsize>,
    _agent: RunningAgent,
}

/// A request of the first replica to the second, as it should be.
#[derive(Clone)]
struct Letter {
    secret: Option<Secret>,
    to: ReplicaId,
    stamp: Stamp,
    service: &'static str,
    method: Method,
    uri: Uri,
}

impl Attacked {
    async fn new() -> Self {
        let fleet = Several::new(2);
        let seen = Arc::new(AtomicUsize::new(0));
        let counting = Arc::clone(&seen);
        let services = Services::new().with_fn("kubernetes", move |_: Request<Body>| {
            counting.fetch_add(1, Relaxed);
            async { Response::new(Body::from("cluster")) }
        });
        let agent = fleet.agent(1, services).await;
        Self { fleet, seen, _agent: agent }
    }

    async fn connect(&self) -> Tunnel {
        let settings = Settings::default();
        let (tunnel, driver) = direct::open(self.fleet.pipes.connect(1), &settings).await.unwrap();
        tokio::spawn(driver.run());
        tunnel.ready().await;
        tunnel
    }

    fn letter(&self, number: u64) -> Letter {
        let sent = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64;
        let (from, class) = (self.fleet.id(0), Class::Short);
        Letter {
            secret: Some(secret(1)),
            to: self.fleet.id(1),
            stamp: Stamp { kind: Kind::Pass, from, agent: AGENT, class, sent, number, seal: None },
            service: "kubernetes",
            method: Method::DELETE,
            uri: Uri::from_static("/api/v1/pods?x=1"),
        }
    }

    fn served(&self, result: &str) -> f64 {
        self.fleet.replicas[1].metric(&format!("kas_peer_served_total{{result=\"{result}\"}}"))
    }

    /// Whoever did no harm is still served.
    async fn others_are_served(&self) {
        let before = self.seen.load(Relaxed);
        assert_eq!(text(self.fleet.replicas[0].get("/agents/prod/kubernetes/").await).await, "cluster");
        assert_eq!(self.seen.load(Relaxed), before + 1);
    }
}

impl Letter {
    fn sealed(mut self) -> Request<Body> {
        let Self { secret, to, stamp, service, method, uri } = &self;
        let seal =
            secret.as_ref().map(|secret| secret.seal(Subject { stamp, to: *to, service, method, uri }));
        self.stamp.seal = seal;
        let request =
            Request::builder().method(self.method).uri(self.uri).header(header::SERVICE, self.service);
        request.header(STAMP, self.stamp.encode()).body(Body::empty()).unwrap()
    }
}

fn refused(answer: Result<Response<Body>, CallError>) -> bool {
    matches!(answer, Err(CallError { kind: CallErrorKind::Refused, .. }))
}

#[tokio::test(start_paused = true)]
async fn private_a_sealed_request_is_good_once() {
    let attacked = Attacked::new().await;
    let tunnel = attacked.connect().await;
    let letter = attacked.letter(7);
    assert!(tunnel.call(letter.clone().sealed()).await.unwrap().status().is_success());
    assert_eq!(attacked.seen.load(Relaxed), 1);
    // On the same connection, and on another.
    assert!(refused(tunnel.call(letter.clone().sealed()).await));
    assert!(refused(attacked.connect().await.call(letter.sealed()).await));
    assert_eq!((attacked.seen.load(Relaxed), attacked.served("replayed")), (1, 2.0));
    attacked.others_are_served().await;
}

/// A call makes a replica dial: for those only that belong to it, and nowhere but where the directory says.
#[tokio::test(start_paused = true)]
async fn private_strangers_make_a_replica_dial_nobody() {
    let attacked = Attacked::new().await;
    let tunnel = attacked.connect().await;
    let call = |number| {
        let mut letter = attacked.letter(number);
        letter.stamp.kind = Kind::Call;
        Letter { service: "control", method: Method::GET, uri: Uri::from_static("/"), ..letter }
    };
    for secret in [None, Some(secret(2))] {
        assert!(refused(tunnel.call(Letter { secret, ..call(1) }.sealed()).await));
    }
    let greeted = || attacked.fleet.replicas[0].metric("kas_peer_served_total{result=\"asked\"}");
    assert_eq!((greeted(), attacked.served("forged")), (0.0, 2.0));

    let mut nobody = call(1);
    nobody.stamp.from = ReplicaId::random();
    let answer = tunnel.call(nobody.sealed()).await.unwrap();
    assert!(answer.headers()[&STAMP].to_str().unwrap().starts_with("v1 agent-not-connected "), "{answer:?}");
    let answer = tunnel.call(call(2).sealed()).await.unwrap();
    assert!(answer.headers()[&STAMP].to_str().unwrap().starts_with("v1 holds "), "{answer:?}");
    assert_eq!(greeted(), 1.0, "where the directory says");
    attacked.others_are_served().await;
}

#[tokio::test(start_paused = true)]
async fn private_nobody_without_the_secret_reaches_an_agent() {
    let attacked = Attacked::new().await;
    let tunnel = attacked.connect().await;
    let letter = attacked.letter(1);
    for (what, secret) in [("no seal", None), ("another secret", Some(secret(2)))] {
        assert!(refused(tunnel.call(Letter { secret, ..letter.clone() }.sealed()).await), "{what}");
    }
    assert_eq!(attacked.served("forged"), 2.0);

    let good = letter.sealed();
    let stamp = good.headers()[&STAMP].clone();
    let bare = || Request::get("/").header(header::SERVICE, "kubernetes");
    for (what, request) in [
        ("no stamp", bare().body(Body::empty())),
        ("an empty one", bare().header(STAMP, "").body(Body::empty())),
        ("half of one", bare().header(STAMP, &stamp.as_bytes()[..40]).body(Body::empty())),
        ("bytes", bare().header(STAMP, &[0xff; 300][..]).body(Body::empty())),
        ("no service", Request::get("/").header(STAMP, &stamp).body(Body::empty())),
        (
            "no name",
            Request::get("/").header(STAMP, &stamp).header(header::SERVICE, "/..").body(Body::empty()),
        ),
    ] {
        assert!(refused(tunnel.call(request.unwrap()).await), "{what}");
    }
    assert_eq!((attacked.served("malformed"), attacked.seen.load(Relaxed)), (6.0, 0));
    attacked.others_are_served().await;
}

#[tokio::test(start_paused = true)]
async fn private_a_seal_is_for_one_request_to_one_replica_now() {
    let attacked = Attacked::new().await;
    let tunnel = attacked.connect().await;
    let good = attacked.letter(1).sealed();
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
        ("another service", |r| drop(r.headers_mut().insert(header::SERVICE, "prometheus".parse().unwrap()))),
        ("another agent", |r| {
            let stamp = Stamp::decode(&r.headers()[&STAMP]).unwrap();
            r.headers_mut().insert(STAMP, Stamp { agent: AgentId(2), ..stamp }.encode());
        }),
        ("a question made a request", |r| {
            let stamp = Stamp::decode(&r.headers()[&STAMP]).unwrap();
            r.headers_mut().insert(STAMP, Stamp { kind: Kind::Ask, ..stamp }.encode());
        }),
    ] {
        assert!(refused(tunnel.call(resent(edit)).await), "{what}");
    }
    let elsewhere = Letter { to: attacked.fleet.id(0), ..attacked.letter(2) };
    assert!(refused(tunnel.call(elsewhere.sealed()).await), "meant for another replica");
    assert_eq!(attacked.served("forged"), 7.0);

    for (number, milliseconds) in [(3, -6000), (4, 6000), (5, -3_600_000)] {
        let mut late = attacked.letter(number);
        late.stamp.sent = late.stamp.sent.saturating_add_signed(milliseconds);
        assert!(refused(tunnel.call(late.sealed()).await), "{milliseconds} ms");
    }
    assert_eq!((attacked.served("expired"), attacked.seen.load(Relaxed)), (3.0, 0));
    // None of these has used the number up.
    assert!(tunnel.call(resent(|_| {})).await.unwrap().status().is_success());
}

#[tokio::test(start_paused = true)]
async fn private_a_replica_cannot_control_agents() {
    let attacked = Attacked::new().await;
    let tunnel = attacked.connect().await;
    let control = Letter {
        service: "control",
        method: Method::POST,
        uri: Uri::from_static(proto::control::DRAIN_PATH),
        ..attacked.letter(1)
    };
    assert!(refused(tunnel.call(control.sealed()).await));
    assert_eq!(attacked.served("passed"), 0.0);
}

#[tokio::test(start_paused = true)]
async fn private_connections_of_strangers_end() {
    let attacked = Attacked::new().await;
    for words in [&b""[..], b"GET / HTTP/1.1\r\nHost: kas\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut stranger = attacked.fleet.pipes.connect(1);
        stranger.write_all(words).await.unwrap();
        let mut heard = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(30), stranger.read_to_end(&mut heard));
        assert!(ended.await.is_ok(), "{words:?}");
    }
    // One that goes on and on with forgeries, too.
    let settings = Settings::default();
    let (tunnel, driver) = direct::open(attacked.fleet.pipes.connect(1), &settings).await.unwrap();
    let driving = tokio::spawn(driver.run());
    tunnel.ready().await;
    let forging = async {
        loop {
            let forged = Letter { secret: Some(secret(2)), ..attacked.letter(1) };
            if matches!(tunnel.call(forged.sealed()).await, Err(error) if !matches!(error.kind, CallErrorKind::Refused))
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), forging).await.unwrap();
    driving.await.unwrap();
    attacked.others_are_served().await;
}

#[tokio::test(start_paused = true)]
async fn private_a_flood_of_forgeries_delays_nobody() {
    let attacked = Attacked::new().await;
    let tunnel = attacked.connect().await;
    let flood = (0..5000).map(|number| {
        let (tunnel, letter) = (tunnel.clone(), attacked.letter(number));
        async move { refused(tunnel.call(Letter { secret: Some(secret(2)), ..letter }.sealed()).await) }
    });
    let (refusals, ()) = tokio::join!(futures_util::future::join_all(flood), attacked.others_are_served());
    assert!(refusals.into_iter().all(|refused| refused));
    attacked.others_are_served().await;
}

#[tokio::test(start_paused = true)]
async fn private_words_between_replicas_come_from_no_caller_and_no_agent() {
    let attacked = Attacked::new().await;
    let good = attacked.letter(1).sealed();
    for replica in &attacked.fleet.replicas {
        let mut request = replica.request("/agents/prod/kubernetes/");
        request.headers_mut().insert(STAMP, good.headers()[&STAMP].clone());
        request.headers_mut().insert("kas-service", "control".parse().unwrap());
        let answer = replica.send(request).await;
        assert_eq!(text(answer).await, "cluster");
    }
}
