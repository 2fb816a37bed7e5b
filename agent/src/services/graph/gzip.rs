//! Compresses responses for callers that accept it. Objects of one kind are alike, and shrink to about a tenth.

use std::io::Write as _;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, header::ACCEPT_ENCODING};
use proto::header::tokens;
use tokio::task::spawn_blocking;

/// Texts of at most this size are compressed at once, and larger ones beside the other tasks.
const SMALL: usize = 32 << 10;

/// Compresses parts of a stream, each of which can be read as soon as it has arrived.
#[derive(Debug)]
pub(super) struct GzipStream(GzEncoder<Vec<u8>>);

impl GzipStream {
    pub(super) fn new() -> Self {
        Self(GzEncoder::new(Vec::new(), Compression::fast()))
    }

    /// Compresses the next part.
    pub(super) fn add(&mut self, part: &[u8]) -> Bytes {
        self.0.write_all(part).expect("a vector takes all bytes");
        self.0.flush().expect("a vector takes all bytes");
        std::mem::take(self.0.get_mut()).into()
    }
}

/// Compresses a whole text.
pub(super) async fn compress(text: String) -> Bytes {
    let is_small = text.len() <= SMALL;
    let compress = move || {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).expect("a vector takes all bytes");
        Bytes::from(encoder.finish().expect("a vector takes all bytes"))
    };
    if is_small { compress() } else { spawn_blocking(compress).await.expect("it does not panic") }
}

/// Returns whether a caller accepts gzip (RFC 9110 section 12.5.3).
pub(super) fn is_accepted(headers: &HeaderMap) -> bool {
    tokens(headers, &ACCEPT_ENCODING).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let refused = |weight: &str| weight.bytes().all(|byte| matches!(byte, b'0' | b'.'));
        let is_refused = parts.filter_map(|part| part.strip_prefix("q=")).any(refused);
        is_gzip && !is_refused
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::MultiGzDecoder;

    use super::*;

    fn accepted(value: &'static str) -> bool {
        is_accepted(&HeaderMap::from_iter([(ACCEPT_ENCODING, http::HeaderValue::from_static(value))]))
    }

    #[test]
    fn gzip_is_used_if_it_is_accepted() {
        for value in ["gzip", "br, GZIP", "gzip;q=0.5", "gzip; q=1.0, identity"] {
            assert!(accepted(value), "{value}");
        }
        for value in ["", "identity", "br", "gzip;q=0", "gzip; q=0.000", "xgzip", "*"] {
            assert!(!accepted(value), "{value}");
        }
        assert!(!is_accepted(&HeaderMap::new()));
    }

    #[tokio::test]
    async fn text_is_read_back() {
        for text in ["short".to_owned(), "long ".repeat(SMALL)] {
            let mut read = String::new();
            MultiGzDecoder::new(&*compress(text.clone()).await).read_to_string(&mut read).unwrap();
            assert_eq!(read, text);
        }
    }

    /// The decoder of a browser shows what has arrived, although the stream has no end yet.
    #[test]
    fn each_part_of_a_stream_can_be_read_when_it_arrives() {
        let mut stream = GzipStream::new();
        let mut sent = Vec::new();
        let mut expected = String::new();
        for part in ["one\n", "two\n", "three\n"] {
            sent.extend_from_slice(&stream.add(part.as_bytes()));
            expected += part;
            let mut read = vec![0; expected.len()];
            flate2::read::GzDecoder::new(&*sent).read_exact(&mut read).unwrap();
            assert_eq!(String::from_utf8(read).unwrap(), expected);
        }
    }
}
