//! A body, as it comes in. Pure.

use bytes::{Bytes, BytesMut};
use http::HeaderMap;

use crate::{Error, Length, chunked::Chunked};

/// What is due of a body.
#[derive(Debug)]
pub struct Decoder(Kind);

#[derive(Debug)]
enum Kind {
    /// So many bytes.
    Plain(u64),
    Chunked(Chunked),
    UntilClosed,
}

impl Decoder {
    /// Of a body of this length.
    pub fn new(length: Length) -> Self {
        Self(match length {
            Length::Exactly(length) => Kind::Plain(length),
            Length::Chunked => Kind::Chunked(Chunked::default()),
            Length::UntilClosed => Kind::UntilClosed,
        })
    }

    /// Cuts the next piece of data off `received`; `None` if it is not there yet, or if there is no more.
    ///
    /// # Errors
    ///
    /// Chunks that are none.
    pub fn take(&mut self, received: &mut BytesMut) -> Result<Option<Bytes>, Error> {
        Ok(match &mut self.0 {
            Kind::Plain(0) => None,
            _ if received.is_empty() => None,
            Kind::Plain(due) => {
                let piece = received.len().min(usize::try_from(*due).unwrap_or(usize::MAX));
                *due -= piece as u64;
                Some(received.split_to(piece).freeze())
            }
            Kind::Chunked(chunked) => chunked.take(received)?,
            Kind::UntilClosed => Some(received.split().freeze()),
        })
    }

    /// Whether all data was taken. There may be trailers.
    pub fn is_done(&self) -> bool {
        match &self.0 {
            Kind::Plain(due) => *due == 0,
            Kind::Chunked(chunked) => chunked.is_done(),
            Kind::UntilClosed => false,
        }
    }

    /// Whether the end of the connection is that of the body.
    pub fn ends_with_the_connection(&self) -> bool {
        matches!(self.0, Kind::UntilClosed)
    }

    /// What came behind the data, once.
    pub fn trailers(&mut self) -> Option<HeaderMap> {
        match &mut self.0 {
            Kind::Chunked(chunked) => chunked.trailers(),
            Kind::Plain(_) | Kind::UntilClosed => None,
        }
    }

    /// Whether all was taken, trailers too.
    pub fn is_over(&self) -> bool {
        match &self.0 {
            Kind::Chunked(chunked) => chunked.is_over(),
            Kind::Plain(_) | Kind::UntilClosed => self.is_done(),
        }
    }

    /// How many bytes are due, if that is known.
    pub fn due(&self) -> Option<u64> {
        match &self.0 {
            Kind::Plain(due) => Some(*due),
            Kind::Chunked(_) | Kind::UntilClosed => None,
        }
    }
}
