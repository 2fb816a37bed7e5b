//! A limit on the overhead of a connection: received bytes that carry neither requests, responses nor their data.
//!
//! HTTP/2 and WebSocket have many frames without effect: PING and SETTINGS, WINDOW_UPDATE, PRIORITY, frames of unknown types and
//! of streams that have ended, interim responses, empty messages. Each of them costs as much time as a useful one, and an end
//! can send millions per second.

use std::{
    io,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicI64, AtomicUsize,
            Ordering::{AcqRel, Relaxed},
        },
    },
};

use http::{HeaderMap, Uri};
use tokio::time::Instant;

/// Most bytes of overhead of a tunnel at once.
///
/// Frames of data count until they are read. So this is above the overhead of as many small frames as h2 stores
/// ([`DATA_FRAME_BUDGET`](crate::config)), and below a second of work.
const BURST: i64 = 8 << 20;

/// Most bytes of overhead at once of a connection without a WebSocket of this crate, whose other end may have no credential.
const STREAM_BURST: i64 = 1 << 20;

/// Bytes of overhead that are allowed in each second, above which the burst is used up. They cost less than 0.5 % of a core.
const RATE: i64 = 128 << 10;

/// Overhead of one request besides the heads: resets, updates of windows, an interim response.
const PER_REQUEST: usize = 256;

/// Overhead of one frame of data, which may be in a message of its own.
const PER_FRAME: usize = 32;

/// Overhead of one field of a head: its representation in HPACK.
const PER_FIELD: usize = 8;

/// Sent bytes per byte of the window updates that answer them. Some implementations send two for each 4 KiB.
pub(crate) const SENT_PER_UPDATE: usize = 64;

/// Length of a frame header (RFC 9113 section 4.1).
const FRAME_HEADER: usize = 9;

/// Bytes before the first frame of an HTTP/2 client (RFC 9113 section 3.4).
pub(crate) const PREFACE: usize = 24;

/// The type of DATA frames (RFC 9113 section 6.1).
const DATA: u8 = 0;
/// The type of frames that end a stream at once (RFC 9113 section 6.4).
const RST_STREAM: u8 = 3;
/// The type of frames with which an end announces that it accepts no more streams (RFC 9113 section 6.8).
const GOAWAY: u8 = 7;
/// The type of frames that begin a head (RFC 9113 section 6.2).
const HEADERS: u8 = 1;
/// The types of frames with a part of a head: HEADERS and CONTINUATION (RFC 9113 section 6.10).
const HEADS: [u8; 2] = [HEADERS, 9];

/// Counts the overhead of one connection. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct OverheadCounter(Arc<Count>);

/// The error of a connection whose overhead has exceeded its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other end sent too many frames without effect")]
pub struct OverheadError;

#[derive(Debug, Default)]
struct Count {
    /// Received bytes less the useful ones.
    overhead: AtomicI64,
    /// Received bytes of heads that no message has used yet.
    heads: AtomicUsize,
    exceeded: AtomicBool,
    trusted: AtomicBool,
}

impl OverheadCounter {
    /// Subtracts the head of a request that this end has received, and the overhead that belongs to the request.
    pub fn subtract_received_request(&self, uri: &Uri, fields: &HeaderMap) {
        self.subtract_request();
        self.subtract_head(uri.path_and_query().map_or(0, |target| target.as_str().len()) + size(fields));
    }

    /// Removes the limit: the other end has proved that it is a part of this installation.
    pub fn trust(&self) {
        self.0.trusted.store(true, Relaxed);
    }

    /// Subtracts the data of a message that this end has read.
    pub(crate) fn subtract_data(&self) {
        self.subtract(PER_FRAME);
    }

    /// Subtracts the header of a frame of data that this end has read, on a connection without messages.
    pub(crate) fn subtract_frame_header(&self) {
        self.subtract(FRAME_HEADER);
    }

    /// Subtracts the head or the trailers of a message that this end has read.
    pub fn subtract_fields(&self, fields: &HeaderMap) {
        self.subtract_head(size(fields));
    }

    /// Subtracts the overhead that belongs to each request.
    pub fn subtract_request(&self) {
        self.subtract(PER_REQUEST);
    }

    /// Subtracts a head of a size, but no more than was received: HPACK repeats a field of any length with one byte.
    fn subtract_head(&self, size: usize) {
        let heads = &self.0.heads;
        let before = heads.fetch_update(AcqRel, Relaxed, |heads| Some(heads.saturating_sub(size)));
        self.subtract(size.min(before.unwrap_or_else(|heads| heads)));
    }

    /// Subtracts the updates of windows that answer bytes that this end has sent.
    pub(crate) fn subtract_sent(&self, bytes: usize) {
        self.subtract(bytes / SENT_PER_UPDATE);
    }

    /// Returns true if the connection was cut for its overhead.
    pub fn is_exceeded(&self) -> bool {
        self.0.exceeded.load(Relaxed)
    }

    fn subtract(&self, bytes: usize) {
        self.0.overhead.fetch_sub(to_i64(bytes), Relaxed);
    }
}

/// Limits the overhead of one connection. The reader of the connection owns it.
#[derive(Debug)]
pub(crate) struct OverheadLimit {
    counter: OverheadCounter,
    refilled: Instant,
    burst: i64,
}

impl OverheadLimit {
    pub(crate) fn new(now: Instant) -> Self {
        Self { counter: OverheadCounter::default(), refilled: now, burst: BURST }
    }

    /// Creates the limit of a connection without a WebSocket of this crate.
    pub(crate) fn of_stream(now: Instant) -> Self {
        Self { burst: STREAM_BURST, ..Self::new(now) }
    }

    pub(crate) fn counter(&self) -> &OverheadCounter {
        &self.counter
    }

    /// Adds received bytes. The clock is read only above the burst.
    ///
    /// # Errors
    ///
    /// The overhead has exceeded its limit.
    pub(crate) fn add_received(&mut self, bytes: usize, now: impl FnOnce() -> Instant) -> io::Result<()> {
        let count = &self.counter.0;
        // Useful bytes of earlier times do not allow more overhead.
        count.overhead.fetch_max(0, AcqRel);
        let overhead = count.overhead.fetch_add(to_i64(bytes), AcqRel) + to_i64(bytes);
        if overhead <= self.burst || count.trusted.load(Relaxed) {
            return Ok(());
        }
        let now = now();
        let elapsed = i64::try_from(now.duration_since(self.refilled).as_millis()).unwrap_or(i64::MAX);
        let refill = elapsed.saturating_mul(RATE) / 1000;
        self.refilled = now;
        let within = overhead - refill <= self.burst;
        count.overhead.fetch_sub(refill.min(overhead), AcqRel);
        count.exceeded.store(!within, Relaxed);
        if within { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidData, OverheadError)) }
    }

    /// Notes received bytes of heads, which messages may subtract.
    pub(crate) fn add_heads(&self, bytes: usize) {
        self.counter.0.heads.fetch_add(bytes, Relaxed);
    }

    /// Subtracts the payload of DATA frames, which [`OverheadCounter::subtract_data`] does not.
    pub(crate) fn subtract_payload(&self, bytes: usize) {
        self.counter.subtract(bytes);
    }
}

/// Finds the headers of frames in the bytes of an HTTP/2 connection.
#[derive(Debug)]
pub(crate) struct FrameScanner {
    header: [u8; FRAME_HEADER],
    /// Bytes of `header` that have arrived.
    filled: usize,
    /// Bytes before the next header.
    payload: usize,
    /// The frame that has this payload, if there was one.
    frame: Option<FrameHeader>,
}

/// The parts of the header of a frame that say whether it has an effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameHeader {
    kind: u8,
    stream: u32,
}

impl FrameHeader {
    /// Returns the stream that the frame ends at once.
    pub(crate) fn reset_stream(self) -> Option<u32> {
        (self.kind == RST_STREAM).then_some(self.stream)
    }

    /// Returns whether the frame begins a head: that of a request or response, or trailers.
    pub(crate) fn is_head(self) -> bool {
        self.kind == HEADERS
    }

    /// Returns whether the end that sent the frame accepts no more streams.
    pub(crate) fn is_goaway(self) -> bool {
        self.kind == GOAWAY
    }
}

/// The result of [`FrameScanner::scan`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Scanned {
    /// Bytes that were scanned.
    pub(crate) length: usize,
    /// Headers of frames among them.
    pub(crate) frames: usize,
    /// Bytes of the payload of DATA frames among them, without those of streams that have ended.
    pub(crate) data: usize,
    /// Bytes of the payload of DATA frames of streams that have ended.
    pub(crate) ignored: usize,
    /// Bytes of the payload of frames with heads among them.
    pub(crate) heads: usize,
}

impl FrameScanner {
    /// Creates a scanner of a connection that begins with `preface` other bytes.
    pub(crate) fn new(preface: usize) -> Self {
        Self { header: [0; FRAME_HEADER], filled: 0, payload: preface, frame: None }
    }

    /// Scans the bytes up to the end of at most `max_frames` frames. `on_frame` gets the header of each frame.
    pub(crate) fn scan(
        &mut self,
        bytes: &[u8],
        max_frames: usize,
        on_frame: impl FnMut(FrameHeader),
    ) -> Scanned {
        self.scan_with(bytes, max_frames, |_| false, on_frame)
    }

    /// The same for a connection on which streams have ended.
    pub(crate) fn scan_with(
        &mut self,
        bytes: &[u8],
        max_frames: usize,
        has_ended: impl Fn(u32) -> bool,
        mut on_frame: impl FnMut(FrameHeader),
    ) -> Scanned {
        let mut scanned = Scanned::default();
        while scanned.length < bytes.len() {
            let rest = &bytes[scanned.length..];
            if self.payload > 0 {
                let skipped = self.payload.min(rest.len());
                self.payload -= skipped;
                scanned.length += skipped;
                match self.frame {
                    Some(FrameHeader { kind: DATA, stream }) if has_ended(stream) => {
                        scanned.ignored += skipped
                    }
                    Some(FrameHeader { kind: DATA, .. }) => scanned.data += skipped,
                    Some(FrameHeader { kind, .. }) if HEADS.contains(&kind) => scanned.heads += skipped,
                    _ => {}
                }
                continue;
            }
            if scanned.frames == max_frames {
                break;
            }
            let part = (FRAME_HEADER - self.filled).min(rest.len());
            self.header[self.filled..self.filled + part].copy_from_slice(&rest[..part]);
            self.filled += part;
            scanned.length += part;
            if self.filled == FRAME_HEADER {
                let [high, middle, low, kind, _, stream @ ..] = self.header;
                self.payload = u32::from_be_bytes([0, high, middle, low]) as usize;
                // The first bit has no meaning.
                let frame = FrameHeader { kind, stream: u32::from_be_bytes(stream) & 0x7fff_ffff };
                self.frame = Some(frame);
                self.filled = 0;
                scanned.frames += 1;
                on_frame(frame);
            }
        }
        scanned
    }
}

/// Returns the bytes of the fields of a head without compression.
fn size(fields: &HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len() + PER_FIELD).sum()
}

fn to_i64(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MIB: usize = 1 << 20;

    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        [&[length[1], length[2], length[3], kind, 0, 0, 0, 0, 1][..], &vec![b'x'; payload]].concat()
    }

    #[test]
    fn overhead_above_its_burst_is_exceeded() {
        let now = Instant::now();
        let mut limit = OverheadLimit::new(now);
        for _ in 0..8 {
            assert!(limit.add_received(MIB, || now).is_ok());
        }
        assert!(!limit.counter().is_exceeded());
        assert!(limit.add_received(1, || now).is_err());
        assert!(limit.counter().is_exceeded());
    }

    #[test]
    fn slow_overhead_is_never_exceeded() {
        let (mut limit, start) = (OverheadLimit::new(Instant::now()), Instant::now());
        for second in 0..1000 {
            assert!(
                limit.add_received(127 << 10, || start + Duration::from_secs(second)).is_ok(),
                "{second}"
            );
        }
        let mut limit = OverheadLimit::new(start);
        assert!(
            (0..1000)
                .any(|second| limit.add_received(256 << 10, || start + Duration::from_secs(second)).is_err())
        );
    }

    #[test]
    fn useful_bytes_do_not_count_and_are_not_saved() {
        let now = Instant::now();
        let mut limit = OverheadLimit::new(now);
        for _ in 0..100 {
            assert!(limit.add_received(MIB, || now).is_ok());
            limit.subtract_payload(MIB);
            limit.counter().subtract_data();
            limit.counter().subtract_request();
            limit.counter().subtract_sent(MIB);
        }
        assert!((0..10).any(|_| limit.add_received(MIB, || now).is_err()));
    }

    #[test]
    fn fields_that_hpack_repeats_do_not_pay_for_frames_without_effect() {
        let now = Instant::now();
        let mut limit = OverheadLimit::of_stream(now);
        let (uri, mut fields) = (Uri::from_static("/"), HeaderMap::new());
        for _ in 0..15 {
            fields.append("cookie", "a".repeat(4000).parse().unwrap());
        }
        // 30 bytes of HPACK for 60 kB of fields, and 3,000 PINGs.
        let mut receive = |head: usize| {
            limit.add_received(9 + head + 3000 * 17, || now)?;
            limit.add_heads(head);
            limit.counter().subtract_received_request(&uri, &fields);
            Ok::<_, io::Error>(())
        };
        assert!((0..30).any(|_| receive(30).is_err()));
        let mut limit = OverheadLimit::of_stream(now);
        for _ in 0..1000 {
            assert!(limit.add_received(60_000, || now).is_ok(), "whole heads are no overhead");
            limit.add_heads(60_000);
            limit.counter().subtract_received_request(&uri, &fields);
        }
    }

    #[test]
    fn small_frames_that_are_read_are_never_exceeded() {
        let now = Instant::now();
        let mut limit = OverheadLimit::new(now);
        let mut scanner = FrameScanner::new(0);
        // One byte in a frame and a masked message of its own.
        let frame = frame(DATA, 1);
        for _ in 0..MIB {
            assert!(limit.add_received(6 + frame.len(), || now).is_ok());
            limit.subtract_payload(scanner.scan(&frame, 1, |_| {}).data);
            limit.counter().subtract_data();
        }
    }

    #[test]
    fn scanner_finds_frames_in_parts_of_any_length() {
        let mut bytes = vec![b'P'; PREFACE];
        for payload in [0, 1, 5, 300] {
            bytes.extend(frame(4, payload));
            bytes.extend(frame(DATA, payload));
        }
        for part in 1..bytes.len() {
            let mut scanner = FrameScanner::new(PREFACE);
            let mut all = Scanned::default();
            for part in bytes.chunks(part) {
                let scanned = scanner.scan(part, usize::MAX, |_| {});
                assert_eq!(scanned.length, part.len());
                all.frames += scanned.frames;
                all.data += scanned.data;
            }
            assert_eq!((all.frames, all.data), (8, 306), "parts of {part}");
        }
    }

    #[test]
    fn scanner_stops_after_the_most_frames() {
        let bytes = [frame(6, 8), frame(DATA, 3), frame(6, 8)].concat();
        let mut scanner = FrameScanner::new(0);
        let mut scan = |bytes| scanner.scan(bytes, 2, |_| {});
        assert_eq!(scan(&bytes), Scanned { length: 29, frames: 2, data: 3, ..Scanned::default() });
        assert_eq!(scan(&bytes[29..]), Scanned { length: 17, frames: 1, ..Scanned::default() });
    }
}
