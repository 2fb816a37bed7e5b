//! The head of a request, read by a server. Pure.

use std::mem::{self, MaybeUninit};

use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version,
    header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRANSFER_ENCODING},
};
use memchr::memchr_iter;

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
    let end = end(received, *seen)?;
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

/// Where a head ends. Some take a bare line feed for the end of a line, and some do not (RFC 9112 section 2.2): nobody sends one
/// without a reason.
fn end(bytes: &[u8], seen: usize) -> Result<Option<usize>, Refused> {
    for found in memchr_iter(b'\n', &bytes[seen..]) {
        let line = &bytes[..seen + found];
        let Some(line) = line.strip_suffix(b"\r") else {
            return Err(Refused::Malformed("a line of the request's head ends without a carriage return"));
        };
        if line.ends_with(b"\r\n") {
            return Ok(Some(seen + found + 1));
        }
    }
    Ok(None)
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
