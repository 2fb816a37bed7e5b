//! The `Authorization` headers of credentials.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::HeaderValue;
use secrecy::{ExposeSecret as _, SecretString};

/// Returns the header of a bearer token, or `None` if the token cannot be sent in a header.
pub(super) fn bearer(token: &str) -> Option<HeaderValue> {
    sensitive(&format!("Bearer {token}"))
}

/// Returns the header of basic authentication (RFC 7617), or `None` if it cannot be sent.
pub(super) fn basic(user: &str, password: &SecretString) -> Option<HeaderValue> {
    let pair = format!("{user}:{}", password.expose_secret());
    sensitive(&format!("Basic {}", BASE64_STANDARD.encode(pair)))
}

fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);

    Some(value)
}
