//! Who a request acts as in the cluster: what its `Impersonate-*` headers come to once they are sent on.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue, header::CONNECTION};
use proto::impersonation::PREFIX;

use super::request::Unclear;

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");

/// Who a request acts as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Actor<'a> {
    /// Whoever agentk is.
    Agentk,
    /// Somebody else. Uids and extra attributes are no matter of a policy: RBAC does not know them.
    Other {
        /// The user's name.
        user: &'a str,
        /// The groups that the request names; the API server adds its own, like `system:authenticated`.
        groups: Vec<&'a str>,
    },
}

impl<'a> Actor<'a> {
    /// Reads a request's headers.
    pub fn of(headers: &'a HeaderMap) -> Result<Self, Unclear> {
        // What `Connection` names is removed on the way out, and would take the identity along (CVE-2021-31999).
        let removed = headers.get_all(CONNECTION).iter().any(|names| {
            let names = String::from_utf8_lossy(names.as_bytes()).to_ascii_lowercase();
            names.split(',').any(|name| name.trim().starts_with(PREFIX))
        });
        if removed {
            return Err(Unclear("its Connection header names a header that says who it acts as"));
        }

        let mut users = headers.get_all(USER).iter();
        let user = match (users.next(), users.next()) {
            (Some(user), None) => text(user)?,
            (Some(_), Some(_)) => return Err(Unclear("it acts as several users")),
            (None, _) if headers.keys().any(|name| name.as_str().starts_with(PREFIX)) => {
                return Err(Unclear("it has Impersonate-* headers without Impersonate-User"));
            }
            (None, _) => return Ok(Self::Agentk),
        };
        let groups = headers.get_all(GROUP).iter().map(text).collect::<Result<_, _>>()?;
        Ok(Self::Other { user, groups })
    }
}

/// As the API server will see it: spaces around it are no part of a header's value in HTTP/1.1, but are in HTTP/2.
fn text(value: &HeaderValue) -> Result<&str, Unclear> {
    let text = std::str::from_utf8(value.as_bytes()).ok();
    let text = text.filter(|text| !text.is_empty() && text.trim() == *text);
    text.ok_or(Unclear(
        "it acts as a user or group whose name is empty, begins or ends with a space, or is no text",
    ))
}

impl fmt::Display for Actor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agentk => f.write_str("as agentk"),
            Self::Other { user, groups } if groups.is_empty() => write!(f, "as {user:?}"),
            Self::Other { user, groups } => write!(f, "as {user:?} of {groups:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(headers: &[(&'static str, &'static [u8])]) -> Result<String, &'static str> {
        let header = |(name, value): &(&'static str, &'static [u8])| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap())
        };
        let headers: HeaderMap = headers.iter().map(header).collect();
        Actor::of(&headers).map(|actor| actor.to_string()).map_err(|Unclear(why)| why)
    }

    #[test]
    fn who_a_request_acts_as() {
        assert_eq!(of(&[]).unwrap(), "as agentk");
        assert_eq!(of(&[("connection", b"upgrade")]).unwrap(), "as agentk");
        assert_eq!(of(&[("impersonate-user", b"ci")]).unwrap(), "as \"ci\"");
        let groups: &[(_, &[u8])] =
            &[("impersonate-user", b"ci"), ("impersonate-group", b"a"), ("impersonate-group", b"b")];
        assert_eq!(of(groups).unwrap(), "as \"ci\" of [\"a\", \"b\"]");
        assert_eq!(of(&[("impersonate-user", "J\u{fc}rgen".as_bytes())]).unwrap(), "as \"J\u{fc}rgen\"");
    }

    #[test]
    fn what_the_api_server_might_read_differently_is_nobody() {
        for headers in [
            &[("impersonate-user", &b"a"[..]), ("impersonate-user", b"b")][..],
            &[("impersonate-user", b"")],
            &[("impersonate-user", b" admin")],
            &[("impersonate-user", b"admin\t")],
            &[("impersonate-user", b"\xff")],
            &[("impersonate-group", b"a")],
            &[("impersonate-uid", b"1")],
            &[("impersonate-extra-scopes", b"x")],
            &[("impersonate-user", b"ci"), ("impersonate-group", b" system:masters")],
            &[("impersonate-user", b"ci"), ("connection", b"close, Impersonate-User")],
            &[("impersonate-user", b"ci"), ("connection", b"\xff,impersonate-group")],
        ] {
            assert!(of(headers).is_err(), "{headers:?}");
        }
    }
}
