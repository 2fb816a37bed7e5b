//! Parses the `ExecCredential` that a plugin prints.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::HeaderValue;
use secrecy::{ExposeSecret as _, SecretSlice, SecretString};
use serde::Deserialize;

use super::super::authorization::bearer;
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
            parse_time(&text).ok_or_else(|| format!("printed an invalid expirationTimestamp {text:?}"))?,
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

/// Parses a time of Kubernetes (RFC 3339). humantime parses times in UTC; other offsets are added here.
fn parse_time(text: &str) -> Option<SystemTime> {
    if text.ends_with(['Z', 'z']) {
        return humantime::parse_rfc3339(&text.to_ascii_uppercase()).ok();
    }
    let (time, offset) = text.split_at_checked(text.len().checked_sub(6)?)?;
    let time = humantime::parse_rfc3339(&format!("{}Z", time.to_ascii_uppercase())).ok()?;
    let minutes = |offset: &str| {
        let (hours, minutes) = offset.split_once(':')?;
        let (hours, minutes) = (hours.parse::<u64>().ok()?, minutes.parse::<u64>().ok()?);
        (hours < 24 && minutes < 60).then(|| Duration::from_secs((hours * 60 + minutes) * 60))
    };
    match offset.strip_prefix('+') {
        Some(offset) => time.checked_sub(minutes(offset)?),
        None => time.checked_add(minutes(offset.strip_prefix('-')?)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_timestamps_are_parsed() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T23:59:59Z", 951_868_799),
            ("2024-03-01T00:00:00.000Z", 1_709_251_200),
            ("2018-03-05T17:30:20-08:00", 1_520_299_820),
            ("2026-07-14t12:00:00+05:30", 1_784_010_600),
            ("2100-03-01T00:00:00z", 4_107_542_400),
        ] {
            assert_eq!(
                parse_time(text),
                Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)),
                "{text}"
            );
        }
    }

    #[test]
    fn invalid_timestamps_are_refused() {
        for text in [
            "",
            "2024-01-01",
            "2024-01-01T00:00:00",
            "2023-02-29T00:00:00Z",
            "2024-13-01T00:00:00Z",
            "2024-00-01T00:00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:60:00Z",
            "2024-01-01T00:00:00+25:00",
            "2024-1-001T00:00:00Z",
            "+024-01-01T00:00:00Z",
            "2024-01-01T00:00:00Zulu",
            "1969-12-31T23:59:59Z",
            "é024-01-01T00:00:00Z",
            "2024-01-01T00:00:00é1:30",
        ] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }
}
