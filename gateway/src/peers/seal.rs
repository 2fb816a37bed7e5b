//! The shared secret, and what it proves: who sends what to whom, now, and only once.
//!
//! A seal covers everything that decides what a request does: sender and receiver, agent, service, method, path, time and
//! number. It does not cover other headers and the body, nor does it hide anything: that is what TLS is for.

use std::{fmt, path::Path, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{Method, Uri};
use proto::ReplicaId;
use secrecy::{ExposeSecret as _, SecretSlice};
use sha2::Sha256;

use super::stamp::Stamp;

/// How old a request may be, or how far ahead its sender's clock: what replicas in one place can be asked for.
pub const TOLERANCE: Duration = Duration::from_secs(5);

/// Fewest bytes of a secret: as many as what is made of it has.
const LEAST: usize = 32;

/// HMAC-SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal(pub [u8; 32]);

/// What all replicas of a fleet know, and nobody else.
#[derive(Clone)]
pub struct Secret {
    key: SecretSlice<u8>,
    /// The state that HMAC begins from: half of what a seal would cost otherwise. It forgets itself.
    keyed: Hmac<Sha256>,
}

/// A file that holds no secret.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotASecret {
    /// Not as `openssl rand -base64 32` prints it.
    #[error("is not base64: `openssl rand -base64 32` makes one")]
    NotBase64,
    /// Too little to be one.
    #[error("has {0} bytes, and must have 32 or more: `openssl rand -base64 32` makes one")]
    TooShort(usize),
}

/// What a request is, as far as a seal covers it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// What it says of itself; its seal is left out.
    pub stamp: &'a Stamp,
    /// The replica that it is for.
    pub to: ReplicaId,
    /// Of the agent.
    pub service: &'a str,
    /// Of the request.
    pub method: &'a Method,
    /// Path and query.
    pub uri: &'a Uri,
}

impl Secret {
    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<Self, NotASecret> {
        let bytes = BASE64_STANDARD.decode(text.trim()).map_err(|_| NotASecret::NotBase64)?;
        match bytes.len() {
            length if length < LEAST => Err(NotASecret::TooShort(length)),
            _ => {
                let keyed = Hmac::new_from_slice(&bytes).expect("any length is a key");
                Ok(Self { key: bytes.into(), keyed })
            }
        }
    }

    /// As the key of a proof: nothing else is done with it.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.key.expose_secret()
    }

    /// Proves a request.
    pub fn seal(&self, subject: Subject<'_>) -> Seal {
        Seal(self.of_request(subject).finalize().into_bytes().into())
    }

    /// Whether the request was sealed with this secret; in constant time.
    pub fn verify(&self, subject: Subject<'_>) -> bool {
        let seal = subject.stamp.seal.as_ref();
        seal.is_some_and(|seal| self.of_request(subject).verify_slice(&seal.0).is_ok())
    }

    /// Proves an answer to the question that bore `question`.
    pub fn seal_answer(&self, question: &Seal, answer: &[&str]) -> Seal {
        Seal(self.of_answer(question, answer).finalize().into_bytes().into())
    }

    /// Whether this answers that question; in constant time.
    pub fn verify_answer(&self, question: &Seal, answer: &[&str], seal: &Seal) -> bool {
        self.of_answer(question, answer).verify_slice(&seal.0).is_ok()
    }

    /// In one piece, and what has a fixed length first: it is made twice for each request.
    fn of_request(&self, Subject { stamp, to, service, method, uri }: Subject<'_>) -> Hmac<Sha256> {
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut text = Vec::with_capacity(160 + path.len());
        text.extend_from_slice(b"kas peer request v1");
        text.extend_from_slice(&stamp.content());
        text.extend_from_slice(&to.to_bytes());
        append(&mut text, &[service, method.as_str(), path]);
        self.keyed.clone().chain_update(text)
    }

    fn of_answer(&self, question: &Seal, answer: &[&str]) -> Hmac<Sha256> {
        let mut text = b"kas peer answer v1".to_vec();
        text.extend_from_slice(&question.0);
        append(&mut text, answer);
        self.keyed.clone().chain_update(text)
    }
}

/// Each part with its length, so that nothing moves from one into the next.
fn append(text: &mut Vec<u8>, parts: &[&str]) {
    for part in parts {
        text.extend_from_slice(&(part.len() as u64).to_be_bytes());
        text.extend_from_slice(part.as_bytes());
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Whether a request that says `sent` may be answered at `now`, both in milliseconds since 1970.
pub fn timely(sent: u64, now: u64) -> bool {
    u128::from(sent.abs_diff(now)) <= TOLERANCE.as_millis()
}

/// Reads the secret of a file.
pub fn read(file: &Path) -> Result<Secret, String> {
    let text = std::fs::read_to_string(file).map_err(|error| crate::config::unreadable(&error))?;
    Secret::parse(&text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use proto::AgentId;
    use router::Class;

    use super::{super::stamp::Kind, *};

    fn secret(byte: u8) -> Secret {
        Secret::parse(&BASE64_STANDARD.encode([byte; 32])).unwrap()
    }

    #[test]
    fn a_secret_is_base64_and_long_enough() {
        assert!(Secret::parse(&format!("{}\n", BASE64_STANDARD.encode([1; 32]))).is_ok());
        assert!(Secret::parse(&BASE64_STANDARD.encode([1; 64])).is_ok());
        assert_eq!(Secret::parse("no base64!").unwrap_err(), NotASecret::NotBase64);
        assert_eq!(Secret::parse("").unwrap_err(), NotASecret::TooShort(0));
        assert_eq!(Secret::parse(&BASE64_STANDARD.encode([1; 31])).unwrap_err(), NotASecret::TooShort(31));
    }

    #[test]
    fn whatever_is_changed_breaks_the_seal() {
        let (from, to) = (ReplicaId::random(), ReplicaId::random());
        let (method, uri) = (Method::POST, Uri::from_static("/api/v1/pods?limit=1"));
        let mut stamp = Stamp {
            kind: Kind::Pass,
            from,
            agent: AgentId(1),
            class: Class::Short,
            sent: 1000,
            number: 1,
            seal: None,
        };
        let subject = Subject { stamp: &stamp, to, service: "kubernetes", method: &method, uri: &uri };
        assert!(!secret(1).verify(subject), "no seal");
        stamp.seal = Some(secret(1).seal(subject));
        let subject = Subject { stamp: &stamp, to, service: "kubernetes", method: &method, uri: &uri };
        assert!(secret(1).verify(subject));
        assert!(!secret(2).verify(subject), "another secret");

        let other = Uri::from_static("/api/v1/pods?limit=2");
        for (what, changed) in [
            ("receiver", Subject { to: from, ..subject }),
            ("service", Subject { service: "prometheus", ..subject }),
            ("method", Subject { method: &Method::DELETE, ..subject }),
            ("path", Subject { uri: &other, ..subject }),
            ("kind", Subject { stamp: &Stamp { kind: Kind::Ask, ..stamp.clone() }, ..subject }),
            ("sender", Subject { stamp: &Stamp { from: to, ..stamp.clone() }, ..subject }),
            ("agent", Subject { stamp: &Stamp { agent: AgentId(2), ..stamp.clone() }, ..subject }),
            ("class", Subject { stamp: &Stamp { class: Class::Long, ..stamp.clone() }, ..subject }),
            ("time", Subject { stamp: &Stamp { sent: 1001, ..stamp.clone() }, ..subject }),
            ("number", Subject { stamp: &Stamp { number: 2, ..stamp.clone() }, ..subject }),
        ] {
            assert!(!secret(1).verify(changed), "{what}");
        }
    }

    #[test]
    fn an_answer_is_to_one_question() {
        let (question, answer) = (Seal([1; 32]), ["holds", ""]);
        let seal = secret(1).seal_answer(&question, &answer);
        assert!(secret(1).verify_answer(&question, &answer, &seal));
        assert!(!secret(1).verify_answer(&Seal([2; 32]), &answer, &seal));
        assert!(!secret(1).verify_answer(&question, &["hold", "s"], &seal));
        assert!(!secret(2).verify_answer(&question, &answer, &seal));
    }

    #[test]
    fn a_request_is_good_for_a_few_seconds() {
        assert!(timely(10_000, 15_000) && timely(15_000, 10_000));
        assert!(!timely(10_000, 15_001) && !timely(15_001, 10_000));
        assert!(!timely(0, u64::MAX));
    }

    #[test]
    fn a_secret_does_not_show() {
        assert_eq!(format!("{:?}", secret(1)), "Secret");
    }
}
