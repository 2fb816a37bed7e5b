//! The token with which GitLab recognizes kas: a JWT, signed with HS256 (RFC 7519).

use std::time::{Duration, SystemTime};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::Mac as _;
use http::HeaderValue;
use serde::Serialize;

use settings::SecretKey;

/// The allowed difference of the clocks.
const CLOCK_SKEW: u64 = 5;
/// The time for which a token is valid.
const LIFETIME: u64 = 30;

#[derive(Serialize)]
struct Claims {
    iss: &'static str,
    aud: &'static str,
    iat: u64,
    nbf: u64,
    exp: u64,
}

/// Returns the value of the header `Gitlab-Kas-Api-Request`.
pub(super) fn header(key: &SecretKey, now: SystemTime) -> HeaderValue {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let claims = Claims {
        iss: "gitlab-kas",
        aud: "gitlab",
        iat: now,
        nbf: now.saturating_sub(CLOCK_SKEW),
        exp: now + LIFETIME,
    };
    let claims = serde_json::to_vec(&claims).expect("serializable");
    let head = URL_SAFE_NO_PAD.encode(br#"{"alg":"HS256","typ":"JWT"}"#);
    let signed = format!("{head}.{}", URL_SAFE_NO_PAD.encode(claims));
    let mac = key.hmac().chain_update(&signed).finalize().into_bytes();
    let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac));
    let mut value = HeaderValue::try_from(token).expect("base64 is ASCII");
    value.set_sensitive(true);
    value
}

#[cfg(test)]
mod tests {
    use base64::prelude::BASE64_STANDARD;
    use serde_json::{Value, json};
    use settings::Secret;

    use super::*;

    #[test]
    fn token_has_the_claims_that_gitlab_expects() {
        let secret = Secret::parse(&BASE64_STANDARD.encode([7; 32])).unwrap();
        let header = header(secret.keys().signing(), SystemTime::UNIX_EPOCH + Duration::from_secs(1000));
        assert!(header.is_sensitive());
        let token = header.to_str().unwrap();
        let parts: Vec<&str> = token.split('.').collect();
        let [head, claims, mac] = parts[..] else { panic!("{token}") };
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).unwrap();
        let head: Value = serde_json::from_slice(&decode(head)).unwrap();
        assert_eq!(head, json!({"alg": "HS256", "typ": "JWT"}));
        let claims: Value = serde_json::from_slice(&decode(claims)).unwrap();
        let expected = json!({"iss": "gitlab-kas", "aud": "gitlab", "iat": 1000, "nbf": 995, "exp": 1030});
        assert_eq!(claims, expected);
        let signed = token.rsplit_once('.').unwrap().0;
        secret.keys().signing().hmac().chain_update(signed).verify_slice(&decode(mac)).unwrap();
    }
}
