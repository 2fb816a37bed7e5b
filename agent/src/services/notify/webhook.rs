//! Webhooks in the cluster: an event as a signed POST, in the form of the Standard Webhooks specification.

use std::{
    net::IpAddr,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderName, HeaderValue, Request, StatusCode, Uri, header};
use proto::notify::{ProjectEvent, ProjectEventFields};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use serde_json::json;
use settings::rfc3339;
use sha2::Sha256;
use tokio::time::timeout;
use tunnel::Body;

use super::lane::EffectError;
use crate::{
    policy::AllowedWebhook,
    upstream::{ClientTls, ServerUrl, TlsConfigSource, Upstream, UpstreamConfig, is_service_address},
};

/// The time for the head of the response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);
/// The shortest and the longest key, in bytes.
const KEY_LENGTH: std::ops::RangeInclusive<usize> = 16..=4096;
const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Sends events to URLs in the cluster.
pub(super) struct WebhookClient {
    tls: Arc<dyn TlsConfigSource>,
}

/// The body of a request.
#[derive(Serialize)]
struct WebhookBody<'a> {
    id: &'a str,
    project: &'a str,
    #[serde(rename = "ref")]
    reference: Option<&'a str>,
    before: Option<&'a str>,
    after: Option<&'a str>,
    urls: &'a [String],
    #[serde(with = "rfc3339")]
    time: SystemTime,
}

impl Default for WebhookClient {
    fn default() -> Self {
        Self { tls: Arc::new(ClientTls::system()) }
    }
}

impl WebhookClient {
    /// Sends an event, signed with the key of the policy.
    pub(super) async fn send(
        &self,
        url: &str,
        allowed: Option<&AllowedWebhook>,
        event: &ProjectEvent,
    ) -> Result<(), EffectError> {
        let refused = |what: &str| EffectError::Refused(what.to_owned());
        let allowed =
            allowed.ok_or_else(|| refused("the policy of the cluster's owner does not list this URL"))?;
        let file =
            allowed.secret_file().ok_or_else(|| refused("the policy has no secretFile for this URL"))?;
        let key = read_key(file).await?;
        let body = body(event);
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let signature = signature(&key, event.id(), timestamp, &body);
        let id =
            HeaderValue::from_str(event.id()).map_err(|_| refused("the id of the event is no header"))?;
        let headers = [
            (ID, id),
            (TIMESTAMP, timestamp.into()),
            (SIGNATURE, HeaderValue::from_str(&signature).expect("base64")),
        ];
        self.post(url, headers, body.into()).await
    }

    /// Calls Flux' notification controller, which knows the caller by the path.
    pub(super) async fn call(&self, url: &str) -> Result<(), EffectError> {
        self.post(url, [], Bytes::from_static(b"{}")).await
    }

    async fn post(
        &self,
        url: &str,
        headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
        body: Bytes,
    ) -> Result<(), EffectError> {
        let refused = |what: String| EffectError::Refused(what);
        let uri: Uri = url.parse().map_err(|_| refused("it is no URL".to_owned()))?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let server = url.strip_suffix(path).unwrap_or(url);
        let server: ServerUrl = server.parse().map_err(|error| refused(format!("{error}")))?;
        // The owner of the cluster has named the address of a container of the same pod.
        let is_local = server.host().parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        let address_filter =
            if is_local { |address: &IpAddr| address.is_loopback() } else { is_service_address };
        let tls = Arc::clone(&self.tls);
        let upstream =
            Upstream::new(server, UpstreamConfig { tls, address_filter, ..UpstreamConfig::default() });
        let mut request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONTENT_LENGTH, body.len())
            .header(header::USER_AGENT, concat!("agentk/", env!("CARGO_PKG_VERSION")));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Body::from(body)).map_err(|error| refused(error.to_string()))?;
        let response = timeout(RESPONSE_TIMEOUT, upstream.send(request)).await;
        let response =
            response.map_err(|_| EffectError::Failed("the receiver does not respond in time".to_owned()))?;
        // The body is not read: dropping it closes the connection.
        let status = response.map_err(|error| EffectError::Failed(error.to_string()))?.status();
        check(status)
    }
}

/// Decides by the status of a response whether the event is delivered.
fn check(status: StatusCode) -> Result<(), EffectError> {
    let retryable = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];
    match status {
        _ if status.is_success() => Ok(()),
        _ if status.is_redirection() => {
            Err(EffectError::Refused(format!("the receiver responds {status}; redirects are not followed")))
        }
        _ if status.is_server_error() || retryable.contains(&status) => {
            Err(EffectError::Failed(format!("the receiver responds {status}")))
        }
        _ => Err(EffectError::Refused(format!("the receiver responds {status}"))),
    }
}

fn body(event: &ProjectEvent) -> String {
    let ProjectEventFields { id, project, reference, before, after, urls, time, sequence: _ } =
        event.fields();
    let body = WebhookBody {
        id,
        project,
        reference: reference.as_deref(),
        before: before.as_deref(),
        after: after.as_deref(),
        urls,
        time: *time,
    };
    json!(body).to_string()
}

/// Returns the value of the header `webhook-signature`: the HMAC-SHA256 of id, time and body.
fn signature(key: &SecretString, id: &str, timestamp: u64, body: &str) -> String {
    let mac = Hmac::<Sha256>::new_from_slice(key.expose_secret().as_bytes()).expect("any length is a key");
    let mac = mac.chain_update(format!("{id}.{timestamp}.{body}")).finalize().into_bytes();
    format!("v1,{}", BASE64_STANDARD.encode(mac))
}

/// Reads the key at each use, so that a new one needs no restart.
async fn read_key(file: &Path) -> Result<SecretString, EffectError> {
    let path = file.to_owned();
    let read = tokio::task::spawn_blocking(move || files::read_text_at_most(&path, *KEY_LENGTH.end() as u64));
    let failed =
        |what: String| EffectError::Failed(format!("the key {} cannot be used: {what}", file.display()));
    let text =
        read.await.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
    let key = text.trim();
    if !KEY_LENGTH.contains(&key.len()) {
        return Err(failed("a key has 16 to 4096 bytes".to_owned()));
    }
    Ok(SecretString::from(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The HMAC was computed with `openssl dgst -sha256 -hmac`.
    #[test]
    fn signature_covers_id_time_and_body() {
        let key = SecretString::from("0123456789abcdef");
        let signed = signature(&key, "e-1", 1_700_000_000, "{}");
        assert_eq!(signed, SIGNED);
        for (id, time, body) in
            [("e-2", 1_700_000_000, "{}"), ("e-1", 1_700_000_001, "{}"), ("e-1", 1_700_000_000, "{ }")]
        {
            assert_ne!(signature(&key, id, time, body), signed);
        }
    }

    const SIGNED: &str = "v1,XQZ1It/RYzCbq4De7EfK882GjwVIodVbEjEhoFN3qEQ=";

    #[test]
    fn status_decides_about_another_attempt() {
        for (status, expected) in [
            (200, None),
            (204, None),
            (301, Some(false)),
            (308, Some(false)),
            (400, Some(false)),
            (404, Some(false)),
            (408, Some(true)),
            (410, Some(false)),
            (429, Some(true)),
            (500, Some(true)),
            (503, Some(true)),
        ] {
            let result = check(StatusCode::from_u16(status).unwrap());
            let retried = result.err().map(|error| matches!(error, EffectError::Failed(_)));
            assert_eq!(retried, expected, "{status}");
        }
    }
}
