//! Halves of streams, in the hands of those who send and receive on them.

use std::{
    fmt,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, request, response};

use super::{
    error::{Error, Reason},
    queue::Ticket,
    shared::Shared,
    streams::{Answer, Half, Unsent},
};
use crate::Look;

/// A half of a stream. Dropping the last one gives up what is still to come.
struct Held {
    shared: Arc<Shared>,
    id: u32,
    half: Half,
    /// There is nothing to let go of any more.
    forgotten: bool,
}

impl Held {
    fn new(shared: &Arc<Shared>, id: u32, half: Half) -> Self {
        Self { shared: Arc::clone(shared), id, half, forgotten: false }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.forgotten {
            self.shared.with(|streams| streams.let_go(self.id, self.half));
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.id)
    }
}

/// The half on which this end sends.
#[derive(Debug)]
pub(crate) struct Sending(Held);

/// The half on which this end receives.
#[derive(Debug)]
pub(crate) struct Receiving(Held);

/// A view of what is received, for others than the reader. Keeps no stream alive.
#[derive(Clone)]
pub(crate) struct View {
    shared: Arc<Shared>,
    id: u32,
}

/// Sends the head of a request, as soon as the other end takes one more. `ended` if there is no body: then there is
/// nothing to send on.
///
/// Cancellation safe: nothing is sent before the future is ready.
pub(crate) async fn ask(
    shared: &Arc<Shared>,
    head: &request::Parts,
    upgrade: Option<&str>,
    ended: bool,
) -> Result<(Option<Sending>, Receiving), Unsent> {
    let mut place = Place { shared, ticket: None };
    let id = poll_fn(|cx| {
        shared.with(|streams| match streams.ask(head, upgrade, ended) {
            Err(Unsent::Full) => {
                streams.queue(&mut place.ticket, cx);
                Poll::Pending
            }
            Ok(id) => {
                // Asked for another reason than being called, it still has its place.
                place.ticket.take().into_iter().for_each(|ticket| streams.served(ticket));
                Poll::Ready(Ok(id))
            }
            Err(unsent) => Poll::Ready(Err(unsent)),
        })
    })
    .await?;
    let sending = (!ended).then(|| Sending(Held::new(shared, id, Half::Sending)));
    Ok((sending, Receiving(Held::new(shared, id, Half::Receiving))))
}

/// Of one who waits; dropped, it is the next one's.
struct Place<'a> {
    shared: &'a Shared,
    ticket: Option<Ticket>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shared.with(|streams| streams.unqueue(ticket));
        }
    }
}

/// The halves of a request that has arrived; nothing to receive on if it has no body.
pub(crate) fn arrived(shared: &Arc<Shared>, id: u32, ended: bool) -> (Sending, Option<Receiving>) {
    let receiving = (!ended).then(|| Receiving(Held::new(shared, id, Half::Receiving)));
    (Sending(Held::new(shared, id, Half::Sending)), receiving)
}

impl Sending {
    /// Sends the head of an answer; `ended` if nothing follows.
    pub(crate) fn answer(&self, head: &response::Parts, ended: bool) -> Result<(), Error> {
        self.0.shared.with(|streams| streams.answer(self.0.id, head, ended))
    }

    /// Sends as much of the data as the other end takes now, and with the last of it the end if it is one. Waits for
    /// room for at least one byte. An error means that the other end, or the connection, takes nothing any more.
    pub(crate) fn poll_send(&self, data: &mut Bytes, end: bool, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        self.0.shared.with(|streams| streams.poll_send(self.0.id, data, end, cx))
    }

    /// Says the end, with what comes after the body if there is something.
    pub(crate) fn finish(&self, trailers: Option<HeaderMap>) -> Result<(), Error> {
        self.0.shared.with(|streams| streams.finish(self.0.id, trailers))
    }

    /// Ends the stream after what it has said: the other end gets that, and then no clean end.
    pub(crate) fn abort(&self, reason: Reason) {
        self.0.shared.with(|streams| streams.abort(self.0.id, reason));
    }

    /// Waits until the other end, or the connection, wants nothing more of this stream.
    pub(crate) fn poll_unwanted(&self, cx: &Context<'_>) -> Poll<Error> {
        self.0.shared.with(|streams| streams.poll_unwanted(self.0.id, cx))
    }
}

impl Receiving {
    /// Waits for the head of an answer. With it comes the body if all of it is here; nothing else will then.
    pub(crate) fn poll_answer(
        &mut self,
        cx: &Context<'_>,
    ) -> Poll<Result<(response::Parts, Option<Bytes>), Error>> {
        let Held { shared, id, forgotten, .. } = &mut self.0;
        shared.with(|streams| streams.poll_answer(*id, cx)).map_ok(|Answer { head, whole }| {
            *forgotten = whole.is_some();
            (head, whole)
        })
    }

    /// The next bytes of the body; `None` after the last. They count until they are released.
    pub(crate) fn poll_data(&self, cx: &Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        self.0.shared.with(|streams| streams.poll_data(self.0.id, cx))
    }

    /// The same, released at once: for a reader who asks only when there is room.
    pub(crate) fn poll_taken(&self, cx: &Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        self.0.shared.with(|streams| {
            let polled = streams.poll_data(self.0.id, cx);
            if let Poll::Ready(Some(Ok(data))) = &polled {
                streams.release(self.0.id, data.len());
            }
            polled
        })
    }

    /// What came after the body, once that was read.
    pub(crate) fn take_trailers(&self) -> Option<HeaderMap> {
        self.0.shared.with(|streams| streams.take_trailers(self.0.id))
    }

    /// The reader is done with so many bytes: the other end may send as many again.
    pub(crate) fn release(&self, bytes: usize) {
        self.0.shared.with(|streams| streams.release(self.0.id, bytes));
    }

    /// Nothing is to be read, and nothing will come.
    pub(crate) fn is_over(&self) -> bool {
        self.0.shared.with(|streams| streams.is_over(self.0.id))
    }

    pub(crate) fn view(&self) -> View {
        View { shared: Arc::clone(&self.0.shared), id: self.0.id }
    }
}

impl View {
    /// How it stands.
    pub(crate) fn look(&self) -> Look {
        self.shared.with(|streams| streams.look(self.id))
    }

    /// Gives the stream up, whatever waits to be read. The reader gets an error, the other end a reset.
    pub(crate) fn cut(&self) {
        self.shared.with(|streams| streams.cut(self.id));
    }
}
