//! Response headers that an operator allows in addition to the allowlist.

use http::{HeaderName, header::SET_COOKIE};
use serde::Deserialize;

/// The name of an additional response header.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ExtraHeader(HeaderName);

/// The error of a name that cannot be allowed.
#[derive(Debug, thiserror::Error)]
pub enum ExtraHeaderError {
    /// The text is not a header name.
    #[error("{0:?} is not the name of a header")]
    InvalidName(String),
    /// Only kas may send the header.
    #[error("{0} cannot be allowed: only kas may send it")]
    Reserved(HeaderName),
    /// A browser would send the cookie to every cluster behind this listener.
    #[error("{0} cannot be allowed: browsers would send the cookies of one cluster to all others")]
    Cookie(HeaderName),
}

impl ExtraHeader {
    /// Returns the name.
    pub fn name(&self) -> &HeaderName {
        &self.0
    }
}

impl TryFrom<String> for ExtraHeader {
    type Error = ExtraHeaderError;

    fn try_from(text: String) -> Result<Self, ExtraHeaderError> {
        let Ok(name) = HeaderName::from_bytes(text.as_bytes()) else {
            return Err(ExtraHeaderError::InvalidName(text));
        };
        let reserved = |name: &str| {
            name.starts_with(proto::header::PREFIX)
                || name.starts_with("access-control-")
                || name == "connection"
        };
        match name {
            name if reserved(name.as_str()) => Err(ExtraHeaderError::Reserved(name)),
            SET_COOKIE => Err(ExtraHeaderError::Cookie(SET_COOKIE)),
            name => Ok(Self(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_headers_cannot_be_allowed() {
        for name in ["Kas-Error", "Access-Control-Allow-Origin", "Set-Cookie", "connection", "a b", ""] {
            assert!(ExtraHeader::try_from(name.to_owned()).is_err(), "{name}");
        }
        assert_eq!(ExtraHeader::try_from("X-Custom".to_owned()).unwrap().name(), "x-custom");
    }
}
