//! The ways to say who we are.

use std::{fmt, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::HeaderValue;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::Instant;

use super::{ClusterError, credential_file::CredentialFile, exec::Plugin};
use crate::upstream::Identity;

pub(super) enum Credentials {
    Anonymous,
    /// From the TLS options alone.
    ClientCertificate,
    Token(HeaderValue),
    Password(HeaderValue),
    File(CredentialFile),
    Plugin(Arc<Plugin>),
}

impl Credentials {
    pub(super) async fn authorization(&self) -> Result<Option<HeaderValue>, ClusterError> {
        match self {
            Self::Anonymous | Self::ClientCertificate => Ok(None),
            Self::Token(value) | Self::Password(value) => Ok(Some(value.clone())),
            Self::File(file) => Ok(Some(file.authorization(Instant::now()).await)),
            Self::Plugin(plugin) => Ok(plugin.credential().await?.authorization.clone()),
        }
    }

    /// A client certificate that is not in the TLS options.
    pub(super) async fn identity(&self) -> Result<Option<Arc<Identity>>, ClusterError> {
        match self {
            Self::Plugin(plugin) => Ok(plugin.credential().await?.identity.clone()),
            _ => Ok(None),
        }
    }

    pub(super) fn rejected(&self) {
        match self {
            Self::File(file) => file.rejected(),
            Self::Plugin(plugin) => plugin.rejected(),
            Self::Anonymous | Self::ClientCertificate | Self::Token(_) | Self::Password(_) => {}
        }
    }
}

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

/// None if the token cannot be sent in a header.
pub(super) fn bearer(token: &str) -> Option<HeaderValue> {
    sensitive(&format!("Bearer {token}"))
}

pub(super) fn basic(user: &str, password: &SecretString) -> Option<HeaderValue> {
    let pair = format!("{user}:{}", password.expose_secret());
    sensitive(&format!("Basic {}", BASE64_STANDARD.encode(pair)))
}

fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);

    Some(value)
}
