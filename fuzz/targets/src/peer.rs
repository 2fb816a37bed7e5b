//! Headers that replicas exchange, and the address of a replica, with any content.
//!
//! * A decoded stamp encodes to the same bytes: a sealed stamp has one spelling.
//! * A verdict without a valid seal is rejected. The message of an unsealed verdict is one line of limited length.
//! * An address that parses is written as one that parses to the same address, with scheme, host and port only.

use gateway::peers::{
    address::PeerUrl,
    seal::{Seal, Secret},
    stamp::{STAMP, Stamp},
    verdict::{Doubt, Verdict},
};
use http::{HeaderMap, HeaderValue};

/// Checks one input.
pub fn run(data: &[u8]) {
    let mut lines = data.splitn(2, |byte| *byte == b'\n');
    let (first, second) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    if let Ok(value) = HeaderValue::from_bytes(first) {
        if let Ok(stamp) = Stamp::decode(&value) {
            assert_eq!(stamp.encode(), value);
        }
        let mut headers = HeaderMap::from_iter([(STAMP, value)]);
        headers.extend(
            HeaderValue::from_bytes(second).ok().map(|message| (proto::header::ERROR_MESSAGE, message)),
        );
        let secret =
            Secret::parse("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=").expect("it is long enough");
        let sealed = Verdict::decode(&headers, Some((&secret, &Seal([0; 32]))));
        assert!(matches!(sealed, Err(Doubt::Garbage | Doubt::Untrusted)));
        if let Ok(Verdict::Declines { message, .. }) = Verdict::decode(&headers, None) {
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
