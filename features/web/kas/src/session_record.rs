//! The record of a session in the store, which is not trusted.
//!
//! A reader of the store must not learn tokens, and a writer must not be able to make a session. So the record is encrypted with a key that
//! is derived from the cookie, which only the browser has, and its key in the store is a hash of the cookie.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey},
    error::Unspecified,
    hkdf::{HKDF_SHA256, Salt},
};
use secrecy::{ExposeSecret as _, SecretString, zeroize::Zeroizing};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use store::{SessionHolder, SessionId};

/// The version of the record, and the purpose of its key.
const PURPOSE: &[u8] = b"kas web session 1";

/// The contents of a session.
#[derive(Debug)]
pub(super) struct SessionRecord {
    pub(super) token: SecretString,
    pub(super) holder: SessionHolder,
    /// A time of the clocks of replicas, in whole seconds.
    pub(super) end: SystemTime,
}

#[derive(Serialize, Deserialize)]
struct Contents<'a> {
    #[serde(borrow)]
    token: Cow<'a, str>,
    holder: [u8; 16],
    end: u64,
}

/// Returns the key of the session of a cookie in the store.
pub(super) fn id(cookie: &[u8]) -> SessionId {
    SessionId(Sha256::digest(cookie).into())
}

impl SessionRecord {
    /// Encrypts the record for the holder of the cookie.
    pub(super) fn seal(&self, cookie: &[u8]) -> Vec<u8> {
        let end = self.end.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let contents = Contents { token: self.token.expose_secret().into(), holder: self.holder.0, end };
        let mut text = Zeroizing::new(serde_json::to_vec(&contents).expect("it has keys that are text"));
        let key = key(cookie).expect("the length is that of the algorithm");
        let (nonce, tag) = key
            .seal_in_place_separate_tag(Aad::from(PURPOSE), &mut text)
            .expect("the operating system has randomness");
        [nonce.as_ref().as_slice(), text.as_slice(), tag.as_ref()].concat()
    }

    /// Decrypts a record. Returns `None` if it was not encrypted for the holder of the cookie.
    pub(super) fn open(cookie: &[u8], mut sealed: Vec<u8>) -> Option<Self> {
        let (nonce, encrypted) = sealed.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let text = key(cookie).ok()?.open_in_place(nonce, Aad::from(PURPOSE), encrypted).ok()?;
        let record = serde_json::from_slice(text).ok().map(|Contents { token, holder, end }| Self {
            token: token.into_owned().into(),
            holder: SessionHolder(holder),
            end: UNIX_EPOCH + Duration::from_secs(end),
        });
        drop(Zeroizing::new(sealed));
        record
    }
}

fn key(cookie: &[u8]) -> Result<RandomizedNonceKey, Unspecified> {
    let mut key = Zeroizing::new([0; 32]);
    let derived = Salt::new(HKDF_SHA256, &[]).extract(cookie);
    derived.expand(&[PURPOSE], HKDF_SHA256)?.fill(&mut *key)?;
    RandomizedNonceKey::new(&AES_256_GCM, &*key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COOKIE: &[u8] = b"BQuNYpXcHGmVXPAaWzTGUS0_VrAcEqIlwDo2v8EzTmw";

    fn sealed() -> Vec<u8> {
        let end = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let holder = SessionHolder([7; 16]);
        SessionRecord { token: "kas-caller-\"secret\"".into(), holder, end }.seal(COOKIE)
    }

    #[test]
    fn record_is_opened_with_its_cookie() {
        let record = SessionRecord::open(COOKIE, sealed()).unwrap();
        assert_eq!(record.token.expose_secret(), "kas-caller-\"secret\"");
        assert_eq!(record.holder, SessionHolder([7; 16]));
        assert_eq!(record.end, UNIX_EPOCH + Duration::from_secs(1_800_000_000));
        assert!(!sealed().windows(6).any(|part| part == b"secret"));
        assert_ne!(sealed(), sealed(), "each record has a nonce of its own");
    }

    #[test]
    fn changed_or_foreign_record_is_refused() {
        for (index, _) in sealed().iter().enumerate() {
            let mut changed = sealed();
            changed[index] ^= 1;
            assert!(SessionRecord::open(COOKIE, changed).is_none(), "byte {index}");
        }
        let (other, cut) = (SessionRecord::open(b"other", sealed()), sealed()[..20].to_vec());
        assert!(other.is_none() && SessionRecord::open(COOKIE, cut).is_none());
        for garbage in [&b""[..], b"x", &[0; 12], &[0; 28], &[0xff; 70_000]] {
            assert!(SessionRecord::open(COOKIE, garbage.to_vec()).is_none());
        }
        assert_ne!(id(COOKIE), id(b"other"));
    }
}
