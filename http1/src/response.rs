//! The head of an answer, written by a server. Pure.

use bytes::{BufMut as _, BytesMut};
use http::{
    HeaderMap, HeaderName, Method, StatusCode, Version,
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
    let length = length(status, headers, body, asked);
    let bodyless = is_bodyless(status) || asked.method == Method::HEAD;
    let chunked = length == Some(Length::Chunked) && !bodyless;
    let persistent = asked.persistent
        && status != StatusCode::SWITCHING_PROTOCOLS
        && (bodyless || length != Some(Length::UntilClosed));

    out.reserve(fields::size(headers) + 192);
    write_status(status, asked.version, out);
    let mut dated = false;
    for (name, value) in headers {
        match *name {
            // Said below, as it is.
            CONTENT_LENGTH | TRANSFER_ENCODING => continue,
            CONNECTION if status != StatusCode::SWITCHING_PROTOCOLS => continue,
            TRAILER if !chunked => continue,
            DATE => dated = true,
            _ => {}
        }
        fields::write(name, value, out);
    }
    match length {
        Some(Length::Exactly(length)) => {
            out.put_slice(b"content-length: ");
            out.put_slice(itoa::Buffer::new().format(length).as_bytes());
            out.put_slice(b"\r\n");
        }
        Some(Length::Chunked) if chunked => out.put_slice(b"transfer-encoding: chunked\r\n"),
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

    let trailers = if chunked && asked.trailers { fields::announced(headers) } else { Vec::new() };
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
fn length(status: StatusCode, headers: &HeaderMap, body: &impl Body, asked: &Asked) -> Option<Length> {
    if is_bodyless(status) {
        return None;
    }
    // One that is none is not passed on: two readers would disagree where the answer ends.
    let said = fields::content_length(headers).unwrap_or_default();
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
mod tests {}
