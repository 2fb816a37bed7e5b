//! Response headers that an operator allows besides those that are known to be harmless.

use http::{HeaderName, header::SET_COOKIE};
use serde::Deserialize;

/// The name of one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ExtraHeader(HeaderName);

/// A name that cannot be allowed.
#[derive(Debug, thiserror::Error)]
pub enum NotAllowable {
    /// No header has such a name.
    #[error("{0:?} is not the name of a header")]
    NoName(String),
    /// kas itself says this, and a cluster must not seem to.
    #[error("{0} cannot be allowed: only kas may say it")]
    Ours(HeaderName),
    /// A cookie would be sent to every cluster behind this listener.
    #[error("{0} cannot be allowed: one cluster's cookies would be sent to all others")]
    Cookie(HeaderName),
}

impl ExtraHeader {
    /// Which header.
    pub fn name(&self) -> &HeaderName {
        &self.0
    }
}

impl TryFrom<String> for ExtraHeader {
    type Error = NotAllowable;

    fn try_from(text: String) -> Result<Self, NotAllowable> {
        let Ok(name) = HeaderName::from_bytes(text.as_bytes()) else {
            return Err(NotAllowable::NoName(text));
        };
        let ours = |name: &str| {
            name.starts_with(proto::header::PREFIX)
                || name.starts_with("access-control-")
                || name == "connection"
        };
        match name {
            name if ours(name.as_str()) => Err(NotAllowable::Ours(name)),
            SET_COOKIE => Err(NotAllowable::Cookie(SET_COOKIE)),
            name => Ok(Self(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_headers_cannot_be_allowed() {
        for name in ["Kas-Error", "Access-Control-Allow-Origin", "Set-Cookie", "connection", "a b", ""] {
            assert!(ExtraHeader::try_from(name.to_owned()).is_err(), "{name}");
        }
        assert_eq!(ExtraHeader::try_from("X-Custom".to_owned()).unwrap().name(), "x-custom");
    }
}
