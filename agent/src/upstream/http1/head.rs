//! Heads: ours as bytes, the server's as a [`Head`]. Pure.

use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, Method, Request, Response, StatusCode, Version,
    header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING},
    request, response,
};
use http_body::Body as _;
use http1::{Length, Outgoing, Queue, fields};
use tunnel::Body;

use super::Error;

/// The longest head of an answer, and most fields in it. Go's client takes a megabyte; the tunnel takes less than this.
const MAX_HEAD: usize = 256 << 10;
const MAX_FIELDS: usize = 100;
/// What begins every answer.
const SIGNATURE: &[u8] = b"HTTP/1.";

/// Of an answer.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) parts: response::Parts,
    pub(super) length: Length,
    /// The connection may carry another request after this answer.
    pub(super) reusable: bool,
}

/// A request on its way out.
///
/// # Errors
///
/// Its `Content-Length` is no length.
pub(super) fn outgoing(request: Request<Body>) -> Result<(request::Parts, Outgoing<Body>), Error> {
    let (mut parts, body) = request.into_parts();
    // How it is coded is for us to say.
    parts.headers.remove(TRANSFER_ENCODING);
    let said = fields::content_length(&parts.headers).map_err(|error| Error::Outgoing(error.into()))?;
    let length = match said {
        Some(length) => Some(Length::Exactly(length)),
        None if body.is_end_stream() => None,
        None => Some(Length::Chunked),
    };
    let mut queue = Queue::default();
    queue.text(|text| write(&parts, length, text));
    let trailers = fields::announced(&parts.headers);
    let outgoing = Outgoing::new(queue, length.map(|length| (body, length)), trailers);
    Ok((parts, outgoing))
}

/// Writes the head of a request whose body has this length.
fn write(request: &request::Parts, length: Option<Length>, out: &mut BytesMut) {
    let path = request.uri.path_and_query().map_or("/", |path| path.as_str());
    out.reserve(request.method.as_str().len() + path.len() + fields::size(&request.headers) + 64);
    for part in [request.method.as_str(), " ", path, " HTTP/1.1\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    for (name, value) in &request.headers {
        fields::write(name, value, out);
    }
    if length == Some(Length::Chunked) {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Takes the head of the answer to `method` off `received`, once it is there. `seen` is how much of it was looked at in vain.
///
/// # Errors
///
/// What is no answer, or one whose end is ambiguous (RFC 9112 section 6.3): whoever wrote it may mean to slip a second one
/// under the next request.
pub(super) fn take(
    received: &mut BytesMut,
    seen: &mut usize,
    method: &Method,
) -> Result<Option<Head>, Error> {
    let start = received.len().min(SIGNATURE.len());
    if received[..start] != SIGNATURE[..start] {
        return Err(Error::Malformed("it begins with something else than HTTP/1"));
    }
    let end = fields::end(received, *seen);
    if end.unwrap_or(received.len()) > MAX_HEAD {
        return Err(Error::Malformed("its head is too large"));
    }
    let Some(end) = end else {
        *seen = received.len();
        return Ok(None);
    };
    *seen = 0;
    parse(&received.split_to(end).freeze(), method).map(Some)
}

fn parse(section: &Bytes, method: &Method) -> Result<Head, Error> {
    let mut room = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut parsed = httparse::Response::new(&mut room);
    match parsed.parse(section) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(Error::Malformed("its head has no end")),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Error::Malformed("it has too many header fields"));
        }
        Err(httparse::Error::Version) => return Err(Error::Malformed("its version is not one of HTTP/1")),
        Err(httparse::Error::Status) => {
            return Err(Error::Malformed("its status is no number of three digits"));
        }
        Err(_) => return Err(Error::Malformed("its head has forbidden bytes")),
    }
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or(Error::Malformed("its status is no number of three digits"))?;
    let modern = parsed.version == Some(1);
    let mut headers = fields::map(section, parsed.headers)?;
    let length = length(status, method, modern, &mut headers)?;
    let reusable = modern && length.1 && !closes(&headers);

    let (mut parts, ()) = Response::new(()).into_parts();
    parts.status = status;
    parts.version = Version::HTTP_11;
    parts.headers = headers;
    Ok(Head { parts, length: length.0, reusable })
}

/// RFC 9112 section 6.3, and whether the next answer can be told from this one.
fn length(
    status: StatusCode,
    method: &Method,
    modern: bool,
    headers: &mut HeaderMap,
) -> Result<(Length, bool), Error> {
    let bodyless = status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || method == Method::HEAD;
    if bodyless {
        return Ok((Length::Exactly(0), true));
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
        let chunked = encodings.next().is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"chunked"));
        if !modern || !chunked || encodings.next().is_some() {
            return Err(Error::Malformed("its Transfer-Encoding is not `chunked` alone"));
        }
        // Both together are what smuggling looks like: the chunks count, and nothing after them.
        return Ok((Length::Chunked, headers.remove(CONTENT_LENGTH).is_none()));
    }
    match fields::content_length(headers)? {
        Some(length) => Ok((Length::Exactly(length), true)),
        None => Ok((Length::UntilClosed, false)),
    }
}

fn closes(headers: &HeaderMap) -> bool {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(fields::tokens)
        .any(|token| token.eq_ignore_ascii_case(b"close"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, method: Method) -> Result<Option<(u16, Length, bool)>, String> {
        let mut received = BytesMut::from(text);
        let head = take(&mut received, &mut 0, &method).map_err(|error| error.to_string())?;
        Ok(head.map(|head| (head.parts.status.as_u16(), head.length, head.reusable)))
    }

    fn get(text: &str) -> Option<(u16, Length, bool)> {
        read(text, Method::GET).unwrap()
    }

    #[test]
    fn an_answer_says_how_long_its_body_is() {
        use Length::{Chunked, Exactly, UntilClosed};

        for (text, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", (200, Exactly(5), true)),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\ncontent-length: 5\r\n\r\n", (200, Exactly(5), true)),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n", (200, Chunked, true)),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
                (200, Chunked, false),
            ),
            ("HTTP/1.1 200 OK\r\n\r\n", (200, UntilClosed, false)),
            ("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", (200, Exactly(0), true)),
            ("HTTP/1.1 204 No Content\r\n\r\n", (204, Exactly(0), true)),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", (304, Exactly(0), true)),
            ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", (101, Exactly(0), true)),
            (
                "HTTP/1.1 200 OK\r\nConnection: x, CLOSE\r\nContent-Length: 5\r\n\r\n",
                (200, Exactly(5), false),
            ),
            (
                "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\n",
                (200, Exactly(5), false),
            ),
            ("HTTP/1.1 200 OK\nContent-Length: 5\n\n", (200, Exactly(5), true)),
        ] {
            assert_eq!(get(text), Some(expected), "{text}");
        }
        let head = read("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Method::HEAD);
        assert_eq!(head, Ok(Some((200, Exactly(0), true))));
    }

    #[test]
    fn what_is_ambiguous_is_no_answer() {
        for (text, expected) in [
            ("SSH-2.0-OpenSSH_9.6\r\n", "something else than HTTP/1"),
            ("\u{15}\u{3}", "something else than HTTP/1"),
            ("HTTP/1.7 200 OK\r\n\r\n", "version"),
            ("HTTP/1.1 two hundred\r\n\r\n", "status"),
            ("HTTP/1.1 099 x\r\n\r\n", "status"),
            ("HTTP/1.1 200 OK\r\nA B: c\r\n\r\n", "forbidden bytes"),
            ("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "forbidden bytes"),
            ("HTTP/1.1 200 OK\r\nA: b\u{0}\r\n\r\n", "forbidden bytes"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "Content-Length"),
            ("HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n", "Content-Length"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n", "Content-Length"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", "Content-Length"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "Transfer-Encoding"),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n",
                "Transfer-Encoding",
            ),
            ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "Transfer-Encoding"),
        ] {
            let error = read(text, Method::GET).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(MAX_FIELDS + 1));
        assert!(read(&many, Method::GET).unwrap_err().contains("too many"));
        let large = format!("HTTP/1.1 200 OK\r\nA: {}", "b".repeat(MAX_HEAD));
        assert!(read(&large, Method::GET).unwrap_err().contains("too large"));
    }

    #[test]
    fn a_head_may_come_byte_by_byte_and_what_follows_stays() {
        let text = b"HTTP/1.1 200 OK\r\nA: b\r\nA: c\r\n\r\nbody";
        let (mut received, mut seen) = (BytesMut::new(), 0);
        for (index, byte) in text.iter().enumerate() {
            received.extend_from_slice(&[*byte]);
            if let Some(head) = take(&mut received, &mut seen, &Method::GET).unwrap() {
                assert_eq!(index, text.len() - "body".len() - 1);
                assert_eq!(head.parts.headers.get_all("a").iter().collect::<Vec<_>>(), ["b", "c"]);
                received.extend_from_slice(&text[index + 1..]);
                break;
            }
        }
        assert_eq!((&received[..], seen), (&b"body"[..], 0));
    }

    #[test]
    fn a_request_is_written_as_it_is() {
        let request = Request::post("/a%2fb//c?x=%20")
            .header("host", "h")
            .header("x", "\u{1}é".as_bytes().get(1..).unwrap());
        let (request, ()) = request.body(()).unwrap().into_parts();
        let mut out = BytesMut::new();
        write(&request, Some(Length::Chunked), &mut out);
        let expected =
            "POST /a%2fb//c?x=%20 HTTP/1.1\r\nhost: h\r\nx: é\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(std::str::from_utf8(&out).unwrap(), expected);
    }
}
