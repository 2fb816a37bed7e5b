//! The words between replicas, whatever they hold: a stamp, a verdict, an address.
//!
//! * A stamp that is read is written again to the same bytes: what is sealed has one spelling.
//! * Without a valid seal no verdict is believed, and one that is read says nothing that would break a line of a log.
//! * An address that is read is written to one that reads back to the same, with nothing but scheme, host and port.
#![no_main]

use gateway::peers::{
    address::PeerUrl,
    seal::{Seal, Secret},
    stamp::{STAMP, Stamp},
    verdict::{Doubt, Verdict},
};
use http::{HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
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

    let Ok(text) = std::str::from_utf8(data) else { return };
    match text.parse::<PeerUrl>() {
        Ok(url) => {
            let again: PeerUrl = url.to_string().parse().expect("what was written can be read");
            assert_eq!(again, url);
            assert!(!url.host.contains(['/', '@', '?', '#', ' ']) && url.port != 0, "{url}");
        }
        Err(error) => assert!(error.to_string().len() < 4096),
    }
});
