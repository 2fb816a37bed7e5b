//! Impersonation of a user in a cluster.
//!
//! <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#user-impersonation>

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{IdentityValue, InvalidIdentityValue};

/// The prefix of the impersonation headers.
pub const PREFIX: &str = "impersonate-";

/// Characters that are percent-encoded in the key of an extra: all that are not allowed in a header name (RFC 9110 section
/// 5.6.2), and `%`, as in client-go.
const TOKEN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'*')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// A user to impersonate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    /// The name of the user.
    pub username: String,
    /// The unique id of the user.
    pub uid: Option<String>,
    /// The groups of the user.
    pub groups: Vec<String>,
    /// Further attributes: keys and their values.
    pub extra: Vec<(String, Vec<String>)>,
}

/// The identity of a caller in the cluster: headers of impersonation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity(Vec<(HeaderName, Vec<u8>)>);

/// A field that is no [`IdentityValue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} travels in a header: it {rule}", rule = InvalidIdentityValue)]
pub struct InvalidImpersonation {
    /// The name of the field.
    pub field: &'static str,
}

/// A header of a request whose value is no [`IdentityValue`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the header {0} {rule}", rule = InvalidIdentityValue)]
pub struct InvalidImpersonationHeader(HeaderName);

/// Checks that the API server reads the `Impersonate-*` headers of a request as they are here.
///
/// # Errors
///
/// The value of one of them is no [`IdentityValue`].
pub fn check(headers: &HeaderMap) -> Result<(), InvalidImpersonationHeader> {
    let mut named = headers.iter().filter(|(name, _)| name.as_str().starts_with(PREFIX));
    let invalid = named.find(|(_, value)| IdentityValue::try_from(*value).is_err());
    invalid.map_or(Ok(()), |(name, _)| Err(InvalidImpersonationHeader(name.clone())))
}

impl Impersonation {
    /// Returns the `Impersonate-*` headers.
    ///
    /// # Errors
    ///
    /// If a field is no [`IdentityValue`].
    pub fn headers(&self) -> Result<HeaderMap, InvalidImpersonation> {
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static("impersonate-user"), value("username", &self.username)?);
        if let Some(uid) = &self.uid {
            headers.insert(HeaderName::from_static("impersonate-uid"), value("uid", uid)?);
        }
        for group in &self.groups {
            headers.append(HeaderName::from_static("impersonate-group"), value("groups", group)?);
        }
        for (key, values) in &self.extra {
            let escaped = utf8_percent_encode(&key.to_lowercase(), TOKEN).to_string();
            let name = HeaderName::try_from(format!("{PREFIX}extra-{escaped}"));
            let name = name.ok().filter(|_| !key.is_empty());
            let name = name.ok_or(InvalidImpersonation { field: "extra" })?;
            for each in values {
                headers.append(name.clone(), value("extra", each)?);
            }
        }

        Ok(headers)
    }
}

impl Identity {
    /// Returns the identity that a request acts as: its headers whose names begin with [`PREFIX`].
    pub fn of_request(headers: &HeaderMap) -> Self {
        let named = headers.iter().filter(|(name, _)| name.as_str().starts_with(PREFIX));
        Self(named.map(|(name, value)| (name.clone(), value.as_bytes().to_vec())).collect())
    }

    /// Returns whether the request impersonates nobody, so that it acts as agentk.
    pub fn is_agent(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the names and the values of the headers.
    pub fn headers(&self) -> impl Iterator<Item = (&HeaderName, &[u8])> {
        self.0.iter().map(|(name, value)| (name, &**value))
    }
}

fn value(field: &'static str, text: &str) -> Result<HeaderValue, InvalidImpersonation> {
    IdentityValue::new(text).map(HeaderValue::from).map_err(|_| InvalidImpersonation { field })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_of_a_user_has_its_header() {
        let who = Impersonation {
            username: "alice".into(),
            uid: Some("7".into()),
            groups: vec!["a".into(), "b".into()],
            extra: vec![("Agent.gitlab.com/id".into(), vec!["1".into(), "2".into()])],
        };
        let headers = who.headers().unwrap();
        assert_eq!(headers["impersonate-user"], "alice");
        assert_eq!(headers["impersonate-uid"], "7");
        assert_eq!(headers.get_all("impersonate-group").iter().count(), 2);
        assert_eq!(headers.get_all("impersonate-extra-agent.gitlab.com%2fid").iter().count(), 2);
    }

    #[test]
    fn field_that_does_not_fit_into_a_header_is_named() {
        let alice = Impersonation { username: "alice".into(), ..Impersonation::default() };
        for (who, field) in [
            (Impersonation::default(), "username"),
            (Impersonation { username: "alice ".into(), ..alice.clone() }, "username"),
            (Impersonation { uid: Some("a\nb".into()), ..alice.clone() }, "uid"),
            (Impersonation { groups: vec![String::new()], ..alice.clone() }, "groups"),
            (Impersonation { groups: vec![" system:masters".into()], ..alice.clone() }, "groups"),
            (Impersonation { extra: vec![("k".into(), vec!["\tv".into()])], ..alice.clone() }, "extra"),
            (Impersonation { extra: vec![(String::new(), vec![])], ..alice }, "extra"),
        ] {
            assert_eq!(who.headers(), Err(InvalidImpersonation { field }));
        }
    }

    #[test]
    fn header_that_would_change_on_its_way_is_named() {
        let headers = |value: &'static str| {
            let value = HeaderValue::from_static(value);
            HeaderMap::from_iter([
                (HeaderName::from_static("x-other"), HeaderValue::from_static(" x ")),
                (HeaderName::from_static("impersonate-group"), value),
            ])
        };
        assert_eq!(check(&headers("dev")), Ok(()));
        for value in ["", " system:masters", "system:masters\t"] {
            let error = check(&headers(value)).unwrap_err();
            assert_eq!(
                error.to_string(),
                "the header impersonate-group must not be empty, begin or end with a blank, or hold control characters"
            );
        }
    }
}
