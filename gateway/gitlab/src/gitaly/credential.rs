//! The credential of a call to Gitaly.

use std::{
    fmt::Write as _,
    time::{Duration, SystemTime},
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::Sha256;
use tonic::metadata::{Ascii, MetadataValue};

/// Returns the value of `authorization` with version 2 of Gitaly's tokens: an HMAC-SHA-256 of the time, in seconds since 1970. It
/// is `None` if the server has no secret.
///
/// Gitaly accepts a token for 30 s before and after its time.
pub(super) fn authorization(token: &SecretString, now: SystemTime) -> Option<MetadataValue<Ascii>> {
    let token = token.expose_secret();
    if token.is_empty() {
        return None;
    }
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs().to_string();
    let mac = Hmac::<Sha256>::new_from_slice(token.as_bytes()).expect("any length is a key");
    let mut value = String::from("Bearer v2.");
    for byte in mac.chain_update(seconds.as_bytes()).finalize().into_bytes() {
        write!(value, "{byte:02x}").expect("a string takes any text");
    }
    let mut value: MetadataValue<Ascii> = format!("{value}.{seconds}").parse().expect("it is ASCII");
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The MAC is the output of `printf 1700000000 | openssl dgst -sha256 -hmac secret`.
    #[test]
    fn token_is_a_mac_of_the_time() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let value = authorization(&"secret".into(), now).unwrap();
        let expected =
            "Bearer v2.4b227f8831b3763d066901751ad4c583ed08832bf1924a4ec50c2e871b1e8586.1700000000";
        assert_eq!(value.to_str().unwrap(), expected);
        assert_eq!(format!("{value:?}"), "Sensitive");
        assert!(authorization(&"".into(), now).is_none(), "a server without authentication");
    }
}
