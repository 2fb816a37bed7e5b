//! The chunked coding (RFC 9112 section 7.1), read. Pure.

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use memchr::memchr;

use crate::{Error, fields};

/// The longest line with a chunk's size, and all that chunks may say beyond their sizes: nobody needs extensions, and a
/// peer could send one that never ends.
const MAX_LINE: usize = 4 << 10;
const MAX_EXTENSIONS: usize = 16 << 10;
const MAX_TRAILERS: usize = 64 << 10;
const MAX_TRAILER_FIELDS: usize = 100;

/// Where we are in a body.
#[derive(Debug, Default)]
pub(crate) struct Chunked {
    state: State,
    extensions: usize,
    trailers: Option<HeaderMap>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Size,
    Data(u64),
    DataEnd,
    Trailers,
    Done,
}

impl Chunked {
    /// Takes the next piece of data off `received`: `None` if it is not there yet, or if there is no more. Whether the end has
    /// come is known as soon as it is there, be it behind the last piece.
    pub(crate) fn take(&mut self, received: &mut BytesMut) -> Result<Option<Bytes>, Error> {
        self.skip(received)?;
        let State::Data(left) = &mut self.state else { return Ok(None) };
        if received.is_empty() {
            return Ok(None);
        }
        let piece = received.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
        *left -= piece as u64;
        if *left == 0 {
            self.state = State::DataEnd;
        }
        let data = received.split_to(piece).freeze();
        self.skip(received)?;
        Ok(Some(data))
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Whether it has ended, and nothing came behind the data.
    pub(crate) fn is_over(&self) -> bool {
        self.is_done() && self.trailers.is_none()
    }

    /// What came behind the data.
    pub(crate) fn trailers(&mut self) -> Option<HeaderMap> {
        self.trailers.take()
    }

    /// Goes on to where data begins, or as far as it was received.
    fn skip(&mut self, received: &mut BytesMut) -> Result<(), Error> {
        loop {
            match self.state {
                State::Size => match self.size(received)? {
                    Some(0) => self.state = State::Trailers,
                    Some(size) => self.state = State::Data(size),
                    None => return Ok(()),
                },
                State::DataEnd => match received[..] {
                    [] | [b'\r'] => return Ok(()),
                    [b'\r', b'\n', ..] => {
                        let _ = received.split_to(2);
                        self.state = State::Size;
                    }
                    _ => return Err(Error::Malformed("a chunk is longer than it said")),
                },
                State::Trailers => {
                    if !self.end(received)? {
                        return Ok(());
                    }
                    self.state = State::Done;
                }
                State::Data(_) | State::Done => return Ok(()),
            }
        }
    }

    fn size(&mut self, received: &mut BytesMut) -> Result<Option<u64>, Error> {
        let Some(end) = memchr(b'\n', received) else {
            return if received.len() > MAX_LINE {
                Err(Error::Malformed("a chunk's size is too long"))
            } else {
                Ok(None)
            };
        };
        let line = received.split_to(end + 1);
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let malformed = Error::Malformed("a chunk's size is no number");
        let rest = &line[digits..];
        let blanks = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let well_formed = rest.ends_with(b"\r\n") && matches!(rest[blanks], b'\r' | b';');
        if !(1..=15).contains(&digits) || !well_formed || rest[..rest.len() - 2].contains(&b'\r') {
            return Err(malformed);
        }
        self.extensions += rest.len() - 2;
        if self.extensions > MAX_EXTENSIONS {
            return Err(Error::Malformed("its chunks say too much beside their sizes"));
        }
        let size = line[..digits]
            .iter()
            .fold(0, |sum, digit| sum << 4 | u64::from(char::from(*digit).to_digit(16).unwrap_or_default()));
        Ok(Some(size))
    }

    /// Takes the trailers and the line that ends them. False if they are not there yet.
    fn end(&mut self, received: &mut BytesMut) -> Result<bool, Error> {
        match received[..] {
            [b'\r', b'\n', ..] => {
                let _ = received.split_to(2);
                return Ok(true);
            }
            [] | [b'\r'] => return Ok(false),
            _ => {}
        }
        let end = fields::strict_end(received, 0)
            .map_err(|_| Error::Malformed("a line of its trailers ends without a carriage return"))?;
        if end.unwrap_or(received.len()) > MAX_TRAILERS {
            return Err(Error::Malformed("its trailers are too large"));
        }
        let Some(end) = end else { return Ok(false) };
        let section = received.split_to(end).freeze();
        let mut room = [httparse::EMPTY_HEADER; MAX_TRAILER_FIELDS];
        let Ok(httparse::Status::Complete((_, parsed))) = httparse::parse_headers(&section, &mut room) else {
            return Err(Error::Malformed("its trailers are malformed"));
        };
        self.trailers = Some(fields::map(&section, parsed)?);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All data, the trailers as text, what is left, and whether it ended; `step` bytes at once.
    fn read(text: &[u8], step: usize) -> Result<(Vec<u8>, String, Vec<u8>, bool), String> {
        let (mut chunked, mut received, mut data) = (Chunked::default(), BytesMut::new(), Vec::new());
        for part in text.chunks(step) {
            received.extend_from_slice(part);
            while let Some(piece) = chunked.take(&mut received).map_err(|error| error.to_string())? {
                assert!(!piece.is_empty());
                data.extend_from_slice(&piece);
            }
        }
        let trailers = chunked.trailers().map(|trailers| format!("{trailers:?}")).unwrap_or_default();
        Ok((data, trailers, received.to_vec(), chunked.is_done()))
    }

    #[test]
    fn chunks_are_data_however_they_arrive() {
        let text = b"5\r\nhello\r\n1;x=\"y\"\r\n,\r\n00000a \r\n, my world\r\n0\r\n\r\nHTTP/1.1";
        for step in 1..text.len() {
            let (data, trailers, left, done) = read(text, step).unwrap();
            assert_eq!(String::from_utf8(data).unwrap(), "hello,, my world", "{step}");
            assert_eq!((trailers.as_str(), &left[..], done), ("", &b"HTTP/1.1"[..], true), "{step}");
        }
    }

    #[test]
    fn trailers_follow_the_data() {
        let text = b"1\r\nx\r\n0\r\nA: b\r\nC: d\r\n\r\n";
        for step in 1..=text.len() {
            let (data, trailers, left, done) = read(text, step).unwrap();
            assert_eq!((&data[..], trailers.as_str(), done), (&b"x"[..], r#"{"a": "b", "c": "d"}"#, true));
            assert!(left.is_empty());
        }
    }

    #[test]
    fn the_end_is_known_with_the_last_piece() {
        let mut chunked = Chunked::default();
        let mut received = BytesMut::from("2\r\nok\r\n0\r\n\r\n");
        assert_eq!(chunked.take(&mut received).unwrap().unwrap(), "ok");
        assert!(chunked.is_done());
    }

    #[test]
    fn what_is_ambiguous_is_refused() {
        for text in [
            &b"x\r\n"[..],
            b"\r\n",
            b" 5\r\n",
            b"-1\r\n",
            b"0x5\r\n",
            b"5\nhello",
            b"5\r\r\nhello",
            b"5x\r\n",
            b"5 x\r\n",
            b"5 5\r\n",
            b"1000000000000000\r\n",
            b"5\r\nhello!\r\n",
            b"5\r\nhello\n0\r\n\r\n",
            b"0\r\nA B: c\r\n\r\n",
            b"0\r\nA: b\n\r\n",
            b"0\r\nA: b\n\n",
            b"0\r\n\n",
        ] {
            read(text, text.len()).unwrap_err();
            read(text, 1).unwrap_err();
        }
    }

    #[test]
    fn what_never_ends_is_refused() {
        assert!(read(&[b'1'; MAX_LINE + 1], 100).unwrap_err().contains("too long"));
        let extension = format!("1;{}\r\nx\r\n", "e".repeat(1000)).repeat(20);
        assert!(read(extension.as_bytes(), 4096).unwrap_err().contains("too much"));
        let trailers = format!("0\r\nA: {}", "b".repeat(MAX_TRAILERS));
        assert!(read(trailers.as_bytes(), 4096).unwrap_err().contains("too large"));
    }
}
