//! What the other end does.

use http::{HeaderMap, Method, StatusCode};

use super::{
    super::{
        error::{Error, Fault, Reason},
        frame::{self, MAX_WINDOW, Setting, flag, kind},
        hpack::Malformed,
        inbox::Frame,
        message::{self, Incoming, Kind, Wrong},
        stream::{Held, Inflow, Stream},
    },
    Arrived, CONNECTION_WINDOW, Farewell, PING_ALIVE, PING_LEAVING, Role, Streams,
};

/// Empty frames in a row that do not end anything (CVE-2019-9518).
const MAX_IDLE_FRAMES: u32 = 1000;

impl Streams {
    /// Does what a frame asks for. A request goes to `arrived`.
    pub(crate) fn receive(&mut self, frame: Frame, arrived: &mut Vec<Arrived>) -> Result<(), Fault> {
        match frame {
            Frame::Data { stream, bytes, counted, end } => {
                self.idle_frames = if counted == 0 && !end { self.idle_frames + 1 } else { 0 };
                if self.idle_frames > MAX_IDLE_FRAMES {
                    return Err(Fault::flood("frames without end that say nothing"));
                }
                self.receive_data(stream, bytes, counted, end)
            }
            Frame::Headers { stream, block, end } => self.receive_head(stream, block, end, arrived),
            Frame::Reset { stream, reason } => self.receive_reset(stream, reason),
            Frame::Settings(settings) => self.receive_settings(&settings),
            Frame::SettingsAck => Ok(()),
            Frame::Ping(payload) => {
                frame::put(self.outbox.room(), kind::PING, flag::ACK, 0, &payload);
                self.owe()
            }
            Frame::Pong(payload) => {
                self.receive_pong(payload);
                Ok(())
            }
            Frame::GoAway { last, reason } => self.receive_farewell(last, reason),
            Frame::Window { stream, increment } => self.receive_window(stream, increment),
        }
    }

    /// Something was sent because the other end made us.
    fn owe(&mut self) -> Result<(), Fault> {
        self.work = true;
        match self.outbox.owe() {
            true => Ok(()),
            false => Err(Fault::flood("it asks, and does not read what it is answered")),
        }
    }

    fn receive_data(&mut self, id: u32, bytes: bytes::Bytes, counted: usize, end: bool) -> Result<(), Fault> {
        self.inward -= counted as i64;
        self.untold += counted as u32;
        if self.inward < 0 {
            return Err(Fault::new(
                Reason::FLOW_CONTROL_ERROR,
                "more came than the connection's window allows",
            ));
        }
        if self.untold > CONNECTION_WINDOW / 2 {
            frame::put_window(self.outbox.room(), 0, self.untold);
            self.inward += i64::from(std::mem::take(&mut self.untold));
            self.work = true;
        }

        let Some(stream) = self.streams.get_mut(&id) else { return self.unknown(id) };
        let inflow = &mut stream.inflow;
        if stream.failed.is_some() {
            return Ok(());
        }
        inflow.window -= counted as i64;
        let wrong = if inflow.ended {
            Some((Reason::STREAM_CLOSED, "a body goes on after its end"))
        } else if !inflow.begun {
            Some((Reason::PROTOCOL_ERROR, "a body comes before its head"))
        } else if inflow.window < 0 {
            Some((Reason::FLOW_CONTROL_ERROR, "a body is larger than its window"))
        } else if !inflow.is_due(bytes.len() as u64, end) {
            Some((Reason::PROTOCOL_ERROR, "a body is not as long as its head says"))
        } else {
            None
        };
        if let Some((reason, what)) = wrong {
            return self.refuse(id, reason, Error::Malformed(what));
        }

        let padding = counted - bytes.len();
        inflow.ended = end;
        if stream.held.receiving && !bytes.is_empty() {
            inflow.push(bytes);
        }
        self.wakers.extend(inflow.reader.take());
        if end {
            self.settle(id);
        } else if padding > 0 {
            // Nobody reads it.
            self.grant(id, padding);
        }
        Ok(())
    }

    fn receive_head(
        &mut self,
        id: u32,
        block: bytes::Bytes,
        end: bool,
        arrived: &mut Vec<Arrived>,
    ) -> Result<(), Fault> {
        let mut head = Incoming::new(self.settings.max_head);
        self.decoder
            .decode(block, |field| head.field(field))
            .map_err(|Malformed(what)| Fault::compression(what))?;
        if head.is_attack() {
            return Err(Fault::flood("a head unpacks to many times what it may"));
        }

        if let Some(stream) = self.streams.get_mut(&id) {
            if stream.failed.is_some() {
                return Ok(());
            }
            return match take_head(&mut stream.inflow, self.role, head, end) {
                Ok(()) => {
                    self.wakers.extend(stream.inflow.reader.take());
                    self.settle(id);
                    Ok(())
                }
                Err(Wrong::Malformed(what)) => {
                    self.refuse(id, Reason::PROTOCOL_ERROR, Error::Malformed(what))
                }
                Err(Wrong::TooLarge) => self.refuse(id, Reason::CANCEL, Error::Malformed(HEAD_TOO_LARGE)),
            };
        }
        match self.role {
            Role::Client => self.unknown(id),
            // What is left of a stream that was given up here.
            Role::Server if id <= self.last && matches!(head.kind(), Kind::Trailers) => Ok(()),
            Role::Server => self.receive_request(id, head, end, arrived),
        }
    }

    fn receive_request(
        &mut self,
        id: u32,
        head: Incoming,
        end: bool,
        arrived: &mut Vec<Arrived>,
    ) -> Result<(), Fault> {
        if id.is_multiple_of(2) || id <= self.last {
            return Err(Fault::protocol("a request has a number that is not its"));
        }
        if self.farewell == Farewell::Said {
            // Its sender was told that nobody looks at it.
            return Ok(());
        }

        self.last = id;
        if self.is_full(self.settings.max_streams) {
            frame::put_reset(self.outbox.room(), id, Reason::REFUSED_STREAM);
            return self.owe();
        }
        let head = head.request().and_then(|head| Ok((message::content_length(&head.headers)?, head)));
        let (due, head) = match head {
            Ok((Some(1..), _)) if end => {
                let wrong = Wrong::Malformed("a body is missing that its head promises");
                return self.refuse_request(id, wrong, end);
            }
            Ok((_, head)) if end && head.method == Method::CONNECT => {
                let wrong = Wrong::Malformed("a tunnel is closed before it is open");
                return self.refuse_request(id, wrong, end);
            }
            Ok(head) => head,
            Err(wrong) => return self.refuse_request(id, wrong, end),
        };
        let held = Held { sending: true, receiving: !end };
        let mut stream = Box::new(Stream::new(held, self.settings.window, self.peer.window));
        stream.inflow.begun = true;
        stream.inflow.ended = end;
        // A tunnel is as long as it is (RFC 9113 section 8.5).
        stream.inflow.due = due.filter(|_| head.method != Method::CONNECT);
        self.streams.insert(id, stream);
        self.open += 1;
        arrived.push(Arrived { id, head, ended: end });
        Ok(())
    }

    /// A request that never becomes a stream.
    fn refuse_request(&mut self, id: u32, wrong: Wrong, ended: bool) -> Result<(), Fault> {
        let out = self.outbox.room();
        match wrong {
            Wrong::Malformed(_) => frame::put_reset(out, id, Reason::PROTOCOL_ERROR),
            Wrong::TooLarge => {
                let mut block = bytes::BytesMut::new();
                self.encoder.begin(&mut block);
                self.encoder.status(&mut block, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
                frame::put(out, kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, id, &block);
                if !ended {
                    frame::put_reset(out, id, Reason::NO_ERROR);
                }
            }
        }
        self.owe()
    }

    /// Something about a stream that is not here.
    fn unknown(&self, id: u32) -> Result<(), Fault> {
        let over = id <= self.last || self.farewell == Farewell::Said;
        match over && !id.is_multiple_of(2) {
            // It has ended here, or nobody looked at it, and the other end did not know yet.
            true => Ok(()),
            false => Err(Fault::protocol("a frame of a stream that nobody opened")),
        }
    }

    /// Resets a stream in which the other end broke the protocol.
    fn refuse(&mut self, id: u32, reason: Reason, error: Error) -> Result<(), Fault> {
        self.reset(id, reason, error);
        self.owe()
    }

    fn receive_reset(&mut self, id: u32, reason: Reason) -> Result<(), Fault> {
        let Some(stream) = self.streams.get(&id) else { return self.unknown(id) };
        if stream.failed.is_none() {
            // Whatever came before an end is whole (RFC 9113 section 8.1): its reader does not notice.
            self.fail(id, Error::Reset(reason));
        }
        Ok(())
    }

    fn receive_settings(&mut self, settings: &[Setting]) -> Result<(), Fault> {
        let mut window = self.peer.window;
        for setting in settings {
            match *setting {
                Setting::HeaderTableSize(size) => self.encoder.limit(size as usize),
                Setting::MaxConcurrentStreams(most) => {
                    self.peer.max_streams = self.settings.max_streams.min(most as usize);
                    self.wakers.extend(self.queue.all());
                }
                Setting::InitialWindow(new) => window = new,
                Setting::MaxFrame(size) => self.peer.max_frame = size as usize,
                Setting::ExtendedConnect(on) => self.peer.extended_connect = on,
                Setting::EnablePush(_) | Setting::MaxHeaderBytes(_) => {}
            }
        }
        // Once, however often it is said: every stream is touched.
        self.move_windows(window)?;
        frame::put(self.outbox.room(), kind::SETTINGS, flag::ACK, 0, &[]);
        self.owe()
    }

    /// RFC 9113 section 6.9.2.
    fn move_windows(&mut self, window: u32) -> Result<(), Fault> {
        let change = i64::from(window) - i64::from(self.peer.window);
        if change == 0 {
            return Ok(());
        }
        self.peer.window = window;
        for stream in self.streams.values_mut() {
            stream.outflow.window += change;
            if stream.outflow.window > MAX_WINDOW {
                return Err(WINDOW_OVERFLOW);
            }
        }
        self.wake_writers();
        Ok(())
    }

    fn receive_window(&mut self, id: u32, increment: u32) -> Result<(), Fault> {
        if id == 0 {
            if increment == 0 {
                return Err(Fault::protocol("a window grows by nothing"));
            }
            self.widen(increment);
            return if self.outward > MAX_WINDOW { Err(WINDOW_OVERFLOW) } else { Ok(()) };
        }

        let Some(stream) = self.streams.get_mut(&id) else { return self.unknown(id) };
        stream.outflow.window += i64::from(increment);
        if increment == 0 {
            return self.refuse(id, Reason::PROTOCOL_ERROR, Error::Malformed("a window grows by nothing"));
        }
        if stream.outflow.window > MAX_WINDOW {
            let error = Error::Malformed("a window grows beyond the largest");
            return self.refuse(id, Reason::FLOW_CONTROL_ERROR, error);
        }
        self.wakers.extend(stream.outflow.writer.take());
        Ok(())
    }

    fn receive_pong(&mut self, payload: [u8; 8]) {
        if payload == PING_ALIVE && self.ping.asked {
            self.ping.asked = false;
            self.ping.answered = true;
            self.wakers.extend(self.ping.waiter.take());
        }
        if payload == PING_LEAVING && self.farewell == Farewell::Announced {
            // Whatever was on its way when we said it first is here.
            self.farewell = Farewell::Said;
            frame::put_goaway(self.outbox.room(), self.last, Reason::NO_ERROR);
            self.work = true;
        }
    }

    fn receive_farewell(&mut self, last: u32, reason: Reason) -> Result<(), Fault> {
        if self.role == Role::Server {
            // Who asks goes when it has its answers.
            self.farewell = match self.farewell {
                Farewell::None => Farewell::Heard(last),
                said => said,
            };
            self.gone = Some(reason).filter(|reason| *reason != Reason::NO_ERROR);
            return Ok(());
        }

        if matches!(self.farewell, Farewell::Heard(before) if last > before) {
            return Err(Fault::protocol("a farewell takes back what one before it said"));
        }
        self.gone = Some(reason).filter(|reason| *reason != Reason::NO_ERROR);
        if self.farewell == Farewell::Heard(last) {
            // Said again, it costs nothing: every stream was looked at.
            return Ok(());
        }
        self.farewell = Farewell::Heard(last);
        self.wakers.extend(self.queue.all());
        self.work = true;
        let unseen = self.streams.iter().filter(|(id, stream)| **id > last && !stream.is_closed());
        let unseen: Vec<u32> = unseen.map(|(id, _)| *id).collect();
        for id in unseen {
            self.fail(id, Error::Unseen);
        }
        Ok(())
    }
}

const WINDOW_OVERFLOW: Fault = Fault::new(Reason::FLOW_CONTROL_ERROR, "a window grows beyond the largest");
const HEAD_TOO_LARGE: &str = "a head is larger than it may be";

/// The head of an answer, or trailers.
fn take_head(inflow: &mut Inflow, role: Role, head: Incoming, end: bool) -> Result<(), Wrong> {
    if inflow.ended {
        return Err(Wrong::Malformed("a head comes after the end"));
    }
    if role == Role::Server || inflow.begun {
        if !end || inflow.due.is_some_and(|due| due > 0) {
            return Err(Wrong::Malformed("a second head, or one before the body has ended"));
        }
        let trailers: HeaderMap = head.trailers()?;
        inflow.trailers = Some(trailers).filter(|trailers| !trailers.is_empty());
        inflow.ended = true;
        return Ok(());
    }

    let answer = head.response()?;
    if answer.status.is_informational() {
        // Nobody here waits for those (RFC 9110 section 15.2).
        return if end { Err(Wrong::Malformed("an interim answer is the last")) } else { Ok(()) };
    }
    let due = message::content_length(&answer.headers)?;
    let bodyless = matches!(answer.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    inflow.due = if inflow.bodyless || bodyless { Some(0) } else { due };
    if end && inflow.due.is_some_and(|due| due > 0) {
        return Err(Wrong::Malformed("a body is missing that its head promises"));
    }
    inflow.begun = true;
    inflow.ended = end;
    inflow.answer = Some(answer);
    Ok(())
}

impl Inflow {
    /// Counts `length` bytes of the body. False if Content-Length says otherwise (RFC 9113 section 8.1.1).
    fn is_due(&mut self, length: u64, end: bool) -> bool {
        let Some(due) = &mut self.due else { return true };
        let Some(left) = due.checked_sub(length) else { return false };
        *due = left;
        !end || left == 0
    }
}
