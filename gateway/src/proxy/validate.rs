//! Requests that no honest client sends: ambiguous on purpose, so that two servers read them differently.

use http::{
    HeaderMap, Request, Version,
    header::{CONNECTION, HOST, TRANSFER_ENCODING},
};
use proto::{Reason, border};

use crate::{failure::Failure, headers};

/// Refuses what kas would read in one way and somebody before or behind it in another.
pub(super) fn refuse<B>(request: &Request<B>) -> Result<(), Failure> {
    let headers = request.headers();
    let what = ambiguous_coding(headers)
        .or_else(|| ambiguous_host(request))
        .or_else(|| named_by_connection(headers));
    what.map_or(Ok(()), |what| Err(Failure::new(Reason::BadRequest, what)))
}

/// hyper takes the last coding for the framing and leaves the others in the body (RFC 9112 section 6.1).
fn ambiguous_coding(headers: &HeaderMap) -> Option<&'static str> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let first = codings.next()?;
    let plain = first.as_bytes().eq_ignore_ascii_case(b"chunked") && codings.next().is_none();
    (!plain).then_some("Transfer-Encoding may only be chunked, once")
}

/// RFC 9112 section 3.2, RFC 9113 section 8.3.1.
fn ambiguous_host<B>(request: &Request<B>) -> Option<&'static str> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let Some(host) = hosts.next() else {
        return (request.version() == Version::HTTP_11).then_some("the request has no Host");
    };
    if hosts.next().is_some() {
        return Some("the request has more than one Host");
    }
    if !host.as_bytes().iter().all(|byte| is_host_byte(*byte)) {
        return Some("Host is not a host and a port");
    }
    let authority = request.uri().authority().filter(|_| request.version() == Version::HTTP_2)?;
    let same = host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes());
    (!same).then_some("Host is not what :authority says")
}

/// Returns whether a byte may be part of a host or a port (RFC 3986 section 3.2.2).
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(&byte)
}

/// `Connection: Impersonate-User` asks a proxy to forget who the caller shall be (CVE-2021-31999).
fn named_by_connection(headers: &HeaderMap) -> Option<&'static str> {
    let sensitive = |token: &str| headers::is_sensitive(&token.to_ascii_lowercase());
    border::tokens(headers, &CONNECTION)
        .any(sensitive)
        .then_some("Connection may not name a header that says who the caller is")
}
