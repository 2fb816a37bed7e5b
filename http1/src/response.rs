//! The head of an answer, written by a server. Pure.

use bytes::{BufMut as _, BytesMut};
use http::{
    HeaderName, Method, StatusCode, Version,
    header::{CONNECTION, CONTENT_LENGTH, DATE, TRAILER, TRANSFER_ENCODING},
    response::Parts,
};
use http_body::Body;

use crate::{Length, fields};

/// What of a request decides how its answer is written.
#[derive(Clone, Debug)]
pub struct Asked {
    /// How.
    pub method: Method,
    /// By whom: an old client understands no chunks.
    pub version: Version,
    /// Whether another request may follow.
    pub persistent: bool,
    /// Whether trailers are taken.
    pub trailers: bool,
}

/// How an answer goes on after its head.
#[derive(Debug, PartialEq, Eq)]
pub struct Written {
    /// How the body is written; `None` if none may follow.
    pub body: Option<Length>,
    /// Whether another request may follow.
    pub persistent: bool,
    /// The trailers that may follow the body.
    pub trailers: Vec<HeaderName>,
}

/// Writes the head of an answer with this body. `date` is written if the answer has none.
pub fn write(head: &Parts, body: &impl Body, asked: &Asked, date: &[u8], out: &mut BytesMut) -> Written {
    let headers = &head.headers;
    let status = match head.status {
        StatusCode::SWITCHING_PROTOCOLS => StatusCode::SWITCHING_PROTOCOLS,
        // An answer it is not: the caller would wait for another.
        status if status.is_informational() => StatusCode::BAD_GATEWAY,
        status => status,
    };
    out.reserve(64 * headers.len() + 192);
    write_status(status, asked.version, out);
    let (mut dated, mut trailing, mut sized) = (false, false, false);
    for (name, value) in headers {
        match *name {
            // Said below, as it is.
            CONTENT_LENGTH => sized = true,
            TRAILER => trailing = true,
            TRANSFER_ENCODING => {}
            CONNECTION if status != StatusCode::SWITCHING_PROTOCOLS => {}
            _ => {
                dated |= *name == DATE;
                fields::write(name, value, out);
            }
        }
    }
    // One that is none is not passed on: two readers would disagree where the answer ends.
    let said = if sized { fields::content_length(headers).unwrap_or_default() } else { None };
    let length = length(status, said, body, asked);
    let bodyless = is_bodyless(status) || asked.method == Method::HEAD;
    let persistent = asked.persistent
        && status != StatusCode::SWITCHING_PROTOCOLS
        && (bodyless || length != Some(Length::UntilClosed));
    let mut trailers = Vec::new();
    if trailing && length == Some(Length::Chunked) {
        headers.get_all(TRAILER).iter().for_each(|value| fields::write(&TRAILER, value, out));
        if asked.trailers {
            trailers = fields::announced(headers);
        }
    }
    match length {
        Some(Length::Exactly(length)) => {
            out.put_slice(b"content-length: ");
            out.put_slice(itoa::Buffer::new().format(length).as_bytes());
            out.put_slice(b"\r\n");
        }
        Some(Length::Chunked) => out.put_slice(b"transfer-encoding: chunked\r\n"),
        _ => {}
    }
    match (persistent, asked.version) {
        _ if status == StatusCode::SWITCHING_PROTOCOLS => {}
        (false, Version::HTTP_11) => out.put_slice(b"connection: close\r\n"),
        (true, Version::HTTP_10) => out.put_slice(b"connection: keep-alive\r\n"),
        _ => {}
    }
    if !dated {
        out.put_slice(b"date: ");
        out.put_slice(date);
        out.put_slice(b"\r\n");
    }
    out.put_slice(b"\r\n");

    Written { body: length.filter(|_| !bodyless), persistent, trailers }
}

fn write_status(status: StatusCode, version: Version, out: &mut BytesMut) {
    out.put_slice(if version == Version::HTTP_10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
    out.put_slice(status.as_str().as_bytes());
    out.put_slice(b" ");
    out.put_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.put_slice(b"\r\n");
}

/// RFC 9112 section 6.3.
fn is_bodyless(status: StatusCode) -> bool {
    status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// How long the body is, or would be, were it not for [`Method::HEAD`]. `None`: that is not said.
fn length(status: StatusCode, said: Option<u64>, body: &impl Body, asked: &Asked) -> Option<Length> {
    if is_bodyless(status) {
        return None;
    }
    let known = match body.is_end_stream() {
        // A body that was left out has no length of its own.
        true if asked.method == Method::HEAD => None,
        true => Some(0),
        false => body.size_hint().exact(),
    };
    match said.or(known) {
        Some(length) => Some(Length::Exactly(length)),
        None if asked.method == Method::HEAD => None,
        None if asked.version == Version::HTTP_10 => Some(Length::UntilClosed),
        None => Some(Length::Chunked),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Response;
    use http_body_util::{BodyExt as _, Empty, Full, combinators::UnsyncBoxBody};

    use super::*;

    type AnyBody = UnsyncBoxBody<Bytes, std::convert::Infallible>;

    fn none() -> AnyBody {
        Empty::new().boxed_unsync()
    }

    fn known() -> AnyBody {
        Full::new(Bytes::from_static(b"hello")).boxed_unsync()
    }

    fn unknown() -> AnyBody {
        Unknown.boxed_unsync()
    }

    /// Does not say how long it is.
    struct Unknown;

    impl Body for Unknown {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
            std::task::Poll::Ready(None)
        }
    }

    /// The head without its first and last line, and how it goes on.
    fn written(
        asked: (&str, Version),
        status: u16,
        fields: &[(&str, &str)],
        body: AnyBody,
    ) -> (String, Option<Length>, bool) {
        let mut response = Response::builder().status(status);
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        let (head, ()) = response.body(()).unwrap().into_parts();
        let (method, version) = (asked.0.parse().unwrap(), asked.1);
        let asked = Asked { method, version, persistent: version == Version::HTTP_11, trailers: false };
        let mut out = BytesMut::new();
        let written = write(&head, &body, &asked, b"now", &mut out);
        let text = String::from_utf8(out.to_vec()).unwrap();
        let fields = text.split_once("\r\n").unwrap().1.strip_suffix("date: now\r\n\r\n").unwrap();
        (fields.replace("\r\n", ";"), written.body, written.persistent)
    }

    #[test]
    fn an_answer_is_framed_as_its_reader_understands_it() {
        use Length::{Chunked, Exactly, UntilClosed};

        let (get, head, old) =
            (("GET", Version::HTTP_11), ("HEAD", Version::HTTP_11), ("GET", Version::HTTP_10));
        let said = &[("content-length", "5")][..];
        for (asked, status, fields, body, expected) in [
            (get, 200, &[][..], none(), ("content-length: 0;", Some(Exactly(0)), true)),
            (get, 200, &[], known(), ("content-length: 5;", Some(Exactly(5)), true)),
            (get, 200, &[], unknown(), ("transfer-encoding: chunked;", Some(Chunked), true)),
            (get, 200, said, unknown(), ("content-length: 5;", Some(Exactly(5)), true)),
            // It will be found out, and the connection broken.
            (get, 200, said, none(), ("content-length: 5;", Some(Exactly(5)), true)),
            (
                get,
                200,
                &[("content-length", "5x")],
                unknown(),
                ("transfer-encoding: chunked;", Some(Chunked), true),
            ),
            (
                get,
                200,
                &[("transfer-encoding", "gzip"), ("connection", "x")],
                known(),
                ("content-length: 5;", Some(Exactly(5)), true),
            ),
            (old, 200, &[], unknown(), ("", Some(UntilClosed), false)),
            (old, 200, &[], known(), ("content-length: 5;", Some(Exactly(5)), false)),
            (head, 200, said, none(), ("content-length: 5;", None, true)),
            (head, 200, &[], none(), ("", None, true)),
            (head, 200, &[], unknown(), ("", None, true)),
            (get, 204, &[("content-length", "0")], none(), ("", None, true)),
            (get, 304, said, unknown(), ("", None, true)),
            (
                get,
                101,
                &[("connection", "upgrade"), ("upgrade", "x")],
                none(),
                ("connection: upgrade;upgrade: x;", None, false),
            ),
            (get, 200, &[("trailer", "a")], known(), ("content-length: 5;", Some(Exactly(5)), true)),
            (
                get,
                200,
                &[("trailer", "a")],
                unknown(),
                ("trailer: a;transfer-encoding: chunked;", Some(Chunked), true),
            ),
        ] {
            let (text, length, persistent) = written(asked, status, fields, body);
            assert_eq!((text.as_str(), length, persistent), expected, "{asked:?} {status} {fields:?}");
        }
    }

    #[test]
    fn a_head_begins_with_what_happened() {
        for (version, status, expected) in [
            (Version::HTTP_11, 200, "HTTP/1.1 200 OK\r\n"),
            (Version::HTTP_10, 404, "HTTP/1.0 404 Not Found\r\n"),
            (Version::HTTP_11, 299, "HTTP/1.1 299 \r\n"),
            // The caller would wait for another.
            (Version::HTTP_11, 103, "HTTP/1.1 502 Bad Gateway\r\n"),
        ] {
            let (head, ()) = Response::builder().status(status).body(()).unwrap().into_parts();
            let asked = Asked { method: Method::GET, version, persistent: true, trailers: false };
            let mut out = BytesMut::new();
            write(&head, &none(), &asked, b"now", &mut out);
            assert!(out.starts_with(expected.as_bytes()), "{out:?}");
        }
    }

    #[test]
    fn trailers_are_announced_and_wanted() {
        let (head, ()) = Response::builder()
            .header("trailer", "a, B")
            .header("trailer", "c")
            .body(())
            .unwrap()
            .into_parts();
        for (trailers, expected) in [(true, &["a", "b", "c"][..]), (false, &[])] {
            let asked = Asked { method: Method::GET, version: Version::HTTP_11, persistent: true, trailers };
            let written = write(&head, &unknown(), &asked, b"now", &mut BytesMut::new());
            assert_eq!(written.trailers, expected);
        }
    }
}
