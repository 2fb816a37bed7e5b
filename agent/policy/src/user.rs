//! The effective user of a request in the cluster, by its `Impersonate-*` headers.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue, header::CONNECTION};
use proto::{IdentityValue, impersonation::PREFIX};

use request_info::UnclearRequestError;

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");

/// The effective user of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EffectiveUser<'a> {
    /// The user of agentk's own credential.
    Agentk,
    /// An impersonated user. Policies ignore uids and extra attributes, as RBAC does.
    Impersonated {
        /// The user's name.
        user: &'a str,
        /// The groups that the request names; the API server adds its own, like `system:authenticated`.
        groups: Vec<&'a str>,
    },
}

impl<'a> EffectiveUser<'a> {
    /// Returns the effective user that the headers of a request determine.
    pub(crate) fn new(headers: &'a HeaderMap) -> Result<Self, UnclearRequestError> {
        // Headers that `Connection` lists are removed before the request is sent, which would remove the impersonation
        // (CVE-2021-31999).
        let removed = headers.get_all(CONNECTION).iter().any(|names| {
            let names = String::from_utf8_lossy(names.as_bytes()).to_ascii_lowercase();
            names.split(',').any(|name| name.trim().starts_with(PREFIX))
        });
        if removed {
            return Err(UnclearRequestError("its Connection header names an Impersonate-* header"));
        }

        let mut users = headers.get_all(USER).iter();
        let user = match (users.next(), users.next()) {
            (Some(user), None) => text(user)?,
            (Some(_), Some(_)) => return Err(UnclearRequestError("it impersonates several users")),
            (None, _) if headers.keys().any(|name| name.as_str().starts_with(PREFIX)) => {
                return Err(UnclearRequestError("it has Impersonate-* headers without Impersonate-User"));
            }
            (None, _) => return Ok(Self::Agentk),
        };
        let groups = headers.get_all(GROUP).iter().map(text).collect::<Result<_, _>>()?;
        Ok(Self::Impersonated { user, groups })
    }
}

fn text(value: &HeaderValue) -> Result<&str, UnclearRequestError> {
    IdentityValue::try_from(value).map(IdentityValue::as_str).map_err(|_| {
        UnclearRequestError(
            "it impersonates a user or group whose name is empty, begins or ends with a blank, holds control characters, or is \
             not UTF-8",
        )
    })
}

impl fmt::Display for EffectiveUser<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agentk => f.write_str("as agentk"),
            Self::Impersonated { user, groups } if groups.is_empty() => write!(f, "as {user:?}"),
            Self::Impersonated { user, groups } => write!(f, "as {user:?} of {groups:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(headers: &[(&'static str, &'static [u8])]) -> Result<String, &'static str> {
        let header = |(name, value): &(&'static str, &'static [u8])| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap())
        };
        let headers: HeaderMap = headers.iter().map(header).collect();
        EffectiveUser::new(&headers).map(|actor| actor.to_string()).map_err(|UnclearRequestError(why)| why)
    }

    #[test]
    fn impersonation_headers_determine_the_user() {
        assert_eq!(described(&[]).unwrap(), "as agentk");
        assert_eq!(described(&[("connection", b"upgrade")]).unwrap(), "as agentk");
        assert_eq!(described(&[("impersonate-user", b"ci")]).unwrap(), "as \"ci\"");
        let groups: &[(_, &[u8])] =
            &[("impersonate-user", b"ci"), ("impersonate-group", b"a"), ("impersonate-group", b"b")];
        assert_eq!(described(groups).unwrap(), "as \"ci\" of [\"a\", \"b\"]");
        assert_eq!(
            described(&[("impersonate-user", "J\u{fc}rgen".as_bytes())]).unwrap(),
            "as \"J\u{fc}rgen\""
        );
    }

    #[test]
    fn ambiguous_impersonation_is_refused() {
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
            assert!(described(headers).is_err(), "{headers:?}");
        }
    }
}
