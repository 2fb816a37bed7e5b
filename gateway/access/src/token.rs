//! Tokens of agents and callers. kas stores only their hashes, and compares these in constant time.

use std::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// Random bytes of a token. They cannot be guessed, so that a fast hash is safe for storage.
const RANDOM_BYTES: usize = 32;

/// The beginning of all tokens that kas creates.
pub const PREFIX: &str = "kas-";

/// SHA-256 of a token.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub struct TokenHash([u8; 32]);

/// The error of a text that is not the hash of a token.
#[derive(Debug, thiserror::Error)]
#[error("the hash of a token is 'sha256:' and 64 hexadecimal digits, as `kas token new` prints it")]
pub struct TokenHashError;

/// Creates a random token for an agent (`kas-agent-…`) or a caller (`kas-caller-…`).
pub fn new(holder: Holder) -> SecretString {
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random).expect("the operating system has randomness");
    let prefix = match holder {
        Holder::Agent => "kas-agent-",
        Holder::Caller => "kas-caller-",
    };
    format!("{prefix}{}", URL_SAFE_NO_PAD.encode(random)).into()
}

/// The holder of a token, which its prefix shows to people and to secret scanners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Holder {
    /// An agent in a cluster.
    Agent,
    /// A person, a job or a program that uses clusters.
    Caller,
}

impl TokenHash {
    /// Hashes a token.
    pub fn of(token: &SecretString) -> Self {
        Self(Sha256::digest(token.expose_secret().as_bytes()).into())
    }

    /// Hashes a token together with the purpose for which it is used, and with the CSRF token that belongs to it.
    pub fn of_credential(purpose: &str, token: &SecretString, csrf_token: Option<&SecretString>) -> Self {
        let mut digest = Sha256::new();
        // With their lengths, two different lists are never the same bytes.
        for part in [Some(purpose), Some(token.expose_secret()), csrf_token.map(|csrf| csrf.expose_secret())]
        {
            digest.update(part.map_or(u64::MAX, |part| part.len() as u64).to_le_bytes());
            digest.update(part.unwrap_or_default());
        }
        Self(digest.finalize().into())
    }

    /// Returns an id of the token for Redis. Neither the token nor its hash can be computed from it.
    pub fn digest(&self) -> [u8; 16] {
        let digest = Sha256::new().chain_update(b"kas limit\0").chain_update(self.0).finalize();
        *digest.first_chunk().expect("a digest has 32 bytes")
    }
}

impl PartialEq for TokenHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for TokenHash {}

impl std::hash::Hash for TokenHash {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl FromStr for TokenHash {
    type Err = TokenHashError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hex = text.strip_prefix("sha256:").filter(|hex| hex.len() == 64).ok_or(TokenHashError)?;
        let mut hash = [0; 32];
        for (byte, digits) in hash.iter_mut().zip(hex.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| TokenHashError)?;
            if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(TokenHashError);
            }
            *byte = u8::from_str_radix(digits, 16).map_err(|_| TokenHashError)?;
        }
        Ok(Self(hash))
    }
}

impl TryFrom<String> for TokenHash {
    type Error = TokenHashError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl TokenHash {
    /// Returns the first 8 hexadecimal digits, which tell the tokens of one holder apart.
    pub fn short(&self) -> String {
        self.0.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_parsed_as_printed() {
        let hash = TokenHash::of(&new(Holder::Agent));
        assert_eq!(hash.to_string().parse::<TokenHash>().unwrap(), hash);
        for bad in ["", "sha256:", "sha256:00", &format!("sha256:{}", "+1".repeat(32)), &"0".repeat(64)] {
            assert!(bad.parse::<TokenHash>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn hash_of_a_credential_depends_on_each_part() {
        let hash = |purpose: &str, token: &str, csrf: Option<&str>| {
            let csrf = csrf.map(SecretString::from);
            TokenHash::of_credential(purpose, &SecretString::from(token), csrf.as_ref())
        };
        let hashes = [
            hash("ci", "ab", None),
            hash("ci", "ab", Some("")),
            hash("ci", "a", Some("b")),
            hash("cia", "b", None),
            hash("pat", "ab", None),
            TokenHash::of(&SecretString::from("ab")),
        ];
        for (index, one) in hashes.iter().enumerate() {
            assert!(!hashes[index + 1..].contains(one), "{index}");
        }
        assert_eq!(hash("ci", "ab", None), hashes[0]);
    }

    #[test]
    fn tokens_are_random_and_have_the_prefix_of_their_holder() {
        let (a, b) = (new(Holder::Agent), new(Holder::Caller));
        assert!(a.expose_secret().starts_with("kas-agent-"));
        assert!(b.expose_secret().starts_with("kas-caller-"));
        assert_ne!(TokenHash::of(&a), TokenHash::of(&new(Holder::Agent)));
    }
}
