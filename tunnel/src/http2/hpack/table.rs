//! The fields that every end knows (RFC 7541 appendix A).

use std::sync::LazyLock;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};

use super::decoder::{Field, Pseudo};

/// How many there are: numbers above are of fields that this connection has seen.
pub(super) const STATIC: usize = 61;

/// Numbers of fields that our own heads begin with.
pub(super) mod index {
    pub(crate) const AUTHORITY: usize = 1;
    pub(crate) const METHOD_GET: usize = 2;
    pub(crate) const METHOD_POST: usize = 3;
    pub(crate) const PATH: usize = 4;
    pub(crate) const SCHEME_HTTP: usize = 6;
    pub(crate) const STATUS: usize = 8;
}

const FIELDS: [(&str, &str); STATIC] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

static TABLE: LazyLock<[Field; STATIC]> = LazyLock::new(|| {
    FIELDS.map(|(name, value)| match Pseudo::named(name.as_bytes()) {
        Some(pseudo) => Field::Pseudo(pseudo, Bytes::from_static(value.as_bytes())),
        None => Field::Header(HeaderName::from_static(name), HeaderValue::from_static(value)),
    })
});

/// The field with this number, which begins at one.
pub(super) fn field(number: usize) -> Option<&'static Field> {
    TABLE.get(number.checked_sub(1)?)
}

/// The number of a status that has one.
pub(super) fn status(code: u16) -> Option<usize> {
    let place = [200, 204, 206, 304, 400, 404, 500].iter().position(|known| *known == code)?;
    Some(index::STATUS + place)
}
