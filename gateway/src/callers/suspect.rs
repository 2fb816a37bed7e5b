//! Requests that no honest client sends: ambiguous on purpose, so that two servers read them differently. Where they end is for
//! [`http1::request`] and hyper to see.

use http::{
    HeaderMap, Request, Version,
    header::{CONNECTION, HOST},
};
use proto::{Reason, border};

use crate::{failure::Failure, headers};

/// Refuses what kas would read in one way and somebody before or behind it in another.
pub(super) fn refuse<B>(request: &Request<B>) -> Result<(), Failure> {
    let headers = request.headers();
    let what = ambiguous_host(request).or_else(|| named_by_connection(headers));
    what.map_or(Ok(()), |what| Err(Failure::new(Reason::BadRequest, what)))
}

/// RFC 9112 section 3.2, RFC 9113 section 8.3.1.
fn ambiguous_host<B>(request: &Request<B>) -> Option<&'static str> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts.next()?;
    if hosts.next().is_some() {
        return Some("the request has more than one Host");
    }
    let authority = request.uri().authority().filter(|_| request.version() == Version::HTTP_2)?;
    let same = host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes());
    (!same).then_some("Host is not what :authority says")
}

/// `Connection: Impersonate-User` asks a proxy to forget who the caller shall be (CVE-2021-31999).
fn named_by_connection(headers: &HeaderMap) -> Option<&'static str> {
    let sensitive = |token: &str| headers::is_sensitive(&token.to_ascii_lowercase());
    border::tokens(headers, &CONNECTION)
        .any(sensitive)
        .then_some("Connection may not name a header that says who the caller is")
}
