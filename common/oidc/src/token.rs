//! Verifies tokens (JWT, RFC 7519): pure functions of the token, the keys and the time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::HeaderMap;
use jsonwebtoken::Algorithm;
use proto::{IdentityValue, impersonation::Impersonation};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    keys::JwkSet,
    policy::{ClaimMapping, TokenPolicy},
};

/// The claims of a token.
pub type Claims = Map<String, Value>;

/// The longest token, in bytes. Tokens of users with hundreds of groups are shorter.
const MAX_BYTES: usize = 16 << 10;

/// A parsed token whose signature is not verified yet.
#[derive(Debug)]
pub struct UnverifiedToken<'a> {
    header: Header,
    claims: Claims,
    /// The signed text: header and payload.
    message: &'a str,
    signature: &'a str,
}

/// The header of a token (JOSE, RFC 7515).
#[derive(Debug, Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

/// A token that its issuer has signed, and that was valid when it was verified.
#[derive(Debug)]
pub struct VerifiedToken {
    /// The name of the issuer in the configuration.
    pub issuer: String,
    /// The claims.
    pub claims: Claims,
    /// The name of the user in a cluster, with the prefix of the issuer.
    pub username: String,
    /// The `Impersonate-*` headers of the user and its groups.
    pub impersonation: HeaderMap,
    /// The time at which it expires, with the leeway, in seconds since 1970.
    pub expires: u64,
    /// The time at which its streams end, if they do.
    pub streams_end: Option<SystemTime>,
}

/// The reason for which a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is longer than 16 KiB.
    #[error("it is longer than 16 KiB")]
    TooLarge,
    /// Its claims or its header have the wrong form.
    #[error("{0}")]
    Malformed(&'static str),
    /// No issuer of the configuration has this URL.
    #[error("its issuer (iss) is none of oidc.issuers")]
    UnknownIssuer,
    /// The algorithm is not one that is configured for the issuer.
    #[error("its algorithm (alg) is not allowed for this issuer")]
    Algorithm,
    /// The issuer has published no such key.
    #[error("the issuer has no key for it (kid, alg)")]
    UnknownKey,
    /// The signature does not match.
    #[error("its signature is invalid")]
    Signature,
    /// It has expired.
    #[error("it has expired (exp)")]
    Expired,
    /// It is not valid yet.
    #[error("it is not valid yet (nbf): compare the clocks of kas and of the issuer")]
    NotYetValid,
    /// It is for another program.
    #[error("it is for another audience (aud)")]
    WrongAudience,
    /// It has no claim with the name of the user.
    #[error("the claim of oidc.issuers[].username_claim is missing")]
    NoUsername,
    /// No user follows from its claims.
    #[error("{0}")]
    Username(&'static str),
    /// No entry of the identity file matches.
    #[error("it is valid, but no caller in the identity file has these claims")]
    NoMatchingCaller,
}

impl TokenError {
    /// Returns the class of the reason: one word, for programs, metrics and `docs/oidc.md`.
    pub fn class(self) -> &'static str {
        match self {
            Self::TooLarge => "too-large",
            Self::Malformed(_) => "malformed",
            Self::UnknownIssuer => "unknown-issuer",
            Self::Algorithm => "algorithm",
            Self::UnknownKey => "unknown-key",
            Self::Signature => "signature",
            Self::Expired => "expired",
            Self::NotYetValid => "not-yet-valid",
            Self::WrongAudience => "wrong-audience",
            Self::NoUsername | Self::Username(_) => "username",
            Self::NoMatchingCaller => "no-matching-caller",
        }
    }
}

impl TokenError {
    /// Returns whether the issuer may not have signed the token. Errors about its claims are found after its signature is verified.
    pub fn is_forgery(self) -> bool {
        matches!(self, Self::Algorithm | Self::UnknownKey | Self::Signature)
    }
}

impl<'a> UnverifiedToken<'a> {
    /// Parses a token, or returns `None` if the text is no JWT.
    ///
    /// # Errors
    ///
    /// The text looks like a JWT and is too long.
    pub fn parse(text: &'a str) -> Result<Option<Self>, TokenError> {
        // The header is an object of JSON: it begins with `{"`.
        if !text.starts_with("ey") || text.bytes().filter(|byte| *byte == b'.').count() != 2 {
            return Ok(None);
        }
        if text.len() > MAX_BYTES {
            return Err(TokenError::TooLarge);
        }
        let parsed = text.rsplit_once('.').and_then(|(message, signature)| {
            let (header, claims) = message.split_once('.')?;
            let (header, claims) = (decode(header)?, decode(claims)?);
            Some(Self { header, claims, message, signature })
        });
        Ok(parsed)
    }

    /// Returns the claim `iss`, which is not verified yet.
    pub fn issuer(&self) -> Option<&str> {
        self.claim("iss")
    }

    /// Returns a claim that is a text, which is not verified yet.
    pub fn claim(&self, name: &str) -> Option<&str> {
        self.claims.get(name)?.as_str()
    }

    /// Returns whether it has a claim, which is not verified yet.
    pub fn has_claim(&self, name: &str) -> bool {
        self.claims.contains_key(name)
    }

    /// Returns the claim `exp`, in seconds since 1970, which is not verified yet.
    pub fn expires(&self) -> Option<u64> {
        seconds(self.claims.get("exp")?)
    }

    /// Returns the `kid` of the header.
    pub(super) fn key_id(&self) -> Option<&str> {
        self.header.kid.as_deref()
    }

    /// Returns the algorithm, if the policy allows it.
    pub(super) fn algorithm(&self, policy: &TokenPolicy) -> Result<Algorithm, TokenError> {
        let allowed = policy.algorithms.iter().copied();
        allowed
            .into_iter()
            .find(|algorithm| format!("{algorithm:?}") == self.header.alg)
            .ok_or(TokenError::Algorithm)
    }

    /// Verifies the signature and the claims at the time `now`, in seconds since 1970.
    ///
    /// # Errors
    ///
    /// Errors about claims are returned only if the signature is valid, so that they are no oracle.
    pub(super) fn verify(
        self,
        policy: &TokenPolicy,
        keys: &JwkSet,
        now: u64,
    ) -> Result<VerifiedToken, TokenError> {
        let algorithm = self.algorithm(policy)?;
        // RFC 7515 section 4.1.11: a token with unknown critical extensions must be refused.
        if self.header.crit.is_some() {
            return Err(TokenError::Malformed("its header has critical extensions (crit)"));
        }
        if !keys.has(self.key_id(), algorithm) {
            return Err(TokenError::UnknownKey);
        }
        if !keys.verify(self.key_id(), algorithm, self.message, self.signature) {
            return Err(TokenError::Signature);
        }
        let claims = self.claims;
        if claims.get("iss").and_then(Value::as_str) != Some(&*policy.issuer) {
            return Err(TokenError::UnknownIssuer);
        }
        let expires = check_times(&claims, policy.leeway, now)?;
        if !strings(claims.get("aud")).is_some_and(|given| {
            given.iter().any(|audience| policy.audiences.iter().any(|expected| expected == audience))
        }) {
            return Err(TokenError::WrongAudience);
        }
        let (username, impersonation) = user(&claims, policy)?;
        let streams_end = policy.stream_grace.and_then(|grace| {
            let since_epoch = Duration::from_secs(expires).checked_add(grace)?;
            UNIX_EPOCH.checked_add(since_epoch)
        });
        Ok(VerifiedToken {
            issuer: policy.name.clone(),
            claims,
            username,
            impersonation,
            expires,
            streams_end,
        })
    }
}

fn decode<T: for<'de> Deserialize<'de>>(part: &str) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

/// Checks `exp` and `nbf`, and returns the time of the expiration.
fn check_times(claims: &Claims, leeway: u64, now: u64) -> Result<u64, TokenError> {
    let expires = match claims.get("exp") {
        None => return Err(TokenError::Malformed("it never expires: exp is missing")),
        Some(time) => seconds(time).ok_or(TokenError::Malformed("its exp is not a time"))?,
    };
    let expires = expires.saturating_add(leeway);
    if now >= expires {
        return Err(TokenError::Expired);
    }
    if let Some(time) = claims.get("nbf") {
        let begin = seconds(time).ok_or(TokenError::Malformed("its nbf is not a time"))?;
        if begin > now.saturating_add(leeway) {
            return Err(TokenError::NotYetValid);
        }
    }
    Ok(expires)
}

/// Returns a `NumericDate` (RFC 7519 section 2), which may have a fraction.
fn seconds(time: &Value) -> Option<u64> {
    let time = time.as_f64().filter(|time| (0.0..1e15).contains(time))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in range")]
    Some(time as u64)
}

/// Returns the strings of a claim that is one string or a list of strings.
fn strings(claim: Option<&Value>) -> Option<Vec<&str>> {
    match claim? {
        Value::String(one) => Some(vec![one]),
        Value::Array(list) => list.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

/// Returns the name of the user, and the headers that impersonate it. The claims are checked before the prefixes are added, so that
/// no two names of an issuer differ in blanks only.
fn user(claims: &Claims, policy: &TokenPolicy) -> Result<(String, HeaderMap), TokenError> {
    let invalid = || {
        TokenError::Username(
            "its user or one of its groups is empty, begins or ends with a blank, or holds control characters",
        )
    };
    let prefixed = |mapping: &ClaimMapping, name: &str| -> Result<String, TokenError> {
        let name = IdentityValue::new(name).map_err(|_| invalid())?;
        let name = format!("{}{}", mapping.prefix, name.as_str());
        if mapping.is_reserved(&name) {
            return Err(TokenError::Username(
                "its user or one of its groups begins with system:, which belongs to Kubernetes, with gitlab:, or with the prefix of \
                 another issuer",
            ));
        }
        Ok(name)
    };
    let claim = &policy.username.claim;
    let name = claims.get(claim).and_then(Value::as_str).filter(|name| !name.is_empty());
    let name = name.ok_or(TokenError::NoUsername)?;
    // As in kube-apiserver: everybody may claim an address that was not verified.
    if claim == "email" && claims.get("email_verified").is_some_and(|verified| *verified != Value::Bool(true))
    {
        return Err(TokenError::Username("its email is not verified (email_verified)"));
    }
    let username = prefixed(&policy.username, name)?;
    let groups = match &policy.groups {
        Some(mapping) if claims.contains_key(&mapping.claim) => {
            let names = strings(claims.get(&mapping.claim)).ok_or(TokenError::Username(
                "the claim of oidc.issuers[].groups_claim is not a list of texts",
            ))?;
            names.into_iter().map(|name| prefixed(mapping, name)).collect::<Result<Vec<_>, _>>()?
        }
        _ => Vec::new(),
    };
    let user = Impersonation { username, groups, ..Impersonation::default() };
    let headers = user.headers().map_err(|_| invalid())?;
    Ok((user.username, headers))
}

#[cfg(test)]
mod tests;
