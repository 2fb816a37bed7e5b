//! HTTP/2 from a hostile end, whatever it says and however it is cut, while requests are under way.
//!
//! Input: a byte of flags (see [`Plan`]), a byte whose lowest four bits are a number of cuts, the cuts, and then either
//! bytes as they are or frames: type, flags, stream, length, payload. Their heads are written here, so that most of
//! what is tried gets further than that. A type of 255 is a second of silence.
//!
//! * Nothing panics, nothing hangs, nothing spins: whoever asked or answered gets an end of it, and so does the connection.
//! * What we write are frames in an order that HTTP/2 allows, no larger than the other end takes, and with no more DATA
//!   than it granted.
//! * We write no more than what was asked for, and hold no more than a window for a reader who does not read.
#![no_main]

use std::{
    cell::RefCell,
    collections::VecDeque,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use fuzz::http2::{PREFACE, check};
use http::{Method, Request, Response, StatusCode, header::UPGRADE};
use http_body_util::BodyExt as _;
use libfuzzer_sys::fuzz_target;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf, duplex},
    runtime,
    task::LocalSet,
    time::{Sleep, sleep, timeout},
};
use tunnel::{Body, Exchange, Settings, Tunnel, direct, upgrade};

const WINDOW: u32 = 1 << 16;
const MAX_FRAME: usize = 1 << 14;

/// A body of ours: larger than a window.
const LARGE: usize = 200_000;

fuzz_target!(|data: &[u8]| {
    let [flags, count, rest @ ..] = data else { return };
    let Some((cuts, script)) = rest.split_at_checked(usize::from(count & 15)) else { return };
    let plan = Plan::new(*flags);
    let (said, pauses) =
        if plan.raw { (script.to_vec(), VecDeque::new()) } else { frames(script, plan.server) };
    let wire = Rc::new(RefCell::new(Wire::new(plan, said.clone(), pauses, cuts)));

    let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime needs nothing");
    LocalSet::new().block_on(&runtime, async {
        // The keepalive ends whatever goes on in silence.
        let over =
            if plan.server { timeout(HOUR, serve(&wire)).await } else { timeout(HOUR, ask(&wire)).await };
        assert!(over.is_ok(), "it hangs");
    });
    check(&wire.borrow().written, &said, plan.server);
});

const HOUR: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, Debug)]
struct Plan {
    /// We are the server.
    server: bool,
    /// The input is what is sent.
    raw: bool,
    /// The other end hangs up after its last word; otherwise it is silent.
    hangs_up: bool,
    /// The other end reads only so much.
    deaf: bool,
}

impl Plan {
    fn new(flags: u8) -> Self {
        let [server, raw, hangs_up, deaf] = [1, 2, 4, 8].map(|flag| flags & flag != 0);
        Self { server, raw, hangs_up, deaf }
    }
}

fn settings() -> Settings {
    Settings {
        stream_window: WINDOW,
        max_frame: MAX_FRAME as u32,
        max_concurrent_streams: 8,
        max_header_bytes: 16 << 10,
        send_buffer: 100_000,
        ..Settings::default()
    }
}

/// Writes frames around what the input says; and where to pause.
fn frames(script: &[u8], greeting: bool) -> (Vec<u8>, VecDeque<usize>) {
    let (mut out, mut pauses) = (Vec::new(), VecDeque::new());
    if greeting {
        out.extend_from_slice(PREFACE);
    }
    out.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
    let mut rest = script;
    while let [kind, flags, stream, length, payload @ ..] = rest {
        // Few bytes may stand for many, and for streams with large numbers.
        let repeat = if *length >= 240 { usize::from(length - 239) * 1000 } else { 1 };
        let length = if repeat > 1 { 1 } else { usize::from(*length) };
        let (payload, after) = payload.split_at(length.min(payload.len()));
        rest = after;
        if *kind == 255 {
            pauses.push_back(out.len());
            continue;
        }
        let payload = payload.repeat(repeat);
        let stream = if *stream == 255 { u32::MAX >> 1 } else { u32::from(*stream) };
        out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        out.extend_from_slice(&[*kind, *flags]);
        out.extend_from_slice(&stream.to_be_bytes());
        out.extend_from_slice(&payload);
    }
    (out, pauses)
}

/// What the other end says comes in pieces; a cut of 0 is a pause.
struct Wire {
    plan: Plan,
    said: Vec<u8>,
    read: usize,
    written: Vec<u8>,
    pauses: VecDeque<usize>,
    pause: Option<Pin<Box<Sleep>>>,
    /// For reading and for writing.
    cuts: [Cuts; 2],
    polls: usize,
}

/// Polls beyond those that bring bytes.
const PATIENCE: usize = 100_000;

impl Wire {
    fn new(plan: Plan, said: Vec<u8>, pauses: VecDeque<usize>, cuts: &[u8]) -> Self {
        let cuts = [(); 2].map(|()| Cuts { cuts: cuts.to_vec(), turn: 0 });
        Self { plan, said, read: 0, written: Vec::new(), pauses, pause: None, cuts, polls: 0 }
    }

    fn polled(&mut self) {
        self.polls += 1;
        let bytes = self.said.len() + self.written.len();
        assert!(self.polls < PATIENCE + 50 * bytes, "{} polls for {bytes} bytes", self.polls);
    }
}

struct Cuts {
    cuts: Vec<u8>,
    turn: usize,
}

impl Cuts {
    fn next(&mut self) -> usize {
        self.turn += 1;
        // Pauses alone would be the end.
        if self.cuts.iter().all(|cut| *cut == 0) {
            return usize::MAX;
        }
        match self.cuts[self.turn % self.cuts.len()] {
            large @ 240.. => usize::from(large - 239) * 1024,
            small => usize::from(small),
        }
    }
}

#[derive(Clone)]
struct Near(Rc<RefCell<Wire>>);

impl AsyncRead for Near {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let wire = &mut *self.0.borrow_mut();
        wire.polled();
        if wire.pauses.pop_front_if(|place| *place <= wire.read).is_some() {
            wire.pause = Some(Box::pin(sleep(Duration::from_secs(1))));
        }
        if let Some(pause) = &mut wire.pause {
            ready!(pause.as_mut().poll(cx));
            wire.pause = None;
        }
        if wire.read == wire.said.len() {
            // Silence wakes nobody.
            return if wire.plan.hangs_up { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        let length = wire.cuts[0].next();
        if length == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let until = wire.pauses.front().map_or(wire.said.len(), |place| *place);
        let length = length.min(buf.remaining()).min(until - wire.read);
        buf.put_slice(&wire.said[wire.read..wire.read + length]);
        wire.read += length;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Near {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let wire = &mut *self.0.borrow_mut();
        wire.polled();
        if wire.plan.deaf && wire.written.len() > 1000 {
            return Poll::Pending;
        }
        let length = wire.cuts[1].next().min(buf.len());
        if length == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        wire.written.extend_from_slice(&buf[..length]);
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// We ask: what has a body, what has none, what is an upgrade, and what nobody reads.
async fn ask(wire: &Rc<RefCell<Wire>>) {
    let (tunnel, driver) = direct::open(Near(Rc::clone(wire)), &settings());
    let post = |uri| Request::post(uri).body(Body::from(Bytes::from(vec![7; LARGE])));
    let head = Request::builder().method(Method::HEAD).body(Body::empty());
    let upgrade = Request::get("/exec").header(UPGRADE, "SPDY/3.1").body(Body::empty());
    let calls: Vec<_> = [Request::get("/").body(Body::empty()), post("/read"), head, upgrade, post("/held")]
        .map(|request| {
            let request = request.expect("a good request");
            tokio::task::spawn_local(call(tunnel.clone(), request, Rc::clone(wire)))
        })
        .into();
    tokio::task::spawn_local(driver.run()).await.expect("the driver does not panic");
    for call in calls {
        call.await.expect("a call does not panic");
    }
    assert!(tunnel.call(Request::new(Body::empty())).await.is_err(), "it is over");
}

async fn call(tunnel: Tunnel, request: Request<Body>, wire: Rc<RefCell<Wire>>) {
    let held = request.uri() == "/held";
    if request.headers().contains_key(UPGRADE) {
        // Or never, if the other end does not answer.
        let _ = timeout(Duration::from_secs(1), tunnel.ready()).await;
    }
    let head = request.method() == Method::HEAD;
    let Ok(mut response) = tunnel.call(request).await else { return };
    if let Some(upgraded) = upgrade::take(&mut response) {
        let (outside, echo) = duplex(1000);
        let (mut reader, mut writer) = tokio::io::split(echo);
        tokio::task::spawn_local(async move { tokio::io::copy(&mut reader, &mut writer).await });
        // Its error is the other end's.
        let _ = upgrade::splice(upgraded, outside).await;
        return;
    }
    let length = read(response.into_body(), held).await;
    assert!(length <= wire.borrow().said.len(), "bytes that nobody sent");
    assert!(!head || length == 0, "an answer to HEAD has a body");
}

/// The other end asks; the path says how it is answered.
async fn serve(wire: &Rc<RefCell<Wire>>) {
    let (session, leave) = direct::accept(Near(Rc::clone(wire)), &settings());
    let mut served = 0;
    session
        .run(|exchange: Exchange| {
            served += 1;
            if served == 5 {
                leave.within(Duration::from_secs(10));
            }
            tokio::task::spawn_local(exchange.answer(answer));
        })
        .await;
    // Whoever answers notices.
    tokio::task::yield_now().await;
}

async fn answer(request: Request<Body>) -> Response<Body> {
    if request.headers().contains_key(UPGRADE) {
        let (near, far) = duplex(1000);
        let (mut reader, mut writer) = tokio::io::split(far);
        tokio::task::spawn_local(async move { tokio::io::copy(&mut reader, &mut writer).await });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.extensions_mut().insert(upgrade::Outside::new(near));
        return response;
    }
    match request.uri().path().as_bytes().get(1) {
        // An echo, as it comes.
        None => Response::new(request.into_body()),
        Some(b'l') => Response::new(Body::from(Bytes::from(vec![7; LARGE]))),
        Some(b'n') => std::future::pending().await,
        Some(b'r') => {
            read(request.into_body(), false).await;
            Response::new(Body::empty())
        }
        Some(b'h') => {
            read(request.into_body(), true).await;
            Response::new(Body::from("held"))
        }
        Some(_) => Response::new(Body::from("not read")),
    }
}

/// How much there was of it; one that is held is looked at before it is read.
async fn read(mut body: Body, held: bool) -> usize {
    if held && let Some(grip) = body.grip() {
        sleep(Duration::from_secs(1)).await;
        assert!(grip.look().unread <= WINDOW as usize, "more than a window waits");
    }
    let mut length = 0;
    while let Some(Ok(frame)) = body.frame().await {
        length += frame.data_ref().map_or(0, Bytes::len);
    }
    length
}
