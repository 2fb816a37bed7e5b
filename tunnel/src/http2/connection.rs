//! The connection's I/O: what is read is done, and what is to be said is written.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio_util::io::poll_read_buf;

use super::{
    error::{Error, Fault},
    inbox::Inbox,
    outbox::Batch,
    shared::Shared,
    streams::{Arrived, Pause, Role, Streams},
    transport::Transport,
};
use crate::Settings;

/// How much is read at once: what fills it makes it grow, since bulk wants few system calls, and small requests little
/// memory.
const LEAST_READ: usize = 16 << 10;
const MOST_READ: usize = 256 << 10;

/// After so many bytes those who read them get their turn, as long as the bytes are in the processor's cache.
const TURN: usize = 256 << 10;

/// An HTTP/2 connection.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    io: S,
    shared: Arc<Shared>,
    inbox: Inbox,
    batch: Batch,
    /// Of the next read.
    appetite: usize,
    /// Requests that nobody was told of yet.
    arrived: Vec<Arrived>,
    /// How it ended, while the transport is shut down.
    ending: Option<Result<(), Error>>,
}

impl<S: Transport> Connection<S> {
    pub(crate) fn new(io: S, role: Role, settings: &Settings) -> Self {
        Self {
            io,
            shared: Arc::new(Shared::new(Streams::new(role, settings))),
            inbox: Inbox::new(
                role == Role::Server,
                settings.max_frame as usize,
                settings.max_header_bytes as usize,
            ),
            batch: Batch::default(),
            appetite: LEAST_READ,
            arrived: Vec::new(),
            ending: None,
        }
    }

    /// Moves bytes until the connection ends; requests are handed to `on_request`.
    ///
    /// Whatever ends it ends all streams. Nothing is lost when this is not polled for a while.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        on_request: &mut impl FnMut(Arrived),
    ) -> Poll<Result<(), Error>> {
        loop {
            if self.ending.is_some() {
                return self.poll_end(cx);
            }
            match self.poll_step(cx, on_request) {
                Ok(false) => return Poll::Pending,
                Ok(true) => {}
                Err(error) => {
                    let verdict = self.shared.drive(|streams| streams.verdict(error));
                    self.begin_end(verdict);
                }
            }
        }
    }

    /// True if there is more to do.
    fn poll_step(
        &mut self,
        cx: &mut Context<'_>,
        on_request: &mut impl FnMut(Arrived),
    ) -> Result<bool, Error> {
        let yielding = self.read(cx, on_request)?;
        if self.ending.is_some() {
            return Ok(true);
        }
        let blocked = self.poll_write(cx)?.is_pending();
        match self.shared.drive(|streams| streams.pause(cx, blocked)) {
            Pause::Over => {
                let ended = self.shared.drive(|streams| streams.eof());
                self.begin_end(ended);
            }
            Pause::Cut => return Err(Error::Given),
            Pause::Rest if yielding => {
                cx.waker().wake_by_ref();
                return Ok(false);
            }
            Pause::Rest => return Ok(false),
            Pause::Again => {}
        }
        Ok(true)
    }

    /// Reads until nothing is there. True if somebody else should have a turn before more is read.
    fn read(&mut self, cx: &mut Context<'_>, on_request: &mut impl FnMut(Arrived)) -> Result<bool, Error> {
        let mut total = 0;
        loop {
            self.inbox.buffer.reserve(self.appetite);
            let room = self.inbox.buffer.capacity() - self.inbox.buffer.len();
            match poll_read_buf(Pin::new(&mut self.io), cx, &mut self.inbox.buffer) {
                Poll::Pending => {
                    if self.inbox.buffer.is_empty() {
                        // An idle connection has no buffer.
                        self.inbox.buffer = Default::default();
                    }
                    return Ok(false);
                }
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Ready(Ok(0)) => {
                    let ended = self.shared.drive(|streams| streams.eof());
                    self.begin_end(ended);
                    return Ok(false);
                }
                Poll::Ready(Ok(read)) => {
                    self.appetite = match read {
                        _ if read == room => (self.appetite * 2).min(MOST_READ),
                        _ if read < self.appetite / 4 => (self.appetite / 2).max(LEAST_READ),
                        _ => self.appetite,
                    };
                    total += read;
                    self.receive(on_request)?;
                }
            }
            if total >= TURN {
                return Ok(true);
            }
        }
    }

    /// Does what the frames ask for that have been read.
    fn receive(&mut self, on_request: &mut impl FnMut(Arrived)) -> Result<(), Fault> {
        let Self { inbox, arrived, shared, .. } = self;
        let received = shared.drive(|streams| {
            while let Some(frame) = inbox.next()? {
                streams.receive(frame, arrived)?;
            }
            Ok(())
        });
        arrived.drain(..).for_each(on_request);
        received
    }

    /// Writes what there is to be written; ready when nothing is left.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.batch.is_empty() {
                self.shared.drive(|streams| streams.write(&mut self.batch));
            }
            if self.batch.is_empty() {
                break;
            }
            ready!(self.io.poll_take(cx, &mut self.batch))?;
        }
        // The transport may have something of its own to say.
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// From here on nobody sends or receives anything.
    fn begin_end(&mut self, result: Result<(), Error>) {
        let Self { shared, batch, .. } = self;
        shared.drive(|streams| {
            if let Err(Error::Broken(fault)) = &result {
                streams.say_fault(*fault);
                streams.write(batch);
            }
            streams.end(result.as_ref().err().unwrap_or(&Error::Ended));
        });
        self.ending = Some(result);
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let result = self.ending.clone().expect("it has begun");
        // Who broke the protocol is told if there is room for it, and not waited for.
        let shut = self.poll_write(cx).is_ready() && Pin::new(&mut self.io).poll_shutdown(cx).is_ready();
        if shut || result.is_err() { Poll::Ready(result) } else { Poll::Pending }
    }
}

impl<S> Connection<S> {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl<S> Drop for Connection<S> {
    fn drop(&mut self) {
        self.shared.drive(|streams| streams.end(&Error::Given));
    }
}
