//! Headers that replicas exchange, and the address of a replica, with any content.
//!
//! * A decoded header encodes to the same bytes: each content has one encoding.
//! * A response without a valid MAC is rejected. The message of an unsigned response is one line of limited length.
//! * An address that parses is written as one that parses to the same address, with scheme, host and port only.

use http::{HeaderMap, HeaderValue};
use kas_core::peers::{DecodeError, Mac, PEER_HEADER, PeerHeader, PeerUrl, ProbeResponse, ResponseKey};
use settings::Secret;

/// Checks one input.
pub fn run(data: &[u8]) {
    let mut lines = data.splitn(2, |byte| *byte == b'\n');
    let (first, second) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    if let Ok(value) = HeaderValue::from_bytes(first) {
        if let Ok(header) = PeerHeader::decode(&value) {
            assert_eq!(header.encode(), value);
        }
        let mut headers = HeaderMap::from_iter([(PEER_HEADER, value)]);
        headers.extend(
            HeaderValue::from_bytes(second).ok().map(|message| (proto::header::ERROR_MESSAGE, message)),
        );
        let secret =
            Secret::parse("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=").expect("it is long enough");
        let signed = ProbeResponse::decode(&headers, ResponseKey::new(Some(&secret), Some(&Mac([0; 32]))));
        assert!(matches!(signed, Err(DecodeError::Malformed | DecodeError::InvalidMac)));
        if let Ok(ProbeResponse::Declined { message, .. }) = ProbeResponse::decode(&headers, None) {
            assert!(
                message.chars().count() <= 512 && !message.contains(|c: char| c.is_control()),
                "{message:?}"
            );
        }
    }

    let Ok(text) = str::from_utf8(data) else { return };
    match text.parse::<PeerUrl>() {
        Ok(url) => {
            let again: PeerUrl = url.to_string().parse().expect("what was written can be read");
            assert_eq!(again, url);
            assert!(!url.host.contains(['/', '@', '?', '#', ' ']) && url.port != 0, "{url}");
        }
        Err(error) => assert!(error.to_string().len() < 4096),
    }
}
