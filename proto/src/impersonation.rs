//! Impersonation of a user in a cluster.
//!
//! <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#user-impersonation>

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

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

/// A field that is empty, or that does not fit into a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} travels in a header: it must not be empty or hold control characters")]
pub struct InvalidImpersonation {
    /// The name of the field.
    pub field: &'static str,
}

impl Impersonation {
    /// Returns the `Impersonate-*` headers.
    ///
    /// # Errors
    ///
    /// If a field is empty or holds control characters.
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

fn value(field: &'static str, text: &str) -> Result<HeaderValue, InvalidImpersonation> {
    let value = HeaderValue::from_str(text).ok().filter(|value| !value.is_empty());
    value.ok_or(InvalidImpersonation { field })
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
            (Impersonation { uid: Some("a\nb".into()), ..alice.clone() }, "uid"),
            (Impersonation { groups: vec![String::new()], ..alice.clone() }, "groups"),
            (Impersonation { extra: vec![(String::new(), vec![])], ..alice }, "extra"),
        ] {
            assert_eq!(who.headers(), Err(InvalidImpersonation { field }));
        }
    }
}
