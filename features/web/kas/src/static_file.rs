//! A file of the page or of the documents, as browsers get it.

use std::io::Write as _;

use axum::body::{Body, Bytes};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use flate2::{Compression, write::GzEncoder};
use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY},
};
use proto::header::{accepts_gzip, tokens};
use sha2::{Digest as _, Sha256};

/// The mark of a weak ETag.
const WEAK: &str = "W/";

/// A file in memory.
pub(super) struct StaticFile {
    content: Bytes,
    /// The content as gzip, if that is smaller.
    gzip: Option<Bytes>,
    /// Weak, because the content and its gzip have the same one (RFC 9110 section 8.8.1).
    etag: HeaderValue,
    content_type: &'static str,
}

impl StaticFile {
    /// Compresses a file. `name` ends in the extension that decides its type.
    pub(super) fn new(name: &str, content: Bytes, level: Compression) -> Self {
        let content_type = content_type(name);
        let is_compressed = matches!(content_type, "image/png" | "font/woff2");
        let gzip = (!is_compressed).then(|| compress(&content, level)).flatten();
        let digest = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&content));
        let etag = HeaderValue::try_from(format!("{WEAK}\"{digest}\"")).expect("base64 and constants");
        Self { content, gzip, etag, content_type }
    }

    /// Returns the response to a request for the file with these headers: 304 if the browser has it.
    pub(super) fn response(&self, request: &HeaderMap, cache_control: &'static str) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        let headers = response.headers_mut();
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(cache_control));
        headers.insert(ETAG, self.etag.clone());
        // The comparison is weak (RFC 9110 section 13.1.2): a proxy may have removed the mark.
        let opaque = &self.etag.as_bytes()[WEAK.len()..];
        let is_known = |tag: &str| tag == "*" || tag.strip_prefix(WEAK).unwrap_or(tag).as_bytes() == opaque;
        if tokens(request, &IF_NONE_MATCH).any(is_known) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return response;
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        let gzip = self.gzip.as_ref().filter(|_| accepts_gzip(request));
        if gzip.is_some() {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        *response.body_mut() = Body::from(gzip.unwrap_or(&self.content).clone());
        response
    }
}

fn compress(content: &[u8], level: Compression) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), level);
    let written = encoder.write_all(content).and_then(|()| encoder.finish());
    let compressed = written.expect("a vector takes all bytes");
    (compressed.len() < content.len()).then(|| compressed.into())
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("woff2") => "font/woff2",
        Some("json" | "webmanifest") => "application/json",
        Some("txt") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}
