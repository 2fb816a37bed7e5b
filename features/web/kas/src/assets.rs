//! The files of the page, which are part of the program. `features/web/page` builds them.

use std::{collections::HashMap, sync::LazyLock};

use axum::body::{Body, Bytes};
use flate2::Compression;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use include_dir::{Dir, include_dir};

use crate::static_file::StaticFile;

static DIST: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../page/dist");

/// The files, by their paths in `dist`.
static FILES: LazyLock<HashMap<&'static str, StaticFile>> = LazyLock::new(|| {
    let mut files = HashMap::new();
    read(&DIST, &mut files);
    files
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
    let (name, file) = match FILES.get(name) {
        Some(file) => (name, Some(file)),
        None if is_file => (name, None),
        None => (INDEX, FILES.get(INDEX)),
    };
    let Some(file) = file else {
        let mut response = Response::new(Body::from("there is no such file\n"));
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    };
    let cache = if name.starts_with(HASHED) { "public, max-age=31536000, immutable" } else { "no-cache" };
    file.response(request, cache)
}

fn read(directory: &'static Dir<'_>, files: &mut HashMap<&'static str, StaticFile>) {
    for file in directory.files() {
        if let Some(name) = file.path().to_str() {
            let content = Bytes::from_static(file.contents());
            files.insert(name, StaticFile::new(name, content, Compression::best()));
        }
    }
    directory.dirs().for_each(|directory| read(directory, files));
}

/// Adds the headers of all responses of the page.
pub(super) fn secure(response: &mut Response<Body>) {
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
}
