//! The token with which kas authenticates to an agentk that it dials: a JWT, signed with Ed25519 (RFC 7519, RFC 8037).
//!
//! GitLab creates the pair of keys with the URL of an agent: it gives the private key to kas, and shows the public one for agentk.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, UnparsedPublicKey};
use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use serde::{Deserialize, Serialize};

/// The allowed difference of the clocks, in seconds.
const CLOCK_SKEW: u64 = 30;
/// The time for which a token is valid, in seconds.
const LIFETIME: u64 = 60;
/// The longest token that is read, in bytes.
const MAX_TOKEN: usize = 2048;
const HEAD: &str = r#"{"alg":"EdDSA","typ":"JWT"}"#;
const ISSUER: &str = "gitlab-kas";
const AUDIENCE: &str = "gitlab-agentk";

/// The private key, which signs. It is never shown.
pub struct DialTokenKey(Ed25519KeyPair);

/// The public key, which verifies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialTokenVerifier([u8; 32]);

/// The error of a text that is no key. It does not have the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not the base64 of an Ed25519 key")]
pub struct InvalidTokenKey;

#[derive(Serialize, Deserialize)]
struct Claims {
    iss: String,
    aud: String,
    iat: u64,
    nbf: u64,
    exp: u64,
}

#[derive(Deserialize)]
struct Head {
    alg: String,
}

impl DialTokenKey {
    /// Parses the base64 of a seed of 32 bytes, or of the seed and the public key.
    ///
    /// # Errors
    ///
    /// The text is no such key.
    pub fn parse(text: &str) -> Result<Self, InvalidTokenKey> {
        let bytes = BASE64_STANDARD.decode(text.trim()).map_err(|_| InvalidTokenKey)?;
        let pair = match bytes.split_at_checked(32) {
            Some((seed, [])) => Ed25519KeyPair::from_seed_unchecked(seed),
            Some((seed, public)) => Ed25519KeyPair::from_seed_and_public_key(seed, public),
            None => return Err(InvalidTokenKey),
        };
        pair.map(Self).map_err(|_| InvalidTokenKey)
    }

    /// Returns a token that is valid from `now` on for a minute.
    pub fn token(&self, now: SystemTime) -> String {
        let now = seconds(now);
        let claims = Claims {
            iss: ISSUER.to_owned(),
            aud: AUDIENCE.to_owned(),
            iat: now,
            nbf: now,
            exp: now + LIFETIME,
        };
        let claims = serde_json::to_vec(&claims).expect("serializable");
        let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let signed = format!("{}.{}", encode(HEAD.as_bytes()), encode(&claims));
        let signature = encode(self.0.sign(signed.as_bytes()).as_ref());
        format!("{signed}.{signature}")
    }
}

impl DialTokenVerifier {
    /// Parses the base64 of a public key.
    ///
    /// # Errors
    ///
    /// The text is no such key.
    pub fn parse(text: &str) -> Result<Self, InvalidTokenKey> {
        let bytes = BASE64_STANDARD.decode(text.trim()).map_err(|_| InvalidTokenKey)?;
        bytes.try_into().map(Self).map_err(|_| InvalidTokenKey)
    }

    /// Returns whether a token is signed with the private key, for agentk, and valid at `now`.
    pub fn accepts(&self, token: &str, now: SystemTime) -> bool {
        let now = seconds(now);
        self.claims(token).is_some_and(|claims| {
            claims.iss == ISSUER
                && claims.aud == AUDIENCE
                && claims.nbf <= now + CLOCK_SKEW
                && now < claims.exp.saturating_add(CLOCK_SKEW)
                // A token that is valid for longer is not of kas.
                && claims.exp.saturating_sub(claims.iat) <= LIFETIME
        })
    }

    /// Returns the claims of a token whose signature is right.
    fn claims(&self, token: &str) -> Option<Claims> {
        let (signed, signature) = Some(token).filter(|token| token.len() <= MAX_TOKEN)?.rsplit_once('.')?;
        let decode = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).ok();
        let verified =
            UnparsedPublicKey::new(&ED25519, self.0).verify(signed.as_bytes(), &decode(signature)?);
        verified.ok()?;
        let (head, claims) = signed.split_once('.')?;
        let Head { alg } = serde_json::from_slice(&decode(head)?).ok()?;
        (alg == "EdDSA").then(|| serde_json::from_slice(&decode(claims)?).ok()).flatten()
    }
}

impl fmt::Debug for DialTokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DialTokenKey")
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first test of RFC 8032, section 7.1.
    const SEED: &str = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";
    const PUBLIC: &str = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn token_is_accepted_while_it_is_valid() {
        let (key, verifier) = (DialTokenKey::parse(SEED).unwrap(), DialTokenVerifier::parse(PUBLIC).unwrap());
        let token = key.token(at(1000));
        for (time, expected) in [(969, false), (970, true), (1000, true), (1089, true), (1090, false)] {
            assert_eq!(verifier.accepts(&token, at(time)), expected, "{time}");
        }
        assert_eq!(format!("{key:?}"), "DialTokenKey");
    }

    #[test]
    fn changed_token_or_another_key_is_refused() {
        let (key, verifier) = (DialTokenKey::parse(SEED).unwrap(), DialTokenVerifier::parse(PUBLIC).unwrap());
        let token = key.token(at(1000));
        let other = DialTokenKey::parse(&BASE64_STANDARD.encode([7; 32])).unwrap().token(at(1000));
        let (head, rest) = token.split_once('.').unwrap();
        let none = BASE64_URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        for bad in [
            other,
            format!("{none}.{rest}"),
            format!("{head}.{}.", rest.split_once('.').unwrap().0),
            format!("{token}A"),
            token[1..].to_owned(),
            "é".to_owned(),
            String::new(),
            "a.".repeat(2000),
        ] {
            assert!(!verifier.accepts(&bad, at(1000)), "{bad}");
        }
    }

    #[test]
    fn both_forms_of_the_private_key_are_read_and_nothing_else() {
        let bytes = [BASE64_STANDARD.decode(SEED).unwrap(), BASE64_STANDARD.decode(PUBLIC).unwrap()].concat();
        let key = DialTokenKey::parse(&BASE64_STANDARD.encode(bytes)).unwrap();
        assert!(DialTokenVerifier::parse(PUBLIC).unwrap().accepts(&key.token(at(5)), at(5)));
        for bad in ["", "secret", "c2VjcmV0", &BASE64_STANDARD.encode([1; 64])] {
            assert_eq!(DialTokenKey::parse(bad).unwrap_err(), InvalidTokenKey, "{bad}");
            assert_eq!(DialTokenVerifier::parse(bad).unwrap_err(), InvalidTokenKey, "{bad}");
        }
        assert!(!InvalidTokenKey.to_string().contains("secret"));
    }
}
