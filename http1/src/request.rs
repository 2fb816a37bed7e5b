//! The head of a request, read by a server. Pure.

use std::mem::{self, MaybeUninit};

use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version,
    header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRANSFER_ENCODING},
};

use crate::{
    Length,
    fields::{self, field_of, tokens},
};

/// As many fields are read without asking for memory.
const USUAL_FIELDS: usize = 100;

/// The longest target that [`Uri`] takes.
const MAX_TARGET: usize = u16::MAX as usize - 1;

/// What one head may have.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Its bytes.
    pub bytes: usize,
    /// Its fields.
    pub fields: usize,
}

/// A request, and what its head says to the server.
#[derive(Debug)]
pub struct Head {
    /// The request. Its fields share the bytes that were received.
    pub request: Request<()>,
    /// How long its body is: never [`Length::UntilClosed`].
    pub length: Length,
    /// Whether another request may follow on the connection (RFC 9112 section 9.3).
    pub persistent: bool,
    /// Whether the body waits for a `100 Continue`.
    pub expects: bool,
    /// Whether trailers are taken in the answer (RFC 9110 section 10.1.4).
    pub trailers: bool,
}

/// A head that is not served. What follows it on its connection cannot be told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is no head, or one that might be read in another way by somebody else.
    #[error("{0}")]
    Malformed(&'static str),
    /// Beyond the limits.
    #[error("{0}")]
    TooLarge(&'static str),
}

/// Takes the head of a request off `received`, once it is there. `seen` is how much of it was looked at in vain; `spare` is room
/// for its fields.
///
/// # Errors
///
/// What is no request, or an ambiguous one.
pub fn take(
    received: &mut BytesMut,
    seen: &mut usize,
    limits: Limits,
    spare: &mut HeaderMap,
) -> Result<Option<Head>, Refused> {
    // RFC 9112 section 2.2: some clients say one line more than they should.
    while received.starts_with(b"\r\n") {
        let _ = received.split_to(2);
        *seen = 0;
    }
    if received.first().is_some_and(|first| !first.is_ascii_graphic() && *first != b'\r') {
        return Err(Refused::Malformed("the connection does not begin with a request of HTTP/1.1"));
    }
    let end = fields::strict_end(received, *seen);
    let end =
        end.map_err(|_| Refused::Malformed("a line of the request's head ends without a carriage return"))?;
    if end.unwrap_or(received.len()) > limits.bytes {
        return Err(Refused::TooLarge("the request's line and header fields are too large"));
    }
    let Some(end) = end else {
        *seen = received.len();
        return Ok(None);
    };
    *seen = 0;
    let section = received.split_to(end).freeze();
    let mut usual = [const { MaybeUninit::uninit() }; USUAL_FIELDS];
    match parse(&section, &mut usual, spare) {
        Err(Refused::TooLarge(_)) if limits.fields > USUAL_FIELDS => {
            parse(&section, Vec::with_capacity(limits.fields).spare_capacity_mut(), spare)
        }
        parsed => parsed,
    }
    .map(Some)
}

fn parse<'a>(
    section: &'a Bytes,
    room: &mut [MaybeUninit<httparse::Header<'a>>],
    spare: &mut HeaderMap,
) -> Result<Head, Refused> {
    use Refused::{Malformed, TooLarge};

    let mut parsed = httparse::Request::new(&mut []);
    match parsed.parse_with_uninit_headers(section, room) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(Malformed("the request's head has no end")),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(TooLarge("the request has too many header fields"));
        }
        Err(httparse::Error::Version) => {
            return Err(Malformed("the request's version is neither HTTP/1.0 nor HTTP/1.1"));
        }
        Err(_) => return Err(Malformed("the request's head has forbidden bytes")),
    }
    let target = parsed.path.unwrap_or_default().as_bytes();
    if target.len() > MAX_TARGET {
        return Err(TooLarge("the request's target is too long"));
    }
    let uri = Uri::from_maybe_shared(section.slice_ref(target));
    let uri = uri.map_err(|_| Malformed("the request's target is none of HTTP/1.1"))?;
    let method = Method::from_bytes(parsed.method.unwrap_or_default().as_bytes());
    let method = method.map_err(|_| Malformed("the request's method is none"))?;

    let modern = parsed.version == Some(1);
    let mut said = Said::default();
    let mut headers = mem::take(spare);
    headers.reserve(parsed.headers.len());
    for field in parsed.headers.iter() {
        let field = field_of(section, field);
        let (name, value) = field.ok_or(Malformed("the request's head has forbidden bytes"))?;
        if said.hear(&name, &value, modern)? {
            headers.append(name, value);
        }
    }
    if modern && !said.host {
        // RFC 9112 section 3.2.
        return Err(Malformed("the request has no Host"));
    }
    let length = match (said.chunked, said.length) {
        // RFC 9112 section 6.3 lets the coding win. Whoever sends both hopes that somebody thinks otherwise.
        (true, Some(_)) => {
            return Err(Malformed("the request has both Content-Length and Transfer-Encoding"));
        }
        (true, None) => Length::Chunked,
        (false, length) => Length::Exactly(length.unwrap_or(0)),
    };

    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.version_mut() = if modern { Version::HTTP_11 } else { Version::HTTP_10 };
    *request.headers_mut() = headers;
    Ok(Head {
        request,
        length,
        persistent: !said.close && (modern || said.keep_alive),
        expects: said.expects && modern && length != Length::Exactly(0),
        trailers: said.trailers,
    })
}

/// What the fields say to a server, whatever is behind it.
#[derive(Default)]
struct Said {
    length: Option<u64>,
    chunked: bool,
    host: bool,
    close: bool,
    keep_alive: bool,
    expects: bool,
    trailers: bool,
}

impl Said {
    /// False if the field says again what was said.
    fn hear(&mut self, name: &HeaderName, value: &HeaderValue, modern: bool) -> Result<bool, Refused> {
        let is = |value: &[u8], word: &str| value.eq_ignore_ascii_case(word.as_bytes());
        match *name {
            HOST => self.host = true,
            CONTENT_LENGTH => {
                let length = fields::length(value);
                let length = length.ok_or(Refused::Malformed("the request's Content-Length is no number"))?;
                match self.length.replace(length) {
                    None => {}
                    Some(before) if before == length => return Ok(false),
                    Some(_) => return Err(Refused::Malformed("the request has several Content-Length")),
                }
            }
            TRANSFER_ENCODING if !modern => {
                return Err(Refused::Malformed("HTTP/1.0 knows no Transfer-Encoding (RFC 9112 section 6.1)"));
            }
            // With another coding before it, the body would be passed on as something that it is not.
            TRANSFER_ENCODING if self.chunked || !is(value.as_bytes(), "chunked") => {
                return Err(Refused::Malformed("Transfer-Encoding may only be chunked, once"));
            }
            TRANSFER_ENCODING => self.chunked = true,
            CONNECTION => {
                self.close |= tokens(value).any(|token| is(token, "close"));
                self.keep_alive |= tokens(value).any(|token| is(token, "keep-alive"));
            }
            EXPECT => self.expects = is(value.as_bytes(), "100-continue"),
            TE => self.trailers |= tokens(value).any(|token| is(token, "trailers")),
            _ => {}
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { bytes: 1000, fields: 100 };

    fn read(text: &str) -> Result<Head, String> {
        let mut received = BytesMut::from(text);
        let head = take(&mut received, &mut 0, LIMITS, &mut HeaderMap::new());
        head.map_err(|refused| refused.to_string())?.ok_or_else(|| "not whole".to_owned())
    }

    #[test]
    fn a_request_says_what_follows_its_head() {
        use Length::{Chunked, Exactly};

        for (fields, length, persistent, expects, trailers) in [
            ("", Exactly(0), true, false, false),
            ("Content-Length: 5\r\n", Exactly(5), true, false, false),
            ("Content-Length: 5\r\ncontent-length: 5\r\n", Exactly(5), true, false, false),
            (
                "Content-Length: 9999999999999999999\r\n",
                Exactly(9_999_999_999_999_999_999),
                true,
                false,
                false,
            ),
            ("Transfer-Encoding: Chunked\r\n", Chunked, true, false, false),
            ("Connection: x, CLOSE\r\n", Exactly(0), false, false, false),
            ("Connection: close\r\nConnection: keep-alive\r\n", Exactly(0), false, false, false),
            ("Content-Length: 1\r\nExpect: 100-Continue\r\n", Exactly(1), true, true, false),
            ("Expect: 100-continue\r\n", Exactly(0), true, false, false),
            ("Content-Length: 1\r\nExpect: tea\r\n", Exactly(1), true, false, false),
            ("TE: gzip, Trailers\r\n", Exactly(0), true, false, true),
        ] {
            let head = read(&format!("POST /a?b HTTP/1.1\r\nHost: kas\r\n{fields}\r\n")).unwrap();
            let said = (head.length, head.persistent, head.expects, head.trailers);
            assert_eq!(said, (length, persistent, expects, trailers), "{fields}");
            assert_eq!(head.request.uri(), "/a?b");
            assert!(head.request.headers().get_all("content-length").iter().count() <= 1);
        }
        let old = |fields| read(&format!("GET / HTTP/1.0\r\n{fields}\r\n")).unwrap();
        assert!(!old("").persistent && old("Connection: Keep-Alive\r\n").persistent);
        assert!(!old("Content-Length: 1\r\nExpect: 100-continue\r\n").expects);
        for target in ["*", "/", "/a%2fb//c?x=%20", "http://other/x", "kas:443"] {
            let head = read(&format!("OPTIONS {target} HTTP/1.1\r\nHost:\r\nX: \u{e9}\r\n\r\n")).unwrap();
            assert_eq!(head.request.uri().to_string().trim_end_matches('/'), target.trim_end_matches('/'));
        }
    }

    /// Request smuggling: each of these is one request to some servers, and two to others.
    #[test]
    fn what_is_ambiguous_is_refused() {
        for (fields, expected) in [
            ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "both"),
            ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "both"),
            ("Content-Length: 5\r\nContent-Length: 6\r\n", "several"),
            ("Content-Length: 5, 5\r\n", "no number"),
            ("Content-Length: +5\r\n", "no number"),
            ("Content-Length: -5\r\n", "no number"),
            ("Content-Length: 0x5\r\n", "no number"),
            ("Content-Length: 5 6\r\n", "no number"),
            ("Content-Length:\r\n", "no number"),
            ("Content-Length: 18446744073709551616\r\n", "no number"),
            ("Content-Length: 00000000000000000005\r\n", "no number"),
            ("Transfer-Encoding: gzip, chunked\r\n", "only be chunked"),
            ("Transfer-Encoding: chunked, identity\r\n", "only be chunked"),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "only be chunked"),
            ("Transfer-Encoding: identity\r\n", "only be chunked"),
            ("Transfer-Encoding: xchunked\r\n", "only be chunked"),
            ("Transfer-Encoding: \"chunked\"\r\n", "only be chunked"),
            ("Transfer-Encoding: chunked;q=1\r\n", "only be chunked"),
            ("Transfer-Encoding:\r\n", "only be chunked"),
            ("Transfer-Encoding:\u{b}chunked\r\n", "forbidden"),
            ("Transfer-Encoding : chunked\r\n", "forbidden"),
            ("Transfer-Encoding\t: chunked\r\n", "forbidden"),
            ("Transfer-Encoding:\r\n chunked\r\n", "forbidden"),
            (" Transfer-Encoding: chunked\r\n", "forbidden"),
            ("A: b\rTransfer-Encoding: chunked\r\n", "forbidden"),
            ("A: b\nTransfer-Encoding: chunked\r\n", "carriage return"),
            ("A: b\0\r\n", "forbidden"),
            ("A: b\u{7f}\r\n", "forbidden"),
            ("A\r\n", "forbidden"),
            (": b\r\n", "forbidden"),
            ("A(: b\r\n", "forbidden"),
        ] {
            let refused = read(&format!("POST / HTTP/1.1\r\nHost: kas\r\n{fields}\r\n")).unwrap_err();
            assert!(refused.contains(expected), "{fields}: {refused}");
        }
        for (text, expected) in [
            ("GET / HTTP/1.1\r\n\r\n", "no Host"),
            ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.0"),
            ("GET / HTTP/1.1\nHost: kas\n\n", "carriage return"),
            ("\nGET / HTTP/1.1\r\nHost: kas\r\n\r\n", "does not begin"),
            (" GET / HTTP/1.1\r\nHost: kas\r\n\r\n", "does not begin"),
            ("\u{16}\u{3}\u{1}", "does not begin"),
            ("GET / HTTP/1.2\r\nHost: kas\r\n\r\n", "version"),
            ("GET / http/1.1\r\nHost: kas\r\n\r\n", "version"),
            ("GET /\r\nHost: kas\r\n\r\n", "forbidden"),
            ("GET  / HTTP/1.1\r\nHost: kas\r\n\r\n", "forbidden"),
            ("GET / HTTP/1.1 \r\nHost: kas\r\n\r\n", "forbidden"),
            ("G(T / HTTP/1.1\r\nHost: kas\r\n\r\n", "forbidden"),
            ("GET http:// HTTP/1.1\r\nHost: kas\r\n\r\n", "target"),
            ("\rGET / HTTP/1.1\r\nHost: kas\r\n\r\n", "forbidden"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(expected), "{text}: {refused}");
        }
    }

    #[test]
    fn a_head_may_come_byte_by_byte_and_what_follows_stays() {
        let text = b"\r\n\r\nGET / HTTP/1.1\r\nHost: kas\r\nA: b\r\nA: c\r\n\r\n\r\nbody";
        let (mut received, mut seen, mut taken) = (BytesMut::new(), 0, None);
        for (index, byte) in text.iter().enumerate() {
            received.extend_from_slice(&[*byte]);
            if taken.is_none() {
                taken = take(&mut received, &mut seen, LIMITS, &mut HeaderMap::new()).unwrap();
                assert_eq!(taken.is_some(), index + 1 == text.len() - "\r\nbody".len());
            }
        }
        let head = taken.unwrap();
        assert_eq!(head.request.headers().get_all("a").iter().collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!((&received[..], seen), (&b"\r\nbody"[..], 0));
    }

    #[test]
    fn a_head_has_so_many_bytes_and_fields_and_no_more() {
        let with = |limits: Limits, text: &str| {
            let taken = take(&mut BytesMut::from(text), &mut 0, limits, &mut HeaderMap::new());
            taken.map(|head| head.map(|head| head.request.headers().len()))
        };
        let sized = |bytes: usize| {
            let start = "GET / HTTP/1.1\r\nHost: kas\r\nA: ";
            format!("{start}{}\r\n\r\n", "b".repeat(bytes - start.len() - 4))
        };
        assert_eq!(with(LIMITS, &sized(1000)), Ok(Some(2)));
        assert!(matches!(with(LIMITS, &sized(1001)), Err(Refused::TooLarge(_))));
        // Before its end is there.
        assert!(matches!(with(LIMITS, &sized(1100)[..1001]), Err(Refused::TooLarge(_))));

        let many =
            |fields: usize| format!("GET / HTTP/1.1\r\nHost: kas\r\n{}\r\n", "A: b\r\n".repeat(fields - 1));
        for (limit, fields, fits) in
            [(100, 100, true), (100, 101, false), (300, 300, true), (300, 301, false)]
        {
            let limits = Limits { bytes: 1 << 20, fields: limit };
            assert_eq!(with(limits, &many(fields)).is_ok(), fits, "{fields} of {limit}");
        }
        let target = |length: usize| format!("GET /{} HTTP/1.1\r\nHost: kas\r\n\r\n", "x".repeat(length - 1));
        let limits = Limits { bytes: 1 << 20, fields: 100 };
        assert!(with(limits, &target(MAX_TARGET)).is_ok());
        assert!(matches!(with(limits, &target(MAX_TARGET + 1)), Err(Refused::TooLarge(_))));
    }
}
