//! Acting as somebody else, because the kubeconfig says so.

use std::fmt;

use http::HeaderMap;
use proto::impersonation::InvalidImpersonation;

/// The `as*` fields of a kubeconfig's user.
#[derive(Clone)]
pub struct Impersonation {
    user: String,
    headers: HeaderMap,
}

impl Impersonation {
    pub(super) fn new(who: proto::impersonation::Impersonation) -> Result<Self, InvalidImpersonation> {
        Ok(Self { headers: who.headers()?, user: who.username })
    }

    /// Who, for logs.
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
