//! Compresses responses for callers that accept it. Objects of one kind are alike, and shrink to about a tenth.

use std::io::Write as _;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use tokio::{sync::Semaphore, task::spawn_blocking};

/// Texts of at most this size are compressed at once, and larger ones beside the other tasks.
const SMALL: usize = 32 << 10;
/// The larger ones that are compressed at the same time.
static COMPRESSIONS: Semaphore = Semaphore::const_new(2);
const NEVER_FAILS: &str = "a vector takes all bytes";

/// Compresses parts of a stream, each of which can be read as soon as it has arrived.
#[derive(Debug)]
pub(super) struct GzipStream(GzEncoder<Vec<u8>>);

impl GzipStream {
    pub(super) fn new() -> Self {
        Self(GzEncoder::new(Vec::new(), Compression::fast()))
    }

    /// Compresses the next part. `None` if the process stops.
    pub(super) async fn add(mut self, part: Bytes) -> Option<(Self, Bytes)> {
        let size = part.len();
        let compress = move || {
            self.0.write_all(&part).expect(NEVER_FAILS);
            self.0.flush().expect(NEVER_FAILS);
            let compressed = std::mem::take(self.0.get_mut()).into();
            (self, compressed)
        };
        run(size, compress).await
    }

    /// Returns the end of the stream, without which a decoder takes it for a broken one.
    pub(super) fn finish(self) -> Bytes {
        self.0.finish().expect(NEVER_FAILS).into()
    }
}

/// Compresses a whole text. `None` if the process stops.
pub(super) async fn compress(text: String) -> Option<Bytes> {
    let size = text.len();
    let compress = move || {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).expect(NEVER_FAILS);
        Bytes::from(encoder.finish().expect(NEVER_FAILS))
    };
    run(size, compress).await
}

/// Compresses so many bytes, beside the other tasks if they are many. A caller that leaves while it waits costs nothing more.
async fn run<T: Send + 'static>(size: usize, compress: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    if size <= SMALL {
        return Some(compress());
    }
    let permit = COMPRESSIONS.acquire().await.ok()?;
    let compress = move || {
        let _permit = permit;
        compress()
    };
    spawn_blocking(compress).await.ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    #[tokio::test]
    async fn text_is_read_back() {
        for text in ["short".to_owned(), "long ".repeat(SMALL)] {
            let mut read = String::new();
            GzDecoder::new(&*compress(text.clone()).await.unwrap()).read_to_string(&mut read).unwrap();
            assert_eq!(read, text);
        }
    }

    /// The decoder of a browser shows what has arrived, although the stream has no end yet.
    #[tokio::test]
    async fn each_part_of_a_stream_can_be_read_when_it_arrives() {
        let mut stream = GzipStream::new();
        let mut sent = Vec::new();
        let mut expected = String::new();
        for part in ["one\n".to_owned(), "two\n".repeat(SMALL), "three\n".to_owned()] {
            expected += &part;
            let compressed;
            (stream, compressed) = stream.add(part.into()).await.unwrap();
            sent.extend_from_slice(&compressed);
            let mut read = vec![0; expected.len()];
            GzDecoder::new(&*sent).read_exact(&mut read).unwrap();
            assert_eq!(String::from_utf8(read).unwrap(), expected);
        }
        sent.extend_from_slice(&stream.finish());
        let mut read = String::new();
        GzDecoder::new(&*sent).read_to_string(&mut read).unwrap();
        assert_eq!(read, expected);
    }
}
