//! Bytes that came in and that nobody has looked at yet.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use tokio::io::AsyncRead;
use tokio_util::io::poll_read_buf;

/// How much is read at once, at first. Who fills that again and again is read in larger pieces.
const READ: usize = 8 << 10;

/// What a connection's other end has said. Messages are cut out of it without a copy.
#[derive(Debug)]
pub struct Received {
    /// Not yet taken by a message.
    pub bytes: BytesMut,
    chunk: usize,
    most: usize,
}

impl Received {
    /// Nothing yet. At `most` so much is read at once.
    pub fn new(most: usize) -> Self {
        Self { bytes: BytesMut::new(), chunk: READ.min(most), most }
    }

    /// Reads more. False at the end.
    pub fn read(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut (impl AsyncRead + Unpin),
    ) -> Poll<io::Result<bool>> {
        if self.bytes.capacity() - self.bytes.len() < self.chunk / 4 {
            self.bytes.reserve(self.chunk);
        }
        let room = self.bytes.capacity() - self.bytes.len();
        let read = ready!(poll_read_buf(Pin::new(io), cx, &mut self.bytes))?;
        if read == room {
            self.chunk = (self.chunk * 2).min(self.most);
        }
        Poll::Ready(Ok(read > 0))
    }

    /// Gives back the room that a long message took.
    pub fn rest(&mut self) {
        if self.chunk > READ && self.bytes.is_empty() {
            self.chunk = READ;
            self.bytes = BytesMut::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncWriteExt as _;

    use super::*;

    const MOST: usize = 256 << 10;

    #[tokio::test]
    async fn more_is_read_at_once_from_a_peer_that_says_more() {
        let (mut near, mut far) = tokio::io::duplex(MOST);
        let mut received = Received::new(MOST);
        let chunk = vec![b'x'; MOST];
        for _ in 0..8 {
            far.write_all(&chunk).await.unwrap();
            while received.bytes.len() < chunk.len() {
                assert!(poll_fn(|cx| received.read(cx, &mut near)).await.unwrap());
            }
            received.bytes.clear();
        }
        assert_eq!(received.chunk, MOST);
        received.rest();
        assert_eq!((received.chunk, received.bytes.capacity()), (READ, 0));
    }
}
