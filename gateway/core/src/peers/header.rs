//! `Kas-Peer`: the header of every request between two replicas.
//!
//! ```text
//! v2 <base64url of>  kind class sender agent sent_ms sequence [MAC]
//!              bytes    1     1     16     8       8        8    32
//! ```
//!
//! Every forwarded request has this header. The fields have fixed positions, and each content has exactly one encoding, so
//! that a signed header cannot be written in a second way.

use std::time::SystemTime;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{HeaderName, HeaderValue};
use proto::{AgentId, ReplicaId};
use router::RequestClass;

/// The name of the header. kas removes headers that begin with `Kas-` from requests of callers and from responses of
/// clusters.
pub const PEER_HEADER: HeaderName = HeaderName::from_static("kas-peer");

const VERSION: &str = "v2 ";

/// The length of the decoded header without its MAC.
const CONTENT_LENGTH: usize = 42;
/// The length of the decoded header with its MAC.
const MAX_LENGTH: usize = CONTENT_LENGTH + 32;

/// An HMAC-SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 32]);

/// The kind of a request between two replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRequestKind {
    /// A check whether the receiver has a tunnel for such a request. It has no effects.
    Probe,
    /// A caller's request, which the receiver sends into one of its tunnels.
    Forward,
    /// A check whether the receiver is the expected replica and accepts requests of the sender.
    Ping,
    /// A request to ping the sender at its address in the route store.
    PingBack,
    /// A question of a feature, for a reader of the web page or of the audit log of a cluster.
    Question,
}

/// The decoded header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerHeader {
    /// The kind of the request.
    pub kind: PeerRequestKind,
    /// The replica that sent the request.
    pub from: ReplicaId,
    /// The agent that the request is for; 0 in a ping.
    pub agent: AgentId,
    /// The kind of load that the request is.
    pub class: RequestClass,
    /// The time when the request was sent by the clock of the sender, in milliseconds since 1970.
    pub sent_ms: u64,
    /// A number that the sender uses once.
    pub sequence: u64,
    /// The MAC of the request, if the replicas share a secret.
    pub mac: Option<Mac>,
}

/// An error of decoding a `Kas-Peer` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The header is missing, or has another format.
    #[error(
        "the header kas-peer is not one of version v2: the replicas must run the same version of kas, or two in a row (not 0.1.0)"
    )]
    Malformed,
    /// The header of a response has no MAC, or that of another response.
    #[error("the MAC of the header kas-peer is not valid")]
    InvalidMac,
}

impl PeerHeader {
    /// Encodes the header.
    pub fn encode(&self) -> HeaderValue {
        let mut bytes = [0; MAX_LENGTH];
        bytes[..CONTENT_LENGTH].copy_from_slice(&self.content());
        let length = match self.mac {
            Some(Mac(mac)) => {
                bytes[CONTENT_LENGTH..].copy_from_slice(&mac);
                MAX_LENGTH
            }
            None => CONTENT_LENGTH,
        };
        let mut text = String::with_capacity(VERSION.len() + MAX_LENGTH * 4 / 3 + 1);
        text.push_str(VERSION);
        BASE64_URL_SAFE_NO_PAD.encode_string(&bytes[..length], &mut text);
        let mut value = HeaderValue::try_from(text).expect("base64 is ASCII");
        // No two values are the same, so an entry in HPACK's dynamic table would be useless (RFC 7541 section 6.2.3).
        value.set_sensitive(true);
        value
    }

    /// Decodes a header. Fails with [`DecodeError::Malformed`] unless [`PeerHeader::encode`] returns the same bytes for it.
    pub fn decode(value: &HeaderValue) -> Result<Self, DecodeError> {
        // `decode_slice` needs room for whole groups of three bytes.
        let mut bytes = [0; MAX_LENGTH.next_multiple_of(3)];
        let text = value.as_bytes().strip_prefix(VERSION.as_bytes()).ok_or(DecodeError::Malformed)?;
        let length =
            BASE64_URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).map_err(|_| DecodeError::Malformed)?;
        let (content, mac) =
            bytes[..length].split_first_chunk::<CONTENT_LENGTH>().ok_or(DecodeError::Malformed)?;
        let (&[kind, class], content) = content.split_first_chunk().expect("content has 42 bytes");
        let (from, content) = content.split_first_chunk().expect("content has 42 bytes");
        let (numbers, _) = content.as_chunks();
        let [agent, sent_ms, sequence] = [numbers[0], numbers[1], numbers[2]].map(u64::from_be_bytes);
        Ok(Self {
            kind: match kind {
                0 => PeerRequestKind::Probe,
                1 => PeerRequestKind::Forward,
                2 => PeerRequestKind::Ping,
                3 => PeerRequestKind::PingBack,
                4 => PeerRequestKind::Question,
                _ => return Err(DecodeError::Malformed),
            },
            class: match class {
                0 => RequestClass::Short,
                1 => RequestClass::Streaming,
                _ => return Err(DecodeError::Malformed),
            },
            from: ReplicaId::from_bytes(*from),
            agent: AgentId(agent),
            sent_ms,
            sequence,
            mac: match mac {
                [] => None,
                mac => Some(Mac(mac.try_into().map_err(|_| DecodeError::Malformed)?)),
            },
        })
    }

    /// Returns the bytes of all fields but the MAC: the MAC covers them.
    pub(super) fn content(&self) -> [u8; CONTENT_LENGTH] {
        let Self { kind, class, from, agent, sent_ms, sequence, mac: _ } = self;
        let mut content = [0; CONTENT_LENGTH];
        content[0] = match kind {
            PeerRequestKind::Probe => 0,
            PeerRequestKind::Forward => 1,
            PeerRequestKind::Ping => 2,
            PeerRequestKind::PingBack => 3,
            PeerRequestKind::Question => 4,
        };
        content[1] = match class {
            RequestClass::Short => 0,
            RequestClass::Streaming => 1,
        };
        content[2..18].copy_from_slice(&from.to_bytes());
        content[18..26].copy_from_slice(&agent.0.to_be_bytes());
        content[26..34].copy_from_slice(&sent_ms.to_be_bytes());
        content[34..].copy_from_slice(&sequence.to_be_bytes());
        content
    }
}

/// Returns the time of this replica's clock, in milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> PeerHeader {
        PeerHeader {
            kind: PeerRequestKind::Forward,
            from: ReplicaId::random(),
            agent: AgentId(42),
            class: RequestClass::Streaming,
            sent_ms: u64::MAX,
            sequence: 17,
            mac: Some(Mac([9; 32])),
        }
    }

    #[test]
    fn encoded_header_decodes_to_the_same_fields() {
        let ping = |kind| PeerHeader { kind, agent: AgentId(0), ..header() };
        let probe =
            PeerHeader { kind: PeerRequestKind::Probe, class: RequestClass::Short, mac: None, ..header() };
        for header in [
            header(),
            probe,
            ping(PeerRequestKind::Ping),
            ping(PeerRequestKind::PingBack),
            ping(PeerRequestKind::Question),
        ] {
            assert_eq!(PeerHeader::decode(&header.encode()).unwrap(), header);
        }
    }

    /// Replicas of two versions run side by side in a rolling update.
    #[test]
    fn encoding_is_that_of_v2() {
        let header = PeerHeader { from: ReplicaId::from_bytes([0xab; 16]), ..header() };
        assert_eq!(
            header.encode(),
            "v2 AQGrq6urq6urq6urq6urq6urAAAAAAAAACr__________wAAAAAAAAARCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk"
        );
    }

    #[test]
    fn other_encodings_are_malformed() {
        let good = header().encode().to_str().unwrap().to_owned();
        let encode = |bytes: &[u8]| format!("v2 {}", BASE64_URL_SAFE_NO_PAD.encode(bytes));
        let with = |kind: u8, class: u8, length: usize| {
            let mut content = vec![7; length];
            content[..2].copy_from_slice(&[kind, class]);
            encode(&content)
        };
        assert!(PeerHeader::decode(&HeaderValue::try_from(with(1, 1, CONTENT_LENGTH)).unwrap()).is_ok());
        for bad in [
            String::new(),
            "v2 ".to_owned(),
            good.replace("v2", "v1"),
            good.replace(' ', "  "),
            with(5, 0, CONTENT_LENGTH),
            with(0, 2, CONTENT_LENGTH),
            with(0, 0, CONTENT_LENGTH - 1),
            with(0, 0, CONTENT_LENGTH + 1),
            with(0, 0, MAX_LENGTH - 1),
            with(0, 0, MAX_LENGTH + 1),
            with(0, 0, 300),
            format!("{good} more"),
            format!("{good}="),
            // The unused bits of the last character are set: a second encoding of the same bytes.
            format!("{}_", &good[..good.len() - 1]),
        ] {
            let value = HeaderValue::try_from(&bad).unwrap();
            assert_eq!(PeerHeader::decode(&value), Err(DecodeError::Malformed), "{bad}");
        }
    }
}
