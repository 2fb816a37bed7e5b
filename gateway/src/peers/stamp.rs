//! What a request between two replicas says of itself, in the one header `Kas-Peer`.
//!
//! ```text
//! v1 <base64url of>  kind class sender agent milliseconds number [seal]
//!              bytes    1     1     16     8            8      8     32
//! ```
//!
//! Made and read for every request that goes through a peer: fixed places, and one spelling of each content.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{HeaderName, HeaderValue};
use proto::{AgentId, ReplicaId};
use router::Class;

use super::seal::Seal;

/// The header. What begins with `Kas-` never comes from a caller, nor from a cluster.
pub const STAMP: HeaderName = HeaderName::from_static("kas-peer");

const VERSION: &str = "v1 ";

/// Length of all but the seal.
const CONTENT: usize = 42;
/// Length of all.
const SEALED: usize = CONTENT + 32;

/// Which of the requests it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Do you hold this agent?
    Ask,
    /// Pass this on to the agent.
    Pass,
    /// Are you there?
    Greet,
    /// Greet me, at the address that the directory says.
    Call,
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

impl Stamp {
    /// As it travels.
    pub fn encode(&self) -> HeaderValue {
        let mut bytes = [0; SEALED];
        bytes[..CONTENT].copy_from_slice(&self.content());
        let length = match self.seal {
            Some(Seal(seal)) => {
                bytes[CONTENT..].copy_from_slice(&seal);
                SEALED
            }
            None => CONTENT,
        };
        let mut text = String::with_capacity(VERSION.len() + SEALED * 4 / 3 + 1);
        text.push_str(VERSION);
        BASE64_URL_SAFE_NO_PAD.encode_string(&bytes[..length], &mut text);
        let mut value = HeaderValue::try_from(text).expect("base64 is ASCII");
        // Never the same twice: it has no place in HPACK's tables.
        value.set_sensitive(true);
        value
    }

    /// Reads what [`Stamp::encode`] wrote, and nothing else.
    pub fn decode(value: &HeaderValue) -> Result<Self, Malformed> {
        // The library wants room for whole groups of three.
        let mut bytes = [0; SEALED.next_multiple_of(3)];
        let text = value.as_bytes().strip_prefix(VERSION.as_bytes()).ok_or(Malformed)?;
        let length = BASE64_URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).map_err(|_| Malformed)?;
        let (content, seal) = bytes[..length].split_first_chunk::<CONTENT>().ok_or(Malformed)?;
        let (&[kind, class], content) = content.split_first_chunk().expect("so long it is");
        let (from, content) = content.split_first_chunk().expect("so long it is");
        let (numbers, _) = content.as_chunks();
        let [agent, sent, number] = [numbers[0], numbers[1], numbers[2]].map(u64::from_be_bytes);
        Ok(Self {
            kind: match kind {
                0 => Kind::Ask,
                1 => Kind::Pass,
                2 => Kind::Greet,
                3 => Kind::Call,
                _ => return Err(Malformed),
            },
            class: match class {
                0 => Class::Short,
                1 => Class::Long,
                _ => return Err(Malformed),
            },
            from: ReplicaId::from_bytes(*from),
            agent: AgentId(agent),
            sent,
            number,
            seal: match seal {
                [] => None,
                seal => Some(Seal(seal.try_into().map_err(|_| Malformed)?)),
            },
        })
    }

    /// All but the seal: what a seal covers.
    pub(super) fn content(&self) -> [u8; CONTENT] {
        let Self { kind, class, from, agent, sent, number, seal: _ } = self;
        let mut content = [0; CONTENT];
        content[0] = match kind {
            Kind::Ask => 0,
            Kind::Pass => 1,
            Kind::Greet => 2,
            Kind::Call => 3,
        };
        content[1] = match class {
            Class::Short => 0,
            Class::Long => 1,
        };
        content[2..18].copy_from_slice(&from.to_bytes());
        for (place, number) in content[18..].as_chunks_mut().0.iter_mut().zip([agent.0, *sent, *number]) {
            *place = number.to_be_bytes();
        }
        content
    }
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
        let greeting = |kind| Stamp { kind, agent: AgentId(0), ..stamp() };
        let question = Stamp { kind: Kind::Ask, class: Class::Short, seal: None, ..stamp() };
        for stamp in [stamp(), question, greeting(Kind::Greet), greeting(Kind::Call)] {
            assert_eq!(Stamp::decode(&stamp.encode()).unwrap(), stamp);
        }
    }

    #[test]
    fn anything_else_is_malformed() {
        let good = stamp().encode().to_str().unwrap().to_owned();
        let bytes = |bytes: &[u8]| format!("v1 {}", BASE64_URL_SAFE_NO_PAD.encode(bytes));
        let of = |kind: u8, class: u8, length: usize| {
            let mut content = vec![7; length];
            content[..2].copy_from_slice(&[kind, class]);
            bytes(&content)
        };
        assert!(Stamp::decode(&HeaderValue::try_from(of(1, 1, CONTENT)).unwrap()).is_ok());
        for bad in [
            String::new(),
            "v1 ".to_owned(),
            good.replace("v1", "v2"),
            good.replace(' ', "  "),
            of(4, 0, CONTENT),
            of(0, 2, CONTENT),
            of(0, 0, CONTENT - 1),
            of(0, 0, CONTENT + 1),
            of(0, 0, SEALED - 1),
            of(0, 0, SEALED + 1),
            of(0, 0, 300),
            format!("{good} more"),
            format!("{good}="),
            // Bits behind the last byte, which would be another spelling.
            format!("{}_", &good[..good.len() - 1]),
        ] {
            let value = HeaderValue::try_from(&bad).unwrap();
            assert_eq!(Stamp::decode(&value), Err(Malformed), "{bad}");
        }
    }
}
