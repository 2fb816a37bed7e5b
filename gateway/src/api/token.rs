//! The token that a program shows: a JWT that is made with the shared secret, as GitLab makes it for its kas.
//!
//! HS256, HS384 or HS512; `aud` is `gitlab-kas`; `exp` and `nbf` count where they are there, to the second. Who made it
//! (`iss`) does not matter: whoever has the secret may ask.

use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, header::AUTHORIZATION};
use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, Validation,
    crypto::{CryptoProvider, JwtVerifier, KeyUtils},
    decode,
    errors::{Error, ErrorKind},
    signature,
};
use serde::de::IgnoredAny;
use sha2::{Sha256, Sha384, Sha512};

use crate::peers::seal::Secret;

/// Whom tokens are for, as GitLab calls it.
const AUDIENCE: &str = "gitlab-kas";

/// Longest token.
const MAX_LENGTH: usize = 4096;

/// Says whether a token is good. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Verifier(Arc<(DecodingKey, Validation)>);

/// Why a request is not from somebody who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Nothing that could be good.
    #[error("a token is missing: send `Authorization: Bearer <JWT>`, made with the secret of api.listen")]
    NoToken,
    /// One that is not.
    #[error("the token is not good: {0}")]
    Bad(&'static str),
}

impl Verifier {
    /// Believes whoever has this secret.
    pub fn new(secret: &Secret) -> Self {
        // Fails if it was done before, which is as good.
        let _ = PROVIDER.install_default();
        let mut validation = Validation::new_for_family(AlgorithmFamily::Hmac);
        validation.leeway = 0;
        validation.validate_nbf = true;
        validation.set_audience(&[AUDIENCE]);
        validation.set_required_spec_claims(&["aud"]);
        Self(Arc::new((DecodingKey::from_secret(secret.bytes()), validation)))
    }

    /// Whether these are the headers of somebody who may ask.
    pub fn verify(&self, headers: &HeaderMap) -> Result<(), Denied> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return Err(Denied::NoToken);
        };
        let (scheme, token) =
            value.to_str().ok().and_then(|value| value.split_once(' ')).ok_or(Denied::NoToken)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(Denied::NoToken);
        }
        self.check(token.trim())
    }

    /// Whether a token is good.
    pub fn check(&self, token: &str) -> Result<(), Denied> {
        if token.len() > MAX_LENGTH {
            return Err(Denied::Bad("it is longer than 4096 bytes"));
        }
        let (key, validation) = &*self.0;
        let token =
            decode::<IgnoredAny>(token, key, validation).map_err(|error| Denied::Bad(reason(&error)))?;
        match token.header.crit {
            // RFC 7515 section 4.1.11: who does not understand these must refuse.
            Some(_) => Err(Denied::Bad("its head names extensions that kas does not know")),
            None => Ok(()),
        }
    }
}

fn reason(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::InvalidSignature => {
            "it is not made with the secret of api.listen.authentication_secret_file"
        }
        ErrorKind::ExpiredSignature => "it has expired (exp)",
        ErrorKind::ImmatureSignature => "it is not good yet (nbf)",
        ErrorKind::InvalidAudience | ErrorKind::MissingRequiredClaim(_) => "it is not for gitlab-kas (aud)",
        ErrorKind::InvalidClaimFormat(_) => "its exp or nbf is not a number of seconds",
        ErrorKind::InvalidAlgorithm => "it is not signed with HS256, HS384 or HS512",
        _ => "it is not a JWT",
    }
}

/// HMAC with what the rest of kas uses. Nothing is signed here.
static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: |algorithm, key| match algorithm {
        Algorithm::HS256 => hmac::<Hmac<Sha256>>(Algorithm::HS256, key),
        Algorithm::HS384 => hmac::<Hmac<Sha384>>(Algorithm::HS384, key),
        Algorithm::HS512 => hmac::<Hmac<Sha512>>(Algorithm::HS512, key),
        _ => Err(ErrorKind::UnsupportedAlgorithm.into()),
    },
    key_utils: KeyUtils::new_unimplemented(),
};

struct HmacVerifier<M> {
    algorithm: Algorithm,
    keyed: M,
}

fn hmac<M>(algorithm: Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error>
where
    M: Mac + KeyInit + Clone + 'static,
{
    let keyed = M::new_from_slice(key.try_get_as_bytes()?).expect("any length is a key");
    Ok(Box::new(HmacVerifier { algorithm, keyed }))
}

impl<M: Mac + Clone> signature::Verifier<Vec<u8>> for HmacVerifier<M> {
    /// In constant time.
    fn verify(&self, message: &[u8], seal: &Vec<u8>) -> Result<(), signature::Error> {
        let computed = self.keyed.clone().chain_update(message);
        computed.verify_slice(seal).map_err(|_| signature::Error::new())
    }
}

impl<M: Mac + Clone> JwtVerifier for HmacVerifier<M> {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
