//! What a request between two replicas says of itself, in the one header `Kas-Peer`.
//!
//! ```text
//! v1 pass c4f16e7a5d0b4d0f8a5b7c0d9e8f7a6b 42 short 1763729690123 17 <seal, or "-">
//!    kind sender                           agent class milliseconds number
//! ```

use std::str::FromStr;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{HeaderName, HeaderValue};
use proto::{AgentId, ReplicaId};
use router::Class;

use super::seal::Seal;

/// The header. What begins with `Kas-` never comes from a caller, nor from a cluster.
pub const STAMP: HeaderName = HeaderName::from_static("kas-peer");

/// Longest value that is read.
const MAX_LENGTH: usize = 256;

const VERSION: &str = "v1";
const NO_SEAL: &str = "-";

/// Which of the two requests it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Do you hold this agent?
    Ask,
    /// Pass this on to the agent.
    Pass,
}

/// The header's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Which request.
    pub kind: Kind,
    /// The replica that sends it.
    pub from: ReplicaId,
    /// The agent that it is for.
    pub agent: AgentId,
    /// What kind of load it is.
    pub class: Class,
    /// When it was sent, in milliseconds since 1970.
    pub sent: u64,
    /// Never the same twice from one sender.
    pub number: u64,
    /// Proves all of that, where the replicas share a secret.
    pub seal: Option<Seal>,
}

/// A header that no replica of this version would send.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the header kas-peer is not one of version v1: the replicas must run the same version of kas, or two in a row"
)]
pub struct Malformed;

impl Kind {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Pass => "pass",
        }
    }
}

/// The word on the wire.
pub(super) const fn class_word(class: Class) -> &'static str {
    match class {
        Class::Short => "short",
        Class::Long => "long",
    }
}

impl Stamp {
    /// As it travels.
    pub fn encode(&self) -> HeaderValue {
        let Self { kind, from, agent, class, sent, number, seal } = self;
        let seal = seal.map_or_else(|| NO_SEAL.to_owned(), |seal| BASE64_URL_SAFE_NO_PAD.encode(seal.0));
        let (kind, class) = (kind.as_str(), class_word(*class));
        let text = format!("{VERSION} {kind} {from} {agent} {class} {sent} {number} {seal}");
        let mut value = HeaderValue::try_from(text).expect("words and numbers are ASCII");
        // Never the same twice: it has no place in HPACK's tables.
        value.set_sensitive(true);
        value
    }

    /// Reads what [`Stamp::encode`] wrote, and nothing else.
    pub fn decode(value: &HeaderValue) -> Result<Self, Malformed> {
        let text = value.to_str().ok().filter(|text| text.len() <= MAX_LENGTH).ok_or(Malformed)?;
        let words: Vec<&str> = text.split(' ').collect();
        let [VERSION, kind, from, agent, class, sent, number, seal] = words[..] else {
            return Err(Malformed);
        };
        let stamp = Self {
            kind: match kind {
                "ask" => Kind::Ask,
                "pass" => Kind::Pass,
                _ => return Err(Malformed),
            },
            from: read(from)?,
            agent: read(agent)?,
            class: match class {
                "short" => Class::Short,
                "long" => Class::Long,
                _ => return Err(Malformed),
            },
            sent: read(sent)?,
            number: read(number)?,
            seal: match seal {
                NO_SEAL => None,
                seal => Some(Seal(
                    BASE64_URL_SAFE_NO_PAD
                        .decode(seal)
                        .ok()
                        .and_then(|s| s.try_into().ok())
                        .ok_or(Malformed)?,
                )),
            },
        };
        // One spelling: what is sealed is the content, and two texts must not have the same.
        if stamp.encode() == *value { Ok(stamp) } else { Err(Malformed) }
    }
}

fn read<T: FromStr>(word: &str) -> Result<T, Malformed> {
    word.parse().map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp() -> Stamp {
        Stamp {
            kind: Kind::Pass,
            from: ReplicaId::random(),
            agent: AgentId(42),
            class: Class::Long,
            sent: u64::MAX,
            number: 17,
            seal: Some(Seal([9; 32])),
        }
    }

    #[test]
    fn it_reads_back_what_it_writes() {
        for stamp in [stamp(), Stamp { kind: Kind::Ask, class: Class::Short, seal: None, ..stamp() }] {
            assert_eq!(Stamp::decode(&stamp.encode()).unwrap(), stamp);
            assert!(stamp.encode().len() <= MAX_LENGTH);
        }
    }

    #[test]
    fn anything_else_is_malformed() {
        let good = stamp().encode().to_str().unwrap().to_owned();
        for bad in [
            String::new(),
            good.replace("v1", "v2"),
            good.replace("pass", "push"),
            good.replace("long", "Long"),
            good.replace(" 17 ", " +17 "),
            good.replace(" 17 ", " 017 "),
            good.replace(" 42 ", "  42 "),
            good.to_uppercase(),
            format!("{good} more"),
            format!("{good}="),
            good.replace(" 17 ", &format!(" {} ", "1".repeat(300))),
        ] {
            let value = HeaderValue::try_from(&bad).unwrap();
            assert_eq!(Stamp::decode(&value), Err(Malformed), "{bad}");
        }
    }
}
