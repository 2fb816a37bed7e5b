//! Acting as somebody else.
//!
//! <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#user-impersonation>

use std::{collections::BTreeMap, fmt};

use http::{HeaderMap, HeaderName, HeaderValue, header::InvalidHeaderName};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The `as*` fields of a kubeconfig's user.
#[derive(Clone)]
pub struct Impersonation {
    user: String,
    headers: HeaderMap,
}

/// What may stand in a header's name (RFC 9110, section 5.6.2), except `%`.
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

impl Impersonation {
    /// `Err` is what is wrong with one of the values.
    pub(super) fn new(
        user: String,
        uid: Option<&str>,
        groups: &[String],
        extra: &BTreeMap<String, Vec<String>>,
    ) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static("impersonate-user"), value("as", &user)?);
        if let Some(uid) = uid {
            headers.insert(HeaderName::from_static("impersonate-uid"), value("as-uid", uid)?);
        }
        for group in groups {
            headers.append(HeaderName::from_static("impersonate-group"), value("as-groups", group)?);
        }
        for (key, values) in extra {
            let name = extra_name(key).map_err(|_| format!("as-user-extra has an unusable key {key:?}"))?;
            for item in values {
                headers.append(name.clone(), value("as-user-extra", item)?);
            }
        }

        Ok(Self { user, headers })
    }

    pub fn user(&self) -> &str {
        &self.user
    }

    /// `Impersonate-*`, to be added to a request that has none of its own.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }
}

impl fmt::Debug for Impersonation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Impersonation").field(&self.user).finish()
    }
}

fn value(field: &str, text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_str(text).map_err(|_| format!("{field} has a value that cannot be sent in a header"))
}

fn extra_name(key: &str) -> Result<HeaderName, InvalidHeaderName> {
    format!("impersonate-extra-{}", utf8_percent_encode(&key.to_lowercase(), TOKEN)).parse()
}
