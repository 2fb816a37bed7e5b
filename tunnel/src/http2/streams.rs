//! All streams of one connection: what both ends may do, and what that changes. No I/O, no clock.
//!
//! `receive` is what the other end does, `ask` is what those who hold streams do, `write` is what leaves.

mod ask;
mod receive;
#[cfg(test)]
mod tests;
mod write;

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    io,
    task::{Context, Poll, Waker},
};

use http::request;

pub(crate) use self::ask::{Answer, Half, Unsent};
use super::{
    error::{Error, Fault, Reason},
    frame::{self, FIRST_WINDOW, LEAST_MAX_FRAME, PREFACE, Setting, kind},
    hpack::{Decoder, Encoder},
    outbox::Outbox,
    queue::Queue,
    stream::{Stream, register},
};
use crate::Settings;

/// Half of HTTP/2's largest window.
///
/// The connection window is one pool for all streams: with a small one, a dozen readers that stopped reading freeze
/// every other response. So it is out of reach, and memory is bounded by the stream window times the streams.
const CONNECTION_WINDOW: u32 = 1 << 30;

/// The largest id of a stream (RFC 9113 section 5.1.1).
const LAST_ID: u32 = u32::MAX >> 1;

/// The payload of a PING of the keepalive, and of the one that ends the first half of a farewell.
const PING_ALIVE: [u8; 8] = *b"alive?!\n";
const PING_LEAVING: [u8; 8] = *b"leaving\n";

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// kas: asks.
    Client,
    /// agentk: answers.
    Server,
}

/// Everything that one connection knows.
#[derive(Debug)]
pub(super) struct Streams {
    role: Role,
    settings: Limits,
    peer: Peer,
    streams: HashMap<u32, Box<Stream>, BuildHasherDefault<ById>>,
    /// How many of them count.
    open: usize,
    /// The stream that was opened last, by whichever end asks; 0 before the first.
    last: u32,
    encoder: Encoder,
    decoder: Decoder,
    outbox: Outbox,
    /// What the other end takes of all streams together.
    outward: i64,
    /// What it may send, and what it was not told of.
    inward: i64,
    untold: u32,
    /// Empty frames in a row that said nothing.
    idle_frames: u32,
    ping: Ping,
    farewell: Farewell,
    /// Nothing moves any more.
    ended: Option<Error>,
    /// Whoever holds the last handle, or wants it all to end, said so.
    pub(super) cut: bool,
    /// The other end gave the connection up, for this reason.
    gone: Option<Reason>,
    /// Those who wait for a stream to end, so that they may open one.
    queue: Queue,
    /// The connection's task, while it waits.
    driver: Option<Waker>,
    /// There is something for it to do.
    work: bool,
    /// To be woken once nobody holds the lock.
    wakers: Vec<Waker>,
}

/// What this end allows.
#[derive(Clone, Copy, Debug)]
struct Limits {
    window: u32,
    max_streams: usize,
    max_head: usize,
    send_buffer: usize,
}

/// What the other end allows.
#[derive(Clone, Copy, Debug)]
struct Peer {
    window: u32,
    max_frame: usize,
    max_streams: usize,
    extended_connect: bool,
}

/// A question of the keepalive.
#[derive(Debug, Default)]
struct Ping {
    asked: bool,
    answered: bool,
    waiter: Option<Waker>,
}

/// How far a connection is that ends in good order (RFC 9113 section 6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Farewell {
    /// Nobody leaves.
    None,
    /// Said without a last stream: requests that cross it on their way are still served.
    Announced,
    /// Said with the last stream.
    Said,
    /// The other end said it, with the last stream that it looks at.
    Heard(u32),
}

/// What the connection's task does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// Waits to be woken.
    Rest,
    /// Goes on: there is more to do.
    Again,
    /// Ends in good order.
    Over,
    /// Ends at once.
    Cut,
}

/// A request that has arrived.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) id: u32,
    pub(crate) head: request::Parts,
    /// It has no body.
    pub(crate) ended: bool,
}

impl Streams {
    pub(super) fn new(role: Role, settings: &Settings) -> Self {
        let limits = Limits {
            window: settings.stream_window,
            max_streams: settings.max_concurrent_streams as usize,
            max_head: settings.max_header_bytes as usize,
            send_buffer: settings.send_buffer,
        };
        let peer = Peer {
            window: FIRST_WINDOW,
            max_frame: LEAST_MAX_FRAME,
            // Until the other end says something else, as much as it would be allowed here.
            max_streams: limits.max_streams,
            extended_connect: false,
        };
        let mut streams = Self {
            role,
            settings: limits,
            peer,
            streams: HashMap::default(),
            open: 0,
            last: 0,
            encoder: Encoder::default(),
            decoder: Decoder::new(),
            outbox: Outbox::default(),
            outward: FIRST_WINDOW.into(),
            inward: CONNECTION_WINDOW.into(),
            untold: 0,
            idle_frames: 0,
            ping: Ping::default(),
            farewell: Farewell::None,
            ended: None,
            cut: false,
            gone: None,
            queue: Queue::default(),
            driver: None,
            work: false,
            wakers: Vec::new(),
        };
        streams.greet(settings);
        streams
    }

    /// What each end says first.
    fn greet(&mut self, settings: &Settings) {
        let out = self.outbox.room();
        let common = [
            Setting::InitialWindow(settings.stream_window),
            Setting::MaxFrame(settings.max_frame),
            Setting::MaxHeaderBytes(settings.max_header_bytes),
        ];
        let own = match self.role {
            Role::Client => {
                out.extend_from_slice(PREFACE);
                &[Setting::EnablePush(false)][..]
            }
            Role::Server => &[
                Setting::MaxConcurrentStreams(settings.max_concurrent_streams),
                Setting::ExtendedConnect(true),
            ],
        };
        frame::put_settings(out, &[&common, own].concat());
        frame::put_window(out, 0, CONNECTION_WINDOW - FIRST_WINDOW);
    }

    /// Asks whether the other end lives, unless it was asked and has not answered: its answer is as good.
    pub(super) fn send_ping(&mut self) {
        self.ping.answered = false;
        if !self.ping.asked && self.ended.is_none() {
            self.ping.asked = true;
            frame::put(self.outbox.room(), kind::PING, 0, 0, &PING_ALIVE);
            self.work = true;
        }
    }

    /// Waits for the answer; for ever if the connection ends first, because whoever drives it knows better.
    pub(super) fn poll_pong(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.ping.answered {
            return Poll::Ready(());
        }
        register(&mut self.ping.waiter, cx);
        Poll::Pending
    }

    /// Takes no new requests, and ends when those in flight have ended. The end that asks just goes.
    pub(super) fn leave(&mut self) {
        if self.role == Role::Server && self.farewell == Farewell::None && self.ended.is_none() {
            self.farewell = Farewell::Announced;
            frame::put_goaway(self.outbox.room(), LAST_ID, Reason::NO_ERROR);
            frame::put(self.outbox.room(), kind::PING, 0, 0, &PING_LEAVING);
            self.work = true;
        }
    }

    /// Everybody who was to end has ended, and everything that was to be said is said.
    fn is_done(&self) -> bool {
        let leaving = matches!(self.farewell, Farewell::Said | Farewell::Heard(_));
        leaving && self.open == 0 && self.outbox.is_empty()
    }

    /// What an error means for the connection. Who leaves may hang up as soon as it has the last answer, before it takes our
    /// last frame.
    pub(super) fn verdict(&self, error: Error) -> Result<(), Error> {
        match error {
            Error::Io(_) if self.open == 0 && self.farewell != Farewell::None => Ok(()),
            error => Err(error),
        }
    }

    /// The transport has ended.
    pub(super) fn eof(&self) -> Result<(), Error> {
        match self.gone {
            Some(reason) => Err(Error::GoneAway(reason)),
            None if self.open == 0 => Ok(()),
            None => {
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it was closed in the middle of a request")
                    .into())
            }
        }
    }

    /// The other end is told why nothing more will come from here.
    pub(super) fn say_fault(&mut self, fault: Fault) {
        let last = if self.role == Role::Server { self.last } else { 0 };
        frame::put_goaway(self.outbox.room(), last, fault.reason);
    }

    /// Nothing moves any more. Whoever waits gets the error, after what has arrived.
    pub(super) fn end(&mut self, error: &Error) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(error.clone());
        let Self { streams, wakers, queue, .. } = self;
        for stream in streams.values_mut() {
            if !stream.is_closed() {
                stream.failed = Some(error.clone());
            }
            stream.counts = false;
            // No window is needed any more.
            let _ = stream.outflow.discard();
            wakers.extend(stream.inflow.reader.take());
            wakers.extend(stream.outflow.writer.take());
        }
        streams.retain(|_, stream| !stream.is_forgotten());
        self.open = 0;
        wakers.extend(queue.all());
        self.outbox = Outbox::default();
    }

    /// What the connection's task does next, having read and written what it could; `blocked` if something is left that the
    /// transport does not take.
    pub(super) fn pause(&mut self, cx: &Context<'_>, blocked: bool) -> Pause {
        let work = std::mem::take(&mut self.work);
        if self.cut {
            Pause::Cut
        } else if !blocked && self.is_done() {
            Pause::Over
        } else if work && !blocked {
            Pause::Again
        } else {
            register(&mut self.driver, cx);
            Pause::Rest
        }
    }

    /// Whom to wake, now that the lock is let go, because of what was done by `driver` or somebody else.
    pub(super) fn woken(&mut self, driver: bool) -> (Vec<Waker>, Option<Waker>) {
        let waker = self.driver.take_if(|_| !driver && (self.work || self.cut));
        (std::mem::take(&mut self.wakers), waker)
    }

    /// The connection's task is awake.
    pub(super) fn awake(&mut self) {
        self.driver = None;
    }

    /// As many streams as may be are open, as the other end sees it: one that does not read what it is told has none that
    /// ended, and gets no more of this end's memory.
    fn is_full(&self, most: usize) -> bool {
        self.open + self.outbox.ending() >= most
    }

    /// The stream changed: it may have ended, and may be forgotten.
    fn settle(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.counts && stream.is_through() {
            stream.counts = false;
            self.open -= 1;
            // What the other end has reset it does not count.
            if matches!(stream.failed, Some(Error::Reset(_))) || self.outbox.end() {
                self.wakers.extend(self.queue.next());
            }
            self.work |= self.farewell != Farewell::None;
        }
        if stream.is_forgotten() {
            self.streams.remove(&id);
        }
    }

    /// Gives a stream up: the other end is told, and whoever waits here gets `error`.
    fn reset(&mut self, id: u32, reason: Reason, error: Error) {
        if self.streams.get(&id).is_none_or(|stream| stream.is_through()) {
            return;
        }
        frame::put_reset(self.outbox.room(), id, reason);
        self.work = true;
        self.fail(id, error);
    }

    /// The stream ends here. What has arrived is still there to be read, and what waits to be written is not sent.
    fn fail(&mut self, id: u32, error: Error) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.failed = Some(error);
        let unsent = stream.outflow.discard();
        self.wakers.extend(stream.inflow.reader.take());
        self.wakers.extend(stream.outflow.writer.take());
        self.widen(unsent as u32);
        self.settle(id);
    }

    /// The connection's window has so many bytes more.
    fn widen(&mut self, bytes: u32) {
        let starved = self.outward <= 0 && bytes > 0;
        self.outward += i64::from(bytes);
        if starved {
            self.wake_writers();
        }
    }

    fn wake_writers(&mut self) {
        self.wakers.extend(self.streams.values_mut().filter_map(|stream| stream.outflow.writer.take()));
    }
}

/// Ids are spread well enough as they are.
#[derive(Debug, Default)]
struct ById(u64);

impl Hasher for ById {
    fn write(&mut self, _: &[u8]) {
        unreachable!("ids are numbers");
    }

    fn write_u32(&mut self, id: u32) {
        // hashbrown takes the place from the low bits and a check from the high ones.
        self.0 = u64::from(id >> 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
