//! What rustls makes of records, and records of what is written. No I/O.

use std::{cell::Cell, mem};

use bytes::{Buf as _, BytesMut};
use rustls::{
    CommonState, Error,
    client::UnbufferedClientConnection,
    server::UnbufferedServerConnection,
    unbuffered::{
        ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus, WriteTraffic,
    },
};
use tokio::io::ReadBuf;

/// Most bytes of one record's payload (RFC 8446 section 5.1).
pub(crate) const MAX_PAYLOAD: usize = 16 << 10;

/// Bytes that a record has beyond its payload, in any version and with any cipher that we speak.
const OVERHEAD: usize = 64;

/// Most bytes that wait to be written before no more are encrypted: what one system call may take.
pub(crate) const WRITE_HIGH: usize = 256 << 10;

thread_local! {
    /// A buffer that was given back: the next stream that writes takes it, zeroed as it is, and warm.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// One end of a connection, as rustls keeps it.
pub(crate) enum Session {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// What is to be sent, once the other end's records are worked through.
#[derive(Clone, Copy)]
pub(crate) enum Send<'a> {
    Nothing,
    Data(&'a [u8]),
    /// There will be no more data (`close_notify`).
    Goodbye,
}

/// Where plaintext goes.
pub(crate) struct Sink<'a, 'b> {
    pub(crate) reader: Option<&'a mut ReadBuf<'b>>,
    /// What does not fit there.
    pub(crate) rest: &'a mut BytesMut,
}

/// Records that go out, from the first encryption until they are written. Holds a buffer only in between.
#[derive(Default)]
pub(crate) struct Outgoing {
    /// Zeroed once, and used again until it is let go: `start..end` waits to be written.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

/// What the other end did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Nothing that ends anything.
    Data,
    /// The same, and there may be more: the reader's room is full.
    More,
    /// It said that there will be no more data.
    Goodbye,
}

enum Next {
    /// There is more to work through.
    Again,
    Goodbye,
    Done,
}

impl Session {
    /// Works through all whole records of `incoming`, or as many as there is a reader and room for: their plaintext goes to
    /// `sink`, and what is to be said to them, and then `send`, to `outgoing`. What stays in `incoming` otherwise is part of
    /// a record.
    pub(crate) fn process(
        &mut self,
        incoming: &mut BytesMut,
        sink: &mut Sink<'_, '_>,
        send: Send<'_>,
        outgoing: &mut Outgoing,
    ) -> Result<Heard, Error> {
        let mut heard = Heard::Data;
        loop {
            let (discard, next) = match self {
                Self::Client(client) => act(client.process_tls_records(incoming), sink, send, outgoing),
                Self::Server(server) => act(server.process_tls_records(incoming), sink, send, outgoing),
            };
            incoming.advance(discard);
            match next {
                Ok(Next::Again) if sink.is_full() => return Ok(Heard::More),
                Ok(Next::Again) => {}
                Ok(Next::Goodbye) => heard = Heard::Goodbye,
                Ok(Next::Done) => return Ok(heard),
                Err(error) => {
                    self.alert(incoming, outgoing);
                    return Err(error);
                }
            }
        }
    }

    /// The last words to an end that made an error.
    fn alert(&mut self, incoming: &mut [u8], outgoing: &mut Outgoing) {
        fn encode<D>(status: UnbufferedStatus<'_, '_, D>, outgoing: &mut Outgoing) {
            if let Ok(ConnectionState::EncodeTlsData(mut data)) = status.state {
                // Where it cannot be said, the other end sees the connection close.
                let _ = outgoing.put(|buffer| data.encode(buffer).map_err(missing));
            }
        }

        // While something waits, rustls hands it out, and does not look at what came.
        while self.state().wants_write() {
            match self {
                Self::Client(client) => encode(client.process_tls_records(incoming), outgoing),
                Self::Server(server) => encode(server.process_tls_records(incoming), outgoing),
            }
        }
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.state().is_handshaking()
    }

    fn state(&self) -> &CommonState {
        match self {
            Self::Client(client) => client,
            Self::Server(server) => server,
        }
    }
}

fn act<D>(
    status: UnbufferedStatus<'_, '_, D>,
    sink: &mut Sink<'_, '_>,
    send: Send<'_>,
    outgoing: &mut Outgoing,
) -> (usize, Result<Next, Error>) {
    let mut discard = status.discard;
    let next = status.state.and_then(|state| match state {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                let record = record?;
                discard += record.discard;
                sink.put(record.payload);
            }
            Ok(Next::Again)
        }
        ConnectionState::EncodeTlsData(mut data) => {
            outgoing.put(|buffer| data.encode(buffer).map_err(missing))?;
            Ok(Next::Again)
        }
        // They are in `outgoing`, which nothing overtakes.
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(Next::Again)
        }
        ConnectionState::PeerClosed => Ok(Next::Goodbye),
        ConnectionState::WriteTraffic(traffic) => {
            outgoing.encrypt(traffic, send)?;
            Ok(Next::Done)
        }
        ConnectionState::BlockedHandshake | ConnectionState::Closed => Ok(Next::Done),
        state => Err(Error::General(format!("rustls is in a state that it cannot be in: {state:?}"))),
    });
    (discard, next)
}

impl Sink<'_, '_> {
    fn is_full(&self) -> bool {
        self.reader.as_ref().is_some_and(|reader| reader.remaining() == 0)
    }

    fn put(&mut self, plaintext: &[u8]) {
        let fits = match &mut self.reader {
            Some(reader) if self.rest.is_empty() => {
                let fits = plaintext.len().min(reader.remaining());
                reader.put_slice(&plaintext[..fits]);
                fits
            }
            _ => 0,
        };
        self.rest.extend_from_slice(&plaintext[fits..]);
    }
}

impl Outgoing {
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(crate) fn is_full(&self) -> bool {
        self.end - self.start >= WRITE_HIGH
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub(crate) fn advance(&mut self, written: usize) {
        self.start += written;
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Gives the buffer back, if nothing waits.
    pub(crate) fn release(&mut self) {
        if self.is_empty() && !self.buffer.is_empty() {
            SPARE.set(mem::take(self).buffer);
        }
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.buffer.capacity()
    }

    fn encrypt<D>(&mut self, mut traffic: WriteTraffic<'_, D>, send: Send<'_>) -> Result<(), Error> {
        match send {
            Send::Nothing => Ok(()),
            Send::Data(data) => {
                self.reserve(data.len() + (data.len() / MAX_PAYLOAD + 1) * OVERHEAD);
                self.put(|buffer| traffic.encrypt(data, buffer).map_err(too_small))
            }
            Send::Goodbye => self.put(|buffer| traffic.queue_close_notify(buffer).map_err(too_small)),
        }
    }

    /// Appends what `write` puts at the front of the room that there is, for which it says if it needs more.
    fn put(&mut self, mut write: impl FnMut(&mut [u8]) -> Result<usize, Trouble>) -> Result<(), Error> {
        loop {
            match write(&mut self.buffer[self.end..]) {
                Ok(written) => {
                    self.end += written;
                    return Ok(());
                }
                Err(Trouble::TooSmall(InsufficientSizeError { required_size })) => {
                    self.reserve(required_size)
                }
                Err(Trouble::Other(error)) => return Err(error),
            }
        }
    }

    fn reserve(&mut self, room: usize) {
        if self.buffer.is_empty() {
            self.buffer = SPARE.take();
        }
        let length = self.end + room;
        if self.buffer.len() < length {
            self.buffer.resize(length, 0);
        }
    }
}

enum Trouble {
    TooSmall(InsufficientSizeError),
    Other(Error),
}

fn missing(error: EncodeError) -> Trouble {
    match error {
        EncodeError::InsufficientSize(size) => Trouble::TooSmall(size),
        EncodeError::AlreadyEncoded => Trouble::Other(Error::General(error.to_string())),
    }
}

fn too_small(error: EncryptError) -> Trouble {
    match error {
        EncryptError::InsufficientSize(size) => Trouble::TooSmall(size),
        EncryptError::EncryptExhausted => Trouble::Other(Error::EncryptError),
    }
}
