//! Parses the `ExecCredential` that a plugin prints.

use std::{sync::Arc, time::SystemTime};

use http::HeaderValue;
use secrecy::{ExposeSecret as _, SecretSlice, SecretString};
use serde::Deserialize;

use super::{super::credentials::bearer, rfc3339};
use crate::upstream::ClientIdentity;

/// The credential that a plugin printed.
pub(super) struct PluginOutput {
    pub(super) authorization: Option<HeaderValue>,
    pub(super) identity: Option<Arc<ClientIdentity>>,
    pub(super) expires: Option<SystemTime>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    api_version: String,
    kind: String,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    token: Option<SecretString>,
    client_certificate_data: Option<SecretString>,
    client_key_data: Option<SecretString>,
    expiration_timestamp: Option<String>,
}

/// Parses the output of a plugin. The error describes the problem without any part of the output that could be secret.
pub(super) fn parse(stdout: &[u8], api_version: &str) -> Result<PluginOutput, String> {
    let credential: ExecCredential = serde_json::from_slice(stdout).map_err(|error| {
        format!(
            "printed something that is not an ExecCredential in JSON (line {}, column {})",
            error.line(),
            error.column()
        )
    })?;
    if credential.kind != "ExecCredential" || credential.api_version != api_version {
        return Err(format!(
            "printed {:?} of {:?}, not an ExecCredential of {api_version}; make the kubeconfig's apiVersion match",
            credential.kind, credential.api_version
        ));
    }
    let status = credential.status.ok_or("printed an ExecCredential without status")?;
    let authorization = match present(status.token) {
        Some(token) => {
            Some(bearer(token.expose_secret()).ok_or("printed a token that cannot be sent in a header")?)
        }
        None => None,
    };
    let identity = match (present(status.client_certificate_data), present(status.client_key_data)) {
        (Some(chain), Some(key)) => Some(Arc::new(ClientIdentity { chain: bytes(&chain), key: bytes(&key) })),
        (None, None) => None,
        _ => return Err("printed only one of clientCertificateData and clientKeyData".into()),
    };
    if authorization.is_none() && identity.is_none() {
        return Err("printed neither a token nor a client certificate".into());
    }
    let expires = match status.expiration_timestamp {
        Some(text) => Some(
            rfc3339::parse(&text)
                .ok_or_else(|| format!("printed an invalid expirationTimestamp {text:?}"))?,
        ),
        None => None,
    };

    Ok(PluginOutput { authorization, identity, expires })
}

fn present(secret: Option<SecretString>) -> Option<SecretString> {
    secret.filter(|secret| !secret.expose_secret().is_empty())
}

/// Returns the PEM text. These fields are not in base64, unlike those of a kubeconfig.
fn bytes(secret: &SecretString) -> SecretSlice<u8> {
    SecretSlice::from(secret.expose_secret().as_bytes().to_vec())
}
