//! Frames from the other end, whatever they are and however they are cut; and our own frames, read back.
//!
//! Input: a byte whose lowest bit is the role, a byte whose lowest four bits are a number of cuts, the cuts, the wire.
//!
//! * Where the bytes are cut makes no difference to the payload, nor to whether they are refused.
//! * The payload is what tungstenite's reading of the frame headers, with the rules of RFC 6455 and ours, makes of
//!   the same bytes. There is never more of it than there are bytes.
//! * Where tungstenite's own WebSocket accepts the same frames, it delivers the same messages.
//! * What we answer are frames: pongs to pings that came, at most one close, nothing after it, masked by agentk alone.
//! * What one end writes is what the other end reads.
#![no_main]

use std::{
    io::{self, Cursor},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tungstenite::{
    Message,
    protocol::{
        self,
        frame::{
            FrameHeader,
            coding::{Control, Data, OpCode},
        },
    },
};
use tunnel::websocket::{Role, WebSocket, parse_frame_header};

fuzz_target!(|data: &[u8]| {
    let [role, count, rest @ ..] = data else { return };
    let role = if role & 1 == 0 { Role::Client } else { Role::Server };
    let Some((cuts, wire)) = rest.split_at_checked(usize::from(count & 15)) else { return };

    let model = Model::read(wire, role);
    let whole = read(wire, role, &[]);
    let cut = read(wire, role, cuts);
    for outcome in [&whole, &cut] {
        check(outcome, &model, wire, role);
    }
    if !whole.refused {
        assert!(whole.payload == cut.payload, "the cuts make a difference");
    }
    compare_with_tungstenite(wire, role, &whole);
    check_header(wire);
    check_round_trip(wire, role, cuts);
});

/// Bytes that come, and are taken, in pieces; a cut of 0 is a pause.
struct Wire<'a> {
    incoming: &'a [u8],
    written: Vec<u8>,
    cuts: &'a [u8],
    turn: usize,
}

impl<'a> Wire<'a> {
    fn new(incoming: &'a [u8], cuts: &'a [u8]) -> Self {
        Self { incoming, written: Vec::new(), cuts, turn: 0 }
    }

    fn next(&mut self) -> usize {
        // Pauses alone would be the end.
        if self.cuts.iter().all(|cut| *cut == 0) {
            return usize::MAX;
        }
        self.turn += 1;
        match self.cuts[self.turn % self.cuts.len()] {
            large @ 240.. => usize::from(large - 239) * 1024,
            small => usize::from(small),
        }
    }
}

impl AsyncRead for Wire<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = self.next();
        if length == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let length = length.min(buf.remaining()).min(self.incoming.len());
        let (now, later) = self.incoming.split_at(length);
        buf.put_slice(now);
        self.incoming = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire<'_> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let length = self.next().min(buf.len());
        if length == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.written.extend_from_slice(&buf[..length]);
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Polls until it is done, which takes no more turns than there are bytes and pauses.
fn run<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..1_000_000 {
        if let Poll::Ready(done) = poll(&mut cx) {
            return done;
        }
    }
    panic!("it never ends");
}

#[derive(Debug)]
struct Outcome {
    payload: Vec<u8>,
    refused: bool,
    answer: Vec<u8>,
}

fn read(wire: &[u8], role: Role, cuts: &[u8]) -> Outcome {
    // The first cut says how much came with the handshake, the last one how much is read at a time.
    let early = cuts.first().map_or(0, |cut| usize::from(*cut).min(wire.len()));
    let (early, later) = wire.split_at(early);
    let mut buffer = vec![0; cuts.last().map_or(1 << 16, |cut| usize::from(*cut).max(1))];
    let mut transport = Wire::new(later, cuts);
    let mut payload = Vec::new();
    let mut refused = false;
    {
        let mut socket = pin!(WebSocket::new(&mut transport, Bytes::copy_from_slice(early), role));
        loop {
            let mut buf = ReadBuf::new(&mut buffer);
            match run(|cx| socket.as_mut().poll_read(cx, &mut buf)) {
                Ok(()) if buf.filled().is_empty() => break,
                Ok(()) => payload.extend_from_slice(buf.filled()),
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
                    refused = true;
                    break;
                }
            }
        }
        // The other end is told, even after an error, and what it still says is survived.
        run(|cx| socket.as_mut().poll_shutdown(cx)).expect("the transport never fails");
        let more = run(|cx| socket.as_mut().poll_write(cx, b"late"));
        assert!(more.is_err(), "a write after the close");
    }
    Outcome { payload, refused, answer: transport.written }
}

/// What the wire means.
#[derive(Debug, Default)]
struct Model {
    payload: Vec<u8>,
    pings: Vec<Vec<u8>>,
    end: End,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum End {
    /// After a whole frame.
    #[default]
    Whole,
    /// In a frame's header: enough may have come to refuse it.
    InHeader,
    InPayload,
    Closed,
    Refused,
}

impl Model {
    fn read(wire: &[u8], role: Role) -> Self {
        let mut model = Self::default();
        let mut rest = wire;
        while !rest.is_empty() {
            let mut cursor = Cursor::new(rest);
            let (header, length) = match FrameHeader::parse(&mut cursor) {
                Ok(Some(parsed)) => parsed,
                Ok(None) => {
                    model.end = End::InHeader;
                    return model;
                }
                Err(_) => {
                    model.end = End::Refused;
                    return model;
                }
            };
            rest = &rest[usize::try_from(cursor.position()).expect("it is within the wire")..];
            let control = matches!(header.opcode, OpCode::Control(_));
            let refused = header.rsv1
                || header.rsv2
                || header.rsv3
                || header.opcode == OpCode::Data(Data::Text)
                || header.mask.is_some() != (role == Role::Server)
                || length > i64::MAX as u64
                || control && (length > 125 || !header.is_final);
            if refused {
                model.end = End::Refused;
                return model;
            }

            let whole = usize::try_from(length).is_ok_and(|length| length <= rest.len());
            let (payload, after) = rest.split_at(if whole { length as usize } else { rest.len() });
            let key = header.mask.unwrap_or_default();
            let payload = payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key);
            match header.opcode {
                OpCode::Data(_) => model.payload.extend(payload),
                OpCode::Control(Control::Ping) if whole => model.pings.push(payload.collect()),
                OpCode::Control(_) => {}
            }
            if !whole {
                model.end = End::InPayload;
                return model;
            }
            if header.opcode == OpCode::Control(Control::Close) {
                model.end = End::Closed;
                return model;
            }
            rest = after;
        }
        model
    }
}

fn check(outcome: &Outcome, model: &Model, wire: &[u8], role: Role) {
    assert!(outcome.payload.len() <= wire.len());
    match model.end {
        End::Refused => assert!(outcome.refused, "{model:?}"),
        End::InHeader => {}
        _ => assert!(!outcome.refused, "{model:?}"),
    }
    if outcome.refused {
        // What came together with the violation may be lost.
        assert!(model.payload.starts_with(&outcome.payload));
    } else {
        assert!(model.payload == outcome.payload, "{outcome:?} instead of {model:?}");
    }

    let mut rest = &*outcome.answer;
    let mut pongs = 0;
    let mut closed = false;
    while !rest.is_empty() {
        assert!(!closed, "something after the close");
        let mut cursor = Cursor::new(rest);
        let parsed = FrameHeader::parse(&mut cursor).expect("we write frames");
        let (header, length) = parsed.expect("we write whole frames");
        rest = &rest[cursor.position() as usize..];
        let (payload, after) = rest.split_at(length as usize);
        rest = after;
        assert_eq!(header.mask.is_some(), role == Role::Client);
        assert!(header.is_final && !header.rsv1 && !header.rsv2 && !header.rsv3);
        let key = header.mask.unwrap_or_default();
        let payload: Vec<u8> = payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key).collect();
        match header.opcode {
            OpCode::Control(Control::Pong) => {
                pongs += 1;
                assert!(model.pings.contains(&payload), "a pong to nothing: {payload:?}");
            }
            OpCode::Control(Control::Close) => closed = true,
            other => panic!("we answer {other:?}"),
        }
    }
    assert!(closed, "the other end is not told");
    assert!(pongs <= model.pings.len());
    // Of several pings that came together, the latest is enough; but one there has to be, unless a close came with it
    // (RFC 6455 section 5.5.2).
    if !outcome.refused && !matches!(model.end, End::Closed) {
        assert_eq!(pongs == 0, model.pings.is_empty(), "{outcome:?} to {model:?}");
    }
}

/// Messages and all, as a stock WebSocket reads it. It refuses more: continuations of nothing, messages in messages.
fn compare_with_tungstenite(wire: &[u8], role: Role, ours: &Outcome) {
    struct Input<'a>(&'a [u8]);
    impl io::Read for Input<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.0.read(buf)
        }
    }
    impl io::Write for Input<'_> {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            Ok(buf.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let role = match role {
        Role::Client => protocol::Role::Client,
        Role::Server => protocol::Role::Server,
    };
    // Frames that do not come whole are not made room for.
    let limit = Some(wire.len());
    let config = protocol::WebSocketConfig::default().max_frame_size(limit).max_message_size(limit);
    let mut theirs = protocol::WebSocket::from_raw_socket(Input(wire), role, Some(config));
    let mut payload = Vec::new();
    loop {
        match theirs.read() {
            Ok(Message::Binary(message)) => payload.extend_from_slice(&message),
            Ok(Message::Text(_)) => {
                assert!(ours.refused, "a text message passed");
                return;
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
    if !ours.refused {
        assert!(ours.payload.starts_with(&payload), "tungstenite reads {payload:?}, we {:?}", ours.payload);
    }
}

/// A header takes the same number of bytes however many follow, and as many as tungstenite says.
fn check_header(wire: &[u8]) {
    let Ok(Some(length)) = parse_frame_header(wire) else { return };
    let mut cursor = Cursor::new(wire);
    let theirs = FrameHeader::parse(&mut cursor).expect("we refuse more, not less");
    assert!(theirs.is_some() && cursor.position() == length as u64);
    assert!(matches!(parse_frame_header(&wire[..length]), Ok(Some(again)) if again == length));
    for cut in 0..length {
        assert!(matches!(parse_frame_header(&wire[..cut]), Ok(None)), "{cut} of {length}");
    }
}

fn check_round_trip(payload: &[u8], role: Role, cuts: &[u8]) {
    let mut transport = Wire::new(&[], cuts);
    {
        let mut socket = pin!(WebSocket::new(&mut transport, Bytes::new(), role));
        let mut rest = payload;
        let mut sizes = cuts.iter().cycle();
        while !rest.is_empty() {
            let size = sizes.next().map_or(usize::MAX, |cut| usize::from(*cut).max(1)).min(rest.len());
            let written = run(|cx| socket.as_mut().poll_write(cx, &rest[..size])).expect("it is open");
            assert!((1..=size).contains(&written));
            rest = &rest[written..];
        }
        run(|cx| socket.as_mut().poll_shutdown(cx)).expect("the transport never fails");
    }
    let other = if role == Role::Client { Role::Server } else { Role::Client };
    let outcome = read(&transport.written, other, cuts);
    assert!(!outcome.refused && outcome.payload == payload, "{outcome:?} instead of {payload:?}");
}
