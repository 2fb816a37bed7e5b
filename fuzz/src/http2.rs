//! Frames of HTTP/2, read naively: whether one end keeps to what the other end allowed.

use std::collections::HashMap;

/// What a client says first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The window of a connection, and of its streams, until somebody says otherwise.
const FIRST_WINDOW: i64 = 65_535;

/// A frame's type, flags, stream and payload.
struct Frame<'a> {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &'a [u8],
}

/// The whole frames in these bytes.
fn walk(mut bytes: &[u8]) -> impl Iterator<Item = Frame<'_>> {
    std::iter::from_fn(move || {
        let ([a, b, c, kind, flags, w, x, y, z], rest) = bytes.split_first_chunk()?;
        let (payload, rest) = rest.split_at_checked(u32::from_be_bytes([0, *a, *b, *c]) as usize)?;
        bytes = rest;
        let stream = u32::from_be_bytes([*w, *x, *y, *z]) & (u32::MAX >> 1);
        Some(Frame { kind: *kind, flags: *flags, stream, payload })
    })
}

/// What the other end allows at the most, if all that it says is heard at once.
#[derive(Debug)]
struct Allowed {
    max_frame: usize,
    window: i64,
    /// Of the connection (0) and of streams, beyond the first.
    windows: HashMap<u32, i64>,
    pings: usize,
    settings: usize,
}

impl Allowed {
    fn read(said: &[u8], server: bool) -> Self {
        let mut allowed =
            Self { max_frame: 1 << 14, window: FIRST_WINDOW, windows: HashMap::new(), pings: 0, settings: 0 };
        let said = if server { said.strip_prefix(PREFACE).unwrap_or_default() } else { said };
        for frame in walk(said) {
            match (frame.kind, frame.payload) {
                (4, payload) => {
                    allowed.settings += 1;
                    for setting in payload.as_chunks::<6>().0 {
                        let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
                        match setting[1] {
                            4 => allowed.window = allowed.window.max(value.into()),
                            5 => allowed.max_frame = allowed.max_frame.max(value as usize),
                            _ => {}
                        }
                    }
                }
                (6, _) => allowed.pings += 1,
                (8, [a, b, c, d]) => {
                    let more = u32::from_be_bytes([*a, *b, *c, *d]) & (u32::MAX >> 1);
                    *allowed.windows.entry(frame.stream).or_default() += i64::from(more);
                }
                _ => {}
            }
        }
        allowed
    }
}

/// Panics if what one end has `written`, a server or not, breaks the protocol, or is more than what the other end `said`
/// allows.
pub fn check(written: &[u8], said: &[u8], server: bool) {
    let Allowed { max_frame, window, mut windows, pings, settings } = Allowed::read(said, server);
    let connection = windows.remove(&0).unwrap_or(0) + FIRST_WINDOW;
    let frames = if server { Some(written) } else { written.strip_prefix(PREFACE) };
    let (mut sent, mut last) = (HashMap::<u32, i64>::new(), 0);
    // What was said last of a stream: its end (1) or a reset (2).
    let mut ends = HashMap::<u32, u8>::new();
    let (mut open_head, mut pongs, mut acknowledged) = (None, 0, 0);
    for (number, frame) in walk(frames.unwrap_or_default()).enumerate() {
        let Frame { kind, flags, stream, payload } = frame;
        assert!(payload.len() <= max_frame, "a frame of {} bytes", payload.len());
        assert!(number > 0 || kind == 4, "SETTINGS come first");
        assert_eq!(open_head.is_some(), kind == 9, "a head is not in one piece");
        assert!(open_head.is_none_or(|head| head == stream));
        assert_eq!(matches!(kind, 4 | 6 | 7), stream == 0 && kind != 8, "type {kind} on stream {stream}");
        let ended = ends.get(&stream).copied();
        match kind {
            0 => {
                assert_eq!(ended, None, "DATA after the end of stream {stream}");
                *sent.entry(stream).or_default() += payload.len() as i64;
            }
            1 => {
                assert_eq!(ended, None, "a head after the end of stream {stream}");
                assert!(stream % 2 == 1);
                if !server && !sent.contains_key(&stream) {
                    assert!(stream > last, "stream {stream} after {last}");
                    last = stream;
                }
                sent.entry(stream).or_default();
            }
            3 => {
                assert_ne!(ended, Some(2), "two resets of stream {stream}");
                ends.insert(stream, 2);
            }
            4 => acknowledged += usize::from(flags & 1),
            6 => pongs += usize::from(flags & 1),
            7 | 9 => {}
            8 => {
                assert_ne!(ended, Some(2), "a window of stream {stream}, which was reset");
                assert!(payload != [0; 4], "a window that grows by nothing");
            }
            other => panic!("a frame of type {other}"),
        }
        if kind <= 1 && flags & 1 != 0 {
            ends.insert(stream, 1);
        }
        if matches!(kind, 1 | 9) {
            open_head = (flags & 4 == 0).then_some(stream);
        }
    }
    for (stream, sent) in &sent {
        let window = window + windows.get(stream).copied().unwrap_or(0);
        assert!(*sent <= window, "{sent} bytes on stream {stream}, whose window is {window}");
    }
    assert!(sent.values().sum::<i64>() <= connection, "more than the connection's window");
    assert!(pongs <= pings && acknowledged <= settings, "an answer that nobody asked for");
}
