//! The files of the page, which are part of the program. `features/web/page` builds them.

use std::{collections::HashMap, io::Write as _, path::Path, sync::LazyLock};

use axum::body::{Body, Bytes};
use flate2::{Compression, write::GzEncoder};
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, VARY},
};
use include_dir::{Dir, include_dir};
use proto::header::accepts_gzip;

static FILES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../page/dist");

/// The files as gzip.
static COMPRESSED: LazyLock<HashMap<&'static Path, Bytes>> = LazyLock::new(|| {
    let mut compressed = HashMap::new();
    compress(&FILES, &mut compressed);
    compressed
});

/// The page, for all paths that the page itself interprets.
const INDEX: &str = "index.html";
/// The folder of files whose names have a hash of their contents.
const HASHED: &str = "assets/";

/// The headers of all responses of the listener.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        http::header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    (http::header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (http::header::X_FRAME_OPTIONS, "DENY"),
    (http::header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Returns the file of a path, or the page.
pub(super) fn response(path: &str, request: &HeaderMap) -> Response<Body> {
    let name = path.trim_start_matches('/');
    let is_file = name.starts_with(HASHED) || name.rsplit('/').next().is_some_and(|last| last.contains('.'));
    let (name, file) = match FILES.get_file(name) {
        Some(file) => (name, Some(file)),
        None if is_file => (name, None),
        None => (INDEX, FILES.get_file(INDEX)),
    };
    let Some(file) = file else {
        let mut response = Response::new(Body::from("there is no such file\n"));
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    };
    let compressed = COMPRESSED.get(file.path()).filter(|_| accepts_gzip(request)).cloned();
    let is_compressed = compressed.is_some();
    let mut response = Response::new(compressed.map_or_else(|| Body::from(file.contents()), Body::from));
    let headers = response.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    if is_compressed {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type(name)));
    let cache = if name.starts_with(HASHED) { "public, max-age=31536000, immutable" } else { "no-cache" };
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(cache));
    response
}

fn compress(directory: &'static Dir<'_>, compressed: &mut HashMap<&'static Path, Bytes>) {
    for file in directory.files() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let written = encoder.write_all(file.contents()).and_then(|()| encoder.finish());
        compressed.insert(file.path(), written.expect("a vector takes all bytes").into());
    }
    directory.dirs().for_each(|directory| compress(directory, compressed));
}

/// Adds the headers of all responses of the page.
pub(super) fn secure(response: &mut Response<Body>) {
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
}

pub(super) fn content_type(name: &str) -> &'static str {
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
