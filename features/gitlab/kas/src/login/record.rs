//! The record of a login in the store, which is not trusted: only the holder of the token of the login can open it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use access::sealed;
use oidc::Tokens;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use store::SessionId;

/// The version of the record, and the purpose of its key.
const PURPOSE: &[u8] = b"kas gitlab login 1";

/// The contents of a record.
#[derive(Debug)]
pub(super) struct LoginRecord {
    /// The tokens of GitLab.
    pub(super) tokens: Tokens,
    /// The time at which the login ends, in whole seconds.
    pub(super) end: SystemTime,
}

#[derive(Serialize, Deserialize)]
struct Contents {
    access_token: String,
    refresh_token: Option<String>,
    expires: u64,
    end: u64,
}

/// Returns the key of the login of a token in the store.
pub(super) fn id(token: &SecretString) -> SessionId {
    SessionId(sealed::id(token.expose_secret().as_bytes()))
}

impl LoginRecord {
    /// Encrypts the record for the holder of the token.
    pub(super) fn seal(&self, token: &SecretString) -> Vec<u8> {
        let Self { tokens, end } = self;
        let contents = Contents {
            access_token: tokens.token.expose_secret().to_owned(),
            refresh_token: tokens.refresh_token.as_ref().map(|token| token.expose_secret().to_owned()),
            expires: tokens.expires,
            end: end.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        };
        let text = serde_json::to_vec(&contents).expect("it has keys that are text");
        sealed::seal(PURPOSE, token.expose_secret().as_bytes(), text)
    }

    /// Decrypts a record. Returns `None` if it was not encrypted for the holder of the token.
    pub(super) fn open(token: &SecretString, sealed: Vec<u8>) -> Option<Self> {
        let text = sealed::open(PURPOSE, token.expose_secret().as_bytes(), sealed)?;
        let Contents { access_token, refresh_token, expires, end } = serde_json::from_slice(&text).ok()?;
        let tokens =
            Tokens { token: access_token.into(), expires, refresh_token: refresh_token.map(Into::into) };
        Some(Self { tokens, end: UNIX_EPOCH + Duration::from_secs(end) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_is_opened_with_the_token_of_its_login() {
        let (token, other) = (SecretString::from("kas-gitlab-login-a"), SecretString::from("other"));
        let end = UNIX_EPOCH + Duration::from_secs(1_900_000_000);
        for refresh_token in [None, Some(SecretString::from("refresh"))] {
            let tokens = Tokens { token: "secret".into(), expires: 1_800_000_000, refresh_token };
            let sealed = LoginRecord { tokens: tokens.clone(), end }.seal(&token);
            assert!(!sealed.windows(6).any(|part| part == b"secret"));
            assert!(LoginRecord::open(&other, sealed.clone()).is_none());
            let opened = LoginRecord::open(&token, sealed).unwrap();
            assert_eq!(
                (opened.tokens.token.expose_secret(), opened.tokens.expires),
                ("secret", 1_800_000_000)
            );
            assert_eq!(opened.tokens.refresh_token.is_some(), tokens.refresh_token.is_some());
            assert_eq!(opened.end, end);
        }
        assert_ne!(id(&token), id(&other));
    }
}
