//! The tokens of API clients: JWTs that are signed with the shared secret, as GitLab signs them for its kas.
//!
//! The algorithm is HS256, HS384 or HS512, and `aud` is `gitlab-kas`. `exp` is at most 10 min ahead, so that a stolen token is of
//! use for a short time only: that of GitLab is 1 min ahead. `nbf` is optional. Both are checked to the second.

use std::sync::Arc;

use http::{HeaderMap, header::AUTHORIZATION};
use jsonwebtoken::{
    AlgorithmFamily, DecodingKey, TokenData, Validation, decode,
    errors::{Error, ErrorKind},
    get_current_timestamp,
};
use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::Value;

use settings::Secret;

/// The expected `aud` claim, as GitLab sets it.
const AUDIENCE: &str = "gitlab-kas";

/// The longest token, in bytes.
const MAX_LENGTH: usize = 4096;

/// The longest time from now to the `exp` of a token, in seconds.
const MAX_LIFE: u64 = 600;

/// Verifies tokens. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ApiTokenVerifier {
    secret: Secret,
    validation: Arc<Validation>,
}

/// The reason for which a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiTokenError {
    /// The request has no bearer token.
    #[error("a token is missing: send `Authorization: Bearer <JWT>`, signed with the secret of api.listen")]
    Missing,
    /// The token is invalid.
    #[error("the token is invalid: {0}")]
    Invalid(&'static str),
}

/// The claims of a token: `exp`, which every token has, and those that its user reads.
#[derive(Deserialize)]
struct Claims<T> {
    /// The library also accepts a list with the issuer in it, which is no issuer (RFC 7519 section 4.1.1).
    #[serde(default)]
    iss: Value,
    #[serde(default)]
    exp: Value,
    #[serde(flatten)]
    others: T,
}

impl ApiTokenVerifier {
    /// Creates a verifier of tokens that were signed with one of the keys of the secret, by `issuer` if one is given.
    pub fn new(secret: Secret, issuer: Option<&str>) -> Self {
        let mut validation = Validation::new_for_family(AlgorithmFamily::Hmac);
        validation.leeway = 0;
        validation.validate_nbf = true;
        validation.set_audience(&[AUDIENCE]);
        validation.set_required_spec_claims(&["aud", "exp"]);
        if let Some(issuer) = issuer {
            validation.set_issuer(&[issuer]);
            validation.required_spec_claims.insert("iss".to_owned());
        }
        Self { secret, validation: Arc::new(validation) }
    }

    /// Verifies the token in the headers of a request.
    pub fn verify(&self, headers: &HeaderMap) -> Result<(), ApiTokenError> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return Err(ApiTokenError::Missing);
        };
        let (scheme, token) =
            value.to_str().ok().and_then(|value| value.split_once(' ')).ok_or(ApiTokenError::Missing)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(ApiTokenError::Missing);
        }
        self.check(token.trim())
    }

    /// Verifies a token.
    pub fn check(&self, token: &str) -> Result<(), ApiTokenError> {
        self.claims::<IgnoredAny>(token).map(|_| ())
    }

    /// Verifies a token, and returns its claims.
    pub fn claims<T: DeserializeOwned>(&self, token: &str) -> Result<T, ApiTokenError> {
        if token.len() > MAX_LENGTH {
            return Err(ApiTokenError::Invalid("it is longer than 4096 bytes"));
        }
        let token =
            self.decode::<Claims<T>>(token).map_err(|error| ApiTokenError::Invalid(reason(&error)))?;
        // RFC 7515 section 4.1.11: a token with unknown critical extensions must be refused.
        if token.header.crit.is_some() {
            return Err(ApiTokenError::Invalid(
                "its header has critical extensions, which kas does not support",
            ));
        }
        if token.claims.iss.is_array() {
            return Err(ApiTokenError::Invalid("its issuer (iss) is a list, and must be one text"));
        }
        let latest = get_current_timestamp() + MAX_LIFE;
        if token.claims.exp.as_f64().is_none_or(|exp| exp > latest as f64) {
            return Err(ApiTokenError::Invalid("its exp is more than 10 min ahead: let it expire sooner"));
        }
        Ok(token.claims.others)
    }

    /// Verifies the signature with one key after the other, in constant time. Returns the error of the last key.
    fn decode<T: DeserializeOwned>(&self, token: &str) -> Result<TokenData<T>, Error> {
        let mut result = Err(ErrorKind::InvalidSignature.into());
        for key in self.secret.keys().iter() {
            let key = DecodingKey::from_secret(key.expose_bytes());
            result = decode(token, &key, &self.validation);
            if !matches!(&result, Err(error) if matches!(error.kind(), ErrorKind::InvalidSignature)) {
                break;
            }
        }
        result
    }
}

fn reason(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::InvalidSignature => {
            "it is not signed with the secret of api.listen.authentication_secret_file"
        }
        ErrorKind::ExpiredSignature => "it has expired (exp)",
        ErrorKind::ImmatureSignature => "it is not valid yet (nbf)",
        ErrorKind::MissingRequiredClaim(claim) if claim == "exp" => {
            "it has no exp that is a number of seconds: let it expire within 10 min"
        }
        ErrorKind::InvalidIssuer => "it is not of the issuer in api.listen.authentication_issuer (iss)",
        ErrorKind::MissingRequiredClaim(claim) if claim == "iss" => "it has no issuer (iss)",
        ErrorKind::InvalidAudience | ErrorKind::MissingRequiredClaim(_) => "it is not for gitlab-kas (aud)",
        ErrorKind::InvalidClaimFormat(_) => "its exp or nbf is not a number of seconds",
        ErrorKind::InvalidAlgorithm => "it is not signed with HS256, HS384 or HS512",
        _ => "it is not a JWT",
    }
}
