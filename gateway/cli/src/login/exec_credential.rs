//! The protocol between kubectl and its credential plugins (`client.authentication.k8s.io`).

use std::time::{Duration, UNIX_EPOCH};

use humantime::format_rfc3339_seconds;
use oidc::Tokens;
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use serde_json::json;

use crate::CliError;

/// The versions of the protocol, which have the same fields here.
const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

/// The request of kubectl, which is in the variable `KUBERNETES_EXEC_INFO`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExecInfo {
    api_version: String,
}

impl ExecInfo {
    /// Parses the variable. Without it this process is no plugin of kubectl.
    pub(super) fn from_env(variable: Option<&str>) -> Result<Option<Self>, CliError> {
        let Some(text) = variable else { return Ok(None) };
        let info: Self = serde_json::from_str(text)
            .map_err(|error| CliError::usage(format!("KUBERNETES_EXEC_INFO is not valid: {error}")))?;
        if !VERSIONS.contains(&&*info.api_version) {
            let what = format!(
                "KUBERNETES_EXEC_INFO has the apiVersion {:?}: write one of {} into the kubeconfig",
                info.api_version,
                VERSIONS.join(" and ")
            );
            return Err(CliError::usage(what));
        }
        Ok(Some(info))
    }

    /// Returns the response for kubectl, in the version of its request.
    pub(super) fn credential(&self, tokens: &Tokens) -> String {
        let status = json!({
            "token": tokens.token.expose_secret(),
            "expirationTimestamp": expiration(tokens),
        });
        json!({"apiVersion": self.api_version, "kind": "ExecCredential", "status": status}).to_string()
    }
}

/// Returns the time of the expiration in the format of RFC 3339.
pub(super) fn expiration(tokens: &Tokens) -> String {
    // The year 9999 is the last one of the format.
    let expires = Duration::from_secs(tokens.expires.min(253_402_300_799));
    format_rfc3339_seconds(UNIX_EPOCH + expires).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_has_the_version_of_the_request() {
        let tokens = Tokens { token: "secret".into(), expires: 1_800_000_000, refresh_token: None };
        for version in VERSIONS {
            let variable =
                json!({"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": true}});
            let info = ExecInfo::from_env(Some(&variable.to_string())).unwrap().unwrap();
            let response: serde_json::Value = serde_json::from_str(&info.credential(&tokens)).unwrap();
            let status = json!({"token": "secret", "expirationTimestamp": "2027-01-15T08:00:00Z"});
            assert_eq!(response, json!({"apiVersion": version, "kind": "ExecCredential", "status": status}));
        }
        assert!(ExecInfo::from_env(None).unwrap().is_none());
        for bad in ["", "{}", r#"{"apiVersion": "client.authentication.k8s.io/v1alpha1"}"#] {
            assert!(ExecInfo::from_env(Some(bad)).is_err(), "{bad}");
        }
    }
}
