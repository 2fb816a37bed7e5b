//! Records in a store that is not trusted.
//!
//! A reader of the store must not learn secrets, and a writer must not be able to make a record. So a record is encrypted with a key that
//! is derived from the secret of its holder, such as a cookie, and its key in the store is a hash of that secret.

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey},
    error::Unspecified,
    hkdf::{HKDF_SHA256, Salt},
};
use secrecy::zeroize::Zeroizing;
use sha2::{Digest as _, Sha256};

/// Returns the key of the record of a secret in the store.
pub fn id(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// Encrypts the text of a record for the holder of the secret. A record is opened for the same purpose only.
pub fn seal(purpose: &'static [u8], secret: &[u8], text: Vec<u8>) -> Vec<u8> {
    let mut text = Zeroizing::new(text);
    let key = key(purpose, secret).expect("the length is that of the algorithm");
    let (nonce, tag) = key
        .seal_in_place_separate_tag(Aad::from(purpose), &mut text)
        .expect("the operating system has randomness");
    [nonce.as_ref().as_slice(), text.as_slice(), tag.as_ref()].concat()
}

/// Decrypts a record. Returns `None` if it was not encrypted for this purpose and for the holder of this secret.
pub fn open(purpose: &'static [u8], secret: &[u8], mut sealed: Vec<u8>) -> Option<Zeroizing<Vec<u8>>> {
    let (nonce, encrypted) = sealed.split_at_mut_checked(NONCE_LEN)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let text = key(purpose, secret).ok()?.open_in_place(nonce, Aad::from(purpose), encrypted).ok()?;
    let text = Zeroizing::new(text.to_vec());
    drop(Zeroizing::new(sealed));
    Some(text)
}

fn key(purpose: &'static [u8], secret: &[u8]) -> Result<RandomizedNonceKey, Unspecified> {
    let mut key = Zeroizing::new([0; 32]);
    let derived = Salt::new(HKDF_SHA256, &[]).extract(secret);
    derived.expand(&[purpose], HKDF_SHA256)?.fill(&mut *key)?;
    RandomizedNonceKey::new(&AES_256_GCM, &*key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PURPOSE: &[u8] = b"test 1";
    const SECRET: &[u8] = b"BQuNYpXcHGmVXPAaWzTGUS0_VrAcEqIlwDo2v8EzTmw";

    fn sealed() -> Vec<u8> {
        seal(PURPOSE, SECRET, b"a secret text".to_vec())
    }

    #[test]
    fn record_is_opened_with_its_secret() {
        assert_eq!(open(PURPOSE, SECRET, sealed()).unwrap().as_slice(), b"a secret text");
        assert!(!sealed().windows(6).any(|part| part == b"secret"));
        assert_ne!(sealed(), sealed(), "each record has a nonce of its own");
    }

    #[test]
    fn changed_or_foreign_record_is_refused() {
        for (index, _) in sealed().iter().enumerate() {
            let mut changed = sealed();
            changed[index] ^= 1;
            assert!(open(PURPOSE, SECRET, changed).is_none(), "byte {index}");
        }
        assert!(open(PURPOSE, b"other", sealed()).is_none());
        assert!(open(b"test 2", SECRET, sealed()).is_none());
        assert!(open(PURPOSE, SECRET, sealed()[..20].to_vec()).is_none());
        for garbage in [&b""[..], b"x", &[0; 12], &[0; 28], &[0xff; 70_000]] {
            assert!(open(PURPOSE, SECRET, garbage.to_vec()).is_none());
        }
        assert_ne!(id(SECRET), id(b"other"));
    }
}
