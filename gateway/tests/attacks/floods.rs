//! Ends of a tunnel that send frames without effect, as fast as they can. The other tunnels share their core.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use kas_testing::world::World;
use parking_lot::Mutex;
use proto::InstanceId;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex},
    time::sleep,
};
use tunnel::{
    CloseReason, TunnelConfig,
    websocket::{Role, WebSocket},
};

use crate::{
    cluster::{assert_serves, services},
    http2::{
        ACK, DATA, END_STREAM, PING, PREFACE, PRIORITY, SETTINGS, frame, goaway, headers, reset,
        settings_frame, window_update,
    },
    tunnel_ends::{assert_agentk_serves, upgrade_as},
};

/// Bytes that a flood has in all.
const FLOOD: usize = 64 << 20;

/// Bytes of a flood that are read at most before another agent has answered a request. The request is processed in about a
/// dozen turns of the scheduler, in each of which a connection reads 64 KiB or less.
const BEFORE_AN_ANSWER: usize = 3 << 20;

/// Bytes of a flood that are read at most before the tunnel is cut: the burst of its overhead, and what is on the way.
const BEFORE_THE_CUT: usize = 9 << 20;

const BINARY: u8 = 0x82;
const WS_CLOSE: u8 = 0x88;
const WS_PING: u8 = 0x89;
const WS_PONG: u8 = 0x8a;
const UNFINISHED_BINARY: u8 = 0x02;
const UNFINISHED_CONTINUATION: u8 = 0x00;

/// Bytes that repeat after a beginning.
struct Flood {
    name: &'static str,
    first: Vec<u8>,
    repeated: Vec<u8>,
    /// The tunnel ends because of its overhead, and not by another limit.
    is_overhead: bool,
}

/// A pipe whose reader receives a flood without end, once it was started. Such a socket always has bytes to read.
struct FloodedPipe {
    pipe: DuplexStream,
    control: Arc<Control>,
    sent: usize,
}

#[derive(Default)]
struct Control {
    flood: Mutex<Option<Flood>>,
    started: AtomicBool,
    read: AtomicUsize,
}

impl Control {
    /// Returns the bytes of the flood that were read.
    fn read(&self) -> usize {
        self.read.load(Relaxed)
    }

    /// Starts the flood. `pipe` is the other end of the pipe, which must be idle.
    async fn start(&self, flood: Flood, pipe: &mut DuplexStream) {
        let first = flood.first.clone();
        *self.flood.lock() = Some(flood);
        self.started.store(true, Relaxed);
        // Wakes the reader.
        pipe.write_all(&first).await.unwrap();
    }
}

impl AsyncRead for FloodedPipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut this.pipe).poll_read(cx, buffer)
            && (read.is_err() || buffer.filled().len() > before || !this.control.started.load(Relaxed))
        {
            return Poll::Ready(read);
        }
        if !this.control.started.load(Relaxed) {
            return Poll::Pending;
        }
        let flood = this.control.flood.lock();
        let flood = flood.as_ref().unwrap();
        while buffer.remaining() > 0 && this.sent < FLOOD {
            let rest = &flood.repeated[this.sent % flood.repeated.len()..];
            let part = rest.len().min(buffer.remaining());
            buffer.put_slice(&rest[..part]);
            this.sent += part;
        }
        this.control.read.store(this.sent, Relaxed);
        if buffer.filled().len() == before { Poll::Pending } else { Poll::Ready(Ok(())) }
    }
}

impl AsyncWrite for FloodedPipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.control.started.load(Relaxed) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = ready!(Pin::new(&mut self.pipe).poll_write(cx, bytes))?;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}

/// Returns a WebSocket frame (RFC 6455 section 5.2). The mask of a client is zero, so that the payload stays as it is.
fn message(from: Role, opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mask: &[u8] = if from == Role::Client { &[0; 4] } else { &[] };
    let flag = if from == Role::Client { 0x80 } else { 0 };
    let head = match u8::try_from(payload.len()) {
        Ok(length @ ..126) => vec![opcode, flag | length],
        _ => {
            let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
            vec![opcode, flag | 126, length[0], length[1]]
        }
    };
    [&head, mask, payload].concat()
}

/// Returns floods that an end of this role can send.
fn floods(from: Role) -> Vec<Flood> {
    let flood =
        |name, repeated| Flood { name, first: message(from, WS_PONG, b""), repeated, is_overhead: true };
    let frames = |name, one: Vec<u8>| flood(name, message(from, BINARY, &one.repeat(100)));
    let priority = frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1]);
    let bytewise: Vec<u8> = priority.iter().flat_map(|byte| message(from, BINARY, &[*byte])).collect();
    vec![
        flood("empty messages", message(from, BINARY, b"")),
        flood("messages of one byte", bytewise),
        Flood {
            name: "empty fragments of one message",
            first: message(from, UNFINISHED_BINARY, b""),
            repeated: message(from, UNFINISHED_CONTINUATION, b""),
            is_overhead: true,
        },
        flood("WebSocket pings", message(from, WS_PING, b"there?")),
        flood("WebSocket pongs", message(from, WS_PONG, b"there!")),
        Flood { is_overhead: false, ..flood("close frames", message(from, WS_CLOSE, b"")) },
        frames("PRIORITY", priority),
        frames("WINDOW_UPDATE", window_update(0, 1)),
        frames("SETTINGS", settings_frame(&[])),
        // h2 ends the connection at the second one.
        Flood {
            is_overhead: false,
            ..frames("acknowledged SETTINGS that were never sent", frame(SETTINGS, ACK, 0, b""))
        },
        frames("PING", frame(PING, 0, 0, b"12345678")),
        frames("acknowledged PING that were never sent", frame(PING, ACK, 0, b"12345678")),
        frames("frames of an unknown type", frame(0x50, 0, 0, b"")),
        frames("large frames of an unknown type", frame(0x50, 0, 0, &[0; 400])),
    ]
}

/// Returns floods of an agent that has received the request of stream 1.
fn floods_of_agent() -> Vec<Flood> {
    let in_message = |one: Vec<u8>| message(Role::Client, BINARY, &one.repeat(20));
    let after = |name, first: Vec<u8>, repeated: Vec<u8>| {
        let first = message(Role::Client, BINARY, &first);
        Flood { name, first, repeated: in_message(repeated), is_overhead: true }
    };
    let ended = headers(1, END_STREAM, &[(":status", "204")]);
    let limited = |flood| Flood { is_overhead: false, ..flood };
    vec![
        after("interim responses", Vec::new(), headers(1, 0, &[(":status", "103")])),
        after("window updates of a stream", Vec::new(), window_update(1, 1)),
        after("resets of a stream that has ended", ended.clone(), reset(1, 8)),
        limited(after("data after the end", ended.clone(), frame(DATA, 0, 1, b"x"))),
        limited(after("heads after the end", ended, headers(1, END_STREAM, &[(":status", "200")]))),
        after("repeated GOAWAY", Vec::new(), goaway(0x7fff_ffff, 0)),
    ]
}

/// Opens a tunnel of the agent `test`, whose flood can be started.
async fn flooded_tunnel(world: &World, upgrade: &str) -> (DuplexStream, Arc<Control>) {
    let before = world.kas.agents.metrics.tunnels.get();
    let (mut pipe, near) = duplex(64 << 10);
    let control = Arc::<Control>::default();
    let near = FloodedPipe { pipe: near, control: Arc::clone(&control), sent: 0 };
    let agents = Arc::clone(&world.kas.agents);
    tokio::spawn(async move { agents.serve(near, kas_testing::world::CALLER, Arc::default()).await });
    pipe.write_all(upgrade.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(pipe.read_u8().await.unwrap());
    }
    let settings = settings_frame(&[]);
    pipe.write_all(&message(Role::Client, BINARY, &settings)).await.unwrap();
    // kas is ready once it has a pong.
    let pong = frame(PING, ACK, 0, &[0x3b, 0x7c, 0xdb, 0x7a, 0x0b, 0x87, 0x16, 0xb4]);
    pipe.write_all(&message(Role::Client, BINARY, &pong)).await.unwrap();
    world.tunnels(before + 1).await;
    (pipe, control)
}

#[tokio::test(start_paused = true)]
async fn attack_82_flood_of_agent_delays_no_other_agent_and_is_cut() {
    for flood in floods(Role::Client).into_iter().chain(floods_of_agent()) {
        let world = World::new();
        let other = world.add_second_agent();
        let _honest = world.agent(services()).await;
        let honest = world.kas.agents.metrics.tunnels.get();
        let (mut pipe, control) = flooded_tunnel(&world, &upgrade_as(&other, InstanceId::random())).await;
        let caller = world.clone();
        let asking = tokio::spawn(async move { caller.get("/agents/test/kubernetes/").await.status() });
        sleep(Duration::from_millis(100)).await;

        let (name, is_overhead) = (flood.name, flood.is_overhead);
        control.start(flood, &mut pipe).await;
        assert_serves(&world).await;
        let read = control.read();
        assert!(read < BEFORE_AN_ANSWER, "{name}: {read} bytes were read before another agent answered");
        assert!(read > 0, "{name}: the flood had begun");

        world.tunnels(honest).await;
        let read = control.read();
        assert!(read < BEFORE_THE_CUT, "{name}: {read} bytes were read before the cut");
        let cut = world.metric(r#"kas_tunnel_lifetime_seconds_count{reason="flooded"}"#);
        assert!(!is_overhead || cut == 1.0, "{name}: {cut}");
        asking.abort();
        assert_serves(&world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn attack_82_flood_of_kas_delays_no_other_tunnel_of_agentk_and_is_cut() {
    for flood in floods(Role::Server) {
        let (mut pipe, near) = duplex(64 << 10);
        let control = Arc::<Control>::default();
        let near = FloodedPipe { pipe: near, control: Arc::clone(&control), sent: 0 };
        let socket = WebSocket::new(near, Bytes::new(), Role::Client);
        let (server, _drain) = tunnel::accept(socket, &TunnelConfig::default());
        let agentk = tokio::spawn(server.run(drop));
        let preface = [PREFACE, &settings_frame(&[])].concat();
        pipe.write_all(&message(Role::Server, BINARY, &preface)).await.unwrap();
        sleep(Duration::from_millis(100)).await;

        let (name, is_overhead) = (flood.name, flood.is_overhead);
        control.start(flood, &mut pipe).await;
        assert_agentk_serves().await;
        let read = control.read();
        assert!(read < BEFORE_AN_ANSWER, "{name}: {read} bytes were read before another kas was answered");
        let ended = agentk.await.unwrap();
        assert!(!is_overhead || matches!(ended, CloseReason::Flooded), "{name}: {ended}");
        assert!(control.read() < BEFORE_THE_CUT, "{name}");
    }
}
