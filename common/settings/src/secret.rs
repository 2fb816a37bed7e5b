//! Secret keys that kas shares with other replicas and with programs, which may be replaced while they are in use.

use std::{fmt, sync::Arc};

use arc_swap::{ArcSwap, Guard};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit as _};
use secrecy::{ExposeSecret as _, SecretSlice};
use sha2::Sha256;

/// The smallest length of a key, in bytes: that of an HMAC-SHA-256 (RFC 2104 section 3).
const MIN_BYTES: usize = 32;

/// The largest number of keys in a file. A forged MAC is compared with each of them.
const MAX_KEYS: usize = 4;

/// The keys of a file, one per line.
///
/// The first key signs and all of them verify, so that a key can be replaced while programs have different versions of the
/// file. Clones are cheap, and share the current version of the file.
#[derive(Clone)]
pub struct Secret(Arc<ArcSwap<KeySet>>);

/// The keys of one version of the file: at least one.
pub struct KeySet(Vec<SecretKey>);

/// One key.
pub struct SecretKey {
    bytes: SecretSlice<u8>,
    /// The state of HMAC after the key, which saves half of the cost of a MAC. It is zeroized when it is dropped.
    keyed: Hmac<Sha256>,
}

/// An error of parsing the keys.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// A line is not base64.
    #[error("is not base64: `openssl rand -base64 32` makes a key")]
    NotBase64,
    /// A key is too short.
    #[error("has {0} bytes, and must have 32 or more: `openssl rand -base64 32` makes a key")]
    TooShort(usize),
    /// There are more than four keys.
    #[error("has {0} keys, one in each line, and must have 4 or fewer")]
    TooMany(usize),
}

impl Secret {
    /// Parses the text of a file: 1 to 4 keys of 32 bytes or more in base64, one in each line.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        KeySet::parse(text).map(|keys| Self(Arc::new(ArcSwap::from_pointee(keys))))
    }

    /// Returns the keys in force.
    pub fn keys(&self) -> Guard<Arc<KeySet>> {
        self.0.load()
    }

    /// Replaces the keys of this secret and of its clones by those of another one.
    pub fn replace(&self, newer: &Self) {
        self.0.store(newer.0.load_full());
    }
}

impl KeySet {
    fn parse(text: &str) -> Result<Self, SecretError> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let keys = lines.map(SecretKey::parse).collect::<Result<Vec<_>, _>>()?;
        match keys.len() {
            0 => Err(SecretError::TooShort(0)),
            1..=MAX_KEYS => Ok(Self(keys)),
            count => Err(SecretError::TooMany(count)),
        }
    }

    /// Returns the key that signs.
    pub fn signing(&self) -> &SecretKey {
        &self.0[0]
    }

    /// Iterates over the keys that verify, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &SecretKey> {
        self.0.iter()
    }
}

impl SecretKey {
    fn parse(line: &str) -> Result<Self, SecretError> {
        let bytes = BASE64_STANDARD.decode(line).map_err(|_| SecretError::NotBase64)?;
        if bytes.len() < MIN_BYTES {
            return Err(SecretError::TooShort(bytes.len()));
        }
        let keyed = Hmac::new_from_slice(&bytes).expect("any length is a key");
        Ok(Self { bytes: bytes.into(), keyed })
    }

    /// Returns an HMAC-SHA-256 of this key without a message.
    pub fn hmac(&self) -> Hmac<Sha256> {
        self.keyed.clone()
    }

    /// Returns the bytes of the key, for other algorithms than HMAC-SHA-256.
    pub fn expose_bytes(&self) -> &[u8] {
        self.bytes.expose_secret()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(byte: u8, length: usize) -> String {
        BASE64_STANDARD.encode(vec![byte; length])
    }

    #[test]
    fn secret_has_one_to_four_base64_keys_of_32_bytes() {
        let count = |text: &str| Secret::parse(text).map(|secret| secret.keys().iter().count());
        assert_eq!(count(&format!("{}\n", line(1, 32))), Ok(1));
        assert_eq!(count(&line(1, 64)), Ok(1));
        assert_eq!(count(&format!("{}\r\n\n  {}\n", line(1, 32), line(2, 32))), Ok(2));
        assert_eq!(count("no base64!"), Err(SecretError::NotBase64));
        assert_eq!(count(""), Err(SecretError::TooShort(0)));
        assert_eq!(count(&line(1, 31)), Err(SecretError::TooShort(31)));
        assert_eq!(count(&format!("{}\n{}", line(1, 32), line(1, 8))), Err(SecretError::TooShort(8)));
        assert_eq!(
            count(&[line(1, 32), line(2, 32), line(3, 32), line(4, 32), line(5, 32)].join("\n")),
            Err(SecretError::TooMany(5))
        );
    }

    #[test]
    fn secret_is_not_printed() {
        assert_eq!(format!("{:?}", Secret::parse(&line(1, 32)).unwrap()), "Secret");
    }
}
