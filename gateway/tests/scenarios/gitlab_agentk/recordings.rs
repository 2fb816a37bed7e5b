//! Recordings of GitLab's agentk 16.5: what it sent to GitLab's kas, sent to this kas.
//!
//! `tests/fixtures/gitlab_agentk/make.py` makes the fixtures.

use std::{collections::BTreeMap, path::Path, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use kas_testing::{
    server,
    world::{World, parse},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use prost::Message as _;
use secrecy::SecretString;
use serde::Deserialize;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tunnel::{
    Body,
    websocket::{Role, WebSocket},
};

use super::{
    client::{Agentk, Call, End, dial, ok},
    messages::{
        AgentStep, ConnectRequest, ConnectResponse, HttpResponse, KasStep, Payload, RequestPart,
        ResponsePart, data, upgrade_data,
    },
    reason,
};
use crate::agent_list::agents;

/// The token of agentk in the recordings.
const TOKEN: &str = "agent-1";
/// The characters of a path that are encoded.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gitlab_agentk").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// One request in one stream.
#[derive(Debug, Deserialize)]
struct Exchange {
    scenario: String,
    method: String,
    path: String,
    query: BTreeMap<String, Vec<String>>,
    headers: BTreeMap<String, Vec<String>>,
    content_length: i64,
    events: Vec<Event>,
    /// The status that the caller received.
    status: Option<u16>,
}

#[derive(Debug, Deserialize)]
struct Event {
    kas: Option<String>,
    agentk: Option<String>,
    /// The message of agentk, unless it is a long part of a body.
    message: Option<String>,
    #[serde(default)]
    length: usize,
    code: Option<i32>,
}

fn exchanges() -> Vec<Exchange> {
    serde_json::from_slice(&fixture("exchanges.json")).unwrap()
}

impl Exchange {
    fn is_upgrade(&self) -> bool {
        self.headers.contains_key("Upgrade")
    }

    /// Returns whether GitLab's kas sent this to agentk.
    fn kas_sent(&self, what: &str) -> bool {
        self.events.iter().any(|event| event.kas.as_deref() == Some(what))
    }

    fn agentk_sent(&self, what: &str) -> bool {
        self.events.iter().any(|event| event.agentk.as_deref() == Some(what))
    }

    /// The code with which GitLab's kas ended the stream.
    fn code(&self) -> Option<i32> {
        self.events.iter().find_map(|event| event.code)
    }

    fn request(&self, world: &World) -> Request<Body> {
        let path = utf8_percent_encode(&self.path, PATH);
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        for (name, values) in &self.query {
            query.extend_pairs(values.iter().map(|value| (name, value)));
        }
        let mut request = world.request(&format!("/agents/prod/kubernetes{path}?{}", query.finish()));
        *request.method_mut() = self.method.parse::<Method>().unwrap();
        for (name, values) in &self.headers {
            for value in values {
                let name: http::HeaderName = name.parse().unwrap();
                request.headers_mut().append(name, value.parse().unwrap());
            }
        }
        request.headers_mut().remove("content-length");
        let length = match self.content_length {
            -1 => 16,
            length => usize::try_from(length).unwrap(),
        };
        if length > 0 {
            let body = pattern(length);
            *request.body_mut() = match (self.content_length, self.code()) {
                // The caller of the recording goes in the middle of its upload.
                (length, Some(1)) => {
                    request.headers_mut().insert("content-length", length.into());
                    endless(body.slice(..100_000))
                }
                (-1, _) => {
                    let frames = body
                        .chunks(5)
                        .map(|piece| Ok::<_, std::io::Error>(http_body::Frame::data(piece.to_vec().into())));
                    Body::new(http_body_util::StreamBody::new(futures_util::stream::iter(
                        frames.collect::<Vec<_>>(),
                    )))
                }
                _ => Body::from(body),
            };
        }
        request
    }
}

/// Returns bytes that repeat only after a while.
fn pattern(length: usize) -> Bytes {
    (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect()
}

/// Returns a body that stays open after these bytes.
fn endless(first: Bytes) -> Body {
    use futures_util::stream::{self, StreamExt as _};

    let first = stream::once(async move { Ok::<_, std::io::Error>(http_body::Frame::data(first)) });
    Body::new(http_body_util::StreamBody::new(first.chain(stream::pending())))
}

/// The received bytes of a caller: the status and the body, or nothing if it broke off.
type Calling = JoinHandle<(StatusCode, Option<Bytes>)>;

/// Plays the steps of agentk in one stream, each after what kas had sent before it.
struct Player<'a> {
    exchange: &'a Exchange,
    stream: Call,
    /// The bytes of the response's body.
    body: Vec<u8>,
    /// The caller of an upgrade.
    upgraded: Option<DuplexStream>,
}

impl Player<'_> {
    fn name(&self) -> String {
        format!("{} {} {}", self.exchange.scenario, self.exchange.method, self.exchange.path)
    }

    async fn play(&mut self) {
        let mut is_over = false;
        for event in &self.exchange.events {
            match (event.kas.as_deref(), event.agentk.as_deref()) {
                // After the end of agentk, kas need not send the rest of the request.
                (Some("status"), _) => break,
                (Some(_), _) if is_over => {}
                (Some(what), _) => self.await_kas(what, event.length).await,
                (_, Some("half-close")) => {
                    self.stream.half_close();
                    is_over = true;
                }
                (_, Some(what)) => self.send(what, event).await,
                (None, None) => unreachable!("an event has a sender"),
            }
        }
    }

    async fn await_kas(&mut self, what: &str, length: usize) {
        match what {
            "request_info" => {
                let step = self.stream.next_step().await;
                assert!(matches!(step, KasStep::RequestInfo(_)), "{}: {step:?}", self.name());
            }
            "header" => {
                let RequestPart::Header(header) = self.stream.next_part().await else {
                    panic!("{}", self.name())
                };
                let request = header.request.unwrap();
                assert_eq!(request.url_path, self.exchange.path, "{}", self.name());
                assert_eq!(request.method, self.exchange.method, "{}", self.name());
                let query: BTreeMap<_, _> =
                    request.query.into_iter().map(|(name, values)| (name, values.value)).collect();
                assert_eq!(query, self.exchange.query, "{}", self.name());
                assert_eq!(header.content_length, Some(self.exchange.content_length), "{}", self.name());
            }
            // The pieces of a body depend on the time of their arrival.
            "data" => {}
            "trailer" => while !matches!(self.stream.next_part().await, RequestPart::Trailer(_)) {},
            "upgradeData" => {
                let bytes = pattern(length);
                self.upgraded.as_mut().unwrap().write_all(&bytes).await.unwrap();
                let mut received = Vec::new();
                while received.len() < length {
                    match self.stream.next_part().await {
                        RequestPart::UpgradeData(piece) => received.extend(piece.data),
                        other => panic!("{}: {other:?}", self.name()),
                    }
                }
                assert!(received == bytes, "{}: other bytes", self.name());
            }
            "close_send" => {
                if let Some(caller) = &mut self.upgraded {
                    caller.shutdown().await.unwrap();
                }
                let step = self.stream.next_step().await;
                assert!(matches!(step, KasStep::CloseSend(_)), "{}: {step:?}", self.name());
            }
            other => panic!("{}: {other}", self.name()),
        }
    }

    async fn send(&mut self, what: &str, event: &Event) {
        let step = match &event.message {
            Some(message) => {
                let message = ConnectRequest::decode(&STANDARD.decode(message).unwrap()[..]).unwrap();
                message.step.unwrap()
            }
            None if what == "data" => data(&pattern(event.length)),
            None => upgrade_data(&pattern(event.length)),
        };
        let part = match &step {
            AgentStep::Message(Payload { data }) => HttpResponse::decode(&data[..]).unwrap().part,
            _ => None,
        };
        self.stream.step(step);
        match part {
            Some(ResponsePart::Data(piece)) => self.body.extend(piece.data),
            Some(ResponsePart::UpgradeData(piece)) => {
                let mut received = vec![0; piece.data.len()];
                let reading = self.upgraded.as_mut().unwrap().read_exact(&mut received);
                timeout(Duration::from_secs(5), reading).await.expect("the bytes arrive").unwrap();
                assert!(received == piece.data, "{}: other bytes", self.name());
            }
            Some(ResponsePart::Trailer(_))
                if self.upgraded.is_some() && self.exchange.status == Some(101) =>
            {
                let head = server::read_head(self.upgraded.as_mut().unwrap()).await;
                assert!(head.starts_with("http/1.1 101"), "{}: {head}", self.name());
            }
            _ => {}
        }
    }
}

/// Sends a request whose caller reads the response.
fn call(world: &World, request: Request<Body>) -> Calling {
    let world = world.clone();
    tokio::spawn(async move {
        let response = world.send(request).await;
        let status = response.status();
        (status, response.into_body().collect().await.ok().map(|body| body.to_bytes()))
    })
}

/// Sends the head of an upgrade.
async fn upgrade(world: &World, request: Request<Body>) -> DuplexStream {
    let mut caller = world.connect();
    let mut head = format!("{} {} HTTP/1.1\r\n", request.method(), request.uri());
    for (name, value) in request.headers() {
        head += &format!("{name}: {}\r\n", value.to_str().unwrap());
    }
    if !request.headers().contains_key("connection") {
        head += "Connection: Upgrade\r\n";
    }
    caller.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
    caller
}

#[tokio::test(start_paused = true)]
async fn recorded_agentk_gets_its_responses_to_the_caller() {
    let exchanges = exchanges();
    assert_eq!(exchanges.len(), 58);
    for exchange in &exchanges {
        play(exchange).await;
    }
}

async fn play(exchange: &Exchange) {
    let world = World::new();
    let (agentk, [stream, _second]) = Agentk::start(&world).await;
    let mut player = Player { exchange, stream, body: Vec::new(), upgraded: None };
    let name = player.name();
    let request = exchange.request(&world);
    if exchange.is_upgrade() {
        player.upgraded = Some(upgrade(&world, request).await);
        player.play().await;
        return end_of_upgrade(player, agentk).await;
    }
    let calling = call(&world, request);
    player.play().await;
    sleep(Duration::from_millis(10)).await;
    if exchange.code() == Some(1) {
        assert!(!calling.is_finished(), "{name}");
        calling.abort();
        assert!(matches!(player.stream.any_end().await, End::Status(1, _)), "{name}");
        return;
    }
    if !exchange.agentk_sent("half-close") {
        // The connection was lost in the middle of the response.
        agentk.cut();
        assert_eq!(calling.await.unwrap(), (StatusCode::OK, None), "{name}");
        return;
    }
    assert_eq!(player.stream.any_end().await, ok(), "{name}");
    let (status, body) = calling.await.unwrap();
    match (exchange.agentk_sent("error"), exchange.status) {
        (true, Some(200)) => assert_eq!((status, body), (StatusCode::OK, None), "{name}: it is aborted"),
        (true, Some(502)) => {
            let body = String::from_utf8(body.unwrap().to_vec()).unwrap();
            // GitLab's kas has one status for all.
            let expected = match exchange.path.as_str() {
                "/api/v1/nested" => (StatusCode::BAD_REQUEST, "nested-impersonation"),
                _ => (StatusCode::BAD_GATEWAY, "cluster-unreachable"),
            };
            assert_eq!((status, reason(&body).as_str()), expected, "{name}: {body}");
        }
        (_, expected) => {
            assert_eq!(Some(status.as_u16()), expected, "{name}");
            assert!(
                body.unwrap_or_else(|| panic!("{name}: the body breaks off")) == player.body,
                "{name}: another body"
            );
        }
    }
}

async fn end_of_upgrade(mut player: Player<'_>, agentk: Agentk) {
    let (name, mut caller) = (player.name(), player.upgraded.take().unwrap());
    if player.exchange.status != Some(101) {
        // Refused. GitLab's kas waits for the caller, and GitLab's agentk for kas.
        let head = server::read_head(&mut caller).await;
        assert!(head.starts_with("http/1.1 403"), "{name}: {head}");
        assert_eq!(player.stream.any_end().await, ok(), "{name}");
        return;
    }
    if player.exchange.agentk_sent("half-close") {
        assert_eq!(player.stream.any_end().await, ok(), "{name}");
    } else if player.exchange.kas_sent("close_send") {
        // GitLab's stream stays open until agentk is killed.
        let end = timeout(Duration::from_secs(21), player.stream.any_end()).await;
        assert!(matches!(end, Ok(End::Status(1, _))), "{name}: {end:?}");
    } else {
        agentk.cut();
    }
    let closed = timeout(Duration::from_secs(5), caller.read_to_end(&mut Vec::new())).await;
    assert!(closed.is_ok(), "{name}: the connection of the caller stays open");
}

/// A frame of HTTP/2: its type, its flags, its stream and its payload.
type Frame = (u8, u8, u32, Vec<u8>);

async fn read_frame(io: &mut (impl AsyncRead + Unpin)) -> Option<Frame> {
    let mut head = [0; 9];
    io.read_exact(&mut head).await.ok()?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    io.read_exact(&mut payload).await.ok()?;
    Some((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
}

async fn write_frame(io: &mut (impl AsyncWrite + Unpin), (kind, flags, stream, payload): Frame) {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let frame = [&length[1..], &[kind, flags], &stream.to_be_bytes(), &payload].concat();
    io.write_all(&frame).await.unwrap();
    io.flush().await.unwrap();
}

/// Returns a kas whose agent has the token of the recordings.
fn recorded_world() -> World {
    let mut world = World::new();
    world.agent_token = SecretString::from(TOKEN);
    world.kas.identities.replace(parse(&world.identity_file("services: ['*']")));
    world
}

/// Sends a request, which the recorded agentk serves in the stream that kas chooses.
async fn serve_by_hand(world: &World, io: &mut (impl AsyncRead + AsyncWrite + Unpin), name: &str) {
    let exchanges = exchanges();
    let exchange = exchanges.iter().find(|exchange| exchange.scenario == "02-connect-websocket").unwrap();
    let calling = call(world, exchange.request(world));
    // The first frame of data in a stream is RequestInfo.
    let stream = loop {
        let (kind, _, stream, payload) = read_frame(io).await.unwrap();
        let is_info = |step: ConnectResponse| matches!(step.step, Some(KasStep::RequestInfo(_)));
        if kind == 0
            && payload.len() > 5
            && ConnectResponse::decode(&payload[5..payload.len().min(5 + usize::from(payload[4]))])
                .is_ok_and(is_info)
        {
            break stream;
        }
    };
    let messages = exchange.events.iter().filter_map(|event| event.message.as_ref());
    for message in messages {
        let message = STANDARD.decode(message).unwrap();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        write_frame(io, (0, 0, stream, [&[0], &length[..], &message].concat())).await;
    }
    write_frame(io, (0, 1, stream, Vec::new())).await;
    let (status, body) = calling.await.unwrap();
    assert_eq!((status, body.is_some()), (StatusCode::OK, true), "{name}");
}

/// The header blocks are those of Go, with an authority that is not valid in a WebSocket.
#[tokio::test(start_paused = true)]
async fn recorded_bytes_of_a_connection_are_accepted() {
    for name in ["01-connect-idle", "02-connect-websocket", "03-kas-header", "04-kas-header-websocket"] {
        let world = recorded_world();
        let bytes = fixture(&format!("connect-{name}.bin"));
        let mut io = dial(&world);
        io.write_all(&bytes).await.unwrap();
        if name.ends_with("websocket") {
            let head = server::read_head(&mut io).await;
            assert!(head.starts_with("http/1.1 101"), "{name}: {head}");
        }
        world.tunnels(1).await;
        let listed = agents(&world).await;
        let tunnel = &listed[0]["tunnels"][0];
        assert_eq!(tunnel["version"], "gitlab-16.5.0-8daa08cc", "{name}: {tunnel}");
        assert_eq!(tunnel["pod_name"], "agentk-1", "{name}: {tunnel}");
        if name.ends_with("websocket") {
            serve_by_hand(&world, &mut WebSocket::new(io, Bytes::new(), Role::Client), name).await;
        } else {
            serve_by_hand(&world, &mut io, name).await;
        }
        assert_eq!(world.metric("kas_gitlab_agentk_violations_total"), 0.0, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn recorded_bytes_of_an_idle_connection_end_with_it() {
    let world = recorded_world();
    let connect = fixture("connect-01-connect-idle.bin");
    let life = fixture("life-01-connect-idle.bin");
    let mut io = dial(&world);
    io.write_all(&connect).await.unwrap();
    world.tunnels(1).await;
    sleep(Duration::from_secs(5)).await;
    // Acknowledgements, another Register, and SIGTERM.
    io.write_all(life.strip_prefix(&connect[..]).unwrap()).await.unwrap();
    io.shutdown().await.unwrap();
    world.tunnels(0).await;
    let mut goaways = Vec::new();
    while let Some((kind, _, _, payload)) = read_frame(&mut io).await {
        if kind == 7 {
            goaways.push(payload[7]);
        }
    }
    assert!(goaways.iter().all(|code| *code == 0), "an error: {goaways:?}");
}

#[tokio::test(start_paused = true)]
async fn silent_network_ends_the_connection() {
    let world = recorded_world();
    let mut io = dial(&world);
    io.write_all(&fixture("connect-01-connect-idle.bin")).await.unwrap();
    world.tunnels(1).await;
    // Nothing acknowledges the pings of kas.
    timeout(Duration::from_secs(120), io.read_to_end(&mut Vec::new())).await.expect("kas closes it").ok();
    world.tunnels(0).await;
}

#[tokio::test(start_paused = true)]
async fn recorded_bytes_with_a_wrong_token_are_refused_without_an_error_of_http2() {
    let world = recorded_world();
    let mut io = dial(&world);
    io.write_all(&fixture("connect-12-wrong-token.bin")).await.unwrap();
    let mut refused = Vec::new();
    while let Ok(Some((kind, flags, stream, _))) = timeout(Duration::from_secs(5), read_frame(&mut io)).await
    {
        assert_ne!(kind, 7, "GOAWAY");
        if kind == 1 && flags & 1 == 1 {
            refused.push(stream);
        }
    }
    // It has reset its streams by itself.
    assert_eq!(refused, [1, 7]);
    let calls = "kas_gitlab_agentk_calls_total{method=\"AgentRegistrar/Register\",code=\"Unauthenticated\"}";
    assert_eq!(world.metric(calls), 1.0);
}
