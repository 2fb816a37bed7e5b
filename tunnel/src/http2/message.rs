//! Heads of requests and responses, and the fields that they are in HTTP/2 (RFC 9113 section 8).

use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri,
    header::{CONNECTION, CONTENT_LENGTH, HOST, TE, TRANSFER_ENCODING, UPGRADE},
    request, response,
    uri::PathAndQuery,
};

use super::hpack::{Encoder, Field, Pseudo};

/// Fields that most heads stay below.
const USUAL: usize = 16;

/// How far beyond its limit a head may go before it is an attack on whoever unpacks it.
const ATTACK: usize = 8;

/// A head as it is unpacked, field by field. Never larger than its limit.
#[derive(Debug)]
pub(super) struct Incoming {
    limit: usize,
    size: usize,
    malformed: Option<&'static str>,
    method: Option<Bytes>,
    path: Option<Bytes>,
    scheme: bool,
    authority: bool,
    protocol: Option<Bytes>,
    status: Option<Bytes>,
    headers: HeaderMap,
}

/// What is wrong with a head, for whoever sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// It is no message of HTTP/2.
    Malformed(&'static str),
    /// It is larger than it may be.
    TooLarge,
}

/// What kind of head a block was.
pub(super) enum Kind {
    Request,
    Response,
    Trailers,
}

impl Incoming {
    /// A head of at most so many bytes, counted as RFC 9113 section 6.5.2 does.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            size: 0,
            malformed: None,
            method: None,
            path: None,
            scheme: false,
            authority: false,
            protocol: None,
            status: None,
            headers: HeaderMap::new(),
        }
    }

    /// One more field.
    pub(super) fn field(&mut self, field: Field) {
        self.size = self.size.saturating_add(field.size());
        // Unpacked all the same, or what follows on the connection would mean something else.
        if self.size > self.limit || self.malformed.is_some() {
            return;
        }
        self.malformed = match field {
            Field::Header(name, value) => self.header(name, value).err(),
            Field::Pseudo(pseudo, value) => self.pseudo(pseudo, value).err(),
            Field::Bad { .. } => Some("a field has a name or a value that HTTP does not know"),
        };
    }

    /// So large that it must be meant badly.
    pub(super) fn is_attack(&self) -> bool {
        self.size / ATTACK > self.limit
    }

    /// What it says it is.
    pub(super) fn kind(&self) -> Kind {
        match (&self.status, &self.method) {
            (Some(_), _) => Kind::Response,
            (None, Some(_)) => Kind::Request,
            (None, None) => Kind::Trailers,
        }
    }

    fn header(&mut self, name: HeaderName, value: HeaderValue) -> Result<(), &'static str> {
        if is_about_connection(&name) || name == TE && value != "trailers" {
            return Err("a field is about the connection");
        }
        if self.headers.is_empty() {
            self.headers.reserve(USUAL);
        }
        self.headers.try_append(name, value).map(drop).map_err(|_| "there are too many fields")
    }

    fn pseudo(&mut self, pseudo: Pseudo, value: Bytes) -> Result<(), &'static str> {
        if !self.headers.is_empty() {
            return Err("a pseudo field comes after the others");
        }
        let twice = match pseudo {
            Pseudo::Method => self.method.replace(value).is_some(),
            Pseudo::Path => self.path.replace(value).is_some(),
            Pseudo::Protocol => self.protocol.replace(value).is_some(),
            Pseudo::Status => self.status.replace(value).is_some(),
            Pseudo::Scheme => std::mem::replace(&mut self.scheme, true),
            Pseudo::Authority => std::mem::replace(&mut self.authority, true),
        };
        if twice { Err("a pseudo field comes twice") } else { Ok(()) }
    }

    fn check(&self) -> Result<(), Wrong> {
        match self.malformed {
            Some(what) => Err(Wrong::Malformed(what)),
            None if self.size > self.limit => Err(Wrong::TooLarge),
            None => Ok(()),
        }
    }

    /// The head of a request. Its scheme and authority are there because HTTP/2 wants some; who serves it knows the real
    /// ones, and they are left out. An extended CONNECT has its protocol in the extensions.
    pub(super) fn request(self) -> Result<request::Parts, Wrong> {
        self.check()?;
        if self.status.is_some() {
            return Err(Wrong::Malformed("a request has a status"));
        }
        let method = self.method.and_then(|method| Method::from_bytes(&method).ok());
        let path = self.path.and_then(|path| PathAndQuery::from_maybe_shared(path).ok());
        // RFC 9113 section 8.3.1.
        let path = path.filter(|path| path.as_str().starts_with('/') || path == "*");
        let (Some(method), Some(path)) = (method, path) else {
            return Err(Wrong::Malformed("a request has no method or no path"));
        };
        let (mut head, ()) = http::Request::new(()).into_parts();
        if let Some(protocol) = self.protocol {
            let protocol = HeaderValue::from_maybe_shared(protocol);
            if method != Method::CONNECT {
                return Err(Wrong::Malformed("only CONNECT has a protocol"));
            }
            head.extensions
                .insert(Protocol(protocol.map_err(|_| Wrong::Malformed("a protocol is no name"))?));
        }
        head.method = method;
        head.uri = Uri::from(path);
        head.headers = self.headers;
        Ok(head)
    }

    /// The head of a response.
    pub(super) fn response(self) -> Result<response::Parts, Wrong> {
        self.check()?;
        let request = self.method.is_some() || self.path.is_some() || self.protocol.is_some();
        if request || self.scheme || self.authority {
            return Err(Wrong::Malformed("a response has a field of a request"));
        }
        let status = self.status.and_then(|status| StatusCode::from_bytes(&status).ok());
        // RFC 9113 section 8.6: HTTP/2 has no 101.
        let Some(status) = status.filter(|status| *status != StatusCode::SWITCHING_PROTOCOLS) else {
            return Err(Wrong::Malformed("a response has no status, or one that HTTP/2 does not know"));
        };
        let (mut head, ()) = http::Response::new(()).into_parts();
        head.status = status;
        head.headers = self.headers;
        Ok(head)
    }

    /// Fields after a body.
    pub(super) fn trailers(self) -> Result<HeaderMap, Wrong> {
        self.check()?;
        let pseudo = self.method.is_some() || self.path.is_some() || self.protocol.is_some();
        if pseudo || self.scheme || self.authority || self.status.is_some() {
            return Err(Wrong::Malformed("a pseudo field comes after a body"));
        }
        Ok(self.headers)
    }
}

/// The protocol of an extended CONNECT (RFC 8441), in a request's extensions.
#[derive(Clone, Debug)]
pub(crate) struct Protocol(pub(crate) HeaderValue);

/// How long the body says it is; `Err` if it says nonsense or different things (RFC 9110 section 8.6).
pub(super) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Wrong> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = values.next() else { return Ok(None) };
    let digits = |value: &HeaderValue| {
        let digits = value.as_bytes().iter().all(u8::is_ascii_digit);
        value.to_str().ok().filter(|_| digits).and_then(|text| text.parse().ok())
    };
    match digits(first) {
        Some(length) if values.all(|other| other == first) => Ok(Some(length)),
        _ => Err(Wrong::Malformed("a Content-Length is no length")),
    }
}

/// Packs the head of a request; an upgrade's as extended CONNECT, whose protocol is given.
pub(super) fn pack_request(
    encoder: &mut Encoder,
    out: &mut BytesMut,
    head: &request::Parts,
    upgrade: Option<&str>,
) {
    encoder.begin(out);
    let path = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    // RFC 9110 section 4.2.3: a path that is empty is that of the root.
    let path = if path.is_empty() { "/" } else { path };
    let Some(protocol) = upgrade else {
        encoder.request(out, head.method.as_str(), path, None);
        return pack_headers(encoder, out, &head.headers, &[HOST]);
    };
    encoder.request(out, Method::CONNECT.as_str(), path, Some(protocol));
    pack_headers(encoder, out, &head.headers, &[HOST, CONTENT_LENGTH]);
    let method = HeaderValue::from_str(head.method.as_str()).expect("a method is a token");
    encoder.header(out, &proto::header::UPGRADE_METHOD, &method);
}

/// Packs the head of a response.
pub(super) fn pack_response(encoder: &mut Encoder, out: &mut BytesMut, head: &response::Parts) {
    encoder.begin(out);
    encoder.status(out, head.status);
    pack_headers(encoder, out, &head.headers, &[]);
}

/// Packs what comes after a body.
pub(super) fn pack_trailers(encoder: &mut Encoder, out: &mut BytesMut, trailers: &HeaderMap) {
    encoder.begin(out);
    pack_headers(encoder, out, trailers, &[]);
}

fn pack_headers(encoder: &mut Encoder, out: &mut BytesMut, headers: &HeaderMap, except: &[HeaderName]) {
    for (name, value) in headers {
        if !is_about_connection(name) && !except.contains(name) && (name != TE || value == "trailers") {
            encoder.header(out, name, value);
        }
    }
}

/// Fields that have no place in HTTP/2 (RFC 9113 section 8.2.2).
fn is_about_connection(name: &HeaderName) -> bool {
    // Few names begin so; most are told apart by their first letter.
    match name.as_str().as_bytes()[0] {
        b'c' => name == CONNECTION,
        b'k' => name == "keep-alive",
        b'p' => name == "proxy-connection",
        b't' => name == TRANSFER_ENCODING,
        b'u' => name == UPGRADE,
        _ => false,
    }
}
