//! Attacks by GitLab's agentk: an agent with a valid token, or a stranger, speaks GitLab's protocol to kas.

mod agent_memory;
#[path = "../scenarios/gitlab_agentk/client.rs"]
mod client;
#[path = "../scenarios/gitlab_agentk/messages.rs"]
mod messages;
mod websocket_floods;

use std::time::Duration;

use agentk_core::Services;
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use kas_gitlab::ApiRateLimit;
use kas_testing::{
    gitlab::world_with,
    world::{World, text},
};
use prost::Message as _;
use secrecy::ExposeSecret as _;
use testing::gitlab::Fault;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use tunnel::Body;

use self::{
    client::{Agentk, Call, End, dial, ok},
    messages::{
        AgentStep, CONNECT, ConnectRequest, Empty, GET_CONFIGURATION, KUBERNETES, Meta, REGISTER,
        ResponsePart, data, descriptor, descriptor_of, failure, fields, grpc_header, grpc_trailer, head,
        http_trailer, part, response, upgrade_data,
    },
};
use crate::{
    http2::{
        CANCEL, CONTINUATION, DATA, HEADERS, PREFACE, Peer, Sent, block, frame, headers, reset,
        settings_frame,
    },
    memory::Memory,
};

const VIOLATIONS: &str = "kas_gitlab_agentk_violations_total";

/// A kas with the attacked agent `prod`, and an honest GitLab agentk of the agent `test`.
struct Attacked {
    world: World,
    _honest: AbortOnDropHandle<()>,
}

impl Attacked {
    async fn new() -> Self {
        let world = World::new();
        let other = world.add_second_agent();
        let agentk = Agentk::over(dial(&world), other.expose_secret()).await;
        let (mut agentk, [first, second]) = agentk.started(&world, "honest").await;
        let honest = tokio::spawn(async move {
            let mut waiting = vec![second, first];
            loop {
                waiting.pop().unwrap().serve().await;
                waiting.insert(0, agentk.idle().await);
            }
        });
        Self { world, _honest: AbortOnDropHandle::new(honest) }
    }

    fn violations(&self) -> f64 {
        self.world.metric(VIOLATIONS)
    }

    async fn assert_undisturbed(&self) {
        let response =
            timeout(Duration::from_secs(1), self.world.get("/agents/test/kubernetes/honest")).await;
        let response = response.expect("the honest agent responds at once");
        assert_eq!((response.status(), text(response).await.as_str()), (StatusCode::OK, "/honest"));
    }

    /// Connects the attacker, whose only waiting stream is the returned one.
    async fn attacker(&self) -> (Agentk, Call) {
        let mut attacker = Agentk::connect(&self.world).await;
        attacker.register("attacker").await;
        let stream = attacker.idle().await;
        self.world.tunnels(2).await;
        (attacker, stream)
    }

    /// Sends a request to the attacker. Returns its stream with the request; another one waits.
    async fn asked(
        &self,
        (attacker, waiting): &mut (Agentk, Call),
    ) -> (JoinHandle<Result<(StatusCode, String), String>>, Call) {
        let mut stream = std::mem::replace(waiting, attacker.idle().await);
        let world = self.world.clone();
        let asking = tokio::spawn(async move {
            let mut request = world.request("/agents/prod/kubernetes/attacked");
            // It is not repeated after a failure.
            *request.method_mut() = Method::POST;
            let response = world.send(request).await;
            let status = response.status();
            let body = response.into_body().collect().await.map_err(|error| error.to_string())?;
            Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
        });
        stream.request().await;
        (asking, stream)
    }
}

/// Returns the bytes of a message in gzip that inflates to `length` bytes.
fn bomb(length: usize) -> Vec<u8> {
    use std::io::Write as _;

    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&vec![0; length]).unwrap();
    gzip.finish().unwrap()
}

/// Sends one message, which may be malformed.
enum Sends {
    Step(AgentStep),
    Raw(u8, Vec<u8>),
    /// The beginning of a message of this length.
    Beginning(u32),
}

impl Sends {
    fn send(self, stream: &mut Call) {
        match self {
            Self::Step(step) => stream.step(step),
            Self::Raw(flag, bytes) => stream.send_raw(flag, &bytes),
            Self::Beginning(length) => stream.send_beginning(length, 1),
        }
    }
}

/// Messages that are malformed whenever they come.
fn malformed() -> Vec<(&'static str, Sends)> {
    vec![
        ("an empty message", Sends::Raw(0, Vec::new())),
        ("no protobuf", Sends::Raw(0, b"\xff\xff\xff\xff".to_vec())),
        ("a field that is cut", Sends::Raw(0, vec![0x1a, 0x7f, 1])),
        ("no gzip", Sends::Raw(1, b"no gzip".to_vec())),
        ("an unknown flag", Sends::Raw(7, b"x".to_vec())),
        ("a gzip bomb", Sends::Raw(1, bomb(200 << 20))),
        ("a long message", Sends::Raw(0, vec![0; (10 << 20) + 1])),
        ("a long message that never ends", Sends::Beginning((256 << 10) + 1)),
    ]
}

/// Checks that a call ended with an error that names a violation.
fn assert_named(end: &End, what: &str) {
    let End::Status(code, message) = end else { panic!("{what}: {end:?}") };
    assert!(*code != 0 && !message.is_empty() && message != "the caller is gone", "{what}: {code} {message}");
}

#[tokio::test(start_paused = true)]
async fn malformed_first_message_ends_the_call_with_its_violation() {
    let attacked = Attacked::new().await;
    let memory = Memory::now();
    let steps = [
        ("a header", grpc_header()),
        ("a message", head(200, &[])),
        ("a trailer", grpc_trailer()),
        ("an error", failure(14, "x").remove(2)),
        ("no services", descriptor_of(&[])),
        ("another service", descriptor_of(&[("gitlab.agent.other.rpc.Other", "MakeRequest")])),
        ("another method", descriptor_of(&[(KUBERNETES, "Other")])),
        ("a path as a service", descriptor_of(&[(&format!("{KUBERNETES}/MakeRequest"), "")])),
    ];
    let mut attacks = malformed();
    attacks.extend(steps.map(|(what, step)| (what, Sends::Step(step))));
    for (what, attack) in attacks {
        let (before, started) = (attacked.violations(), Instant::now());
        let mut attacker = Agentk::connect(&attacked.world).await;
        let mut call = attacker.call(CONNECT).await;
        attack.send(&mut call);
        assert_named(&call.end().await, what);
        assert_eq!(attacked.violations(), before + 1.0, "{what}");
        assert!(started.elapsed() < Duration::from_secs(1), "{what}");
        attacked.assert_undisturbed().await;
    }
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn malformed_response_fails_its_request_and_no_other() {
    let attacked = Attacked::new().await;
    let mut attacker = attacked.attacker().await;
    let memory = Memory::now();
    let header = grpc_header;
    let mut attacks: Vec<(&str, Vec<AgentStep>, Option<Sends>)> = malformed()
        .into_iter()
        .map(|(what, attack)| (what, Vec::new(), Some(attack)))
        .chain(malformed().into_iter().map(|(what, attack)| (what, vec![header()], Some(attack))))
        .collect();
    let steps: Vec<(&str, Vec<AgentStep>)> = vec![
        ("a second descriptor", vec![descriptor()]),
        ("a message before the header", vec![head(200, &[])]),
        ("a trailer before the header", vec![grpc_trailer()]),
        ("two headers", vec![header(), header()]),
        ("no head", vec![header(), grpc_trailer()]),
        ("a body without a head", vec![header(), data(b"x")]),
        ("an end without a head", vec![header(), http_trailer()]),
        ("upgraded bytes without a head", vec![header(), upgrade_data(b"x")]),
        ("an empty part", vec![header(), AgentStep::Message(messages::Payload::default())]),
        ("no part", vec![header(), AgentStep::Message(messages::Payload { data: b"\xff".to_vec() })]),
        ("a head without a response", vec![header(), part(ResponsePart::Header(Default::default()))]),
        (
            "101 that was not asked for",
            vec![header(), head(101, &[("Connection", "Upgrade"), ("Upgrade", "x")])],
        ),
        ("101 without a protocol", vec![header(), head(101, &[])]),
        ("a line break in a value", vec![header(), head(200, &[("X-A", "a\r\nSet-Cookie: b=c")])]),
        ("a zero byte in a value", vec![header(), head(200, &[("X-A", "a\0b")])]),
        ("a line break in a name", vec![header(), head(200, &[("X-A\r\nX-B", "a")])]),
        ("an empty name", vec![header(), head(200, &[("", "a")])]),
        ("a pseudo-header", vec![header(), head(200, &[(":status", "200")])]),
        ("a length that is none", vec![header(), head(200, &[("Content-Length", "+1")])]),
        ("two lengths", vec![header(), head(200, &[("Content-Length", "1"), ("Content-Length", "2")])]),
        ("a long head", vec![header(), head(200, &[("X-A", &"a".repeat(129 << 10))])]),
    ];
    attacks.extend(steps.into_iter().map(|(what, steps)| (what, steps, None)));
    for status in [0, 99, 100, 103, 1000, -1, i32::MAX] {
        let response = Some(messages::ResponseHead { status_code: status, ..Default::default() });
        let head = part(ResponsePart::Header(messages::ResponseHeader { response }));
        attacks.push(("a status that is none", vec![header(), head], None));
    }
    for (what, steps, message) in attacks {
        let before = attacked.violations();
        let (asking, mut stream) = attacked.asked(&mut attacker).await;
        for step in steps {
            stream.step(step);
        }
        if let Some(message) = message {
            message.send(&mut stream);
        }
        if what == "no head" {
            stream.half_close();
        }
        let (status, body) = asking.await.unwrap().unwrap();
        assert_eq!(status, StatusCode::BAD_GATEWAY, "{what}: {body}");
        assert!(body.contains("agent-misbehaved"), "{what}: {body}");
        let end = stream.any_end().await;
        if what != "no head" {
            assert_named(&end, what);
        }
        assert_eq!(attacked.violations(), before + 1.0, "{what}");
        attacked.assert_undisturbed().await;
    }
    memory.assert_bounded();
    let (asking, mut stream) = attacked.asked(&mut attacker).await;
    stream.finish(response(200, &[], b"the connection is not lost"));
    assert_eq!(asking.await.unwrap().unwrap().0, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn violation_in_the_middle_of_a_response_aborts_it() {
    let attacked = Attacked::new().await;
    let mut attacker = attacked.attacker().await;
    let mut attacks = malformed();
    let steps = [
        ("a second head", head(200, &[])),
        ("upgraded bytes", upgrade_data(b"x")),
        ("a descriptor", descriptor()),
        ("a header", grpc_header()),
        ("more than its length", data(&[b'x'; 97])),
        ("an end before its length", http_trailer()),
    ];
    attacks.extend(steps.map(|(what, step)| (what, Sends::Step(step))));
    for (what, attack) in attacks {
        let before = attacked.violations();
        let (asking, mut stream) = attacked.asked(&mut attacker).await;
        for step in [grpc_header(), head(200, &[("Content-Length", "100")]), data(b"half")] {
            stream.step(step);
        }
        sleep(Duration::from_millis(10)).await;
        attack.send(&mut stream);
        let aborted = asking.await.unwrap();
        assert!(aborted.is_err(), "{what}: {aborted:?}");
        assert_named(&stream.any_end().await, what);
        assert_eq!(attacked.violations(), before + 1.0, "{what}");
        attacked.assert_undisturbed().await;
    }
}

#[tokio::test(start_paused = true)]
async fn data_after_the_end_harms_nobody() {
    let attacked = Attacked::new().await;
    let mut attacker = attacked.attacker().await;
    for steps in
        [vec![data(b"more")], vec![grpc_trailer(), data(b"more")], vec![grpc_trailer(), head(200, &[])]]
    {
        let (asking, mut stream) = attacked.asked(&mut attacker).await;
        for step in [grpc_header(), head(200, &[("Content-Length", "4")]), data(b"body"), http_trailer()] {
            stream.step(step);
        }
        for step in steps {
            stream.step(step);
        }
        // The caller may have the whole response already.
        if let Ok((status, body)) = asking.await.unwrap() {
            assert_eq!((status, body.as_str()), (StatusCode::OK, "body"));
        }
        stream.any_end().await;
        attacked.assert_undisturbed().await;
    }
}

#[tokio::test(start_paused = true)]
async fn fields_between_kas_and_agentk_do_not_reach_the_caller() {
    let attacked = Attacked::new().await;
    let (_attacker, mut stream) = attacked.attacker().await;
    let world = attacked.world.clone();
    let asking = tokio::spawn(async move { world.get("/agents/prod/kubernetes/attacked").await });
    stream.request().await;
    let fields = [
        ("Connection", "close, X-Private"),
        ("Keep-Alive", "timeout=5"),
        ("Transfer-Encoding", "chunked"),
        ("Upgrade", "websocket"),
        ("Proxy-Authenticate", "Basic"),
        ("X-Private", "1"),
        ("Kas-Error", "internal"),
        ("Kas-Upgraded", "SPDY/3.1"),
        ("Kas-Welcome", "{}"),
        ("X-Request-Id", "forged"),
        ("Access-Control-Allow-Origin", "*"),
        ("Audit-Id", "1"),
    ];
    stream.finish(response(200, &fields, b"body"));
    let answer = asking.await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["audit-id"], "1");
    for name in ["keep-alive", "upgrade", "proxy-authenticate", "x-private"] {
        assert!(!answer.headers().contains_key(name), "{name}: {:?}", answer.headers());
    }
    for (name, value) in [
        ("kas-error", "internal"),
        ("kas-upgraded", "SPDY/3.1"),
        ("kas-welcome", "{}"),
        ("x-request-id", "forged"),
    ] {
        assert!(
            answer.headers().get(name).is_none_or(|found| found != value),
            "{name}: {:?}",
            answer.headers()
        );
    }
    assert_eq!(text(answer).await, "body");
}

#[tokio::test(start_paused = true)]
async fn descriptor_with_ten_thousand_services_is_cheap() {
    let attacked = Attacked::new().await;
    let memory = Memory::now();
    let names: Vec<String> = (0..10_000).map(|number| format!("service.{number}")).collect();
    let mut methods: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "Method")).collect();
    let mut attacker = Agentk::connect(&attacked.world).await;
    let mut refused = attacker.call(CONNECT).await;
    refused.step(descriptor_of(&methods));
    assert_named(&refused.end().await, "no KubernetesApi");
    methods.push((KUBERNETES, "MakeRequest"));
    let mut refused = attacker.call(CONNECT).await;
    refused.step(descriptor_of(&methods));
    assert_named(&refused.end().await, "no descriptor of this size");
    memory.assert_bounded();
    attacked.assert_undisturbed().await;
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_limit_are_refused() {
    let attacked = Attacked::new().await;
    let mut attacker = Agentk::connect(&attacked.world).await;
    let mut streams = Vec::new();
    for _ in 0..600 {
        streams.push(attacker.idle().await);
    }
    attacked.world.tunnels(2).await;
    // h2 itself keeps to the limit that kas announces.
    let more = timeout(Duration::from_secs(60), attacker.idle()).await;
    if let Ok(mut more) = more {
        let open = timeout(Duration::from_secs(60), more.open()).await;
        assert!(open.is_err(), "the 601st call is open");
    }
    attacked.assert_undisturbed().await;
}

/// Returns the fields of a call.
fn call_fields<'a>(path: &'a str, authorization: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "kas"),
        (":path", path),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("authorization", authorization),
    ]
}

/// Returns a message of gRPC with its prefix.
fn framed(step: AgentStep) -> Vec<u8> {
    let bytes = ConnectRequest { step: Some(step) }.encode_to_vec();
    [&[0][..], &u32::try_from(bytes.len()).unwrap().to_be_bytes(), &bytes].concat()
}

/// Opens a connection by hand, with a waiting stream.
async fn by_hand(attacked: &Attacked) -> (Peer<DuplexStream>, String) {
    let mut peer = Peer::client(dial(&attacked.world), &[]).await;
    let bearer = format!("Bearer {}", attacked.world.agent_token.expose_secret());
    peer.send(&headers(1, 0, &call_fields(CONNECT, &bearer))).await;
    peer.send(&frame(DATA, 0, 1, &framed(descriptor()))).await;
    attacked.world.tunnels(2).await;
    (peer, bearer)
}

#[tokio::test(start_paused = true)]
async fn rapid_resets_are_cheap_and_end_their_connection_only() {
    let attacked = Attacked::new().await;
    let memory = Memory::now();
    for is_agent in [true, false] {
        let (mut attacker, bearer) = if is_agent {
            by_hand(&attacked).await
        } else {
            (Peer::client(dial(&attacked.world), &[]).await, "Bearer wrong".to_owned())
        };
        let mut sent = Sent::All;
        for round in 0..100 {
            let streams = (0..100).map(|number| 3 + 2 * (100 * round + number));
            let pair =
                |stream| [headers(stream, 0, &call_fields(CONNECT, &bearer)), reset(stream, CANCEL)].concat();
            sent = attacker.send(&streams.flat_map(pair).collect::<Vec<u8>>()).await;
            if sent != Sent::All {
                break;
            }
        }
        attacked.assert_undisturbed().await;
        assert_ne!(sent, Sent::HeldBack, "kas still reads, or has closed the connection");
        drop(attacker);
        attacked.world.tunnels(1).await;
    }
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn endless_and_large_metadata_is_refused() {
    let attacked = Attacked::new().await;
    let memory = Memory::now();
    let (mut attacker, bearer) = by_hand(&attacked).await;
    // More than kas allows, but well-formed.
    let large = "x".repeat(15_000);
    let first = block(&[&call_fields(CONNECT, &bearer)[..], &[("x-large", &large)]].concat());
    attacker.send(&frame(HEADERS, 0, 3, &first)).await;
    attacker.send(&frame(CONTINUATION, 4, 3, &block(&[("x-larger", &large)]))).await;
    attacked.assert_undisturbed().await;

    let (mut attacker, bearer) = (Peer::client(dial(&attacked.world), &[]).await, bearer);
    attacker.send(&frame(HEADERS, 0, 1, &block(&call_fields(CONNECT, &bearer)))).await;
    let more = frame(CONTINUATION, 0, 1, &block(&[("x", &large)]));
    assert_eq!(attacker.flood(&more, 1 << 16).await, Sent::Closed);
    attacked.assert_undisturbed().await;
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn agentk_that_never_reads_is_cut_and_needs_little_memory() {
    let attacked = Attacked::new().await;
    let (mut attacker, _) = by_hand(&attacked).await;
    attacker.go_deaf();
    let memory = Memory::now();
    let mut callers = Vec::new();
    for _ in 0..4 {
        let world = attacked.world.clone();
        callers.push(tokio::spawn(async move {
            let mut request = world.request("/agents/prod/kubernetes/upload");
            *request.method_mut() = Method::POST;
            *request.body_mut() = Body::from("x".repeat(16 << 20));
            world.send(request).await.status()
        }));
    }
    sleep(Duration::from_secs(5)).await;
    attacked.assert_undisturbed().await;
    // The bodies of the callers are 64 MiB of it.
    memory.assert_below((64 << 20) + (64 << 20));
    for calling in callers {
        let status = timeout(Duration::from_secs(600), calling).await.unwrap().unwrap();
        assert!(status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS, "{status}");
    }
    attacked.world.tunnels(1).await;
    attacked.assert_undisturbed().await;
}

#[tokio::test(start_paused = true)]
async fn unfinished_connections_are_closed_after_the_handshake_timeout() {
    let attacked = Attacked::new().await;
    let bearer = format!("Bearer {}", attacked.world.agent_token.expose_secret());
    let settings = settings_frame(&[]);
    let connect = headers(1, 0, &call_fields(CONNECT, &bearer));
    for (what, bytes) in [
        ("nothing", Vec::new()),
        ("a part of the preface", PREFACE[..20].to_vec()),
        ("the preface", PREFACE.to_vec()),
        ("no call", [PREFACE, &settings].concat()),
        ("a part of a frame", [PREFACE, &settings, &connect[..20]].concat()),
        ("no descriptor", [PREFACE, &settings, &connect].concat()),
        (
            "a part of a descriptor",
            [PREFACE, &settings, &connect, &frame(DATA, 0, 1, &framed(descriptor())[..9])].concat(),
        ),
    ] {
        let mut attacker = dial(&attacked.world);
        attacker.write_all(&bytes).await.unwrap();
        let started = Instant::now();
        let mut received = Vec::new();
        let closed = timeout(Duration::from_secs(60), attacker.read_to_end(&mut received)).await;
        assert!(closed.is_ok(), "{what}: the connection stays open");
        assert!(started.elapsed() <= Duration::from_secs(21), "{what}: {:?}", started.elapsed());
    }
    attacked.assert_undisturbed().await;
}

#[tokio::test(start_paused = true)]
async fn stream_without_a_descriptor_ends_and_the_connection_stays() {
    let attacked = Attacked::new().await;
    let (mut attacker, _waiting) = attacked.attacker().await;
    let mut silent = attacker.call(CONNECT).await;
    let End::Status(code, message) = silent.end().await else { panic!("no status") };
    assert_eq!(code, 4, "{message}");
    assert!(message.contains("descriptor"), "{message}");
    attacked.world.tunnels(2).await;
}

#[tokio::test(start_paused = true)]
async fn thousands_of_strangers_need_little_memory_and_no_tunnel() {
    let attacked = Attacked::new().await;
    let memory = Memory::now();
    let mut strangers = Vec::new();
    for _ in 0..2000 {
        let mut stranger = dial(&attacked.world);
        stranger.write_all(&[PREFACE, &settings_frame(&[])].concat()).await.unwrap();
        strangers.push(stranger);
    }
    attacked.assert_undisturbed().await;
    // Two pipes of the test for each.
    memory.assert_below(2 * (96 << 20));
    sleep(Duration::from_secs(21)).await;
    for mut stranger in strangers {
        timeout(Duration::from_secs(1), stranger.read_to_end(&mut Vec::new()))
            .await
            .expect("it is closed")
            .ok();
    }
    assert_eq!(attacked.world.kas.agents.metrics.tunnels.get(), 1);
}

/// Each call may have sent as much as its window has room for.
#[tokio::test(start_paused = true)]
async fn few_calls_of_a_stranger_wait_for_gitlab() {
    let (gitlab, world, _agent) = world_with(&ApiRateLimit::default(), |_| {}, Services::new()).await;
    gitlab.set_fault(Fault::Slow(Duration::from_secs(30)));
    let mut stranger = Agentk::over(dial(&world), "glagent-guess").await;
    let mut calls = Vec::new();
    for _ in 0..64 {
        calls.push(stranger.idle().await);
    }
    let mut refused = 0;
    for call in &mut calls {
        if let Ok(End::Status(code, message)) = timeout(Duration::from_millis(100), call.any_end()).await {
            assert_eq!(code, 14, "{message}");
            assert!(message.contains("still checks the token"), "{message}");
            refused += 1;
        }
    }
    assert_eq!(refused, 64 - 16);
}

/// Each call counts, not each connection: a token cannot be guessed faster in one connection.
#[tokio::test(start_paused = true)]
async fn wrong_tokens_in_one_connection_are_limited() {
    let attacked = Attacked::new().await;
    let mut attacker = Agentk::connect(&attacked.world).await;
    let mut codes = Vec::new();
    for number in 0..500 {
        let bearer = format!("Bearer guess-{number}");
        let Ok(mut call) = attacker.try_call(CONNECT, &[("authorization", &bearer)]).await else { break };
        match call.any_end().await {
            End::Status(code, _) => codes.push(code),
            End::Reset(_) | End::Lost => break,
        }
    }
    let checked = codes.iter().filter(|code| **code == 16).count();
    assert!(checked <= 150, "{checked} of {} tokens were checked", codes.len());
    assert!(codes.iter().all(|code| [16, 8].contains(code)), "{codes:?}");
}

#[tokio::test(start_paused = true)]
async fn token_of_another_agent_opens_no_stream_in_the_connection() {
    let attacked = Attacked::new().await;
    let (mut attacker, _waiting) = attacked.attacker().await;
    for method in [CONNECT, GET_CONFIGURATION, REGISTER] {
        for bearer in ["Bearer ", "Bearer wrong", "Basic x"] {
            let mut call = attacker.call_with(method, &[("authorization", bearer)]).await;
            call.send(&Empty {});
            assert!(matches!(call.any_end().await, End::Status(16, _)), "{method} {bearer}");
        }
    }
    attacked.assert_undisturbed().await;
}

/// Texts of agentk are in logs and in the list of agents.
#[tokio::test(start_paused = true)]
async fn hostile_description_of_agentk_is_harmless() {
    let attacked = Attacked::new().await;
    let mut attacker = Agentk::connect(&attacked.world).await;
    let hostile = "\u{1b}[2J\r\n<script>\u{202e}".repeat(30);
    let meta = messages::AgentMeta {
        version: hostile.clone(),
        commit_id: hostile.clone(),
        pod_namespace: hostile.clone(),
        pod_name: hostile.clone(),
        kubernetes_version: Some(messages::KubernetesVersion { git_version: hostile, ..Default::default() }),
    };
    let mut call = attacker.call(REGISTER).await;
    call.send(&messages::RegisterRequest { agent_meta: Some(meta), pod_id: -1 });
    call.half_close();
    assert_eq!(call.next::<Empty>().await, Some(Empty {}));
    assert_eq!(call.end().await, ok());
    let _stream = attacker.idle().await;
    attacked.world.tunnels(2).await;
    attacked.assert_undisturbed().await;
}

/// Trailers and metadata of agentk reach nobody, but are read.
#[tokio::test(start_paused = true)]
async fn metadata_of_a_response_is_not_a_header_of_it() {
    let attacked = Attacked::new().await;
    let mut attacker = attacked.attacker().await;
    let (asking, mut stream) = attacked.asked(&mut attacker).await;
    let meta =
        || Meta { meta: fields(&[("set-cookie", "a=b"), ("kas-error", "internal"), ("grpc-status", "13")]) };
    stream.finish(vec![
        AgentStep::Header(meta()),
        head(200, &[]),
        data(b"body"),
        http_trailer(),
        AgentStep::Trailer(meta()),
    ]);
    assert_eq!(asking.await.unwrap().unwrap(), (StatusCode::OK, "body".to_owned()));
    assert_eq!(stream.any_end().await, ok());
}
