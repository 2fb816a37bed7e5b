//! The response to a probe or a ping, and the reasons why a replica is of no use for a request.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use proto::{Reason, header};

use super::{
    auth::{CLOCK_TOLERANCE, ResponseKey},
    header::{DecodeError, Mac, PEER_HEADER},
};
use crate::metrics::ProbeResult;

/// The characters of a message that are percent-encoded: a header cannot hold control characters.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

const ACCEPTED: &str = "holds";
const CLOCK_SKEW: &str = "clock";
const NO_MAC: &str = "-";

/// The longest decoded message, in characters.
const MAX_MESSAGE: usize = 512;

/// The response of a replica to a probe or a ping.
///
/// It travels as `Kas-Peer: v1 <word> <MAC or ->`, with the message in `Kas-Error-Message`. The word is `holds`, `clock` or a
/// [`Reason`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResponse {
    /// The replica accepts the request, or the ping succeeded.
    Accepted,
    /// The replica does not accept the request, or the ping failed.
    Declined {
        /// The reason for programs.
        reason: Reason,
        /// The reason for people.
        message: String,
    },
    /// The MAC of the request is valid, but the request was not sent now by the clock of the receiver.
    ClockSkew {
        /// The time of the receiver's clock, in milliseconds since 1970.
        now_ms: u64,
    },
}

/// The reason why another replica does not take a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The replica declined.
    #[error("{message}")]
    Declined {
        /// The reason for programs.
        reason: Reason,
        /// The reason for people.
        message: String,
    },
    /// There is no connection to the replica.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// The replica did not respond in time.
    #[error("it did not answer in time")]
    Timeout,
    /// The response is not that of a kas.
    #[error("it does not answer as a kas of this version does: {0}")]
    InvalidResponse(String),
    /// One of the replicas refused the MAC of the other.
    #[error(
        "it and this replica do not trust one another: they have different secrets \
         (private_api.listen.authentication_secret_file)"
    )]
    Untrusted,
    /// This replica refused the certificate of the other one.
    #[error("its certificate is refused (private_api.listen.ca_certificate_file): {0}")]
    Certificate(String),
    /// The replica has the same secret, and another time.
    #[error(
        "its clock is {} the one of this replica, and {CLOCK_TOLERANCE:?} are tolerated: synchronise both with NTP",
        difference(*.ahead_ms)
    )]
    ClockSkew {
        /// The lead of its clock over that of this replica, in milliseconds.
        ahead_ms: i64,
    },
}

fn difference(ahead_ms: i64) -> String {
    let difference = Duration::from_millis(ahead_ms.unsigned_abs());
    format!("{difference:?} {}", if ahead_ms < 0 { "behind" } else { "ahead of" })
}

impl ProbeResponse {
    /// Encodes the response, with a MAC if there is a key.
    pub fn encode(&self, key: Option<ResponseKey<'_>>) -> HeaderMap {
        let (word, message) = match self {
            Self::Accepted => (ACCEPTED, String::new()),
            Self::ClockSkew { now_ms } => (CLOCK_SKEW, now_ms.to_string()),
            Self::Declined { reason, message } => {
                (reason.as_str(), utf8_percent_encode(message, ESCAPED).to_string())
            }
        };
        let mac = match key {
            Some(key) => BASE64_URL_SAFE_NO_PAD.encode(key.sign(&[word, &message]).0),
            None => NO_MAC.to_owned(),
        };
        let mut headers = HeaderMap::new();
        let value = HeaderValue::try_from(format!("v1 {word} {mac}"));
        headers.insert(PEER_HEADER, value.expect("words are ASCII"));
        headers.insert(header::ERROR_MESSAGE, HeaderValue::try_from(message).expect("it is escaped"));
        headers
    }

    /// Decodes a response.
    ///
    /// # Errors
    ///
    /// [`DecodeError::InvalidMac`] if there is a key and the response was not signed with it, [`DecodeError::Malformed`] if
    /// the headers are none of [`ProbeResponse::encode`].
    pub fn decode(headers: &HeaderMap, key: Option<ResponseKey<'_>>) -> Result<Self, DecodeError> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let words: Vec<&str> = text(PEER_HEADER.as_str()).ok_or(DecodeError::Malformed)?.split(' ').collect();
        let ["v1", word, mac] = words[..] else {
            return Err(DecodeError::Malformed);
        };
        let message = text(header::ERROR_MESSAGE.as_str()).unwrap_or_default();
        if let Some(key) = key {
            let mac = BASE64_URL_SAFE_NO_PAD.decode(mac).ok().and_then(|mac| mac.try_into().ok());
            let mac = Mac(mac.ok_or(DecodeError::InvalidMac)?);
            if !key.verify(&[word, message], &mac) {
                return Err(DecodeError::InvalidMac);
            }
        }

        match word {
            ACCEPTED => return Ok(Self::Accepted),
            CLOCK_SKEW => {
                let now_ms = message.parse().map_err(|_| DecodeError::Malformed)?;
                return Ok(Self::ClockSkew { now_ms });
            }
            _ => {}
        }
        let reason = word.parse().map_err(|_| DecodeError::Malformed)?;
        let message = percent_decode_str(message).decode_utf8_lossy();
        let message = message.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect();
        Ok(Self::Declined { reason, message })
    }
}

impl PeerError {
    /// Returns the label of the metric.
    pub fn result(&self) -> ProbeResult {
        match self {
            Self::Declined { reason: Reason::AgentNotConnected, .. } => ProbeResult::NotConnected,
            Self::Declined { reason: Reason::Unauthorized, .. } | Self::Untrusted | Self::Certificate(_) => {
                ProbeResult::Untrusted
            }
            Self::Declined { .. } => ProbeResult::Declined,
            Self::Unreachable(_) => ProbeResult::Unreachable,
            Self::Timeout => ProbeResult::Timeout,
            Self::InvalidResponse(_) => ProbeResult::InvalidResponse,
            Self::ClockSkew { .. } => ProbeResult::ClockSkew,
        }
    }

    /// Returns true if the replica works, and only has no tunnel for this request.
    pub fn is_healthy(&self) -> bool {
        matches!(self.result(), ProbeResult::NotConnected | ProbeResult::Declined)
    }
}

#[cfg(test)]
mod tests {
    use base64::prelude::BASE64_STANDARD;
    use settings::Secret;

    use super::*;

    fn secret(byte: u8) -> Secret {
        Secret::parse(&BASE64_STANDARD.encode([byte; 32])).unwrap()
    }

    fn declined() -> ProbeResponse {
        ProbeResponse::Declined { reason: Reason::UnknownService, message: "no: 100 % größer".to_owned() }
    }

    #[test]
    fn encoded_response_decodes_to_the_same_response() {
        let (secret, request_mac) = (secret(1), Mac([7; 32]));
        let key = ResponseKey::new(Some(&secret), Some(&request_mac));
        for response in
            [ProbeResponse::Accepted, declined(), ProbeResponse::ClockSkew { now_ms: 1_700_000_000_000 }]
        {
            assert_eq!(ProbeResponse::decode(&response.encode(None), None).unwrap(), response);
            assert_eq!(ProbeResponse::decode(&response.encode(key), key).unwrap(), response);
        }
    }

    /// Replicas of two versions run side by side in a rolling update.
    #[test]
    fn encoding_is_that_of_v1() {
        let word = |response: ProbeResponse| response.encode(None)[PEER_HEADER].clone();
        assert_eq!(word(ProbeResponse::Accepted), "v1 holds -");
        assert_eq!(word(ProbeResponse::ClockSkew { now_ms: 1 }), "v1 clock -");
        assert_eq!(word(declined()), "v1 unknown-service -");
    }

    #[test]
    fn response_with_another_mac_is_refused() {
        let (ours, theirs) = (secret(1), secret(2));
        let (request, other) = (Mac([7; 32]), Mac([8; 32]));
        let decode = |headers: &HeaderMap| {
            ProbeResponse::decode(headers, ResponseKey::new(Some(&ours), Some(&request)))
        };
        let encode =
            |response: ProbeResponse, secret, mac| response.encode(ResponseKey::new(Some(secret), Some(mac)));
        let invalid = Err(DecodeError::InvalidMac);
        assert_eq!(decode(&ProbeResponse::Accepted.encode(None)), invalid);
        assert_eq!(decode(&encode(ProbeResponse::Accepted, &ours, &other)), invalid);
        assert_eq!(decode(&encode(ProbeResponse::Accepted, &theirs, &request)), invalid);
        let mut headers = encode(declined(), &ours, &request);
        headers.insert(header::ERROR_MESSAGE, HeaderValue::from_static("yes"));
        assert_eq!(decode(&headers), invalid);
    }

    #[test]
    fn other_headers_are_malformed() {
        for bad in ["", "v1", "v2 holds -", "v1 maybe -", "v1 holds - more", "v1 clock -", "holds"] {
            let headers = HeaderMap::from_iter([(PEER_HEADER, HeaderValue::from_static(bad))]);
            assert_eq!(ProbeResponse::decode(&headers, None), Err(DecodeError::Malformed), "{bad}");
        }
        assert_eq!(ProbeResponse::decode(&HeaderMap::new(), None), Err(DecodeError::Malformed));
    }

    #[test]
    fn clock_skew_has_a_direction() {
        let text = |ahead_ms| PeerError::ClockSkew { ahead_ms }.to_string();
        assert!(text(7200).starts_with("its clock is 7.2s ahead of the one of this replica, and 5s are"));
        assert!(text(-7200).starts_with("its clock is 7.2s behind the one of this replica, and 5s are"));
        assert!(text(i64::MIN).contains(" behind "));
    }
}
