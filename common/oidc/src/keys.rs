//! The public keys of an issuer (JWK Set, RFC 7517).

use jsonwebtoken::{
    Algorithm, DecodingKey, crypto,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse},
};
use serde::Deserialize;
use serde_json::Value;

use super::FetchError;

/// The most keys of an issuer. A token without `kid` is verified with each of them.
const MAX_KEYS: usize = 100;

/// The keys that verify signatures.
#[derive(Debug)]
pub struct JwkSet(Vec<VerificationKey>);

#[derive(Debug)]
struct VerificationKey {
    id: Option<String>,
    /// The algorithms of the type of the key, or the only one that its `alg` names.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<Value>,
}

impl JwkSet {
    /// Parses a JWK Set. Keys that cannot verify signatures are left out.
    ///
    /// # Errors
    ///
    /// It is not a JWK Set, or no key is left, or too many: to use a part of them would refuse valid tokens.
    pub fn parse(body: &[u8]) -> Result<Self, FetchError> {
        let subject = "the JWK Set (jwks_uri)";
        let document: Document =
            serde_json::from_slice(body).map_err(|error| FetchError::invalid(subject, &error))?;
        let keys = document.keys.into_iter().filter_map(VerificationKey::parse);
        let keys: Vec<_> = keys.take(MAX_KEYS + 1).collect();
        match keys.len() {
            0 => Err(FetchError::invalid(subject, &"it has no public key for signatures")),
            1..=MAX_KEYS => Ok(Self(keys)),
            _ => Err(FetchError::invalid(
                subject,
                &format!("it has more than {MAX_KEYS} public keys for signatures"),
            )),
        }
    }

    /// Returns whether there is a key for tokens with this `kid` and algorithm.
    pub(super) fn has(&self, id: Option<&str>, algorithm: Algorithm) -> bool {
        self.matching(id, algorithm).next().is_some()
    }

    /// Returns whether one of the keys with this `kid`, or any key if there is none, has signed the message.
    pub(super) fn verify(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
        message: &str,
        signature: &str,
    ) -> bool {
        self.matching(id, algorithm)
            .any(|key| crypto::verify(signature, message.as_bytes(), &key.key, algorithm).unwrap_or(false))
    }

    fn matching(&self, id: Option<&str>, algorithm: Algorithm) -> impl Iterator<Item = &VerificationKey> {
        self.0.iter().filter(move |key| {
            key.algorithms.contains(&algorithm) && id.is_none_or(|id| key.id.as_deref() == Some(id))
        })
    }
}

impl VerificationKey {
    /// Returns `None` for a key of another use or type. A symmetric key (`oct`) is never one of an issuer.
    fn parse(value: Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        if jwk.common.public_key_use.as_ref().is_some_and(|key_use| *key_use != PublicKeyUse::Signature) {
            return None;
        }
        let mut algorithms = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => vec![
                Algorithm::RS256,
                Algorithm::RS384,
                Algorithm::RS512,
                Algorithm::PS256,
                Algorithm::PS384,
                Algorithm::PS512,
            ],
            AlgorithmParameters::EllipticCurve(parameters) => match parameters.curve {
                EllipticCurve::P256 => vec![Algorithm::ES256],
                EllipticCurve::P384 => vec![Algorithm::ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(parameters) => match parameters.curve {
                EllipticCurve::Ed25519 => vec![Algorithm::EdDSA],
                _ => return None,
            },
            _ => return None,
        };
        if let Some(only) = &jwk.common.key_algorithm {
            algorithms.retain(|algorithm| format!("{algorithm:?}") == only.to_string());
        }
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        Some(Self { id: jwk.common.key_id, algorithms, key })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(keys: Value) -> Result<JwkSet, String> {
        JwkSet::parse(json!({"keys": keys}).to_string().as_bytes()).map_err(|error| error.to_string())
    }

    fn rsa(extra: Value) -> Value {
        let mut key = json!({"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "a"});
        key.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        key
    }

    #[test]
    fn type_of_a_key_pins_its_algorithms() {
        let x = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        let keys = parse(json!([
            rsa(json!({})),
            rsa(json!({"kid": "b", "alg": "PS256", "use": "sig"})),
            {"kty": "EC", "crv": "P-256", "x": x, "y": x, "kid": "c"},
            {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": "d"},
        ]));
        let keys = keys.unwrap();
        for (id, algorithm, expected) in [
            ("a", Algorithm::RS256, true),
            ("a", Algorithm::ES256, false),
            ("a", Algorithm::HS256, false),
            ("b", Algorithm::PS256, true),
            ("b", Algorithm::RS256, false),
            ("c", Algorithm::ES256, true),
            ("c", Algorithm::ES384, false),
            ("d", Algorithm::EdDSA, true),
            ("e", Algorithm::RS256, false),
        ] {
            assert_eq!(keys.has(Some(id), algorithm), expected, "{id} {algorithm:?}");
        }
        assert!(keys.has(None, Algorithm::RS256) && !keys.has(None, Algorithm::HS256));
    }

    #[test]
    fn set_with_too_many_keys_is_refused_as_a_whole() {
        let keys = |count: usize| (0..count).map(|id| rsa(json!({"kid": id.to_string()}))).collect::<Value>();
        assert!(parse(keys(100)).unwrap().has(Some("99"), Algorithm::RS256));
        let error = parse(keys(101)).unwrap_err();
        assert!(error.ends_with("it has more than 100 public keys for signatures"), "{error}");
        let mut with_others = keys(100);
        with_others.as_array_mut().unwrap().insert(0, json!({"kty": "oct", "k": "c2VjcmV0"}));
        assert!(parse(with_others).is_ok(), "keys of other types do not count");
    }

    #[test]
    fn keys_that_cannot_verify_signatures_are_left_out() {
        let unusable = json!([
            {"kty": "oct", "k": "c2VjcmV0", "kid": "a"},
            rsa(json!({"use": "enc"})),
            {"kty": "EC", "crv": "P-521", "x": "AA", "y": "AA"},
            {"kty": "RSA"},
            {"kty": "new"},
            7,
        ]);
        assert!(parse(unusable.clone()).unwrap_err().ends_with("it has no public key for signatures"));
        let mut with_a_good_one = unusable;
        with_a_good_one.as_array_mut().unwrap().push(rsa(json!({})));
        assert!(parse(with_a_good_one).unwrap().has(Some("a"), Algorithm::RS256));
        assert!(parse(json!({})).is_err() && JwkSet::parse(b"<html>").is_err());
    }
}
