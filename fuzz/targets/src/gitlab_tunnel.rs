//! The messages of GitLab's agentk and kas, and the filter of HTTP/2 before them. The first byte selects the part.
//!
//! * Any bytes as a message are decoded or refused. A head that is accepted has neither fields of its connection nor those between
//!   kas and agentk, and survives being sent on; a head of a request also keeps its target.
//! * The bytes after the filter of authorities do not depend on how they arrive. Only frames with a complete header block change;
//!   a second filter changes nothing.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::FutureExt as _;
use gitlab_tunnel::{
    AuthorityFilter, Order, decode_request, decode_response, encode_request, encode_response,
    messages::{ConnectRequest, ConnectResponse, HttpRequest, HttpResponse, RequestPart, ResponsePart},
};
use http::{HeaderMap, StatusCode};
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf};

/// The bytes before the first frame.
const PREFACE: usize = 24;
/// The type of a frame with the begin of a header block.
const HEADERS: u8 = 1;

/// Checks one input.
pub fn run(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    match kind {
        b'a' => check_steps(data),
        b'q' => check_request(data),
        b'r' => check_response(data),
        b'f' => check_filter(data),
        _ => {}
    }
}

fn check_steps(data: &[u8]) {
    if let Ok(message) = ConnectRequest::decode(data) {
        // One message is in order only as the first one, or as none.
        let accepted = Order::of_agent().agent_step(message.step.as_ref());
        assert_eq!(
            accepted.is_ok(),
            matches!(message.step, Some(gitlab_tunnel::messages::AgentStep::Descriptor(_)))
        );
        assert_eq!(ConnectRequest::decode(&message.encode_to_vec()[..]).ok(), Some(message));
    }
    if let Ok(message) = ConnectResponse::decode(data) {
        assert_eq!(ConnectResponse::decode(&message.encode_to_vec()[..]).ok(), Some(message));
    }
}

fn check_request(data: &[u8]) {
    let Ok(HttpRequest { part: Some(RequestPart::Header(header)) }) = HttpRequest::decode(data) else {
        return;
    };
    let Ok(head) = decode_request(header) else { return };
    assert!(head.uri.path().starts_with('/'), "{}", head.uri);
    // A request whose meaning would change is refused.
    let Ok(sent) = encode_request(&head, 0) else { return };
    let again = decode_request(sent).expect("a head that kas sends is valid");
    assert_eq!((&again.method, &again.uri), (&head.method, &head.uri));
    assert!(!again.headers.keys().any(|name| name.as_str().starts_with("kas-")), "{:?}", again.headers);
}

fn check_response(data: &[u8]) {
    let Ok(HttpResponse { part: Some(ResponsePart::Header(header)) }) = HttpResponse::decode(data) else {
        return;
    };
    let Ok(head) = decode_response(header) else { return };
    let is_upgrade = head.status == StatusCode::SWITCHING_PROTOCOLS;
    assert!(is_upgrade || !head.status.is_informational(), "{}", head.status);
    assert_eq!(head.headers.contains_key("upgrade"), is_upgrade, "{:?}", head.headers);
    for name in ["connection", "keep-alive", "transfer-encoding", "te", "proxy-authenticate"] {
        assert!(is_upgrade || !head.headers.contains_key(name), "{name}: {:?}", head.headers);
    }
    assert!(!head.headers.keys().any(|name| name.as_str().starts_with("kas-")), "{:?}", head.headers);
    let again = decode_response(encode_response(&head)).expect("a head that agentk sends is valid");
    assert_eq!(again.status, head.status);
    assert_eq!(sorted(&again.headers), sorted(&head.headers));
}

/// Returns the fields, whose order between different names has no meaning.
fn sorted(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    let mut fields: Vec<_> =
        headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect();
    fields.sort();
    fields
}

fn check_filter(data: &[u8]) {
    let received = [&[b'P'; PREFACE], data].concat();
    let filtered = filter(&received, received.len());
    for size in [1, 7, 4096] {
        assert_eq!(filter(&received, size), filtered, "{size}");
    }
    assert_eq!(filter(&filtered, filtered.len()), filtered, "a second filter");
    let (before, after) = (frames(&received[PREFACE..]), frames(&filtered[PREFACE..]));
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(&after) {
        // The type and the stream are the same; only a header block has another payload.
        assert_eq!((before.kind, before.stream), (after.kind, after.stream));
        assert!(before.kind == HEADERS || before.payload == after.payload);
    }
}

fn filter(bytes: &[u8], size: usize) -> Vec<u8> {
    let (first, rest) = bytes.split_at(size.min(bytes.len()));
    let mut filtered = Vec::new();
    let read = async { AuthorityFilter::new(Pieces { rest, size }, first).read_to_end(&mut filtered).await };
    read.now_or_never().expect("the source is never pending").expect("the source does not fail");
    filtered
}

/// A source that returns this many bytes at once.
struct Pieces<'a> {
    rest: &'a [u8],
    size: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = self.rest.len().min(self.size).min(buffer.remaining());
        let (piece, rest) = self.rest.split_at(length);
        buffer.put_slice(piece);
        self.rest = rest;
        Poll::Ready(Ok(()))
    }
}

struct Frame<'a> {
    kind: u8,
    stream: &'a [u8],
    payload: &'a [u8],
}

/// Returns the frames. The last one may be cut.
fn frames(mut bytes: &[u8]) -> Vec<Frame<'_>> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<9>() {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let (payload, rest) = rest.split_at(length.min(rest.len()));
        frames.push(Frame { kind: head[3], stream: &head[5..], payload });
        bytes = rest;
    }
    frames
}
