//! The kinds of credentials, and the impersonation of a kubeconfig.

use std::{fmt, sync::Arc};

use http::{HeaderMap, HeaderValue};
use proto::impersonation::{Impersonation, InvalidImpersonation};
use tokio::time::Instant;

use super::{ClusterError, credential_file::CredentialFile, exec::ExecPlugin};
use crate::upstream::ClientIdentity;

/// The credentials of agentk for its API server.
pub(super) enum Credentials {
    Anonymous,
    /// The client certificate of the TLS configuration.
    ClientCertificate,
    Token(HeaderValue),
    Password(HeaderValue),
    File(CredentialFile),
    Plugin(Arc<ExecPlugin>),
}

/// The headers for the `as*` fields of a kubeconfig's user.
pub(super) struct ImpersonationHeaders {
    user: String,
    headers: HeaderMap,
}

impl Credentials {
    /// Returns the Authorization header, marked as sensitive.
    pub(super) async fn authorization(&self) -> Result<Option<HeaderValue>, ClusterError> {
        match self {
            Self::Anonymous | Self::ClientCertificate => Ok(None),
            Self::Token(value) | Self::Password(value) => Ok(Some(value.clone())),
            Self::File(file) => Ok(Some(file.authorization(Instant::now()).await)),
            Self::Plugin(plugin) => Ok(plugin.credential().await?.authorization.clone()),
        }
    }

    /// Returns the client certificate that is not in the TLS configuration, if there is one.
    pub(super) async fn identity(&self) -> Result<Option<Arc<ClientIdentity>>, ClusterError> {
        match self {
            Self::Plugin(plugin) => Ok(plugin.credential().await?.identity.clone()),
            _ => Ok(None),
        }
    }

    /// Discards the cached credential.
    pub(super) fn invalidate(&self) {
        match self {
            Self::File(file) => file.invalidate(),
            Self::Plugin(plugin) => plugin.invalidate(),
            Self::Anonymous | Self::ClientCertificate | Self::Token(_) | Self::Password(_) => {}
        }
    }
}

impl ImpersonationHeaders {
    pub(super) fn new(impersonation: Impersonation) -> Result<Self, InvalidImpersonation> {
        Ok(Self { headers: impersonation.headers()?, user: impersonation.username })
    }

    /// Returns the name of the user, for logs.
    pub(super) fn user(&self) -> &str {
        &self.user
    }

    /// Returns the `Impersonate-*` headers.
    pub(super) fn headers(&self) -> &HeaderMap {
        &self.headers
    }
}

/// Displays the kind, never the credential.
impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("no credentials"),
            Self::ClientCertificate => f.write_str("a client certificate"),
            Self::Token(_) => f.write_str("a fixed token"),
            Self::Password(_) => f.write_str("a user name and password"),
            Self::File(file) => file.fmt(f),
            Self::Plugin(plugin) => write!(f, "the credential plugin {}", plugin.command()),
        }
    }
}
