//! What those who hold a stream do with it.

use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, request, response};

use super::{
    super::{
        error::{Error, Reason},
        frame::{self, HEAD, flag, kind},
        hpack::Encoder,
        message,
        queue::Ticket,
        stream::{Held, Pending, Stream, register},
    },
    Farewell, LAST_ID, Role, Streams,
};
use crate::Look;

/// Data up to this size goes with the heads, if its stream has nothing before it.
const QUICK: usize = 8 << 10;

/// A half of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Sending,
    Receiving,
}

/// A request that cannot be sent, now or at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsent {
    /// As many as the other end takes are under way.
    Full,
    /// The other end takes no more.
    Closed,
    /// The other end has not said that it knows extended CONNECT.
    NoExtendedConnect,
}

/// What came back on a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: response::Parts,
    /// The body, if all of it is here.
    pub(crate) whole: Option<Bytes>,
}

impl Streams {
    /// Sends the head of a request: the id of its stream. Its halves are held now, that to send on unless `ended`.
    pub(crate) fn ask(
        &mut self,
        head: &request::Parts,
        upgrade: Option<&str>,
        ended: bool,
    ) -> Result<u32, Unsent> {
        if self.last == LAST_ID && self.farewell == Farewell::None {
            // Nothing can be asked here any more (RFC 9113 section 5.1.1): the other end should connect again.
            self.farewell = Farewell::Heard(LAST_ID);
            self.wakers.extend(self.queue.all());
            self.work = true;
        }
        if self.cut || self.ended.is_some() || self.farewell != Farewell::None {
            return Err(Unsent::Closed);
        }
        if upgrade.is_some() && !self.peer.extended_connect {
            return Err(Unsent::NoExtendedConnect);
        }
        if self.is_full(self.peer.max_streams) {
            return Err(Unsent::Full);
        }

        let id = if self.last == 0 { 1 } else { self.last + 2 };
        self.last = id;
        let held = Held { sending: !ended, receiving: true };
        let mut stream = Box::new(Stream::new(held, self.settings.window, self.peer.window));
        stream.outflow.ended = ended;
        stream.inflow.bodyless = head.method == Method::HEAD;
        self.streams.insert(id, stream);
        self.open += 1;
        self.put_head(id, ended, |encoder, out| message::pack_request(encoder, out, head, upgrade));
        Ok(id)
    }

    /// Sends the head of an answer.
    pub(crate) fn answer(&mut self, id: u32, head: &response::Parts, ended: bool) -> Result<(), Error> {
        let stream = self.streams.get_mut(&id).ok_or(Error::Ended)?;
        if let Some(error) = &stream.failed {
            return Err(error.clone());
        }
        stream.outflow.ended = ended;
        self.put_head(id, ended, |encoder, out| message::pack_response(encoder, out, head));
        if ended {
            self.settle(id);
        }
        Ok(())
    }

    /// Packs a head into as many frames as it needs.
    fn put_head(&mut self, id: u32, ended: bool, pack: impl FnOnce(&mut Encoder, &mut BytesMut)) {
        let out = self.outbox.room();
        let start = out.len();
        out.extend_from_slice(&[0; HEAD]);
        pack(&mut self.encoder, out);
        frame::close_head(out, start, id, ended, self.peer.max_frame);
        self.work = true;
    }

    /// Waits in the queue: for its turn, which is to ask again.
    pub(crate) fn queue(&mut self, ticket: &mut Option<Ticket>, cx: &Context<'_>) {
        self.queue.wait(ticket, cx);
    }

    /// Waits no more: it has asked.
    pub(crate) fn served(&mut self, ticket: Ticket) {
        self.queue.served(ticket);
    }

    /// Waits no more. Whose turn it would have been comes next.
    pub(crate) fn unqueue(&mut self, ticket: Ticket) {
        self.wakers.extend(self.queue.leave(ticket));
    }

    /// The head of the answer, and its body if all of it is here: then nobody holds the stream any more.
    pub(crate) fn poll_answer(&mut self, id: u32, cx: &Context<'_>) -> Poll<Result<Answer, Error>> {
        let Some(stream) = self.streams.get_mut(&id) else { return Poll::Ready(Err(Error::Ended)) };
        let inflow = &mut stream.inflow;
        if let Some(head) = inflow.answer.take() {
            // As long as the request is on its way, its stream is needed.
            let whole = if stream.outflow.ended { inflow.pop_whole() } else { None };
            if whole.is_some() {
                stream.held = Held { sending: false, receiving: false };
                self.settle(id);
            }
            return Poll::Ready(Ok(Answer { head, whole }));
        }
        if let Some(error) = &stream.failed {
            return Poll::Ready(Err(error.clone()));
        }
        register(&mut inflow.reader, cx);
        Poll::Pending
    }

    /// Sends as much of the data as the other end takes now, and with the last of it the end if it is one. Waits for
    /// room for at least one byte. An error means that the other end, or the connection, takes nothing any more.
    pub(crate) fn poll_send(
        &mut self,
        id: u32,
        data: &mut Bytes,
        end: bool,
        cx: &Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let Some(stream) = self.streams.get_mut(&id) else { return Poll::Ready(Err(Error::Ended)) };
        if let Some(error) = &stream.failed {
            return Poll::Ready(Err(error.clone()));
        }
        let outflow = &mut stream.outflow;
        // A chunk that finds room goes as a whole: cut, its parts would share memory, and would be copied to be masked.
        let buffer = if outflow.queued < self.settings.send_buffer { usize::MAX } else { 0 };
        let window = usize::try_from(outflow.window.min(self.outward)).unwrap_or(0);
        let room = data.len().min(buffer).min(window);
        if room == 0 && !data.is_empty() {
            register(&mut outflow.writer, cx);
            return Poll::Pending;
        }

        let bytes = data.split_to(room);
        let end = end && data.is_empty();
        outflow.window -= room as i64;
        self.outward -= room as i64;
        outflow.ended = end;
        self.work = true;
        if outflow.pending.is_empty() && room <= QUICK && self.outbox.is_quick() {
            let flags = if end { flag::END_STREAM } else { 0 };
            frame::put(self.outbox.room(), kind::DATA, flags, id, &bytes);
        } else {
            outflow.queued += room;
            outflow.pending.push_back(Pending::Data { bytes, end });
            self.stand_in_line(id);
        }
        if end {
            self.settle(id);
        }
        Poll::Ready(Ok(()))
    }

    /// Says the end, with what comes after the body if there is something.
    pub(crate) fn finish(&mut self, id: u32, trailers: Option<HeaderMap>) -> Result<(), Error> {
        let stream = self.streams.get_mut(&id).ok_or(Error::Ended)?;
        if let Some(error) = &stream.failed {
            return Err(error.clone());
        }
        stream.outflow.ended = true;
        stream.outflow.pending.push_back(match trailers {
            Some(trailers) => Pending::Trailers(trailers),
            None => Pending::Data { bytes: Bytes::new(), end: true },
        });
        self.stand_in_line(id);
        self.settle(id);
        Ok(())
    }

    /// Gives the stream up after what it has said: the other end gets that, and then no clean end.
    pub(crate) fn abort(&mut self, id: u32, reason: Reason) {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.is_closed()) else { return };
        if stream.outflow.pending.is_empty() {
            return self.reset(id, reason, Error::Given);
        }
        stream.outflow.ended = true;
        stream.outflow.pending.push_back(Pending::Reset(reason));
        self.stand_in_line(id);
    }

    /// Gives the stream up. The reader gets an error even if all has arrived.
    pub(crate) fn cut(&mut self, id: u32) {
        self.reset(id, Reason::CANCEL, Error::Given);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.failed = Some(Error::Given);
        stream.inflow.ended = false;
        stream.inflow.discard();
        self.settle(id);
    }

    fn stand_in_line(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !std::mem::replace(&mut stream.outflow.in_line, true)
        {
            self.outbox.line.push_back(id);
        }
        self.work = true;
    }

    /// Waits until the other end, or the connection, wants nothing more of this stream.
    pub(crate) fn poll_unwanted(&mut self, id: u32, cx: &Context<'_>) -> Poll<Error> {
        let Some(stream) = self.streams.get_mut(&id) else { return Poll::Ready(Error::Ended) };
        if let Some(error) = &stream.failed {
            return Poll::Ready(error.clone());
        }
        register(&mut stream.outflow.writer, cx);
        Poll::Pending
    }

    /// The next bytes of the body; `None` after the last. They count until they are released.
    pub(crate) fn poll_data(&mut self, id: u32, cx: &Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        let Some(stream) = self.streams.get_mut(&id) else { return Poll::Ready(Some(Err(Error::Ended))) };
        let inflow = &mut stream.inflow;
        inflow.awaited = false;
        if let Some(data) = inflow.pop() {
            return Poll::Ready(Some(Ok(data)));
        }
        if inflow.ended {
            return Poll::Ready(None);
        }
        if let Some(error) = &stream.failed {
            return Poll::Ready(Some(Err(error.clone())));
        }
        inflow.awaited = true;
        register(&mut inflow.reader, cx);
        Poll::Pending
    }

    /// What came after the body, once that was read.
    pub(crate) fn take_trailers(&mut self, id: u32) -> Option<HeaderMap> {
        self.streams.get_mut(&id)?.inflow.trailers.take()
    }

    /// The reader is done with so many bytes: the other end may send as many again.
    pub(crate) fn release(&mut self, id: u32, bytes: usize) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.inflow.unread = stream.inflow.unread.saturating_sub(bytes);
        self.grant(id, bytes);
    }

    /// The other end may send so many bytes again.
    pub(super) fn grant(&mut self, id: u32, bytes: usize) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let inflow = &mut stream.inflow;
        inflow.untold += bytes as u32;
        // Often enough that the other end never waits, and seldom enough to cost nothing.
        if inflow.untold >= self.settings.window / 4 && !inflow.ended && stream.failed.is_none() {
            frame::put_window(self.outbox.room(), id, inflow.untold);
            inflow.window += i64::from(std::mem::take(&mut inflow.untold));
            self.work = true;
        }
    }

    /// Nothing is to be read, and nothing will come.
    pub(crate) fn is_over(&self, id: u32) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.inflow.is_empty_for_good())
    }

    /// How the body stands that arrives.
    pub(crate) fn look(&self, id: u32) -> Look {
        match self.streams.get(&id).map(|stream| &stream.inflow) {
            Some(inflow) => Look {
                unread: inflow.unread,
                taken: inflow.taken,
                awaited: inflow.awaited || inflow.is_empty_for_good(),
            },
            // A reader who is done is not one who is slow.
            None => Look { awaited: true, ..Look::default() },
        }
    }

    /// Nobody holds this half any more. With the last one goes the stream, whatever is still to come.
    pub(crate) fn let_go(&mut self, id: u32, half: Half) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        match half {
            // Nobody can say the rest, or that there is none.
            Half::Sending if !stream.outflow.ended => {
                stream.held.sending = false;
                self.reset(id, Reason::CANCEL, Error::Given);
                return self.settle(id);
            }
            Half::Sending => stream.held.sending = false,
            Half::Receiving => {
                stream.held.receiving = false;
                stream.inflow.discard();
            }
        }
        if stream.held.sending || stream.held.receiving || stream.is_closed() {
            return self.settle(id);
        }
        match self.role {
            // RFC 9113 section 8.1: the answer is complete, and the rest of the request is not needed.
            Role::Server if stream.outflow.ended => self.abort(id, Reason::NO_ERROR),
            _ => self.reset(id, Reason::CANCEL, Error::Given),
        }
        self.settle(id);
    }
}
