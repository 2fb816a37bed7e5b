//! A message on its way out.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName};
use http_body::{Body, Frame};
use tokio::io::AsyncWrite;

use crate::{Error, Length, Queue, fields};

/// What of a message is not written yet.
#[derive(Debug)]
pub struct Outgoing<B> {
    queue: Queue,
    /// The rest of the body, and how it is written. `None` at its end.
    rest: Option<(B, Length)>,
    /// The trailers that may be sent.
    announced: Vec<HeaderName>,
    /// Why the rest will not come. What came before goes out first.
    failed: Option<Error>,
    flushed: bool,
}

/// What there is of a body.
enum Next {
    More,
    End,
    NotYet,
}

impl<B> Outgoing<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// What `queue` has, a message's head most likely, and then the body, if there is one. Of its trailers those that are
    /// `announced`, if it is chunked.
    pub fn new(queue: Queue, body: Option<(B, Length)>, announced: Vec<HeaderName>) -> Self {
        let rest = body.filter(|(_, length)| *length != Length::Exactly(0));
        Self { queue, rest, announced, failed: None, flushed: false }
    }

    /// Whether all of it was written.
    pub fn is_done(&self) -> bool {
        self.flushed
    }

    /// The queue, for the next message.
    pub fn into_queue(self) -> Queue {
        self.queue
    }

    /// Writes all that is there of it. Ready when that was the end.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<Result<(), Error>> {
        while !self.flushed {
            // A head waits for the data that is there already, so that both travel together.
            let mut next = Next::More;
            while !self.queue.is_full() && matches!(next, Next::More) {
                next = self.take(cx).unwrap_or_else(|error| {
                    self.rest = None;
                    self.failed = Some(error);
                    Next::End
                });
            }
            ready!(self.queue.poll_write(cx, io))?;
            if !matches!(next, Next::More) {
                // What was written goes out while the body has nothing more.
                ready!(Pin::new(&mut *io).poll_flush(cx))?;
            }
            match next {
                Next::More => {}
                Next::End => match self.failed.take() {
                    Some(error) => return Poll::Ready(Err(error)),
                    None => self.flushed = true,
                },
                Next::NotYet => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Takes the next frame of the body.
    fn take(&mut self, cx: &mut Context<'_>) -> Result<Next, Error> {
        let Some((body, length)) = &mut self.rest else { return Ok(Next::End) };
        let frame = match Pin::new(&mut *body).poll_frame(cx) {
            Poll::Ready(frame) => frame.transpose().map_err(|error| Error::Outgoing(error.into()))?,
            Poll::Pending => return Ok(Next::NotYet),
        };
        let over = match (frame.map(Frame::into_data), length) {
            (Some(Ok(data)), Length::Exactly(due)) => {
                *due = due.checked_sub(data.len() as u64).ok_or_else(|| wrong("more"))?;
                self.queue.data(data);
                // Nothing may follow, whenever the body says so.
                *due == 0
            }
            (Some(Ok(data)), Length::UntilClosed) => {
                self.queue.data(data);
                body.is_end_stream()
            }
            (Some(Ok(data)), Length::Chunked) => {
                let over = body.is_end_stream();
                chunk(&mut self.queue, data, over);
                over
            }
            (Some(Err(_)) | None, Length::Exactly(_)) => return Err(wrong("fewer")),
            (Some(Err(_)) | None, Length::UntilClosed) => true,
            (None, Length::Chunked) => {
                self.queue.text(|text| text.put_slice(b"0\r\n\r\n"));
                true
            }
            (Some(Err(frame)), Length::Chunked) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                self.queue.text(|text| last_chunk(&trailers, &self.announced, text));
                true
            }
        };
        if over {
            self.rest = None;
        }
        Ok(Next::More)
    }
}

/// A piece of data, and the end if it is the last (RFC 9112 section 7.1).
fn chunk(queue: &mut Queue, data: Bytes, last: bool) {
    // An empty chunk would be the end.
    if !data.is_empty() {
        queue.text(|text| {
            hexadecimal(data.len(), text);
            text.put_slice(b"\r\n");
        });
        queue.data(data);
        queue.text(|text| text.put_slice(b"\r\n"));
    }
    if last {
        queue.text(|text| text.put_slice(b"0\r\n\r\n"));
    }
}

fn last_chunk(trailers: &HeaderMap, announced: &[HeaderName], out: &mut BytesMut) {
    out.put_slice(b"0\r\n");
    for (name, value) in trailers.iter().filter(|(name, _)| announced.contains(name)) {
        fields::write(name, value, out);
    }
    out.put_slice(b"\r\n");
}

/// Without the machinery of `write!`, which takes longer than all else about a small chunk.
fn hexadecimal(number: usize, out: &mut BytesMut) {
    let digits = (usize::BITS - number.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        out.put_u8(b"0123456789abcdef"[number >> (4 * digit) & 15]);
    }
}

fn wrong(how: &str) -> Error {
    Error::Outgoing(format!("it has {how} bytes than its Content-Length says").into())
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, future::poll_fn};

    use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};

    use super::*;

    /// Frames that are there now, and then a wait for ever if it has no end.
    struct Frames(VecDeque<Result<Frame<Bytes>, &'static str>>, bool);

    impl Body for Frames {
        type Data = Bytes;
        type Error = &'static str;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
            match self.0.pop_front() {
                None if !self.1 => Poll::Pending,
                frame => Poll::Ready(frame),
            }
        }
    }

    fn data(text: &'static str) -> Result<Frame<Bytes>, &'static str> {
        Ok(Frame::data(Bytes::from_static(text.as_bytes())))
    }

    /// What is written, and what becomes of it; `None` if the body has not ended.
    async fn sent(
        frames: Vec<Result<Frame<Bytes>, &'static str>>,
        ends: bool,
        length: Length,
    ) -> (String, Option<Result<(), String>>) {
        let (mut near, mut far): (DuplexStream, DuplexStream) = duplex(4096);
        let mut queue = Queue::default();
        queue.text(|text| text.put_slice(b"HEAD "));
        let announced = vec![HeaderName::from_static("a")];
        let mut outgoing = Outgoing::new(queue, Some((Frames(frames.into(), ends), length)), announced);
        let polled = poll_fn(|cx| Poll::Ready(outgoing.poll(cx, &mut near))).await;
        drop(near);
        let mut text = String::new();
        far.read_to_string(&mut text).await.unwrap();
        let end = match polled {
            Poll::Ready(end) => Some(end.map_err(|error| error.to_string())),
            Poll::Pending => None,
        };
        (text, end)
    }

    #[tokio::test]
    async fn a_body_follows_its_head_as_it_comes() {
        let all = || vec![data("one"), data(""), data("two")];
        for (length, ends, expected) in [
            (Length::Exactly(6), true, "HEAD onetwo"),
            // Its end need not be awaited.
            (Length::Exactly(6), false, "HEAD onetwo"),
            (Length::Chunked, true, "HEAD 3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"),
            (Length::UntilClosed, true, "HEAD onetwo"),
        ] {
            assert_eq!(sent(all(), ends, length).await, (expected.to_owned(), Some(Ok(()))), "{length:?}");
        }
        // What is there is not held back.
        assert_eq!(sent(all(), false, Length::UntilClosed).await, ("HEAD onetwo".to_owned(), None));
        assert_eq!(sent(vec![], false, Length::Chunked).await, ("HEAD ".to_owned(), None));
    }

    #[tokio::test]
    async fn a_body_that_is_not_what_was_said_has_no_clean_end() {
        let failed = Some(Err("the disk is gone".to_owned()));
        let broken = || vec![data("half"), Err("the disk is gone")];
        assert_eq!(
            sent(broken(), true, Length::Chunked).await,
            ("HEAD 4\r\nhalf\r\n".to_owned(), failed.clone())
        );
        assert_eq!(sent(broken(), true, Length::Exactly(9)).await, ("HEAD half".to_owned(), failed));
        for (length, how) in [(3, "more"), (5, "fewer")] {
            let (text, end) = sent(vec![data("half")], true, Length::Exactly(length)).await;
            assert!(text.starts_with("HEAD") && !text.contains("half") || length == 5, "{text}");
            assert!(end.unwrap().unwrap_err().contains(how));
        }
    }

    #[tokio::test]
    async fn trailers_follow_chunks_if_they_were_announced() {
        let trailers =
            [("a", "1"), ("b", "2")].map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let trailers = || Ok(Frame::trailers(HeaderMap::from_iter(trailers.clone())));
        let (text, end) = sent(vec![data("x"), trailers()], true, Length::Chunked).await;
        assert_eq!((text.as_str(), end), ("HEAD 1\r\nx\r\n0\r\na: 1\r\n\r\n", Some(Ok(()))));
    }

    #[test]
    fn a_chunks_size_is_hexadecimal() {
        for number in [0, 1, 9, 15, 16, 255, 256, 65_535, 1 << 20, usize::MAX] {
            let mut out = BytesMut::new();
            hexadecimal(number, &mut out);
            assert_eq!(out, format!("{number:x}").as_bytes());
        }
    }
}
