//! Being somebody else in a cluster.
//!
//! <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#user-impersonation>

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// What the names of all headers that say who somebody is begin with.
pub const PREFIX: &str = "impersonate-";

/// What may stand in a header's name (RFC 9110 section 5.6.2), except `%`: client-go escapes the rest of an extra key.
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

/// Who to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    /// The user's name.
    pub username: String,
    /// The user's unique id.
    pub uid: Option<String>,
    /// The user's groups.
    pub groups: Vec<String>,
    /// Further attributes: a key and its values.
    pub extra: Vec<(String, Vec<String>)>,
}

/// A value that is empty, or that no header takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} travels in a header: it must not be empty or hold control characters")]
pub struct InvalidImpersonation {
    /// Which one.
    pub field: &'static str,
}

impl Impersonation {
    /// The `Impersonate-*` headers.
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
    fn everything_about_a_user_has_its_header() {
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
    fn what_no_header_takes_is_named() {
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
