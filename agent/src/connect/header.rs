//! Headers that somebody between agentk and kas wants to see: `--kas-header`.

use std::str::FromStr;

use http::{
    HeaderName, HeaderValue,
    header::{
        AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
        USER_AGENT,
    },
};

/// `Name: value`, added to the request that opens a tunnel. The value may be a credential, and is never logged.
#[derive(Clone, Debug)]
pub struct ExtraHeader {
    pub(crate) name: HeaderName,
    pub(crate) value: HeaderValue,
}

/// Why a header cannot be added.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtraHeaderError {
    /// No colon, or something else than a name before it, or characters that no value has.
    #[error("write it like \"Name: value\"")]
    Malformed,
    /// One that agentk sets, or that is about the connection.
    #[error("{0} is set by agentk itself")]
    Reserved(HeaderName),
}

impl FromStr for ExtraHeader {
    type Err = ExtraHeaderError;

    fn from_str(text: &str) -> Result<Self, ExtraHeaderError> {
        let (name, value) = text.split_once(':').ok_or(ExtraHeaderError::Malformed)?;
        let name: HeaderName = name.parse().map_err(|_| ExtraHeaderError::Malformed)?;
        if is_reserved(&name) {
            return Err(ExtraHeaderError::Reserved(name));
        }
        let mut value = HeaderValue::from_str(value.trim()).map_err(|_| ExtraHeaderError::Malformed)?;
        value.set_sensitive(true);

        Ok(Self { name, value })
    }
}

fn is_reserved(name: &HeaderName) -> bool {
    const OURS: [HeaderName; 10] = [
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
    let beginnings = [proto::header::PREFIX, "sec-websocket-", "proxy-", "keep-alive"];
    OURS.contains(name) || beginnings.iter().any(|beginning| name.as_str().starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_a_name_and_a_value() {
        let header: ExtraHeader = "CF-Access-Client-Secret:  a:b ".parse().unwrap();
        assert_eq!(
            (header.name.as_str(), header.value.to_str().unwrap()),
            ("cf-access-client-secret", "a:b")
        );
        assert!(!format!("{header:?}").contains("a:b"));
        for text in ["X-Empty", "a b: c", ": c", "x: a\nb"] {
            assert_eq!(text.parse::<ExtraHeader>().unwrap_err(), ExtraHeaderError::Malformed, "{text}");
        }
    }

    #[test]
    fn what_makes_a_tunnel_is_not_for_others_to_set() {
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
            let error = format!("{name}: x").parse::<ExtraHeader>().unwrap_err().to_string();
            assert!(error.ends_with(" is set by agentk itself"), "{name}: {error}");
        }
    }
}
