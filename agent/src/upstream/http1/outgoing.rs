//! A request on its way out.

use std::{
    io::IoSlice,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{
    HeaderName, Request,
    header::{TRAILER, TRANSFER_ENCODING},
    request,
};
use http_body::Body as _;
use tunnel::Body;

use super::{
    Connection, Error,
    head::{self, Length},
};

/// What of a request is not written yet.
pub(super) struct Outgoing {
    /// The head, or what stands before a chunk's data.
    before: BytesMut,
    data: Bytes,
    /// What stands behind a chunk's data.
    after: &'static [u8],
    /// The rest of the body, and how it is written. `None` at its end.
    rest: Option<(Body, Coding)>,
    /// The trailers that the head names. Others are not sent (RFC 9110 section 6.5.1: a server may not expect them).
    announced: Vec<HeaderName>,
    flushed: bool,
}

#[derive(Clone, Copy)]
enum Coding {
    Chunked,
    /// As it is; so many bytes are due.
    Plain(u64),
}

impl Outgoing {
    /// Refuses a request whose `Content-Length` is no length.
    pub(super) fn new(request: Request<Body>) -> Result<(request::Parts, Self), Error> {
        let (mut parts, body) = request.into_parts();
        // How it is coded is for us to say.
        parts.headers.remove(TRANSFER_ENCODING);
        let said = head::content_length(&parts.headers).map_err(|error| Error::Request(error.into()))?;
        let coding = match said {
            Some(length) => Some(Coding::Plain(length)),
            None if body.is_end_stream() => None,
            None => Some(Coding::Chunked),
        };
        let chunked = matches!(coding, Some(Coding::Chunked)).then_some(Length::Chunked);
        let mut before = BytesMut::new();
        head::write(&parts, chunked, &mut before);
        let rest = coding.filter(|coding| !matches!(coding, Coding::Plain(0))).map(|coding| (body, coding));

        let names = parts
            .headers
            .get_all(TRAILER)
            .iter()
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        let announced = names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect();

        Ok((parts, Self { before, data: Bytes::new(), after: b"", rest, announced, flushed: false }))
    }

    /// Whether all of it was written.
    pub(super) fn is_done(&self) -> bool {
        self.flushed
    }

    /// Writes all that is there of it. Ready when that was the end.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut Connection,
    ) -> Poll<Result<(), Error>> {
        while !self.flushed {
            ready!(self.poll_write(cx, connection))?;
            match self.poll_next(cx)? {
                Poll::Ready(true) => {}
                Poll::Ready(false) => {
                    ready!(connection.flush(cx))?;
                    self.flushed = true;
                }
                Poll::Pending => {
                    // What was written goes out while the body has nothing more.
                    ready!(connection.flush(cx))?;
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, connection: &mut Connection) -> Poll<Result<(), Error>> {
        while !(self.before.is_empty() && self.data.is_empty() && self.after.is_empty()) {
            let parts = [&self.before[..], &self.data[..], self.after].map(IoSlice::new);
            let mut written = ready!(connection.write(cx, &parts))?;
            if written == 0 {
                return Poll::Ready(Err(Error::Closed));
            }
            for part in [&mut self.before as &mut dyn bytes::Buf, &mut self.data, &mut self.after] {
                let of_it = written.min(part.remaining());
                part.advance(of_it);
                written -= of_it;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Takes the next frame of the body. False if there is none.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Result<Poll<bool>, Error> {
        let Some((body, coding)) = &mut self.rest else { return Ok(Poll::Ready(false)) };
        let frame = match Pin::new(body).poll_frame(cx) {
            Poll::Ready(frame) => frame.transpose().map_err(|error| Error::Request(error.into()))?,
            Poll::Pending => return Ok(Poll::Pending),
        };
        match (frame.map(http_body::Frame::into_data), coding) {
            (Some(Ok(data)), Coding::Plain(due)) => {
                *due = due.checked_sub(data.len() as u64).ok_or_else(|| wrong("more"))?;
                self.data = data;
            }
            // An empty chunk would be the end.
            (Some(Ok(data)), Coding::Chunked) if data.is_empty() => {}
            (Some(Ok(data)), Coding::Chunked) => {
                self.before.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
                self.data = data;
                self.after = b"\r\n";
            }
            (Some(Err(_)) | None, Coding::Plain(1..)) => return Err(wrong("fewer")),
            (Some(Err(_)) | None, Coding::Plain(0)) => self.rest = None,
            (None, Coding::Chunked) => {
                self.after = b"0\r\n\r\n";
                self.rest = None;
            }
            (Some(Err(frame)), Coding::Chunked) => {
                self.before.extend_from_slice(b"0\r\n");
                let trailers = frame.into_trailers().unwrap_or_default();
                for (name, value) in trailers.iter().filter(|(name, _)| self.announced.contains(name)) {
                    for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                        self.before.extend_from_slice(part);
                    }
                }
                self.after = b"\r\n";
                self.rest = None;
            }
        }
        Ok(Poll::Ready(true))
    }
}

fn wrong(how: &str) -> Error {
    Error::Request(format!("it has {how} bytes than its Content-Length says").into())
}
