//! Headers for proxies between agentk and kas: `--kas-header`.

use std::str::FromStr;

use http::{
    HeaderName, HeaderValue,
    header::{
        AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
        USER_AGENT,
    },
};

/// A header `Name: value` of the requests that open tunnels. The value may be a credential, and is never logged.
#[derive(Clone, Debug)]
pub struct KasHeader {
    /// The name of the header.
    pub name: HeaderName,
    /// The value of the header.
    pub value: HeaderValue,
}

/// The error for a header that cannot be added.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KasHeaderError {
    /// The text has no colon, or the name or the value is invalid.
    #[error("write it like \"Name: value\"")]
    Malformed,
    /// agentk sets the header itself, or it is a hop-by-hop header.
    #[error("{0} is set by agentk itself")]
    Reserved(HeaderName),
}

impl FromStr for KasHeader {
    type Err = KasHeaderError;

    fn from_str(text: &str) -> Result<Self, KasHeaderError> {
        let (name, value) = text.split_once(':').ok_or(KasHeaderError::Malformed)?;
        let name: HeaderName = name.parse().map_err(|_| KasHeaderError::Malformed)?;
        if is_reserved(&name) {
            return Err(KasHeaderError::Reserved(name));
        }
        let mut value = HeaderValue::from_str(value.trim()).map_err(|_| KasHeaderError::Malformed)?;
        value.set_sensitive(true);

        Ok(Self { name, value })
    }
}

fn is_reserved(name: &HeaderName) -> bool {
    const NAMES: [HeaderName; 10] = [
        AUTHORIZATION,
        CONNECTION,
        CONTENT_LENGTH,
        EXPECT,
        HOST,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
        USER_AGENT,
    ];
    let prefixes = [proto::header::PREFIX, "sec-websocket-", "proxy-", "keep-alive"];
    NAMES.contains(name) || prefixes.iter().any(|prefix| name.as_str().starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_a_name_and_a_value() {
        let header: KasHeader = "CF-Access-Client-Secret:  a:b ".parse().unwrap();
        assert_eq!(
            (header.name.as_str(), header.value.to_str().unwrap()),
            ("cf-access-client-secret", "a:b")
        );
        assert!(!format!("{header:?}").contains("a:b"));
        for text in ["X-Empty", "a b: c", ": c", "x: a\nb"] {
            assert_eq!(text.parse::<KasHeader>().unwrap_err(), KasHeaderError::Malformed, "{text}");
        }
    }

    #[test]
    fn headers_of_the_handshake_are_reserved() {
        for name in [
            "Authorization",
            "Host",
            "Connection",
            "Upgrade",
            "Sec-WebSocket-Key",
            "sec-websocket-protocol",
            "Kas-Hello",
            "kas-anything",
            "Transfer-Encoding",
            "Content-Length",
            "TE",
            "Proxy-Authorization",
        ] {
            let error = format!("{name}: x").parse::<KasHeader>().unwrap_err().to_string();
            assert!(error.ends_with(" is set by agentk itself"), "{name}: {error}");
        }
    }
}
