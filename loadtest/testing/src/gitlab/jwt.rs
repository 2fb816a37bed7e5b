//! The JWTs between kas and GitLab (RFC 7519), checked and signed without the code of kas.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::Deserialize;
use serde_json::json;
use sha2::Sha256;

/// The longest accepted life of a token of kas, in seconds. kas uses 30.
const MAX_LIFE: u64 = 60;
/// The largest accepted difference of the clocks, in seconds.
const MAX_SKEW: u64 = 10;

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    crit: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    aud: String,
    iat: u64,
    nbf: u64,
    exp: u64,
}

/// Checks a token of kas. The error names the rule that it breaks.
pub(crate) fn check(token: &str, secret: &[u8], now: SystemTime) -> Result<(), String> {
    let mut parts = token.split('.');
    let (Some(header), Some(claims), Some(mac), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err("the JWT does not have three parts".into());
    };
    let decode = |part: &str| {
        BASE64_URL_SAFE_NO_PAD.decode(part).map_err(|_| "a part of the JWT is not base64url".to_owned())
    };
    let parsed: Header =
        serde_json::from_slice(&decode(header)?).map_err(|error| format!("header of the JWT: {error}"))?;
    if parsed.alg != "HS256" || parsed.crit.is_some() {
        return Err(format!("the algorithm of the JWT is {}", parsed.alg));
    }

    let signed = &token[..header.len() + 1 + claims.len()];
    keyed(secret)
        .chain_update(signed)
        .verify_slice(&decode(mac)?)
        .map_err(|_| "the signature of the JWT is wrong".to_owned())?;
    let claims: Claims =
        serde_json::from_slice(&decode(claims)?).map_err(|error| format!("claims of the JWT: {error}"))?;
    let now = now.duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let rules = [
        (claims.iss == "gitlab-kas", "iss is not gitlab-kas"),
        (claims.aud == "gitlab", "aud is not gitlab"),
        (claims.iat.abs_diff(now) <= MAX_LIFE, "iat is not the time of the request"),
        (claims.nbf <= now + MAX_SKEW && claims.nbf <= claims.iat, "nbf is in the future"),
        (claims.exp > now, "exp is in the past"),
        (claims.exp.saturating_sub(claims.iat) <= MAX_LIFE, "exp is more than 60 s after iat"),
    ];
    match rules.iter().find(|(kept, _)| !kept) {
        Some((_, rule)) => Err(format!("claims of the JWT: {rule}")),
        None => Ok(()),
    }
}

/// Signs a token as kas does for its requests to GitLab.
pub fn sign_for_gitlab(secret: &[u8], now: SystemTime) -> String {
    let now = now.duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    sign(
        secret,
        &json!({"alg": "HS256", "typ": "JWT"}),
        &json!({"iss": "gitlab-kas", "aud": "gitlab", "iat": now, "nbf": now - 5, "exp": now + 30}),
    )
}

/// Signs a token as GitLab Rails does for its requests to kas: `iss` is the host of GitLab, `aud` is `gitlab-kas`.
pub fn sign_for_kas(secret: &[u8], now: SystemTime) -> String {
    let now = now.duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    sign(
        secret,
        &json!({"alg": "HS256", "typ": "JWT"}),
        &json!({"iss": "gitlab.example.com", "aud": "gitlab-kas", "iat": now, "nbf": now - 5, "exp": now + 60}),
    )
}

fn sign(secret: &[u8], header: &serde_json::Value, claims: &serde_json::Value) -> String {
    let encode = |value: &serde_json::Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", encode(header), encode(claims));
    let mac = keyed(secret).chain_update(&signed).finalize().into_bytes();
    format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(mac))
}

fn keyed(secret: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(secret).expect("any length is a key")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECRET: &[u8] = &[7; 32];

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_000_000)
    }

    fn checked(header: serde_json::Value, claims: serde_json::Value) -> Result<(), String> {
        check(&sign(SECRET, &header, &claims), SECRET, now())
    }

    fn claims() -> serde_json::Value {
        json!({"iss": "gitlab-kas", "aud": "gitlab", "iat": 1_000_000, "nbf": 999_995, "exp": 1_000_030})
    }

    #[test]
    fn token_of_kas_is_accepted() {
        assert_eq!(checked(json!({"alg": "HS256", "typ": "JWT"}), claims()), Ok(()));
    }

    #[test]
    fn wrong_claim_is_refused() {
        for (claim, value, expected) in [
            ("iss", json!("gitlab"), "iss is not"),
            ("aud", json!("gitlab-kas"), "aud is not"),
            ("aud", json!(["gitlab"]), "expected a string"),
            ("iat", json!(999_000), "iat is not"),
            ("nbf", json!(1_000_100), "nbf is in the future"),
            ("nbf", json!("soon"), "expected u64"),
            ("exp", json!(1_000_000), "exp is in the past"),
            ("exp", json!(1_003_600), "more than 60 s"),
            ("exp", json!(null), "expected u64"),
        ] {
            let mut claims = claims();
            claims[claim] = value;
            let error = checked(json!({"alg": "HS256"}), claims).unwrap_err();
            assert!(error.contains(expected), "{claim}: {error}");
        }
    }

    #[test]
    fn other_algorithm_or_secret_is_refused() {
        assert!(checked(json!({"alg": "none"}), claims()).unwrap_err().contains("none"));
        assert!(checked(json!({"alg": "HS384"}), claims()).unwrap_err().contains("HS384"));
        let token = sign(&[8; 32], &json!({"alg": "HS256"}), &claims());
        assert!(check(&token, SECRET, now()).unwrap_err().contains("signature"));
        assert!(check("a.b", SECRET, now()).unwrap_err().contains("three parts"));
    }
}
